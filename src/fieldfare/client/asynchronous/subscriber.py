"""The subscriber: reads a subscription's stream, reconnects, and sends acks in the background.

Path of a message: bytes of the stream become frames (`event_stream`), frames that the program has not seen
(`session`) become messages; its acks go to the ack sender's worker, which tells the service in batches.
"""

from __future__ import annotations

import logging
import random
import signal
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, suppress
from types import TracebackType

import httpx

from fieldfare.client.asynchronous.concurrency import (
    AsyncFlag,
    AsyncGuard,
    AsyncReader,
    AsyncSignal,
    AsyncWorkers,
)
from fieldfare.client.asynchronous.processing import AsyncProcessing
from fieldfare.client.encrypting import PLAINLY, Encryption
from fieldfare.client.errors import ClientClosed, ConnectionFailed, FieldfareError, FlushTimeout
from fieldfare.client.event_stream import SOUGHT, EventStreamParser, Frame, read_position
from fieldfare.client.message import Message
from fieldfare.client.protocol import ApiCall, stream_path
from fieldfare.client.retry import STAY_CONNECTED, Backoff, is_passing
from fieldfare.client.session import AckBatch, AckBuffer, SeenPositions, describe_acks
from fieldfare.client.tracing import handling
from fieldfare.client.transport import (
    HTTP_ERRORS,
    STREAM_HEADERS,
    STREAM_SILENCE_S,
    check_stream,
    raise_translated,
)
from fieldfare.client.verdict import Verdict
from fieldfare.model import Position

logger = logging.getLogger("fieldfare.client")

PROCESSED_DEADLINE_S = 60.0
"""The ack deadline of messages that are processed, where none is named: it is extended all the time."""


class AsyncAckSender:
    """Sends acks from a worker of its own; what fails in passing is sent again."""

    def __init__(self, perform: Callable[[ApiCall[None]], Awaitable[None]], space: str) -> None:
        self.id = ""
        """Whose acks these are; known once the subscription exists."""
        self._perform = perform
        self._space = space
        self._buffer = AckBuffer()
        self._guard = AsyncGuard()
        self._work = AsyncSignal(self._guard)
        self._done = AsyncSignal(self._guard)
        self._sending = False
        self._hurried = False
        self._closed = False
        self._error: FieldfareError | None = None
        self._workers = AsyncWorkers("fieldfare-acks")

    def ack(self, position: Position) -> None:
        self._add(self._buffer.ack, position)

    def say(self, position: Position, verdict: Verdict) -> None:
        self._add(lambda position, now_s: self._buffer.say(position, verdict, now_s), position)

    async def flush(self, timeout_s: float) -> None:
        """Wait until all that was added is durable; raises what the service refused since the last flush."""
        with self._guard:
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
                "subscription %s: acks were lost, these messages will come again: %s", self.id, error
            )
        with self._guard:
            self._closed = True
            self._work.fire()
        await self._workers.end(timeout_s)

    def _add(self, add: Callable[[Position, float], None], position: Position) -> None:
        with self._guard:
            if self._closed:
                raise ClientClosed("this subscriber is closed; the message will come again")
            was_empty = not len(self._buffer)
            now_s = time.monotonic()
            add(position, now_s)
            if not len(self._workers):
                self._workers.start(self._run)
            if was_empty or self._buffer.due_in_s(now_s) == 0.0:
                self._work.fire()

    async def _run(self) -> None:
        chance = random.Random()
        backoff = Backoff(STAY_CONNECTED, 0.0, chance)
        while (batch := await self._next_batch()) is not None:
            error = await self._send(batch)
            wait_s: float | None = None
            if error is None:
                backoff = Backoff(STAY_CONNECTED, 0.0, chance)
            else:
                wait_s = backoff.next_wait_s(error, time.monotonic())
            with self._guard:
                self._sending = False
                if wait_s is not None:
                    self._buffer.put_back(batch, time.monotonic())
                elif error is not None:
                    self._error = error
                    logger.warning("subscription %s: acks were refused: %s", self.id, error)
                self._done.fire()
                if wait_s is not None:
                    await self._work.wait_for(lambda: self._closed, wait_s)

    async def _next_batch(self) -> AckBatch | None:
        with self._guard:
            while not self._closed:
                wait_s = self._buffer.due_in_s(time.monotonic())
                if wait_s == 0.0 or (wait_s is not None and self._hurried):
                    self._sending = True
                    return self._buffer.take()
                await self._work.wait(wait_s)
            return None

    async def _send(self, batch: AckBatch) -> FieldfareError | None:
        try:
            for call in describe_acks(self._space, self.id, batch):
                await self._perform(call)
        except FieldfareError as error:
            return error
        return None


class AsyncSubscriber:
    """An iterator over the messages of one subscription; made by `AsyncClient.subscribe`.

    It never ends by itself: when the connection breaks it reconnects and goes on where it was, so the loop
    sees no message twice unless it was nacked or its ack deadline passed. At most ``window`` messages are
    under way without ack, so a program that never acks stops receiving. Close it, or use it in an
    ``async with`` statement, so that the last acks are sent. One loop iterates; `ack`, `flush` and `close`
    may be called from elsewhere (without asyncio: from any thread).
    """

    def __init__(
        self,
        http: httpx.AsyncClient,
        perform: Callable[[ApiCall[None]], Awaitable[None]],
        ensure: Callable[[], Awaitable[str]],
        url: str,
        space: str,
        window: int,
        ack_deadline_s: float | None,
        auto_ack: bool,
        timeout_s: float,
        encryption: Encryption = PLAINLY,
    ) -> None:
        self._encryption = encryption
        self.id = ""
        self.space = space
        self._http = http
        self._ensure = ensure
        self._url = url
        self._window = window
        self._ack_deadline_s = ack_deadline_s
        self._auto_ack = auto_ack
        self._timeout_s = timeout_s
        self._acks = AsyncAckSender(perform, space)
        self._seen = SeenPositions()
        self._guard = AsyncGuard()
        self._ready: deque[Message] = deque()
        self._shown: Message | None = None
        self._closing = AsyncFlag()
        self._reader = AsyncReader(self._read_forever())

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
            # The loop asks for the next message, so it is done with the last one.
            shown, self._shown = self._shown, None
            shown.ack()
        while not self._ready:
            if self._closing.is_set():
                raise StopAsyncIteration
            await self.open()
            self._keep_new(await self._reader.next())
        message = self._shown = self._ready.popleft()
        with self._guard:
            self._seen.show(message.position)
        return message

    async def process(
        self,
        handler: Callable[[Message], Awaitable[None]],
        *,
        concurrency: int = 1,
        drain_on: Iterable[signal.Signals] = (signal.SIGTERM,),
    ) -> None:
        """Have every message handled, until the subscriber is closed.

        A message that the handler returns from is acked, one that it raises at is nacked (and comes again as
        the subscription's settings say), unless the handler has settled it itself; what ends a program
        (``sys.exit()``) ends this, too, and is raised here. While messages wait here,
        or are handled, their ack deadlines are extended. It ends with the subscriber closed: when `close` is
        called, when the subscription is deleted (which raises), or after one of some signals; then nothing
        more is begun, what is being handled comes to its end, and what waited goes to other readers.

        Parameters
        ----------
        handler
            Is given each message.
        concurrency : int
            How many are handled at a time; with 1 in their order.
        drain_on
            The signals, while this runs. Only a program's main thread hears any.
        """
        if self._auto_ack:
            raise ValueError("process acks messages when they are handled: subscribe without auto_ack")
        if concurrency < 1:
            raise ValueError(f"concurrency is at least 1, not {concurrency}")
        if self._ack_deadline_s is None:
            self._ack_deadline_s = PROCESSED_DEADLINE_S
        await self.open()

        async def traced(message: Message) -> None:
            with handling(message, self.space, self.id):
                await handler(message)

        processing = AsyncProcessing(self, self.close, traced, concurrency, self._ack_deadline_s)
        await processing.run(drain_on)

    async def open(self) -> None:
        """Make sure that the subscription exists, where a filter was given. May be called twice."""
        if self._closing.is_set():
            raise ClientClosed("this subscriber is closed")
        if not self.id:
            self.id = self._acks.id = await self._ensure()

    async def flush(self, timeout_s: float | None = None) -> None:
        """Make every ack and nack so far durable; raises what kept one from being so."""
        await self._acks.flush(self._timeout_s if timeout_s is None else timeout_s)

    async def close(self) -> None:
        """Send the last acks and end the stream; a loop elsewhere ends. May be called twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        await self._acks.close(self._timeout_s)
        self._ready.clear()
        await self._reader.close()

    def take_ack(self, position: Position) -> None:
        """`Message.ack` ends here."""
        self._acks.ack(position)
        with self._guard:
            self._seen.acked(position)

    def take_verdict(self, position: Position, verdict: Verdict) -> None:
        """`Message.nack`, `Message.extend` and `Message.terminate` end here."""
        self._acks.say(position, verdict)
        if verdict.verb != "extend":
            with self._guard:
                self._seen.nacked(position)

    def _keep_new(self, frames: list[Frame]) -> None:
        with self._guard:
            for frame in frames:
                if frame.kind == SOUGHT:
                    self._seen.sought()
                position = read_position(self.id, frame)
                if position is None:
                    continue
                if self._seen.is_new(position):
                    self._ready.append(Message(position, frame.data, self, frame.attempt, self._encryption))
                elif self._seen.is_done(position):
                    with suppress(ClientClosed):
                        self._acks.ack(position)

    async def _read_forever(self) -> AsyncGenerator[list[Frame], None]:
        backoff: Backoff | None = None
        chance = random.Random()
        while not self._closing.is_set():
            try:
                async with aclosing(self._read_connection()) as connection:
                    async for frames in connection:
                        backoff = Backoff(STAY_CONNECTED, 0.0, chance)
                        if frames:
                            yield frames
                error: FieldfareError = ConnectionFailed("the service ended the stream", self._url)
            except FieldfareError as caught:
                error = caught
            if self._closing.is_set():
                return
            if backoff is None or not is_passing(error):
                raise error
            wait_s = backoff.next_wait_s(error, time.monotonic()) or 0.0
            logger.info("subscription %s: %s; again in %.1f s", self.id, error, wait_s)
            await self._closing.wait(wait_s)

    async def _read_connection(self) -> AsyncGenerator[list[Frame], None]:
        """One connection's frames; first an empty list, when it is open."""
        timeout = httpx.Timeout(self._timeout_s, read=STREAM_SILENCE_S)
        path = stream_path(self.space, self.id, self._window, self._ack_deadline_s)
        try:
            async with self._http.stream("GET", path, headers=STREAM_HEADERS, timeout=timeout) as response:
                if response.status_code != 200:
                    await response.aread()
                check_stream(response)
                self._reader.response = response
                with self._guard:
                    self._seen.reconnected()
                parser = EventStreamParser()
                yield []
                async for chunk in response.aiter_raw():
                    yield parser.feed(chunk)
        except HTTP_ERRORS as error:
            raise_translated(error, self._url)
        finally:
            self._reader.response = None
