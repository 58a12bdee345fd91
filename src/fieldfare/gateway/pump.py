"""Bringing matches to those who wait for them.

Nothing here is done for a subscription that nobody reads. While somebody waits, and the log holds events
that are not matched yet, one task looks for new match-log blocks every few milliseconds, looks into each
block once for all who wait at that place, and wakes those for whom there is something. When all is matched
it sleeps until something is appended, or until a message's ack deadline passes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from operator import attrgetter

import numpy as np

from fieldfare.gateway.delivery import INDEX_BITS, Delivery, Session
from fieldfare.gateway.match_tail import MatchTail
from fieldfare.gateway.writer import Writer
from fieldfare.model import Position, Subscription
from fieldfare.storage.errors import MatchLogError, StorageError
from fieldfare.storage.event_log import EventLog
from fieldfare.storage.match_block import MatchBlock
from fieldfare.storage.registry import Cursor, Registry

logger = logging.getLogger("fieldfare.gateway.pump")

TURN_MAX_S = 0.005
"""Reading for those who are behind yields to the rest of the gateway this often."""

EXPIRY_EVERY_S = 0.02
IDLE_LOOK_S = 1.0
"""A look all the same when nothing is to be expected, should something else have written to the log."""

IDLE_FORGOTTEN_S = 60.0
SAVED_AT_ONCE = 1_000

LOOKED_UP_MAX = 256
"""For at most so many subscriptions a block is asked about each; for more, first about all that matched."""


class Pump:
    """The deliveries of all subscriptions that somebody has lately read.

    Parameters
    ----------
    log, registry
        For where the log begins, and for saved cursors.
    tail
        The match log's end.
    writer
        Saves cursors, and says how far the log goes.
    poll_s
        Seconds between looks for new blocks while somebody waits and not all is matched.
    window_max
        The window that all pulls of one subscription share.
    """

    def __init__(
        self,
        log: EventLog,
        registry: Registry,
        tail: MatchTail,
        writer: Writer,
        *,
        poll_s: float,
        window_max: int,
    ) -> None:
        self._log = log
        self._registry = registry
        self._tail = tail
        self._writer = writer
        self._poll_s = poll_s
        self._window_max = window_max
        self._deliveries: dict[int, Delivery] = {}
        self._pullers: dict[int, Session] = {}
        self._used_s: dict[int, float] = {}
        self._sessions: dict[int, set[Session]] = {}
        self._alone: dict[int, Session] = {}
        self._waiting: dict[Delivery, dict[asyncio.Future[None], Session]] = {}
        self._behind: set[Delivery] = set()
        self._stirred = asyncio.Event()
        self._expiry_due_s = 0.0
        self._seen_tip = tail.tip
        self._task: asyncio.Task[None] | None = None
        self.closing = False

    def start(self) -> None:
        """Start the task on the running event loop."""
        self._writer.call_on_append(self._stirred.set)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="fieldfare-pump")

    def end_sessions(self) -> None:
        """The gateway stops: wake everybody, so that they end."""
        self.closing = True
        for delivery in list(self._waiting):
            self._wake(delivery, everybody=True)

    async def close(self) -> None:
        """End the task and save how far every delivery has come."""
        self.end_sessions()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.save_progress()

    @property
    def connected(self) -> int:
        """How many streams are open."""
        return sum(map(len, self._sessions.values()))

    def delivery_of(self, subscription: Subscription) -> Delivery:
        """The delivery of a subscription, read from its saved cursor when first asked for."""
        delivery = self._deliveries.get(subscription.number)
        if delivery is None:
            cursor = self._registry.load_cursor(subscription.number)
            if cursor is None:
                cursor = Cursor(Position(0, subscription.valid_from, 0))
            delivery = Delivery.from_cursor(subscription.number, cursor)
            self._deliveries[subscription.number] = delivery
        self._used_s[subscription.number] = time.monotonic()
        return delivery

    def puller(self, delivery: Delivery) -> Session:
        """The session that all pulls of a subscription share."""
        session = self._pullers.get(delivery.number)
        if session is None:
            session = self._pullers[delivery.number] = Session(self._window_max)
        return session

    def open_stream(self, delivery: Delivery, window: int, *, alone: bool = False) -> Session:
        """A session of its own for a stream; `close_stream` ends it.

        One that is to be ``alone`` ends the one before it that was.
        """
        session = Session(window)
        if alone:
            before = self._alone.get(delivery.number)
            if before is not None:
                before.ended = True
                delivery.release(before)
            self._alone[delivery.number] = session
        self._sessions.setdefault(delivery.number, set()).add(session)
        self._wake(delivery, everybody=alone)
        return session

    def close_stream(self, delivery: Delivery, session: Session) -> None:
        """End a stream: what it held unacked goes to whoever reads the subscription next."""
        delivery.release(session)
        if self._alone.get(delivery.number) is session:
            del self._alone[delivery.number]
        sessions = self._sessions.get(delivery.number, set())
        sessions.discard(session)
        if not sessions:
            self._sessions.pop(delivery.number, None)
        self.wake(delivery)

    def deleted(self, number: int) -> None:
        """A subscription was removed: its streams and pulls end."""
        self._used_s.pop(number, None)
        self._pullers.pop(number, None)
        delivery = self._deliveries.pop(number, None)
        if delivery is not None:
            delivery.deleted = True
            self._wake(delivery, everybody=True)

    def skip_trimmed(self, delivery: Delivery) -> None:
        """Retention took events that the delivery stood at: it goes on where the log begins."""
        delivery.ack_up_to((self._log.start() << INDEX_BITS) - 1)

    def wake(self, delivery: Delivery) -> None:
        """Something about the delivery changed (an ack, a nack): look whether somebody can go on."""
        if delivery in self._waiting:
            self._behind.add(delivery)
            self._stirred.set()
            self._wake(delivery)

    def look_again(self) -> None:
        """Something may be readable that was not: let all who wait look."""
        self._behind.update(self._waiting)
        self._stirred.set()

    async def wait(
        self, delivery: Delivery, session: Session, timeout_s: float, gone: asyncio.Future[None]
    ) -> None:
        """Wait until there is a message for the session, it is to end, or the time is over.

        ``gone`` is done when the client has gone.
        """
        if self.closing or delivery.deleted:
            return
        self.read_on(delivery)
        if delivery.has_message(session):
            await asyncio.sleep(0)  # others have their turn between two messages of a busy subscription
            return
        waiters = self._waiting.setdefault(delivery, {})
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters[future] = session
        self._behind.add(delivery)
        self._stirred.set()
        try:
            await asyncio.wait((future, gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del waiters[future]
            if not waiters and self._waiting.get(delivery) is waiters:
                del self._waiting[delivery]
                self._behind.discard(delivery)

    async def save(self, delivery: Delivery) -> None:
        """Save the delivery's cursor; durable on return."""
        mark = delivery.mark()
        await self._writer.save_cursors([(delivery.number, mark)])
        delivery.saved(mark)

    async def save_progress(self) -> None:
        """Save the cursors that moved over events that did not match, and forget who has gone.

        What cannot be saved is told to the log and tried again the next time: nothing else waits for it.
        """
        now_s = time.monotonic()
        for number, used_s in list(self._used_s.items()):
            delivery = self._deliveries[number]
            if delivery in self._waiting or number in self._sessions:
                self._used_s[number] = now_s
                continue
            delivery.forget_unread()
            if now_s - used_s > IDLE_FORGOTTEN_S:
                delivery.expire(now_s)
                if not delivery.in_flight and delivery.is_saved:
                    del self._deliveries[number], self._used_s[number]
                    self._pullers.pop(number, None)
        marks = [(each, each.mark()) for each in self._deliveries.values() if not each.is_saved]
        for start in range(0, len(marks), SAVED_AT_ONCE):
            some = marks[start : start + SAVED_AT_ONCE]
            try:
                await self._writer.save_cursors([(each.number, mark) for each, mark in some])
            except (StorageError, ValueError) as error:
                logger.error("some of %d cursors could not be saved: %s", len(some), error)
                continue
            for each, mark in some:
                each.saved(mark)

    async def _run(self) -> None:
        while True:
            while not self._waiting:
                self._stirred.clear()
                await self._stirred.wait()
            self._stirred.clear()
            try:
                busy = self._turn(time.monotonic())
            except Exception:
                logger.exception("a look for matches failed")
                busy = False
                await asyncio.sleep(0.5)
            if busy:
                await asyncio.sleep(0)
            elif self._tail.tip < self._writer.log_end:
                await asyncio.sleep(self._poll_s)
            else:
                await self._sleep_until_stirred()

    async def _sleep_until_stirred(self) -> None:
        """All is matched: sleep until an append, a new reader or an ack; or until a lease runs out."""
        now_s = time.monotonic()
        deadlines_s = [due_s for each in self._waiting if (due_s := each.next_deadline_s) is not None]
        idle_s = min([max(due_s - now_s, EXPIRY_EVERY_S) for due_s in deadlines_s] + [IDLE_LOOK_S])
        waker = asyncio.get_running_loop().call_later(idle_s, self._stirred.set)
        try:
            await self._stirred.wait()
        finally:
            waker.cancel()

    def _turn(self, now_s: float) -> bool:
        """One look for everybody who waits; whether another should follow at once."""
        self._tail.advance()
        if self._tail.tip != self._seen_tip:  # others follow the tail too
            self._seen_tip = self._tail.tip
            self._behind.update(self._waiting)
        if now_s >= self._expiry_due_s:
            self._expiry_due_s = now_s + EXPIRY_EVERY_S
            for delivery in list(self._waiting):
                if delivery.expire(now_s):
                    self._wake(delivery)
        return self._feed_behind(now_s + TURN_MAX_S)

    def _feed_behind(self, until_s: float) -> bool:
        while self._behind:
            groups: dict[int, list[Delivery]] = {}
            for delivery in list(self._behind):
                offset = delivery.read_to >> INDEX_BITS
                if not delivery.wants_feed:
                    self._behind.discard(delivery)
                    self._wake(delivery)
                elif offset >= self._tail.tip:
                    self._behind.discard(delivery)
                else:
                    groups.setdefault(offset, []).append(delivery)
            for offset in sorted(groups):
                self._feed_group(offset, groups[offset])
                if time.monotonic() >= until_s:
                    return bool(self._behind)
        return False

    def read_on(self, delivery: Delivery) -> bool:
        """Read for one that has nothing to give, some milliseconds at most; whether more is there."""
        until_s = time.monotonic() + TURN_MAX_S
        while delivery.wants_feed:
            offset = delivery.read_to >> INDEX_BITS
            if offset >= self._tail.tip and not self._tail.advance():
                return False
            if time.monotonic() >= until_s:
                return True
            self._feed_group(offset, [delivery])
            if delivery.read_to >> INDEX_BITS == offset:
                return False  # a gap, which has been reported
        return False

    def _feed_group(self, offset: int, deliveries: list[Delivery]) -> None:
        """One look into the block at an offset, for all who have read up to there."""
        block = self._tail.block_at(offset)
        if block is None:
            # Retention took it, with the events; what is left begins where the log does.
            kept_from = self._log.start()
            for delivery in deliveries:
                if kept_from > offset:
                    delivery.feed(_NO_KEYS, kept_from << INDEX_BITS)
                else:
                    self._behind.discard(delivery)
            if kept_from <= offset < self._tail.tip:
                self._tail.gap_seen = True
            return
        end = block.end << INDEX_BITS
        try:
            for delivery, is_matched in _who_matched(block, deliveries):
                keys = keys_in(block, delivery.number) if is_matched else _NO_KEYS
                delivery.feed(keys, end)
                if len(keys):
                    self._wake(delivery)
        except MatchLogError as error:
            # It is set aside in a moment; those who have not been fed look again then.
            self._tail.report(error)
            self._behind.difference_update(deliveries)

    def _wake(self, delivery: Delivery, *, everybody: bool = False) -> None:
        for future, session in self._waiting.get(delivery, {}).items():
            if not future.done() and (everybody or delivery.has_message(session)):
                future.set_result(None)


_NO_KEYS = np.empty(0, dtype=np.int64)


def _who_matched(block: MatchBlock, deliveries: list[Delivery]) -> Iterable[tuple[Delivery, bool]]:
    """The deliveries, each with whether it may have matches in the block.

    To read the numbers of all that matched is to decode the whole block: for a few it is cheaper to look each
    of them up, in the order of their numbers so that what is decoded for one serves the next.
    """
    if len(deliveries) <= LOOKED_UP_MAX:
        return ((delivery, True) for delivery in sorted(deliveries, key=attrgetter("number")))
    numbers = np.array([delivery.number for delivery in deliveries], dtype=np.uint32)
    return zip(deliveries, np.isin(numbers, block.numbers()).tolist(), strict=True)


def keys_in(block: MatchBlock, number: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A subscription's matches in a block, as keys in order."""
    offsets, indexes = block.matches_of(number)
    return offsets.astype(np.int64) << INDEX_BITS | indexes.astype(np.int64)
