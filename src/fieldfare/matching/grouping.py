"""Pairs of an event and a subscription, found in any order, as a sorted list of numbers for each event.

Pairs are first dealt out to groups of neighbouring events, each small enough for the second cache, as keys:
the event above the number. A group's keys are sorted digit by digit. Large arrays are made by numpy, which
asks for large pages; a compiled loop's own would cost a page fault for every 512 pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.compiled import compiled

GROUP_BITS = 15
"""A group has about two to this power of pairs."""
GROUPS_BITS_MAX = 11
DIGIT_BITS = 11
FEW = 48
"""So few keys are sorted by insertion."""


class Pairs(NamedTuple):
    """Matches of some events, in any order."""

    pairs: NDArray[np.int32]
    """[k, 2]: an event, counted from `first_event`, and the place of a subscription."""
    first_event: int
    number: NDArray[np.uint32]
    """The number of each subscription."""
    largest: int
    """The largest of these."""


def group_by_event(size: int, found: Sequence[Pairs]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """CSR of the matches of `size` events: numbers ascending within an event, none twice."""
    total = sum(len(part.pairs) for part in found)
    number_bits = max((part.largest for part in found), default=0).bit_length()
    groups_bits = min(GROUPS_BITS_MAX, size.bit_length(), max(0, total.bit_length() - GROUP_BITS))
    event_bits = size.bit_length() - groups_bits
    ends = np.zeros((size >> event_bits) + 2, np.int64)
    for part in found:
        count_pairs(part.pairs, part.first_event, event_bits, ends)
    np.cumsum(ends, out=ends)
    keys: Any = np.empty(total, np.uint32 if event_bits + number_bits <= 32 else np.uint64)
    for part in found:
        deal_out(part.pairs, part.first_event, part.number, event_bits, number_bits, ends, keys)
    indptr = np.zeros(size + 1, np.int64)
    numbers = keys if keys.dtype == np.uint32 else np.empty(total, np.uint32)
    kept = write_lists(keys, ends, event_bits, number_bits, indptr, numbers)
    return indptr, numbers[:kept]


@compiled
def count_pairs(pairs: Any, first_event: int, event_bits: int, ends: Any) -> None:
    """Add each group's pairs to the place after its own."""
    for i in range(len(pairs)):
        ends[((pairs[i, 0] + first_event) >> event_bits) + 1] += 1


@compiled
def deal_out(
    pairs: Any, first_event: int, number: Any, event_bits: int, number_bits: int, ends: Any, keys: Any
) -> None:
    """Write each pair's key in its group; `ends` has where the groups start, and then where they end."""
    mask = (1 << event_bits) - 1
    for i in range(len(pairs)):
        event = np.int64(pairs[i, 0]) + first_event
        place = ends[event >> event_bits]
        ends[event >> event_bits] = place + 1
        keys[place] = ((event & mask) << number_bits) | np.int64(number[pairs[i, 1]])


@compiled
def write_lists(keys: Any, ends: Any, event_bits: int, number_bits: int, indptr: Any, numbers: Any) -> Any:
    """Sort each group, and write its numbers, each once for an event; return how many these are.

    `numbers` may be `keys` itself: no key is overwritten before it is read.
    """
    longest: Any = ends[0]
    for g in range(1, len(ends)):
        longest = max(longest, ends[g] - ends[g - 1])
    other = np.empty(longest, keys.dtype)
    places = np.empty(1 << DIGIT_BITS, np.int64)
    number_mask = (1 << number_bits) - 1
    kept: Any = np.int64(0)
    event: Any = np.int64(0)
    start: Any = np.int64(0)
    for g in range(len(ends)):
        size = ends[g] - start
        values = _sort(keys[start : ends[g]], other[:size], places, event_bits + number_bits)
        start = ends[g]
        before: Any = np.int64(-1)
        for i in range(size):
            key = np.int64(values[i])
            if key == before:
                continue
            before = key
            owner = (g << event_bits) + (key >> number_bits)
            while event < owner:
                event += 1
                indptr[event] = kept
            numbers[kept] = key & number_mask
            kept += 1
    while event < len(indptr) - 1:
        event += 1
        indptr[event] = kept
    return kept


@compiled
def _sort(values: Any, other: Any, places: Any, bits: int) -> Any:
    """Sort values of so many bits; they end up in the one array or the other."""
    if len(values) <= FEW:
        for i in range(1, len(values)):
            value = values[i]
            j = i - 1
            while j >= 0 and values[j] > value:
                values[j + 1] = values[j]
                j -= 1
            values[j + 1] = value
        return values
    passes = (bits + DIGIT_BITS - 1) // DIGIT_BITS
    digit_bits = (bits + passes - 1) // passes
    mask = (1 << digit_bits) - 1
    for shift in range(0, bits, digit_bits):
        places[:] = 0
        for i in range(len(values)):
            places[(np.int64(values[i]) >> shift) & mask] += 1
        total: Any = np.int64(0)
        for d in range(mask + 1):
            total, places[d] = total + places[d], total
        for i in range(len(values)):
            digit = (np.int64(values[i]) >> shift) & mask
            other[places[digit]] = values[i]
            places[digit] += 1
        values, other = other, values
    return values
