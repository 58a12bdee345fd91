"""Kernels for key tables: from an event's cells to the matching rows.

Keys are processed one by one, so that a key's table stays in the cache while all events are looked up; the
next key's table is prefetched meanwhile. Probes are collected before they are made, and each step prefetches
the memory that the next one reads: a single event that is looked up in a hundred tables does not wait a
hundred times.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import borrowed, compiled, inlined, prefetch
from fieldfare.matching.plain.codes import mark_of
from fieldfare.matching.plain.search.kernels import grown, row_matches

PROBES_MAX = 4096
"""Maximum probes collected before they are made."""
FOUND_MAX = 4096
"""Candidates collected before their rows are checked."""
ROUNDS = 4
"""Entries of every list that are read in rounds, one of each list per round; the rest is read list by
list."""
SPARSE_SHARE = 4
"""If less than 1/SPARSE_SHARE of the events have an attribute, they are listed, and only these are looked
up."""
AHEAD_WORDS_MAX = 1 << 16
"""Maximum number of the next key's table slots, and of its entries, that are prefetched."""
LINE_WORDS = 16
TURN_EVENTS = 64

_ONE, _ATTRIBUTE_SHIFT = np.uint64(1), np.uint32(16)
_MARK_SHIFT, _MARK_MASK = np.uint32(8), np.uint32(255)
_ENTRY_MASK = (1 << 32) - 1


@compiled
def scan_access(
    access: Any, rows: Any, cells: Any, by_event: Any, marks: Any, pairs: Any, count: int, most: int
) -> Any:
    """Append (event, subscription) for rows found by keys; cells is [A, n], by_event and marks are [n, A].

    The search stops after more than `most` pairs, because the result will be discarded.
    """
    key_start, attributes, multipliers = access.key_start, access.attribute, access.multiplier
    size = cells.shape[1]
    present, listed = _presence(attributes, cells)
    everyone = np.arange(size)
    events, slots = np.empty(PROBES_MAX, np.int32), np.empty(PROBES_MAX, np.int64)
    waiting = 0
    for x in range(len(access.shift)):
        first, last = key_start[x], key_start[x + 1]
        rarest = attributes[first]
        for k in range(first + 1, last):
            if present[attributes[k]] < present[rarest]:
                rarest = attributes[k]
        sparse = present[rarest] * SPARSE_SHARE < size
        looking = listed[rarest, : present[rarest]] if sparse else everyone
        _ask_ahead(access, x, len(looking))
        done = 0
        while done < len(looking):
            step = min(len(looking) - done, PROBES_MAX - waiting)
            mine = slots[waiting : waiting + step]
            chosen = looking[done : done + step]
            events[waiting : waiting + step] = chosen
            mine[:] = 0
            for k in range(first, last):
                column = cells[attributes[k]]
                if sparse:
                    _add_listed(mine, column, chosen, multipliers[k])
                else:
                    _add_all(mine, column[done : done + step], multipliers[k])
            _finish_slots(mine, access.mask[x], access.shift[x], access.table_start[x], access.table)
            waiting += step
            done += step
            if waiting == PROBES_MAX:
                pairs, count = _probe(
                    access, rows, by_event, marks, events, slots, waiting, pairs, count, most
                )
                waiting = 0
                if count > most:
                    return pairs, count
    return _probe(access, rows, by_event, marks, events, slots, waiting, pairs, count, most)


@compiled
def mark_events(cells: Any, shifts: Any, marks: Any) -> None:
    """Write the marks [n, A] of cells [A, n], in blocks."""
    for start in range(0, cells.shape[1], TURN_EVENTS):
        end = min(start + TURN_EVENTS, cells.shape[1])
        for a in range(cells.shape[0]):
            shift = shifts[a]
            for e in range(start, end):
                marks[e, a] = mark_of(cells[a, e], shift)


@compiled
def _presence(attributes: Any, cells: Any) -> Any:
    """Return how many events have each attribute of a key, and a list of them where they are few."""
    attribute_count, size = cells.shape
    present = np.full(attribute_count, -1, np.int64)
    for attribute in attributes:
        if present[attribute] < 0:
            total = 0
            for cell in cells[attribute]:
                total += cell != 0
            present[attribute] = total
    listed = np.empty((attribute_count, size // SPARSE_SHARE + 1), np.int64)
    for a in range(attribute_count):
        if present[a] > 0 and present[a] * SPARSE_SHARE < size:
            column = cells[a]
            kept = 0
            for e in range(size):
                if column[e] != 0:
                    listed[a, kept] = e
                    kept += 1
    return present, listed


@compiled
def _ask_ahead(access: Any, x: int, looking: int) -> None:
    """Prefetch the table and entries of the next key if the number of lookups justifies it."""
    if x + 1 == len(access.shift):
        return
    first, last = access.table_start[x + 1], access.table_start[x + 2]
    entry, end = np.int64(access.table[first]), np.int64(access.table[last])
    if looking * LINE_WORDS * 2 < last - first + end - entry:
        return
    for place in range(first, min(last, first + AHEAD_WORDS_MAX), LINE_WORDS):
        prefetch(access.table, place)
    for place in range(entry, min(end, entry + AHEAD_WORDS_MAX), LINE_WORDS):
        prefetch(access.check, place)


@compiled
def _add_all(slots: Any, column: Any, multiplier: int) -> None:
    for i in range(len(slots)):
        slots[i] += np.int64(column[i] >> 1) * multiplier


@compiled
def _add_listed(slots: Any, column: Any, events: Any, multiplier: int) -> None:
    for i in range(len(slots)):
        slots[i] += np.int64(column[events[i]] >> 1) * multiplier


@compiled
def _finish_slots(slots: Any, mask: int, shift: int, start: int, table: Any) -> None:
    """Convert sums to indices into the table of all keys."""
    for i in range(len(slots)):
        slots[i] = start + ((slots[i] & mask) >> shift)
    for i in range(len(slots)):
        prefetch(table, slots[i])


@compiled
def _probe(
    access: Any,
    rows: Any,
    by_event: Any,
    marks: Any,
    events: Any,
    slots: Any,
    waiting: int,
    pairs: Any,
    count: int,
    most: int,
) -> Any:
    """Look up the collected probes, and append the matching rows.

    Most lists are short and of unpredictable length, so a loop over each would end in a mispredicted branch.
    Instead, a round reads one entry of every list; lists that end are dropped without a branch.
    """
    table, check = borrowed(access.table), borrowed(access.check)
    flat = borrowed(marks).reshape(-1)
    width = np.uint64(marks.shape[1])
    event, place, end = np.empty(waiting, np.int32), np.empty(waiting, np.int32), np.empty(waiting, np.int32)
    found = np.empty(2 * FOUND_MAX + waiting, np.int64)
    left = np.uint64(0)
    for i in range(np.uint64(waiting)):  # hot, branch-free
        slot = np.uint64(slots[i])
        first, last = table[slot], table[slot + _ONE]
        event[left] = events[i]
        place[left] = first
        end[left] = last
        left += np.uint64(first < last)
    for i in range(left):
        prefetch(check, int(place[i]))
    count_found = np.uint64(0)
    for _ in range(ROUNDS):
        kept = np.uint64(0)
        for i in range(left):  # hot, branch-free
            e, p, stop = event[i], place[i], end[i]
            found[count_found] = np.int64(e) << 32 | np.int64(p)
            count_found += passes(check, np.uint64(p), flat, np.uint64(e) * width)
            event[kept] = e
            place[kept] = p + 1
            end[kept] = stop
            kept += np.uint64(p + 1 < stop)
        left = kept
        if count_found >= FOUND_MAX:
            pairs, count = check_candidates(
                access.row, rows, by_event, found, count_found, pairs, count, most
            )
            count_found = np.uint64(0)
    for i in range(left):
        e, p, stop = np.int64(event[i]), np.int64(place[i]), np.int64(end[i])
        while p < stop:
            for j in range(np.uint64(p), np.uint64(min(stop, p + FOUND_MAX))):
                found[count_found] = e << 32 | np.int64(j)
                count_found += passes(check, j, flat, np.uint64(e) * width)
            p += FOUND_MAX
            if count_found >= FOUND_MAX:
                pairs, count = check_candidates(
                    access.row, rows, by_event, found, count_found, pairs, count, most
                )
                count_found = np.uint64(0)
    return check_candidates(access.row, rows, by_event, found, count_found, pairs, count, most)


@inlined
def passes(check: Any, entry: Any, marks: Any, event_start: Any) -> Any:
    """Return 1 if an event satisfies an entry's check, else 0."""
    needed = check[entry]
    mark = np.uint32(marks[event_start + np.uint64(needed >> _ATTRIBUTE_SHIFT)])
    low, high = needed >> _MARK_SHIFT & _MARK_MASK, needed & _MARK_MASK
    return np.uint64((low <= mark) & (mark <= high))


@compiled
def check_candidates(
    row_of_entry: Any,
    rows: Any,
    by_event: Any,
    found: Any,
    found_count: Any,
    pairs: Any,
    count: int,
    most: int,
) -> Any:
    """Append (event, subscription) for the candidates (event << 32 | entry) whose row matches.

    Once there are more than `most` pairs nothing is appended: the search will be repeated with fewer events.
    """
    if count > most:
        return pairs, count
    piece_start, pieces, subscription = rows.piece_start, rows.pieces, rows.subscription
    first_pieces = pieces[:, 0]
    total = int(found_count)
    if count + total > len(pairs):
        pairs = grown(pairs, count + total)
    for i in range(total):
        prefetch(row_of_entry, int(found[i] & _ENTRY_MASK))
    for i in range(total):
        row = int(row_of_entry[found[i] & _ENTRY_MASK])
        found[i] = (found[i] & ~_ENTRY_MASK) | row
        prefetch(piece_start, row)
    for i in range(total):
        prefetch(first_pieces, piece_start[found[i] & _ENTRY_MASK])
    for i in range(total):
        event, row = found[i] >> 32, found[i] & _ENTRY_MASK
        if row_matches(piece_start, pieces, row, by_event, event):
            pairs[count, 0] = event
            pairs[count, 1] = subscription[row]
            count += 1
    return pairs, count
