"""The async subscriber: the same stream reading, session and acks as the sync one, in tasks."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from types import TracebackType

import httpx

from fieldfare.client.async_publisher import Signal
from fieldfare.client.errors import ClientClosed, ConnectionFailed, FieldfareError, FlushTimeout
from fieldfare.client.event_stream import EventStreamParser, Frame
from fieldfare.client.message import Message
from fieldfare.client.protocol import Call, stream_path
from fieldfare.client.retry import Backoff, is_passing
from fieldfare.client.session import AckBatch, AckBuffer, SeenPositions
from fieldfare.client.subscriber import STAY_CONNECTED, describe_acks, read_position
from fieldfare.client.transport import (
    HTTP_ERRORS,
    STREAM_HEADERS,
    STREAM_SILENCE_S,
    check_stream,
    raise_translated,
)
from fieldfare.model import Position

logger = logging.getLogger("fieldfare.client")


class AsyncAckSender:
    """Sends acks from a task of its own; what fails in passing is sent again."""

    def __init__(self, perform: Callable[[Call[None]], Awaitable[None]]) -> None:
        self._perform = perform
        self._space = ""
        self._id = ""
        self._buffer = AckBuffer()
        self._work = Signal()
        self._done = Signal()
        self._sending = False
        self._hurried = False
        self._closed = False
        self._error: FieldfareError | None = None
        self._task: asyncio.Task[None] | None = None

    def name(self, space: str, id: str) -> None:
        """Whose acks these are; known once the subscription exists."""
        self._space = space
        self._id = id

    def ack(self, position: Position) -> None:
        self._add(self._buffer.ack, position)

    def nack(self, position: Position) -> None:
        self._add(self._buffer.nack, position)

    async def flush(self, timeout_s: float) -> None:
        """Wait until all that was added is durable; raises what the service refused since the last flush."""
        self._hurried = True
        self._work.fire()
        done = await self._done.wait_for(lambda: not len(self._buffer) and not self._sending, timeout_s)
        self._hurried = False
        error, self._error = self._error, None
        if error is not None:
            raise error
        if not done:
            raise FlushTimeout(f"{len(self._buffer):,} acks could not be sent within {timeout_s:g} s")

    async def close(self, timeout_s: float) -> None:
        try:
            await self.flush(timeout_s)
        except FieldfareError as error:
            logger.warning(
                "subscription %s: acks were lost, these messages will come again: %s", self._id, error
            )
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _add(self, add: Callable[[Position, float], None], position: Position) -> None:
        if self._closed:
            raise ClientClosed("this subscriber is closed; the message will come again")
        was_empty = not len(self._buffer)
        now_s = time.monotonic()
        add(position, now_s)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        if was_empty or self._buffer.due_in_s(now_s) == 0.0:
            self._work.fire()

    async def _run(self) -> None:
        chance = random.Random()
        backoff = Backoff(STAY_CONNECTED, 0.0, chance)
        while True:
            wait_s = self._buffer.due_in_s(time.monotonic())
            if wait_s != 0.0 and (wait_s is None or not self._hurried):
                await self._work.wait(wait_s)
                continue
            batch = self._buffer.take()
            self._sending = True
            error = await self._send(batch)
            self._sending = False
            pause_s = None
            if error is None:
                backoff = Backoff(STAY_CONNECTED, 0.0, chance)
            elif (pause_s := backoff.next_wait_s(error, time.monotonic())) is not None:
                self._buffer.put_back(batch, time.monotonic())
            else:
                self._error = error
                logger.warning("subscription %s: acks were refused: %s", self._id, error)
            self._done.fire()
            if pause_s is not None:
                await asyncio.sleep(pause_s)

    async def _send(self, batch: AckBatch) -> FieldfareError | None:
        try:
            for call in describe_acks(self._space, self._id, batch):
                await self._perform(call)
        except FieldfareError as error:
            return error
        return None


class AsyncSubscriber:
    """An async iterator over the messages of one subscription; made by `AsyncClient.subscribe`.

    The promises are those of `Subscriber`. The subscription is made sure of by ``async with`` or by the
    first message that is asked for.
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        perform: Callable[[Call[None]], Awaitable[None]],
        ensure: Callable[[], Awaitable[str]],
        url: str,
        space: str,
        window: int,
        ack_deadline_s: float | None,
        auto_ack: bool,
        timeout_s: float,
    ) -> None:
        self.id = ""
        self.space = space
        self._http = http
        self._ensure = ensure
        self._url = url
        self._window = window
        self._ack_deadline_s = ack_deadline_s
        self._auto_ack = auto_ack
        self._timeout_s = timeout_s
        self._acks = AsyncAckSender(perform)
        self._seen = SeenPositions()
        self._ready: deque[Message] = deque()
        self._shown: Message | None = None
        self._closed = False
        self._waiting: asyncio.Task[list[Frame]] | None = None
        self._batches = self._read_forever()

    async def __aenter__(self) -> AsyncSubscriber:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        if self._auto_ack and self._shown is not None:
            shown, self._shown = self._shown, None
            shown.ack()
        while not self._ready:
            if self._closed:
                raise StopAsyncIteration
            await self.open()
            await self._read_more()
        message = self._shown = self._ready.popleft()
        self._seen.show(message.position)
        return message

    async def open(self) -> None:
        """Make sure that the subscription exists, where a filter was given. May be called twice."""
        if self._closed:
            raise ClientClosed("this subscriber is closed")
        if not self.id:
            self.id = await self._ensure()
            self._acks.name(self.space, self.id)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Make every ack and nack so far durable; raises what kept one from being so."""
        await self._acks.flush(self._timeout_s if timeout_s is None else timeout_s)

    async def close(self) -> None:
        """Send the last acks and end the stream; a loop in another task ends. May be called twice."""
        if self._closed:
            return
        self._closed = True
        await self._acks.close(self._timeout_s)
        self._ready.clear()
        if self._waiting is not None:
            self._waiting.cancel()
        else:
            await self._batches.aclose()

    def take_ack(self, position: Position) -> None:
        """`Message.ack` ends here."""
        self._acks.ack(position)
        self._seen.acked(position)

    def take_nack(self, position: Position) -> None:
        """`Message.nack` ends here."""
        self._acks.nack(position)
        self._seen.nacked(position)

    async def _read_more(self) -> None:
        # In a task of its own, so that `close` can end the wait without cancelling whoever iterates.
        self._waiting = asyncio.create_task(self._next_frames())
        try:
            frames = await self._waiting
        except asyncio.CancelledError:
            if self._closed:
                raise StopAsyncIteration from None
            raise
        finally:
            self._waiting = None
        for frame in frames:
            position = read_position(self.id, frame)
            if position is not None and self._seen.is_new(position):
                self._ready.append(Message(position, frame.data, self))

    async def _next_frames(self) -> list[Frame]:
        return await anext(self._batches)

    async def _read_forever(self) -> AsyncGenerator[list[Frame], None]:
        backoff: Backoff | None = None
        chance = random.Random()
        while not self._closed:
            try:
                async with aclosing(self._read_connection()) as connection:
                    async for frames in connection:
                        backoff = Backoff(STAY_CONNECTED, 0.0, chance)
                        if frames:
                            yield frames
                error: FieldfareError = ConnectionFailed("the service ended the stream", self._url)
            except FieldfareError as caught:
                error = caught
            if self._closed:
                return
            if backoff is None or not is_passing(error):
                raise error
            wait_s = backoff.next_wait_s(error, time.monotonic()) or 0.0
            logger.info("subscription %s: %s; again in %.1f s", self.id, error, wait_s)
            await asyncio.sleep(wait_s)

    async def _read_connection(self) -> AsyncGenerator[list[Frame], None]:
        """One connection's frames; first an empty list, when it is open."""
        timeout = httpx.Timeout(self._timeout_s, read=STREAM_SILENCE_S)
        path = stream_path(self.space, self.id, self._window, self._ack_deadline_s)
        try:
            async with self._http.stream("GET", path, headers=STREAM_HEADERS, timeout=timeout) as response:
                if response.status_code != 200:
                    await response.aread()
                check_stream(response)
                self._seen.reconnected()
                parser = EventStreamParser()
                yield []
                async for chunk in response.aiter_raw():
                    yield parser.feed(chunk)
        except HTTP_ERRORS as error:
            raise_translated(error, self._url)
