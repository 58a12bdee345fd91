"""From filters' constants to sorted dictionaries, and from predicates to cells (see ``layout``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fieldfare.matching.plain.building.constant_kernels import (
    SHORT_RUN,
    count_plain_numbers,
    fill_grids,
    fill_hash_tables,
    gather_texts,
    group_plain_numbers,
    keep_distinct,
    rank_numbers,
    resolve_ends,
    sort_short_runs,
    strings_ordered,
)
from fieldfare.matching.plain.building.gathering import Constants, Gathered
from fieldfare.matching.plain.codes import code_shifts
from fieldfare.matching.plain.layout import FIRST_NUMBER_CELL, Dictionary, starts_of

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
NUMBERS_BATCH_SIZE = 1 << 25
"""Maximum numbers of predicates sorted together (256 MB), unless a single attribute has more."""
PREDICATES_BATCH_SIZE = 1 << 22
"""Predicates whose cells are found together: enough that one pass over a dictionary serves many, few enough
that their numbers take little memory."""
SPARSE_STRINGS_MAX = 1024
"""Maximum strings of an attribute whose hash table has eight times as many slots, to reduce collisions."""

_NUMBER_COLUMNS = {"near": np.float64, "side": np.int8, "floor": np.int64, "fraction": np.uint8}


def side_of(number: Decimal, near: float) -> int:
    """Return whether the number is less than (-1), equal to (0) or greater than (1) the decimal printed for
    `near`."""
    if math.isinf(near):
        return -1 if near > 0 else 1
    shown = Decimal(repr(near))
    return int(number > shown) - int(number < shown)


class DictionaryBuilder:
    """Sorts the constants of all attributes, and finds the cells of predicates.

    Attributes
    ----------
    dictionary
        The resulting dictionary.
    odd_numbers
        The numbers that no float64 represents, with their places in the dictionary, ascending.
    """

    def __init__(self, gathered: Gathered, constants: Constants, attribute_count: int) -> None:
        self.odd_numbers: list[tuple[int, Decimal]] = []
        columns = self._numbers(gathered, constants, attribute_count)
        columns |= _grids(columns["near"], columns["number_start"])
        columns |= self._strings(constants, attribute_count)
        columns["strings_ordered"] = strings_ordered(gathered, attribute_count)
        strings = _cells_before_strings(columns["number_start"])
        self._cell_counts: NDArray[np.int64] = strings + 2 * np.diff(columns["string_start"]) + 1
        self.dictionary = Dictionary(
            **columns, string_cell=strings.astype(np.int32), code_shift=code_shifts(self._cell_counts)
        )

    def _numbers(self, gathered: Gathered, constants: Constants, count: int) -> dict[str, NDArray[Any]]:
        near, starts = _distinct_numbers(gathered, count)
        floor = np.floor(near)
        columns: dict[str, NDArray[Any]] = {
            "near": near,
            "side": np.zeros(len(near), np.int8),
            "floor": floor.astype(np.int64),
            "fraction": (floor != near).astype(np.uint8),
        }
        in_range = np.stack([starts[:-1], starts[1:]], axis=1)
        self._odd_rank = np.zeros(len(constants.odd), np.int64)
        if constants.odd:
            columns, starts, in_range = self._with_odd(columns, starts, constants.odd)
        return {**columns, "number_start": starts, "in_range": in_range}

    def _with_odd(
        self,
        columns: dict[str, NDArray[Any]],
        starts: NDArray[np.int64],
        odd: Sequence[tuple[int, Decimal]],
    ) -> tuple[dict[str, NDArray[Any]], NDArray[np.int64], NDArray[np.int64]]:
        """Insert the numbers that no float64 represents, in exact order."""
        order = sorted(range(len(odd)), key=odd.__getitem__)
        attribute = np.array([odd[i][0] for i in order], np.int64)
        numbers = [odd[i][1] for i in order]
        near = np.array([float(number) for number in numbers])
        side = np.array(list(map(side_of, numbers, near.tolist())), np.int8)
        downs = [_floor(number) for number in numbers]
        more = {
            "near": near,
            "side": side,
            "floor": np.array([min(max(down, INT64_MIN), INT64_MAX) for down in downs], np.int64),
            "fraction": np.array([n != d for n, d in zip(numbers, downs, strict=True)], np.uint8),
        }
        before = np.empty(len(order), np.int64)  # plain numbers before each, of all attributes
        for i, (a, value) in enumerate(zip(attribute.tolist(), near.tolist(), strict=True)):
            plain = columns["near"][starts[a] : starts[a + 1]]
            before[i] = starts[a] + np.searchsorted(plain, value, "left" if side[i] < 0 else "right")
        place = before + np.arange(len(order))
        new_starts = starts + np.searchsorted(attribute, np.arange(len(starts)))
        self._odd_rank[order] = place - new_starts[attribute]
        self.odd_numbers = list(zip(place.tolist(), numbers, strict=True))
        joined = {name: np.insert(columns[name], before, more[name]) for name in _NUMBER_COLUMNS}
        in_range = np.stack([new_starts[:-1], new_starts[1:]], axis=1)
        for a, at, down in zip(attribute.tolist(), place.tolist(), downs, strict=True):
            if down < INT64_MIN:
                in_range[a, 0] = at + 1
            elif down > INT64_MAX:
                in_range[a, 1] = min(in_range[a, 1], at)
        return joined, new_starts, in_range

    def _strings(self, constants: Constants, count: int) -> dict[str, NDArray[Any]]:
        texts, attributes = constants.offset, constants.string_attribute
        order = _sorted_texts(constants)
        starts = starts_of(np.bincount(attributes, minlength=count))
        self._string_rank = np.empty(len(order), np.int64)
        self._string_rank[order] = np.arange(len(order)) - starts[attributes[order]]
        offset = starts_of(np.diff(texts)[order])
        text = np.empty(len(constants.text), np.uint8)
        gather_texts(constants.text, texts, order, offset, text)
        sizes = np.diff(starts)
        room = np.where(sizes <= SPARSE_STRINGS_MAX, 8, 2) * sizes - 1
        bits = np.frexp(np.maximum(room, 1).astype(np.float64))[1].astype(np.int64)
        hash_start = starts_of(np.where(sizes > 0, 1 << bits, 0))
        slots = np.full(int(hash_start[-1]), -1, np.int32)
        fill_hash_tables(starts, offset, text, hash_start, slots)
        return {
            "string_start": starts,
            "string_offset": offset,
            "string_bytes": text,
            "hash_start": hash_start,
            "hash_slot": slots,
        }

    def cell_counts(self) -> NDArray[np.int64]:
        """Return the number of cells of each attribute."""
        return self._cell_counts

    def resolve(self, gathered: Gathered) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
        """Return the start of each predicate's pieces, and each piece's first and last cell; none are
        adjacent.

        Consumes `gathered`, whose memory is reused.
        """
        count, room = len(gathered.attribute), len(gathered.kind) >> 1
        first, last, pieces = np.empty(room, np.int32), np.empty(room, np.int32), 0
        for begin in range(0, count, PREDICATES_BATCH_SIZE):
            chunk = begin, min(begin + PREDICATES_BATCH_SIZE, count)
            starts = starts_of(count_plain_numbers(gathered, len(self._cell_counts), *chunk))
            ranks = group_plain_numbers(gathered, starts, 0, *chunk)
            rank_numbers(ranks, starts, self.dictionary)
            pieces = resolve_ends(
                gathered,
                *chunk,
                ranks,
                starts,
                self.dictionary.number_start,
                self._odd_rank,
                self._string_rank,
                self._cell_counts,
                first,
                last,
                pieces,
            )
        gathered.piece_start[count] = pieces
        return gathered.piece_start, first[:pieces], last[:pieces]


def _cells_before_strings(number_start: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first cell of each attribute's strings."""
    return FIRST_NUMBER_CELL + 2 * (number_start[1:] - number_start[:-1]) + 1


def _floor(number: Decimal) -> int:
    """Return a number's floor, or one outside the int64 range if it is too large to compute."""
    if abs(number) < 10**30:
        return math.floor(number)
    return INT64_MIN - 1 if number < 0 else INT64_MAX + 1


def _distinct_numbers(gathered: Gathered, count: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return each attribute's distinct plain numbers, sorted, and their starts; processes a few attributes at
    a time."""
    predicates = len(gathered.attribute)
    starts = starts_of(count_plain_numbers(gathered, count, 0, predicates))
    found, sizes = [np.zeros(0)], np.zeros(count, np.int64)
    lowest = 0
    while lowest < count:
        full = int(np.searchsorted(starts, starts[lowest] + NUMBERS_BATCH_SIZE, side="right")) - 1
        highest = max(lowest + 1, full)
        mine = starts[lowest : highest + 1] - starts[lowest]
        values = group_plain_numbers(gathered, mine, lowest, 0, predicates)
        distinct, mine = _distinct_in_runs(values, mine)
        found.append(distinct)
        sizes[lowest:highest] = np.diff(mine)
        lowest = highest
    return np.concatenate(found), starts_of(sizes)


def _sort_runs(values: NDArray[Any], starts: NDArray[np.int64]) -> None:
    """Sort each run."""
    sort_short_runs(values, starts)
    for run in np.flatnonzero(np.diff(starts) > SHORT_RUN).tolist():
        values[starts[run] : starts[run + 1]].sort()


def _distinct_in_runs(
    values: NDArray[Any], starts: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return each run's distinct values, sorted, and the new starts of the runs."""
    _sort_runs(values, starts)
    starts = keep_distinct(values, starts)
    return values[: starts[-1]].copy(), starts


def _grids(near: NDArray[np.float64], starts: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Make search grids: the number of constants below each of k even steps of an attribute's range."""
    count = len(starts) - 1
    sizes, origins, scales = np.ones(count, np.int64), np.zeros(count), np.zeros(count)
    below, above = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for a in _with_infinities(near, starts):
        infinite = np.isinf(near[starts[a] : starts[a + 1]])
        below[a], above[a] = np.argmin(infinite), np.argmin(infinite[::-1])
    finite = np.diff(starts) - below - above
    many = np.flatnonzero(finite > 1)
    first, last = near[starts[many] + below[many]], near[starts[many + 1] - above[many] - 1]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scale = finite[many] / (last - first)
    usable = (scale > 0.0) & (scale < math.inf)
    origins[many[last > first]] = first[last > first]
    scales[many[usable]] = scale[usable]
    sizes[many[usable]] = finite[many[usable]]
    grid_start = starts_of(sizes + 1)
    grid = np.zeros(int(grid_start[-1]), np.int32)
    fill_grids(near, starts, grid_start, grid, origins, scales)
    return {"grid_start": grid_start, "grid": grid, "grid_origin": origins, "grid_scale": scales}


def _with_infinities(near: NDArray[np.float64], starts: NDArray[np.int64]) -> list[int]:
    """Return the attributes with a constant beyond the float64 range."""
    used = np.flatnonzero(np.diff(starts))
    infinite = np.isinf(near[starts[used]]) | np.isinf(near[starts[used + 1] - 1])
    found: list[int] = used[infinite].tolist()
    return found


def _sorted_texts(constants: Constants) -> NDArray[np.int64]:
    """Sort all strings by attribute and then by code point, which equals byte order; return their old
    places."""
    count = len(constants.string_attribute)
    texts = pa.Array.from_buffers(
        pa.large_binary(), count, [None, pa.py_buffer(constants.offset), pa.py_buffer(constants.text)]
    )
    order = pc.sort_indices(texts).to_numpy(zero_copy_only=False).astype(np.int64)
    by_attribute = np.argsort(constants.string_attribute[order], kind="stable")
    return np.asarray(order[by_attribute], np.int64)


def offsets_of(texts: Sequence[bytes]) -> NDArray[np.int64]:
    """Return the start of each of the concatenated texts, and the end of the last."""
    return starts_of(np.fromiter(map(len, texts), np.int64, len(texts)))
