"""Kernels for constants and predicates: sorting, grids, cells, hash tables, rows' pieces."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import compiled
from fieldfare.matching.plain.building.gathering_kernels import (
    CELL,
    NUMBER,
    NUMBERS_END,
    ODD,
    STRING,
    STRINGS_END,
)
from fieldfare.matching.plain.dictionary_kernels import grid_step, hash_string
from fieldfare.matching.plain.layout import FIRST_NUMBER_CELL, MORE_ALTERNATIVES

SHORT_RUN = 2048
"""Maximum length of a run sorted by a kernel; for longer ones numpy's sort, one call each, is faster."""


@compiled
def count_plain_numbers(gathered: Any, count: int, begin: int, stop: int) -> Any:
    """Count the plain numbers in predicates [begin, stop), by attribute."""
    counts = np.zeros(count, np.int64)
    piece_start = gathered.piece_start
    for p in range(begin, stop):
        for end in range(2 * piece_start[p], 2 * piece_start[p + 1]):
            counts[gathered.attribute[p]] += gathered.kind[end] >> 1 == NUMBER >> 1
    return counts


@compiled
def group_plain_numbers(gathered: Any, starts: Any, lowest: int, begin: int, stop: int) -> Any:
    """Return the plain numbers in predicates [begin, stop) of attributes from `lowest` on, by attribute.

    Those of attribute ``lowest + i`` are at ``starts[i]`` to ``starts[i + 1]``.
    """
    place = starts[:-1].copy()
    numbers = np.empty(starts[-1], np.float64)
    piece_start = gathered.piece_start
    for p in range(begin, stop):
        a = gathered.attribute[p] - lowest
        if a < 0 or a >= len(place):
            continue
        for end in range(2 * piece_start[p], 2 * piece_start[p + 1]):
            if gathered.kind[end] >> 1 == NUMBER >> 1:
                numbers[place[a]] = gathered.value[end]
                place[a] += 1
    return numbers


@compiled
def sort_short_runs(values: Any, starts: Any) -> None:
    """Sort each run of at most SHORT_RUN values."""
    for r in range(len(starts) - 1):
        if 1 < starts[r + 1] - starts[r] <= SHORT_RUN:
            values[starts[r] : starts[r + 1]].sort()


@compiled
def keep_distinct(values: Any, starts: Any) -> Any:
    """Move the distinct values of sorted runs to the front; return the new starts of the runs."""
    new = np.zeros(len(starts), np.int64)
    kept = 0
    for r in range(len(starts) - 1):
        for i in range(starts[r], starts[r + 1]):
            if i == starts[r] or values[i] != values[i - 1]:
                values[kept] = values[i]
                kept += 1
        new[r + 1] = kept
    return new


@compiled
def fill_grids(near: Any, starts: Any, grid_start: Any, grid: Any, origins: Any, scales: Any) -> None:
    """For each attribute, write the number of constants below each of k even steps of their range."""
    for a in range(len(starts) - 1):
        first, last = grid_start[a], grid_start[a + 1] - 1
        for i in range(starts[a], starts[a + 1]):
            step = grid_step(near[i], origins[a], scales[a], last - first)
            grid[first + step + 1] += 1
        for i in range(first, last):
            grid[i + 1] += grid[i]


@compiled
def _number_rank(d: Any, a: int, value: float) -> Any:
    """Return the rank of a plain number among its attribute's constants."""
    base, first = d.number_start[a], d.grid_start[a]
    step = grid_step(value, d.grid_origin[a], d.grid_scale[a], d.grid_start[a + 1] - first - 1)
    low: Any = base + d.grid[first + step]
    high: Any = base + d.grid[first + step + 1]
    while low < high:
        middle = (low + high) >> 1
        if d.near[middle] < value or (d.near[middle] == value and d.side[middle] < 0):
            low = middle + 1
        else:
            high = middle
    return low - base


@compiled
def _sorted_pieces(first: Any, last: Any, start: int, end: int) -> Any:
    """Sort a predicate's pieces, which are disjoint or equal, and merge adjacent ones; return their new
    end."""
    first[start:end].sort()
    last[start:end].sort()
    kept = start
    for i in range(start + 1, end):
        if first[i] > last[kept] + 1:
            kept += 1
            first[kept] = first[i]
        last[kept] = last[i]
    return kept + 1


@compiled
def rank_numbers(numbers: Any, starts: Any, d: Any) -> None:
    """Replace each number by its rank among its attribute's constants.

    This runs attribute by attribute, so that the searched constants stay in the cache.
    """
    for a in range(len(starts) - 1):
        for i in range(starts[a], starts[a + 1]):
            numbers[i] = _number_rank(d, a, numbers[i])


@compiled
def resolve_ends(
    gathered: Any,
    begin: int,
    stop: int,
    ranks: Any,
    starts: Any,
    number_start: Any,
    odd_rank: Any,
    string_rank: Any,
    cell_counts: Any,
    first: Any,
    last: Any,
    pieces: int,
) -> Any:
    """Write the cells of the pieces of predicates [begin, stop), sorted and with adjacent pieces merged,
    after the `pieces` existing ones; return the new number of pieces.

    `ranks` are the ranks of their numbers, grouped by attribute as by `group_plain_numbers`. The predicates'
    starts in `gathered` are replaced by the new ones.
    """
    place = starts[:-1].copy()
    piece_start = gathered.piece_start
    next_start = piece_start[begin]
    for p in range(begin, stop):
        start, next_start = next_start, piece_start[p + 1]
        piece_start[p] = pieces
        a = gathered.attribute[p]
        strings = FIRST_NUMBER_CELL + 2 * (number_start[a + 1] - number_start[a]) + 1
        in_order = True
        for end in range(2 * start, 2 * next_start):
            kind, value = np.int64(gathered.kind[end]), gathered.value[end]
            family, side = kind >> 1, kind & 1
            cell: Any = np.int64(0)
            if family == NUMBER >> 1:
                cell = FIRST_NUMBER_CELL + 2 * np.int64(ranks[place[a]]) + 1 + side
                place[a] += 1
            elif family == STRING >> 1:
                cell = strings + 2 * string_rank[int(value)] + 1 + side
            elif family == ODD >> 1:
                cell = FIRST_NUMBER_CELL + 2 * odd_rank[int(value)] + 1 + side
            elif kind == CELL:
                cell = np.int64(value)
            elif kind == NUMBERS_END:
                cell = strings
            elif kind == STRINGS_END:
                cell = cell_counts[a]
            if end & 1:
                last[pieces - 1] = cell - 1
            elif pieces == piece_start[p] or last[pieces - 1] != cell - 1:
                in_order &= pieces == piece_start[p] or last[pieces - 1] < cell
                first[pieces] = cell
                pieces += 1
        if not in_order:
            pieces = _sorted_pieces(first, last, piece_start[p], pieces)
    return pieces


@compiled
def strings_ordered(gathered: Any, count: int) -> Any:
    """Return the attributes where membership differs between strings that are not constants: their sets are
    not made of single strings and complements of these."""
    ordered = np.zeros(count, np.uint8)
    for p in range(len(gathered.attribute)):
        expected, value = STRING, -1.0
        for end in range(2 * gathered.piece_start[p], 2 * gathered.piece_start[p + 1]):
            kind = gathered.kind[end]
            if kind >> 1 != STRING >> 1:
                continue
            if kind != expected or (kind == STRING + 1 and gathered.value[end] != value):
                break
            value = gathered.value[end]
            expected = STRING + 1 if expected == STRING else STRING
        else:
            if expected == STRING:
                continue
        ordered[gathered.attribute[p]] = 1
    return ordered


@compiled
def gather_texts(text: Any, offset: Any, order: Any, new_offset: Any, new_text: Any) -> None:
    """Copy texts in another order."""
    for i in range(len(order)):
        start, length = offset[order[i]], new_offset[i + 1] - new_offset[i]
        for k in range(length):
            new_text[new_offset[i] + k] = text[start + k]


@compiled
def fill_hash_tables(string_start: Any, offset: Any, text: Any, hash_start: Any, slots: Any) -> None:
    """Insert each attribute's strings into its own open-addressing table; sizes are powers of two."""
    for a in range(len(string_start) - 1):
        base, mask = hash_start[a], hash_start[a + 1] - hash_start[a] - 1
        for i in range(string_start[a], string_start[a + 1]):
            slot = hash_string(text, offset[i], offset[i + 1] - offset[i]) & mask
            while slots[base + slot] >= 0:
                slot = (slot + 1) & mask
            slots[base + slot] = i - string_start[a]


@compiled
def pack_pieces(rows: Any, predicates: Any, predicate_start: Any) -> Any:
    """Return the pieces of the given rows, row by row, and the start of each row's pieces.

    `predicates` is (attribute, piece_start, first, last).
    """
    attribute, piece_start, first, last = predicates
    starts = np.zeros(len(rows) + 1, np.int64)
    for i in range(len(rows)):
        row = rows[i]
        count = piece_start[predicate_start[row + 1]] - piece_start[predicate_start[row]]
        starts[i + 1] = starts[i] + count
    pieces = np.empty((starts[-1], 3), np.int32)
    place = 0
    for i in range(len(rows)):
        for p in range(predicate_start[rows[i]], predicate_start[rows[i] + 1]):
            end = piece_start[p + 1]
            for k in range(piece_start[p], end):
                pieces[place, 0] = attribute[p] + (MORE_ALTERNATIVES if k + 1 < end else 0)
                pieces[place, 1] = first[k]
                pieces[place, 2] = last[k]
                place += 1
    return starts, pieces
