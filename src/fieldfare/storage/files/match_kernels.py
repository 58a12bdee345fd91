"""Lists of matches as the match log stores them, and back: arrays in, arrays out.

An ordinal's gap is what lies between it and the one before in its list (or -1); gaps are below 65,536. Their
low bytes are noise and are left alone. A high byte is nearly always small: it takes two bits, and where these
say three, what it has beyond three is in a list of its own. That is as small as what zstd makes of the high
bytes, and several times as fast.
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
    """The low and high bytes of all gaps, and whether the ordinals of every number ascend."""
    low = np.empty(ordinals.size, np.uint8)
    high = np.empty(ordinals.size, np.uint8)
    descents: Any = 0
    for number in range(starts.size - 1):
        first, end = starts[number], starts[number + 1]
        low[first], high[first] = ordinals[first] & 255, ordinals[first] >> 8
        before, after = ordinals[first : end - 1], ordinals[first + 1 : end]  # so that LLVM sees one index
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
    """High bytes as two bits each, four in a byte, and what those that have more than two bits have more."""
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
    """Write the high bytes again; returns how many of `more` they took, or -1 if there are too few."""
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


def ordinals_of(low: NDArray[np.uint8], high: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The ordinals of one number from the planes of its gaps."""
    steps = low.astype(np.int64)
    steps += high.astype(np.int64) << 8
    steps += 1
    ordinals: NDArray[np.int64] = np.cumsum(steps)
    ordinals -= 1
    return ordinals


@compiled
def by_event(
    events: int,
    numbers: NDArray[np.uint32],
    starts: NDArray[np.int64],
    low: NDArray[np.uint8],
    high: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Matches by event again, numbers ascending within an event. An ordinal too large is left out."""
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
