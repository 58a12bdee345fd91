"""The sync publisher: callers queue events, background threads send them in batches.

Path of an event: `publish` encodes it and puts it into the outbox; a sender thread takes a batch, sends
it, repeats it under the same producer id and sequence while it fails, and resolves the futures.
"""

from __future__ import annotations

import atexit
import logging
import random
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Literal

from fieldfare.client.auto_batching import choose_policy, find_estimates
from fieldfare.client.batching import (
    MAX_RECORD_EVENTS,
    Batch,
    BatchPolicy,
    BatchSettings,
    ManyEvents,
    OneEvent,
    Outbox,
)
from fieldfare.client.encoding import Publishable, encode_event
from fieldfare.client.errors import ClientClosed, DeliveryTimeout, FieldfareError, FlushTimeout, InvalidEvent
from fieldfare.client.protocol import Call, PublishAnswer, publish_lines, publish_stream
from fieldfare.client.retry import Backoff, RetrySettings, is_passing
from fieldfare.client.tables import TablePiece, TablePieces
from fieldfare.model import Position
from fieldfare.publishing.requests import RequestEstimates

logger = logging.getLogger("fieldfare.client")

MAX_QUEUED_BYTES = 64 << 20
"""Encoded events that may wait in a publisher; beyond it, publishing waits (back-pressure)."""

HAND_OVER_EVENTS = 500
"""`publish_many` encodes and hands over so many at a time, so that sending starts before encoding ends."""

EXIT_FLUSH_S = 10.0
"""How long an interpreter that exits waits for a publisher that nobody closed."""


@dataclass(frozen=True, slots=True)
class PublisherStats:
    """What a publisher has done so far, and how it batches now.

    `limits` are the settings that hold at the moment, `estimates` what they were derived from; fixed settings
    have none.
    """

    acknowledged_events: int
    failed_events: int
    queued_events: int
    in_flight_events: int
    requests: int
    repeated_requests: int
    limits: BatchSettings
    estimates: RequestEstimates | None


class SendRecord:
    """A publisher's books: what both publishers, sync and async, count, and the error that ends a batch."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self.acknowledged_events = 0
        self.failed_events = 0
        self.in_flight_events = 0
        self.requests = 0
        self.repeated_requests = 0

    def close_request(self, events: int, attempts: int, acknowledged: bool) -> None:
        self.in_flight_events -= events
        self.requests += attempts
        self.repeated_requests += attempts - 1
        if acknowledged:
            self.acknowledged_events += events
        else:
            self.failed_events += events

    def stats(self, queued_events: int) -> PublisherStats:
        return PublisherStats(
            self.acknowledged_events,
            self.failed_events,
            queued_events,
            self.in_flight_events,
            self.requests,
            self.repeated_requests,
            self._policy.limits(),
            find_estimates(self._policy),
        )


def final_error(error: Exception, retry: RetrySettings, attempts: int) -> FieldfareError:
    """What the events of a batch are failed with after its last attempt."""
    if is_passing(error):
        timeout = DeliveryTimeout(
            f"not acknowledged within {retry.deadline_s:g} s ({attempts} attempts); the last one: {error}"
        )
        timeout.__cause__ = error
        return timeout
    if isinstance(error, FieldfareError):
        return error
    wrapped = FieldfareError(f"publishing failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


class TableTurn:
    """Tables are sent one after the other, under a producer id of their own."""

    def __init__(self) -> None:
        self.producer = uuid.uuid4().hex
        self.lock = threading.Lock()
        self._sequence = -1

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence


class EventFuture(Future[Position]):
    """The fate of one published event. It cannot be cancelled: a queued event cannot be called back."""

    def cancel(self) -> bool:
        return False


class Publisher:
    """Publishes events in the background; made by `Client.publisher`.

    An event whose future has resolved is durable. A request that fails in passing (connection errors,
    timeouts, 429, 5xx) is repeated with the same producer id and sequence until ``retry.deadline_s``, so
    it is in the log at most once. With ``max_in_flight=1`` (the default) events are in the log in the order
    of the calls that published them; see `BatchSettings.max_in_flight` for more.
    Safe to use from several threads.
    """

    def __init__(
        self,
        perform: Callable[[Call[PublishAnswer]], PublishAnswer],
        space: str,
        batch: BatchPolicy | Literal["auto"] = "auto",
        retry: RetrySettings | None = None,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        self._perform = perform
        self._space = space
        self._policy = choose_policy(batch)
        self._retry = retry if retry is not None else RetrySettings()
        self._max_queued_bytes = max_queued_bytes
        self._producer = uuid.uuid4().hex
        self._tables = TableTurn()
        self._outbox = Outbox(self._policy)
        self._record = SendRecord(self._policy)
        lock = threading.RLock()
        self._work = threading.Condition(lock)  # Senders wait here for a batch,
        self._progress = threading.Condition(lock)  # callers here for room or for the end.
        self._closed = False
        self._abandoned = threading.Event()
        self._threads: list[threading.Thread] = []
        self._chance = random.Random()
        self._exit_hook = partial(_flush_at_exit, weakref.ref(self))
        atexit.register(self._exit_hook)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def publish(self, event: Publishable) -> Future[Position]:
        """Queue one event; the future resolves to its position when it is durable.

        The future fails with PublishError when the service refuses the event, DeliveryTimeout when it could
        not be reached until the deadline, ApiError when it refuses the request (an unknown space).

        Raises
        ------
        InvalidEvent
            The event has no source or type, or cannot be written as JSON. Nothing was queued.
        """
        line = encode_event(event)
        future = EventFuture()
        receiver = OneEvent(future.set_result, future.set_exception)
        self._hand_over([line], len(line), receiver, 0)
        return future

    def publish_many(self, events: Iterable[Publishable]) -> list[Position]:
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
        lines = encode_events(events)
        if not lines:
            return []
        future: Future[list[Position]] = Future()
        receiver = ManyEvents(len(lines), future.set_result, future.set_exception)
        for start in range(0, len(lines), HAND_OVER_EVENTS):
            part = lines[start : start + HAND_OVER_EVENTS]
            self._hand_over(part, sum(map(len, part)), receiver, start)
        with self._work:
            self._outbox.hurry()
            self._work.notify()
        return future.result()

    def publish_table(self, events: Any, *, max_events: int = MAX_RECORD_EVENTS) -> list[Position]:
        """Publish an Arrow table and wait until all rows are durable; their positions in the same order.

        They travel as Arrow and stay so in the log: nothing is written or read as JSON but what a subscriber
        gets. One request follows the other, behind everything that this publisher had queued before.

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
        """
        pieces = TablePieces(events, max_events, datetime.now(UTC))
        future: Future[list[Position]] = Future()
        receiver = ManyEvents(pieces.size, future.set_result, future.set_exception)
        if not pieces.size:
            return []
        with self._tables.lock:
            self.flush()
            for piece in pieces:
                error = self._send_piece(piece, receiver)
                if error is not None and not pieces.cut_smaller(piece, error):
                    receiver.fail(piece.start, pieces.size - piece.start, error)
                    break
        return future.result()

    def _send_piece(self, piece: TablePiece, receiver: ManyEvents) -> FieldfareError | None:
        with self._work:
            if self._closed:
                return ClientClosed("the publisher was closed before these events were sent")
            self._record.in_flight_events += piece.count
        turn = self._tables
        call = publish_stream(self._space, piece.body, piece.count, turn.producer, turn.next_sequence())
        acknowledged, attempts = False, 1
        try:
            outcome, attempts = self._perform_until_final(call, time.monotonic())
            acknowledged = isinstance(outcome, PublishAnswer)
        finally:  # Ctrl-C may come in the middle.
            with self._work:
                self._record.close_request(piece.count, attempts, acknowledged)
                self._progress.notify_all()
        if isinstance(outcome, PublishAnswer):
            receiver.receive(piece.start, outcome.positions, outcome.refused)
            return None
        return outcome

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every event published before has been acknowledged or has failed."""
        with self._work:
            self._outbox.hurry()
            self._work.notify_all()
            if not self._progress.wait_for(self._is_idle, timeout_s):
                waiting = len(self._outbox) + self._record.in_flight_events
                raise FlushTimeout(f"{waiting:,} events were not acknowledged within {timeout_s:g} s")

    def close(self, timeout_s: float | None = None) -> None:
        """Send what is queued, then stop. After ``timeout_s`` the rest fails instead. May be called twice."""
        rest: list[Batch] = []
        with self._work:
            self._closed = True
            self._outbox.hurry()
            self._work.notify_all()
            self._progress.notify_all()
            if not self._progress.wait_for(self._is_idle, timeout_s):
                self._abandoned.set()
                rest = self._outbox.take_rest()
                self._record.failed_events += sum(len(batch.lines) for batch in rest)
                self._work.notify_all()
        for batch in rest:
            batch.fail(ClientClosed("the publisher was closed before this event was sent"))
        for thread in self._threads:
            thread.join(timeout_s)
        atexit.unregister(self._exit_hook)

    def stats(self) -> PublisherStats:
        """Counts since the start, and how it batches now."""
        with self._work:
            return self._record.stats(len(self._outbox))

    def _is_idle(self) -> bool:
        return not len(self._outbox) and not self._record.in_flight_events

    def _hand_over(
        self, lines: list[bytes], size_bytes: int, receiver: OneEvent | ManyEvents, start: int
    ) -> None:
        with self._work:
            while self._outbox.size_bytes >= self._max_queued_bytes and not self._closed:
                self._progress.wait()
            if self._closed:
                raise ClientClosed("this publisher is closed")
            was_empty = not len(self._outbox)
            self._outbox.add(lines, size_bytes, receiver, start, time.monotonic())
            self._start_thread_if_allowed()
            # A sender that already waits out the first event's linger need not hear of each next one.
            if was_empty or self._outbox.is_full():
                self._work.notify()

    def _start_thread_if_allowed(self) -> None:
        if len(self._threads) >= self._policy.limits().max_in_flight:
            return
        name = f"fieldfare-publisher-{len(self._threads)}"
        thread = threading.Thread(target=self._send_forever, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _send_forever(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._send(batch)

    def _next_batch(self) -> Batch | None:
        with self._work:
            while True:
                wait_s = self._outbox.due_in_s(time.monotonic())
                if wait_s == 0.0:
                    batch = self._outbox.take()
                    self._record.in_flight_events += len(batch.lines)
                    self._progress.notify_all()  # There is room again.
                    if len(self._outbox):
                        self._start_thread_if_allowed()
                        self._work.notify()  # The rest is for another sender, if there is one.
                    return batch
                if self._closed and not len(self._outbox):
                    return None
                self._work.wait(wait_s)

    def _send(self, batch: Batch) -> None:
        call = publish_lines(self._space, batch.lines, self._producer, batch.sequence)
        started_s = time.monotonic()
        outcome, attempts = self._perform_until_final(call, started_s)
        if isinstance(outcome, PublishAnswer):
            batch.resolve(outcome)
        else:
            batch.fail(outcome)
        self._finish(batch, started_s, attempts, isinstance(outcome, PublishAnswer))

    def _perform_until_final(
        self, call: Call[PublishAnswer], started_s: float
    ) -> tuple[PublishAnswer | FieldfareError, int]:
        """Send a request, again while it fails in passing; its outcome, and how often it was sent."""
        backoff = Backoff(self._retry, started_s, self._chance)
        attempts = 0
        while True:
            attempts += 1
            try:
                return self._perform(call), attempts
            except Exception as error:  # Whatever it is, the futures must hear of it.
                wait_s = backoff.next_wait_s(error, time.monotonic())
                if wait_s is None or self._abandoned.is_set():
                    return final_error(error, self._retry, attempts), attempts
                logger.debug("a request failed, again in %.2f s: %s", wait_s, error)
                self._abandoned.wait(wait_s)

    def _finish(self, batch: Batch, started_s: float, attempts: int, acknowledged: bool) -> None:
        with self._work:
            self._outbox.finish(batch)
            self._record.close_request(len(batch.lines), attempts, acknowledged)
            self._outbox.report(batch, started_s, time.monotonic(), attempts, acknowledged)
            self._progress.notify_all()
            self._work.notify_all()  # Several senders may wait for a request to end.


def encode_events(events: Iterable[Publishable]) -> list[bytes]:
    """Encode all events, or raise InvalidEvent with the index of the one that cannot be."""
    lines: list[bytes] = []
    try:
        lines.extend(map(encode_event, events))
    except InvalidEvent as error:
        raise InvalidEvent(f"event {len(lines)}: {error}") from None
    return lines


def _flush_at_exit(reference: weakref.ref[Publisher]) -> None:
    publisher = reference()
    if publisher is None or publisher._closed:
        return
    publisher.close(EXIT_FLUSH_S)
    lost = publisher.stats().failed_events
    if lost:
        logger.warning("the program ended before %d published events were acknowledged", lost)
