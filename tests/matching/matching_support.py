"""Stand-ins and generators shared by the matching tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fieldfare.filters import encode_normal_form
from fieldfare.filters.needles import Needle
from fieldfare.filters.values import (
    ABSENT,
    ALL_ATOMS,
    Ranges,
    ValueSet,
    atom_of,
    greater_than,
    less_than,
    points,
    with_prefix,
)
from fieldfare.matching.events.columns import (
    KIND_EXACT,
    KIND_FALSE,
    KIND_FLOAT,
    KIND_INT,
    KIND_MISSING,
    KIND_NULL,
    KIND_OTHER,
    KIND_STRING,
    KIND_TRUE,
    Column,
    ColumnBatch,
)
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END

PATHS = [("a",), ("b",), ("data", "c"), ("data", "d", 0)]


@dataclass(frozen=True)
class Conjunction:
    """The interface of a conjunction that the index reads."""

    constraints: tuple[tuple[tuple[str | int, ...], ValueSet], ...]
    exact: bool = True
    needles: tuple[Needle, ...] = ()
    implied: frozenset[tuple[str | int, ...]] = frozenset()
    derives: bool = False


@dataclass(frozen=True)
class NormalForm:
    """The interface of a normal form that the index reads; as a filter it evaluates itself."""

    conjunctions: tuple[Conjunction, ...]
    refused: tuple[Any, ...] = ()
    """Values of path ("a",) that the exact filter rejects although an inexact conjunction accepts them."""

    @property
    def paths(self) -> frozenset[tuple[str | int, ...]]:
        named = {path for conjunction in self.conjunctions for path, _ in conjunction.constraints}
        return frozenset(named | ({("a",)} if self.refused else set()))

    @property
    def column_paths(self) -> frozenset[tuple[str | int, ...]]:
        return self.paths

    def decides(self, get: Any) -> bool:
        for conjunction in self.conjunctions:
            fits = all(get(path) in values for path, values in conjunction.constraints)
            fits = fits and all(needle.is_in(get(needle.path)) for needle in conjunction.needles)
            if fits and (conjunction.exact or not self._refuses(get(("a",)))):
                return True
        return False

    def _refuses(self, value: Any) -> bool:
        return any(type(value) is type(refused) and value == refused for refused in self.refused)

    @property
    def compiled(self) -> bytes:
        return encode_normal_form(self)  # type: ignore[arg-type]


class Compiler:
    """A stand-in for `compile_filter`: texts name normal forms registered before."""

    def __init__(self) -> None:
        self.known: dict[str, NormalForm] = {}

    def register(self, form: NormalForm) -> str:
        text = f"form {len(self.known)}"
        self.known[text] = form
        return text

    def __call__(self, text: str, dialect: str) -> NormalForm:
        assert dialect == "sql"
        return self.known[text]


def entry(
    version: int,
    form: NormalForm,
    *,
    number: int | None = None,
    start: int = 0,
    end: int = OPEN_END,
    text: str = "",
) -> IndexEntry:
    """Make an index entry with default values for the other fields."""
    return IndexEntry(version, version if number is None else number, start, end, form, text, "sql")  # type: ignore[arg-type]


def columns_of(events: Sequence[Mapping[tuple[str | int, ...], Any]]) -> ColumnBatch:
    """Convert events, as maps from path to value, to columns, slowly."""
    text = bytearray()
    exact: list[Any] = []
    columns = {}
    for path in dict.fromkeys(path for event in events for path in event):
        kinds, words = np.zeros(len(events), np.uint8), np.zeros(len(events), np.int64)
        for i, event in enumerate(events):
            kinds[i], words[i] = _word(event.get(path, ABSENT), text, exact)
        columns[path] = Column(kinds, words)
    return ColumnBatch(len(events), columns, np.frombuffer(bytes(text), np.uint8), tuple(exact))


def _word(value: Any, text: bytearray, exact: list[Any]) -> tuple[int, int]:
    if value is ABSENT:
        return KIND_MISSING, 0
    if value is None:
        return KIND_NULL, 0
    if isinstance(value, bool):
        return (KIND_TRUE if value else KIND_FALSE), 0
    if atom_of(value):
        return KIND_OTHER, 0
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return KIND_INT, value
    if isinstance(value, float):
        return KIND_FLOAT, int(np.float64(value).view(np.int64))
    if isinstance(value, str):
        raw = value.encode()
        text.extend(raw)
        return KIND_STRING, (len(text) - len(raw)) << 32 | len(raw)
    exact.append(value)
    return KIND_EXACT, len(exact) - 1


def matches_of(form: NormalForm, event: Mapping[tuple[str | int, ...], Any]) -> bool:
    """The expected result."""
    return form.decides(lambda path: event.get(path, ABSENT))


_INTERESTING_NUMBERS = [
    0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**63, 2**64 + 1, -(2**70), 10**40,
    0.0, -0.0, 0.1, 0.1 + 2**-55, 1.5, 1e300, -1e300, 5e-324, 1e23, 9007199254740993.0, 2.0**63,
    Decimal("0.1"), Decimal("0.10000000000000000001"), Decimal("1e400"), Decimal("-1e400"),
    Decimal("9007199254740992.5"), Decimal("1e-400"), Decimal("1.50"), Decimal("9223372036854775807.5"),
]  # fmt: skip
_WORDS = ["", "a", "ab", "abc", "b", "é", "\ud7ff", "\ue000", "😀", "\U0010ffff", "\x00", "a\x00"]

finite_numbers = st.one_of(
    st.sampled_from(_INTERESTING_NUMBERS),
    st.integers(-3, 3),
    st.integers(-(2**65), 2**65),
    st.floats(allow_nan=False, allow_infinity=False),
    st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-5, max_value=5),
)
strings = st.one_of(st.sampled_from(_WORDS), st.text(max_size=3))
values = st.one_of(
    st.sampled_from([ABSENT, None, True, False, [], {"x": 1}, float("nan"), float("inf"), float("-inf")]),
    finite_numbers,
    strings,
)
constants = finite_numbers.map(lambda n: Decimal(repr(n)) if isinstance(n, float) else Decimal(n))


def _ranges(constant: st.SearchStrategy[Any]) -> st.SearchStrategy[Ranges]:
    simple = st.one_of(
        st.just(Ranges()),
        st.builds(less_than, constant, or_equal=st.booleans()),
        st.builds(greater_than, constant, or_equal=st.booleans()),
        st.lists(constant, min_size=1, max_size=4).map(points),
        st.lists(constant, min_size=1, max_size=2).map(lambda c: points(c).complement()),
    )
    combined = st.builds(
        lambda a, b, either: a.union(b) if either else a.intersection(b), simple, simple, st.booleans()
    )
    return st.one_of(simple, combined)


value_sets = st.builds(
    ValueSet,
    st.sampled_from([0, 0, 0, 1, 2, 16, 24, ALL_ATOMS, ALL_ATOMS - 1, 7, 21]),
    _ranges(constants),
    st.one_of(_ranges(strings), strings.map(with_prefix)),
).filter(lambda values: not values.is_empty and not values.is_full)

conjunctions = st.builds(
    lambda constraints, exact: Conjunction(tuple(sorted(constraints.items(), key=str)), exact),
    st.dictionaries(st.sampled_from(PATHS), value_sets, max_size=3),
    st.sampled_from([True, True, True, False]),
)
normal_forms = st.builds(
    NormalForm,
    st.lists(conjunctions, max_size=3).map(tuple),
    st.lists(finite_numbers, max_size=2).map(tuple),
)
events = st.dictionaries(st.sampled_from(PATHS), values, max_size=4)


def run_of(events: Sequence[int] | NDArray[np.int64], place: int) -> NDArray[np.int32]:
    """Make the slots for matches of all these events with one subscription."""
    four = np.zeros(-(-len(events) // 4) * 4, np.uint16)
    four[: len(events)] = events
    slots = np.array([[-len(events), place]], np.int32)
    return np.concatenate([slots, four.view(np.int32).reshape(-1, 2)])


def pairs_of(pairs: NDArray[np.int32]) -> list[tuple[int, int]]:
    """The events and places of slots."""
    found, slots = [], iter(pairs)
    for event, place in slots:
        if event >= 0:
            found.append((int(event), int(place)))
        else:
            data = [next(slots) for _ in range(-(event // 4))]
            events = np.concatenate(data).view(np.uint16)[:-event]
            found += [(int(each), int(place)) for each in events]
    return found
