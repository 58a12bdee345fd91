"""Kernels for needles: which of many texts occur in the strings of events, and which of their rows match.

A needle of n bytes is stored under one of its *grams*, its rarest n, 8, 6, 4, 3, 2 or 1 bytes. Every gram of
a string is hashed; a bit tells whether any needle has such a gram, and is mostly unset. The remaining grams
are collected, and each of the next steps first prefetches the memory that it reads: slots, entries, texts,
rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import borrowed, compiled, inlined, prefetch
from fieldfare.matching.events.columns import KIND_STRING
from fieldfare.matching.events.json_bytes import same_bytes
from fieldfare.matching.plain.grams import (
    ANCHORS_SHIFT,
    AT_END_BIT,
    AT_START_BIT,
    BYTES_SHIFT,
    HASH_BITS,
    LOWER_HALF,
    OFFSET_SHIFT,
    PLACE_SHIFT,
    hash_gram,
)
from fieldfare.matching.plain.search.access_kernels import FOUND_MAX, check_candidates, passes

PROBES_MAX = 4096
"""Maximum grams collected before they are looked up."""
HITS_MAX = 4096
"""Maximum possible needles collected before they are compared."""
SEEN_BITS = 12
"""Base-2 logarithm of the number of recent needles remembered, so that one repeated in a string is
skipped."""

_BYTE, _TAG = 255, (1 << ANCHORS_SHIFT) - 1


@compiled
def scan_needles(
    needles: Any,
    group: int,
    rows: Any,
    kinds: Any,
    words: Any,
    text: Any,
    by_event: Any,
    marks: Any,
    pairs: Any,
    count: int,
    most: int,
) -> Any:
    """Append (event, subscription) for rows found by a group's needles in the strings of its attribute."""
    text = borrowed(text)
    sizes = needles.size[needles.size_start[group] : needles.size_start[group + 1]]
    bits = borrowed(needles.bits[needles.bits_start[group] : needles.bits_start[group + 1]])
    shift = HASH_BITS - np.int64(needles.bits_width[group])
    places, hashes = np.empty(PROBES_MAX + 1, np.int64), np.empty(PROBES_MAX + 1, np.int64)
    seen = np.full(1 << SEEN_BITS, -1, np.int64)
    waiting = 0
    for event in range(len(kinds)):
        if kinds[event] != KIND_STRING:
            continue
        start = words[event] >> 32
        end = start + (words[event] & LOWER_HALF)
        for size in sizes:
            first, last = start, end - np.int64(size) + 1
            while first < last:
                stop = min(last, first + PROBES_MAX - waiting)
                waiting = _collect(
                    text, first, stop, np.int64(size), bits, shift, event, places, hashes, waiting
                )
                first = stop
                if waiting > PROBES_MAX // 2:
                    pairs, count = _look_up(
                        needles=needles,
                        group=group,
                        rows=rows,
                        words=words,
                        text=text,
                        by_event=by_event,
                        marks=marks,
                        seen=seen,
                        places=places,
                        hashes=hashes,
                        waiting=waiting,
                        pairs=pairs,
                        count=count,
                        most=most,
                    )
                    waiting = 0
    return _look_up(
        needles=needles,
        group=group,
        rows=rows,
        words=words,
        text=text,
        by_event=by_event,
        marks=marks,
        seen=seen,
        places=places,
        hashes=hashes,
        waiting=waiting,
        pairs=pairs,
        count=count,
        most=most,
    )


@inlined
def _collect(
    text: Any,
    first: Any,
    stop: Any,
    size: Any,
    bits: Any,
    shift: Any,
    event: Any,
    places: Any,
    hashes: Any,
    waiting: Any,
) -> Any:
    """Collect the grams that begin in text[first:stop] and have their bit set; return how many are
    waiting."""
    for i in range(first, stop):  # hot, branch-free
        h = hash_gram(text, i, size)
        bit = h >> shift
        places[np.uint64(waiting)] = event << 32 | i
        hashes[np.uint64(waiting)] = h
        waiting += np.int64(bits[np.uint64(bit >> 3)] >> np.uint8(bit & 7)) & 1
    return waiting


@compiled
def _look_up(
    needles: Any,
    group: int,
    rows: Any,
    words: Any,
    text: Any,
    by_event: Any,
    marks: Any,
    seen: Any,
    places: Any,
    hashes: Any,
    waiting: int,
    pairs: Any,
    count: int,
    most: int,
) -> Any:
    """Find the needles at the collected grams, and append the matching pairs."""
    slots, entries, wanted = borrowed(needles.slot), borrowed(needles.entry), borrowed(needles.text)
    base, shift = needles.slot_start[group], HASH_BITS - np.int64(needles.slot_width[group])
    ends = np.empty((waiting, 2), np.int32)
    hits = np.empty((HITS_MAX, 2), np.int64)
    for i in range(waiting):
        prefetch(slots, base + (hashes[i] >> shift))
    for i in range(waiting):
        slot = base + (hashes[i] >> shift)
        ends[i, 0], ends[i, 1] = slots[slot], slots[slot + 1]
        prefetch(entries, int(slots[slot]))
    found = 0
    for i in range(waiting):
        tag = hashes[i] & _TAG
        for entry in range(np.int64(ends[i, 0]), np.int64(ends[i, 1])):
            if entries[entry] & _TAG != tag:
                continue
            if found == HITS_MAX:
                found = _keep_present(needles, words, text, seen, hits, found)
                pairs, count = _take_rows(needles, rows, by_event, marks, hits, found, pairs, count, most)
                found = 0
            hits[found, 0], hits[found, 1] = places[i], entry
            prefetch(wanted, entries[entry] >> OFFSET_SHIFT)
            found += 1
    found = _keep_present(needles, words, text, seen, hits, found)
    return _take_rows(needles, rows, by_event, marks, hits, found, pairs, count, most)


@compiled
def _keep_present(needles: Any, words: Any, text: Any, seen: Any, hits: Any, found: int) -> Any:
    """Reduce (event and gram's place, entry) to (event, entry) where the complete needle occurs; return how
    many."""
    wanted = borrowed(needles.text)
    kept = 0
    for i in range(found):
        event, entry = hits[i, 0] >> 32, hits[i, 1]
        record = needles.entry[entry]
        length = record >> BYTES_SHIFT & _BYTE
        first = (hits[i, 0] & LOWER_HALF) - (record >> PLACE_SHIFT & _BYTE)
        start = words[event] >> 32
        end = start + (words[event] & LOWER_HALF)
        anchors = record >> ANCHORS_SHIFT
        if first < start or first + length > end:
            continue
        if (anchors & AT_START_BIT and first != start) or (anchors & AT_END_BIT and first + length != end):
            continue
        if not same_bytes(text, first, wanted, record >> OFFSET_SHIFT, length):
            continue
        key = event << 32 | entry
        place = (entry * 0x9E3B ^ event) & ((1 << SEEN_BITS) - 1)
        if seen[place] == key:
            continue
        seen[place] = key
        hits[kept, 0], hits[kept, 1] = event, entry
        prefetch(needles.row_start, entry)
        kept += 1
    return kept


@compiled
def _take_rows(
    needles: Any,
    rows: Any,
    by_event: Any,
    marks: Any,
    hits: Any,
    found: int,
    pairs: Any,
    count: int,
    most: int,
) -> Any:
    """Append the matching rows of (event, entry)."""
    row_start, check = borrowed(needles.row_start), borrowed(needles.check)
    flat = borrowed(marks).reshape(-1)
    width = np.uint64(marks.shape[1])
    for i in range(found):
        prefetch(check, int(row_start[hits[i, 1]]))
    candidates = np.empty(2 * FOUND_MAX, np.int64)
    left = np.uint64(0)
    for i in range(found):
        event = hits[i, 0]
        first, last = np.int64(row_start[hits[i, 1]]), np.int64(row_start[hits[i, 1] + 1])
        while first < last:
            stop = min(last, first + FOUND_MAX)
            for place in range(first, stop):  # hot, branch-free
                candidates[left] = event << 32 | place
                left += passes(check, np.uint64(place), flat, np.uint64(event) * width)
            first = stop
            if left >= FOUND_MAX:
                pairs, count = check_candidates(
                    needles.row, rows, by_event, candidates, left, pairs, count, most
                )
                left = np.uint64(0)
    return check_candidates(needles.row, rows, by_event, candidates, left, pairs, count, most)
