"""Grouping of (event, subscription) pairs, found in any order, into sorted lists by event or by subscription.

Pairs are stored in slots of eight bytes. A slot is either an event and a subscription, or the head of a
*run*: minus n and a subscription, followed by the n matching events in the next slots, four per slot, 16 bits
each. A run takes a quarter of the memory where a subscription matches many events, and is counted and copied
at once.

By event: pairs are first partitioned, as keys (event above number), into groups of adjacent events that each
fit into the second-level cache. A group's keys are radix-sorted.

By subscription: counting sort. The subscriptions of a tile are few enough for the ends of their lists to stay
in the second-level cache, so the same tiles of all chunks of events are processed together. Lists to which
several pairs of a tile were written are sorted and deduplicated afterwards (`settle_lists`).

Large arrays are allocated by numpy, which requests huge pages; allocation in a compiled loop would cost a
page fault per 512 pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.compiled import compiled, lowest_bit
from fieldfare.matching.pairs import LIST_EVENTS_MAX, NO_MATCHES, MatchLists, Pairs, keys_of, lists_of_keys

GROUP_BITS = 15
"""Base-2 logarithm of the approximate number of pairs per group."""
GROUPS_BITS_MAX = 11
DIGIT_BITS = 11
FEW = 48
"""Maximum keys sorted by insertion; more are radix-sorted."""

COUNTERS_A_MATCH = 16
"""Maximum counters per match for counting sort; with more, comparison sorting is faster."""

BAND_PAIRS = 1 << 16
"""Approximate pairs per group of tiles written to lists together: the output stays in the second-level
cache."""


@dataclass(frozen=True, slots=True)
class Matches:
    """The matches of n events in CSR form: event e matches ``subscriptions[indptr[e]:indptr[e + 1]]``.

    indptr is int64[n + 1]; subscriptions is uint32[m], strictly ascending within an event.
    """

    indptr: NDArray[np.int64]
    subscriptions: NDArray[np.uint32]

    @classmethod
    def from_pairs(cls, size: int, collected: Iterable[Pairs]) -> Self:
        """Merge the matches of `size` events found by several parts."""
        return cls(*group_by_event(size, list(collected)))

    def of(self, event: int) -> NDArray[np.uint32]:
        """Return the numbers of the subscriptions that one event matches."""
        return self.subscriptions[self.indptr[event] : self.indptr[event + 1]]

    def lists(self) -> list[list[int]]:
        """Return the numbers of each event's subscriptions as Python lists."""
        return [self.of(event).tolist() for event in range(len(self.indptr) - 1)]


def group_by_event(size: int, found: Sequence[Pairs]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return the matches of `size` events in CSR form, the numbers strictly ascending within an event."""
    if size == 1 and len(found) == 1:
        return _group_one_event(found[0])
    total = sum(int(count_matches(part.pairs)) for part in found)
    number_bits = max((part.largest for part in found), default=0).bit_length()
    groups_bits = min(GROUPS_BITS_MAX, size.bit_length(), max(0, total.bit_length() - GROUP_BITS))
    event_bits = size.bit_length() - groups_bits
    ends = np.zeros((size >> event_bits) + 2, np.int64)
    for part in found:
        count_pairs(part.pairs, part.first_event, part.places, event_bits, ends)
    np.cumsum(ends, out=ends)
    keys: Any = np.empty(total, np.uint32 if event_bits + number_bits <= 32 else np.uint64)
    for part in found:
        deal_out(part.pairs, part.first_event, part.places, part.number, event_bits, number_bits, ends, keys)
    indptr = np.zeros(size + 1, np.int64)
    numbers = keys if keys.dtype == np.uint32 else np.empty(total, np.uint32)
    kept = write_lists(keys, ends, event_bits, number_bits, indptr, numbers)
    return indptr, numbers[:kept]


def _group_one_event(found: Pairs) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Like `group_by_event`, for one event, with a single kernel: several kernel calls would dominate the
    time."""
    numbers = np.empty(len(found.pairs), np.uint32)
    kept = write_one_event(found.pairs, found.number, numbers)
    return np.array([0, kept]), numbers[:kept]


def group_by_subscription(found: Sequence[Pairs]) -> MatchLists:
    """Return the lists of events (at most 65,536) of every matching subscription."""
    found = [part for part in found if len(part.pairs)]
    slots = sum(len(part.pairs) for part in found)
    if not slots:
        return NO_MATCHES
    lowest = min(part.smallest for part in found)
    span = max(part.largest for part in found) - lowest + 1
    if span > COUNTERS_A_MATCH * slots:
        return _lists_by_sorting(found)
    ends = np.zeros(span + 1, np.int64)
    for part in found:
        count_numbers(part.pairs, part.number, lowest, ends)
    np.cumsum(ends, out=ends)
    ordinals = np.empty(int(ends[-1]), np.uint16)
    for pairs, part in _bands(found):
        place_ordinals(pairs, part.first_event, part.places, part.number, lowest, ends, ordinals)
    present = np.flatnonzero(np.diff(ends[:-1], prepend=0))
    starts = np.concatenate((np.zeros(1, np.int64), ends[present]))
    seen, words = np.zeros(LIST_EVENTS_MAX >> 6, np.uint64), np.zeros(LIST_EVENTS_MAX >> 12, np.uint64)
    kept = settle_lists(starts, ordinals, seen, words)
    return MatchLists((present + lowest).astype(np.uint32), starts, ordinals[:kept])


def _bands(found: Sequence[Pairs]) -> Iterator[tuple[NDArray[np.int32], Pairs]]:
    """Yield pairs with their source, tile by tile where adjacent chunks of events share their tiles."""
    for _, parts in groupby(found, key=lambda part: (id(part.number), len(part.tile_ends))):
        chunks = list(parts)
        if not len(chunks[0].tile_ends):
            yield from ((part.pairs, part) for part in chunks)
            continue
        total = np.sum([part.tile_ends for part in chunks], axis=0)
        wanted = np.arange(BAND_PAIRS, int(total[-1]), BAND_PAIRS)
        last_tiles = np.unique(np.append(np.searchsorted(total, wanted), len(total) - 1))
        bounds = [np.concatenate(([0], part.tile_ends[last_tiles])) for part in chunks]
        for i in range(len(last_tiles)):
            for part, bound in zip(chunks, bounds, strict=True):
                yield part.pairs[bound[i] : bound[i + 1]], part


def _lists_by_sorting(found: Sequence[Pairs]) -> MatchLists:
    gathered = []
    for part in found:
        pairs = single_pairs(part.pairs)
        events: NDArray[Any] = pairs[:, 0] + part.first_event
        events = part.places[events] if len(part.places) else events
        gathered.append(keys_of(part.number[pairs[:, 1]], events))
    return lists_of_keys(np.concatenate(gathered))


def single_pairs(pairs: NDArray[np.int32]) -> NDArray[np.int32]:
    """Expand runs: return the pairs with one slot per match."""
    if not (pairs[:, 0] < 0).any():
        return pairs
    single = np.empty((count_matches(pairs), 2), np.int32)
    write_single(pairs, single)
    return single


def candidate_slots(pairs: NDArray[np.int32], at_once: int) -> Iterator[NDArray[np.int64]]:
    """Yield the indices of candidate slots (``library.Candidates``), at most `at_once` at a time; runs are
    never candidates."""
    start = 0
    while start < len(pairs):
        places = np.empty(min(at_once, len(pairs) - start), np.int64)
        count, start = find_candidates(pairs, start, places)
        yield places[:count]


def without_slots(found: Pairs, removed: NDArray[np.int64]) -> Pairs:
    """Remove slots that are not runs, in place.

    Parameters
    ----------
    removed
        The indices of the slots, ascending.
    """
    if not len(removed):
        return found
    drop_slots(found.pairs, removed)
    ends = found.tile_ends - np.searchsorted(removed, found.tile_ends)
    return found._replace(pairs=found.pairs[: len(found.pairs) - len(removed)], tile_ends=ends)


def repeated_slots(pairs: NDArray[np.int32], several: NDArray[np.bool_], at_once: int) -> NDArray[np.int64]:
    """Return the indices of candidates that repeat an earlier one among at most `at_once` slots: int64[k],
    ascending.

    Parameters
    ----------
    several : bool[n]
        For each filter, whether an event may have it as a candidate more than once.
    """
    repeated = [np.zeros(0, np.int64)]
    for places in candidate_slots(pairs, at_once):
        places = places[several[~pairs[places, 1]]]
        keys = pairs[places].view(np.int64).reshape(-1)
        order = np.argsort(keys, kind="stable")
        again = np.diff(keys[order], prepend=0) == 0
        if len(order):
            again[0] = False
        repeated.append(np.sort(places[order[again]]))
    return np.concatenate(repeated)


@compiled
def run_slots(matches: Any) -> Any:
    """Return the number of slots that a run of `matches` matches takes after its head."""
    return (matches + 3) >> 2


@compiled
def count_matches(pairs: Any) -> Any:
    """Return the number of matches in slots."""
    count: Any = np.int64(0)
    i = 0
    while i < len(pairs):
        run: Any = -np.int64(pairs[i, 0])
        count += max(run, 1)
        i += 1 + run_slots(max(run, 0))
    return count


@compiled
def write_single(pairs: Any, single: Any) -> None:
    """Write every match as a slot of its own."""
    events = pairs.reshape(-1).view(np.uint16)
    count, i = 0, 0
    while i < len(pairs):
        run, place = -np.int64(pairs[i, 0]), pairs[i, 1]
        i += 1
        if run <= 0:
            single[count, 0], single[count, 1] = -run, place
            count += 1
            continue
        for j in range(run):
            single[count, 0], single[count, 1] = events[4 * i + j], place
            count += 1
        i += run_slots(run)


@compiled
def find_candidates(pairs: Any, start: int, places: Any) -> Any:
    """Write the indices of the next candidates while there is room; return their number and where to
    continue."""
    count, i = 0, start
    while i < len(pairs) and count < len(places):
        places[count] = i
        count += pairs[i, 1] < 0
        i += 1 + run_slots(max(-np.int64(pairs[i, 0]), 0))
    return count, i


@compiled
def drop_slots(pairs: Any, removed: Any) -> None:
    """Remove the slots at the ascending indices `removed`, moving the following ones forward."""
    kept = removed[0]
    for g in range(len(removed)):
        end = removed[g + 1] if g + 1 < len(removed) else len(pairs)
        for i in range(removed[g] + 1, end):
            pairs[kept, 0], pairs[kept, 1] = pairs[i, 0], pairs[i, 1]
            kept += 1


@compiled
def count_numbers(pairs: Any, number: Any, lowest: int, ends: Any) -> None:
    """Add the number of each subscription's matches to the element after its own."""
    i = 0
    while i < len(pairs):
        n = np.int64(number[pairs[i, 1]]) - lowest + 1
        run: Any = -np.int64(pairs[i, 0])
        ends[n] += max(run, 1)
        i += 1 + run_slots(max(run, 0))


@compiled
def place_ordinals(
    pairs: Any, first_event: int, places: Any, number: Any, lowest: int, ends: Any, ordinals: Any
) -> None:
    """Write each match's event to its list; `ends` contains the starts of the lists before, their ends
    afterwards."""
    events = pairs.reshape(-1).view(np.uint16)
    i = 0
    while i < len(pairs):
        n = np.int64(number[pairs[i, 1]]) - lowest
        run, end = -np.int64(pairs[i, 0]), ends[n]
        i += 1
        if run <= 0:
            event: Any = first_event - run
            ordinals[end] = places[event] if len(places) else event
            ends[n] = end + 1
            continue
        for j in range(run):
            event = first_event + np.int64(events[4 * i + j])
            ordinals[end + j] = places[event] if len(places) else event
        ends[n] = end + run
        i += run_slots(run)


@compiled
def settle_lists(starts: Any, ordinals: Any, seen: Any, words: Any) -> Any:
    """Sort and deduplicate lists that do not ascend, and close the gaps; return the number of remaining
    ordinals.

    `seen` has one bit per event, `words` one bit per word of `seen`; all are zero before and after.
    """
    kept: Any = np.int64(0)
    for n in range(len(starts) - 1):
        first, end = starts[n], starts[n + 1]
        starts[n] = kept
        descents = 0
        before, after = ordinals[first : end - 1], ordinals[first + 1 : end]  # lets LLVM see one index
        for i in range(len(before)):
            descents += before[i] >= after[i]
        if descents == 0:
            if kept != first:
                for i in range(first, end):
                    ordinals[kept + i - first] = ordinals[i]
            kept += end - first
            continue
        for i in range(first, end):
            word: Any = np.int64(ordinals[i]) >> 6
            seen[word] |= np.uint64(1) << np.uint64(ordinals[i] & 63)
            words[word >> 6] |= np.uint64(1) << np.uint64(word & 63)
        for group in range(len(words)):
            while words[group] != 0:
                word = (group << 6) + lowest_bit(words[group])
                words[group] &= words[group] - np.uint64(1)
                remaining = seen[word]
                seen[word] = 0
                while remaining != 0:
                    ordinals[kept] = (word << 6) + lowest_bit(remaining)
                    remaining &= remaining - np.uint64(1)
                    kept += 1
    starts[len(starts) - 1] = kept
    return kept


@compiled
def count_pairs(pairs: Any, first_event: int, places: Any, event_bits: int, ends: Any) -> None:
    """Add the number of each group's matches to the element after its own."""
    events = pairs.reshape(-1).view(np.uint16)
    i = 0
    while i < len(pairs):
        run: Any = -np.int64(pairs[i, 0])
        i += 1
        if run <= 0:
            event: Any = first_event - run
            ends[((places[event] if len(places) else event) >> event_bits) + 1] += 1
            continue
        for place in range(4 * i, 4 * i + run):
            event = first_event + np.int64(events[place])
            ends[((places[event] if len(places) else event) >> event_bits) + 1] += 1
        i += run_slots(run)


@compiled
def deal_out(
    pairs: Any,
    first_event: int,
    places: Any,
    number: Any,
    event_bits: int,
    number_bits: int,
    ends: Any,
    keys: Any,
) -> None:
    """Write each match's key to its group; `ends` contains the starts of the groups before, their ends
    afterwards."""
    events = pairs.reshape(-1).view(np.uint16)
    mask = (1 << event_bits) - 1
    i = 0
    while i < len(pairs):
        run: Any = -np.int64(pairs[i, 0])
        mine = np.int64(number[pairs[i, 1]])
        i += 1
        if run <= 0:
            event: Any = first_event - run
            event = places[event] if len(places) else event
            end = ends[event >> event_bits]
            ends[event >> event_bits] = end + 1
            keys[end] = ((event & mask) << number_bits) | mine
            continue
        for place in range(4 * i, 4 * i + run):
            event = first_event + np.int64(events[place])
            event = places[event] if len(places) else event
            end = ends[event >> event_bits]
            ends[event >> event_bits] = end + 1
            keys[end] = ((event & mask) << number_bits) | mine
        i += run_slots(run)


@compiled
def write_one_event(pairs: Any, number: Any, numbers: Any) -> Any:
    """Write the distinct numbers that one event matches, ascending; return how many."""
    i: Any = np.int64(0)
    count: Any = np.int64(0)
    while i < len(pairs):
        run: Any = -np.int64(pairs[i, 0])
        numbers[count] = number[pairs[i, 1]]
        count += 1
        i += 1 + run_slots(run) if run > 0 else 1
    numbers[:count].sort()
    kept: Any = np.int64(min(count, 1))
    for i in range(1, count):
        if numbers[i] != numbers[kept - 1]:
            numbers[kept] = numbers[i]
            kept += 1
    return kept


@compiled
def write_lists(keys: Any, ends: Any, event_bits: int, number_bits: int, indptr: Any, numbers: Any) -> Any:
    """Sort each group, and write its numbers, deduplicated per event; return how many.

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
    """Sort values of `bits` bits; return the array, `values` or `other`, that contains the result."""
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
