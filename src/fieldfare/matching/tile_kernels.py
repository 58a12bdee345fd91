"""The compiled loops over tiles that find the rows which events match."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import compiled
from fieldfare.matching.kernels import grown, row_matches
from fieldfare.matching.lanes import (
    BLOCK,
    GROUP_BLOCKS,
    LANES,
    fill_edges,
    gather,
    is_inside,
    keep_between,
    lowest_bit,
    pass_gates,
    words_set,
)
from fieldfare.matching.layout import (
    ALL_LANES,
    BITSET_WORDS,
    BITSETS_MAX,
    EXACT,
    FIRST_EDGE,
    NO_LANES,
    SIMPLE,
    TILE_ROWS_MAX,
)

_BIT = np.uint64(1) << np.arange(64, dtype=np.uint64)
_ROOM = BLOCK * GROUP_BLOCKS
"""Vector loops read and write so many codes more than there are."""


@compiled
def coded_width(events: int) -> Any:
    """The codes of so many events need this much room a row."""
    return (events + BLOCK - 1) // BLOCK * BLOCK


@compiled
def _all_events(count: int, masks: Any) -> None:
    """Set the bits of events that there are."""
    for b in range(len(masks)):
        left = count - b * BLOCK
        masks[b] = 0xFFFFFFFF if left >= BLOCK else (1 << left) - 1


@compiled
def _gather_columns(tiles: Any, t: int, codes: Any, masks: Any, live: Any) -> Any:
    """Write the numbers of a tile's live events to `live`, then their codes, a row for each column."""
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
def _fill_table(tiles: Any, t: int, live: Any, first_lane: int, lanes: int, table: Any) -> None:
    """Write the bitsets of a tile for `lanes` of its live events."""
    flat, width = live.reshape(-1), live.shape[1]
    for w in range(BITSET_WORDS):
        left = lanes - 64 * w
        every = np.uint64(0) if left <= 0 else ~np.uint64(0) if left >= 64 else _BIT[left] - np.uint64(1)
        table[ALL_LANES * BITSET_WORDS + w] = every
        table[NO_LANES * BITSET_WORDS + w] = 0
    start, end = tiles.column_start[t], tiles.column_start[t + 1]
    entry = FIRST_EDGE
    for c in range(start, end):
        first, last = tiles.column_edge[c], tiles.column_edge[c + 1]
        place = (1 + c - start) * width + first_lane
        fill_edges(flat, place, lanes, tiles.edge, first, last, table, entry)
        entry += last - first
    for u in range(tiles.union_start[t], tiles.union_start[t + 1]):
        for w in range(BITSET_WORDS):
            word = np.uint64(0)
            for g in range(tiles.union_gate[u], tiles.union_gate[u + 1]):
                opened, shut = np.int64(tiles.union_gates[g, 0]), np.int64(tiles.union_gates[g, 1])
                word |= table[opened + w] & ~table[shut + w]
            table[entry * BITSET_WORDS + w] = word
        entry += 1


@compiled
def _write_pairs(
    rows: Any, kinds: Any, row: int, bitset: int, left: Any, events: Any, cells: Any, pairs: Any, count: int
) -> Any:
    """Append (event, subscription) for the events of a bitset that match a row; return how many there are."""
    subscription, kind = rows.subscription[row], kinds[row]
    first, last = rows.piece_start[row], rows.piece_start[row + 1]
    words = words_set(left, bitset)
    while words != 0:
        w = lowest_bit(words)
        words &= words - 1
        remaining = np.int64(left[bitset * BITSET_WORDS + w])
        while remaining != 0:
            bit = lowest_bit(remaining)
            remaining &= remaining - 1
            event: Any = np.int64(events[64 * w + bit])
            pairs[count, 0] = event
            pairs[count, 1] = subscription
            if kind == EXACT:
                count += 1
            elif kind == SIMPLE:
                count += is_inside(rows.pieces, first, last, cells, event)
            else:
                count += row_matches(rows.piece_start, rows.pieces, row, cells, event)
    return count


@compiled
def scan_tiles(tiles: Any, rows: Any, cells: Any, codes: Any, pairs: Any, count: int) -> Any:
    """Append (event, subscription) for the rows of tiles; cells is [n, A], codes [A + 1, n and some].

    Tile by tile: its zones leave some events, which get bits, 512 at a time; the bitsets of its edges
    are written for these, and each row is a few instructions on them.
    """
    all_masks = np.empty(codes.shape[1] // BLOCK, np.uint32)
    _all_events(len(cells), all_masks)
    masks = np.empty_like(all_masks)
    live = np.empty((cells.shape[1] + 1, codes.shape[1] + _ROOM), np.uint16)
    table = np.empty(BITSETS_MAX * BITSET_WORDS, np.uint64)
    left = np.empty((TILE_ROWS_MAX + 1) * BITSET_WORDS, np.uint64)
    passed = np.empty(TILE_ROWS_MAX + 1, np.int32)
    for t in range(len(tiles.row_start) - 1):
        masks[:] = all_masks
        for z in range(tiles.zone_start[t], tiles.zone_start[t + 1]):
            attribute, low, high = tiles.zones[z]
            keep_between(
                codes.reshape(-1),
                attribute * codes.shape[1],
                np.int64(low),
                np.int64(high),
                len(masks),
                masks,
            )
        live_count = _gather_columns(tiles, t, codes, masks, live)
        for first_lane in range(0, live_count, LANES):
            _fill_table(tiles, t, live, first_lane, min(LANES, live_count - first_lane), table)
            row, gate, passed_count = tiles.row_start[t], tiles.gate_start[t], 0
            for run in range(tiles.run_start[t], tiles.run_start[t + 1]):
                width, size = np.int64(tiles.runs[run, 0]), np.int64(tiles.runs[run, 1])
                passed_count = pass_gates(
                    table, tiles.gates, gate, width, size, row, left, passed, passed_count
                )
                row += size
                gate += size * width
            events = live[0, first_lane:]
            for i in range(passed_count):
                if count + LANES > len(pairs):
                    pairs = grown(pairs, count + LANES)
                count = _write_pairs(rows, tiles.row_kind, passed[i], i, left, events, cells, pairs, count)
    return pairs, count
