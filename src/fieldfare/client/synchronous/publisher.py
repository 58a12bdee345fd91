# Made from client/asynchronous/publisher.py by `make client`: change it there.
"""The publisher: callers queue events, background workers send them in batches.

`publish` encodes an event and queues it; a worker takes a batch, sends it, retries it with the same producer
id and sequence, and resolves the futures.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from fieldfare.client.batching import (
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
from fieldfare.client.encrypting import NO_ENCRYPTION, TABLE_IS_PLAIN, Encryption, plain_only
from fieldfare.client.errors import ClientClosed, OutboxError, QueueFull
from fieldfare.client.outbox import Outbox, OutboxSettings
from fieldfare.client.retry import RetrySettings
from fieldfare.client.stored_queue import ANONYMOUS
from fieldfare.client.synchronous.concurrency import (
    Cancelled,
    Flag,
    Future,
    Guard,
    Lock,
    Origin,
    Promise,
    Signal,
    Workers,
    call_at_exit,
    off_the_loop,
)
from fieldfare.client.synchronous.connection import Connection
from fieldfare.client.table_delivery import PieceDelivery, TableDelivery, TableProducer
from fieldfare.client.tables import TablePieces
from fieldfare.model import RECORD_EVENTS_MAX, Position

logger = logging.getLogger("fieldfare.client")

EXIT_FLUSH_S = 10.0
"""Maximum time, in seconds, that an exiting interpreter waits for a publisher that was not closed; events
that are still queued then fail. Not on an event loop."""


class Publisher:
    """Publishes events in the background; created by `Client.publisher`.

    An event whose future has resolved is durable. After a temporary failure (connection errors, timeouts,
    status 429 and 5xx) a request is retried with the same producer id and sequence until
    ``retry.deadline_s``, so its events are in the log at most once. The log keeps events in the order of the
    calls that published them, also with several requests in flight (`BatchSettings.max_in_flight`).
    In an asyncio program it belongs to one event loop; otherwise it is safe to use from several threads.

    With an outbox there is no deadline: events stay on disk until they are sent, if need be by the next
    publisher that opens the outbox.

    Attributes
    ----------
    outbox : Outbox or None
        The outbox that keeps the events on disk, if there is one.
    """

    def __init__(
        self,
        connection: Connection,
        space: str,
        batch: BatchPolicy | Literal["auto"] = "auto",
        retry: RetrySettings | None = None,
        outbox: str | Path | OutboxSettings | None = None,
        queue: QueueSettings | None = None,
        encryption: Encryption = NO_ENCRYPTION,
    ) -> None:
        self._perform = connection.perform
        self._origin = Origin()
        self._encryption = encryption
        self._dispatch = PublisherQueue(connection.endpoint.url, space, batch, retry, outbox, queue)
        self._queue = self._dispatch.queue
        self._tables, self._table_lock = TableProducer(), Lock()
        self._guard = Guard()
        self._work = Signal(self._guard)  # Workers wait here for a batch,
        self._progress = Signal(self._guard)  # callers here for room in the queue or for completion.
        self._closed = False
        self._stopping = Flag()  # Once set, failed requests are not retried.
        self._workers = Workers("fieldfare-publisher")
        self._forget_exit = call_at_exit(self._end_with_program)
        if self._workers.can_start():
            self._start_worker()

    def __enter__(self) -> Publisher:
        self._start_worker()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def outbox(self) -> Outbox | None:
        return self._dispatch.outbox

    def publish(self, event: Publishable) -> Future[Position]:
        """Queue one event; the future resolves to its position when it is durable in the service's log.

        With an outbox the event is stored there when this returns: it survives the end of the program. It
        survives a power failure only after `store`, or a moment later.

        If the queue is full this blocks, except in an asyncio program, which keeps the queue bounded itself:
        it awaits the futures, or awaits `drain` regularly. `QueueSettings.when_full` selects whether a full
        queue blocks, raises, or drops the event.

        The future fails with PublishError if the service refuses the event, DeliveryTimeout if the service
        did not acknowledge it before the deadline, and ApiError if the service refuses the request (such as
        for an unknown space). With an outbox there is no deadline: the future fails with PublishError or
        ApiError if the event was refused and set aside, and with KeptInOutbox if the publisher is closed
        before the event was acknowledged.

        Raises
        ------
        InvalidEvent
            The event has no source or type, or cannot be written as JSON. Nothing was queued.
        OutboxError
            The event could not be stored. Nothing was queued.
        QueueFull
            The queue is full and ``when_full`` is "raise". Nothing was queued.
        """
        line = self._encryption.seal_lines([encode_event(event)])[0]
        promise: Promise[Position] = Promise()
        full = self._hand_over([line], OneEvent(promise.resolve, promise.refuse), 0, self._dispatch.when_full)
        if full is not None:
            promise.refuse(full)
            promise.exception()  # Mark it as retrieved: asyncio logs a traceback for each that is not.
        return promise

    def publish_many(self, events: Iterable[Publishable]) -> list[Position]:
        """Publish events, wait until all of them are durable, and return their positions in the same order.

        All events are checked and encoded before the first is sent.

        Raises
        ------
        InvalidEvent
            An event cannot be sent; the message has its index. Nothing was sent.
        PublishError
            Some events are not in the log; the error accounts for each one.
        FieldfareError
            No event is known to be in the log, all for the same reason.
        """
        lines = self._encryption.seal_lines(encode_events(events))
        if not lines:
            return []
        promise: Promise[list[Position]] = Promise()
        receiver = ManyEvents(len(lines), promise.resolve, promise.refuse)
        for start in range(0, len(lines), HAND_OVER_EVENTS):
            self.drain()
            try:
                self._hand_over(lines[start : start + HAND_OVER_EVENTS], receiver, start)
            except OutboxError as error:
                receiver.fail(start, len(lines) - start, error)
                break
        with self._guard:
            self._queue.hurry()
            self._work.fire_one()
        return promise.outcome()

    def store(self, events: Iterable[Publishable]) -> int:
        """Store events in the outbox without waiting for the service; return how many.

        When this returns the events are synced to disk and survive a power failure. Events that the service
        refuses later are in ``outbox.refused()``.

        Raises
        ------
        InvalidEvent
            An event cannot be sent; the message has its index. Nothing was stored.
        OutboxError
            Not all events could be stored; some, from the first on, may have been.
        ValueError
            This publisher has no outbox.
        """
        outbox = self._dispatch.require_outbox()
        lines = self._encryption.seal_lines(encode_events(events))
        for start in range(0, len(lines), HAND_OVER_EVENTS):
            self.drain()
            self._hand_over(lines[start : start + HAND_OVER_EVENTS], ANONYMOUS, start)
        off_the_loop(outbox.sync)
        return len(lines)

    def publish_table(self, events: Any, *, max_events: int = RECORD_EVENTS_MAX) -> list[Position]:
        """Publish an Arrow table, wait until all rows are durable, and return their positions in row order.

        The rows are sent and logged as Arrow; only what a subscriber gets is converted to JSON. Requests are
        sent one after the other, after everything that this publisher has queued before. A table cannot go
        through an outbox.

        Parameters
        ----------
        events : pyarrow.Table, pyarrow.RecordBatch, or a data frame with the Arrow interface (pandas, polars)
            Columns are attributes of CloudEvents: ``source`` and ``type`` are required, ``specversion``,
            ``id`` and ``time`` are filled in if the column is missing, ``data`` is usually a struct. A null
            is an attribute that the event does not have.
        max_events : int
            Maximum events per request. A request that the service finds too large is split in two.

        Raises
        ------
        InvalidEvent
            This is not a table, or a column is missing. Nothing was sent.
        MissingPyarrow
            An ImportError: pyarrow is not installed.
        PublishError
            Some events are not in the log; the error accounts for each one.
        FieldfareError
            No event is known to be in the log, all for the same reason: ApiError for a column that
            CloudEvents does not allow.
        ValueError
            This publisher has an outbox.
        """
        self._dispatch.require_no_outbox()
        plain_only(self._encryption, TABLE_IS_PLAIN)
        pieces = TablePieces(events, max_events, datetime.now(UTC))
        if not pieces.size:
            return []
        promise: Promise[list[Position]] = Promise()
        receiver = ManyEvents(pieces.size, promise.resolve, promise.refuse)
        with self._table_lock:
            self.flush()
            table = TableDelivery(self._dispatch, self._tables, pieces, receiver)
            for delivery in table.requests(time.monotonic()):
                try:
                    self._send_piece(delivery)
                finally:  # Also after Ctrl-C.
                    with self._guard:
                        delivery.close()
                        self._progress.fire()
                table.end(delivery)
        return promise.outcome()

    def _send_piece(self, delivery: PieceDelivery) -> None:
        while delivery.fate is None:
            if self._closed:
                delivery.fate = ClientClosed("the publisher was closed before these events were sent")
                return
            try:
                delivery.succeed(self._perform(delivery.call))
            except Exception as error:  # Any error must reach the caller.
                wait_s = delivery.fail(error, time.monotonic(), self._stopping.is_set())
                if wait_s is not None:
                    self._stopping.wait(wait_s)

    def drain(self) -> None:
        """Wait until the queue has room: back-pressure from a service that is slower than the program."""
        self._origin.check("publisher")
        with self._guard:
            self._progress.wait_for(lambda: self._queue.has_room() or self._closed)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all events published before, or in the outbox, are acknowledged or have failed.

        Raises
        ------
        FlushTimeout
            Some were not within ``timeout_s`` seconds; they are still being sent in the background.
        """
        self._origin.check("publisher")
        with self._guard:
            self._start_worker()
            self._queue.hurry()
            self._work.fire()
            if not self._progress.wait_for(self._dispatch.is_idle, timeout_s):
                raise self._dispatch.make_flush_error(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Send all queued events, then stop. May be called twice.

        Events that are not acknowledged after ``timeout_s`` seconds fail. With an outbox nothing is retried
        any more: events that the service does not acknowledge now stay on disk.
        In a forked process this does nothing: the events belong to the parent.
        """
        if not self._origin.is_here():
            return
        with self._guard:
            self._start_worker()
            self._closed = True
            if self._dispatch.outbox is not None:
                self._stopping.set()
            self._queue.hurry()
            self._work.fire()
            self._progress.fire()
            in_time = self._progress.wait_for(self._dispatch.is_idle, timeout_s)
            if not in_time:
                self._stopping.set()
                self._progress.fire()
            rest = self._dispatch.take_remaining()
            self._work.fire()
        fail_runs(rest, self._dispatch.make_closing_error())
        self._workers.end(timeout_s, at_once=not in_time)
        self._queue.close()
        self._forget_exit()

    def stats(self) -> PublisherStats:
        """Return the publisher's counters since its creation and its current batching limits."""
        self._origin.check("publisher")
        with self._guard:
            return self._dispatch.stats()

    def _end_with_program(self) -> None:
        if self._closed or not self._origin.is_here():
            return
        failed_before = self.stats().failed_events
        self.close(EXIT_FLUSH_S)
        lost = self.stats().failed_events - failed_before
        if lost:
            logger.warning("the program ended before %d published events were acknowledged", lost)

    def _hand_over(
        self,
        lines: list[bytes],
        receiver: Receiver,
        start: int,
        when_full: Literal["block", "raise", "drop"] = "block",
    ) -> QueueFull | None:
        """Queue events; return the error of those that were dropped because the queue is full, else None."""
        size_bytes = sum(map(len, lines))
        self._origin.check("publisher")
        with self._guard:
            if not self._queue.has_room() and when_full == "block":
                self._progress.block_until(lambda: self._queue.has_room() or self._closed)
            if self._closed:
                raise ClientClosed("this publisher is closed")
            if when_full != "block" and not self._queue.has_room():
                full = self._dispatch.refuse_when_full(time.monotonic())
                if when_full == "raise":
                    raise full
                return full
            was_empty = not len(self._queue)
            self._queue.add(lines, size_bytes, receiver, start, time.monotonic())
            self._start_worker()
            # A worker that waits for the first event's linger to end need not be woken for each next event.
            if was_empty or self._queue.is_full():
                self._work.fire_one()
        return None

    def _start_worker(self) -> None:
        """Start one more worker, if events are queued and the policy's ``max_in_flight`` allows it."""
        if len(self._queue) and len(self._workers) < self._dispatch.policy.limits().max_in_flight:
            self._workers.start(self._send_forever)

    def _send_forever(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._send(batch)

    def _next_batch(self) -> Batch | None:
        with self._guard:
            while not self._dispatch.is_parked:
                wait_s = self._queue.due_in_s(time.monotonic())
                if wait_s == 0.0:
                    try:
                        batch = self._dispatch.take()
                    except OutboxError as error:
                        wait_s = self._dispatch.note_disk_trouble(error, self._closed)
                    else:
                        self._progress.fire()  # The queue has room again.
                        if len(self._queue):
                            self._start_worker()
                            self._work.fire_one()  # Another worker, if there is one, takes the rest.
                        return batch
                if self._closed and not len(self._queue):
                    break
                self._work.wait(wait_s)
            self._progress.fire()
            return None

    def _send(self, batch: Batch) -> None:
        delivery = BatchDelivery(self._dispatch, batch, time.monotonic())
        try:
            while not delivery.is_over:
                try:
                    if self._dispatch.outbox is not None:
                        off_the_loop(delivery.make_durable)
                    with self._guard:
                        call = delivery.begin(time.monotonic())
                    answer = self._perform(call)
                except Exception as error:  # Any error must reach the futures.
                    wait_s = delivery.fail(error, time.monotonic(), self._stopping.is_set())
                    if wait_s is not None:
                        self._rest(delivery, wait_s)
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

    def _rest(self, delivery: BatchDelivery, wait_s: float) -> None:
        """Wait before the next attempt; an early request only until the oldest one in flight has changed."""
        if not delivery.is_early:
            self._stopping.wait(wait_s)
            return
        with self._guard:
            self._progress.wait_for(lambda: delivery.has_progressed() or self._stopping.is_set(), wait_s)
