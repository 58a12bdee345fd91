"""The delivery of one subscription: a machine without I/O.

Matches are *fed* in order, *given* to sessions under a lease, and *acked*. A match that is nacked, or
whose lease runs out, or whose session ends is given *again*. Each partition of the log is a *lane* with a
cursor of its own (`lane`); lanes give in turn, so none with a backlog keeps another waiting.

Positions are keys here (`keys`). Time is passed in as seconds of a clock that never goes back.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldfare.delivery.keys import PARTITION_SHIFT, key_of, keys_at, position_of
from fieldfare.delivery.lane import Lane, Run, TooManyEarlyAcks, united
from fieldfare.model import Cursor, Offsets

__all__ = ["Delivery", "Mark", "Session", "TooManyEarlyAcks"]

SETTLED_AT_ONCE = 2_000
"""About so many matches are settled in one of the stages up to a key."""

EXPIRED_AT_ONCE = 2_000
"""About so many messages lose their lease in one step; who waits for the others waits a step longer."""


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
    cursor_keys: tuple[int, ...]
    runs: tuple[Run, ...]

    def cursor(self) -> Cursor:
        """What must be saved so that no acked message ever comes again."""
        cursors = {key >> PARTITION_SHIFT: key for key in self.cursor_keys}
        runs = united(run for run in self.runs if run[1] >= cursors[run[1] >> PARTITION_SHIFT])
        return Cursor(
            tuple(map(position_of, self.cursor_keys)),
            tuple((position_of(first), position_of(last)) for first, last in runs),
        )


class Delivery:
    """Where one subscription's delivery stands.

    Parameters
    ----------
    number
        The subscription's number.
    cursors
        A key of each partition: everything before is acked (or is older than the subscription).
    acked
        Runs of keys at or beyond the cursors of which every match was acked.
    """

    def __init__(self, number: int, cursors: Iterable[int], acked: Iterable[Run] = ()) -> None:
        self.number = number
        self.deleted = False
        self._version = self._saved_version = 0
        runs: dict[int, list[Run]] = {}
        for run in acked:
            runs.setdefault(run[0] >> PARTITION_SHIFT, []).append(run)
        self.lanes = {
            (partition := cursor >> PARTITION_SHIFT): Lane(cursor, runs.get(partition, ()))
            for cursor in cursors
        }
        """By partition."""
        self._turns = list(self.lanes.values())
        self._leases: dict[int, _Lease] = {}
        self._deadlines: list[_Lease] = []
        self._settled_leases = 0
        self._again: list[int] = []

    @classmethod
    def from_cursor(cls, number: int, cursor: Cursor | None, begins: Offsets) -> Delivery:
        """The delivery as a saved cursor left it: what was not acked will come again.

        Where there is none, or it has no place for a partition, delivery begins with the record ``begins``.
        """
        keys = dict(enumerate(keys_at(begins)))
        if cursor is None:
            return cls(number, keys.values())
        keys |= {place.partition: key_of(place) for place in cursor.positions if place.partition in keys}
        runs = [(key_of(first), key_of(last)) for first, last in cursor.acked]
        return cls(number, keys.values(), runs)

    @property
    def cursor_keys(self) -> tuple[int, ...]:
        """Where the cursor stands, by partition."""
        return tuple(lane.cursor_key for lane in self.lanes.values())

    def cursor(self) -> Cursor:
        """What must be saved so that no acked message ever comes again."""
        return self.mark().cursor()

    def mark(self) -> Mark:
        """The same, to be worked out later."""
        runs = tuple(run for lane in self.lanes.values() for run in lane.runs())
        return Mark(self._version, self.cursor_keys, runs)

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
        """Whether nothing can be given until more of the match log is read."""
        if self._again:
            self._drop_settled()
            if self._again:
                return False
        for lane in self._turns:  # noqa: SIM110 - for one lane all() takes three times as long
            if not lane.wants_feed:
                return False
        return True

    def to_read(self) -> list[int]:
        """From which keys on the match log is to be read for it, one a partition at most."""
        if self._again:
            self._drop_settled()
        return [] if self._again else [lane.read_to for lane in self._turns if lane.wants_feed]

    def is_to_read(self, partition: int) -> bool:
        """Whether a partition is to be read for it."""
        if self._again:
            self._drop_settled()
        return not self._again and self.lanes[partition].wants_feed

    def has_message(self, session: Session) -> bool:
        """Whether `take` would give this session something (expired leases aside)."""
        if session.room <= 0:
            return False
        if self._again:
            self._drop_settled()
            if self._again:
                return True
        for lane in self._turns:  # noqa: SIM110 - as above
            if lane.can_give:
                return True
        return False

    def feed(self, keys: NDArray[np.int64], read_to: int) -> None:
        """Take in the matches of a partition up to ``read_to``: ascending keys."""
        self._version += self.lanes[read_to >> PARTITION_SHIFT].feed(keys, read_to)

    def take(self, session: Session, limit: int, now_s: float, lease_s: float) -> list[int]:
        """Up to ``limit`` messages for a session, each leased to it for ``lease_s`` seconds.

        Those of a partition are in order, but for those given again, which come first.
        """
        self.expire(now_s)
        room = min(limit, session.room)
        keys: list[int] = []
        while self._again and len(keys) < room:
            key = heapq.heappop(self._again)
            if self._is_to_come_again(key):
                keys.append(key)
        for lane in self._turns:
            self._version += lane.give(keys, room)
        if len(self._turns) > 1:
            self._turns.append(self._turns.pop(0))
        if keys:
            lease = _Lease(session, now_s + lease_s, keys)
            self._leases.update(dict.fromkeys(keys, lease))
            if lease.deadline_s != math.inf:
                heapq.heappush(self._deadlines, lease)
            session.held += len(keys)
        return keys

    def ack(self, keys: Iterable[int]) -> int:
        """Settle messages for good; how many of them were not settled before.

        Raises
        ------
        TooManyEarlyAcks
            Those that were given since the last restart are settled, the others are not.
        """
        count = 0
        others: dict[Lane, list[int]] | None = None
        for key in keys:
            lane = self.lanes.get(key >> PARTITION_SHIFT)
            if lane is None:
                continue
            if lane.given.ack(key):
                self._end_lease(key)
                count += 1
            elif key >= lane.cursor_key:
                others = {} if others is None else others
                others.setdefault(lane, []).append(key)
        if count:
            self._version += 1
            for lane in self._turns:
                lane.advance()
        for lane, early in others.items() if others else ():
            count += self._ack_early(lane, early)
        return count

    def _ack_early(self, lane: Lane, keys: Sequence[int]) -> int:
        count = lane.ack_early(keys)
        self._version += (count > 0) + lane.advance()
        return count

    def ack_up_to(self, key: int) -> int:
        """Settle every match of a partition up to and including a key, given or not.

        Returns
        -------
        int
            How many those were, as far as read.
        """
        lane = self.lanes.get(key >> PARTITION_SHIFT)
        if lane is None or key < lane.cursor_key:
            return 0
        open_keys, passed = lane.ack_up_to(key)
        for each in open_keys:
            self._end_lease(each)
        self._version += 1
        self._advance()
        return len(open_keys) + passed

    def skip_to(self, begins: Offsets) -> None:
        """Settle whatever lies before these records."""
        for key in keys_at(begins):
            lane = self.lanes.get(key >> PARTITION_SHIFT)
            if lane is not None and lane.cursor_key < key:
                self.ack_up_to(key - 1)

    def stages(self, key: int) -> list[int]:
        """Keys to settle everything up to one after the other, up to this one: each is little work."""
        lane = self.lanes.get(key >> PARTITION_SHIFT)
        return [*(lane.given.every(SETTLED_AT_ONCE, key) if lane is not None else ()), key]

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
        for lane in self._turns:
            lane.forget_unread()

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

    def _is_to_come_again(self, key: int) -> bool:
        """Whether a message to be given again still should be."""
        return key not in self._leases and self.lanes[key >> PARTITION_SHIFT].given.is_open(key)

    def _drop_settled(self) -> None:
        while self._again and not self._is_to_come_again(self._again[0]):
            heapq.heappop(self._again)

    def _advance(self) -> None:
        for lane in self._turns:
            if lane.advance():
                self._version += 1
