"""Turning matches by event into matches by subscription and back: arrays in, arrays out.

Matches by event are CSR: ``indptr``, ``subscriptions``. By subscription they are ``numbers`` (ascending),
``starts`` (where each number's matches start; one more entry for the end) and the ordinals of the events,
ascending for each number. An ordinal's gap is what lies between it and the one before (or -1); gaps are
below 65,536 and stored as two planes of bytes: the high one is nearly always small and compresses well,
the low one is noise and is left alone, which takes less than any mixture of the two.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

BySubscription = tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.uint16]]

_COUNTERS_A_MATCH = 16
"""Counting sort is used while it needs at most so many counters a match; beyond, plain sorting wins."""


def by_subscription(indptr: NDArray[np.int64], subscriptions: NDArray[np.uint32]) -> BySubscription:
    """Matches by event (of at most 65,536 events) as numbers, starts and ordinals."""
    if not subscriptions.size:
        return np.zeros(0, np.uint32), np.zeros(1, np.int64), np.zeros(0, np.uint16)
    lowest = int(subscriptions.min())
    span = int(subscriptions.max()) - lowest + 1
    if span <= _COUNTERS_A_MATCH * subscriptions.size:
        ends, ordinals = _count_and_place(indptr, subscriptions, lowest, span)
        present = np.flatnonzero(np.diff(ends, prepend=0))
        numbers = (present + lowest).astype(np.uint32)
        return numbers, np.concatenate((np.zeros(1, np.int64), ends[present])), ordinals
    events = np.repeat(np.arange(indptr.size - 1, dtype=np.uint64), np.diff(indptr))
    keys = np.sort(subscriptions.astype(np.uint64) << np.uint64(16) | events)
    in_order = (keys >> np.uint64(16)).astype(np.uint32)
    first = np.flatnonzero(np.diff(in_order, prepend=np.uint32(in_order[0] ^ np.uint32(1))))
    return in_order[first], np.append(first, keys.size).astype(np.int64), keys.astype(np.uint16)


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _count_and_place(
    indptr: NDArray[np.int64], subscriptions: NDArray[np.uint32], lowest: int, span: int
) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """Counting sort. Returns for each number from the lowest where its matches end, and the ordinals."""
    places = np.zeros(span, np.int64)
    for match in range(subscriptions.size):
        places[int(subscriptions[match]) - lowest] += 1
    total = 0
    for number in range(span):
        count = places[number]
        places[number] = total
        total += count
    ordinals = np.empty(subscriptions.size, np.uint16)
    for event in range(indptr.size - 1):
        for match in range(indptr[event], indptr[event + 1]):
            number = int(subscriptions[match]) - lowest
            ordinals[places[number]] = event
            places[number] += 1
    return places, ordinals


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def gap_planes(
    starts: NDArray[np.int64], ordinals: NDArray[np.uint16]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], bool]:
    """The low and high bytes of all gaps, and whether the ordinals of every number ascend."""
    low = np.empty(ordinals.size, np.uint8)
    high = np.empty(ordinals.size, np.uint8)
    ascending = True
    for number in range(starts.size - 1):
        before = -1
        for match in range(starts[number], starts[number + 1]):
            ordinal = int(ordinals[match])
            gap = ordinal - before - 1
            ascending &= gap >= 0
            low[match] = gap & 255
            high[match] = (gap >> 8) & 255
            before = ordinal
    return low, high, ascending


def ordinals_of(low: NDArray[np.uint8], high: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The ordinals of one number from the planes of its gaps."""
    steps = low.astype(np.int64)
    steps += high.astype(np.int64) << 8
    steps += 1
    ordinals: NDArray[np.int64] = np.cumsum(steps)
    ordinals -= 1
    return ordinals


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
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
