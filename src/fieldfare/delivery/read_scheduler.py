"""The reads of the match log for waiting deliveries: a state machine without I/O.

Each partition is read separately. Deliveries that have read it up to the same record share a *read group*.
One look at the match log serves a whole group: the members that a block matches are fed and leave the group,
and the group moves to the block's end. For the other members, however many, nothing else is done. Groups that
meet merge. One group, the leader, is at the end of the match log and follows it::

    match log    ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│ not matched yet
                      ^           ^             ^
                   2 wait      1 waits      9,997 wait: the leader

A look runs on a thread and takes time. A delivery that joins a group meanwhile may have been seen by it or
not. Therefore the joins of a group are numbered, and a look reports the last number that it knew: later
members move to a group of their own for one more look.

    Wait, StopWaiting ────────────▶┌───────────────┐──▶ Ask(ReadMatches)  read the match log for a group
    Matched, ReadDone, RetryRead ─▶│ ReadScheduler │──▶ Tell(Ready)        a delivery has a message to deliver
    Expire ───────────────────────▶└───────────────┘──▶ Timer(Expire)      a waiting delivery's lease expires
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldfare.delivery.delivery import EXPIRED_BATCH_SIZE, Delivery
from fieldfare.delivery.keys import INDEX_BITS, NO_KEYS, OFFSET_MASK, PARTITION_SHIFT, key_at
from fieldfare.delivery.replay_boundary import ReplayBoundary
from fieldfare.effects import Ask, AskFailed, Effect, Tell, Timer
from fieldfare.model import Offsets

EXPIRY_EVERY_S = 0.02
"""Leases that expire within this time, in seconds, are ended in one step."""

EXPIRED_DELIVERIES = 200
"""Maximum deliveries whose leases end in one step, or fewer, with `EXPIRED_BATCH_SIZE` messages."""

RETRY_S = 0.5
"""Seconds from a look that failed to the next one of its group."""

FORGOTTEN_DEADLINES = 1_000
"""Deadlines in the heap, beyond twice the current ones, at which outdated ones are removed from it."""


class ReadGroup:
    """Deliveries that have read a partition up to the same record, and have no message of it to deliver.

    A look reads ``joined`` first and ``members`` after it, from another thread: see `ReadDone.joined`.

    Attributes
    ----------
    partition, offset
        The record up to which the match log has been read for all members.
    members
        The deliveries by subscription number.
    joined
        The number of joins so far.
    """

    __slots__ = ("_begin", "joined", "late", "members", "offset", "partition")

    def __init__(self, partition: int, offset: int) -> None:
        self.partition = partition
        self.offset = offset
        self._begin = key_at(partition, 0)
        self.members: dict[int, Delivery] = {}
        self.joined = 0
        self.late: dict[int, int] = {}
        """The join numbers of members that joined since the last look ended."""

    def join(self, number: int, delivery: Delivery) -> None:
        self.members[number] = delivery
        self.joined += 1
        self.late[number] = self.joined

    @property
    def key(self) -> int:
        """The key up to which the match log has been read for all members."""
        return self._begin + (self.offset << INDEX_BITS)

    def take_over(self, other: ReadGroup) -> None:
        """Add all members of another group."""
        self.members.update(other.members)
        self.joined += 1
        self.late.update(dict.fromkeys(other.members, self.joined))


@dataclass(frozen=True, slots=True)
class Wait:
    """A session waits for a message of a delivery; repeated if another session took the message."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class StopWaiting:
    """No session waits for a delivery any more."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class ReadMatches:
    """Look at the match log for a group. The replies are any number of `Matched`, and one `ReadDone`.

    With ``follow``, the group is at the end of the match log: wait until there is something to read.
    """

    group: ReadGroup
    follow: bool


@dataclass(frozen=True, slots=True)
class Matched:
    """Matches found by a look: subscription numbers, each with its keys up to the record ``end``."""

    group: ReadGroup
    keys: Sequence[tuple[int, NDArray[np.int64]]]
    end: int


@dataclass(frozen=True, slots=True)
class ReadDone:
    """A look has ended.

    Attributes
    ----------
    joined
        `ReadGroup.joined`, read before the look read the members: later members were not looked for.
    end
        The record up to which the look has read; None if matches that should exist cannot be read.
    """

    group: ReadGroup
    joined: int
    end: int | None


@dataclass(frozen=True, slots=True)
class RetryRead:
    """Matches that could not be read may be readable now: retry."""


@dataclass(frozen=True, slots=True)
class Expire:
    """The `Timer` for this moment: a lease may have expired."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Ready:
    """A delivery has a message to deliver, and had none before."""

    delivery: Delivery


Message = Wait | StopWaiting | Matched | ReadDone | RetryRead | Expire | AskFailed


class _ReadGroups:
    """The read groups of one partition.

    Attributes
    ----------
    leader
        The group at the end of the match log.
    front_of
        The group of each waiting delivery, by subscription number.
    """

    def __init__(self, partition: int, offset: int) -> None:
        self.partition = partition
        self.leader = ReadGroup(partition, offset)
        self.front_of: dict[int, ReadGroup] = {}
        self._behind: dict[int, ReadGroup] = {}
        """The other groups, by offset; all are before the leader."""
        self._round: list[int] = []
        """Offsets of the groups that still have a look in this round, in descending order."""
        self._looking: ReadGroup | None = None
        self._stuck: set[ReadGroup] = set()

    def look_again(self) -> list[Effect]:
        self._stuck.clear()
        return self._next_look()

    def join(self, delivery: Delivery, offset: int) -> list[Effect]:
        number, group = delivery.number, self.leader
        if offset < group.offset:
            group = self._front_at(offset)
        group.join(number, delivery)
        self.front_of[number] = group
        return [] if group is self.leader else self._next_look()

    def _front_at(self, offset: int) -> ReadGroup:
        group = self._behind.get(offset)
        if group is None:
            group = self._behind[offset] = ReadGroup(self.partition, offset)
        return group

    def feed(self, found: Matched) -> list[Effect]:
        effects: list[Effect] = []
        group, read_to = found.group, key_at(self.partition, found.end)
        for number, keys in found.keys:
            delivery = group.members.get(number)
            if delivery is None:
                continue
            delivery.feed(keys, read_to)
            if not delivery.is_to_read(self.partition):
                del group.members[number], self.front_of[number]
                effects.append(Tell(Ready(delivery)))
        return effects

    def move_on(self, looked: ReadDone) -> list[Effect]:
        group, end = looked.group, looked.end
        late, group.late = group.late, {}
        if group is self._looking:
            self._looking = None
        if end is None:
            self._stuck.add(group)
            group.late = late
        else:
            begun = group.offset
            if group is not self.leader:
                del self._behind[begun]
            group.offset = end
            self._part([number for number, joined in late.items() if joined > looked.joined], group, begun)
            if group is not self.leader and group.members:
                self._meet(group)
        effects = self._next_look()
        if group is self.leader:
            effects.append(Ask(ReadMatches(group, follow=True)))
        return effects

    def _part(self, numbers: Sequence[int], group: ReadGroup, begun: int) -> None:
        """Move deliveries that joined during a look to a group at the offset where the look began."""
        for number in numbers:
            delivery = group.members.get(number)
            # A delivery that was fed the matches of the look, and has delivered them, may be at its end, too.
            if delivery is not None and delivery.partitions[self.partition].read_to < group.key:
                del group.members[number]
                other = self._front_at(begun)
                other.join(number, delivery)
                self.front_of[number] = other

    def _meet(self, group: ReadGroup) -> None:
        """Merge a group that has moved into the group at its new offset, if any."""
        other = self._behind.get(group.offset) if group.offset < self.leader.offset else self.leader
        if other is None:
            self._behind[group.offset] = group
            return
        other.take_over(group)
        self.front_of.update(dict.fromkeys(group.members, other))

    def _next_look(self) -> list[Effect]:
        """Start the next look: one at a time, round robin over the groups, in order of their offsets.

        So a group that is far behind delays no other, and groups close to each other soon merge.
        """
        while self._looking is None:
            if not self._round:
                waiting = [at for at, group in self._behind.items() if group not in self._stuck]
                if not waiting:
                    return []
                self._round = sorted(waiting, reverse=True)
            group = self._behind.get(self._round.pop())
            if group is None or group in self._stuck:
                continue
            if not group.members:
                del self._behind[group.offset]
                continue
            self._looking = group
            return [Ask(ReadMatches(group, follow=False))]
        return []


class ReadScheduler:
    """The schedule of reads of the match log, for all deliveries.

    Each message except `ReadDone` is handled in time independent of the number of waiting deliveries.

    Parameters
    ----------
    offsets
        The end of the match log, by partition.
    replays
        The replay boundaries of deliveries with a log of their own, by number; the owner adds to it.
    """

    def __init__(self, offsets: Offsets, replays: Mapping[int, ReplayBoundary] | None = None) -> None:
        self._replays = {} if replays is None else replays
        self.groups = [_ReadGroups(partition, offset) for partition, offset in enumerate(offsets)]
        """The read groups of each partition."""
        self._due: dict[int, tuple[float, Delivery]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._timer_s = math.inf

    def start(self, now: float) -> list[Effect]:
        """Return the first effects: follow the match log."""
        return [Ask(ReadMatches(groups.leader, follow=True)) for groups in self.groups]

    def handle(self, message: Message, now: float) -> list[Effect]:
        """Handle a message; return the effects to carry out."""
        if isinstance(message, Wait):
            return [*self._schedule_deadline(message.delivery, now), *self._join(message.delivery)]
        if isinstance(message, StopWaiting):
            self._leave(message.delivery)
            return []
        if isinstance(message, Matched):
            return self.groups[message.group.partition].feed(message)
        if isinstance(message, ReadDone):
            return self.groups[message.group.partition].move_on(message)
        if isinstance(message, AskFailed):
            assert isinstance(message.question, ReadMatches)
            return [Timer(now + RETRY_S, ReadDone(message.question.group, 0, None))]
        if isinstance(message, RetryRead):
            return [effect for groups in self.groups for effect in groups.look_again()]
        return self._expire(now) if message.at_s == self._timer_s else []

    def bring(self, delivery: Delivery) -> None:
        """Update a delivery to the end of the reads that found no match for it."""
        for groups in self.groups:
            group = groups.front_of.get(delivery.number)
            if group is not None:
                delivery.feed(NO_KEYS, group.key)

    def _join(self, delivery: Delivery) -> list[Effect]:
        effects: list[Effect] = []
        replay = self._replays.get(delivery.number)
        for key in delivery.to_read():
            if replay is not None and replay.holds(key):
                continue  # The replay is read for this delivery alone, not here.
            groups = self.groups[key >> PARTITION_SHIFT]
            if delivery.number not in groups.front_of:
                effects += groups.join(delivery, key >> INDEX_BITS & OFFSET_MASK)
        return effects

    def _leave(self, delivery: Delivery) -> None:
        number = delivery.number
        self._due.pop(number, None)
        for groups in self.groups:
            group = groups.front_of.pop(number, None)
            if group is not None:
                delivery.feed(NO_KEYS, group.key)
                del group.members[number]

    def _schedule_deadline(self, delivery: Delivery, now: float) -> list[Effect]:
        due_s, number = delivery.next_deadline_s, delivery.number
        if due_s is None:
            return []
        known = self._due.get(number)
        if known is not None and known[1] is delivery and known[0] <= due_s:
            return []
        self._due[number] = due_s, delivery
        if len(self._deadlines) >= 2 * len(self._due) + FORGOTTEN_DEADLINES:
            self._deadlines = [(due_s, number) for number, (due_s, _) in self._due.items()]
            heapq.heapify(self._deadlines)
        else:
            heapq.heappush(self._deadlines, (due_s, number))
        return self._set_timer(now)

    def _set_timer(self, now: float) -> list[Effect]:
        """Set one timer; earlier timers for a later time are ignored when they fire."""
        if not self._deadlines or self._deadlines[0][0] >= self._timer_s:
            return []
        self._timer_s = max(self._deadlines[0][0], now + EXPIRY_EVERY_S)
        return [Timer(self._timer_s, Expire(self._timer_s))]

    def _expire(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        looked_at: list[Delivery] = []
        messages = 0
        while self._deadlines and self._deadlines[0][0] <= now:
            if len(looked_at) >= EXPIRED_DELIVERIES or messages >= EXPIRED_BATCH_SIZE:
                break
            due_s, number = heapq.heappop(self._deadlines)
            known = self._due.get(number)
            if known is None or known[0] != due_s:
                continue
            del self._due[number]
            delivery, before = known[1], known[1].in_flight
            if delivery.expire(now):
                effects.append(Tell(Ready(delivery)))
            messages += before - delivery.in_flight
            looked_at.append(delivery)
        self._timer_s = math.inf
        for delivery in looked_at:
            effects += self._schedule_deadline(delivery, now)
        return effects + self._set_timer(now)
