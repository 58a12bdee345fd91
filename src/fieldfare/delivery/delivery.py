"""The delivery of one subscription: a machine without I/O.

Matches are *fed* in order, *given* to sessions under a lease, and *acked*. A match that is nacked, or
whose lease runs out, or whose session ends is given *again*: at once, or later; after so many attempts it is
*given up* (`tries`). Each partition of the log is a *lane* with a cursor of its own (`lane`); lanes give in
turn, so none with a backlog keeps another waiting. Ordered by key, what they give waits in an `Order`.

Positions are keys here (`keys`). Time is passed in as seconds of a clock that never goes back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fieldfare.delivery.keys import PARTITION_SHIFT, keys_at
from fieldfare.delivery.lane import Lane, Run, TooManyEarlyAcks
from fieldfare.delivery.mark import Mark, restored
from fieldfare.delivery.order import ORDERED_MAX, Order
from fieldfare.delivery.sessions import Leases, Session
from fieldfare.delivery.tries import LETTERS_MAX, Tries
from fieldfare.delivery.waits import AT_ONCE, Waits
from fieldfare.model import Cursor, DeliverySettings, Offsets

__all__ = ["Delivery", "Mark", "Session", "TooManyEarlyAcks"]

SETTLED_AT_ONCE = 2_000
"""About so many matches are settled in one of the stages up to a key."""

EXPIRED_AT_ONCE = 2_000
"""About so many messages lose their lease in one step; who waits for the others waits a step longer."""

WHEN_FULL_S = 60.0
"""So long waits at least what would be given up if the list were not full: others go before it."""

NACKED, LATE, UNSETTLED = "nacked", "not acked in time", "given as often as it may be"
"""Why a message is given up, where nobody says why."""


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
    given_to
        A key of each partition, if not its cursor: everything before was given, once at least.
    tries
        How often, where that was not once.
    """

    def __init__(
        self,
        number: int,
        cursors: Iterable[int],
        acked: Iterable[Run] = (),
        given_to: Iterable[int] = (),
        tries: Tries | None = None,
    ) -> None:
        self.number = number
        self.deleted = False
        self.round = 0
        """Goes up when it is set to another place: sessions hold nothing then of what they were given."""
        self.settings = DeliverySettings()
        self.tries = Tries() if tries is None else tries
        self._counts = self.tries.counts
        self._version = self._saved_version = self._urgent_version = 0
        runs: dict[int, list[Run]] = {}
        for run in acked:
            runs.setdefault(run[0] >> PARTITION_SHIFT, []).append(run)
        ends = {key >> PARTITION_SHIFT: key for key in given_to}
        self.lanes = {
            (partition := cursor >> PARTITION_SHIFT): Lane(
                cursor, runs.get(partition, ()), ends.get(partition, 0)
            )
            for cursor in cursors
        }
        """By partition."""
        self._turns = list(self.lanes.values())
        self._leases = Leases()
        self._order: Order | None = None
        self._waits = Waits()
        self._is_recalling = self._recalls()
        """Whether something may come that was given before this was made."""
        self._is_bounded = self._is_held_back = False
        self._owe(list(self.tries.retried), is_anew=False)

    @classmethod
    def from_cursor(cls, number: int, cursor: Cursor | None, begins: Offsets) -> Delivery:
        """The delivery as a saved cursor left it, see `restored`: what was not acked will come again."""
        return cls(number, *restored(cursor, begins))

    @property
    def cursor_keys(self) -> tuple[int, ...]:
        """Where the cursor stands, by partition."""
        return tuple(lane.cursor_key for lane in self.lanes.values())

    def cursor(self) -> Cursor:
        """What must be saved so that no acked message ever comes again, and none is given too often."""
        return self.mark().cursor()

    def mark(self) -> Mark:
        """The same, to be worked out later."""
        runs = tuple(run for lane in self.lanes.values() for run in lane.runs())
        tries = self.tries
        return Mark(
            self._version,
            self.cursor_keys,
            runs,
            tuple(lane.given_to for lane in self.lanes.values()),
            tuple(tries.counts.items()),
            tuple(tries.letters.values()),
            tuple(tries.settled.items()),
        )

    def saved(self, mark: Mark) -> None:
        """A mark is durable."""
        self._saved_version = max(self._saved_version, mark.version)
        if mark.letters or mark.settled:
            self.tries.saved(mark.letters, mark.settled)
            self.configure(self.settings)

    def configure(self, settings: DeliverySettings) -> None:
        """Give messages in this way from now on; leases that are out stay as they are."""
        if settings.order_by != self.settings.order_by:
            self._reorder(settings.order_by is not None)
        self.settings = settings
        self._is_bounded = settings.max_attempts is not None
        is_full = len(self.tries.letters) >= LETTERS_MAX
        limits = settings.max_in_flight, settings.max_in_flight_bytes
        self._is_held_back = is_full or settings.paused or limits != (None, None)
        self._leases.is_weighed = settings.max_in_flight_bytes is not None

    @property
    def is_saved(self) -> bool:
        """Whether what is durable is all there is to know."""
        return self._saved_version == self._version

    @property
    def is_urgent(self) -> bool:
        """Whether attempts, or what was given up, are to be saved soon: a crash would have them repeated."""
        return self._urgent_version > self._saved_version

    @property
    def in_flight(self) -> int:
        """How many messages are leased."""
        return len(self._leases)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is leased, and nothing waits for its time."""
        return not self._leases and self._waits.next_due_s == math.inf

    @property
    def next_deadline_s(self) -> float | None:
        """When the next lease or delay runs out; one whose messages are all settled may still be named."""
        due_s = min(self._leases.next_deadline_s, self._waits.next_due_s)
        return None if due_s == math.inf else due_s

    @property
    def wants_feed(self) -> bool:
        """Whether nothing can be given until more of the match log is read."""
        if self._has_enough:
            return False
        for lane in self._turns:  # noqa: SIM110 - for one lane all() takes three times as long
            if not lane.wants_feed:
                return False
        return True

    def to_read(self) -> list[int]:
        """From which keys on the match log is to be read for it, one a partition at most."""
        if self._has_enough or self.settings.paused:
            return []
        return [lane.read_to for lane in self._turns if lane.wants_feed]

    def is_to_read(self, partition: int) -> bool:
        """Whether a partition is to be read for it."""
        return not self._has_enough and self.lanes[partition].wants_feed

    def has_message(self, session: Session) -> bool:
        """Whether `take` would give this session something (expired leases aside)."""
        if (self._room(session) if self._is_held_back else session.room) <= 0:
            return False
        order = self._order
        if order is None:
            if self._has_enough:
                return True
        elif order.has(session) or order.is_unread:
            return True
        elif len(order) >= ORDERED_MAX:
            return False
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
        deadlines = self._leases.deadlines
        if self._waits.due or (deadlines and deadlines[0].deadline_s <= now_s):
            self.expire(now_s)
        room = min(limit, self._room(session) if self._is_held_back else session.window - session.held)
        keys: list[int] = []
        if self._order is not None:
            before = self._take_ordered(self._order, session, keys, room)
        else:
            before = self._take_again(keys, room) if self._waits.due else 0
            self._draw(keys, room)
            if self._is_recalling:
                self._recall(keys, before, room)
        if keys:
            self._leases.give(session, keys, now_s + lease_s)
            self._version += 1
            if before or self._is_bounded:
                self._urgent_version = self._version
        return keys

    def _draw(self, keys: list[int], room: int) -> None:
        """Add what lanes give, up to so many in all: each time another one is first."""
        for lane in self._turns:
            self._version += lane.give(keys, room)
        if len(self._turns) > 1:
            self._turns.append(self._turns.pop(0))

    def to_name(self, session: Session, limit: int) -> list[int]:
        """Messages whose ordering keys are to be read before a session is given more, at most so many."""
        order = self._order
        if order is None:
            return []
        if not (order.is_unread or order.has(session)) and (room := min(limit, ORDERED_MAX - len(order))) > 0:
            drawn: list[int] = []
            self._draw(drawn, room)
            for key in drawn:
                if key >= self.lanes[key >> PARTITION_SHIFT].known_to:
                    self.tries.counts[key] = 0  # a restart must not take it for given
            order.add(drawn)
        return order.unread(limit)

    def name(self, keys: Sequence[int], names: Sequence[int | None]) -> None:
        """These are the ordering keys of messages, as numbers; None of one that has none."""
        if self._order is not None:
            for key, name in zip(keys, names, strict=True):
                self._order.name(key, name, is_held=key in self._leases or key in self._waits.due)

    def _take_ordered(self, order: Order, session: Session, keys: list[int], room: int) -> int:
        """Take what is first of its ordering key; how many of them were given before."""
        again = passed = 0
        while len(keys) < room and passed < EXPIRED_AT_ONCE and (key := order.take(session)) is not None:
            if self._is_used_up(key) and not self.is_full:
                self._give_up(key, UNSETTLED)
                passed += 1
                continue
            self.tries.add(key, 1)
            again += self.tries.count_of(key) > 1
            keys.append(key)
        if passed:
            self._advance()
        return again

    def _reorder(self, is_ordered: bool) -> None:
        """Whether, or by what, messages are ordered has changed: what was given is sorted in anew."""
        owed = self._waits.pop_ready()
        held = {*self._leases, *self._waits.due}
        if self._order is not None:
            owed += [key for key in self._order if key not in held]
        self._order = Order(held) if is_ordered else None
        for key in owed:
            self._put_again(key)
        self._is_recalling = self._recalls()

    def _room(self, session: Session) -> int:
        """How many messages more a session may have, where more than its window holds it back."""
        room, settings = session.room, self.settings
        if settings.paused or len(self.tries.letters) >= LETTERS_MAX:
            return 0
        if settings.max_in_flight is not None and not session.is_auto:
            room = min(room, settings.max_in_flight - len(self._leases))
        if settings.max_in_flight_bytes is not None and not session.is_auto:
            room = min(room, self._leases.fitting(settings.max_in_flight_bytes))
        return room

    def weigh(self, keys: Sequence[int], sizes_bytes: Sequence[int]) -> None:
        """Messages that were taken are so large, where that limits what may be in flight."""
        self._leases.weigh(keys, sizes_bytes)

    def _take_again(self, keys: list[int], room: int) -> int:
        """Take of those to be given again, how many; those given often enough are given up instead."""
        passed = 0
        while len(keys) < room and passed < EXPIRED_AT_ONCE and (key := self._waits.pop()) is not None:
            if self._is_used_up(key) and not self.is_full:
                self._give_up(key, UNSETTLED)
                passed += 1
            else:
                self.tries.add(key, 1)
                keys.append(key)
        if passed:
            self._advance()
        return len(keys)

    def _recall(self, keys: list[int], first: int, room: int) -> None:
        """Count what lanes gave that was given before a restart; others come for what is given up."""
        passed = 0
        while self._is_recalling:
            fresh = keys[first:]
            del keys[first:]
            for key in fresh:
                if key < self.lanes[key >> PARTITION_SHIFT].known_to:
                    if self._is_used_up(key) and not self.is_full:
                        self._give_up(key, UNSETTLED)
                        passed += 1
                        continue
                    self.tries.add(key, 1)
                keys.append(key)
            self._is_recalling = self._recalls()
            first = len(keys)
            if first == room or passed >= EXPIRED_AT_ONCE:
                break
            for lane in self._turns:
                self._version += lane.give(keys, room)
            if len(keys) == first:
                break
        self._advance()
        self._urgent_version = self._version + bool(keys)

    def _recalls(self) -> bool:
        return any(lane.next_key < lane.known_to for lane in self._turns)

    def _is_used_up(self, key: int) -> bool:
        most = self.settings.max_attempts
        return most is not None and self.tries.count_of(key) >= most

    @property
    def is_full(self) -> bool:
        """Whether nothing is given up for the time being: the list of what was is full."""
        return self.settings.dead_letter and self.tries.is_full

    def _give_up(self, key: int, reason: str) -> None:
        """A message that is not leased is not given any more; the lanes are to be advanced."""
        self.lanes[key >> PARTITION_SHIFT].given.ack(key)
        if self._order is not None:
            self._order.settle(key)
        self.tries.give_up(key, reason, is_kept=self.settings.dead_letter)
        self._is_held_back |= len(self.tries.letters) >= LETTERS_MAX
        self._version += 1
        self._urgent_version = self._version

    def ack(self, keys: Sequence[int]) -> int:
        """Settle messages for good; how many of them were not settled before.

        Raises
        ------
        TooManyEarlyAcks
            Those that were given since the last restart are settled, the others are not.
        """
        count = 0
        settled: list[int] = []
        others: dict[Lane, list[int]] | None = None
        for key in keys:
            lane = self.lanes.get(key >> PARTITION_SHIFT)
            if lane is None:
                continue
            if lane.given.ack(key):
                settled.append(key)
            elif key in self.tries.retried:
                self.tries.settle_retried(key)
                settled.append(key)
            elif key >= lane.cursor_key:
                others = {} if others is None else others
                others.setdefault(lane, []).append(key)
        if settled:
            count = len(settled)
            self._end_leases(settled)
            self._version += 1
            for lane in self._turns:
                lane.advance()
        for lane, early in others.items() if others else ():
            count += self._ack_early(lane, early)
        if self._counts:
            self.tries.settle([key for key in keys if key not in self.tries.retried])
        if self._order is not None:
            self._settle_ordered(keys)
        return count

    def _settle_ordered(self, keys: Iterable[int]) -> None:
        if self._order is not None:
            for key in keys:
                self._order.settle(key)

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
        if lane is None:
            return 0
        if key < lane.cursor_key:
            return self._settle_tries(key) if self.tries.retried else 0
        open_keys, passed = lane.ack_up_to(key)
        self._end_leases(open_keys)
        self._settle_ordered(open_keys)
        self._version += 1
        self._advance()
        return len(open_keys) + passed + self._settle_tries(key)

    def _settle_tries(self, up_to: int) -> int:
        """What is tried again, and has been given since, is settled too; how many those were."""
        tries, begin = self.tries, up_to >> PARTITION_SHIFT << PARTITION_SHIFT
        done = [key for key in tries.retried if begin <= key <= up_to and tries.counts[key] > 0]
        self._end_leases(done)
        for key in done:
            tries.settle_retried(key)
        self._settle_ordered(done)
        self._version += bool(done)
        tries.settle([key for key in tries.counts if begin <= key <= up_to and key not in tries.retried])
        return len(done)

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

    def nack(self, keys: Iterable[int], now_s: float, delay_s: float | None = None) -> int:
        """Leased messages have failed: they come again after so long, or as the settings say; how many.

        Those that were given as often as they may be are given up.
        """
        count = self._fail(keys, now_s, delay_s, NACKED)
        if self.is_urgent:
            self._advance()
        return count

    def _fail(self, keys: Iterable[int], now_s: float, delay_s: float | None, reason: str) -> int:
        count = 0
        for key in keys:
            if key not in self._leases:
                continue
            self._leases.end((key,))
            count += 1
            is_used_up = self._is_used_up(key)
            if is_used_up and not self.is_full:
                self._give_up(key, reason)
                continue
            after_s = self.settings.retry_delay_s(self.tries.count_of(key)) if delay_s is None else delay_s
            if is_used_up:
                after_s = max(after_s, WHEN_FULL_S)
            self._put_again(key, now_s + after_s if after_s > 0 else AT_ONCE)
        return count

    def _put_again(self, key: int, due_s: float = AT_ONCE) -> None:
        """A message is to be given again, then and no sooner."""
        if self._order is not None and due_s == AT_ONCE:
            self._order.free(key)
        else:
            self._waits.put(key, due_s)

    def give_back(self, session: Session, keys: Iterable[int]) -> None:
        """A session has taken messages and could not be given them: they come at once. It was no attempt."""
        for key in keys:
            if self._leases.holder(key) is session:
                self._leases.end((key,))
                self.tries.add(key, -1)
                self._put_again(key)
                self._version += 1

    def extend(self, keys: Iterable[int], now_s: float, lease_s: float) -> int:
        """Lease messages to who has them for so long from now on; how many those are."""
        return self._leases.extend(keys, now_s + lease_s)

    def terminate(self, keys: Iterable[int], reason: str) -> int:
        """Give up messages that were given and are not acked; how many those are."""
        count = 0
        for key in keys:
            lane = self.lanes.get(key >> PARTITION_SHIFT)
            if lane is not None and (lane.given.is_open(key) or key in self.tries.retried):
                self._end_leases((key,))
                self._give_up(key, reason)
                count += 1
        self._advance()
        return count

    def retry(self, keys: Iterable[int]) -> None:
        """Give messages all the same that were given up, as if for the first time."""
        self._owe([key for key in keys if key not in self.tries.retried])

    def _owe(self, keys: Iterable[int], *, is_anew: bool = True) -> None:
        """Give these again, but those that their lane gives, or has given, anyway: they need no letter."""
        for key in keys:
            lane = self.lanes.get(key >> PARTITION_SHIFT)
            if lane is None or lane.owes(key):
                self.tries.drop_letter(key)
                self._version += 1
                self._urgent_version = self._version
                continue
            if is_anew:
                self.tries.retry(key)
            self._put_again(key)

    def seek(self, keys: Sequence[int]) -> None:
        """Set cursors to these keys: what lies before is settled, what lies behind is owed, acked or not.

        What is tried again, and what is owed of other partitions, is given again. Sessions hold nothing more.
        """
        sought = {key >> PARTITION_SHIFT for key in keys}
        known = {*self._leases, *self._waits.due, *(self._order or ())}
        owed = [key for key in known if key >> PARTITION_SHIFT not in sought]
        self.round += 1
        self._leases.clear()
        if self._order is not None:
            self._order, owed = Order(owed), []
        self._waits = Waits(owed)
        self.tries.settle([key for key in self.tries.counts if key >> PARTITION_SHIFT in sought])
        for key in keys:
            self.lanes[key >> PARTITION_SHIFT] = Lane(key)
        self._turns = list(self.lanes.values())
        self._is_recalling = self._recalls()
        self._owe(list(self.tries.retried))
        self._version += 1

    def release(self, session: Session) -> None:
        """A session has ended: what it held unacked is to be given again.

        All of it at once, before anybody is given what is younger.
        """
        keys = self._leases.release(session)
        if self._order is not None:
            self._order.leave(session)
            for key in keys:
                self._order.free(key)
        elif keys:
            self._waits.put_all(keys)

    def expire(self, now_s: float) -> bool:
        """End the leases that have run out; whether something is to be given again because of it.

        Of very many only the first: the next call goes on.
        """
        count = 0
        for key in islice(self._waits.ripe(now_s), EXPIRED_AT_ONCE):
            self._put_again(key)
            count += 1
        leases = self._leases.expired(now_s)
        while count < EXPIRED_AT_ONCE and (keys := next(leases, None)) is not None:
            count += self._fail(keys, now_s, None, LATE)
        if count and self.is_urgent:
            self._advance()
        return count > 0

    def forget_unread(self) -> None:
        """Let go of matches read but not given: nobody is there to take them; they are read again later."""
        for lane in self._turns:
            lane.forget_unread()

    def _end_leases(self, keys: Sequence[int]) -> None:
        """Nobody has these messages any more, and they are not to be given again."""
        others = self._leases.end(keys)
        if others:
            self._waits.drop(others)

    @property
    def _has_enough(self) -> bool:
        """Whether something is to be given again now; or, ordered by key, as much waits as may."""
        return self._waits.is_ready if self._order is None else len(self._order) >= ORDERED_MAX

    def _advance(self) -> None:
        for lane in self._turns:
            if lane.advance():
                self._version += 1
