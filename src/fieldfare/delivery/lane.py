"""One partition of a subscription's delivery: a machine without I/O.

    acked │ given: leased, acked or to be given again │ fed, not given yet │ not read yet
          ^ cursor                                                         ^ read_to

What is acked beyond the cursor is remembered as runs. `Delivery` has the leases, for all partitions.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from fieldfare.delivery.given import Given
from fieldfare.delivery.keys import NO_KEYS

SPREAD_MAX = 50_000
"""Matches of a partition that may be given while an older one is not acked: a bound on what is remembered."""

EARLY_MAX = 50_000
"""Runs that are known to be acked of matches that were not read since a restart."""

Run = tuple[int, int]
"""The first and the last key of neighbours."""


class TooManyEarlyAcks(Exception):
    """More acks than can be remembered name what was not read since a restart.

    None of them counts in the partition that has so many.
    """


def united(runs: Iterable[Run]) -> list[Run]:
    """Runs in order, none within another: one that was given may reach over one from before a restart."""
    found: list[Run] = []
    for first, last in sorted(runs):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


class Lane:
    """See above.

    Parameters
    ----------
    cursor
        The key that everything before is acked (or is older than the subscription).
    acked
        Runs of keys at or beyond the cursor of which every match was acked.
    given_to
        The key that everything before was given, once at least, before this lane was made.

    Attributes
    ----------
    cursor_key, read_to
        Where the cursor stands, and up to where matches were fed.
    given
        What was given and is not behind the cursor.
    known_to
        Up to where matches were given before this lane was made.
    """

    __slots__ = ("_early", "_fed", "_fed_at", "cursor_key", "given", "known_to", "read_to")

    def __init__(self, cursor: int, acked: Iterable[Run] = (), given_to: int = 0) -> None:
        self.cursor_key = self.read_to = cursor
        self.known_to = max(cursor, given_to)
        self.given = Given()
        self._early: list[Run] = united(acked)
        self._fed = NO_KEYS
        self._fed_at = 0

    @property
    def wants_feed(self) -> bool:
        """Whether nothing new can be given until more of the match log is read."""
        return self._fed_at >= len(self._fed)

    @property
    def can_give(self) -> bool:
        """Whether `give` would give something."""
        return self._fed_at < len(self._fed) and len(self.given) < SPREAD_MAX

    @property
    def given_to(self) -> int:
        """What is not acked and lies before it was given, once at least."""
        return max(self.cursor_key, self.known_to, self.given.end)

    @property
    def next_key(self) -> int:
        """No new match before it is to be given."""
        return self.read_to if self.wants_feed else int(self._fed[self._fed_at])

    def runs(self) -> tuple[Run, ...]:
        """What is acked beyond the cursor, in no order."""
        return (*self._early, *self.given.runs())

    def feed(self, keys: NDArray[np.int64], read_to: int) -> bool:
        """Take in the matches up to ``read_to``: ascending keys; those read before are left out.

        The array is kept.

        Returns
        -------
        bool
            Whether the cursor has moved, as `give` and `advance` say too.
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
        """Add new matches to others, in order, up to so many in all."""
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
        # The cursor stands at the first that is given all the same, unless that was acked early.
        return bool(self._early) and self.advance()

    def ack_up_to(self, key: int) -> tuple[list[int], int]:
        """Settle every match up to and including a key: those that were open, and how many were not given."""
        open_keys = self.given.ack_up_to(key)
        before = self._fed_at
        self._fed_at += int(np.searchsorted(self._fed[before:], key, side="right"))
        self.read_to = max(self.read_to, key + 1)
        return open_keys, self._fed_at - before

    def ack_early(self, keys: Sequence[int]) -> int:
        """Remember acks of what was not given since the last restart, and may well have been before it.

        How many of them are new; TooManyEarlyAcks when there is no room.
        """
        beyond = self.next_key
        fresh = sorted({key for key in keys if key >= beyond and not self._is_early(key)})
        # What was read is known: what is not among the matches there is none, and is not remembered.
        fresh = [key for key in fresh if key >= self.read_to or self._is_fed(key)]
        if len(self._early) + len(fresh) > EARLY_MAX:
            raise TooManyEarlyAcks
        if fresh:
            self._early = sorted([*self._early, *((key, key) for key in fresh)])
        return len(fresh)

    def owes(self, key: int) -> bool:
        """Whether a match is given and not acked, or still to be given."""
        return self.given.is_open(key) or (key >= self.next_key and not self._is_early(key))

    def forget_unread(self) -> None:
        """Let go of matches read but not given: nobody is there to take them; they are read again later."""
        self.read_to = self.next_key
        self._fed, self._fed_at = NO_KEYS, 0

    def advance(self) -> bool:
        """Move the cursor over what is acked and over what did not match."""
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
