"""The publisher: callers queue events, workers in the background send them in batches.

Path of an event: `publish` encodes it and puts it into the queue; a worker takes a batch, sends it, repeats
it under the same producer id and sequence while it fails, and resolves the futures.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from fieldfare.client.asynchronous.concurrency import (
    AsyncFlag,
    AsyncFuture,
    AsyncGuard,
    AsyncLock,
    AsyncPromise,
    AsyncSignal,
    AsyncWorkers,
    Cancelled,
    call_at_exit,
    off_the_loop,
)
from fieldfare.client.batching import (
    MAX_RECORD_EVENTS,
    Batch,
    BatchPolicy,
    ManyEvents,
    OneEvent,
    QueueSettings,
    Receiver,
    fail_runs,
)
from fieldfare.client.dispatch import (
    HAND_OVER_EVENTS,
    BatchDelivery,
    PublisherQueue,
    PublisherStats,
    encode_events,
)
from fieldfare.client.encoding import Publishable, encode_event
from fieldfare.client.encrypting import PLAINLY, TABLE_IS_PLAIN, Encryption, plain_only
from fieldfare.client.errors import ClientClosed, OutboxError, QueueFull
from fieldfare.client.outbox import Outbox, OutboxSettings
from fieldfare.client.protocol import ApiCall, PublishAnswer
from fieldfare.client.retry import RetrySettings
from fieldfare.client.stored_queue import NOBODY
from fieldfare.client.table_delivery import PieceDelivery, TableDelivery, TableTurn
from fieldfare.client.tables import TablePieces
from fieldfare.model import Position

logger = logging.getLogger("fieldfare.client")

EXIT_FLUSH_S = 10.0
"""How long an interpreter that exits waits for a publisher that nobody closed (not on an event loop)."""


class AsyncPublisher:
    """Publishes events in the background; made by `AsyncClient.publisher`.

    An event whose future has resolved is durable. A request that fails in passing (connection errors,
    timeouts, 429, 5xx) is repeated with the same producer id and sequence until ``retry.deadline_s``, so
    it is in the log at most once. Events are in the log in the order of the calls that published them,
    also while several requests are under way at the same time (`BatchSettings.max_in_flight`).
    In an asyncio program it belongs to one event loop; else it is safe to use from several threads.

    With an outbox there is no deadline: events wait on disk, also for the next publisher that opens the
    outbox.

    Attributes
    ----------
    outbox : Outbox or None
        What is on disk.
    """

    def __init__(
        self,
        perform: Callable[[ApiCall[PublishAnswer]], Awaitable[PublishAnswer]],
        url: str,
        space: str,
        batch: BatchPolicy | Literal["auto"] = "auto",
        retry: RetrySettings | None = None,
        outbox: str | Path | OutboxSettings | None = None,
        queue: QueueSettings | None = None,
        encryption: Encryption = PLAINLY,
    ) -> None:
        self._perform = perform
        self._encryption = encryption
        self._dispatch = PublisherQueue(url, space, batch, retry, outbox, queue)
        self._queue = self._dispatch.queue
        self._tables, self._table_lock = TableTurn(), AsyncLock()
        self._guard = AsyncGuard()
        self._work = AsyncSignal(self._guard)  # Workers wait here for a batch,
        self._progress = AsyncSignal(self._guard)  # callers here for room or for the end.
        self._closed = False
        self._stopping = AsyncFlag()  # What fails from now on is not repeated.
        self._workers = AsyncWorkers("fieldfare-publisher")
        self._forget_exit = call_at_exit(self._end_with_program)
        if self._workers.can_start():
            self._start_worker()

    async def __aenter__(self) -> AsyncPublisher:
        self._start_worker()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def outbox(self) -> Outbox | None:
        return self._dispatch.outbox

    def publish(self, event: Publishable) -> AsyncFuture[Position]:
        """Queue one event; the future resolves to its position when it is durable in the service's log.

        With an outbox the event is stored there when this returns: it survives the end of the program, but
        only after `store`, or a moment later, a power failure.

        While the queue is full this waits, but not in an asyncio program: one that does not await the futures
        awaits `drain` now and then, so that the queue stays bounded. `QueueSettings.when_full` may say
        that it raises, or drops the event, instead.

        The future fails with PublishError when the service refuses the event, DeliveryTimeout when it could
        not be reached until the deadline, ApiError when it refuses the request (an unknown space). With an
        outbox it waits as long as it takes, and fails with PublishError or ApiError when the event was
        refused and set aside, with KeptInOutbox when the publisher is closed before.

        Raises
        ------
        InvalidEvent
            The event has no source or type, or cannot be written as JSON. Nothing was queued.
        OutboxError
            The event could not be stored. Nothing was queued.
        QueueFull
            The queue is full, and is to raise then. Nothing was queued.
        """
        line = self._encryption.seal_lines([encode_event(event)])[0]
        promise: AsyncPromise[Position] = AsyncPromise()
        full = self._hand_over([line], OneEvent(promise.resolve, promise.refuse), 0, self._dispatch.when_full)
        if full is not None:
            promise.refuse(full)
            promise.exception()  # Seen: asyncio would write a traceback for each that nobody looks at.
        return promise

    async def publish_many(self, events: Iterable[Publishable]) -> list[Position]:
        """Publish events and wait until all of them are durable; their positions in the same order.

        All events are checked and encoded before the first is sent.

        Raises
        ------
        InvalidEvent
            One of the events cannot be sent; its index is in the text. Nothing was sent.
        PublishError
            Some events are not in the log; the error accounts for each one.
        FieldfareError
            None of them is known to be in the log, all for the same reason.
        """
        lines = self._encryption.seal_lines(encode_events(events))
        if not lines:
            return []
        promise: AsyncPromise[list[Position]] = AsyncPromise()
        receiver = ManyEvents(len(lines), promise.resolve, promise.refuse)
        for start in range(0, len(lines), HAND_OVER_EVENTS):
            await self.drain()
            try:
                self._hand_over(lines[start : start + HAND_OVER_EVENTS], receiver, start)
            except OutboxError as error:
                receiver.fail(start, len(lines) - start, error)
                break
        with self._guard:
            self._queue.hurry()
            self._work.fire_one()
        return await promise.outcome()

    async def store(self, events: Iterable[Publishable]) -> int:
        """Put events into the outbox and do not wait for the service; how many.

        When this returns they are on the disk itself and survive a power failure too. What the service
        refuses is in ``outbox.refused()``.

        Raises
        ------
        InvalidEvent
            One of the events cannot be sent; its index is in the text. Nothing was stored.
        OutboxError
            They could not be stored; some, from the first on, may have been.
        """
        outbox = self._dispatch.require_outbox()
        lines = self._encryption.seal_lines(encode_events(events))
        for start in range(0, len(lines), HAND_OVER_EVENTS):
            await self.drain()
            self._hand_over(lines[start : start + HAND_OVER_EVENTS], NOBODY, start)
        await off_the_loop(outbox.sync)
        return len(lines)

    async def publish_table(self, events: Any, *, max_events: int = MAX_RECORD_EVENTS) -> list[Position]:
        """Publish an Arrow table and wait until all rows are durable; their positions in the same order.

        They travel as Arrow and stay so in the log: nothing is written or read as JSON but what a subscriber
        gets. One request follows the other, behind everything that this publisher had queued before. A table
        does not go through an outbox.

        Parameters
        ----------
        events : pyarrow.Table, pyarrow.RecordBatch, or a data frame that speaks Arrow (pandas, polars)
            Columns are attributes of CloudEvents: ``source`` and ``type`` are needed, ``specversion``, ``id``
            and ``time`` are filled in where the column is missing, ``data`` is usually a struct. A null is
            an attribute that the event does not have.
        max_events : int
            Events in one request. A request that the service finds too large is sent again in two.

        Raises
        ------
        InvalidEvent
            It is no table, or a column is missing. Nothing was sent.
        MissingPyarrow
            An ImportError: pyarrow is not installed.
        PublishError
            Some events are not in the log; the error accounts for each one.
        FieldfareError
            None of them is known to be in the log, all for the same reason: ApiError for a column that is
            not as CloudEvents wants it.
        ValueError
            This publisher has an outbox.
        """
        self._dispatch.require_no_outbox()
        plain_only(self._encryption, TABLE_IS_PLAIN)
        pieces = TablePieces(events, max_events, datetime.now(UTC))
        if not pieces.size:
            return []
        promise: AsyncPromise[list[Position]] = AsyncPromise()
        receiver = ManyEvents(pieces.size, promise.resolve, promise.refuse)
        async with self._table_lock:
            await self.flush()
            table = TableDelivery(self._dispatch, self._tables, pieces, receiver)
            for delivery in table.requests(time.monotonic()):
                try:
                    await self._send_piece(delivery)
                finally:  # Ctrl-C may come in the middle.
                    with self._guard:
                        delivery.close()
                        self._progress.fire()
                table.end(delivery)
        return await promise.outcome()

    async def _send_piece(self, delivery: PieceDelivery) -> None:
        while delivery.fate is None:
            if self._closed:
                delivery.fate = ClientClosed("the publisher was closed before these events were sent")
                return
            try:
                delivery.succeed(await self._perform(delivery.call))
            except Exception as error:  # Whatever it is, the caller must hear of it.
                wait_s = delivery.fail(error, time.monotonic(), self._stopping.is_set())
                if wait_s is not None:
                    await self._stopping.wait(wait_s)

    async def drain(self) -> None:
        """Wait until the queue has room: the back-pressure of a service that is slower than the program."""
        with self._guard:
            await self._progress.wait_for(lambda: self._queue.has_room() or self._closed)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was published before, or was in the outbox, is acknowledged or has failed."""
        with self._guard:
            self._start_worker()
            self._queue.hurry()
            self._work.fire()
            if not await self._progress.wait_for(self._dispatch.is_idle, timeout_s):
                raise self._dispatch.make_flush_error(timeout_s)

    async def close(self, timeout_s: float | None = None) -> None:
        """Send what is queued, then stop. After ``timeout_s`` the rest fails instead. May be called twice.

        With an outbox nothing is repeated any more: what the service does not take now stays on disk.
        """
        with self._guard:
            self._start_worker()
            self._closed = True
            if self._dispatch.outbox is not None:
                self._stopping.set()
            self._queue.hurry()
            self._work.fire()
            self._progress.fire()
            in_time = await self._progress.wait_for(self._dispatch.is_idle, timeout_s)
            if not in_time:
                self._stopping.set()
                self._progress.fire()
            rest = self._dispatch.take_rest()
            self._work.fire()
        fail_runs(rest, self._dispatch.make_closing_error())
        await self._workers.end(timeout_s, at_once=not in_time)
        self._queue.close()
        self._forget_exit()

    def stats(self) -> PublisherStats:
        """Counts since the start, and how it batches now."""
        with self._guard:
            return self._dispatch.stats()

    async def _end_with_program(self) -> None:
        if self._closed:
            return
        await self.close(EXIT_FLUSH_S)
        lost = self.stats().failed_events
        if lost:
            logger.warning("the program ended before %d published events were acknowledged", lost)

    def _hand_over(
        self,
        lines: list[bytes],
        receiver: Receiver,
        start: int,
        when_full: Literal["block", "raise", "drop"] = "block",
    ) -> QueueFull | None:
        """Queue events; where they are to be dropped when there is no room, why they were."""
        size_bytes = sum(map(len, lines))
        with self._guard:
            if not self._queue.has_room() and when_full == "block":
                self._progress.hold_until(lambda: self._queue.has_room() or self._closed)
            if self._closed:
                raise ClientClosed("this publisher is closed")
            if when_full != "block" and not self._queue.has_room():
                full = self._dispatch.turn_away(time.monotonic())
                if when_full == "raise":
                    raise full
                return full
            was_empty = not len(self._queue)
            self._queue.add(lines, size_bytes, receiver, start, time.monotonic())
            self._start_worker()
            # A worker that already waits out the first event's linger need not hear of each next one.
            if was_empty or self._queue.is_full():
                self._work.fire_one()
        return None

    def _start_worker(self) -> None:
        """Start one more, if there is something for it to do and it may be."""
        if len(self._queue) and len(self._workers) < self._dispatch.policy.limits().max_in_flight:
            self._workers.start(self._send_forever)

    async def _send_forever(self) -> None:
        while (batch := await self._next_batch()) is not None:
            await self._send(batch)

    async def _next_batch(self) -> Batch | None:
        with self._guard:
            while not self._dispatch.is_parked:
                wait_s = self._queue.due_in_s(time.monotonic())
                if wait_s == 0.0:
                    try:
                        batch = self._dispatch.take()
                    except OutboxError as error:
                        wait_s = self._dispatch.note_disk_trouble(error, self._closed)
                    else:
                        self._progress.fire()  # There is room again.
                        if len(self._queue):
                            self._start_worker()
                            self._work.fire_one()  # The rest is for another worker, if there is one.
                        return batch
                if self._closed and not len(self._queue):
                    break
                await self._work.wait(wait_s)
            self._progress.fire()
            return None

    async def _send(self, batch: Batch) -> None:
        delivery = BatchDelivery(self._dispatch, batch, time.monotonic())
        try:
            while not delivery.is_over:
                try:
                    if self._dispatch.outbox is not None:
                        await off_the_loop(delivery.make_durable)
                    with self._guard:
                        call = delivery.begin(time.monotonic())
                    answer = await self._perform(call)
                except Exception as error:  # Whatever it is, the futures must hear of it.
                    wait_s = delivery.fail(error, time.monotonic(), self._stopping.is_set())
                    if wait_s is not None:
                        await self._rest(delivery, wait_s)
                else:
                    delivery.succeed(answer)
        except Cancelled:
            delivery.give_up()
            raise
        finally:
            with self._guard:
                delivery.close(time.monotonic())
                self._progress.fire()
                self._work.fire()  # Several workers may wait for a request to end.

    async def _rest(self, delivery: BatchDelivery, wait_s: float) -> None:
        """Wait before the next attempt; one that came early only until there is something new ahead of it."""
        if not delivery.is_early:
            await self._stopping.wait(wait_s)
            return
        with self._guard:
            await self._progress.wait_for(lambda: delivery.may_go_on() or self._stopping.is_set(), wait_s)
