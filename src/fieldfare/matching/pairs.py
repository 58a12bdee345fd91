"""Matches as (event, subscription) pairs, and as lists by subscription: see `grouping`, which converts them.

Without compiled functions: who only reads matches need not load numba.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LIST_EVENTS_MAX = 65_536
"""Maximum events grouped by subscription at a time: a list stores an event in 16 bits."""
NONE_GIVEN_UP = np.zeros(0, np.uint32)
IN_NO_TILES = np.zeros(0, np.int64)
AS_COUNTED = np.zeros(0, np.int64)


class Pairs(NamedTuple):
    """Matches of a range of events, in any order."""

    pairs: NDArray[np.int32]
    """int32[k, 2]: slots, each with an event, counted from `first_event`, and the index of a subscription; or
    runs of such slots (see the module)."""
    first_event: int
    number: NDArray[np.uint32]
    """The number of each subscription."""
    smallest: int
    largest: int
    """The bounds of `number`: `smallest` and `largest`."""
    tile_ends: NDArray[np.int64] = IN_NO_TILES
    """The end of each tile's slots (``library.Candidates``); empty if unknown."""
    places: NDArray[np.int64] = AS_COUNTED
    """Maps ``first_event + pairs[i, 0]`` to the actual event; empty for the identity."""
    given_up: NDArray[np.uint32] = NONE_GIVEN_UP
    """The subscriptions for which an event exceeded the work limit, once per event."""

    def moved(self, places: NDArray[np.int64]) -> Pairs:
        """Return the pairs with event i renumbered to ``places[i]``."""
        return self._replace(places=places[self.places] if len(self.places) else places)

    def behind(self, events: int) -> Pairs:
        """Return the pairs for a batch in which `events` other events come first."""
        if len(self.places):
            return self._replace(places=self.places + events)
        return self._replace(first_event=self.first_event + events)


class MatchLists(NamedTuple):
    """Matches of at most 65,536 events, by subscription.

    Subscription ``numbers[i]`` matches the events ``ordinals[starts[i]:starts[i + 1]]``, at least one.
    """

    numbers: NDArray[np.uint32]
    """[n], ascending."""
    starts: NDArray[np.int64]
    """[n + 1]"""
    ordinals: NDArray[np.uint16]
    """[m], strictly ascending within a list."""


NO_MATCHES = MatchLists(np.zeros(0, np.uint32), np.zeros(1, np.int64), np.zeros(0, np.uint16))


def keys_of(numbers: NDArray[np.uint32], events: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a key of each match: its subscription's number times 65,536, plus its event."""
    keys = numbers.astype(np.uint64)
    keys <<= np.uint64(16)
    keys |= events.astype(np.uint64, copy=False)
    return keys


def lists_of_keys(keys: NDArray[np.uint64]) -> MatchLists:
    """Return the lists of the matches with some keys, in any order; the array is overwritten."""
    if not keys.size:
        return NO_MATCHES
    keys.sort()
    again = keys[1:] == keys[:-1]
    if again.any():  # np.unique hashes, which takes many times as long
        keys = keys[np.append(True, ~again)]
    ordinals = keys.astype(np.uint16)
    keys >>= np.uint64(16)
    first = np.append(0, np.flatnonzero(keys[1:] != keys[:-1]) + 1)
    return MatchLists(keys[first].astype(np.uint32), np.append(first, keys.size), ordinals)
