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
from fieldfare.matching.lanes import prefetch
from fieldfare.matching.layout import FIRST_NUMBER_CELL, MORE_ALTERNATIVES

GRID_NEAR = 1 << 13
"""A grid of up to so many steps is in the second cache; what a value needs of others is asked for ahead."""
AHEAD = 8
"""So many events ahead for the constants, and twice as many for the grid."""


@compiled
def hash_string(text: Any, start: int, length: int) -> Any:
    """FNV-1a of 32 bits, in int64 arithmetic that cannot overflow."""
    h: Any = 2166136261
    for i in range(start, start + length):
        h = ((h ^ np.int64(text[i])) * 16777619) & 0xFFFFFFFF
    return h ^ (h >> 15)


@compiled
def fill_hash_table(slots: Any, text: Any, offset: Any) -> None:
    """Put distinct strings into an open-addressed table whose size is a power of two."""
    mask = len(slots) - 1
    for i in range(len(offset) - 1):
        slot = hash_string(text, offset[i], offset[i + 1] - offset[i]) & mask
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = i


@compiled
def _grid_step(value: float, origin: float, scale: float, size: int) -> Any:
    """The step of the grid that a value lies in: never decreasing with the value."""
    x = (value - origin) * scale
    if not x > 0.0:
        return 0
    if x >= size - 1:
        return size - 1
    return int(x)


@compiled
def grid_place(values: Any, origin: float, scale: float, size: int) -> Any:
    """`_grid_step` of each value."""
    places = np.empty(len(values), np.int64)
    for i in range(len(values)):
        places[i] = _grid_step(values[i], origin, scale, size)
    return places


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
            prefetch(grid, _grid_step(float(words[e + 2 * AHEAD]), origin, scale, size))
            soon = base + grid[_grid_step(float(words[e + AHEAD]), origin, scale, size)]
            prefetch(floor, soon)
            prefetch(fraction, soon)
        if kinds[e] != KIND_INT:
            continue
        value = words[e]
        step = _grid_step(float(value), origin, scale, size)
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
        step = _grid_step(value, origin, scale, size)
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
def _is_string(string_bytes: Any, offset: int, text: Any, start: int, length: int) -> Any:
    for i in range(length):  # noqa: SIM110 (a generator does not compile)
        if string_bytes[offset + i] != text[start + i]:
            return False
    return True


@compiled
def _is_below(string_bytes: Any, offset: int, end: int, text: Any, start: int, length: int) -> Any:
    """Whether a constant string lies below an event's string."""
    for i in range(min(end - offset, length)):
        x, y = string_bytes[offset + i], text[start + i]
        if x != y:
            return x < y
    return end - offset < length


@compiled
def _locate_strings(
    string_offset: Any,
    string_bytes: Any,
    slots: Any,
    ordered: bool,
    first_cell: int,
    kinds: Any,
    words: Any,
    text: Any,
    cells: Any,
) -> Any:
    """Cells of one attribute's strings. A word that the event before had too is not looked up again."""
    count, mask = len(string_offset) - 1, len(slots) - 1
    known_word: Any = np.int64(-1)
    known_cell: Any = first_cell
    for e in range(len(kinds)):
        if kinds[e] != KIND_STRING:
            continue
        word = words[e]
        if word == known_word or count == 0:
            cells[e] = known_cell
            continue
        start, length = word >> 32, word & 0xFFFFFFFF
        slot = hash_string(text, start, length) & mask
        cell = -1
        while slots[slot] >= 0:
            s = slots[slot]
            offset = string_offset[s]
            if string_offset[s + 1] - offset == length and _is_string(
                string_bytes, offset, text, start, length
            ):
                cell = first_cell + 2 * s + 1
                break
            slot = (slot + 1) & mask
        if cell < 0:  # no constant
            low, high = 0, count if ordered else 0
            while low < high:
                middle = (low + high) >> 1
                offset, end = string_offset[middle], string_offset[middle + 1]
                if _is_below(string_bytes, offset, end, text, start, length):
                    low = middle + 1
                else:
                    high = middle
            cell = first_cell + 2 * low
        cells[e] = cell
        known_word, known_cell = word, cell


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
            _locate_strings(
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
def _undismissed(entries: Any, cells: Any, found: Any) -> Any:
    """Write the rows whose further piece an event satisfies; return how many."""
    count = 0
    for i in range(len(entries)):  # the hot loop, without a branch
        cell = cells[entries[i, 1]]
        found[count] = entries[i, 0]
        count += (entries[i, 2] <= cell) & (cell <= entries[i, 3])
    return count


@compiled
def scan_access(access: Any, rows: Any, cells: Any, pairs: Any, count: int) -> Any:
    """Append (event, subscription) for rows found by the cell of one attribute; cells is [n, A]."""
    entries, attributes = access.entries, access.attribute
    table, table_start = access.table, access.table_start
    piece_start, pieces, subscription = rows.piece_start, rows.pieces, rows.subscription
    found = np.empty(len(entries) + 1, np.int32)
    for x in range(len(attributes)):  # outermost, so that one attribute's lists stay in the cache
        for e in range(cells.shape[0]):
            slot = table_start[x] + cells[e, attributes[x]]
            start, end = table[slot], table[slot + 1]
            found_count = _undismissed(entries[start:end], cells[e], found)
            if count + found_count > len(pairs):
                pairs = grown(pairs, count + found_count)
            for i in range(found_count):
                if row_matches(piece_start, pieces, found[i], cells, e):
                    pairs[count, 0] = e
                    pairs[count, 1] = subscription[found[i]]
                    count += 1
    return pairs, count
