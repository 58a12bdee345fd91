"""The sync subscriber: reads a subscription's stream, reconnects, and sends acks in the background.

Path of a message: bytes of the stream become frames (`event_stream`), frames that the program has not seen
(`session`) become messages; its acks go to the ack sender's thread, which tells the service in batches.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from types import TracebackType
from typing import Any

import httpx

from fieldfare.client.errors import (
    ClientClosed,
    ConnectionFailed,
    FieldfareError,
    FlushTimeout,
    SubscriptionDeleted,
    UnexpectedAnswer,
)
from fieldfare.client.event_stream import EventStreamParser, Frame
from fieldfare.client.message import Message
from fieldfare.client.protocol import Call, acknowledge, negative_acknowledge, stream_path
from fieldfare.client.retry import Backoff, RetrySettings, is_passing
from fieldfare.client.session import AckBatch, AckBuffer, SeenPositions
from fieldfare.client.transport import (
    HTTP_ERRORS,
    STREAM_HEADERS,
    STREAM_SILENCE_S,
    check_stream,
    raise_translated,
)
from fieldfare.model import Position

logger = logging.getLogger("fieldfare.client")

STAY_CONNECTED = RetrySettings(first_wait_s=0.1, most_wait_s=5.0, deadline_s=float("inf"))
"""Once a stream has been open, it is opened again for as long as it takes."""


def describe_acks(space: str, id: str, batch: AckBatch) -> list[Call[None]]:
    """The requests that a batch of acks needs."""
    calls = []
    if batch.acks:
        calls.append(acknowledge(space, id, batch.acks))
    if batch.nacks:
        calls.append(negative_acknowledge(space, id, batch.nacks))
    return calls


def read_position(id: str, frame: Frame) -> Position | None:
    """The position of a message; None for a frame that is no message. The service's goodbye is an error."""
    if frame.kind == b"deleted":
        raise SubscriptionDeleted(f"the subscription {id!r} was deleted")
    if frame.kind not in (b"", b"message"):
        return None
    try:
        return Position.parse(frame.id.decode())
    except ValueError as error:
        raise UnexpectedAnswer(f"the stream sent a message without a position: {error}") from None


class AckSender:
    """Sends acks from a thread of its own; what fails in passing is sent again."""

    def __init__(self, perform: Callable[[Call[None]], None], space: str, id: str) -> None:
        self._perform = perform
        self._space = space
        self._id = id
        self._buffer = AckBuffer()
        self._work = threading.Condition()
        self._sending = False
        self._hurried = False
        self._closed = False
        self._error: FieldfareError | None = None
        self._thread: threading.Thread | None = None

    def ack(self, position: Position) -> None:
        self._add(self._buffer.ack, position)

    def nack(self, position: Position) -> None:
        self._add(self._buffer.nack, position)

    def flush(self, timeout_s: float) -> None:
        """Wait until all that was added is durable; raises what the service refused since the last flush."""
        with self._work:
            self._hurried = True
            self._work.notify_all()
            done = self._work.wait_for(lambda: not len(self._buffer) and not self._sending, timeout_s)
            self._hurried = False
            error, self._error = self._error, None
            if error is not None:
                raise error
            if not done:
                raise FlushTimeout(f"{len(self._buffer):,} acks could not be sent within {timeout_s:g} s")

    def close(self, timeout_s: float) -> None:
        try:
            self.flush(timeout_s)
        except FieldfareError as error:
            logger.warning(
                "subscription %s: acks were lost, these messages will come again: %s", self._id, error
            )
        with self._work:
            self._closed = True
            self._work.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _add(self, add: Callable[[Position, float], None], position: Position) -> None:
        with self._work:
            if self._closed:
                raise ClientClosed("this subscriber is closed; the message will come again")
            was_empty = not len(self._buffer)
            now_s = time.monotonic()
            add(position, now_s)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fieldfare-acks", daemon=True)
                self._thread.start()
            if was_empty or self._buffer.due_in_s(now_s) == 0.0:
                self._work.notify_all()

    def _run(self) -> None:
        chance = random.Random()
        backoff = Backoff(STAY_CONNECTED, 0.0, chance)
        while (batch := self._next_batch()) is not None:
            failed: AckBatch | None = None
            wait_s: float | None = None
            error: FieldfareError | None = None
            try:
                for call in describe_acks(self._space, self._id, batch):
                    self._perform(call)
                backoff = Backoff(STAY_CONNECTED, 0.0, chance)
            except FieldfareError as caught:
                wait_s = backoff.next_wait_s(caught, time.monotonic())
                if wait_s is None:
                    error = caught
                    logger.warning("subscription %s: acks were refused: %s", self._id, caught)
                else:
                    failed = batch
            with self._work:
                self._sending = False
                self._error = error or self._error
                if failed is not None:
                    self._buffer.put_back(failed, time.monotonic())
                self._work.notify_all()
                if wait_s is not None:
                    self._work.wait_for(lambda: self._closed, wait_s)

    def _next_batch(self) -> AckBatch | None:
        with self._work:
            while True:
                if self._closed:
                    return None
                wait_s = self._buffer.due_in_s(time.monotonic())
                if wait_s == 0.0 or (wait_s is not None and self._hurried):
                    self._sending = True
                    return self._buffer.take()
                self._work.wait(wait_s)


class Subscriber:
    """An iterator over the messages of one subscription; made by `Client.subscribe`.

    It never ends by itself: when the connection breaks it reconnects and goes on where it was, so the loop
    sees no message twice unless it was nacked or its ack deadline passed. At most ``window`` messages are
    under way without ack, so a program that never acks stops receiving. Close it, or use it in a ``with``
    statement, so that the last acks are sent. One thread iterates; `ack`, `flush` and `close` may be called
    from any.
    """

    def __init__(
        self,
        http: httpx.Client,
        perform: Callable[[Call[None]], None],
        url: str,
        space: str,
        id: str,
        window: int,
        ack_deadline_s: float | None,
        auto_ack: bool,
        timeout_s: float,
    ) -> None:
        self.id = id
        self.space = space
        self._http = http
        self._url = url
        self._path = stream_path(space, id, window, ack_deadline_s)
        self._auto_ack = auto_ack
        self._timeout_s = timeout_s
        self._acks = AckSender(perform, space, id)
        self._seen = SeenPositions()
        self._seen_lock = threading.Lock()
        self._ready: deque[Message] = deque()
        self._shown: Message | None = None
        self._closing = threading.Event()
        self._response: httpx.Response | None = None
        self._batches = self._read_forever()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        if self._auto_ack and self._shown is not None:
            # The loop asks for the next message, so it is done with the last one.
            shown, self._shown = self._shown, None
            shown.ack()
        while not self._ready:
            if self._closing.is_set():
                raise StopIteration
            self._keep_new(next(self._batches))
        message = self._shown = self._ready.popleft()
        with self._seen_lock:
            self._seen.show(message.position)
        return message

    def flush(self, timeout_s: float | None = None) -> None:
        """Make every ack and nack so far durable; raises what kept one from being so."""
        self._acks.flush(self._timeout_s if timeout_s is None else timeout_s)

    def close(self) -> None:
        """Send the last acks and end the stream; a loop in another thread ends. May be called twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._acks.close(self._timeout_s)
        self._ready.clear()
        response = self._response
        try:
            self._batches.close()
        except ValueError:
            # Another thread is in it, waiting for the stream.
            if response is not None:
                _interrupt(response)

    def take_ack(self, position: Position) -> None:
        """`Message.ack` ends here."""
        self._acks.ack(position)
        with self._seen_lock:
            self._seen.acked(position)

    def take_nack(self, position: Position) -> None:
        """`Message.nack` ends here."""
        self._acks.nack(position)
        with self._seen_lock:
            self._seen.nacked(position)

    def _keep_new(self, frames: list[Frame]) -> None:
        with self._seen_lock:
            for frame in frames:
                position = read_position(self.id, frame)
                if position is not None and self._seen.is_new(position):
                    self._ready.append(Message(position, frame.data, self))

    def _read_forever(self) -> Generator[list[Frame], None, None]:
        backoff: Backoff | None = None
        chance = random.Random()
        while not self._closing.is_set():
            try:
                with closing(self._read_connection()) as connection:
                    for frames in connection:
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
            self._closing.wait(wait_s)

    def _read_connection(self) -> Generator[list[Frame], None, None]:
        """One connection's frames; first an empty list, when it is open."""
        timeout = httpx.Timeout(self._timeout_s, read=STREAM_SILENCE_S)
        try:
            with self._http.stream("GET", self._path, headers=STREAM_HEADERS, timeout=timeout) as response:
                if response.status_code != 200:
                    response.read()
                check_stream(response)
                self._response = response
                with self._seen_lock:
                    self._seen.reconnected()
                parser = EventStreamParser()
                yield []
                for chunk in response.iter_raw():
                    yield parser.feed(chunk)
        except HTTP_ERRORS as error:
            raise_translated(error, self._url)
        finally:
            self._response = None


def _interrupt(response: httpx.Response) -> None:
    """Wake a thread that waits for the stream's next bytes: nothing but its socket can do that."""
    stream: Any = response.extensions.get("network_stream")
    connection = stream.get_extra_info("socket") if stream is not None else None
    if connection is None:
        return
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # Already gone, which is what was wanted.
