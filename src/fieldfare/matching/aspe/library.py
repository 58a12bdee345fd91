"""The library `aspe`: encrypted filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.encrypted import (
    ENCRYPTED,
    EncryptedAlternative,
    compile_encrypted,
    decode_encrypted,
)
from fieldfare.filters.errors import FilterError, Problem
from fieldfare.matching.aspe.index import (
    TOKENS_GROUP,
    AlternativesWithoutTokens,
    AlternativesWithTokens,
    AspeIndex,
)
from fieldfare.matching.files import read_only
from fieldfare.matching.library import Indexed, Library


@dataclass(frozen=True, slots=True)
class AspeLibrary:
    """Encrypted filters; see ``library.Library``.

    Attributes
    ----------
    tokens
        The library that indexes the tokens.
    """

    tokens: Library
    name: str = ENCRYPTED

    def compile(self, text: str, dialect: str) -> bytes:
        """See ``library.Library``."""
        if dialect != ENCRYPTED:
            raise FilterError(text, [Problem(f"a filter of {dialect} is not encrypted", 1, 1, "", 0)])
        return compile_encrypted(text).compiled

    def builder(self) -> AspeBuilder:
        """See ``library.Library``."""
        return AspeBuilder(self.tokens)

    def open(self, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> AspeIndex:
        """See ``library.Library``."""
        of_tokens = {
            name.removeprefix(TOKENS_GROUP): array
            for name, array in arrays.items()
            if name.startswith(TOKENS_GROUP)
        }
        tokened = AlternativesWithTokens(
            self.tokens.open(meta["tokens"], of_tokens),
            *(arrays[f"aspe.tokened_{name}"] for name in ("place", "start", "rows")),
        )
        untokened = AlternativesWithoutTokens(
            *(arrays[f"aspe.{name}"] for name in ("groups", "place", "rows"))
        )
        return AspeIndex(meta["dimensions"], untokened, tokened)


@dataclass(frozen=True, slots=True)
class _TokenCondition:
    """An alternative's condition on tokens, as the token library accepts it."""

    compiled: bytes
    text: str
    dialect: str = "sql"


class AspeBuilder:
    """A builder of an `AspeIndex`. See ``library.Builder``."""

    def __init__(self, tokens: Library) -> None:
        self._tokens = tokens.builder()
        self._count = 0
        self._lanes: dict[tuple[int, int], tuple[list[int], list[bytes]]] = {}
        self._tokened: tuple[list[int], list[int], list[bytes]] = ([], [0], [])
        self._dimensions = 0

    def add(self, filters: Sequence[Indexed]) -> None:
        """See ``library.Builder``."""
        on_tokens = []
        for each in filters:
            if not isinstance(each.compiled, bytes):
                raise ValueError("the compiled form of an encrypted filter must be bytes")
            for found in decode_encrypted(each.compiled):
                self._check(found)
                if found.text:
                    on_tokens.append(_TokenCondition(found.compiled, found.text))
                    places, ends, rows = self._tokened
                    places.append(self._count)
                    rows += found.rows
                    ends.append(len(rows))
                else:
                    group = self._lanes.setdefault((found.epoch, len(found.rows)), ([], []))
                    group[0].append(self._count)
                    group[1].append(b"".join(found.rows))
            self._count += 1
        self._tokens.add(on_tokens)

    def _check(self, found: EncryptedAlternative) -> None:
        for row in found.rows:
            self._dimensions = self._dimensions or len(row) // 8
            if len(row) != 8 * self._dimensions:
                raise ValueError(
                    f"filters encrypted with {self._dimensions} and with {len(row) // 8} dimensions"
                    " cannot be in one index"
                )

    def finish(self, order: NDArray[np.int64]) -> AspeIndex:
        """See ``library.Builder``."""
        place_of = np.empty(len(order), np.int32)
        place_of[order] = np.arange(len(order), dtype=np.int32)
        lanes = sorted(self._lanes.items())
        groups = [(epoch, depth, len(places)) for (epoch, depth), (places, _) in lanes]
        untokened = AlternativesWithoutTokens(
            read_only(np.array(groups, np.int64).reshape(-1, 3)),
            read_only(place_of[np.array([place for _, (places, _) in lanes for place in places], np.int64)]),
            read_only(self._numbers([row for _, (_, rows) in lanes for row in rows])),
        )
        places, ends, rows = self._tokened
        tokened = AlternativesWithTokens(
            self._tokens.finish(np.arange(len(places))),
            read_only(place_of[places]),
            read_only(np.array(ends, np.int64)),
            read_only(self._numbers(rows)),
        )
        self._lanes, self._tokened = {}, ([], [0], [])
        return AspeIndex(self._dimensions, untokened, tokened)

    def _numbers(self, rows: list[bytes]) -> NDArray[np.float64]:
        """Convert rows to numbers, normalized to length 1: [n, D]."""
        numbers = np.frombuffer(b"".join(rows), np.float64).reshape(-1, max(1, self._dimensions))
        found: NDArray[np.float64] = numbers / np.linalg.norm(numbers, axis=1, keepdims=True)
        return found
