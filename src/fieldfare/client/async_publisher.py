"""The async publisher: the same outbox, retry and books as the sync one, sent by tasks instead of threads."""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal, TypeVar

from fieldfare.client.auto_batching import choose_policy
from fieldfare.client.batching import (
    MAX_RECORD_EVENTS,
    Batch,
    BatchPolicy,
    ManyEvents,
    OneEvent,
    Outbox,
)
from fieldfare.client.encoding import Publishable, encode_event
from fieldfare.client.errors import ClientClosed, FieldfareError, FlushTimeout
from fieldfare.client.protocol import Call, PublishAnswer, publish_lines, publish_stream
from fieldfare.client.publisher import (
    HAND_OVER_EVENTS,
    MAX_QUEUED_BYTES,
    PublisherStats,
    SendRecord,
    encode_events,
    final_error,
)
from fieldfare.client.retry import Backoff, RetrySettings
from fieldfare.client.tables import TablePiece, TablePieces
from fieldfare.model import Position

logger = logging.getLogger("fieldfare.client")

Value = TypeVar("Value")


class Signal:
    """Wakes every task that waits at this moment."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def fire(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Return when fired, or after ``timeout_s``."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)

    async def wait_for(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until the condition holds, looking at each firing; False when the time was up first."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not condition():
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            await self.wait(left_s)
        return True


class _Attempts:
    """How often a request was sent, known also when its task is cancelled."""

    def __init__(self) -> None:
        self.count = 0


class AsyncPublisher:
    """Publishes events in the background of an event loop; made by `AsyncClient.publisher`.

    The promises are those of `Publisher`. To be used from the one event loop in which it publishes first.
    """

    def __init__(
        self,
        perform: Callable[[Call[PublishAnswer]], Awaitable[PublishAnswer]],
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
        # Tables are sent one after the other, under a producer id of their own.
        self._table_producer = uuid.uuid4().hex
        self._table_sequence = -1
        self._table_lock = asyncio.Lock()
        self._outbox = Outbox(self._policy)
        self._record = SendRecord(self._policy)
        self._work = Signal()
        self._progress = Signal()
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._chance = random.Random()

    async def __aenter__(self) -> AsyncPublisher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def publish(self, event: Publishable) -> asyncio.Future[Position]:
        """Queue one event; the future, which can be awaited, resolves when it is durable.

        Errors are those of `Publisher.publish`. Queueing never waits: a program that publishes without
        awaiting the futures awaits `drain` now and then, so that the queue stays bounded.
        """
        line = encode_event(event)
        future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        receiver = OneEvent(_resolver(future), _refuser(future))
        self._hand_over([line], len(line), receiver, 0)
        return future

    async def publish_many(self, events: Iterable[Publishable]) -> list[Position]:
        """Publish events and wait until all of them are durable; see `Publisher.publish_many`."""
        lines = encode_events(events)
        if not lines:
            return []
        future: asyncio.Future[list[Position]] = asyncio.get_running_loop().create_future()
        receiver = ManyEvents(len(lines), _resolver(future), _refuser(future))
        for start in range(0, len(lines), HAND_OVER_EVENTS):
            part = lines[start : start + HAND_OVER_EVENTS]
            await self.drain()
            self._hand_over(part, sum(map(len, part)), receiver, start)
        self._outbox.hurry()
        self._work.fire()
        return await future

    async def publish_table(self, events: Any, *, max_events: int = MAX_RECORD_EVENTS) -> list[Position]:
        """Publish an Arrow table and wait until all rows are durable; see `Publisher.publish_table`."""
        pieces = TablePieces(events, max_events, datetime.now(UTC))
        if not pieces.size:
            return []
        future: asyncio.Future[list[Position]] = asyncio.get_running_loop().create_future()
        receiver = ManyEvents(pieces.size, _resolver(future), _refuser(future))
        async with self._table_lock:
            await self.flush()
            for piece in pieces:
                error = await self._send_piece(piece, receiver)
                if error is not None and not pieces.cut_smaller(piece, error):
                    receiver.fail(piece.start, pieces.size - piece.start, error)
                    break
        return await future

    async def _send_piece(self, piece: TablePiece, receiver: ManyEvents) -> FieldfareError | None:
        if self._closed:
            return ClientClosed("the publisher was closed before these events were sent")
        self._table_sequence += 1
        call = publish_stream(
            self._space, piece.body, piece.count, self._table_producer, self._table_sequence
        )
        books = _Attempts()
        acknowledged = False
        self._record.in_flight_events += piece.count
        try:
            outcome = await self._perform_until_final(call, time.monotonic(), books)
            acknowledged = isinstance(outcome, PublishAnswer)
        finally:
            self._record.close_request(piece.count, books.count, acknowledged)
            self._progress.fire()
        if isinstance(outcome, PublishAnswer):
            receiver.receive(piece.start, outcome.positions, outcome.refused)
            return None
        return outcome

    async def drain(self) -> None:
        """Wait until the queue has room: the back-pressure of a service that is slower than the program."""
        await self._progress.wait_for(
            lambda: self._outbox.size_bytes < self._max_queued_bytes or self._closed
        )

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every event published before has been acknowledged or has failed."""
        self._outbox.hurry()
        self._work.fire()
        if not await self._progress.wait_for(self._is_idle, timeout_s):
            waiting = len(self._outbox) + self._record.in_flight_events
            raise FlushTimeout(f"{waiting:,} events were not acknowledged within {timeout_s:g} s")

    async def close(self, timeout_s: float | None = None) -> None:
        """Send what is queued, then stop. After ``timeout_s`` the rest fails instead. May be called twice."""
        self._closed = True
        self._outbox.hurry()
        self._work.fire()
        self._progress.fire()
        if not await self._progress.wait_for(self._is_idle, timeout_s):
            for batch in self._outbox.take_rest():
                self._record.failed_events += len(batch.lines)
                batch.fail(ClientClosed("the publisher was closed before this event was sent"))
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stats(self) -> PublisherStats:
        """Counts since the start, and how it batches now."""
        return self._record.stats(len(self._outbox))

    def _is_idle(self) -> bool:
        return not len(self._outbox) and not self._record.in_flight_events

    def _hand_over(
        self, lines: list[bytes], size_bytes: int, receiver: OneEvent | ManyEvents, start: int
    ) -> None:
        if self._closed:
            raise ClientClosed("this publisher is closed")
        was_empty = not len(self._outbox)
        self._outbox.add(lines, size_bytes, receiver, start, time.monotonic())
        self._start_allowed_tasks()
        if was_empty or self._outbox.is_full():
            self._work.fire()

    def _start_allowed_tasks(self) -> None:
        while len(self._tasks) < self._policy.limits().max_in_flight:
            self._tasks.append(asyncio.create_task(self._send_forever()))

    async def _send_forever(self) -> None:
        while True:
            wait_s = self._outbox.due_in_s(time.monotonic())
            if wait_s == 0.0:
                batch = self._outbox.take()
                self._record.in_flight_events += len(batch.lines)
                self._progress.fire()  # There is room again.
                if len(self._outbox):
                    self._start_allowed_tasks()
                    self._work.fire()  # The rest is for another task, if there is one.
                await self._send(batch)
            elif self._closed and not len(self._outbox):
                return
            else:
                await self._work.wait(wait_s)

    async def _send(self, batch: Batch) -> None:
        call = publish_lines(self._space, batch.lines, self._producer, batch.sequence)
        started_s = time.monotonic()
        books = _Attempts()
        acknowledged = False
        try:
            outcome = await self._perform_until_final(call, started_s, books)
            if isinstance(outcome, PublishAnswer):
                acknowledged = True
                batch.resolve(outcome)
            else:
                batch.fail(outcome)
        except asyncio.CancelledError:
            batch.fail(ClientClosed("the publisher was closed before this event was acknowledged"))
            raise
        finally:
            self._finish(batch, started_s, books.count, acknowledged)

    async def _perform_until_final(
        self, call: Call[PublishAnswer], started_s: float, attempts: _Attempts
    ) -> PublishAnswer | FieldfareError:
        """Send a request, again and again while it fails in passing; its outcome."""
        backoff = Backoff(self._retry, started_s, self._chance)
        while True:
            attempts.count += 1
            try:
                return await self._perform(call)
            except Exception as error:  # Whatever it is, the futures must hear of it.
                wait_s = backoff.next_wait_s(error, time.monotonic())
                if wait_s is None:
                    return final_error(error, self._retry, attempts.count)
                logger.debug("a request failed, again in %.2f s: %s", wait_s, error)
                await asyncio.sleep(wait_s)

    def _finish(self, batch: Batch, started_s: float, attempts: int, acknowledged: bool) -> None:
        self._outbox.finish(batch)
        self._record.close_request(len(batch.lines), attempts, acknowledged)
        self._outbox.report(batch, started_s, time.monotonic(), attempts, acknowledged)
        self._progress.fire()
        self._work.fire()


def _resolver(future: asyncio.Future[Value]) -> Callable[[Value], None]:
    def resolve(value: Value) -> None:
        if not future.done():  # Its task may have been cancelled.
            future.set_result(value)

    return resolve


def _refuser(future: asyncio.Future[Any]) -> Callable[[FieldfareError], None]:
    def refuse(error: FieldfareError) -> None:
        if not future.done():
            future.set_exception(error)

    return refuse
