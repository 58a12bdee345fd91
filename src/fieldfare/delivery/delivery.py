"""The delivery of one subscription: a state machine without I/O.

Matches are *fed* in log order; the package's docstring has the table of their states. Each partition
has a cursor of its own (`PartitionDelivery`); they are served round robin, so a backlog in one delays no
other. With `order_by`, a `KeyOrdering` holds matches back.
Positions are integer keys (`keys`). Time is passed in, as seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fieldfare.delivery.attempts import LATE, LETTERS_MAX, UNSETTLED, Attempts
from fieldfare.delivery.cursor_snapshot import CursorSnapshot, restored
from fieldfare.delivery.key_ordering import ORDERED_MAX, KeyOrdering
from fieldfare.delivery.keys import PARTITION_SHIFT, keys_at
from fieldfare.delivery.partition_delivery import PartitionDelivery, Run, TooManyEarlyAcks
from fieldfare.delivery.retry_queue import AT_ONCE, RetryQueue
from fieldfare.delivery.sessions import Leases, Session
from fieldfare.model import Cursor, DeliverySettings, Offsets

__all__ = ["CursorSnapshot", "Delivery", "Session", "TooManyEarlyAcks"]

SETTLED_BATCH_SIZE = 2_000
"""Approximate number of matches settled in each of the `stages` up to a key."""

EXPIRED_BATCH_SIZE = 2_000
"""Approximate number of messages whose leases expire in one step; the rest follow in the next steps."""

WHEN_FULL_S = 60.0
"""Minimum delay, in seconds, of a message out of attempts while the dead letter list is full."""

NACKED = "nacked"
"""The reason of a dead letter that its consumer nacked without a reason."""


class Delivery:
    """The delivery state of one subscription.

    Parameters
    ----------
    number
        The subscription's number.
    cursors
        A key of each partition: every match before it is acked (or is older than the subscription).
    acked
        Runs of keys at or beyond the cursors of which every match was acked.
    given_to
        A key of each partition, if not its cursor: every match before it was delivered at least once.
    tries
        The number of delivery attempts of each message for which it is not 1.
    """

    def __init__(
        self,
        number: int,
        cursors: Iterable[int],
        acked: Iterable[Run] = (),
        given_to: Iterable[int] = (),
        tries: Attempts | None = None,
    ) -> None:
        self.number = number
        self.deleted, self.moved = False, dict[str, str]()
        self.round = 0
        """Incremented by each `seek`: sessions then hold none of the messages delivered before."""
        self.settings = DeliverySettings()
        self.tries = Attempts() if tries is None else tries
        self._counts = self.tries.counts
        self.version = self._saved_version = self._urgent_version = 0  # `version` counts all changes
        runs: dict[int, list[Run]] = {}
        for run in acked:
            runs.setdefault(run[0] >> PARTITION_SHIFT, []).append(run)
        ends = {key >> PARTITION_SHIFT: key for key in given_to}
        self.partitions = {
            (partition := cursor >> PARTITION_SHIFT): PartitionDelivery(
                cursor, runs.get(partition, ()), ends.get(partition, 0)
            )
            for cursor in cursors
        }
        """The partitions, by number."""
        self._turns = list(self.partitions.values())
        self._leases = Leases()
        self._order: KeyOrdering | None = None
        self._waits = RetryQueue()
        self._is_recalling = self._recalls()
        """Whether messages delivered before a restart may be delivered again."""
        self._is_bounded = self._is_held_back = False
        self._owe(list(self.tries.retried), is_again=False)

    @classmethod
    def from_cursor(cls, number: int, cursor: Cursor | None, begins: Offsets) -> Delivery:
        """Return a delivery resumed from a saved cursor, see `restored`; unacked messages are redelivered."""
        return cls(number, *restored(cursor, begins))

    @property
    def cursor_keys(self) -> tuple[int, ...]:
        """The cursor's key, by partition."""
        return tuple(partition.cursor_key for partition in self.partitions.values())

    def cursor(self) -> Cursor:
        """Return the cursor to save: no acked message is redelivered, and none exceeds its attempts."""
        return self.mark().cursor()

    def mark(self) -> CursorSnapshot:
        """Return a snapshot from which the cursor can be computed later."""
        runs = tuple(run for partition in self.partitions.values() for run in partition.runs())
        tries = self.tries
        return CursorSnapshot(
            self.version,
            self.cursor_keys,
            runs,
            tuple(partition.given_to for partition in self.partitions.values()),
            tuple(tries.counts.items()),
            tuple(tries.letters.values()),
            tuple(tries.settled.items()),
        )

    def saved(self, mark: CursorSnapshot) -> None:
        """Record that a snapshot is durable."""
        self._saved_version = max(self._saved_version, mark.version)
        if mark.letters or mark.settled:
            self.tries.saved(mark.letters, mark.settled)
            self.configure(self.settings)

    def configure(self, settings: DeliverySettings) -> None:
        """Apply new settings; existing leases keep their deadlines."""
        if settings.order_by != self.settings.order_by:
            self._reorder(settings.order_by is not None)
        if settings.max_in_flight_bytes is not None and self.settings.max_in_flight_bytes is None:
            self._leases.forget_mean()
        self.settings = settings
        self._is_bounded = settings.max_attempts is not None
        is_full = len(self.tries.letters) >= LETTERS_MAX
        limits = settings.max_in_flight, settings.max_in_flight_bytes
        self._is_held_back = is_full or settings.paused or limits != (None, None)

    @property
    def is_saved(self) -> bool:
        """Whether the durable state is up to date."""
        return self._saved_version == self.version

    @property
    def is_urgent(self) -> bool:
        """Whether attempts or dead letters must be saved soon: a crash would repeat them."""
        return self._urgent_version > self._saved_version

    @property
    def in_flight(self) -> int:
        """The number of leased messages."""
        return len(self._leases)

    @property
    def is_idle(self) -> bool:
        """Whether no message is leased or delayed."""
        return not self._leases and self._waits.next_due_s == math.inf

    @property
    def next_deadline_s(self) -> float | None:
        """When the next lease or delay expires, in seconds, or None; its messages may be settled."""
        due_s = min(self._leases.next_deadline_s, self._waits.next_due_s)
        return None if due_s == math.inf else due_s

    @property
    def wants_feed(self) -> bool:
        """Whether no message can be delivered until more of the match log is read."""
        if self._has_enough:
            return False
        for partition in self._turns:  # noqa: SIM110 - for one partition all() takes three times as long
            if not partition.wants_feed:
                return False
        return True

    def to_read(self) -> list[int]:
        """Return the keys from which to read the match log, at most one per partition."""
        if self._has_enough or self.settings.paused:
            return []
        return [partition.read_to for partition in self._turns if partition.wants_feed]

    def is_to_read(self, partition: int) -> bool:
        """Return whether a partition must be read for this delivery."""
        return not self._has_enough and self.partitions[partition].wants_feed

    def has_message(self, session: Session) -> bool:
        """Return whether `take` would return a message for this session (expired leases aside)."""
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
        for partition in self._turns:  # noqa: SIM110 - as above
            if partition.can_give:
                return True
        return False

    def feed(self, keys: NDArray[np.int64], read_to: int) -> None:
        """Add the matches of a partition up to ``read_to``: ascending keys."""
        self.version += self.partitions[read_to >> PARTITION_SHIFT].feed(keys, read_to)

    def take(self, session: Session, limit: int, now_s: float, lease_s: float) -> list[int]:
        """Return at most ``limit`` messages, each leased to a session for ``lease_s`` seconds.

        The messages of a partition are in order, except that redelivered ones come first.
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
            self.version += 1
            if before or self._is_bounded:
                self._urgent_version = self.version
        return keys

    def _draw(self, keys: list[int], room: int) -> None:
        """Append new matches to ``keys``, up to ``room`` in all, from another partition first each time."""
        for partition in self._turns:
            self.version += partition.give(keys, room)
        if len(self._turns) > 1:
            self._turns.append(self._turns.pop(0))

    def to_name(self, session: Session, limit: int) -> list[int]:
        """Return at most ``limit`` messages whose ordering keys must be read before `take`."""
        order = self._order
        if order is None:
            return []
        if not (order.is_unread or order.has(session)) and (room := min(limit, ORDERED_MAX - len(order))) > 0:
            drawn: list[int] = []
            self._draw(drawn, room)
            for key in drawn:
                if key >= self.partitions[key >> PARTITION_SHIFT].known_to:
                    self.tries.counts[key] = 0  # after a restart it must not count as delivered
            order.add(drawn)
        return order.unread(limit)

    def name(self, keys: Sequence[int], names: Sequence[int | None]) -> None:
        """Set the ordering keys of messages, as numbers; None for a message without one."""
        if self._order is not None:
            for key, name in zip(keys, names, strict=True):
                self._order.name(key, name, is_held=key in self._leases or key in self._waits.due)

    def _take_ordered(self, order: KeyOrdering, session: Session, keys: list[int], room: int) -> int:
        """Take messages that are first of their ordering keys; return how many were delivered before."""
        again = passed = 0
        while len(keys) < room and passed < EXPIRED_BATCH_SIZE and (key := order.take(session)) is not None:
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
        """Rebuild the ordering for a new `order_by`, with all messages in flight or waiting."""
        owed = self._waits.pop_ready()
        held = {*self._leases, *self._waits.due}
        if self._order is not None:
            owed += [key for key in self._order if key not in held]
        self._order = KeyOrdering(held) if is_ordered else None
        for key in owed:
            self._redeliver(key)
        self._is_recalling = self._recalls()

    def _room(self, session: Session) -> int:
        """Return how many more messages a session may have, where more than its window limits it."""
        room, settings = session.room, self.settings
        if settings.paused or len(self.tries.letters) >= LETTERS_MAX:
            return 0
        if settings.max_in_flight is not None and not session.is_auto:
            room = min(room, settings.max_in_flight - len(self._leases))
        if settings.max_in_flight_bytes is not None and not session.is_auto:
            room = min(room, self._leases.fitting(settings.max_in_flight_bytes))
        return room

    def weigh(self, key: int, size_bytes: int) -> bool:
        """Count the size of a taken message; False if it does not fit and must be returned by `give_back`."""
        max_bytes = self.settings.max_in_flight_bytes
        return max_bytes is None or self._leases.weigh(key, size_bytes, max_bytes)

    def _take_again(self, keys: list[int], room: int) -> int:
        """Take messages due for redelivery, giving up those out of attempts; return how many were taken."""
        passed = 0
        while len(keys) < room and passed < EXPIRED_BATCH_SIZE and (key := self._waits.pop()) is not None:
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
        """Count the attempts of matches delivered before a restart; replace those that are given up."""
        passed = 0
        while self._is_recalling:
            fresh = keys[first:]
            del keys[first:]
            for key in fresh:
                if key < self.partitions[key >> PARTITION_SHIFT].known_to:
                    if self._is_used_up(key) and not self.is_full:
                        self._give_up(key, UNSETTLED)
                        passed += 1
                        continue
                    self.tries.add(key, 1)
                keys.append(key)
            self._is_recalling = self._recalls()
            first = len(keys)
            if first == room or passed >= EXPIRED_BATCH_SIZE:
                break
            for partition in self._turns:
                self.version += partition.give(keys, room)
            if len(keys) == first:
                break
        self._advance()
        self._urgent_version = self.version + bool(keys)

    def _recalls(self) -> bool:
        return any(partition.next_key < partition.known_to for partition in self._turns)

    def _is_used_up(self, key: int) -> bool:
        most = self.settings.max_attempts
        return most is not None and self.tries.count_of(key) >= most

    @property
    def is_full(self) -> bool:
        """Whether no message is given up for now, as the dead letter list is full."""
        return self.settings.dead_letter and self.tries.is_full

    def _give_up(self, key: int, reason: str) -> None:
        """Give up a message that is not leased; the caller must call `_advance` after it."""
        self.partitions[key >> PARTITION_SHIFT].given.ack(key)
        if self._order is not None:
            self._order.settle(key)
        self.tries.give_up(key, reason, is_kept=self.settings.dead_letter)
        self._is_held_back |= len(self.tries.letters) >= LETTERS_MAX
        self.version += 1
        self._urgent_version = self.version

    def ack(self, keys: Sequence[int]) -> int:
        """Settle messages and remove their dead letters; return how many were not settled before.

        Raises
        ------
        TooManyEarlyAcks
            Messages delivered since the last restart are settled, the others may not be.
        """
        count = 0
        settled: list[int] = []
        others: dict[PartitionDelivery, list[int]] | None = None
        for key in keys:
            partition = self.partitions.get(key >> PARTITION_SHIFT)
            if partition is None:
                continue
            if partition.given.ack(key):
                settled.append(key)
            elif key in self.tries.retried:
                self.tries.settle_retried(key)
                settled.append(key)
            elif key >= partition.cursor_key:
                others = {} if others is None else others
                others.setdefault(partition, []).append(key)
        if settled:
            count = len(settled)
            self._end_leases(settled)
            self.version += 1
            for partition in self._turns:
                partition.advance()
        for partition, early in others.items() if others else ():
            fresh = partition.ack_early(early)
            self.tries.is_done_exact &= max(early) < partition.read_to
            self.version += (fresh > 0) + partition.advance()
            count += fresh
        if self._counts:
            self.tries.settle([key for key in keys if key not in self.tries.retried])
        self._settle_ordered(keys)
        if self.tries.listed or self.tries.letters:
            self.version += self.tries.drop_letters(set(keys).difference(settled))
        return self.tries.count_done(count)

    def _settle_ordered(self, keys: Iterable[int]) -> None:
        if self._order is not None:
            for key in keys:
                self._order.settle(key)

    def ack_up_to(self, key: int) -> int:
        """Settle every match of a partition up to and including a key, delivered or not.

        Returns their number, as far as read. Dead letters that no consumer has refused are removed.
        """
        if key >> PARTITION_SHIFT not in self.partitions:
            return 0
        self.version += self.tries.drop_letters(self.tries.unheard_up_to(key))
        self.tries.is_done_exact &= key < self.partitions[key >> PARTITION_SHIFT].read_to
        return self.tries.count_done(self._settle_up_to(key))

    def _settle_up_to(self, key: int) -> int:
        partition = self.partitions[key >> PARTITION_SHIFT]
        if key < partition.cursor_key:
            return self._settle_tries(key) if self.tries.retried else 0
        open_keys, passed = partition.ack_up_to(key)
        self._end_leases(open_keys)
        self._settle_ordered(open_keys)
        self.version += 1
        self._advance()
        return len(open_keys) + passed + self._settle_tries(key)

    def _settle_tries(self, up_to: int) -> int:
        """Settle retried dead letters that were delivered since their retry; return how many."""
        tries, begin = self.tries, up_to >> PARTITION_SHIFT << PARTITION_SHIFT
        done = [key for key in tries.retried if begin <= key <= up_to and tries.counts[key] > 0]
        self._end_leases(done)
        for key in done:
            tries.settle_retried(key)
        self._settle_ordered(done)
        self.version += bool(done)
        tries.settle([key for key in tries.counts if begin <= key <= up_to and key not in tries.retried])
        return len(done)

    def skip_to(self, begins: Offsets) -> None:
        """Settle every match before these records, one per partition."""
        for key in keys_at(begins):
            partition = self.partitions.get(key >> PARTITION_SHIFT)
            if partition is not None and partition.cursor_key < key:
                self._settle_up_to(key - 1)

    def stages(self, key: int) -> list[int]:
        """Return keys, up to this one, for `ack_up_to` calls in turn, each with little work."""
        partition = self.partitions.get(key >> PARTITION_SHIFT)
        return [*(partition.given.every(SETTLED_BATCH_SIZE, key) if partition is not None else ()), key]

    def nack(self, keys: Iterable[int], now_s: float, delay_s: float | None = None) -> int:
        """Redeliver leased messages after ``delay_s``, or as the settings say; return how many failed.

        Messages out of attempts are given up.
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
            self._redeliver(key, now_s + after_s if after_s > 0 else AT_ONCE)
        return count

    def _redeliver(self, key: int, due_s: float = AT_ONCE) -> None:
        """Redeliver a message, not before ``due_s``."""
        if self._order is not None and due_s == AT_ONCE:
            self._order.free(key)
        else:
            self._waits.put(key, due_s)

    def give_back(self, session: Session, keys: Iterable[int]) -> None:
        """Redeliver messages at once that a session took but could not be sent; this counts as no attempt."""
        for key in keys:
            if self._leases.holder(key) is session:
                self._leases.end((key,))
                self.tries.add(key, -1)
                self._redeliver(key)
                self.version += 1

    def extend(self, keys: Iterable[int], now_s: float, lease_s: float) -> int:
        """Extend the leases of messages to ``lease_s`` seconds from now; return how many were extended."""
        return self._leases.extend(keys, now_s + lease_s)

    def terminate(self, keys: Iterable[int], reason: str) -> int:
        """Give up messages that were delivered and are not acked; return how many."""
        count = 0
        for key in keys:
            partition = self.partitions.get(key >> PARTITION_SHIFT)
            if partition is not None and (partition.given.is_open(key) or key in self.tries.retried):
                self._end_leases((key,))
                self._give_up(key, reason)
                count += 1
        self._advance()
        return count

    def retry(self, keys: Iterable[int]) -> None:
        """Retry dead letters, as if delivered for the first time, unless acked meanwhile."""
        self._owe(sorted(set(keys) - self.tries.retried - self.tries.settled.keys()))

    def _owe(self, keys: Iterable[int], *, is_again: bool = True) -> None:
        """Redeliver messages, except those that their partition still owes: these only lose their letter."""
        for key in keys:
            partition = self.partitions.get(key >> PARTITION_SHIFT)
            if partition is None or partition.owes(key):
                self.tries.drop_letter(key)
                self.version += 1
                self._urgent_version = self.version
                continue
            if is_again:
                self.tries.retry(key)
            self._redeliver(key)

    def seek(self, keys: Sequence[int]) -> None:
        """Set cursors to these keys: matches before them are settled, all later ones owed, acked or not.

        Retried dead letters and owed messages of other partitions are redelivered. All leases end.
        """
        self.tries.is_done_exact = False
        sought = {key >> PARTITION_SHIFT for key in keys}
        known = {*self._leases, *self._waits.due, *(self._order or ())}
        owed = [key for key in known if key >> PARTITION_SHIFT not in sought]
        self.round += 1
        self._leases.clear()
        if self._order is not None:
            self._order, owed = KeyOrdering(owed), []
        self._waits = RetryQueue(owed)
        self.tries.settle([key for key in self.tries.counts if key >> PARTITION_SHIFT in sought])
        for key in keys:
            self.partitions[key >> PARTITION_SHIFT] = PartitionDelivery(key)
        self._turns = list(self.partitions.values())
        self._is_recalling = self._recalls()
        self._owe(list(self.tries.retried))
        self.version += 1

    def release(self, session: Session) -> None:
        """End a session: redeliver its unacked messages.

        All of them are due at once, before any newer message is delivered.
        """
        keys = self._leases.release(session)
        if self._order is not None:
            self._order.leave(session)
            for key in keys:
                self._order.free(key)
        elif keys:
            self._waits.put_all(keys)

    def expire(self, now_s: float) -> bool:
        """End expired leases and delays; return whether there were any.

        At most about `EXPIRED_BATCH_SIZE` messages per call: the next call continues.
        """
        count = 0
        for key in islice(self._waits.ripe(now_s), EXPIRED_BATCH_SIZE):
            self._redeliver(key)
            count += 1
        leases = self._leases.expired(now_s)
        while count < EXPIRED_BATCH_SIZE and (keys := next(leases, None)) is not None:
            count += self._fail(keys, now_s, None, LATE)
        if count and self.is_urgent:
            self._advance()
        return count > 0

    def forget_unread(self) -> None:
        """Drop matches read but not delivered, as there is no consumer; they are read again later."""
        for partition in self._turns:
            partition.forget_unread()

    def _end_leases(self, keys: Sequence[int]) -> None:
        """End the leases of messages, and redeliver none of them."""
        if others := self._leases.end(keys):
            self._waits.drop(others)

    @property
    def _has_enough(self) -> bool:
        """Whether a redelivery is due now or, ordered by key, `ORDERED_MAX` messages wait."""
        return self._waits.is_ready if self._order is None else len(self._order) >= ORDERED_MAX

    def _advance(self) -> None:
        for partition in self._turns:
            if partition.advance():
                self.version += 1
