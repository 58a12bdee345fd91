"""The compiled loops: values to cells, cells to candidate rows, rows to matches.

Arrays in, arrays out; nothing here knows a class beyond the named tuples of ``layout``. All run as
plain Python too (``NUMBA_DISABLE_JIT=1``), slowly and with the same results.
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
"""A grid of up to so many steps is in the second cache; what a value needs of others is asked for ahead."""
AHEAD = 8
"""So many events ahead for the constants, and twice as many for the grid."""


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


@inlined
def locate_attribute(d: Any, a: Any, kinds: Any, words: Any, text: Any, cells: Any) -> None:
    """The same for one attribute's values; what is computed and no plain number is -1, too."""
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
    """Ask memory for what numbers are compared with, of all attributes before the first is located.

    Many events of an attribute are asked for ahead of one another; of a few, each would wait for its own.
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
def grown(pairs: Any, needed: int) -> Any:
    larger = np.empty((max(needed, 2 * len(pairs)), 2), np.int32)
    larger[: len(pairs)] = pairs
    return larger
