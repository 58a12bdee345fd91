"""The index of encrypted filters: flat arrays, searched by batches of events.

Alternatives without tokens are stored in *lanes*, grouped by epoch and number of rows. Those with tokens are
indexed by a library that knows tokens, and their rows are evaluated for its matches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.encrypted import EPOCH_PATH, VECTOR_PATH
from fieldfare.filters.work import Work
from fieldfare.matching.aspe.kernels import (
    CHUNK_BYTES,
    EVENTS,
    LANES,
    floor_of,
    keep_positive,
    scan,
    without_negligible,
)
from fieldfare.matching.aspe.vectors import EventVectors, vectors_of
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.grouping import single_pairs
from fieldfare.matching.library import Candidates, FilterIndex, TooManyPairs
from fieldfare.model import Path

PAIRS_ROOM = 8192
SAMPLE = 64
"""Maximum events from which the order of rows is learnt."""
LEARNT_AGAIN = 4
"""Growth of the sample, as a factor, at which the order of rows is learnt again."""
LEARNT_BATCH_SIZE = 8192
TOKENS_GROUP = "tokens/"


class LaneGroup(NamedTuple):
    """Alternatives of one epoch with equally many rows, as views of the shared arrays.

    Subscribers choose the epochs, so there may be very many groups; events refer to few.
    """

    epoch: int
    depth: int
    place: NDArray[np.int32]
    """[n]: the place of each alternative's filter."""
    rows: NDArray[np.float64]
    """[n * depth, D]"""


class _Lanes(NamedTuple):
    """A group in the kernel's layout, in the learnt order."""

    learnt_from: int
    lanes: NDArray[np.float32]
    shape: tuple[int, int, int]
    place: NDArray[np.int32]
    rows: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AlternativesWithoutTokens:
    """Alternatives without tokens.

    Attributes
    ----------
    groups
        For each group the epoch, the rows per alternative, and the number of alternatives: int64[g, 3],
        ascending.
    place
        The place of each alternative's filter, group by group: int32[n].
    rows
        float64[m, D].
    """

    groups: NDArray[np.int64]
    place: NDArray[np.int32]
    rows: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AlternativesWithTokens:
    """Alternatives with tokens: the index that finds them, and the rows evaluated for its matches.

    Attributes
    ----------
    index
        The index of the tokens; its places are indices into these arrays.
    place
        The place of each alternative's filter: int32[n].
    start
        The bounds of each alternative's rows: int64[n + 1].
    rows
        float64[m, D].
    """

    index: FilterIndex
    place: NDArray[np.int32]
    start: NDArray[np.int64]
    rows: NDArray[np.float64]


class AspeIndex:
    """Encrypted filters, indexed; see ``library.FilterIndex``."""

    def __init__(
        self, dimensions: int, untokened: AlternativesWithoutTokens, tokened: AlternativesWithTokens
    ) -> None:
        self.dimensions = dimensions
        self._untokened = untokened
        self._epochs = np.ascontiguousarray(untokened.groups[:, 0])
        self._ends = np.cumsum(untokened.groups[:, 2])
        self._row_ends = np.cumsum(untokened.groups[:, 1] * untokened.groups[:, 2])
        self._tokened = tokened
        self._lanes: dict[int, _Lanes] = {}
        self._pairs_room = PAIRS_ROOM
        own = (VECTOR_PATH, EPOCH_PATH) if dimensions else ()
        self.paths: tuple[Path, ...] = tuple(dict.fromkeys((*own, *tokened.index.paths)))

    @property
    def width(self) -> int:
        """See ``library.FilterIndex``."""
        return self.dimensions + self._tokened.index.width

    @property
    def confirms(self) -> bool:
        """Always false: no filter must be confirmed."""
        return False

    def find(self, columns: ColumnBatch, start: int, end: int, most: int) -> Candidates:
        """See ``library.FilterIndex``."""
        vectors = vectors_of(columns, self.dimensions)
        here = EventVectors(vectors.epochs[start:end], vectors.numbers[start:end])
        pairs, count = np.empty((self._pairs_room, 2), np.int32), 0
        for epoch in np.unique(here.epochs):
            first, last = (int(np.searchsorted(self._epochs, epoch, side)) for side in ("left", "right"))
            if first == last:
                continue
            events = np.flatnonzero(here.epochs == epoch).astype(np.int32)
            numbers = here.numbers[events]
            for group in range(first, last):
                pairs, count = self._scan(group, events, numbers, pairs, count, most)
        self._pairs_room = max(PAIRS_ROOM, count + (count >> 2))
        more = self._by_tokens(columns, start, end, here, most - count)
        return Candidates(np.concatenate([pairs[:count], more]) if len(more) else pairs[:count])

    def _scan(
        self,
        number: int,
        events: NDArray[np.int32],
        vectors: NDArray[np.float64],
        pairs: NDArray[np.int32],
        count: int,
        most: int,
    ) -> tuple[NDArray[np.int32], int]:
        """Append the matches of a group's alternatives."""
        lanes = self._lanes.get(number)
        if lanes is None or LEARNT_AGAIN * lanes.learnt_from <= min(SAMPLE, len(events)):
            lanes = self._lanes[number] = _learnt(self._group(number), vectors[:SAMPLE])
        flat = np.zeros((len(events) + EVENTS) * self.dimensions, np.float32)
        flat[: vectors.size] = without_negligible(vectors).reshape(-1)
        floor = np.float32(floor_of(self.dimensions))
        chunk_lanes = LANES * max(1, CHUNK_BYTES // (4 * LANES * lanes.shape[1] * lanes.shape[2]))
        group = 0
        while True:
            group, count = scan(
                lanes.lanes,
                lanes.shape,
                lanes.rows,
                lanes.place,
                flat,
                vectors,
                events,
                floor,
                group,
                pairs,
                count,
            )
            if count > most:
                raise TooManyPairs
            if group == lanes.shape[0]:
                return pairs, count
            # Room for all possible matches of the next chunk; unwritten memory costs nothing.
            larger = np.empty((2 * count + chunk_lanes * len(events), 2), np.int32)
            larger[:count] = pairs[:count]
            pairs = larger

    def _group(self, number: int) -> LaneGroup:
        epoch, depth, count = self._untokened.groups[number].tolist()
        end, row_end = int(self._ends[number]), int(self._row_ends[number])
        rows = self._untokened.rows[row_end - count * depth : row_end]
        return LaneGroup(epoch, depth, self._untokened.place[end - count : end], rows)

    def _by_tokens(
        self, columns: ColumnBatch, start: int, end: int, here: EventVectors, most: int
    ) -> NDArray[np.int32]:
        """Return the pairs found by tokens whose rows match."""
        tokened = self._tokened
        if not len(tokened.place):
            return np.zeros((0, 2), np.int32)
        pairs = single_pairs(tokened.index.find(columns, start, end, most).pairs)
        asked = np.flatnonzero(pairs[:, 1] < 0)
        if len(asked):
            pairs[asked, 1] = ~pairs[asked, 1]
            agreed = tokened.index.confirm(columns, pairs[asked, 0].astype(np.int64) + start, pairs[asked, 1])
            pairs = np.delete(pairs, asked[~agreed], axis=0)
        kept = keep_positive(pairs, tokened.start, tokened.rows, here.numbers, here.epochs > 0)
        pairs = pairs[:kept]
        pairs[:, 1] = tokened.place[pairs[:, 1]]
        return pairs

    def works(self, places: NDArray[np.int32]) -> NDArray[np.int32]:
        """See ``library.FilterIndex``."""
        return np.zeros(len(places), np.int32)

    def work(self, number: int) -> Work:
        """See ``library.FilterIndex``."""
        raise KeyError(number)

    def confirm(
        self, columns: ColumnBatch, events: NDArray[np.int64], places: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """See ``library.FilterIndex``."""
        return np.ones(len(events), np.bool_)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """See ``library.FilterIndex``."""
        found: dict[str, NDArray[Any]] = {
            "aspe.groups": self._untokened.groups,
            "aspe.place": self._untokened.place,
            "aspe.rows": self._untokened.rows,
            "aspe.tokened_place": self._tokened.place,
            "aspe.tokened_start": self._tokened.start,
            "aspe.tokened_rows": self._tokened.rows,
        }
        return found | {
            f"{TOKENS_GROUP}{name}": array for name, array in self._tokened.index.arrays().items()
        }

    def meta(self) -> dict[str, Any]:
        """See ``library.FilterIndex``."""
        return {
            "dimensions": self.dimensions,
            "tokens": self._tokened.index.meta(),
        }

    def explain(self) -> AspeExplanation:
        """See ``library.FilterIndex``."""
        sizes = {"rows": 0, "tokens": 0}
        for name, array in self.arrays().items():
            sizes["tokens" if name.startswith(TOKENS_GROUP) else "rows"] += array.nbytes
        in_lanes = len(self._untokened.place)
        return AspeExplanation(sizes, in_lanes, len(self._tokened.place), self.dimensions)

    def explain_filter(self, place: int) -> tuple[AlternativePlace, ...]:
        """See ``library.FilterIndex``."""
        places = np.flatnonzero(self._untokened.place == place)
        groups = self._untokened.groups[np.searchsorted(self._ends, places, "right")]
        found = [AlternativePlace(epoch, depth, by_tokens=False) for epoch, depth, _ in groups.tolist()]
        for at in np.flatnonzero(self._tokened.place == place).tolist():
            depth = int(self._tokened.start[at + 1] - self._tokened.start[at])
            found.append(AlternativePlace(0, depth, by_tokens=True))
        return tuple(found)


def _learnt(group: LaneGroup, sample: NDArray[np.float64]) -> _Lanes:
    """Arrange a group in lanes: each alternative's most selective row first, similar alternatives adjacent.

    The order is learnt from signs of products, which the service sees anyway. It is kept in memory only.
    """
    count, depth, dimensions = len(group.place), group.depth, group.rows.shape[1]
    rows = group.rows.reshape(count, depth, dimensions)
    passes = np.empty((count, depth, len(sample)), np.bool_)
    for first in range(0, count, LEARNT_BATCH_SIZE):
        passes[first : first + LEARNT_BATCH_SIZE] = rows[first : first + LEARNT_BATCH_SIZE] @ sample.T > 0.0
    order = np.argsort(passes.sum(axis=2), axis=1, kind="stable")
    rows = np.take_along_axis(rows, order[:, :, None], axis=1)
    ones, twos = (
        _words(np.take_along_axis(passes, order[:, [r], None], axis=1)) for r in (0, min(1, depth - 1))
    )
    groups = -(-count // LANES)
    alike = np.lexsort((ones, twos, ones >> np.uint64(SAMPLE - _bits_of_first(groups, depth))))
    rows, place = rows[alike], group.place[alike]
    padded = np.zeros((groups * LANES, depth, dimensions), np.float32)
    padded[:count] = without_negligible(rows)
    lanes = np.ascontiguousarray(padded.reshape(groups, LANES, depth, dimensions).transpose(0, 2, 3, 1))
    shape = (groups, depth, dimensions)
    return _Lanes(len(sample), lanes.reshape(-1), shape, place, rows.reshape(count * depth, dimensions))


def _words(signs: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Pack the signs of a sample into words, [n, 1, sample] to [n]; words with equal prefixes have similar
    rows."""
    packed = np.zeros((len(signs), SAMPLE // 8), np.uint8)
    bits = np.packbits(signs[:, 0], axis=1)
    packed[:, : bits.shape[1]] = bits
    found: NDArray[np.uint64] = packed.view(">u8")[:, 0].astype(np.uint64)
    return found


def _bits_of_first(groups: int, depth: int) -> int:
    """The number of signs of the first rows by which alternatives are sorted before the second rows.

    An event divides the rows of one attribute into three ranges. The number is chosen so that groups are
    divided equally often by the first and by the second rows.
    """
    return SAMPLE if depth == 1 else min(SAMPLE, max(1, round(math.sqrt(groups) / 8)))


@dataclass(frozen=True, slots=True)
class AspeExplanation:
    """The numbers of encrypted alternatives in an index."""

    size_bytes: Mapping[str, int]
    in_lanes: int
    by_tokens: int
    dimensions: int

    def lines(self) -> list[str]:
        return [
            f"encrypted: {self.in_lanes:,} alternatives in lanes, {self.by_tokens:,} found by tokens,"
            f" {self.dimensions} dimensions"
        ]

    def document(self) -> dict[str, Any]:
        return {"in_lanes": self.in_lanes, "by_tokens": self.by_tokens, "dimensions": self.dimensions}


@dataclass(frozen=True, slots=True)
class AlternativePlace:
    """The location of one alternative of an encrypted filter."""

    epoch: int
    rows: int
    by_tokens: bool

    def __str__(self) -> str:
        found = "found by tokens" if self.by_tokens else f"in lanes, epoch {self.epoch}"
        return f"encrypted: {self.rows} rows, {found}"

    def document(self) -> dict[str, Any]:
        return {"rows": self.rows, "by_tokens": self.by_tokens}
