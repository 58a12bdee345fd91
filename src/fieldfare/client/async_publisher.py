"""The async publisher: the same queue, retry and books as the sync one, sent by tasks instead of threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from fieldfare.client.batching import (
    MAX_RECORD_EVENTS,
    Batch,
    BatchPolicy,
    ManyEvents,
    OneEvent,
    Receiver,
    fail_runs,
)
from fieldfare.client.dispatch import HAND_OVER_EVENTS, Delivery, Dispatch, PublisherStats, encode_events
from fieldfare.client.encoding import Publishable, encode_event
from fieldfare.client.errors import ClientClosed, FieldfareError, OutboxError
from fieldfare.client.outbox import Outbox, OutboxSettings
from fieldfare.client.protocol import Call, PublishAnswer
from fieldfare.client.retry import RetrySettings
from fieldfare.client.stored_queue import NOBODY
from fieldfare.client.table_delivery import PieceDelivery, TableDelivery, TableTurn
from fieldfare.client.tables import TablePieces
from fieldfare.model import Position

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


class AsyncPublisher:
    """Publishes events in the background of an event loop; made by `AsyncClient.publisher`.

    The promises are those of `Publisher`. To be used from the one event loop in which it publishes first.
    """

    def __init__(
        self,
        perform: Callable[[Call[PublishAnswer]], Awaitable[PublishAnswer]],
        url: str,
        space: str,
        batch: BatchPolicy | Literal["auto"] = "auto",
        retry: RetrySettings | None = None,
        outbox: str | Path | OutboxSettings | None = None,
    ) -> None:
        self._perform = perform
        self._dispatch = Dispatch(url, space, batch, retry, outbox)
        self._queue = self._dispatch.queue
        self._tables, self._table_lock = TableTurn(), asyncio.Lock()
        self._work = Signal()
        self._progress = Signal()
        self._closed = False
        self._is_stopping = False  # What fails from now on is not repeated.
        self._stop = Signal()
        self._tasks: list[asyncio.Task[None]] = []
        if len(self._queue) and _is_in_loop():
            self._start_allowed_tasks()

    async def __aenter__(self) -> AsyncPublisher:
        self._start_allowed_tasks()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def outbox(self) -> Outbox | None:
        """What is on disk; None without an outbox."""
        return self._dispatch.outbox

    def publish(self, event: Publishable) -> asyncio.Future[Position]:
        """Queue one event; the future, which can be awaited, resolves when it is durable.

        Errors are those of `Publisher.publish`. Queueing never waits: a program that publishes without
        awaiting the futures awaits `drain` now and then, so that the queue stays bounded. With an outbox the
        event is in its file when this returns; a full one raises OutboxFull.
        """
        line = encode_event(event)
        future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        receiver = OneEvent(_resolver(future), _refuser(future))
        self._hand_over([line], receiver, 0)
        return future

    async def publish_many(self, events: Iterable[Publishable]) -> list[Position]:
        """Publish events and wait until all of them are durable; see `Publisher.publish_many`."""
        lines = encode_events(events)
        if not lines:
            return []
        future: asyncio.Future[list[Position]] = asyncio.get_running_loop().create_future()
        receiver = ManyEvents(len(lines), _resolver(future), _refuser(future))
        for start in range(0, len(lines), HAND_OVER_EVENTS):
            await self.drain()
            try:
                self._hand_over(lines[start : start + HAND_OVER_EVENTS], receiver, start)
            except OutboxError as error:
                receiver.fail(start, len(lines) - start, error)
                break
        self._queue.hurry()
        self._work.fire()
        return await future

    async def store(self, events: Iterable[Publishable]) -> int:
        """Put events into the outbox and do not wait for the service; see `Publisher.store`."""
        outbox = self._dispatch.require_outbox()
        lines = encode_events(events)
        for start in range(0, len(lines), HAND_OVER_EVENTS):
            await self.drain()
            self._hand_over(lines[start : start + HAND_OVER_EVENTS], NOBODY, start)
        await asyncio.to_thread(outbox.sync)
        return len(lines)

    async def publish_table(self, events: Any, *, max_events: int = MAX_RECORD_EVENTS) -> list[Position]:
        """Publish an Arrow table and wait until all rows are durable; see `Publisher.publish_table`."""
        self._dispatch.require_no_outbox()
        pieces = TablePieces(events, max_events, datetime.now(UTC))
        if not pieces.size:
            return []
        future: asyncio.Future[list[Position]] = asyncio.get_running_loop().create_future()
        receiver = ManyEvents(pieces.size, _resolver(future), _refuser(future))
        async with self._table_lock:
            await self.flush()
            table = TableDelivery(self._dispatch, self._tables, pieces, receiver)
            for delivery in table.requests(time.monotonic()):
                try:
                    await self._send_piece(delivery)
                finally:
                    delivery.close()
                    self._progress.fire()
                table.end(delivery)
        return await future

    async def _send_piece(self, delivery: PieceDelivery) -> None:
        while delivery.fate is None:
            if self._closed:
                delivery.fate = ClientClosed("the publisher was closed before these events were sent")
                return
            try:
                delivery.succeed(await self._perform(delivery.call))
            except Exception as error:  # Whatever it is, the caller must hear of it.
                wait_s = delivery.fail(error, time.monotonic(), self._is_stopping)
                if wait_s is not None:
                    await self._stop.wait(wait_s)

    async def drain(self) -> None:
        """Wait until the queue has room: the back-pressure of a service that is slower than the program."""
        await self._progress.wait_for(lambda: self._queue.has_room() or self._closed)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was published before, or was in the outbox, is acknowledged or has failed."""
        self._start_allowed_tasks()
        self._queue.hurry()
        self._work.fire()
        if not await self._progress.wait_for(self._dispatch.is_idle, timeout_s):
            raise self._dispatch.make_flush_error(timeout_s)

    async def close(self, timeout_s: float | None = None) -> None:
        """Send what is queued, then stop. After ``timeout_s`` the rest fails instead. May be called twice.

        With an outbox nothing is repeated any more: what the service does not take now stays on disk.
        """
        if len(self._queue):
            self._start_allowed_tasks()
        self._closed = True
        self._is_stopping = self._dispatch.outbox is not None
        self._queue.hurry()
        for signal in (self._work, self._progress, self._stop):
            signal.fire()
        in_time = await self._progress.wait_for(self._dispatch.is_idle, timeout_s)
        fail_runs(self._dispatch.take_rest(), self._dispatch.make_closing_error())
        self._work.fire()
        if not in_time:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._queue.close()

    def stats(self) -> PublisherStats:
        """Counts since the start, and how it batches now."""
        return self._dispatch.stats()

    def _hand_over(self, lines: list[bytes], receiver: Receiver, start: int) -> None:
        if self._closed:
            raise ClientClosed("this publisher is closed")
        was_empty = not len(self._queue)
        self._queue.add(lines, sum(map(len, lines)), receiver, start, time.monotonic())
        self._start_allowed_tasks()
        if was_empty or self._queue.is_full():
            self._work.fire()

    def _start_allowed_tasks(self) -> None:
        while len(self._tasks) < self._dispatch.policy.limits().max_in_flight:
            self._tasks.append(asyncio.create_task(self._send_forever()))

    async def _send_forever(self) -> None:
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
                        self._start_allowed_tasks()
                        self._work.fire()  # The rest is for another task, if there is one.
                    await self._send(batch)
                    continue
            if self._closed and not len(self._queue):
                return
            await self._work.wait(wait_s)
        self._progress.fire()

    async def _send(self, batch: Batch) -> None:
        delivery = Delivery(self._dispatch, batch, time.monotonic())
        try:
            while not delivery.is_over:
                try:
                    if self._dispatch.outbox is not None:
                        await asyncio.to_thread(delivery.make_durable)
                    answer = await self._perform(delivery.call)
                except Exception as error:  # Whatever it is, the futures must hear of it.
                    wait_s = delivery.fail(error, time.monotonic(), self._is_stopping)
                    if wait_s is not None:
                        await self._stop.wait(wait_s)
                else:
                    delivery.succeed(answer)
        except asyncio.CancelledError:
            delivery.give_up()
            raise
        finally:
            delivery.close(time.monotonic())
            self._progress.fire()
            self._work.fire()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


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
