"""Kernels that find the rows of tiles which events match."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import compiled, inlined, lowest_bit
from fieldfare.matching.grouping import run_slots
from fieldfare.matching.plain.layout import (
    ALL_LANES,
    ALTERNATIVES,
    BITSET_WORDS,
    EXACT,
    FIRST_EDGE,
    NO_LANES,
    SIMPLE,
    TILE_ROWS_MAX,
)
from fieldfare.matching.plain.search.kernels import row_matches
from fieldfare.matching.plain.search.lanes import (
    HEAD_SETS,
    fill_edges,
    fill_sets,
    gather,
    keep_between,
    pass_first,
    pass_sets,
    prefetch,
)
from fieldfare.matching.plain.search.left_lanes import (
    UNROLLED,
    flatten,
    is_inside,
    lanes_set,
    words_set,
)
from fieldfare.matching.plain.search.vectors import BLOCK, GROUP_BLOCKS, LANES

LINE = 16
"""32-bit integers in a cache line."""
AHEAD = 12
"""Prefetch distance in rows for their pieces."""

FEW_LANES = 4
"""Maximum lanes for which rows are first tested on HEAD_SETS of their sets; most fail, the others are
completed."""

RUN_MATCHES = 4
"""Minimum matches of a row among the events of a bitset for which a run is written (see ``grouping``)."""

_BIT = np.uint64(1) << np.arange(64, dtype=np.uint64)
_ROOM = BLOCK * GROUP_BLOCKS
"""Codes beyond the end that vector loops may read and write."""


@compiled
def coded_width(events: int) -> Any:
    """Return the codes per row needed for `events` events."""
    return (events + BLOCK - 1) // BLOCK * BLOCK


@compiled
def _bitsets(count: int) -> Any:
    """Allocate bitsets, each in its own cache line: loads across two lines take twice the time."""
    words = np.empty((count + 1) * BITSET_WORDS, np.uint64)
    start = -(words.ctypes.data >> 3) % BITSET_WORDS
    return words[start : start + count * BITSET_WORDS]


@compiled
def _all_events(count: int, masks: Any) -> None:
    """Set the bits of the first `count` events."""
    for b in range(len(masks)):
        left = count - b * BLOCK
        masks[b] = 0xFFFFFFFF if left >= BLOCK else (1 << left) - 1


@compiled
def _gather_columns(tiles: Any, t: int, codes: Any, masks: Any, live: Any) -> Any:
    """Write the numbers of a tile's live events to `live`, then their codes, one row per column."""
    width, flat = codes.shape[1], codes.reshape(-1)
    out, out_width = live.reshape(-1), live.shape[1]
    events = codes.shape[0] - 1
    count = gather(flat, events * width, len(masks), masks, out, 0)
    if count > 0:
        start, end = tiles.column_start[t], tiles.column_start[t + 1]
        for c in range(start, end):
            gather(flat, tiles.column[c] * width, len(masks), masks, out, (1 + c - start) * out_width)
    return count


@compiled
def _words_for(lanes: int) -> Any:
    """Return the smallest supported bitset width, in words, for `lanes` events."""
    return 1 if lanes <= 64 else 2 if lanes <= 128 else 4 if lanes <= 256 else BITSET_WORDS


@compiled
def _fill_table(tiles: Any, t: int, live: Any, first_lane: int, lanes: int, table: Any, words: int) -> None:
    """Write the bitsets of a tile for `lanes` of its live events, `words` words per bitset."""
    flat, width = live.reshape(-1), live.shape[1]
    for w in range(words):
        left = lanes - 64 * w
        every = np.uint64(0) if left <= 0 else ~np.uint64(0) if left >= 64 else _BIT[left] - np.uint64(1)
        table[ALL_LANES * words + w] = every
        table[NO_LANES * words + w] = 0
    start, end = tiles.column_start[t], tiles.column_start[t + 1]
    entry = FIRST_EDGE
    for c in range(start, end):
        first, last = tiles.column_edge[c], tiles.column_edge[c + 1]
        place = (1 + c - start) * width + first_lane
        fill_edges(flat, place, lanes, tiles.edge, first, last, table, entry, words)
        entry += last - first
    first, last = tiles.set_start[t], tiles.set_start[t + 1]
    fill_sets(table, tiles.set_gate, tiles.set_gates, first, last, entry, words)


@compiled
def _pass_rows(tiles: Any, t: int, table: Any, lanes: int, left: Any, passed: Any, words: int) -> Any:
    """Write the rows of a tile that have lanes left, and these lanes (see `pass_sets`); return the number of
    rows."""
    row, place, count = tiles.row_start[t], tiles.row_set_start[t], 0
    for run in range(tiles.run_start[t], tiles.run_start[t + 1]):
        width, size = np.int64(tiles.runs[run, 0]), np.int64(tiles.runs[run, 1])
        if lanes <= FEW_LANES and width > HEAD_SETS:
            tail = left[count:], passed[count:]
            passing = pass_first(table, tiles.row_sets, place, width, size, row, tail[0], tail[1])
            count += _pass_rest(table, tiles.row_sets, place - row * width, width, tail[0], tail[1], passing)
        else:
            count = pass_sets(
                table, tiles.row_sets, place, width, width, size, row, left, passed, count, words
            )
        row += size
        place += size * width
    return count


@compiled
def _pass_rest(table: Any, sets: Any, base: Any, width: Any, left: Any, passed: Any, rows: int) -> Any:
    """Keep those rows, among rows that passed their first sets, that also pass the others; return how many.

    A bitset is one word. Row r's sets are those of `sets` from ``base + r * width`` on.
    """
    count: Any = np.int64(0)
    for i in range(rows):
        row, word = np.int64(passed[i]), left[i]
        start = base + row * width
        for place in range(start + HEAD_SETS, start + width):
            word &= table[sets[place]]
        passed[count], left[count] = row, word
        count += word != 0
    return count


@compiled
def _bitsets_max(tiles: Any) -> Any:
    """Return the number of bitsets in the largest table."""
    most: Any = np.int64(0)
    for t in range(len(tiles.row_start) - 1):
        edges = tiles.column_edge[tiles.column_start[t + 1]] - tiles.column_edge[tiles.column_start[t]]
        most = max(most, FIRST_EDGE + edges + tiles.set_start[t + 1] - tiles.set_start[t])
    return most


@inlined
def _write_singles(
    rows: Any,
    row: Any,
    kind: Any,
    subscription: Any,
    first: Any,
    last: Any,
    left: Any,
    i: int,
    words: int,
    events: Any,
    cells: Any,
    pairs: Any,
    count: int,
) -> Any:
    """Append (event, subscription) for those lanes of a row that match it; return the new number of slots."""
    mask = words_set(left, i, words)
    while mask != 0:
        w = lowest_bit(mask)
        mask &= mask - 1
        remaining = np.int64(left[i * words + w])
        while remaining != 0:
            bit = lowest_bit(remaining)
            remaining &= remaining - 1
            event: Any = np.int64(events[64 * w + bit])
            pairs[count, 0] = event
            pairs[count, 1] = subscription
            if kind == EXACT:
                count += 1
            elif kind == ALTERNATIVES:
                count += row_matches(rows.piece_start, rows.pieces, row, cells, event)
            else:
                count += is_inside(rows.pieces, first, last, cells, event)
    return count


@compiled
def _write_pairs(
    rows: Any,
    kinds: Any,
    passed: Any,
    passed_count: int,
    left: Any,
    words: int,
    events: Any,
    cells: Any,
    pairs: Any,
    count: int,
) -> Any:
    """Append the matches of the rows that passed, as runs or as (event, subscription).

    Returns the new number of slots; `pairs` has room for all, and for what `flatten` writes after the end.
    """
    numbers = pairs.reshape(-1).view(np.uint16)
    for i in range(passed_count):
        row = passed[i]
        soon = passed[min(i + AHEAD, passed_count - 1)]
        for near in range(3 * rows.piece_start[soon], 3 * rows.piece_start[soon + 1], LINE):
            prefetch(rows.pieces, near)
        subscription, kind = rows.subscription[row], kinds[row]
        first, last = rows.piece_start[row], rows.piece_start[row + 1]
        if kind == ALTERNATIVES or subscription < 0 or lanes_set(left, i, words) < RUN_MATCHES:
            count = _write_singles(
                rows, row, kind, subscription, first, last, left, i, words, events, cells, pairs, count
            )
            continue
        begin = 4 * count + 4
        end = begin + flatten(left, i, words, events, 0, numbers, begin)
        if kind == SIMPLE:
            candidates, end = end, begin
            for place in range(begin, candidates):
                numbers[end] = numbers[place]
                end += is_inside(rows.pieces, first, last, cells, np.int64(numbers[place]))
        if end > begin:
            pairs[count, 0], pairs[count, 1] = begin - end, subscription
            count += 1 + run_slots(end - begin)
    return count


@compiled
def scan_tiles(
    tiles: Any, rows: Any, cells: Any, codes: Any, pairs: Any, count: int, first_tile: int, ends: Any
) -> Any:
    """Append (event, subscription) for the rows of tiles; cells is [n, A], codes is [A + 1, n or more].

    For each tile, its zones select events, which become bits, 512 at a time or, at the end, in shorter
    bitsets. The bitsets of its edges are written for these events, and each row takes a few instructions on
    them.

    It begins with `first_tile` and stops before a tile for which there may not be room. Returns the tile
    where it stopped, or the number of tiles; the number of slots; and the number of slots for which that tile
    needs room. The end of each tile's slots is written to `ends`.
    """
    all_masks = np.empty(codes.shape[1] // BLOCK, np.uint32)
    _all_events(len(cells), all_masks)
    masks = np.empty_like(all_masks)
    live = np.empty((cells.shape[1] + 1, codes.shape[1] + _ROOM), np.uint16)
    table, left = _bitsets(_bitsets_max(tiles)), _bitsets(TILE_ROWS_MAX + 1)
    passed = np.empty(TILE_ROWS_MAX + 1, np.int32)
    for t in range(first_tile, len(tiles.row_start) - 1):
        count_before = count
        masks[:] = all_masks
        for z in range(tiles.zone_start[t], tiles.zone_start[t + 1]):
            attribute, low, high = tiles.zones[z]
            place, span = attribute * codes.shape[1], (np.int64(low), np.int64(high))
            keep_between(codes.reshape(-1), place, span[0], span[1], len(masks), masks)
        live_count = _gather_columns(tiles, t, codes, masks, live)
        for first_lane in range(0, live_count, LANES):
            lanes = min(LANES, live_count - first_lane)
            words = _words_for(lanes)
            _fill_table(tiles, t, live, first_lane, lanes, table, words)
            passed_count = _pass_rows(tiles, t, table, lanes, left, passed, words)
            events = live[0, first_lane:]
            needed = count + passed_count * lanes + UNROLLED
            if needed > len(pairs):
                return t, count_before, needed
            count = _write_pairs(
                rows, tiles.row_kind, passed, passed_count, left, words, events, cells, pairs, count
            )
        ends[t] = count
    return len(tiles.row_start) - 1, count, count
