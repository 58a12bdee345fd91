"""From the value sets of filters to sorted constants and intervals of cells (see ``layout``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.values import AFTER, Ranges, ValueSet
from fieldfare.matching.codes import code_shifts
from fieldfare.matching.kernels import fill_hash_table, grid_place
from fieldfare.matching.layout import FIRST_NUMBER_CELL, Dictionary, starts_of

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
CELL_MAX = np.iinfo(np.int32).max

# An end of a piece, before the constants have their final places: what it is relative to, shifted,
# plus twice the constant's provisional place, plus the side of the cut.
_SHIFT = 40
ABSOLUTE, NUMBER_CUT, NUMBERS_END, STRING_CUT, STRINGS_END = range(5)
_NUMBERS_START_TOKEN = FIRST_NUMBER_CELL
_NUMBERS_END_TOKEN = NUMBERS_END << _SHIFT
_STRINGS_END_TOKEN = STRINGS_END << _SHIFT

_ATOM_RUNS: list[list[tuple[int, int]]] = []
for _mask in range(32):
    _cells = [_cell for _cell in range(5) if _mask >> _cell & 1]
    _ATOM_RUNS.append([(_cell, _cell + 1) for _cell in _cells])


class Constants:
    """The constants that filters compare one attribute with, in the order they were met."""

    __slots__ = ("numbers", "ordered", "strings")

    def __init__(self) -> None:
        self.numbers: dict[Decimal, int] = {}
        self.strings: dict[str, int] = {}
        self.ordered = False

    def add(self, values: ValueSet, starts: list[int], ends: list[int]) -> int:
        """Append the set's pieces, as tokens for half-open intervals of cells; return how many."""
        before = len(starts)
        if values.atoms:
            for start, end in _ATOM_RUNS[values.atoms]:
                starts.append(start)
                ends.append(end)
        numbers = values.numbers
        if numbers.cuts or numbers.starts_inside:
            tokens = _tokens(numbers, self.numbers, NUMBER_CUT, _NUMBERS_START_TOKEN, _NUMBERS_END_TOKEN)
            starts.extend(tokens[::2])
            ends.extend(tokens[1::2])
        strings = values.strings
        if strings.cuts or strings.starts_inside:
            tokens = _tokens(strings, self.strings, STRING_CUT, _NUMBERS_END_TOKEN, _STRINGS_END_TOKEN)
            starts.extend(tokens[::2])
            ends.extend(tokens[1::2])
            if not self.ordered:
                self.ordered = _needs_order(strings)
        return len(starts) - before


def _tokens(
    ranges: Ranges, places: dict[Any, int], cut: int, region_start: int, region_end: int
) -> list[int]:
    tokens = [region_start] if ranges.starts_inside else []
    base = cut << _SHIFT
    for value, side in ranges.cuts:
        place = places.setdefault(value, len(places))
        tokens.append(base + 2 * place + side)
    if len(tokens) & 1:
        tokens.append(region_end)
    return tokens


def _needs_order(ranges: Ranges) -> bool:
    """Whether membership differs between gaps: not when the set is made of single strings and complements."""
    cuts = ranges.cuts
    if len(cuts) & 1:
        return True
    pairs = zip(cuts[::2], cuts[1::2], strict=True)
    return any(a[0] != b[0] or b[1] != AFTER for a, b in pairs)


def sort_numbers(numbers: Sequence[Decimal]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The order of distinct numbers, exact, and the nearest float64 of each (unsorted)."""
    near = np.fromiter(map(float, numbers), np.float64, len(numbers))
    order = np.argsort(near, kind="stable")
    sorted_near = near[order]
    if bool((sorted_near[1:] == sorted_near[:-1]).any()):
        order = np.array(sorted(range(len(numbers)), key=numbers.__getitem__), np.int64)
    return order, near


def side_of(number: Decimal, near: float) -> int:
    """On which side of the decimal that `near` prints as the number lies."""
    if math.isinf(near):
        return -1 if near > 0 else 1
    if near.is_integer() and abs(near) < 1e15:
        shown: Any = near
    else:
        shown = Decimal(repr(near))
    return int(number > shown) - int(number < shown)


class DictionaryBuilder:
    """Collects the attributes' sorted constants into the flat arrays of a `Dictionary`."""

    def __init__(self, attributes: Sequence[Constants]) -> None:
        self.number_ranks: list[NDArray[np.int64]] = []
        self.string_ranks: list[NDArray[np.int64]] = []
        self.number_counts = np.array([len(c.numbers) for c in attributes], np.int64)
        self.string_counts = np.array([len(c.strings) for c in attributes], np.int64)
        self.odd_numbers: list[tuple[int, Decimal]] = []
        self._parts: dict[str, list[NDArray[Any]]] = {}
        self._in_range: list[tuple[int, int]] = []
        self._origins: list[float] = []
        self._scales: list[float] = []
        self._texts: list[bytes] = []
        self._ordered = [c.ordered for c in attributes]
        base = 0
        for constants in attributes:
            self._add_numbers(list(constants.numbers), base)
            self._add_strings(list(constants.strings))
            base += len(constants.numbers)

    def _keep(self, name: str, array: NDArray[Any]) -> None:
        self._parts.setdefault(name, []).append(array)

    def _add_numbers(self, numbers: list[Decimal], base: int) -> None:
        order, near = sort_numbers(numbers)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        self.number_ranks.append(rank)
        near = near[order]
        ordered = [numbers[i] for i in order.tolist()]
        side = np.fromiter(map(side_of, ordered, near.tolist()), np.int8, len(ordered))
        with np.errstate(invalid="ignore"):
            floor = np.where(np.abs(near) < 2**53, np.floor(near), 0).astype(np.int64)
        whole = (side == 0) & (np.floor(near) == near) & (np.abs(near) < 1e15)
        fraction = np.zeros(len(ordered), np.uint8)
        low, high = 0, len(ordered)
        for i in np.flatnonzero(~whole).tolist():
            number = ordered[i]
            down = (
                math.floor(number)
                if abs(number) < 10**30
                else (INT64_MIN - 1 if number < 0 else INT64_MAX + 1)
            )
            if down < INT64_MIN:
                low = i + 1
            elif down > INT64_MAX:
                high = min(high, i)
            else:
                floor[i] = down
                fraction[i] = number != down
            self.odd_numbers.append((base + i, number))
        self._in_range.append((base + low, base + high))
        self._keep("near", near)
        self._keep("side", side)
        self._keep("floor", floor)
        self._keep("fraction", fraction)
        self._add_grid(near)

    def _add_grid(self, near: NDArray[np.float64]) -> None:
        """A table of where to start: how many constants lie below each of k even steps of the range."""
        finite = near[np.isfinite(near)]
        size, origin, scale = 1, 0.0, 0.0
        if len(finite) > 1 and finite[-1] > finite[0]:
            origin = float(finite[0])
            with np.errstate(over="ignore"):
                scale = float(len(finite) / (finite[-1] - finite[0]))
            if 0.0 < scale < math.inf:
                size = len(finite)
            else:
                scale = 0.0
        grid = np.zeros(size + 1, np.int32)
        if len(near):
            place = grid_place(near, origin, scale, size)
            grid[1:] = np.cumsum(np.bincount(place, minlength=size))
        self._origins.append(origin)
        self._scales.append(scale)
        self._keep("grid", grid)

    def _add_strings(self, strings: list[str]) -> None:
        encoded = [s.encode("utf-8", "surrogatepass") for s in strings]
        order = sorted(range(len(encoded)), key=encoded.__getitem__)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        self.string_ranks.append(rank)
        self._texts.extend(encoded[i] for i in order)
        size = 1 << max(1, 2 * len(order) - 1).bit_length() if order else 0
        slots = np.full(size, -1, np.int32)
        if order:
            text = np.frombuffer(b"".join(encoded[i] for i in order), np.uint8)
            offset = offsets_of([encoded[i] for i in order])
            fill_hash_table(slots, text, offset)
        self._keep("hash_slot", slots)

    def cells_before_strings(self) -> NDArray[np.int64]:
        """The first cell of each attribute's strings."""
        return FIRST_NUMBER_CELL + 2 * self.number_counts + 1

    def cell_counts(self) -> NDArray[np.int64]:
        """How many cells each attribute has."""
        return self.cells_before_strings() + 2 * self.string_counts + 1

    def resolve(self, tokens: NDArray[np.int64], attributes: NDArray[np.int32]) -> NDArray[np.int64]:
        """The cells that tokens stand for, now that every constant has its rank."""
        relative, place, side = tokens >> _SHIFT, (tokens & ((1 << _SHIFT) - 1)) >> 1, tokens & 1
        strings_first = self.cells_before_strings()[attributes]
        result = tokens.copy()
        for kind, ranks, first in (
            (NUMBER_CUT, self.number_ranks, np.full(len(tokens), FIRST_NUMBER_CELL, np.int64)),
            (STRING_CUT, self.string_ranks, strings_first),
        ):
            chosen = relative == kind
            start = starts_of([len(r) for r in ranks])
            flat = np.concatenate([*ranks, np.zeros(0, np.int64)])
            rank = flat[start[attributes[chosen]] + place[chosen]]
            result[chosen] = first[chosen] + 2 * rank + 1 + side[chosen]
        chosen = relative == NUMBERS_END
        result[chosen] = strings_first[chosen]
        chosen = relative == STRINGS_END
        result[chosen] = self.cell_counts()[attributes[chosen]]
        return result

    def finish(self) -> Dictionary:
        """All attributes' arrays end to end."""

        def flat(name: str, dtype: Any) -> NDArray[Any]:
            parts = self._parts.get(name, [])
            return np.concatenate([*parts, np.zeros(0, dtype)]).astype(dtype, copy=False)

        return Dictionary(
            number_start=starts_of(self.number_counts),
            near=flat("near", np.float64),
            side=flat("side", np.int8),
            floor=flat("floor", np.int64),
            fraction=flat("fraction", np.uint8),
            in_range=np.array(self._in_range, np.int64).reshape(-1, 2),
            grid_start=starts_of([len(g) for g in self._parts.get("grid", [])]),
            grid=flat("grid", np.int32),
            grid_origin=np.array(self._origins, np.float64),
            grid_scale=np.array(self._scales, np.float64),
            string_start=starts_of(self.string_counts),
            string_offset=offsets_of(self._texts),
            string_bytes=np.frombuffer(b"".join(self._texts), np.uint8),
            hash_start=starts_of([len(h) for h in self._parts.get("hash_slot", [])]),
            hash_slot=flat("hash_slot", np.int32),
            strings_ordered=np.array(self._ordered, np.uint8),
            string_cell=self.cells_before_strings().astype(np.int32),
            code_shift=code_shifts(self.cell_counts()),
        )


def offsets_of(texts: Sequence[bytes]) -> NDArray[np.int64]:
    """Where each of the concatenated texts starts, and where the last one ends."""
    return starts_of(np.fromiter(map(len, texts), np.int64, len(texts)))
