"""Compiled functions that convert lists of matches to the match log's format and back.

An ordinal's gap is the number of ordinals between it and its predecessor in the list (-1 before the first);
gaps are less than 65,536. Their low bytes are noise and stored as they are. A high byte is nearly always
small: it takes two bits; if these are 3, its excess over 3 is in a separate list. That is as compact as zstd
on the high bytes, and several times as fast.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.compiled import compiled, inlined


@compiled
def gap_planes(
    starts: NDArray[np.int64], ordinals: NDArray[np.uint16]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], bool]:
    """Return the low and high bytes of all gaps, and whether the ordinals of every number ascend."""
    low = np.empty(ordinals.size, np.uint8)
    high = np.empty(ordinals.size, np.uint8)
    descents: Any = 0
    for number in range(starts.size - 1):
        first, end = starts[number], starts[number + 1]
        low[first], high[first] = ordinals[first] & 255, ordinals[first] >> 8
        before, after = ordinals[first : end - 1], ordinals[first + 1 : end]  # LLVM then sees one index.
        lows, highs = low[first + 1 : end], high[first + 1 : end]
        for i in range(len(before)):
            gap = np.int32(after[i]) - np.int32(before[i]) - 1
            descents += gap < 0
            lows[i] = gap & 255
            highs[i] = (gap >> 8) & 255
    ascending = descents == 0
    return low, high, ascending


@compiled
def pack_high(high: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pack high bytes to two bits each, four per byte; return these and the excesses of values from 3 on."""
    packed = np.zeros((high.size + 3) >> 2, np.uint8)
    more = np.empty(high.size, np.uint8)
    count = 0
    for i in range(high.size):
        value = high[i]
        packed[i >> 2] |= min(value, 3) << (2 * (i & 3))
        more[count] = value - 3
        count += value >= 3
    return packed, more[:count].copy()


@compiled
def unpack_high(packed: NDArray[np.uint8], more: NDArray[np.uint8], high: NDArray[np.uint8]) -> int:
    """Unpack high bytes into `high`; return how many entries of `more` they took, -1 if it is too short."""
    count = 0
    for i in range(high.size):
        value = (packed[i >> 2] >> (2 * (i & 3))) & 3
        if value == 3:
            if count == more.size:
                return -1
            value += more[count]
            count += 1
        high[i] = value
    return count


@inlined
def _record_of(event_starts: NDArray[np.int64], ordinal: int, low: int) -> int:
    """Return the record that has an event, given that it is `low` or a later one."""
    high = len(event_starts) - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if event_starts[middle] <= ordinal:
            low = middle
        else:
            high = middle
    return low


@compiled
def select(
    wanted: NDArray[np.uint32],
    numbers: NDArray[np.uint32],
    starts: NDArray[np.int64],
    low: NDArray[np.uint8],
    high: NDArray[np.uint8],
    event_starts: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], bool]:
    """Decode the lists of the `wanted` numbers from the low and high bytes of their gaps.

    `wanted` and `numbers` ascend. Returns the bounds of each number's matches, the record of every match, the
    event's index in that record, and whether all events exist.
    """
    bounds = np.zeros(wanted.size + 1, np.int64)
    places = np.searchsorted(numbers, wanted)
    for i in range(wanted.size):
        place = places[i]
        is_there = place < numbers.size and numbers[place] == wanted[i]
        bounds[i + 1] = bounds[i] + (starts[place + 1] - starts[place] if is_there else 0)
    records = np.empty(bounds[-1], np.int64)
    indexes = np.empty(bounds[-1], np.int32)
    events = event_starts[-1]
    for i in range(wanted.size):
        ordinal: Any = np.int64(-1)
        record: Any = np.int64(0)
        for k in range(bounds[i + 1] - bounds[i]):
            match = starts[places[i]] + k
            ordinal += (np.int64(high[match]) << 8) + np.int64(low[match]) + 1
            if ordinal >= events:
                return bounds, records, indexes, False
            if event_starts[record + 1] <= ordinal:
                record = _record_of(event_starts, ordinal, record + 1)
            records[bounds[i] + k] = record
            indexes[bounds[i] + k] = ordinal - event_starts[record]
    return bounds, records, indexes, True


@compiled
def by_event(
    events: int,
    numbers: NDArray[np.uint32],
    starts: NDArray[np.int64],
    low: NDArray[np.uint8],
    high: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return the matches by event (CSR), numbers ascending per event; too large ordinals are left out."""
    indptr = np.zeros(events + 1, np.int64)
    for number in range(numbers.size):
        ordinal = -1
        for match in range(starts[number], starts[number + 1]):
            ordinal += (int(high[match]) << 8) + int(low[match]) + 1
            if ordinal < events:
                indptr[ordinal + 1] += 1
    for event in range(events):
        indptr[event + 1] += indptr[event]
    places = indptr[:-1].copy()
    subscriptions = np.empty(indptr[events], np.uint32)
    for number in range(numbers.size):
        ordinal = -1
        for match in range(starts[number], starts[number + 1]):
            ordinal += (int(high[match]) << 8) + int(low[match]) + 1
            if ordinal < events:
                subscriptions[places[ordinal]] = numbers[number]
                places[ordinal] += 1
    return indptr, subscriptions
