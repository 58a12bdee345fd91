"""The compiled loops: values to cells, cells to candidate rows, rows to matches.

Arrays in, arrays out; nothing here knows a class beyond the named tuples of ``layout``. All run as
plain Python too (``NUMBA_DISABLE_JIT=1``), slowly and with the same results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.columns import (
    KIND_EXACT,
    KIND_FLOAT,
    KIND_INT,
    KIND_STRING,
)
from fieldfare.matching.compiled import compiled
from fieldfare.matching.layout import FIRST_NUMBER_CELL, MORE_ALTERNATIVES
from fieldfare.matching.string_kernels import locate_strings

SHORT_LIST = 24
"""Lists up to this length are sorted by insertion."""
BITMAP_NUMBERS_MAX = 1 << 24
"""Longer lists are sorted through a bitmap if all numbers are below this: two MB, which L2 nearly holds."""


_LOW_BIT_PLACE = np.zeros(32, np.int64)
for _i in range(32):
    _LOW_BIT_PLACE[(((1 << _i) * 0x077CB531) & 0xFFFFFFFF) >> 27] = _i


@compiled
def grid_step(value: float, origin: float, scale: float, size: int) -> Any:
    """The step of the grid that a value lies in: never decreasing with the value."""
    x = (value - origin) * scale
    if not x > 0.0:
        return 0
    if x >= size - 1:
        return size - 1
    return int(x)


@compiled
def _locate_ints(
    floor: Any,
    fraction: Any,
    base: int,
    first: int,
    last: int,
    grid: Any,
    origin: float,
    scale: float,
    kinds: Any,
    words: Any,
    cells: Any,
) -> Any:
    """Cells of one attribute's int64 values. A constant lies below an integer if its floor does."""
    size = len(grid) - 1
    for e in range(len(kinds)):
        if kinds[e] != KIND_INT:
            continue
        value = words[e]
        step = grid_step(float(value), origin, scale, size)
        low: Any = max(base + grid[step], first)
        high = min(base + grid[step + 1], last)
        while low < high:
            middle = (low + high) >> 1
            if floor[middle] < value:
                low = middle + 1
            else:
                high = middle
        point = low < last and floor[low] == value and fraction[low] == 0
        cells[e] = FIRST_NUMBER_CELL + 2 * (low - base) + point


@compiled
def _locate_floats(
    near: Any, side: Any, grid: Any, origin: float, scale: float, kinds: Any, floats: Any, cells: Any
) -> Any:
    """Cells of one attribute's float64 values, each standing for the decimal that it prints as."""
    size, count = len(grid) - 1, len(near)
    for e in range(len(kinds)):
        if kinds[e] != KIND_FLOAT:
            continue
        value = floats[e]
        if value == np.inf:
            cells[e] = FIRST_NUMBER_CELL + 2 * count
            continue
        if value == -np.inf:
            cells[e] = FIRST_NUMBER_CELL
            continue
        step = grid_step(value, origin, scale, size)
        low: Any = np.int64(grid[step])
        high: Any = np.int64(grid[step + 1])
        while low < high:
            middle = (low + high) >> 1
            if near[middle] < value or (near[middle] == value and side[middle] < 0):
                low = middle + 1
            else:
                high = middle
        point = low < count and near[low] == value and side[low] == 0
        cells[e] = FIRST_NUMBER_CELL + 2 * low + point


@compiled
def locate(d: Any, kinds: Any, words: Any, text: Any, cells: Any) -> None:
    """Write the cell of every value (KIND_EXACT: -1, which Python locates) into cells [A, n]."""
    floats = words.view(np.float64)
    for a in range(kinds.shape[0]):
        seen: Any = 0
        for e in range(kinds.shape[1]):
            kind = kinds[a, e]
            cells[a, e] = -1 if kind == KIND_EXACT else kind
            seen |= 1 << np.int64(kind)
        first, last = d.number_start[a], d.number_start[a + 1]
        grid = d.grid[d.grid_start[a] : d.grid_start[a + 1]]
        origin, scale = d.grid_origin[a], d.grid_scale[a]
        if seen >> KIND_INT & 1:
            low, high = d.in_range[a, 0], d.in_range[a, 1]
            _locate_ints(
                d.floor, d.fraction, first, low, high, grid, origin, scale, kinds[a], words[a], cells[a]
            )
        if seen >> KIND_FLOAT & 1:
            near, side = d.near[first:last], d.side[first:last]
            _locate_floats(near, side, grid, origin, scale, kinds[a], floats[a], cells[a])
        if seen >> KIND_STRING & 1:
            offsets = d.string_offset[d.string_start[a] : d.string_start[a + 1] + 1]
            slots = d.hash_slot[d.hash_start[a] : d.hash_start[a + 1]]
            ordered, first_cell = d.strings_ordered[a] != 0, FIRST_NUMBER_CELL + 2 * (last - first) + 1
            locate_strings(
                offsets, d.string_bytes, slots, ordered, first_cell, kinds[a], words[a], text, cells[a]
            )


@compiled
def by_events(cells: Any, turned: Any) -> None:
    """Turn cells [A, n] round into [n, A], a block at a time."""
    for start in range(0, cells.shape[1], 64):
        end = min(start + 64, cells.shape[1])
        for a in range(cells.shape[0]):
            for e in range(start, end):
                turned[e, a] = cells[a, e]


@compiled
def row_matches(piece_start: Any, pieces: Any, row: int, cells: Any, event: int) -> Any:
    """Whether an event's cells [n, A] satisfy every predicate of a row."""
    place, end = piece_start[row], piece_start[row + 1]
    while place < end:
        attribute = pieces[place, 0]
        more = attribute >= MORE_ALTERNATIVES
        if more:
            attribute -= MORE_ALTERNATIVES
        cell = cells[event, attribute]
        if (pieces[place, 1] <= cell) & (cell <= pieces[place, 2]):  # one branch, and so well foreseen
            while more:  # satisfied: leave out the other alternatives
                place += 1
                more = pieces[place, 0] >= MORE_ALTERNATIVES
        elif not more:
            return False
        place += 1
    return True


@compiled
def keep_valid(subscriptions: Any, overlay: Any, offsets: Any, pairs: Any, count: int) -> Any:
    """Keep the pairs whose subscription version was valid when the event was appended; return how many."""
    valid_from, valid_to, closed = subscriptions.valid_from, subscriptions.valid_to, overlay.closed
    any_closed = len(closed) > 0
    kept = 0
    for i in range(count):
        event, signed = pairs[i, 0], pairs[i, 1]
        subscription = signed if signed >= 0 else ~signed
        offset = offsets[event]
        if offset < valid_from[subscription] or offset >= valid_to[subscription]:
            continue
        if any_closed and closed[subscription >> 3] >> (subscription & 7) & 1:
            place = np.searchsorted(overlay.subscription, subscription)
            if offset >= overlay.valid_to[place]:
                continue
        pairs[kept, 0] = event
        pairs[kept, 1] = signed
        kept += 1
    return kept


@compiled
def grown(pairs: Any, needed: int) -> Any:
    larger = np.empty((max(needed, 2 * len(pairs)), 2), np.int32)
    larger[: len(pairs)] = pairs
    return larger


@compiled
def number_pairs(pairs: Any, count: int, first_event: int, number: Any) -> Any:
    """(event, subscription) of a chunk as separate columns (event, number) of the whole batch."""
    events, numbers = np.empty(count, np.int32), np.empty(count, np.uint32)
    for i in range(count):
        events[i] = pairs[i, 0] + first_event
        numbers[i] = number[pairs[i, 1]]
    return events, numbers


@compiled
def group_by_event(size: int, events: Any, numbers: Any) -> Any:
    """CSR of (event, number) pairs in any order: numbers ascending within an event, none twice."""
    indptr = np.zeros(size + 1, np.int64)
    largest: Any = np.int64(0)
    for i in range(len(events)):
        indptr[events[i] + 1] += 1
        largest = max(largest, np.int64(numbers[i]))
    longest: Any = np.int64(0)
    for e in range(size):
        longest = max(longest, indptr[e + 1])
        indptr[e + 1] += indptr[e]
    place = indptr[:-1].copy()
    grouped = np.empty(len(events), np.uint32)
    for i in range(len(events)):
        grouped[place[events[i]]] = numbers[i]
        place[events[i]] += 1
    by_bits = longest > SHORT_LIST and largest < BITMAP_NUMBERS_MAX
    words = (largest >> 5) + 1 if by_bits else np.int64(0)
    bitmap = np.zeros(words, np.uint32)
    summary = np.zeros((words >> 5) + 1, np.uint32)
    kept: Any = np.int64(0)
    for e in range(size):
        start, end = indptr[e], indptr[e + 1]
        indptr[e] = kept
        if by_bits and end - start > SHORT_LIST:
            kept = _sort_by_bits(grouped, start, end, kept, bitmap, summary)
            continue
        _sort(grouped, start, end)
        for i in range(start, end):
            if i == start or grouped[i] != grouped[i - 1]:
                grouped[kept] = grouped[i]
                kept += 1
    indptr[size] = kept
    return indptr, grouped[:kept]


@compiled
def _sort_by_bits(values: Any, start: int, end: int, kept: int, bitmap: Any, summary: Any) -> Any:
    """Write values[start:end], sorted and each once, from `kept` on; a summary bit stands for 32 others.

    Both bitmaps are zero before and after.
    """
    lowest, highest = np.int64(len(summary)), np.int64(-1)
    for i in range(start, end):
        word = np.int64(values[i]) >> 5
        bitmap[word] |= np.uint32(1 << (np.int64(values[i]) & 31))
        summary[word >> 5] |= np.uint32(1 << (word & 31))
        lowest, highest = min(lowest, word >> 5), max(highest, word >> 5)
    for s in range(lowest, highest + 1):
        above = np.int64(summary[s])
        summary[s] = 0
        while above != 0:
            high_bit = above & -above
            above ^= high_bit
            word = 32 * s + _LOW_BIT_PLACE[((high_bit * 0x077CB531) & 0xFFFFFFFF) >> 27]
            remaining = np.int64(bitmap[word])
            bitmap[word] = 0
            while remaining != 0:
                low_bit = remaining & -remaining
                remaining ^= low_bit
                values[kept] = 32 * word + _LOW_BIT_PLACE[((low_bit * 0x077CB531) & 0xFFFFFFFF) >> 27]
                kept += 1
    return kept


@compiled
def _sort(values: Any, start: int, end: int) -> None:
    if end - start > SHORT_LIST:
        values[start:end].sort()
        return
    for i in range(start + 1, end):
        value = values[i]
        j = i - 1
        while j >= start and values[j] > value:
            values[j + 1] = values[j]
            j -= 1
        values[j + 1] = value
