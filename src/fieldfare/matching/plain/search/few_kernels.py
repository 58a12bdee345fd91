"""Kernels that find the rows of tiles for a few events, by `RowBits`.

An event needs little data of a tile, but it comes from memory. All live tiles are therefore found first, then
each tile's edges and bitsets are prefetched while the tiles before it are processed, and candidates are
checked last.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import compiled, inlined, lowest_bit
from fieldfare.matching.plain.layout import ALTERNATIVES, BITSET_WORDS, EXACT, TILE_ROWS_MAX
from fieldfare.matching.plain.search.kernels import row_matches
from fieldfare.matching.plain.search.lanes import pass_bitsets, prefetch, reached
from fieldfare.matching.plain.search.left_lanes import is_inside

FEW_EVENTS = 16
"""Maximum events for which row bits are used; for more, tables of events' bits are faster."""
AHEAD = 12
"""Prefetch distance in candidates: for their pieces; twice as many for the pieces' offsets."""
_LINE_EDGES, _LINE_NUMBERS, _LINE_OFFSETS = 32, 16, 8
"""The number of 16-, 32- and 64-bit integers in a cache line."""


@compiled
def _live_tiles(tiles: Any, codes: Any, events: int, first_tile: int, live: Any) -> Any:
    """Write (tile, event) to `live` where an event is within a tile's zones; return how many."""
    count: Any = np.int64(0)
    for t in range(first_tile, len(tiles.row_start) - 1):
        first, last = tiles.zone_start[t], tiles.zone_start[t + 1]
        for e in range(events):
            z: Any = first
            while z < last:
                code = np.int32(codes[tiles.zones[z, 0], e])
                if code < tiles.zones[z, 1] or code > tiles.zones[z, 2]:
                    break
                z += 1
            live[count, 0], live[count, 1] = t, e
            count += z == last
    return count


@inlined
def _ask_for_columns(tiles: Any, t: int, edge: Any) -> None:
    """Prefetch what `_find_bitsets` reads of a tile."""
    first, last = tiles.column_start[t], tiles.column_start[t + 1]
    for place in range(first, last, _LINE_NUMBERS):
        prefetch(tiles.column, place)
    for place in range(first, last + 1, _LINE_OFFSETS):
        prefetch(tiles.column_edge, place)
    for place in range(tiles.column_edge[first], tiles.column_edge[last], _LINE_EDGES):
        prefetch(edge, place)


@inlined
def _find_bitsets(tiles: Any, t: int, e: int, codes: Any, bits: Any, places: Any) -> Any:
    """Write the starts of the bitsets of an event's intervals, and prefetch them; return how many."""
    first, last = tiles.column_start[t], tiles.column_start[t + 1]
    first_edge, start, width = tiles.column_edge[first], bits.start[t], bits.width[t]
    places[0] = start
    for c in range(first, last):
        edges, end = tiles.column_edge[c], tiles.column_edge[c + 1]
        interval = reached(bits.edge, edges, end, np.int64(codes[tiles.column[c], e]))
        place = start + (edges - first_edge + c - first + interval) * width
        places[c - first] = place
        for line in range(place, place + width, BITSET_WORDS):
            prefetch(bits.words, line)
    return max(1, last - first)


@compiled
def _check(rows: Any, kinds: Any, cells: Any, pairs: Any, first: int, last: int, end: int, count: Any) -> Any:
    """Replace candidates [first, last) of `pairs`, (event, row), by the matching pairs, written from `count`
    on.

    Candidates end at `end`; returns the new number of pairs.
    """
    for i in range(first, last):
        sooner, soon = pairs[min(i + 2 * AHEAD, end - 1), 1], pairs[min(i + AHEAD, end - 1), 1]
        prefetch(rows.piece_start, sooner)
        prefetch(rows.subscription, sooner)
        prefetch(kinds, sooner)
        for place in range(3 * rows.piece_start[soon], 3 * rows.piece_start[soon + 1], _LINE_NUMBERS):
            prefetch(rows.pieces, place)
        event: Any = np.int64(pairs[i, 0])
        row: Any = np.int64(pairs[i, 1])
        pairs[count, 0] = event
        pairs[count, 1] = rows.subscription[row]
        if kinds[row] == EXACT:
            count += 1
        elif kinds[row] != ALTERNATIVES:
            count += is_inside(rows.pieces, rows.piece_start[row], rows.piece_start[row + 1], cells, event)
        else:
            count += row_matches(rows.piece_start, rows.pieces, row, cells, event)
    return count


@compiled
def _check_tiles(
    rows: Any, kinds: Any, cells: Any, pairs: Any, count: Any, first_tile: int, stop: Any, ends: Any
) -> Any:
    """Check the candidates of tiles [first_tile, stop), which end at `ends`; update `ends` to the pairs'
    ends."""
    first: Any = count
    found = ends[stop - 1] if stop > first_tile else count
    for t in range(first_tile, stop):
        last = ends[t]
        count = _check(rows, kinds, cells, pairs, first, last, found, count)
        ends[t] = count
        first = last
    return count


@compiled
def scan_few(
    tiles: Any,
    bits: Any,
    rows: Any,
    cells: Any,
    codes: Any,
    pairs: Any,
    count: int,
    first_tile: int,
    ends: Any,
) -> Any:
    """Like `tile_kernels.scan_tiles`, for a few events."""
    live = np.empty(((len(tiles.row_start) - 1 - first_tile) * len(cells) + 1, 2), np.int32)
    live_count = _live_tiles(tiles, codes, len(cells), first_tile, live)
    places = np.empty((2, cells.shape[1] + 1), np.int64)
    columns = np.empty(2, np.int64)
    left = np.empty(TILE_ROWS_MAX // 64, np.uint64)
    found: Any = np.int64(count)
    tile: Any = np.int64(first_tile)
    for i in range(-1, live_count):
        if i + 2 < live_count:
            _ask_for_columns(tiles, live[i + 2, 0], bits.edge)
        if i + 1 < live_count:
            side = (i + 1) & 1
            columns[side] = _find_bitsets(tiles, live[i + 1, 0], live[i + 1, 1], codes, bits, places[side])
        if i < 0:
            continue
        t, event = np.int64(live[i, 0]), live[i, 1]
        while tile < t:
            ends[tile] = found
            tile += 1
        row = tiles.row_start[t]
        if found + tiles.row_start[t + 1] - row > len(pairs):
            count = _check_tiles(rows, tiles.row_kind, cells, pairs, count, first_tile, t, ends)
            return t, count, count + (tiles.row_start[t + 1] - row) * len(cells)
        mask = pass_bitsets(bits.words, places[i & 1], columns[i & 1], bits.width[t], left)
        while mask != 0:
            w = lowest_bit(mask)
            mask &= mask - 1
            remaining = np.int64(left[w])
            while remaining != 0:
                pairs[found, 0] = event
                pairs[found, 1] = row + 64 * w + lowest_bit(remaining)
                remaining &= remaining - 1
                found += 1
    stop = len(tiles.row_start) - 1
    ends[tile:stop] = found
    count = _check_tiles(rows, tiles.row_kind, cells, pairs, count, first_tile, stop, ends)
    return stop, count, count
