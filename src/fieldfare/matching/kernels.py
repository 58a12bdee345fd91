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
from fieldfare.matching.layout import (
    ALL_ROWS,
    BLOCK_WORDS,
    BUCKETS_MAX,
    FIRST_NUMBER_CELL,
    MORE_ALTERNATIVES,
    NO_ROWS,
)

_BIT = (np.uint64(1) << np.arange(64, dtype=np.uint64)).view(np.int64)
_LOW_BIT_PLACE = np.zeros(32, np.int64)
for _i in range(32):
    _LOW_BIT_PLACE[(((1 << _i) * 0x077CB531) & 0xFFFFFFFF) >> 27] = _i


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
def _int_cell(d: Any, a: int, value: int) -> Any:
    base, end = d.number_start[a], d.number_start[a + 1]
    size = d.grid_start[a + 1] - d.grid_start[a] - 1
    g = d.grid_start[a] + _grid_step(float(value), d.grid_origin[a], d.grid_scale[a], size)
    low = max(base + d.grid[g], d.in_range[a, 0])
    high = max(low, min(base + d.grid[g + 1], d.in_range[a, 1]))
    while low < high:
        middle = (low + high) >> 1
        if d.floor[middle] < value:
            low = middle + 1
        else:
            high = middle
    cell = FIRST_NUMBER_CELL + 2 * (low - base)
    if low < min(end, d.in_range[a, 1]) and d.floor[low] == value and d.fraction[low] == 0:
        cell += 1
    return cell


@compiled
def _float_cell(d: Any, a: int, value: float) -> Any:
    base, end = d.number_start[a], d.number_start[a + 1]
    if value == np.inf:
        return FIRST_NUMBER_CELL + 2 * (end - base)
    if value == -np.inf:
        return FIRST_NUMBER_CELL
    size = d.grid_start[a + 1] - d.grid_start[a] - 1
    g = d.grid_start[a] + _grid_step(value, d.grid_origin[a], d.grid_scale[a], size)
    low, high = base + d.grid[g], base + d.grid[g + 1]
    while low < high:
        middle = (low + high) >> 1
        if d.near[middle] < value or (d.near[middle] == value and d.side[middle] < 0):
            low = middle + 1
        else:
            high = middle
    cell = FIRST_NUMBER_CELL + 2 * (low - base)
    if low < end and d.near[low] == value and d.side[low] == 0:
        cell += 1
    return cell


@compiled
def _compare(a: Any, a_start: int, a_length: int, b: Any, b_start: int, b_length: int) -> Any:
    for i in range(min(a_length, b_length)):
        x, y = a[a_start + i], b[b_start + i]
        if x != y:
            return -1 if x < y else 1
    return (a_length > b_length) - (a_length < b_length)


@compiled
def _string_cell(d: Any, a: int, text: Any, start: int, length: int) -> Any:
    first = FIRST_NUMBER_CELL + 2 * (d.number_start[a + 1] - d.number_start[a]) + 1
    base, end = d.string_start[a], d.string_start[a + 1]
    if base == end:
        return first
    slots = d.hash_start[a]
    mask = d.hash_start[a + 1] - slots - 1
    slot = hash_string(text, start, length) & mask
    while d.hash_slot[slots + slot] >= 0:
        s = base + d.hash_slot[slots + slot]
        offset = d.string_offset[s]
        if d.string_offset[s + 1] - offset == length:
            same = True
            for i in range(length):
                if d.string_bytes[offset + i] != text[start + i]:
                    same = False
                    break
            if same:
                return first + 2 * (s - base) + 1
        slot = (slot + 1) & mask
    if d.strings_ordered[a] == 0:
        return first
    low, high = base, end
    while low < high:
        middle = (low + high) >> 1
        offset = d.string_offset[middle]
        if _compare(d.string_bytes, offset, d.string_offset[middle + 1] - offset, text, start, length) < 0:
            low = middle + 1
        else:
            high = middle
    return first + 2 * (low - base)


@compiled
def locate(d: Any, kinds: Any, words: Any, text: Any, cells: Any) -> None:
    """Write the cell of every value (KIND_EXACT: -1, which Python locates) into cells [A, n]."""
    floats = words.view(np.float64)
    for a in range(kinds.shape[0]):
        for e in range(kinds.shape[1]):
            kind = kinds[a, e]
            if kind < KIND_INT:
                cells[a, e] = kind
            elif kind == KIND_INT:
                cells[a, e] = _int_cell(d, a, words[a, e])
            elif kind == KIND_FLOAT:
                cells[a, e] = _float_cell(d, a, floats[a, e])
            elif kind == KIND_STRING:
                word = words[a, e]
                cells[a, e] = _string_cell(d, a, text, word >> 32, word & 0xFFFFFFFF)
            elif kind == KIND_EXACT:
                cells[a, e] = -1


@compiled
def bucket(bucket_bound: Any, cells: Any, by_event: Any, buckets: Any) -> None:
    """Turn cells [A, n] round into by_event [n, A], and find each one's bucket [n, A]."""
    for a in range(cells.shape[0]):
        bounds = bucket_bound[a]
        for e in range(cells.shape[1]):
            cell = cells[a, e]
            by_event[e, a] = cell
            place = 0
            step = BUCKETS_MAX // 2
            while step > 0:
                if bounds[place + step - 1] <= cell:
                    place += step
                step >>= 1
            buckets[e, a] = place


@compiled
def row_matches(rows: Any, row: int, cells: Any) -> Any:
    """Whether an event's cells satisfy every predicate of a row."""
    place, end = rows.piece_start[row], rows.piece_start[row + 1]
    pieces = rows.pieces
    while place < end:
        attribute = pieces[place, 0]
        more = attribute >= MORE_ALTERNATIVES
        if more:
            attribute -= MORE_ALTERNATIVES
        cell = cells[attribute]
        if pieces[place, 1] <= cell <= pieces[place, 2]:
            while more:  # satisfied: leave out the other alternatives
                place += 1
                more = pieces[place, 0] >= MORE_ALTERNATIVES
        elif not more:
            return False
        place += 1
    return True


@compiled
def _counts(subscriptions: Any, overlay: Any, subscription: int, offset: int) -> Any:
    """Whether the subscription version was valid when the event was appended."""
    if offset < subscriptions.valid_from[subscription] or offset >= subscriptions.valid_to[subscription]:
        return False
    closed = overlay.closed
    if len(closed) and closed[subscription >> 3] >> (subscription & 7) & 1:
        place = np.searchsorted(overlay.subscription, subscription)
        return bool(offset < overlay.valid_to[place])
    return True


@compiled
def _grown(pairs: Any, needed: int) -> Any:
    larger = np.empty((max(needed, 2 * len(pairs)), 2), np.int32)
    larger[: len(pairs)] = pairs
    return larger


@compiled
def scan_access(
    access: Any,
    rows: Any,
    subscriptions: Any,
    overlay: Any,
    cells: Any,
    offsets: Any,
    always_valid: bool,
    pairs: Any,
    count: int,
) -> Any:
    """Append (event, subscription) for rows found by the cell of one attribute; cells is [n, A]."""
    entries = access.entries
    for e in range(cells.shape[0]):
        mine = cells[e]
        for x in range(len(access.attribute)):
            slot = access.table_start[x] + mine[access.attribute[x]]
            start, end = access.table[slot], access.table[slot + 1]
            if count + end - start > len(pairs):
                pairs = _grown(pairs, count + end - start)
            for i in range(start, end):
                cell = mine[entries[i, 1]]
                if cell < entries[i, 2] or cell > entries[i, 3]:
                    continue
                row = entries[i, 0]
                if not row_matches(rows, row, mine):
                    continue
                signed = rows.subscription[row]
                subscription = signed if signed >= 0 else ~signed
                if always_valid or _counts(subscriptions, overlay, subscription, offsets[e]):
                    pairs[count, 0] = e
                    pairs[count, 1] = signed
                    count += 1
    return pairs, count


@compiled
def _live_events(tiles: Any, t: int, cells: Any, live: Any) -> Any:
    """The events that lie in all zones of a tile; cells is [A, n]."""
    n = cells.shape[1]
    first, last = tiles.zone_start[t], tiles.zone_start[t + 1]
    if first == last:
        for e in range(n):
            live[e] = e
        return n
    count: int = 0
    column = cells[tiles.zones[first, 0]]
    low, high = tiles.zones[first, 1], tiles.zones[first, 2]
    for e in range(n):
        live[count] = e
        count += (column[e] >= low) & (column[e] <= high)
    for z in range(first + 1, last):
        column = cells[tiles.zones[z, 0]]
        low, high = tiles.zones[z, 1], tiles.zones[z, 2]
        kept = 0
        for i in range(count):
            e = live[i]
            live[kept] = e
            kept += (column[e] >= low) & (column[e] <= high)
        count = kept
    return count


@compiled
def scan_tiles(
    tiles: Any,
    rows: Any,
    subscriptions: Any,
    overlay: Any,
    cells: Any,
    by_event: Any,
    buckets: Any,
    offsets: Any,
    always_valid: bool,
    pairs: Any,
    count: int,
) -> Any:
    """Append (event, subscription) for the rows of tiles: tile by tile, so that its bitsets stay in L2."""
    bits = tiles.bits
    live = np.empty(cells.shape[1] + 1, np.int32)
    chosen = np.empty(cells.shape[0] + 1, np.int64)
    block = np.empty(BLOCK_WORDS, np.int64)
    for t in range(len(tiles.row_start) - 1):
        live_count = _live_events(tiles, t, cells, live)
        row_base = tiles.row_start[t]
        row_count = tiles.row_start[t + 1] - row_base
        words = (row_count + 64 * BLOCK_WORDS - 1) // (64 * BLOCK_WORDS) * BLOCK_WORDS
        bits_base = tiles.bits_start[t]
        column_first, column_last = tiles.column_start[t], tiles.column_start[t + 1]
        for i in range(live_count):
            e = live[i]
            mine = buckets[e]
            used = 0
            dead = False
            for c in range(column_first, column_last):
                bitset = tiles.bucket_bitset[c, mine[tiles.column[c]]]
                if bitset > ALL_ROWS:
                    chosen[used] = bits_base + bitset * words
                    used += 1
                elif bitset == NO_ROWS:
                    dead = True
                    break
            if dead:
                continue
            if count + row_count > len(pairs):
                pairs = _grown(pairs, count + row_count)
            for word in range(0, words, BLOCK_WORDS):
                for w in range(BLOCK_WORDS):
                    block[w] = bits[bits_base + word + w]
                for k in range(used):  # the hot loop
                    place = chosen[k] + word
                    for w in range(BLOCK_WORDS):
                        block[w] &= bits[place + w]
                for w in range(BLOCK_WORDS):
                    if block[w] == 0:
                        continue
                    for half in range(2):
                        left = (block[w] >> (32 * half)) & 0xFFFFFFFF
                        slot = row_base + (word + w) * 64 + 32 * half
                        while left != 0:
                            low_bit = left & -left
                            left ^= low_bit
                            row = tiles.row[
                                slot + _LOW_BIT_PLACE[((low_bit * 0x077CB531) & 0xFFFFFFFF) >> 27]
                            ]
                            if not row_matches(rows, row, by_event[e]):
                                continue
                            signed = rows.subscription[row]
                            subscription = signed if signed >= 0 else ~signed
                            if always_valid or _counts(subscriptions, overlay, subscription, offsets[e]):
                                pairs[count, 0] = e
                                pairs[count, 1] = signed
                                count += 1
    return pairs, count


@compiled
def group_by_event(size: int, events: Any, numbers: Any) -> Any:
    """CSR of (event, number) pairs in any order: numbers ascending within an event, none twice."""
    indptr = np.zeros(size + 1, np.int64)
    for i in range(len(events)):
        indptr[events[i] + 1] += 1
    for e in range(size):
        indptr[e + 1] += indptr[e]
    place = indptr[:-1].copy()
    grouped = np.empty(len(events), np.uint32)
    for i in range(len(events)):
        grouped[place[events[i]]] = numbers[i]
        place[events[i]] += 1
    kept = 0
    for e in range(size):
        start, end = indptr[e], indptr[e + 1]
        _sort(grouped, start, end)
        indptr[e] = kept
        for i in range(start, end):
            if i == start or grouped[i] != grouped[i - 1]:
                grouped[kept] = grouped[i]
                kept += 1
    indptr[size] = kept
    return indptr, grouped[:kept]


@compiled
def _sort(values: Any, start: int, end: int) -> None:
    if end - start > 24:
        values[start:end].sort()
        return
    for i in range(start + 1, end):
        value = values[i]
        j = i - 1
        while j >= start and values[j] > value:
            values[j + 1] = values[j]
            j -= 1
        values[j + 1] = value


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
        words = (sizes[t] + 64 * BLOCK_WORDS - 1) // (64 * BLOCK_WORDS) * BLOCK_WORDS
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
