"""The axis of an attribute: every value it can take, in one order, cut into segments.

Li et al. 2011, section III.A, use an ordered set of numbers for an attribute's values V^i. Filters here
support more types, so the axis is the order of ``fieldfare.filters.values`` over all regions::

    missing | null | other | false | true | numbers, exactly | strings, by code point

    segment 0      | segment 1         | segment 2         | ...      boundaries: places between values

Every predicate is a few intervals of this axis: a comparison of strings by their order, a prefix an interval,
a set of values its points, IS NULL the atoms `missing` and `null`, and an attribute that a filter does not
name the whole axis. As in the paper a segment contains its lower boundary and not its upper one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.values import BEFORE, Ranges, ValueSet, atom_of, exact_number
from fieldfare.matching.events.columns import (
    KIND_EXACT,
    KIND_FLOAT,
    KIND_INT,
    KIND_STRING,
    ColumnBatch,
)
from fieldfare.model import Path

NUMBERS, STRINGS, END = 5, 6, 7
"""The regions after the five atoms, which are numbered like the kinds of ``matching.columns``."""

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1

Place = tuple[Any, ...]
"""A place between two values: ``(region,)`` before a whole region, or ``(region, value, side)``.

Places of an axis are ordered as tuples. A number's value is a Decimal.
"""

AXIS_START: Place = (0,)
AXIS_END: Place = (END,)


def place_before(value: Any) -> Place:
    """Return the place just before a JSON value (``ABSENT`` for a missing one)."""
    atom = atom_of(value)
    if atom:
        return (atom.bit_length() - 1,)
    if isinstance(value, str):
        return (STRINGS, value, BEFORE)
    return (NUMBERS, exact_number(value), BEFORE)


def intervals(values: ValueSet | None) -> Iterator[tuple[Place, Place]]:
    """Yield the intervals of the axis that a set of values occupies, ascending; None is the whole axis."""
    if values is None:
        yield AXIS_START, AXIS_END
        return
    for atom in range(NUMBERS):
        if values.atoms >> atom & 1:
            yield (atom,), (atom + 1,)
    yield from _intervals_of_region(values.numbers, NUMBERS)
    yield from _intervals_of_region(values.strings, STRINGS)


def _intervals_of_region(ranges: Ranges, region: int) -> Iterator[tuple[Place, Place]]:
    places: list[Place] = [(region,)] if ranges.starts_inside else []
    places += [(region, *cut) for cut in ranges.cuts]
    if len(places) & 1:
        places.append((region + 1,))
    return zip(places[::2], places[1::2], strict=True)


class _Thresholds(NamedTuple):
    """The boundaries, converted for each kind of an event's value; as exact as a comparison of Decimals.

    The number of boundaries below a value is the number of thresholds that do not exceed it, plus
    ``numbers_base`` or ``strings_base`` for the boundaries below all values of its region.
    """

    of_kind: NDArray[np.int32]  # [9], the segment of an atom
    numbers_base: int
    ints: NDArray[np.int64]
    floats: NDArray[np.float64]
    exact: list[Decimal]
    strings_base: int
    text: NDArray[np.uint8]
    text_start: NDArray[np.int64]


@dataclass(frozen=True)
class Axis:
    """An attribute and the boundaries between its segments.

    Parameters
    ----------
    path
        The attribute.
    boundaries
        Places, never descending; N - 1 of them make N segments. Two equal ones have an empty segment between
        them. A boundary is before a region or before a value, never after one.
    """

    path: Path
    boundaries: tuple[Place, ...]

    def __post_init__(self) -> None:
        if any(a > b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False)):
            raise ValueError(f"the boundaries of {self.path} descend")
        if any(len(place) == 3 and place[2] != BEFORE for place in self.boundaries):
            raise ValueError(f"a boundary of {self.path} is not before a value: segments are half-open")

    @property
    def segment_count(self) -> int:
        """Number of segments: one more than boundaries."""
        return len(self.boundaries) + 1

    def locate(self, columns: ColumnBatch) -> NDArray[np.int32]:
        """Return the segment of every event of a batch: int32[n]."""
        thresholds = self._thresholds
        column = columns.columns.get(self.path)
        if column is None or not self.boundaries:
            return np.full(columns.size, thresholds.of_kind[0], np.int32)
        kinds, words = column.kinds, column.words
        present = np.bincount(kinds, minlength=9)
        if present[KIND_INT] == columns.size:
            return thresholds.numbers_base + _count_below(thresholds.ints, words)
        if present[KIND_FLOAT] == columns.size:
            return thresholds.numbers_base + _count_below(thresholds.floats, words.view(np.float64))
        segments = thresholds.of_kind[kinds]
        if present[KIND_INT]:
            chosen = np.flatnonzero(kinds == KIND_INT)
            segments[chosen] += _count_below(thresholds.ints, words[chosen])
        if present[KIND_FLOAT]:
            chosen = np.flatnonzero(kinds == KIND_FLOAT)
            segments[chosen] += _count_below(thresholds.floats, words[chosen].view(np.float64))
        for event in np.flatnonzero(kinds == KIND_EXACT).tolist() if present[KIND_EXACT] else ():
            segments[event] += bisect_right(thresholds.exact, columns.exact[int(words[event])])
        if present[KIND_STRING]:
            from fieldfare.partitioning.kernels import locate_strings  # Only if needed: it loads numba.

            locate_strings(thresholds.text, thresholds.text_start, kinds, words, columns.text, segments)
        return segments

    @cached_property
    def _thresholds(self) -> _Thresholds:
        numbers = [place[1] for place in self.boundaries if len(place) == 3 and place[0] == NUMBERS]
        strings = [
            place[1].encode("utf-8", "surrogatepass") for place in self.boundaries if _is_string(place)
        ]
        numbers_base = bisect_right(self.boundaries, (NUMBERS,))
        strings_base = bisect_right(self.boundaries, (STRINGS,))
        of_atom = [bisect_right(self.boundaries, (atom,)) for atom in range(NUMBERS)]
        of_kind = np.array([*of_atom, *[numbers_base] * 3, strings_base], np.int32)
        ints = [max(INT64_MIN, least) for number in numbers if (least := _ceiling(number)) <= INT64_MAX]
        text = np.frombuffer(b"".join(strings), np.uint8)
        text_start = np.cumsum([0, *map(len, strings)], dtype=np.int64)
        floats = np.array([least_float(number) for number in numbers], np.float64)
        return _Thresholds(
            of_kind, numbers_base, np.array(ints, np.int64), floats, numbers, strings_base, text, text_start
        )


def _is_string(place: Place) -> bool:
    return len(place) == 3 and place[0] == STRINGS


def _count_below(thresholds: NDArray[Any], values: NDArray[Any]) -> NDArray[np.int32]:
    return np.searchsorted(thresholds, values, side="right").astype(np.int32)


def _ceiling(number: Decimal) -> int:
    """Return the least integer not below a number, clamped to the range of int64 and one above."""
    if abs(number) < Decimal(10) ** 30:
        return math.ceil(number)
    return INT64_MAX + 1 if number > 0 else INT64_MIN


def least_float(number: Decimal) -> float:
    """Return the least float64 not below a number; a float stands for the decimal that it prints as."""
    nearest = float(number)
    if nearest == math.inf:
        return nearest
    if nearest == -math.inf or exact_number(nearest) < number:
        return math.nextafter(nearest, math.inf)
    return nearest
