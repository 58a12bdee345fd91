"""Bringing matches to those who wait for them: what `Frontier` asks for is done here.

Nothing is done for a subscription that nobody reads, and next to nothing for one that is waited for while
nothing matches it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from fieldfare.delivery.delivery import Delivery, Mark, Session
from fieldfare.delivery.frontier import (
    Expire,
    Frontier,
    Look,
    LookAgain,
    Looked,
    Matched,
    Message,
    Ready,
    StopWaiting,
    Wait,
)
from fieldfare.delivery.keys import NO_KEYS, PARTITION_SHIFT
from fieldfare.effects import Ask, Effect, Tell, Timer
from fieldfare.gateway.delivery.loading import Loader, Saved
from fieldfare.gateway.delivery.match_tail import LookResult, MatchTail
from fieldfare.gateway.delivery.pasts import OwnPast, Pasts
from fieldfare.gateway.delivery.rations import Rations
from fieldfare.gateway.delivery.records import PARTS, RecordCache, Write
from fieldfare.gateway.delivery.waiter import ServingTurns, Waiter
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.turns import NOBODY
from fieldfare.gateway.writer import Writer, WriterClosed
from fieldfare.model import Subscription
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import EventReader, starts_of
from fieldfare.storage.registry import Registry

logger = logging.getLogger("fieldfare.gateway.delivery.pump")

FED_AT_ONCE = 100
"""Those whom one look found matches for are fed in steps of so many."""

IDLE_FORGOTTEN_S = 60.0
BROUGHT_AT_ONCE = 1_000
"""So many cursors that only passed over what did not match are saved a round: what is not saved is read again
after a crash, by all of them together."""

MARKED_AT_ONCE = 200
"""Cursors of one transaction: to see where so many stand is little work."""

LOOKED_AT_ONCE = 500
"""After so many deliveries the lazy saving of cursors lets others have their turn."""

NAMED_AT_ONCE = 500
"""Messages whose ordering keys are read at once, and drawn for it."""

RETRY_S = 0.5

PAST_LOOK_S = 0.05
"""So often it is looked whether more of a past is matched that somebody waits for."""


class Pump:
    """The deliveries of all subscriptions that somebody has lately read.

    Parameters
    ----------
    log, registry
        For where the log begins, and for saved cursors.
    tail
        Looks into the match log.
    pasts
        Look into the logs of those that began in the past.
    records
        Has the events.
    rations
        Say how much may be sent.
    writer
        Saves cursors, and says when something was appended.
    metrics
        Are told of each block that appears.
    window_max
        The window that all pulls of one subscription share.
    letters_max
        How many messages that were given up each may have.
    """

    def __init__(
        self,
        log: EventReader,
        registry: Registry,
        tail: MatchTail,
        pasts: Pasts,
        records: RecordCache,
        rations: Rations,
        writer: Writer,
        metrics: Metrics,
        *,
        window_max: int,
        letters_max: int,
    ) -> None:
        self._log = log
        self._loader = Loader(registry, pasts)
        self._tail = tail
        self._records = records
        self._writer = writer
        self._metrics = metrics
        self._window_max = window_max
        self._letters_max = letters_max
        self._pasts = pasts
        self._past_of: dict[int, OwnPast] = {}
        self._space_of: dict[int, str] = {}
        self._frontier = Frontier(tail.tips, self._past_of)
        self._deliveries: dict[int, Delivery] = {}
        self._loading: dict[int, asyncio.Task[Saved]] = {}
        self._pullers: dict[int, Session] = {}
        self._idle_s: dict[int, float] = {}
        """Since when nobody waits for those deliveries that nobody waits for."""
        self._sessions: dict[int, set[Session]] = {}
        self._alone: dict[int, Session] = {}
        self._waiting: dict[Delivery, set[Waiter]] = {}
        self.rations = rations
        self.turns = ServingTurns(tail.stir, rations)
        self._pulled: dict[Delivery, int] = {}
        """How many pulls are at work on a delivery."""
        self._to_bring: list[int] = []
        self._looks: set[asyncio.Task[None]] = set()
        self._in_past: set[Delivery] = set()
        """Those whose own logs are being read for somebody who waits."""
        self._urgent: set[Delivery] = set()
        self._saving: asyncio.Task[None] | None = None
        self._on_change: list[Callable[[int, Subscription | None], None]] = []
        self.connected = 0
        """How many streams clients have open."""
        self.closing = False

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._writer.call_on_append(self._tail.stir)
        self._carry_out(self._frontier.start(time.monotonic()))

    def end_sessions(self) -> None:
        """The gateway stops: wake everybody, so that they end."""
        self.closing = True
        for delivery in list(self._waiting):
            self._wake(delivery, everybody=True)

    async def close(self) -> None:
        """End the looks and save how far every delivery has come."""
        self.end_sessions()
        self._tail.close()
        for task in self._looks:
            task.cancel()
        saving = [] if self._saving is None else [self._saving]
        await asyncio.gather(*self._looks, *self._loading.values(), *saving, return_exceptions=True)
        for delivery in self._deliveries.values():
            self._frontier.bring(delivery)
        await self._save_all()

    def delivery_of(self, subscription: Subscription) -> Delivery | None:
        """The delivery of a subscription; None when it has to be read with `load` first."""
        delivery = self._deliveries.get(subscription.number)
        if delivery is not None:
            if delivery.settings is not subscription.delivery:
                self.configure(subscription)
            self._frontier.bring(delivery)
            self._used(delivery)
        return delivery

    async def load(self, subscription: Subscription) -> None:
        """Read a delivery from its saved cursor, unless the subscription is deleted meanwhile.

        At a time it is read once: what is saved afterwards is not saved over by who has read before.
        """
        number = subscription.number
        loading = self._loading.get(number)
        if loading is None:
            read = self._loader.load(subscription)
            loading = self._loading[number] = asyncio.get_running_loop().create_task(read)
            loading.add_done_callback(partial(self._loaded, subscription))
        await asyncio.wait((loading,))
        loading.result()

    def _loaded(self, subscription: Subscription, loading: asyncio.Task[Saved]) -> None:
        number = subscription.number
        if self._loading.get(number) is loading:
            del self._loading[number]
            if not loading.cancelled() and loading.exception() is None:
                # A partition that came later than the subscription is read from its start.
                begins = (*subscription.valid_from, *(0 for _ in self._log.partitions))
                begins = begins[: len(self._log.partitions)]
                saved = loading.result()
                if saved.past is not None:
                    self._past_of[number] = saved.past
                delivery = Delivery.from_cursor(number, saved.cursor, begins)
                delivery.tries.listed, delivery.tries.listed_max = saved.letters, self._letters_max
                delivery.configure(subscription.delivery)
                self._deliveries[number] = delivery
                self._space_of[number] = subscription.space
                self._used(delivery)

    def is_read(self, number: int, besides: Session | None = None) -> bool:
        """Whether somebody has a stream of a subscription open, or waits for it, besides one session."""
        if any(session is not besides for session in self._sessions.get(number, ())):
            return True
        delivery = self._deliveries.get(number)
        return delivery is not None and any(
            waiter.session is not besides for waiter in self._waiting.get(delivery, ())
        )

    def call_on_change(self, changed: Callable[[int, Subscription | None], None]) -> None:
        """From now on say, by its number, which subscription has new settings, or is removed (None)."""
        self._on_change.append(changed)

    def configure(self, subscription: Subscription) -> None:
        """The settings of a subscription's delivery are these now."""
        for changed in self._on_change:
            changed(subscription.number, subscription)
        delivery = self._deliveries.get(subscription.number)
        if delivery is None or delivery.settings is subscription.delivery:
            return
        delivery.configure(subscription.delivery)
        self.wake(delivery)  # what was paused, or had as many in flight as it may, goes on

    def seek(self, delivery: Delivery, keys: Sequence[int]) -> None:
        """Set a delivery to another place."""
        self._hand_in(StopWaiting(delivery))
        delivery.seek(keys)
        self.wake(delivery)

    def puller(self, delivery: Delivery) -> Session:
        """The session that all pulls of a subscription share."""
        session = self._pullers.get(delivery.number)
        if session is None:
            session = self._pullers[delivery.number] = Session(self._window_max, is_shared=True)
        return session

    @contextmanager
    def pulled(self, delivery: Delivery) -> Iterator[Session]:
        """For as long as this is open a delivery is not forgotten, however long the disk takes.

        It has the session that all pulls of a subscription share. Were the delivery forgotten, others would
        read it again, and what the two of them know of where it stands would be mixed up.
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
        """A session of its own for a stream; `close_stream` ends it.

        One that is to be ``alone`` ends the one before it that was.
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
        """End a stream: what it held unacked goes to whoever reads the subscription next."""
        keeps_keys = delivery.settings.order_by is not None
        is_news = (session.held > 0 or keeps_keys) and not delivery.deleted
        delivery.release(session)
        if self._alone.get(delivery.number) is session:
            del self._alone[delivery.number]
        sessions = self._sessions.get(delivery.number, set())
        sessions.discard(session)
        if not sessions:
            self._sessions.pop(delivery.number, None)
        if is_news:  # all others look at it: for thousands that end together that would be millions of looks
            self.wake(delivery)
        self._leave(delivery)

    def deleted(self, number: int) -> None:
        """A subscription was removed: its streams and pulls end."""
        for changed in self._on_change:
            changed(number, None)
        self._idle_s.pop(number, None)
        self._pullers.pop(number, None)
        self._loading.pop(number, None)
        self._past_of.pop(number, None)
        self._space_of.pop(number, None)
        delivery = self._deliveries.pop(number, None)
        if delivery is not None:
            delivery.deleted = True
            self._hand_in(StopWaiting(delivery))
            self._wake(delivery, everybody=True)

    async def compose(self, delivery: Delivery, keys: Sequence[int], write: Write, parts: list[bytes]) -> int:
        """Write the first of some messages that were taken; how many of them this has dealt with."""
        before, space = len(parts), self._space(delivery)
        settings = delivery.settings
        composing = self._records.compose(
            space, keys, delivery.tries.counts, write, parts, settings.max_age_s
        )
        if self.rations.bounds(space):
            composing = self.rations.paid(space, parts, composing)
        done, gone, over = await composing
        if settings.max_in_flight_bytes is not None:
            written = [key for key in keys[:done] if key not in gone and key not in over]
            sizes = [sum(map(len, parts[at : at + PARTS])) for at in range(before, len(parts), PARTS)]
            delivery.weigh(written, sizes)
        if over:
            self._metrics.over.inc(delivery.ack(over))
            self.wake(delivery)
        if gone:
            # Retention took events that the delivery stood at: it goes on where the log begins.
            delivery.ack(gone)
            delivery.skip_to(await asyncio.to_thread(starts_of, self._log))
        return done

    async def find_names(self, delivery: Delivery, session: Session) -> None:
        """Read the ordering keys of what a session is to be given next, where messages are ordered by key."""
        while (path := delivery.settings.order_by) is not None:
            keys = delivery.to_name(session, NAMED_AT_ONCE)
            if not keys:
                break
            names = await self._records.names(self._space(delivery), keys, path)
            if delivery.settings.order_by == path:
                delivery.name(keys, names)
            self._wake(delivery)  # others may have waited for the same

    def wake(self, delivery: Delivery) -> None:
        """Something about the delivery changed (an ack, a nack, a take): look whether somebody can go on."""
        if delivery.is_urgent:
            self.save_soon(delivery)
        if delivery in self._waiting:
            self._wait_for(delivery)
            self._wake(delivery)

    def look_again(self) -> None:
        """Something may be readable that was not: let all who wait look."""
        self._hand_in(LookAgain())
        self._tail.look_again()

    @contextmanager
    def waiter(self, delivery: Delivery, session: Session, gone: asyncio.Future[None]) -> Iterator[Waiter]:
        """What a session waits with, for as long as this is open.

        ``gone`` is done when the client has gone.
        """
        space = self._space(delivery)
        waiter = Waiter(delivery, session, space, gone, self.look_for, lambda: self.closing, self.turns)
        waiters = self._waiting.setdefault(delivery, set())
        waiters.add(waiter)
        self._used(delivery)
        gone.add_done_callback(waiter.wake)
        try:
            yield waiter
        finally:
            gone.remove_done_callback(waiter.wake)
            self.turns.leave(waiter)
            waiters.discard(waiter)
            if not waiters and self._waiting.get(delivery) is waiters:
                del self._waiting[delivery]
                self._leave(delivery)

    def look_for(self, delivery: Delivery) -> None:
        """Somebody waits, and there is nothing to give."""
        self._wait_for(delivery)
        self._tail.stir()

    def _wait_for(self, delivery: Delivery) -> None:
        self._hand_in(Wait(delivery))
        if delivery not in self._in_past and self._is_past(delivery) and not self.closing:
            self._in_past.add(delivery)
            task = asyncio.get_running_loop().create_task(self._read_past(delivery))
            self._looks.add(task)
            task.add_done_callback(self._looks.discard)

    def _is_past(self, delivery: Delivery) -> bool:
        """Whether what comes next is read from the delivery's own log."""
        past = self._past_of.get(delivery.number)
        return past is not None and delivery.wants_feed and any(map(past.holds, delivery.to_read()))

    async def _read_past(self, delivery: Delivery) -> None:
        """Read for one who waits until there is something to give, or its past is over."""
        try:
            while delivery in self._waiting and not delivery.deleted and not self.closing:
                await self.read_on(delivery)
                if not self._is_past(delivery):
                    break
                await asyncio.sleep(PAST_LOOK_S)
        finally:
            self._in_past.discard(delivery)
        self.wake(delivery)

    async def read_on(self, delivery: Delivery) -> None:
        """Read until there is something to give, or nothing more to read.

        Those who wait are read for by themselves; this is for who does not, and wants what is there now.
        """
        is_end = False
        while delivery.wants_feed and not delivery.deleted and not is_end:
            is_end = True
            for key in delivery.to_read():
                found = await self._look_for(delivery, key)
                self._used(delivery)
                if delivery.lanes[key >> PARTITION_SHIFT].read_to < key:
                    is_end = False  # what was read meanwhile, and not given, was forgotten
                elif found is not None:
                    is_end = False
                    delivery.feed(found.keys[0][1] if found.keys else NO_KEYS, found.read_to)

    async def _look_for(self, delivery: Delivery, key: int) -> LookResult | None:
        past = self._past_of.get(delivery.number)
        if past is not None and past.holds(key):
            found = await self._pasts.look(past, key, self._space(delivery))
            if past.holds(key):
                return found
        return await self._tail.look_for_one(key, delivery.number, self._space(delivery))

    def expire(self, delivery: Delivery) -> None:
        """End what has run out, though nobody waits: somebody wants to see what was given up."""
        if delivery.expire(time.monotonic()):
            self.wake(delivery)

    async def save(self, delivery: Delivery) -> Mark:
        """Save the delivery's cursor; what is durable on return."""
        mark = delivery.mark()
        await self._writer.save_cursors([(delivery.number, mark)])
        self._saved(delivery, mark)
        return mark

    def _saved(self, delivery: Delivery, mark: Mark) -> None:
        delivery.saved(mark)
        if mark.letters:
            self._wake(delivery)  # with too many of them unsaved nothing is given

    async def save_progress(self) -> None:
        """Save the cursors that moved over events that did not match, and forget who has gone.

        What cannot be saved is told to the log and tried again the next time: nothing else waits for it.
        """
        now_s = time.monotonic()
        for at, (number, idle_s) in enumerate(list(self._idle_s.items())):
            if at % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
                await asyncio.sleep(0)
            if number not in self._idle_s:
                continue
            delivery = self._deliveries[number]
            delivery.forget_unread()
            if now_s - idle_s > IDLE_FORGOTTEN_S:
                delivery.expire(now_s)
                if delivery.is_idle and delivery.is_saved:
                    del self._deliveries[number], self._idle_s[number]
                    self._pullers.pop(number, None)
                    self._past_of.pop(number, None)
                    self._space_of.pop(number, None)
        await self._bring_some()
        await self._save_all(rests=True)

    async def _bring_some(self) -> None:
        """Let some of those who wait know how far they are, each in turn."""
        if not self._to_bring:
            self._to_bring = list(self._deliveries)
        some, self._to_bring = self._to_bring[:BROUGHT_AT_ONCE], self._to_bring[BROUGHT_AT_ONCE:]
        for at, number in enumerate(some):
            if at % FED_AT_ONCE == FED_AT_ONCE - 1:
                await asyncio.sleep(0)
            delivery = self._deliveries.get(number)
            if delivery is not None:
                self._frontier.bring(delivery)

    async def _save_all(self, *, rests: bool = False) -> None:
        """Save what is not saved; if nobody waits for it, live messages have half of the time."""
        unsaved = [each for each in self._deliveries.values() if not each.is_saved]
        for start in range(0, len(unsaved), MARKED_AT_ONCE):
            began_s = time.monotonic()
            # Marked when it is their turn: what was acked and saved meanwhile is not saved over.
            some = unsaved[start : start + MARKED_AT_ONCE]
            await self._save_some([(each, each.mark()) for each in some if not each.deleted])
            if rests:
                await asyncio.sleep(time.monotonic() - began_s)

    def save_soon(self, delivery: Delivery) -> None:
        """Save, with all others that are as urgent, without waiting for it."""
        self._metrics.given_up_messages.inc(delivery.tries.given_up)
        delivery.tries.given_up = 0
        self._urgent.add(delivery)
        if self._saving is None and not self.closing:
            self._saving = asyncio.get_running_loop().create_task(self._save_urgent())

    async def _save_urgent(self) -> None:
        """One transaction after the other, half of the time: whatever is urgent meanwhile goes in the next.

        A mark names all messages that were tried, so that to save thousands after each that is given again
        took much of the interpreter from everybody else.
        """
        try:
            while self._urgent:
                began_s = time.monotonic()
                some = [self._urgent.pop() for _ in range(min(len(self._urgent), MARKED_AT_ONCE))]
                await self._save_some([(each, each.mark()) for each in some if not each.deleted])
                await asyncio.sleep(time.monotonic() - began_s)
        except WriterClosed:
            pass
        finally:
            self._saving = None

    async def _save_some(self, some: Sequence[tuple[Delivery, Mark]]) -> None:
        try:
            await self._writer.save_cursors([(each.number, mark) for each, mark in some])
        except (StorageError, ValueError) as error:
            logger.error("some of %d cursors could not be saved: %s", len(some), error)
            return
        for each, mark in some:
            self._saved(each, mark)

    # What the machine asks for

    def _hand_in(self, message: Message) -> None:
        self._carry_out(self._frontier.handle(message, time.monotonic()))

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Tell) and isinstance(effect.news, Ready):
                if effect.news.delivery.is_urgent:
                    self.save_soon(effect.news.delivery)
                self._wake(effect.news.delivery)
            elif isinstance(effect, Timer) and isinstance(effect.message, Expire):
                wait_s = max(0.0, effect.at_s - time.monotonic())
                asyncio.get_running_loop().call_later(wait_s, self._hand_in, effect.message)
            elif isinstance(effect, Ask) and isinstance(effect.question, Look) and not self.closing:
                task = asyncio.get_running_loop().create_task(self._look(effect.question))
                self._looks.add(task)
                task.add_done_callback(self._looks.discard)

    async def _look(self, look: Look) -> None:
        front, found = look.front, None
        try:
            found = await (self._tail.follow(front) if look.follow else self._tail.look(front))
        except Exception:
            logger.exception("a look for matches failed")
            await asyncio.sleep(RETRY_S)
        if found is None:
            self._hand_in(Looked(front, 0, None))
            return
        for start in range(0, len(found.keys), FED_AT_ONCE):
            some = found.keys[start : start + FED_AT_ONCE]
            self._hand_in(Matched(front, some, found.end))
            await asyncio.sleep(0)
        if look.follow:
            self._tail.take_in(found)
            if found.block is not None:
                self._metrics.block_seen(found.block)
        self._hand_in(Looked(front, found.joined, found.end))

    def _space(self, delivery: Delivery) -> str:
        return self._space_of.get(delivery.number, NOBODY)

    def _used(self, delivery: Delivery) -> None:
        """A delivery is in use now, or somebody begins or ends to wait for it."""
        number = delivery.number
        if delivery in self._waiting or delivery in self._pulled or number in self._sessions:
            self._idle_s.pop(number, None)
        elif self._deliveries.get(number) is delivery:
            self._idle_s[number] = time.monotonic()

    def _leave(self, delivery: Delivery) -> None:
        """If nobody reads a delivery any more, nothing is to be looked for."""
        self._used(delivery)
        if delivery not in self._waiting and delivery.number not in self._sessions:
            self._hand_in(StopWaiting(delivery))

    def _wake(self, delivery: Delivery, *, everybody: bool = False) -> None:
        for waiter in self._waiting.get(delivery, ()):
            if everybody or delivery.has_message(waiter.session):
                waiter.wake()
