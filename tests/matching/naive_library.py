"""A library without an index: every filter is evaluated for every event. It tests the library interface.

Tests of parts and indexes that hold for every library run against this one and `plain` (`each_library`). A
filter whose work is counted is a candidate where its normal form may hold, as ``FilterIndex.find`` requires
of every library; all others are evaluated at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fieldfare.filters import compile_filter
from fieldfare.filters.derived import base_paths, value_getter
from fieldfare.filters.evaluator import lookup_getter
from fieldfare.filters.work import Work
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.libraries import PLAIN
from fieldfare.matching.library import Candidates, FilterIndex, Indexed, Library, TooManyPairs
from fieldfare.matching.plain.library import PlainLibrary
from fieldfare.model import Path

CompileFilter = Callable[[str, str], Any]


@dataclass(frozen=True)
class NaiveLibrary:
    compile_filter: CompileFilter = compile_filter
    name: str = "naive"

    def compile(self, text: str, dialect: str) -> bytes:
        self.compile_filter(text, dialect)
        return f"{dialect}\n{text}".encode()

    def builder(self) -> NaiveBuilder:
        return NaiveBuilder(self.compile_filter)

    def open(self, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> FilterIndex:
        text = arrays["naive.text"].tobytes()
        ends = arrays["naive.end"].tolist()
        filters = [text[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]
        return NaiveIndex(filters, self.compile_filter)


@dataclass
class NaiveBuilder:
    compile_filter: CompileFilter
    filters: list[str] = field(default_factory=list)

    def add(self, filters: Sequence[Indexed]) -> None:
        self.filters += [f"{each.dialect}\n{each.text}" for each in filters]

    def finish(self, order: NDArray[np.int64]) -> FilterIndex:
        return NaiveIndex([self.filters[i] for i in order.tolist()], self.compile_filter)


class NaiveIndex:
    """Filters, each as its dialect, a line break and its text."""

    def __init__(self, texts: list[str], compile_filter: CompileFilter) -> None:
        self._texts = texts
        parts = [text.partition("\n") for text in texts]
        self._filters = [compile_filter(text, dialect) for dialect, _, text in parts]
        self.paths: tuple[Path, ...] = tuple({path: None for f in self._filters for path in paths_of(f)})
        self.width = len(self.paths)
        self._works = list(dict.fromkeys(getattr(f, "work", None) for f in self._filters))

    @property
    def confirms(self) -> bool:
        return any(work is not None for work in self._works)

    def find(self, columns: ColumnBatch, start: int, end: int, most: int) -> Candidates:
        pairs = []
        for event in range(start, end):
            for place, condition in enumerate(self._filters):
                get = getter(columns, event)
                if getattr(condition, "work", None) is None:
                    pairs += [(event - start, place)] if condition.decides(get) else []
                elif any(fits(each, get) for each in condition.normal_form.conjunctions):
                    pairs.append((event - start, ~place))
        if len(pairs) > most:
            raise TooManyPairs
        return Candidates(np.array(pairs, np.int32).reshape(-1, 2))

    def works(self, places: NDArray[np.int32]) -> NDArray[np.int32]:
        works = [None, *filter(None, self._works)]
        return np.array([works.index(self._filters[place].work) for place in places.tolist()], np.int32)

    def work(self, number: int) -> Work:
        return list(filter(None, self._works))[number - 1]

    def confirm(
        self, columns: ColumnBatch, events: NDArray[np.int64], places: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        asked = zip(events.tolist(), places.tolist(), strict=True)
        return np.array(
            [self._filters[place].decides(getter(columns, event)) for event, place in asked], bool
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        texts = [text.encode() for text in self._texts]
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        return {"naive.text": np.frombuffer(b"".join(texts), np.uint8), "naive.end": ends}

    def meta(self) -> dict[str, Any]:
        return {}

    def explain(self) -> NaiveExplanation:
        return NaiveExplanation({name: array.nbytes for name, array in self.arrays().items()})

    def explain_filter(self, place: int) -> tuple[Evaluated, ...]:
        return (Evaluated(),)


@dataclass(frozen=True)
class NaiveExplanation:
    size_bytes: dict[str, int]

    def lines(self) -> list[str]:
        return ["no index"]

    def document(self) -> dict[str, Any]:
        return {"index": None}


class Evaluated:
    def __str__(self) -> str:
        return "evaluated for every event"

    def document(self) -> dict[str, Any]:
        return {"evaluated": True}


def getter(columns: ColumnBatch, event: int) -> Callable[[Path], Any]:
    return lambda path: columns.value(path, event)


def paths_of(condition: Any) -> set[Path]:
    """The attributes that a filter reads, and those of its normal form if its work is counted."""
    found = set(condition.column_paths)
    if getattr(condition, "work", None) is not None:
        for each in condition.normal_form.conjunctions:
            found.update(*(base_paths(path) for path, _ in each.constraints))
    return found


def fits(conjunction: Any, get: Callable[[Path], Any]) -> bool:
    """Whether an event may match a conjunction of a normal form."""
    return all(
        value_getter(path, lookup_getter)(get) in values for path, values in conjunction.constraints
    ) and all(needle.is_in(get(needle.path)) for needle in conjunction.needles)


def match_naive(events: Sequence[Mapping[str, Any]], filters: Sequence[tuple[int, Any]]) -> list[list[int]]:
    """The numbers of the filters that each event matches, strictly ascending; in plain Python."""
    return [sorted({number for number, condition in filters if condition.matches(event)}) for event in events]


NAIVE: Library = NaiveLibrary()
BOTH: Mapping[str, Library] = {PLAIN.name: PLAIN, NAIVE.name: NAIVE}
each_library = pytest.mark.parametrize("library", BOTH.values(), ids=BOTH)
"""Parametrize tests of filters that `compile_filter` compiles."""
each_kind = pytest.mark.parametrize("library_of", [PlainLibrary, NaiveLibrary], ids=BOTH)
"""Parametrize tests with other filters: constructors of a library from a compile function."""
