"""Compiled functions that convert lists of matches to the match log's format (and back: see `match_lists`).

An ordinal's gap is the number of ordinals between it and its predecessor in the list (-1 before the first);
gaps are less than 65,536. Their low bytes are noise and stored as they are. A high byte is nearly always
small: it takes two bits; if these are 3, its excess over 3 is in a separate list. That is as compact as zstd
on the high bytes, and several times as fast.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.compiled import compiled


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
