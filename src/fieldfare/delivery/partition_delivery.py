"""One partition of a subscription's delivery: a state machine without I/O.

    acked │ delivered: leased, acked or to be redelivered │ fed, not delivered yet │ not read yet
          ^ cursor                                                                 ^ read_to

Acks beyond the cursor are stored as runs of keys. `Delivery` holds the leases of all partitions.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from fieldfare.delivery.in_flight_window import InFlightWindow
from fieldfare.delivery.keys import NO_KEYS

SPREAD_MAX = 50_000
"""Maximum in-flight window of a partition, in matches; at the bound, delivery waits for the oldest ack."""

EARLY_MAX = 50_000
"""Maximum runs of acks for matches not read since a restart; beyond it, acks raise `TooManyEarlyAcks`."""

Run = tuple[int, int]
"""The first and the last key of neighboring matches."""


class TooManyEarlyAcks(Exception):
    """More than `EARLY_MAX` acks name matches that were not read since a restart.

    In the partition concerned, none of the given acks counts.
    """


def united(runs: Iterable[Run]) -> list[Run]:
    """Return the runs sorted and merged: a run of this process may overlap one from before a restart."""
    found: list[Run] = []
    for first, last in sorted(runs):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


class PartitionDelivery:
    """The delivery state of one partition of a subscription.

    Parameters
    ----------
    cursor
        The cursor's key: every match before it is acked (or is older than the subscription).
    acked
        Runs of keys at or beyond the cursor of which every match was acked.
    given_to
        A key: every match before it was delivered at least once before this object was created.

    Attributes
    ----------
    cursor_key, read_to
        The cursor's key, and the key up to which matches were fed.
    given
        The in-flight window: delivered matches from the cursor on.
    known_to
        The key up to which matches were delivered before this object was created.
    """

    __slots__ = ("_early", "_fed", "_fed_at", "cursor_key", "given", "known_to", "read_to")

    def __init__(self, cursor: int, acked: Iterable[Run] = (), given_to: int = 0) -> None:
        self.cursor_key = self.read_to = cursor
        self.known_to = max(cursor, given_to)
        self.given = InFlightWindow()
        self._early: list[Run] = united(acked)
        self._fed = NO_KEYS
        self._fed_at = 0

    @property
    def wants_feed(self) -> bool:
        """Whether no new match can be delivered until more of the match log is read."""
        return self._fed_at >= len(self._fed)

    @property
    def can_give(self) -> bool:
        """Whether `give` would deliver a match."""
        return self._fed_at < len(self._fed) and len(self.given) < SPREAD_MAX

    @property
    def given_to(self) -> int:
        """A key: every match before it that is not acked was delivered at least once."""
        return max(self.cursor_key, self.known_to, self.given.end)

    @property
    def next_key(self) -> int:
        """The key of the next new match, or a lower bound for it: `read_to`, if none is fed."""
        return self.read_to if self.wants_feed else int(self._fed[self._fed_at])

    def runs(self) -> tuple[Run, ...]:
        """Return the runs acked beyond the cursor, in no order."""
        return (*self._early, *self.given.runs())

    def feed(self, keys: NDArray[np.int64], read_to: int) -> bool:
        """Add the matches up to ``read_to``: ascending keys; keys read before are skipped.

        The array is kept, not copied.

        Returns
        -------
        bool
            Whether the cursor has moved, as for `give` and `advance`.
        """
        if len(keys) and keys[0] < self.read_to:
            keys = keys[np.searchsorted(keys, self.read_to) :]
        if len(keys):
            self._fed = keys if self.wants_feed else np.concatenate((self._fed[self._fed_at :], keys))
            self._fed_at = 0
        if read_to > self.read_to:
            self.read_to = read_to
        return self.advance()

    def give(self, keys: list[int], room: int) -> bool:
        """Append new matches to ``keys`` up to ``room`` in all, in order; return whether the cursor moved."""
        while len(keys) < room and self._fed_at < len(self._fed):
            count = min(room - len(keys), SPREAD_MAX - len(self.given))
            if count <= 0:
                break
            fresh: list[int] = self._fed[self._fed_at : self._fed_at + count].tolist()
            self._fed_at += len(fresh)
            if self._early:  # Acked before a restart, or before it was read.
                fresh = [key for key in fresh if not self._is_early(key)]
            self.given.extend(fresh)
            keys += fresh
        # The cursor stands at the first delivered match already, unless that match was acked early.
        return bool(self._early) and self.advance()

    def ack_up_to(self, key: int) -> tuple[list[int], int]:
        """Settle all matches up to and including a key; return the open ones and the count of undelivered."""
        open_keys = self.given.ack_up_to(key)
        before = self._fed_at
        self._fed_at += int(np.searchsorted(self._fed[before:], key, side="right"))
        self.read_to = max(self.read_to, key + 1)
        return open_keys, self._fed_at - before

    def ack_early(self, keys: Sequence[int]) -> int:
        """Store acks of matches not delivered since the last restart: they may have been before it.

        Returns the number of new acks; TooManyEarlyAcks if they exceed `EARLY_MAX`.
        """
        beyond = self.next_key
        fresh = sorted({key for key in keys if key >= beyond and not self._is_early(key)})
        # Up to read_to all matches are known: a key that is not among them is no match, and is dropped.
        fresh = [key for key in fresh if key >= self.read_to or self._is_fed(key)]
        if len(self._early) + len(fresh) > EARLY_MAX:
            raise TooManyEarlyAcks
        if fresh:
            self._early = sorted([*self._early, *((key, key) for key in fresh)])
        return len(fresh)

    def owes(self, key: int) -> bool:
        """Return whether a match is in flight and not acked, or still to be delivered."""
        return self.given.is_open(key) or (key >= self.next_key and not self._is_early(key))

    def are_owed(self, keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of some matches (int64[n], ascending keys) are still to be delivered: bool[n]."""
        owed: NDArray[np.bool_] = keys >= self.next_key
        if self._early and len(keys):
            begin = bisect_left(self._early, int(keys[0]), key=itemgetter(1))
            end = bisect_right(self._early, int(keys[-1]), key=itemgetter(0))
            runs = np.array(self._early[begin:end], np.int64).reshape(-1, 2)
            at = np.searchsorted(runs[:, 0], keys, side="right") - 1
            owed[at >= 0] &= runs[at[at >= 0], 1] < keys[at >= 0]
        return owed

    @property
    def owed_count(self) -> int:
        """The number of matches read that are not acked."""
        return self.given.open_count + int(np.count_nonzero(self.are_owed(self._fed[self._fed_at :])))

    def forget_unread(self) -> None:
        """Drop matches read but not delivered, as there is no consumer; they are read again later."""
        self.read_to = self.next_key
        self._fed, self._fed_at = NO_KEYS, 0

    def advance(self) -> bool:
        """Move the cursor over acked matches and non-matching events; return whether it moved."""
        fed, size = self._fed, len(self._fed)
        while self._early and self._fed_at < size and self._is_early(key := int(fed[self._fed_at])):
            last = self._early[bisect_right(self._early, (key, math.inf)) - 1][1]
            self._fed_at += int(np.searchsorted(fed[self._fed_at :], last, side="right"))
        cursor_key = self.given.front
        if self._fed_at < size:
            if cursor_key is None:
                cursor_key = int(fed[self._fed_at])
        else:
            if size:
                self._fed, self._fed_at = NO_KEYS, 0
            if cursor_key is None:
                cursor_key = self.read_to
        if cursor_key == self.cursor_key:
            return False
        self.cursor_key = cursor_key
        if self._early and self._early[0][1] < cursor_key:
            del self._early[: bisect_left(self._early, cursor_key, key=itemgetter(1))]
        return True

    def _is_fed(self, key: int) -> bool:
        at = int(np.searchsorted(self._fed, key))
        return self._fed_at <= at < len(self._fed) and int(self._fed[at]) == key

    def _is_early(self, key: int) -> bool:
        at = bisect_right(self._early, (key, math.inf)) - 1
        return at >= 0 and self._early[at][1] >= key
