"""Who waits for matches, and from where the match log is read for them: a machine without I/O.

Each partition is read for itself. Those who have read it equally far share a *front*. The match log is looked
at once for all of a front; those whom a block matches are fed and leave it, and the front stands at the
block's end: that was all that happened for the others, however many they are. Fronts that meet become one.
One of them, the leader, stands at the end of what is matched and follows it::

    match log    ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│ not matched yet
                      ^           ^             ^
                   2 wait      1 waits      9,997 wait: the leader

A look takes time, on a thread. Whoever joins a front meanwhile may have been seen by it or not: every joining
has a number, a look tells the last one that it knows of, and who came later has a front of his own for one
look more.

    Wait, Leave ──────▶┌──────────┐──▶ Ask(Look)     look at the match log where a front stands
    Matched, Looked ──▶│ Frontier │──▶ Tell(Ready)   a delivery has something to give
    LookAgain ────────▶│          │──▶ Timer(Expire) a lease runs out of what somebody waits for
                       └──────────┘
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldfare.delivery.delivery import EXPIRED_AT_ONCE, Delivery
from fieldfare.delivery.keys import INDEX_BITS, NO_KEYS, OFFSET_MASK, PARTITION_SHIFT, key_at
from fieldfare.delivery.past import Seams
from fieldfare.effects import Ask, Effect, Tell, Timer
from fieldfare.model import Offsets

EXPIRY_EVERY_S = 0.02
"""Leases that run out within so short a time are ended together."""

EXPIRED_DELIVERIES = 200
"""The leases of so many deliveries are ended in one step, or of fewer with `EXPIRED_AT_ONCE` messages."""

FORGOTTEN_DEADLINES = 1_000
"""Deadlines that nobody minds any more leave memory when they are so many more than the others."""


class Front:
    """Deliveries that have read a partition up to the same place, and have nothing of it to give.

    A look reads ``joined`` first and ``members`` after it, from another thread: see `Looked.joined`.

    Attributes
    ----------
    partition, offset
        The record up to which the match log has been looked at for all of them.
    members
        By their subscriptions' numbers.
    joined
        How many have ever joined.
    """

    __slots__ = ("_begin", "joined", "late", "members", "offset", "partition")

    def __init__(self, partition: int, offset: int) -> None:
        self.partition = partition
        self.offset = offset
        self._begin = key_at(partition, 0)
        self.members: dict[int, Delivery] = {}
        self.joined = 0
        self.late: dict[int, int] = {}
        """When those joined who did so since the last look was over."""

    def join(self, number: int, delivery: Delivery) -> None:
        self.members[number] = delivery
        self.joined += 1
        self.late[number] = self.joined

    @property
    def key(self) -> int:
        """Where it stands."""
        return self._begin + (self.offset << INDEX_BITS)

    def take_over(self, other: Front) -> None:
        """All of another front join this one."""
        self.members.update(other.members)
        self.joined += 1
        self.late.update(dict.fromkeys(other.members, self.joined))


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody waits for a delivery; also said again, when it was given to another while somebody waits."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class StopWaiting:
    """Nobody waits for a delivery any more."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class Look:
    """Look at the match log for a front. What comes of it: `Matched`, maybe several times, and `Looked`.

    With ``follow`` it stands at the end: look until there is something.
    """

    front: Front
    follow: bool


@dataclass(frozen=True, slots=True)
class Matched:
    """Some of those whom a look found matches for, by number, with their keys up to ``end``."""

    front: Front
    keys: Sequence[tuple[int, NDArray[np.int64]]]
    end: int


@dataclass(frozen=True, slots=True)
class Looked:
    """A look is over.

    Attributes
    ----------
    joined
        What `Front.joined` was before the look knew who was waiting: it says nothing of who joined later.
    end
        Up to where it has looked; None when there is nothing to be read, though there should be.
    """

    front: Front
    joined: int
    end: int | None


@dataclass(frozen=True, slots=True)
class LookAgain:
    """What could not be read may be readable now."""


@dataclass(frozen=True, slots=True)
class Expire:
    """A lease may have run out: the `Timer` for this moment."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Ready:
    """A delivery has something to give that it had not."""

    delivery: Delivery


Message = Wait | StopWaiting | Matched | Looked | LookAgain | Expire


class _Fronts:
    """The fronts of one partition.

    Attributes
    ----------
    leader
        The front at the end of what is matched.
    front_of
        Where everybody is who waits, by number.
    """

    def __init__(self, partition: int, offset: int) -> None:
        self.partition = partition
        self.leader = Front(partition, offset)
        self.front_of: dict[int, Front] = {}
        self._behind: dict[int, Front] = {}
        """The other fronts by where they stand, all before the leader."""
        self._round: list[int] = []
        """Where those stand that have a turn yet before any has another one, the last first."""
        self._looking: Front | None = None
        self._stuck: set[Front] = set()

    def look_again(self) -> list[Effect]:
        self._stuck.clear()
        return self._next_look()

    def join(self, delivery: Delivery, offset: int) -> list[Effect]:
        number, front = delivery.number, self.leader
        if offset < front.offset:
            front = self._front_at(offset)
        front.join(number, delivery)
        self.front_of[number] = front
        return [] if front is self.leader else self._next_look()

    def _front_at(self, offset: int) -> Front:
        front = self._behind.get(offset)
        if front is None:
            front = self._behind[offset] = Front(self.partition, offset)
        return front

    def feed(self, found: Matched) -> list[Effect]:
        effects: list[Effect] = []
        front, read_to = found.front, key_at(self.partition, found.end)
        for number, keys in found.keys:
            delivery = front.members.get(number)
            if delivery is None:
                continue
            delivery.feed(keys, read_to)
            if not delivery.is_to_read(self.partition):
                del front.members[number], self.front_of[number]
                effects.append(Tell(Ready(delivery)))
        return effects

    def move_on(self, looked: Looked) -> list[Effect]:
        front, end = looked.front, looked.end
        late, front.late = front.late, {}
        if front is self._looking:
            self._looking = None
        if end is None:
            self._stuck.add(front)
            front.late = late
        else:
            begun = front.offset
            if front is not self.leader:
                del self._behind[begun]
            front.offset = end
            self._part([number for number, joined in late.items() if joined > looked.joined], front, begun)
            if front is not self.leader and front.members:
                self._meet(front)
        effects = self._next_look()
        if front is self.leader:
            effects.append(Ask(Look(front, follow=True)))
        return effects

    def _part(self, numbers: Sequence[int], front: Front, begun: int) -> None:
        """These joined a front when its look had begun: they are still where it was."""
        for number in numbers:
            delivery = front.members.get(number)
            # Who was fed what the look found, and has given it already, may be at its end too.
            if delivery is not None and delivery.lanes[self.partition].read_to < front.key:
                del front.members[number]
                other = self._front_at(begun)
                other.join(number, delivery)
                self.front_of[number] = other

    def _meet(self, front: Front) -> None:
        """A front has moved: it joins the one that it has come to, if any."""
        other = self._behind.get(front.offset) if front.offset < self.leader.offset else self.leader
        if other is None:
            self._behind[front.offset] = front
            return
        other.take_over(front)
        self.front_of.update(dict.fromkeys(front.members, other))

    def _next_look(self) -> list[Effect]:
        """Look for the next front in turn, one at a time: in a round each has one, from the first on.

        So those who are far behind keep nobody waiting, and those who are close to each other meet soon.
        """
        while self._looking is None:
            if not self._round:
                waiting = [at for at, front in self._behind.items() if front not in self._stuck]
                if not waiting:
                    return []
                self._round = sorted(waiting, reverse=True)
            front = self._behind.get(self._round.pop())
            if front is None or front in self._stuck:
                continue
            if not front.members:
                del self._behind[front.offset]
                continue
            self._looking = front
            return [Ask(Look(front, follow=False))]
        return []


class Frontier:
    """See above. Every verb but a look's end takes time that does not depend on how many wait.

    Parameters
    ----------
    offsets
        The end of what is matched, by partition.
    pasts
        Of those, by number, that have a log of their own for what came before them; others add to it.
    """

    def __init__(self, offsets: Offsets, pasts: Mapping[int, Seams] | None = None) -> None:
        self._pasts = {} if pasts is None else pasts
        self.fronts = [_Fronts(partition, offset) for partition, offset in enumerate(offsets)]
        """Those of each partition."""
        self._due: dict[int, tuple[float, Delivery]] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._timer_s = math.inf

    def start(self, now: float) -> list[Effect]:
        """Follow the match log from now on."""
        return [Ask(Look(fronts.leader, follow=True)) for fronts in self.fronts]

    def handle(self, message: Message, now: float) -> list[Effect]:
        """Take in a message; what is to be done now."""
        if isinstance(message, Wait):
            return [*self._mind_deadline(message.delivery, now), *self._join(message.delivery)]
        if isinstance(message, StopWaiting):
            self._leave(message.delivery)
            return []
        if isinstance(message, Matched):
            return self.fronts[message.front.partition].feed(message)
        if isinstance(message, Looked):
            return self.fronts[message.front.partition].move_on(message)
        if isinstance(message, LookAgain):
            return [effect for fronts in self.fronts for effect in fronts.look_again()]
        return self._expire(now) if message.at_s == self._timer_s else []

    def bring(self, delivery: Delivery) -> None:
        """Let a delivery know how far the match log has been looked at for it while nothing matched."""
        for fronts in self.fronts:
            front = fronts.front_of.get(delivery.number)
            if front is not None:
                delivery.feed(NO_KEYS, front.key)

    def _join(self, delivery: Delivery) -> list[Effect]:
        effects: list[Effect] = []
        past = self._pasts.get(delivery.number)
        for key in delivery.to_read():
            if past is not None and past.holds(key):
                continue  # It is read for this one alone, not here.
            fronts = self.fronts[key >> PARTITION_SHIFT]
            if delivery.number not in fronts.front_of:
                effects += fronts.join(delivery, key >> INDEX_BITS & OFFSET_MASK)
        return effects

    def _leave(self, delivery: Delivery) -> None:
        number = delivery.number
        self._due.pop(number, None)
        for fronts in self.fronts:
            front = fronts.front_of.pop(number, None)
            if front is not None:
                delivery.feed(NO_KEYS, front.key)
                del front.members[number]

    def _mind_deadline(self, delivery: Delivery, now: float) -> list[Effect]:
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
        """Have one timer; those of before that are later are passed over when they ring."""
        if not self._deadlines or self._deadlines[0][0] >= self._timer_s:
            return []
        self._timer_s = max(self._deadlines[0][0], now + EXPIRY_EVERY_S)
        return [Timer(self._timer_s, Expire(self._timer_s))]

    def _expire(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        looked_at: list[Delivery] = []
        messages = 0
        while self._deadlines and self._deadlines[0][0] <= now:
            if len(looked_at) >= EXPIRED_DELIVERIES or messages >= EXPIRED_AT_ONCE:
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
            effects += self._mind_deadline(delivery, now)
        return effects + self._set_timer(now)
