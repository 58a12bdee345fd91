"""The compiled loops over tiles: packing their bitsets, and finding the rows that events match."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import and_blocks, compiled, find_bitsets, lowest_bit, prefetch
from fieldfare.matching.kernels import grown, row_matches
from fieldfare.matching.layout import (
    ALL_ROWS,
    BLOCK_ROWS,
    BLOCK_WORDS,
    BUCKETS_MAX,
    NO_ROWS,
)

FOUND_MAX = 4096
"""So many candidates at least are checked together, or all of a tile."""
AHEAD_WORDS_MAX = 1 << 16
"""How much of the next tile is asked for ahead: half of a second cache."""
AHEAD_EVENTS_MIN = 64
"""For fewer events in a tile the next tile's bitsets would mostly come for nothing."""

_BIT = (np.uint64(1) << np.arange(64, dtype=np.uint64)).view(np.int64)


@compiled
def _live_events(zones: Any, first: int, last: int, cells: Any, live: Any) -> Any:
    """The events that lie in all zones of a tile; cells is [A, n]."""
    count = cells.shape[1]
    if first == last:
        for e in range(count):
            live[e] = e
        return count
    low, high = zones[first, 1], zones[first, 2]
    column = cells[zones[first, 0]]
    kept = 0
    for e in range(count):
        live[kept] = e
        kept += (column[e] >= low) & (column[e] <= high)
    for z in range(first + 1, last):
        low, high = zones[z, 1], zones[z, 2]
        column = cells[zones[z, 0]]
        count, kept = kept, 0
        for i in range(count):
            e = live[i]
            live[kept] = e
            kept += (column[e] >= low) & (column[e] <= high)
    return kept


@compiled
def _check(rows: Any, found: Any, found_count: int, by_event: Any, pairs: Any, count: int) -> Any:
    """Append (event, subscription) for the candidates (event, row) that match; ~row is exact already."""
    piece_start, pieces, subscription = rows.piece_start, rows.pieces, rows.subscription
    for i in range(found_count):
        event, row = found[i, 0], found[i, 1]
        if row < 0:
            row = ~row
        elif not row_matches(piece_start, pieces, row, by_event, event):
            continue
        pairs[count, 0] = event
        pairs[count, 1] = subscription[row]
        count += 1
    return count


@compiled
def scan_tiles(tiles: Any, rows: Any, cells: Any, by_event: Any, buckets: Any, pairs: Any, count: int) -> Any:
    """Append (event, subscription) for the rows of tiles: tile by tile, so that its bitsets stay in L2.

    Candidates are checked when a tile is done with, so that their rows have come from memory by then;
    and the next tile's bitsets are asked for while this one's are used.
    """
    bits, tile_row, zones, zone_start = tiles.bits, tiles.row, tiles.zones, tiles.zone_start
    column, bucket_bitset, column_start = tiles.column, tiles.bucket_bitset, tiles.column_start
    row_start, bits_start = tiles.row_start, tiles.bits_start
    piece_start, pieces = rows.piece_start, rows.pieces[:, 0]
    live = np.empty(cells.shape[1] + 1, np.int32)
    chosen = np.empty(cells.shape[0] + 2, np.int64)
    left = np.empty(BLOCK_WORDS, np.int64)
    found = np.empty((FOUND_MAX + BLOCK_ROWS, 2), np.int32)
    for t in range(len(row_start) - 1):
        live_count = _live_events(zones, zone_start[t], zone_start[t + 1], cells, live)
        if live_count == 0:
            continue
        row_base = row_start[t]
        row_count = row_start[t + 1] - row_base
        words = (row_count + BLOCK_ROWS - 1) // BLOCK_ROWS * BLOCK_WORDS
        first, last = bits_start[t], bits_start[t + 1]
        ahead = last
        if live_count >= AHEAD_EVENTS_MIN:
            ahead = min(last + AHEAD_WORDS_MAX, bits_start[min(t + 2, len(row_start) - 1)])
        step = ((ahead - last) // live_count + BLOCK_WORDS) // BLOCK_WORDS * BLOCK_WORDS
        found_count = 0
        column_first, column_last = column_start[t], column_start[t + 1]
        used = max(1, column_last - column_first)
        for i in range(live_count):
            for place in range(last, min(last + step, ahead), BLOCK_WORDS):
                prefetch(bits, place)
            last += step
            e = live[i]
            chosen[0] = first
            lowest = find_bitsets(
                bucket_bitset, column, column_first, column_last, buckets, e, first, words, chosen
            )
            if lowest == NO_ROWS:
                continue
            for shift in range(0, words, BLOCK_WORDS):
                nonzero = and_blocks(bits, chosen, used, shift, left)
                while nonzero != 0:
                    w = lowest_bit(nonzero)
                    nonzero &= nonzero - 1
                    remaining = left[w]
                    slot = row_base + (shift + w) * 64
                    while remaining != 0:
                        bit = lowest_bit(remaining)
                        remaining ^= _BIT[bit]
                        row = tile_row[slot + bit]
                        found[found_count, 0] = e
                        found[found_count, 1] = row
                        found_count += 1
                        if row >= 0:
                            prefetch(pieces, piece_start[row])
                if found_count >= FOUND_MAX:
                    if count + found_count > len(pairs):
                        pairs = grown(pairs, count + found_count)
                    count = _check(rows, found, found_count, by_event, pairs, count)
                    found_count = 0
        if count + found_count > len(pairs):
            pairs = grown(pairs, count + found_count)
        count = _check(rows, found, found_count, by_event, pairs, count)
    return pairs, count


@compiled
def pack_bitsets(sizes: Any, column_start: Any, piece_start: Any, slots: Any, lows: Any, highs: Any) -> Any:
    """The bitsets of every tile's columns: which rows a bucket does not exclude.

    Piece i of a column says that the row at `slots[i]` of its tile accepts buckets lows[i]..highs[i];
    rows without a piece in a column accept all. Equal neighbours and full sets are stored once.
    """
    tile_count, column_count = len(sizes), len(piece_start) - 1
    bucket_bitset = np.zeros((column_count, BUCKETS_MAX), np.int32)
    bits_start = np.zeros(tile_count + 1, np.int64)
    bits = np.zeros(1024, np.int64)
    total = 0
    for t in range(tile_count):
        bits_start[t] = total
        words = (sizes[t] + BLOCK_ROWS - 1) // BLOCK_ROWS * BLOCK_WORDS
        everything = np.zeros(words, np.int64)
        for slot in range(sizes[t]):
            everything[slot >> 6] |= _BIT[slot & 63]
        needed = total + words * (1 + BUCKETS_MAX * (column_start[t + 1] - column_start[t]))
        if needed > len(bits):
            larger = np.zeros(max(needed, len(bits) + (len(bits) >> 1)), np.int64)
            larger[:total] = bits[:total]
            bits = larger
        bits[total : total + words] = everything
        used = 1
        for column in range(column_start[t], column_start[t + 1]):
            free = everything.copy()
            for i in range(piece_start[column], piece_start[column + 1]):
                free[slots[i] >> 6] &= ~_BIT[slots[i] & 63]
            sets = np.zeros((BUCKETS_MAX, words), np.int64)
            for i in range(piece_start[column], piece_start[column + 1]):
                word, bit = slots[i] >> 6, _BIT[slots[i] & 63]
                for b in range(lows[i], highs[i] + 1):
                    sets[b, word] |= bit
            for b in range(BUCKETS_MAX):
                empty, full, same = True, True, b > 0
                for w in range(words):
                    sets[b, w] |= free[w]
                    empty &= sets[b, w] == 0
                    full &= sets[b, w] == everything[w]
                    same = same and sets[b, w] == sets[b - 1, w]
                if same:
                    bucket_bitset[column, b] = bucket_bitset[column, b - 1]
                elif full:
                    bucket_bitset[column, b] = ALL_ROWS
                elif empty:
                    bucket_bitset[column, b] = NO_ROWS
                else:
                    bits[total + used * words : total + (used + 1) * words] = sets[b]
                    bucket_bitset[column, b] = used
                    used += 1
        total += used * words
    bits_start[tile_count] = total
    return bucket_bitset, bits_start, bits[:total].copy()
