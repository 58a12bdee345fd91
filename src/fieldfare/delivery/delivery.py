"""The delivery of one subscription: a machine without I/O.

Matches are *fed* in order, *given* to sessions under a lease, and *acked*. A match that is nacked, or
whose lease runs out, or whose session ends is given *again*. The cursor stands at the first match that
is not acked; what is acked beyond it is remembered as runs::

    acked │ given: leased, acked or to be given again │ fed, not given yet │ not read yet
          ^ cursor                                                         ^ read_to

Positions are keys here (`keys`). Time is passed in as seconds of a clock that never goes back.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from fieldfare.delivery.given import Given
from fieldfare.delivery.keys import NO_KEYS, key_of, position_of
from fieldfare.storage.registry import Cursor

SPREAD_MAX = 50_000
"""Matches that may be given while an older one is not acked: a bound on what is remembered."""

EARLY_MAX = 50_000
"""Runs that are known to be acked of matches that were not read since a restart."""

SETTLED_AT_ONCE = 2_000
"""About so many matches are settled in one of the stages up to a key."""

EXPIRED_AT_ONCE = 2_000
"""About so many messages lose their lease in one step; who waits for the others waits a step longer."""

Run = tuple[int, int]
"""The first and the last key of neighbours."""


class TooManyEarlyAcks(Exception):
    """More acks than can be remembered name what was not read since a restart; none of them counts."""


class Session:
    """Somebody who takes messages: one stream, or all pulls of a subscription.

    Parameters
    ----------
    window
        How many messages the session may hold unacked.
    """

    __slots__ = ("ended", "held", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        self.held = 0
        self.ended = False
        """Whether another session has taken its place: it is to take nothing more."""

    @property
    def room(self) -> int:
        return self.window - self.held


class _Lease:
    """Messages given to one session at one time; ``open`` counts those that are not settled."""

    __slots__ = ("deadline_s", "keys", "open", "session")

    def __init__(self, session: Session, deadline_s: float, keys: Sequence[int]) -> None:
        self.session = session
        self.deadline_s = deadline_s
        self.keys = keys
        self.open = len(keys)

    def __lt__(self, other: _Lease) -> bool:
        return self.deadline_s < other.deadline_s


@dataclass(frozen=True, slots=True)
class Mark:
    """Where a delivery stood at one moment: cheap to take, made into a `Cursor` where there is time."""

    version: int
    cursor_key: int
    runs: tuple[Run, ...]

    def cursor(self) -> Cursor:
        """What must be saved so that no acked message ever comes again."""
        runs = _united(run for run in self.runs if run[1] >= self.cursor_key)
        return Cursor(
            position_of(self.cursor_key),
            tuple((position_of(first), position_of(last)) for first, last in runs),
        )


def _united(runs: Iterable[Run]) -> list[Run]:
    """Runs in order, none within another: one that was given may reach over one from before a restart."""
    united: list[Run] = []
    for first, last in sorted(runs):
        if united and first <= united[-1][1]:
            united[-1] = (united[-1][0], max(last, united[-1][1]))
        else:
            united.append((first, last))
    return united


class Delivery:
    """Where one subscription's delivery stands.

    Parameters
    ----------
    number
        The subscription's number.
    cursor
        The key that everything before is acked (or is older than the subscription).
    acked
        Runs of keys at or beyond the cursor of which every match was acked.
    """

    def __init__(self, number: int, cursor: int, acked: Iterable[Run] = ()) -> None:
        self.number = number
        self.read_to = cursor
        self.deleted = False
        self.cursor_key = cursor
        self._version = self._saved_version = 0
        self._early: list[Run] = _united(acked)
        self._given = Given()
        self._fed = NO_KEYS
        self._fed_at = 0
        self._leases: dict[int, _Lease] = {}
        self._deadlines: list[_Lease] = []
        self._settled_leases = 0
        self._again: list[int] = []

    @classmethod
    def from_cursor(cls, number: int, cursor: Cursor) -> Delivery:
        """The delivery as a saved cursor left it: what was not acked will come again."""
        runs = ((key_of(first), key_of(last)) for first, last in cursor.acked)
        return cls(number, key_of(cursor.position), runs)

    def cursor(self) -> Cursor:
        """What must be saved so that no acked message ever comes again."""
        return self.mark().cursor()

    def mark(self) -> Mark:
        """The same, to be worked out later."""
        return Mark(self._version, self.cursor_key, (*self._early, *self._given.runs()))

    def saved(self, mark: Mark) -> None:
        """A mark is durable."""
        self._saved_version = max(self._saved_version, mark.version)

    @property
    def is_saved(self) -> bool:
        """Whether what is durable is all there is to know."""
        return self._saved_version == self._version

    @property
    def in_flight(self) -> int:
        """How many messages are leased."""
        return len(self._leases)

    @property
    def next_deadline_s(self) -> float | None:
        """When the next lease runs out; one whose messages are all settled may still be named."""
        return self._deadlines[0].deadline_s if self._deadlines else None

    @property
    def wants_feed(self) -> bool:
        """Whether nothing more can be given until more of the match log is read."""
        self._drop_settled()
        return not self._again and self._fed_at >= len(self._fed)

    def has_message(self, session: Session) -> bool:
        """Whether `take` would give this session something (expired leases aside)."""
        return session.room > 0 and not self.wants_feed and (bool(self._again) or self._spread_left() > 0)

    def feed(self, keys: NDArray[np.int64], read_to: int) -> None:
        """Take in the matches up to ``read_to``: ascending keys; those read before are left out."""
        keys = keys[np.searchsorted(keys, self.read_to) :]
        if len(keys):
            self._fed = np.concatenate((self._fed[self._fed_at :], keys))
            self._fed_at = 0
        self.read_to = max(self.read_to, read_to)
        self._advance()

    def take(self, session: Session, limit: int, now_s: float, lease_s: float) -> list[int]:
        """Up to ``limit`` messages for a session, each leased to it for ``lease_s`` seconds."""
        self.expire(now_s)
        room = min(limit, session.room)
        keys: list[int] = []
        while self._again and len(keys) < room:
            key = heapq.heappop(self._again)
            if self._is_to_come_again(key):
                keys.append(key)
        while len(keys) < room and self._fed_at < len(self._fed):
            count = min(room - len(keys), self._spread_left())
            if count <= 0:
                break
            fresh: list[int] = self._fed[self._fed_at : self._fed_at + count].tolist()
            self._fed_at += len(fresh)
            if self._early:  # Acked before a restart, or before it was read.
                fresh = [key for key in fresh if not self._is_early(key)]
            self._given.extend(fresh)
            keys += fresh
        if keys:
            lease = _Lease(session, now_s + lease_s, keys)
            self._leases.update(dict.fromkeys(keys, lease))
            if lease.deadline_s != math.inf:
                heapq.heappush(self._deadlines, lease)
            session.held += len(keys)
        self._advance()
        return keys

    def ack(self, keys: Iterable[int]) -> int:
        """Settle messages for good; how many of them were not settled before.

        Raises
        ------
        TooManyEarlyAcks
            Those that were given since the last restart are settled, the others are not.
        """
        count = 0
        others: list[int] = []
        for key in keys:
            if self._given.ack(key):
                self._end_lease(key)
                count += 1
            elif key >= self.cursor_key:
                others.append(key)
        self._version += count > 0
        self._advance()
        return count + (self._ack_early(others) if others else 0)

    def ack_up_to(self, key: int) -> int:
        """Settle every match up to and including a key, given or not; how many those were, as far as read."""
        if key < self.cursor_key:
            return 0
        open_keys = self._given.ack_up_to(key)
        for each in open_keys:
            self._end_lease(each)
        before = self._fed_at
        self._fed_at += int(np.searchsorted(self._fed[before:], key, side="right"))
        self.read_to = max(self.read_to, key + 1)
        self._version += 1
        self._advance()
        return len(open_keys) + self._fed_at - before

    def stages(self, key: int) -> list[int]:
        """Keys to settle everything up to one after the other, up to this one: each is little work."""
        return [*self._given.every(SETTLED_AT_ONCE, key), key]

    def nack(self, keys: Iterable[int]) -> int:
        """Give leased messages again, at once; how many those are."""
        count = 0
        for key in keys:
            if self._end_lease(key):
                heapq.heappush(self._again, key)
                count += 1
        return count

    def release(self, session: Session) -> None:
        """A session has ended: what it held unacked is to be given again.

        All of it at once, before anybody is given what is younger.
        """
        keys = [key for key, lease in self._leases.items() if lease.session is session]
        for key in keys:
            del self._leases[key]
        for lease in self._deadlines:
            if lease.session is session and lease.open:
                lease.open, lease.keys = 0, ()
                self._settled_leases += 1
        self._forget_settled()
        self._again += keys
        heapq.heapify(self._again)
        session.held = 0

    def expire(self, now_s: float) -> bool:
        """End the leases that have run out; whether something is to be given again because of it.

        Of very many only the first: the next call goes on.
        """
        count = 0
        while self._deadlines and self._deadlines[0].deadline_s <= now_s and count < EXPIRED_AT_ONCE:
            lease = heapq.heappop(self._deadlines)
            if lease.open == 0:
                self._settled_leases -= 1
                continue
            lease.deadline_s = math.inf  # it is not among the deadlines any more
            count += self.nack([key for key in lease.keys if self._leases.get(key) is lease])
        return count > 0

    def forget_unread(self) -> None:
        """Let go of matches read but not given: nobody is there to take them; they are read again later."""
        if self._fed_at < len(self._fed):
            self.read_to = int(self._fed[self._fed_at])
        self._fed, self._fed_at = NO_KEYS, 0

    def _end_lease(self, key: int) -> bool:
        lease = self._leases.pop(key, None)
        if lease is None:
            return False
        lease.session.held -= 1
        lease.open -= 1
        if lease.open == 0 and lease.deadline_s != math.inf:
            lease.keys = ()
            self._settled_leases += 1
            self._forget_settled()
        return True

    def _forget_settled(self) -> None:
        """Leases that are settled leave when they are half of all, not when their deadline comes."""
        if self._settled_leases > 16 and 2 * self._settled_leases > len(self._deadlines):
            self._deadlines = [each for each in self._deadlines if each.open]
            heapq.heapify(self._deadlines)
            self._settled_leases = 0

    def _ack_early(self, keys: Sequence[int]) -> int:
        """Remember acks of what was not given since the last restart, and may well have been before it."""
        beyond = int(self._fed[self._fed_at]) if self._fed_at < len(self._fed) else self.read_to
        fresh = sorted({key for key in keys if key >= beyond and not self._is_early(key)})
        # What was read is known: what is not among the matches there is none, and is not remembered.
        fresh = [key for key in fresh if key >= self.read_to or self._is_fed(key)]
        if not fresh:
            return 0
        if len(self._early) + len(fresh) > EARLY_MAX:
            raise TooManyEarlyAcks
        self._early = sorted([*self._early, *((key, key) for key in fresh)])
        self._version += 1
        self._advance()
        return len(fresh)

    def _is_fed(self, key: int) -> bool:
        at = int(np.searchsorted(self._fed, key))
        return self._fed_at <= at < len(self._fed) and int(self._fed[at]) == key

    def _is_early(self, key: int) -> bool:
        at = bisect_right(self._early, (key, math.inf)) - 1
        return at >= 0 and self._early[at][1] >= key

    def _is_to_come_again(self, key: int) -> bool:
        """Whether a message to be given again still should be."""
        return key not in self._leases and self._given.is_open(key)

    def _drop_settled(self) -> None:
        while self._again and not self._is_to_come_again(self._again[0]):
            heapq.heappop(self._again)

    def _spread_left(self) -> int:
        return SPREAD_MAX - len(self._given)

    def _advance(self) -> None:
        """Move the cursor over what is acked and over what did not match."""
        fed, size = self._fed, len(self._fed)
        while self._early and self._fed_at < size and self._is_early(key := int(fed[self._fed_at])):
            last = self._early[bisect_right(self._early, (key, math.inf)) - 1][1]
            self._fed_at += int(np.searchsorted(fed[self._fed_at :], last, side="right"))
        if self._fed_at >= size:
            self._fed, self._fed_at = NO_KEYS, 0
        if len(self._given):
            cursor_key = self._given.front
        elif self._fed_at < len(self._fed):
            cursor_key = int(self._fed[self._fed_at])
        else:
            cursor_key = self.read_to
        if cursor_key != self.cursor_key:
            self.cursor_key = cursor_key
            self._version += 1
            if self._early and self._early[0][1] < cursor_key:
                del self._early[: bisect_left(self._early, cursor_key, key=itemgetter(1))]
