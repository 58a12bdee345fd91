"""Delivery of matches to waiting subscribers: the I/O that `ReadScheduler` asks for.

A subscription without a reader costs nothing, and one whose reader waits without new matches next to nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from fieldfare.delivery.cursor_snapshot import with_start
from fieldfare.delivery.delivery import CursorSnapshot, Delivery, Session
from fieldfare.delivery.keys import NO_KEYS, PARTITION_SHIFT
from fieldfare.delivery.read_scheduler import (
    Matched,
    ReadDone,
    ReadMatches,
    ReadScheduler,
    Ready,
    RetryRead,
    StopWaiting,
    Wait,
)
from fieldfare.gateway.delivery.loading import Loader, Saved
from fieldfare.gateway.delivery.match_log_follower import MatchLogFollower, ReadResult
from fieldfare.gateway.delivery.rate_limiter import DeliveryRateLimiter
from fieldfare.gateway.delivery.records import RecordCache, Write
from fieldfare.gateway.delivery.replays import OwnReplay, Replays
from fieldfare.gateway.delivery.waiter import FairScheduler, Waiter
from fieldfare.gateway.fair_queue import NO_NAME
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.problems import WriterClosed
from fieldfare.gateway.tracing import Tracer
from fieldfare.gateway.writer import Writer
from fieldfare.model import Subscription
from fieldfare.runtimes.machines import MachineRunner
from fieldfare.storage.errors import RegistryError, StorageError
from fieldfare.storage.event_log import EventReader, starts_of
from fieldfare.storage.registry import Registry

logger = logging.getLogger("fieldfare.gateway.delivery.service")

FED_BATCH_SIZE = 100
"""Maximum deliveries fed with a read's matches in one step on the event loop; then other tasks run."""

IDLE_FORGOTTEN_S = 60.0
BROUGHT_BATCH_SIZE = 1_000
"""Maximum cursors advanced per round over events that did not match; the rest follow in later rounds."""

MARKED_BATCH_SIZE = 200
"""Maximum cursors saved in one transaction, so that their snapshots take little time."""

LOOKED_BATCH_SIZE = 500
"""Deliveries that `save_progress` checks before it lets other tasks run."""

NAMED_BATCH_SIZE = 500
"""Maximum messages whose ordering keys are read in one batch; more take further batches."""

SCHEDULER = "read scheduler"

REPLAY_LOOK_S = 0.05
"""Polling interval for replayed matches that a subscriber waits for, in seconds."""


class DeliveryService:
    """The deliveries of all recently read subscriptions.

    Parameters
    ----------
    log, registry
        The event log, for its start offsets, and the registry, for saved cursors.
    tail
        Reads the match log.
    replays
        Read the match logs of subscriptions that start before their creation.
    records
        The events' bytes.
    rate_limiter
        Limits the bytes sent to each space.
    writer
        Saves cursors, and reports appends.
    metrics, tracer
        Count each new block, and record when messages are composed; transports record when they are sent.
    window_max
        Maximum messages in flight for all pulls of one subscription together.
    letters_max
        Maximum dead letters of one subscription.
    """

    def __init__(
        self,
        log: EventReader,
        registry: Registry,
        tail: MatchLogFollower,
        replays: Replays,
        records: RecordCache,
        rate_limiter: DeliveryRateLimiter,
        writer: Writer,
        metrics: Metrics,
        tracer: Tracer,
        *,
        window_max: int,
        letters_max: int,
    ) -> None:
        self._log, self._tail, self._records, self._replays = log, tail, records, replays
        self._loader, self.rate_limiter = Loader(registry, replays), rate_limiter
        self._writer, self._metrics, self.tracer = writer, metrics, tracer
        self._window_max, self._letters_max = window_max, letters_max
        self._replay_of: dict[int, OwnReplay] = {}
        self._name_of: dict[int, tuple[str, str]] = {}
        self._scheduler = ReadScheduler(tail.tips, self._replay_of)
        self._runner = MachineRunner({ReadMatches: self._look}, {Ready: self._ready}, logger=logger)
        self._dispatch = partial(self._runner.dispatch, SCHEDULER)
        self.loaded: dict[int, Delivery] = {}
        """The deliveries in memory, by subscription number."""
        self._loading: dict[int, asyncio.Task[tuple[Saved, Delivery]]] = {}
        self._pullers: dict[int, Session] = {}
        self._idle_s: dict[int, float] = {}
        """Start of each unused delivery's idle time, by subscription number (monotonic seconds)."""
        self._sessions: dict[int, set[Session]] = {}
        self._alone: dict[int, Session] = {}
        self._waiting: dict[Delivery, set[Waiter]] = {}
        self.turns = FairScheduler(tail.stir, rate_limiter)
        self._pulled: dict[Delivery, int] = {}
        """Number of pulls in progress for each delivery."""
        self._to_bring: list[int] = []
        self._replay_reads: set[asyncio.Task[None]] = set()
        self._in_replay: set[Delivery] = set()
        """Deliveries whose replay is being read for a waiter."""
        self._urgent: set[Delivery] = set()
        self._saving: asyncio.Task[None] | None = None
        self._on_change: list[Callable[[int, Subscription | None], None]] = []
        self.on_saved: Callable[[Delivery], None] = lambda delivery: None
        """Called with each delivery whose cursor was saved."""
        self.connected = 0
        """Number of open streams."""
        self.closing = False

    def start(self) -> None:
        """Start on the running event loop."""
        self._writer.call_on_append(self._tail.stir)
        self._runner.add(SCHEDULER, self._scheduler)

    def end_sessions(self) -> None:
        """Wake all waiters so that they end: the gateway stops."""
        self.closing = True
        for delivery in list(self._waiting):
            self._wake(delivery, everybody=True)

    async def close(self) -> None:
        """Stop reading, and save the cursors of all deliveries."""
        self.end_sessions()
        self._tail.close()
        await self._runner.close()
        for task in self._replay_reads:
            task.cancel()
        saving = [] if self._saving is None else [self._saving]
        await asyncio.gather(*self._replay_reads, *self._loading.values(), *saving, return_exceptions=True)
        for delivery in self.loaded.values():
            self._scheduler.bring(delivery)
        await self._save_all()

    def delivery_of(self, subscription: Subscription) -> Delivery | None:
        """Return the delivery of a subscription; None when it must be read with `load` first."""
        delivery = self.loaded.get(subscription.number)
        if delivery is not None:
            if delivery.settings is not subscription.delivery:
                self.configure(subscription)
            self._scheduler.bring(delivery)
            self._used(delivery)
        return delivery

    async def load(self, subscription: Subscription) -> None:
        """Read a delivery from its saved cursor, unless the subscription is deleted meanwhile.

        Concurrent calls share one read, so that an earlier read cannot overwrite a cursor saved later.
        """
        number = subscription.number
        loading = self._loading.get(number)
        if loading is None:
            read = self._read(subscription)
            loading = self._loading[number] = asyncio.get_running_loop().create_task(read)
            loading.add_done_callback(partial(self._loaded, subscription))
        await asyncio.wait((loading,))
        loading.result()

    async def _read(self, subscription: Subscription) -> tuple[Saved, Delivery]:
        number, saved = subscription.number, await self._loader.load(subscription)
        # A partition added after the subscription is read from its start.
        begins = (*subscription.valid_from, *(0 for _ in self._log.partitions))[: len(self._log.partitions)]
        # A new cursor is at the start already, but a damaged registry may have lost it.
        cursor = with_start(saved.cursor, subscription.start or ())
        try:
            return saved, Delivery.from_cursor(number, cursor, begins)
        except ValueError as error:
            raise RegistryError(f"the cursor of subscription {number} cannot be used: {error}") from error

    def _loaded(self, subscription: Subscription, loading: asyncio.Task[tuple[Saved, Delivery]]) -> None:
        number = subscription.number
        if self._loading.get(number) is loading:
            del self._loading[number]
            if not loading.cancelled() and loading.exception() is None:
                saved, delivery = loading.result()
                if saved.replay is not None:
                    self._replay_of[number] = saved.replay
                delivery.tries.listed, delivery.tries.listed_max = saved.letters, self._letters_max
                delivery.tries.unheard = set(saved.unheard)
                delivery.configure(subscription.delivery)
                self.loaded[number] = delivery
                self._name_of[number] = subscription.space, subscription.id
                self._used(delivery)

    def readers(self, delivery: Delivery) -> int:
        """Return the number of a delivery's open streams and pulls under way."""
        return len(self._sessions.get(delivery.number, ())) + self._pulled.get(delivery, 0)

    def is_read(self, number: int, besides: Session | None = None) -> bool:
        """Whether a session other than ``besides`` has a stream of a subscription open, or waits for it."""
        if any(session is not besides for session in self._sessions.get(number, ())):
            return True
        delivery = self.loaded.get(number)
        return delivery is not None and any(
            waiter.session is not besides for waiter in self._waiting.get(delivery, ())
        )

    def call_on_change(self, changed: Callable[[int, Subscription | None], None]) -> None:
        """Call a function with each changed subscription's number and settings, None for a deleted one."""
        self._on_change.append(changed)

    def configure(self, subscription: Subscription) -> None:
        """Apply a subscription's new settings to its delivery."""
        for changed in self._on_change:
            changed(subscription.number, subscription)
        delivery = self.loaded.get(subscription.number)
        if delivery is None or delivery.settings == subscription.delivery:
            return
        delivery.configure(subscription.delivery)
        self.wake(delivery)  # a paused delivery, or one at its in-flight limit, may resume

    def seek(self, delivery: Delivery, keys: Sequence[int]) -> None:
        """Move a delivery to other positions, one key per partition."""
        self._dispatch(StopWaiting(delivery))
        delivery.seek(keys)
        self.wake(delivery)

    def puller(self, delivery: Delivery) -> Session:
        """Return the session that all pulls of a subscription share."""
        session = self._pullers.get(delivery.number)
        if session is None:
            session = self._pullers[delivery.number] = Session(self._window_max, is_shared=True)
        return session

    @contextmanager
    def pulled(self, delivery: Delivery) -> Iterator[Session]:
        """Keep a delivery in memory during a pull, however long it takes; yield the pulls' shared session.

        If the delivery were dropped and read again, two copies with different states would be in use.
        """
        self._pulled[delivery] = self._pulled.get(delivery, 0) + 1
        self._used(delivery)
        try:
            yield self.puller(delivery)
        finally:
            self._pulled[delivery] -= 1
            if not self._pulled[delivery]:
                del self._pulled[delivery]
            self._used(delivery)

    def open_stream(self, delivery: Delivery, window: int, *, alone: bool = False) -> Session:
        """Open a session for a stream; `close_stream` ends it.

        A session that is ``alone`` ends the previous one that was.
        """
        session = Session(window, is_auto=alone)
        if alone:
            before = self._alone.get(delivery.number)
            if before is not None:
                before.ended = True
                delivery.release(before)
            self._alone[delivery.number] = session
        self._sessions.setdefault(delivery.number, set()).add(session)
        self._used(delivery)
        if alone:
            self._wake(delivery, everybody=True)
        return session

    def close_stream(self, delivery: Delivery, session: Session) -> None:
        """End a stream: its unacknowledged messages go to the subscription's next reader."""
        keeps_keys = delivery.settings.order_by is not None
        is_news = (session.held > 0 or keeps_keys) and not delivery.deleted
        delivery.release(session)
        if self._alone.get(delivery.number) is session:
            del self._alone[delivery.number]
        sessions = self._sessions.get(delivery.number, set())
        sessions.discard(session)
        if not sessions:
            self._sessions.pop(delivery.number, None)
        if is_news:  # waking all others each time one of thousands ends would cost millions of checks
            self.wake(delivery)
        self._leave(delivery)

    def end_automatic_stream(self, delivery: Delivery) -> None:
        """End a stream with ``ack=auto`` that has sent all: its client settles them as it returns."""
        session = self._alone.get(delivery.number)
        if session is not None and session.held and delivery.wants_feed:
            session.ended = True
            self._wake(delivery, everybody=True)

    def deleted(self, number: int, moved: Mapping[str, str] | None = None) -> None:
        """End the streams and pulls of a deleted subscription, or of one that has ``moved``, and where."""
        for changed in self._on_change:
            changed(number, None)
        self._idle_s.pop(number, None)
        self._pullers.pop(number, None)
        self._loading.pop(number, None)
        self._replay_of.pop(number, None)
        self._name_of.pop(number, None)
        delivery = self.loaded.pop(number, None)
        if delivery is not None:
            delivery.deleted, delivery.moved = True, dict(moved or {})
            self._dispatch(StopWaiting(delivery))
            self._wake(delivery, everybody=True)

    async def compose(self, delivery: Delivery, keys: Sequence[int], write: Write, parts: list[bytes]) -> int:
        """Write the first of some messages that were taken; return how many were processed.

        That is at least one, unless `max_in_flight_bytes` leaves no room: then the caller gives the others
        back.
        """
        space, settings = self.space_of(delivery), delivery.settings
        fits = None if settings.max_in_flight_bytes is None else delivery.weigh
        composing = self._records.compose(
            space, keys, delivery.tries.counts, write, parts, settings.max_age_s, fits
        )
        if self.rate_limiter.bounds(space):
            composing = self.rate_limiter.paid(space, parts, composing)
        done, gone, over = await composing
        self.tracer.fetched(keys[:done], delivery.number, self._name_of.get(delivery.number, NO_NAME)[1])
        if over:
            self._metrics.over.inc(delivery.ack(over))
            self.wake(delivery)
        if gone:
            await self.skip_removed(delivery)  # First: backlogs do not count removed messages as settled.
            delivery.ack(gone)
        return done

    async def skip_removed(self, delivery: Delivery) -> None:
        """Settle the messages whose events retention has removed, up to where the log begins."""
        delivery.skip_to(await asyncio.to_thread(starts_of, self._log))
        self.wake(delivery)  # some may have waited for a message that no lease will bring back

    async def find_names(self, delivery: Delivery, session: Session) -> None:
        """Read the ordering keys of a session's next messages, if the subscription has ``order_by``."""
        while (path := delivery.settings.order_by) is not None:
            keys = delivery.to_name(session, NAMED_BATCH_SIZE)
            if not keys:
                break
            names = await self._records.names(self.space_of(delivery), keys, path)
            if delivery.settings.order_by == path:
                delivery.name(keys, names)
            self._wake(delivery)  # other sessions may wait for these keys

    def wake(self, delivery: Delivery) -> None:
        """Wake the waiters that can resume after a change of the delivery (an ack, a nack, a take)."""
        if delivery.is_urgent:
            self.save_soon(delivery)
        if delivery in self._waiting:
            self._wait_for(delivery)
            self._wake(delivery)

    def look_again(self) -> None:
        """Read again for all waiters: what was unreadable may be readable now."""
        self._dispatch(RetryRead())
        self._tail.look_again()

    @contextmanager
    def waiter(self, delivery: Delivery, session: Session, gone: asyncio.Future[None]) -> Iterator[Waiter]:
        """Yield a waiter for a session, registered until the context ends.

        ``gone`` is done when the client disconnects.
        """
        space = self.space_of(delivery)
        waiter = Waiter(delivery, session, space, gone, self.look_for, lambda: self.closing, self.turns)
        waiters = self._waiting.setdefault(delivery, set())
        waiters.add(waiter)
        self._used(delivery)
        gone.add_done_callback(waiter.wake)
        try:
            yield waiter
        finally:
            gone.remove_done_callback(waiter.wake)
            self.turns.remove(waiter)
            waiters.discard(waiter)
            if not waiters and self._waiting.get(delivery) is waiters:
                del self._waiting[delivery]
                self._leave(delivery)

    def look_for(self, delivery: Delivery) -> None:
        """Read matches for a delivery that has a waiter and no message to deliver."""
        self._wait_for(delivery)
        self._tail.stir()

    def _wait_for(self, delivery: Delivery) -> None:
        self._dispatch(Wait(delivery))
        if delivery not in self._in_replay and self._is_replay(delivery) and not self.closing:
            self._in_replay.add(delivery)
            task = asyncio.get_running_loop().create_task(self._read_replay(delivery))
            self._replay_reads.add(task)
            task.add_done_callback(self._replay_reads.discard)

    def _is_replay(self, delivery: Delivery) -> bool:
        """Whether the delivery's next matches are read from its replay."""
        replay = self._replay_of.get(delivery.number)
        return replay is not None and delivery.wants_feed and any(map(replay.holds, delivery.to_read()))

    async def _read_replay(self, delivery: Delivery) -> None:
        """Read a replay for a waiter until there is a message to deliver, or the replay has ended."""
        try:
            while delivery in self._waiting and not delivery.deleted and not self.closing:
                await self.read_on(delivery)
                if not self._is_replay(delivery):
                    break
                await asyncio.sleep(REPLAY_LOOK_S)
        finally:
            self._in_replay.discard(delivery)
        self.wake(delivery)

    async def read_on(self, delivery: Delivery) -> None:
        """Read until there is a message to deliver, or nothing more to read.

        For callers that want the available messages without waiting: waiters have theirs read automatically.
        """
        is_end = False
        while delivery.wants_feed and not delivery.deleted and not is_end:
            is_end = True
            for key in delivery.to_read():
                found = await self.read_from(delivery, key)
                self._used(delivery)
                if delivery.partitions[key >> PARTITION_SHIFT].read_to < key:
                    is_end = False  # matches read meanwhile were dropped before delivery
                elif found is not None:
                    is_end = False
                    delivery.feed(found.keys[0][1] if found.keys else NO_KEYS, found.read_to)

    async def read_from(self, delivery: Delivery, key: int) -> ReadResult | None:
        """Read a delivery's next matches from a key on; None at the end or when they cannot be read."""
        replay = self._replay_of.get(delivery.number)
        if replay is not None and replay.holds(key):
            found = await self._replays.read(replay, key, self.space_of(delivery))
            if replay.holds(key):
                return found
        return await self._tail.read_subscription(key, delivery.number, self.space_of(delivery))

    def expire(self, delivery: Delivery) -> None:
        """Expire overdue leases of a delivery without waiters, so that its dead letters are up to date."""
        if delivery.expire(time.monotonic()):
            self.wake(delivery)

    async def save(self, delivery: Delivery) -> CursorSnapshot:
        """Save the delivery's cursor; return the snapshot, which is durable then."""
        mark = delivery.mark()
        await self._writer.save_cursors([(delivery.number, mark)])
        self._saved(delivery, mark)
        return mark

    def _saved(self, delivery: Delivery, mark: CursorSnapshot) -> None:
        delivery.saved(mark)
        self.on_saved(delivery)
        if mark.letters:
            self._wake(delivery)  # delivery stops while too many dead letters are unsaved

    async def save_progress(self) -> None:
        """Save the cursors that advanced over events that did not match, and drop idle deliveries.

        A failed save is logged and retried in the next round: nothing else waits for it.
        """
        now_s = time.monotonic()
        for at, (number, idle_s) in enumerate(list(self._idle_s.items())):
            if at % LOOKED_BATCH_SIZE == LOOKED_BATCH_SIZE - 1:
                await asyncio.sleep(0)
            if number not in self._idle_s:
                continue
            delivery = self.loaded[number]
            delivery.forget_unread()
            if now_s - idle_s > IDLE_FORGOTTEN_S:
                delivery.expire(now_s)
                if delivery.is_idle and delivery.is_saved:
                    del self.loaded[number], self._idle_s[number]
                    self._pullers.pop(number, None)
                    self._replay_of.pop(number, None)
                    self._name_of.pop(number, None)
        await self._advance_some_cursors()
        await self._save_all(rests=True)

    async def _advance_some_cursors(self) -> None:
        """Advance the cursors of some deliveries over events that did not match, round robin."""
        if not self._to_bring:
            self._to_bring = list(self.loaded)
        some, self._to_bring = self._to_bring[:BROUGHT_BATCH_SIZE], self._to_bring[BROUGHT_BATCH_SIZE:]
        for at, number in enumerate(some):
            if at % FED_BATCH_SIZE == FED_BATCH_SIZE - 1:
                await asyncio.sleep(0)
            delivery = self.loaded.get(number)
            if delivery is not None:
                self._scheduler.bring(delivery)

    async def _save_all(self, *, rests: bool = False) -> None:
        """Save all unsaved cursors; with ``rests``, leave half of the time to live messages."""
        unsaved = [each for each in self.loaded.values() if not each.is_saved]
        for start in range(0, len(unsaved), MARKED_BATCH_SIZE):
            began_s = time.monotonic()
            # Snapshots are taken per batch: no older one may overwrite what was acked and saved meanwhile.
            some = unsaved[start : start + MARKED_BATCH_SIZE]
            await self._save_some([(each, each.mark()) for each in some if not each.deleted])
            if rests:
                await asyncio.sleep(time.monotonic() - began_s)

    def save_soon(self, delivery: Delivery) -> None:
        """Save a delivery's cursor in the background, together with the other urgent ones."""
        self._metrics.given_up_messages.inc(delivery.tries.given_up)
        delivery.tries.given_up = 0
        self._urgent.add(delivery)
        if self._saving is None and not self.closing:
            self._saving = asyncio.get_running_loop().create_task(self._save_urgent())

    async def _save_urgent(self) -> None:
        """Save urgent cursors in successive transactions; what becomes urgent meanwhile goes into the next.

        A snapshot lists all messages with attempts: saving thousands of them after each redelivery would take
        too much time from other work, so saving pauses as long as it takes.
        """
        try:
            with suppress(WriterClosed):
                while self._urgent:
                    began_s = time.monotonic()
                    some = [self._urgent.pop() for _ in range(min(len(self._urgent), MARKED_BATCH_SIZE))]
                    await self._save_some([(each, each.mark()) for each in some if not each.deleted])
                    await asyncio.sleep(time.monotonic() - began_s)
        finally:
            self._saving = None

    async def _save_some(self, some: Sequence[tuple[Delivery, CursorSnapshot]]) -> None:
        try:
            await self._writer.save_cursors([(each.number, mark) for each, mark in some])
        except (StorageError, ValueError) as error:
            logger.error("some of %d cursors could not be saved: %s", len(some), error)
            return
        for each, mark in some:
            self._saved(each, mark)

    # Requests of the read scheduler

    def _ready(self, name: str, news: Ready) -> None:
        if news.delivery.is_urgent:
            self.save_soon(news.delivery)
        self._wake(news.delivery)

    async def _look(self, name: str, look: ReadMatches) -> ReadDone | None:
        group = look.group
        if self.closing:
            return None
        found = await (self._tail.follow(group) if look.follow else self._tail.read_behind(group))
        if found is None:
            return ReadDone(group, 0, None)
        for start in range(0, len(found.keys), FED_BATCH_SIZE):
            some = found.keys[start : start + FED_BATCH_SIZE]
            self._dispatch(Matched(group, some, found.end))
            await asyncio.sleep(0)
        if look.follow:
            self._tail.take_in(found)
            if found.block is not None:
                self._metrics.block_seen(found.block)
        return ReadDone(group, found.joined, found.end)

    def space_of(self, delivery: Delivery) -> str:
        """Return the key of a loaded delivery's space."""
        return self._name_of.get(delivery.number, NO_NAME)[0]

    def _used(self, delivery: Delivery) -> None:
        """Update a delivery's idle time: it is in use, or a waiter came or left."""
        number = delivery.number
        if delivery in self._waiting or delivery in self._pulled or number in self._sessions:
            self._idle_s.pop(number, None)
        elif self.loaded.get(number) is delivery:
            self._idle_s[number] = time.monotonic()

    def _leave(self, delivery: Delivery) -> None:
        """Stop reading matches for a delivery without readers."""
        self._used(delivery)
        if delivery not in self._waiting and delivery.number not in self._sessions:
            self._dispatch(StopWaiting(delivery))

    def _wake(self, delivery: Delivery, *, everybody: bool = False) -> None:
        for waiter in self._waiting.get(delivery, ()):
            if everybody or delivery.has_message(waiter.session):
                waiter.wake()
