"""Pairs in any order are grouped to the lists that a naive grouping makes."""

from __future__ import annotations

from collections import defaultdict
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.doses import drawn

from fieldfare.matching.grouping import (
    candidate_slots,
    group_by_event,
    group_by_subscription,
    single_pairs,
    without_slots,
)
from fieldfare.matching.pairs import MatchLists, Pairs

from matching_support import pairs_of, run_of  # isort: skip


def random_pairs(
    rng: np.random.Generator, seed: int, size: int, first_event: int, numbers: int, highest: int
) -> Pairs:
    """Pairs of up to `size` events, as tiles write them: single or in runs, some duplicate."""
    number = np.array(Random(seed).sample(range(highest), numbers)).astype(np.uint32)
    runs = []
    for _ in range(int(rng.integers(0, 12))):
        events = np.unique(rng.integers(0, size, int(rng.integers(1, 2 * size + 2))))
        place = int(rng.integers(numbers))
        one_by_one = np.stack([events, np.full(len(events), place)], axis=1).astype(np.int32)
        runs.append(run_of(events, place) if rng.random() < 0.5 else one_by_one)
    pairs = np.concatenate([np.zeros((0, 2), np.int32), *runs])
    return Pairs(pairs, first_event, number, int(number.min()), int(number.max()))


def naive(found: list[Pairs]) -> dict[int, list[int]]:
    """The events of every subscription."""
    lists: dict[int, set[int]] = defaultdict(set)
    for part in found:
        for event, place in pairs_of(part.pairs):
            event += part.first_event
            lists[int(part.number[place])].add(int(part.places[event]) if len(part.places) else event)
    return {number: sorted(lists[number]) for number in sorted(lists)}


def as_dictionary(lists: MatchLists) -> dict[int, list[int]]:
    bounds = lists.starts.tolist()
    return {
        number: lists.ordinals[bounds[i] : bounds[i + 1]].tolist()
        for i, number in enumerate(lists.numbers.tolist())
    }


@pytest.mark.parametrize("highest", [40, 4_000_000_000])
@settings(max_examples=drawn(60))
@given(st.integers(0, 2**32))
def test_both_groupings_agree_with_a_naive_grouping(highest: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, parts = int(rng.choice([1, 7, 70, 400])), int(rng.integers(0, 4))
    found = [random_pairs(rng, seed, size, i * size, int(rng.integers(1, 30)), highest) for i in range(parts)]
    found += [part for part in found if rng.random() < 0.3]
    everywhere = rng.permutation(size * parts)
    found = [part.moved(everywhere) if rng.random() < 0.3 else part for part in found]
    found = [part.behind(size) if rng.random() < 0.3 else part for part in found]
    expected = naive(found)
    lists = group_by_subscription(found)
    assert as_dictionary(lists) == expected
    assert lists.numbers.dtype == np.uint32 and lists.ordinals.dtype == np.uint16
    indptr, numbers = group_by_event(size * (parts + 1), found)
    by_event = [numbers[indptr[e] : indptr[e + 1]].tolist() for e in range(size * (parts + 1))]
    assert by_event == [[n for n in expected if e in expected[n]] for e in range(size * (parts + 1))]


def test_the_last_of_65536_events_has_its_place() -> None:
    pairs = np.array([[65_535, 0], [0, 0], [65_535, 0]], np.int32)
    lists = group_by_subscription([Pairs(pairs, 0, np.array([9], np.uint32), 9, 9)])
    assert as_dictionary(lists) == {9: [0, 65_535]}


@settings(max_examples=drawn(60))
@given(st.integers(0, 2**32))
def test_runs_become_single_pairs(seed: int) -> None:
    pairs = random_pairs(np.random.default_rng(seed), seed, 50, 0, 20, 40).pairs
    assert list(map(tuple, single_pairs(pairs).tolist())) == pairs_of(pairs)


@settings(max_examples=drawn(60))
@given(st.integers(0, 2**32))
def test_candidates_between_runs_are_found_and_dropped_and_tile_ends_follow(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tiles = [random_pairs(rng, seed, 50, 0, 20, 40) for _ in range(4)]
    expected, gone, before, start = [], [], 0, 0
    for tile in tiles:
        slots = place_of_slots(tile.pairs)
        candidates = [i for i in slots if tile.pairs[i, 0] >= 0 and rng.random() < 0.5]
        tile.pairs[candidates, 1] = ~tile.pairs[candidates, 1]
        dropped = [i for i in candidates if rng.random() < 0.5]
        expected.append(pairs_of(np.delete(tile.pairs, dropped, axis=0)))
        gone += [start + i for i in dropped]
        before += len(candidates)
        start += len(tile.pairs)
    pairs = np.concatenate([tile.pairs for tile in tiles])
    ends = np.cumsum([len(tile.pairs) for tile in tiles])
    for at_once in (1, 7, len(pairs) + 1):
        some = list(candidate_slots(pairs, at_once))
        assert max(map(len, some), default=0) <= at_once
        found = np.concatenate([np.zeros(0, np.int64), *some])
        assert len(found) == before and (pairs[found, 1] < 0).all() and set(gone) <= set(found.tolist())
    kept = without_slots(tiles[0]._replace(pairs=pairs, tile_ends=ends), np.array(gone, np.int64))
    assert [pairs_of(tile) for tile in np.split(kept.pairs, kept.tile_ends[:-1])] == expected
    assert kept.tile_ends[-1] == len(kept.pairs) == len(pairs) - len(gone)


def place_of_slots(pairs: NDArray[np.int32]) -> list[int]:
    """The starts of slots that are pairs, or runs."""
    places, i = [], 0
    while i < len(pairs):
        places.append(i)
        i += 1 + (max(-int(pairs[i, 0]), 0) + 3) // 4
    return places


@settings(max_examples=drawn(60))
@given(st.integers(0, 2**32))
def test_matches_of_one_event_are_sorted_and_distinct(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = [random_pairs(rng, seed, 1, 0, int(rng.integers(1, 200)), 4_000_000_000)]
    if rng.random() < 0.5:  # rows of one subscription may all match, and there may be very many
        places = rng.integers(0, len(found[0].number), int(rng.integers(0, 3_000))).astype(np.int32)
        pairs = np.concatenate([found[0].pairs, np.stack([np.zeros_like(places), places], axis=1)])
        found = [found[0]._replace(pairs=pairs)]
    indptr, numbers = group_by_event(1, found)
    assert (indptr.tolist(), numbers.tolist()) == ([0, len(naive(found))], list(naive(found)))
    assert (indptr.dtype, numbers.dtype) == (np.int64, np.uint32)
