"""Kernels that convert values to cells and check rows.

They take and return arrays, and know no classes except the named tuples of ``layout``. All also run as plain
Python (``NUMBA_DISABLE_JIT=1``), slowly and with equal results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import compiled, inlined
from fieldfare.matching.events.columns import (
    KIND_EXACT,
    KIND_FLOAT,
    KIND_INT,
    KIND_STRING,
)
from fieldfare.matching.plain.dictionary_kernels import grid_step, locate_strings
from fieldfare.matching.plain.layout import FIRST_NUMBER_CELL, MORE_ALTERNATIVES
from fieldfare.matching.plain.search.lanes import prefetch

GRID_NEAR = 1 << 13
"""Maximum steps of a grid that fits the second-level cache; for larger grids, memory is prefetched."""
AHEAD = 8
"""Prefetch distance in events: for the constants; twice as many for the grid."""


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
    """Write the cells of one attribute's int64 values. A constant is below an integer if its floor is."""
    size = len(grid) - 1
    for e in range(len(kinds)):
        if size > GRID_NEAR and e + 2 * AHEAD < len(kinds):
            prefetch(grid, grid_step(float(words[e + 2 * AHEAD]), origin, scale, size))
            soon = base + grid[grid_step(float(words[e + AHEAD]), origin, scale, size)]
            prefetch(floor, soon)
            prefetch(fraction, soon)
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
    """Write the cells of one attribute's float64 values, each taken as the decimal that it prints as."""
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


@inlined
def locate_attribute(d: Any, a: Any, kinds: Any, words: Any, text: Any, cells: Any) -> None:
    """Write the cell of every value of one attribute; -1 for KIND_EXACT and for computed values that are not
    plain."""
    seen: Any = 0
    for e in range(len(kinds)):
        kind = kinds[e]
        cells[e] = -1 if kind == KIND_EXACT or kind > KIND_STRING else kind
        seen |= 1 << np.int64(kind)
    first, last = d.number_start[a], d.number_start[a + 1]
    grid = d.grid[d.grid_start[a] : d.grid_start[a + 1]]
    origin, scale = d.grid_origin[a], d.grid_scale[a]
    if seen >> KIND_INT & 1:
        low, high = d.in_range[a, 0], d.in_range[a, 1]
        _locate_ints(d.floor, d.fraction, first, low, high, grid, origin, scale, kinds, words, cells)
    if seen >> KIND_FLOAT & 1:
        near, side = d.near[first:last], d.side[first:last]
        _locate_floats(near, side, grid, origin, scale, kinds, words.view(np.float64), cells)
    if seen >> KIND_STRING & 1:
        offsets = d.string_offset[d.string_start[a] : d.string_start[a + 1] + 1]
        slots = d.hash_slot[d.hash_start[a] : d.hash_start[a + 1]]
        ordered, first_cell = d.strings_ordered[a] != 0, FIRST_NUMBER_CELL + 2 * (last - first) + 1
        locate_strings(offsets, d.string_bytes, slots, ordered, first_cell, kinds, words, text, cells)


@compiled
def _ask_for_constants(d: Any, kinds: Any, words: Any) -> None:
    """Prefetch the constants that numbers are compared with, for all attributes before the first is located.

    With many events, values are prefetched a few events ahead; with a few, each would wait for its own
    memory.
    """
    floats = words.view(np.float64)
    for near in range(2):
        for a in range(kinds.shape[0]):
            start = d.grid_start[a]
            size = d.grid_start[a + 1] - start - 1
            for e in range(kinds.shape[1]):
                if kinds[a, e] != KIND_INT and kinds[a, e] != KIND_FLOAT:
                    continue
                value = floats[a, e] if kinds[a, e] == KIND_FLOAT else float(words[a, e])
                step = start + grid_step(value, d.grid_origin[a], d.grid_scale[a], size)
                if near == 0:
                    prefetch(d.grid, step)
                    continue
                soon = d.number_start[a] + d.grid[step]
                if kinds[a, e] == KIND_INT:
                    prefetch(d.floor, soon)
                    prefetch(d.fraction, soon)
                else:
                    prefetch(d.near, soon)
                    prefetch(d.side, soon)


@compiled
def locate(d: Any, kinds: Any, words: Any, text: Any, cells: Any) -> None:
    """Write the cell of every value (KIND_EXACT: -1, which Python locates) into cells [A, n]."""
    if kinds.shape[1] <= AHEAD:
        _ask_for_constants(d, kinds, words)
    for a in range(kinds.shape[0]):
        locate_attribute(d, a, kinds[a], words[a], text, cells[a])


@compiled
def by_events(cells: Any, turned: Any) -> None:
    """Transpose cells [A, n] to [n, A], in blocks."""
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
        if (pieces[place, 1] <= cell) & (cell <= pieces[place, 2]):  # a single, well predictable branch
            while more:  # satisfied: skip the other alternatives
                place += 1
                more = pieces[place, 0] >= MORE_ALTERNATIVES
        elif not more:
            return False
        place += 1
    return True


@compiled
def grown(pairs: Any, needed: int) -> Any:
    larger = np.empty((max(needed, 2 * len(pairs)), 2), np.int32)
    larger[: len(pairs)] = pairs
    return larger
