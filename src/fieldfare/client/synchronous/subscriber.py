# Made from client/asynchronous/subscriber.py by `make client`: change it there.
"""The subscriber: reads a subscription's stream, reconnects, and sends acks in the background.

The bytes of the stream become frames (`event_stream`); frames that the program has not seen (`session`)
become messages; the ack sender's worker sends acks to the service in batches.
"""

from __future__ import annotations

import logging
import random
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from types import TracebackType

import httpx

from fieldfare.client.encrypting import NO_ENCRYPTION, Encryption
from fieldfare.client.errors import (
    ClientClosed,
    ConnectionFailed,
    FieldfareError,
    FlushTimeout,
    SubscriptionMoved,
)
from fieldfare.client.event_stream import SOUGHT, EventStreamParser, Frame, read_position
from fieldfare.client.message import Message
from fieldfare.client.protocol import ApiCall, stream_path
from fieldfare.client.retry import STAY_CONNECTED, Backoff, is_passing
from fieldfare.client.session import AckBatch, AckBuffer, SeenPositions, describe_acks
from fieldfare.client.synchronous.concurrency import (
    Flag,
    Guard,
    Origin,
    Reader,
    Signal,
    Workers,
)
from fieldfare.client.synchronous.connection import Connection
from fieldfare.client.synchronous.processing import Processing
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
"""Ack deadline of messages in `Subscriber.process`, in seconds, if the program sets none; it is extended
automatically."""


class AckSender:
    """Sends acks in the background; retries after temporary failures."""

    def __init__(self, perform: Callable[[ApiCall[None]], None], space: str) -> None:
        self.id = ""
        """The id of the subscription; empty until the subscription exists."""
        self._perform = perform
        self._space = space
        self._buffer = AckBuffer()
        self._guard = Guard()
        self._work = Signal(self._guard)
        self._done = Signal(self._guard)
        self._sending = False
        self._hurried = False
        self._closed = False
        self._error: FieldfareError | None = None
        self._workers = Workers("fieldfare-acks")

    def ack(self, position: Position) -> None:
        self._add(self._buffer.ack, position)

    def say(self, position: Position, verdict: Verdict) -> None:
        self._add(lambda position, now_s: self._buffer.say(position, verdict, now_s), position)

    def flush(self, timeout_s: float) -> None:
        """Wait until all added acks are durable; raise an error if one was refused since the last flush."""
        with self._guard:
            self._hurried = True
            self._work.fire()
            done = self._done.wait_for(lambda: not len(self._buffer) and not self._sending, timeout_s)
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
                "subscription %s: acks were lost, their messages will be redelivered: %s", self.id, error
            )
        with self._guard:
            self._closed = True
            self._work.fire()
        self._workers.end(timeout_s)

    def _add(self, add: Callable[[Position, float], None], position: Position) -> None:
        with self._guard:
            if self._closed:
                raise ClientClosed("this subscriber is closed; the message will be redelivered")
            was_empty = not len(self._buffer)
            now_s = time.monotonic()
            add(position, now_s)
            if not len(self._workers):
                self._workers.start(self._run)
            if was_empty or self._buffer.due_in_s(now_s) == 0.0:
                self._work.fire()

    def _run(self) -> None:
        chance = random.Random()
        backoff = Backoff(STAY_CONNECTED, 0.0, chance)
        while (batch := self._next_batch()) is not None:
            error = self._send(batch)
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
                    self._work.wait_for(lambda: self._closed, wait_s)

    def _next_batch(self) -> AckBatch | None:
        with self._guard:
            while not self._closed:
                wait_s = self._buffer.due_in_s(time.monotonic())
                if wait_s == 0.0 or (wait_s is not None and self._hurried):
                    self._sending = True
                    return self._buffer.take()
                self._work.wait(wait_s)
            return None

    def _send(self, batch: AckBatch) -> FieldfareError | None:
        try:
            for call in describe_acks(self._space, self.id, batch):
                self._perform(call)
        except SubscriptionMoved:
            return None  # all its messages there are settled
        except FieldfareError as error:
            return error
        return None


class Home:
    """The service at which a subscription is read: its messages are settled where they came from.

    Parameters
    ----------
    connection
        The connections to the service.
    acks
        Sends acks there.
    """

    def __init__(self, connection: Connection, acks: AckSender, origin: Origin) -> None:
        self.connection = connection
        self.acks = acks
        self.seen = SeenPositions()
        self.guard = Guard()
        self.is_left = False
        """Whether the subscription is elsewhere now: all its messages here are settled."""
        self._origin = origin

    def take_ack(self, position: Position) -> None:
        """Queue an ack; called by `Message.ack`."""
        self._origin.check("subscriber")
        if not self.is_left:
            self.acks.ack(position)
            with self.guard:
                self.seen.acked(position)

    def take_verdict(self, position: Position, verdict: Verdict) -> None:
        """Queue a verdict; called by `Message.nack`, `Message.extend` and `Message.terminate`."""
        self._origin.check("subscriber")
        if not self.is_left:
            self.acks.say(position, verdict)
            if verdict.verb != "extend":
                with self.guard:
                    self.seen.nacked(position)


class Subscriber:
    """An iterator over the messages of one subscription; created by `Client.subscribe`.

    It does not end by itself: if the connection breaks it reconnects and resumes, so the loop gets no message
    twice unless that was nacked or its ack deadline passed. At most ``window`` messages are in flight, so a
    program that never acks stops receiving. Close it, or use it in a ``with`` statement, so that the
    last acks are sent. Only one loop may iterate; `ack`, `flush` and `close` may be called from other tasks
    (without asyncio: from any thread).
    """

    def __init__(
        self,
        connection: Connection,
        ensure: Callable[[], str],
        space: str,
        window: int,
        ack_deadline_s: float | None,
        auto_ack: bool,
        encryption: Encryption = NO_ENCRYPTION,
    ) -> None:
        self._encryption = encryption
        self.id = ""
        self.space = space
        self._origin = Origin()
        self._ensure = ensure
        self._window = window
        self._ack_deadline_s = ack_deadline_s
        self._auto_ack = auto_ack
        self._timeout_s = connection.endpoint.timeout_s
        # A request makes httpcore look at every connection of its pool, and all streams are connections.
        own = connection.again()
        self._home = Home(own, AckSender(own.perform, space), self._origin)
        self._has_moved = False
        self._ready: deque[Message] = deque()
        self._shown: Message | None = None
        self._closing = Flag()
        self._reader = Reader(self._read_forever())

    def __enter__(self) -> Subscriber:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        self._origin.check("subscriber")
        if self._auto_ack and self._shown is not None:
            # Asking for the next message means that the program has handled the last one.
            shown, self._shown = self._shown, None
            shown.ack()
        while not self._ready:
            if self._closing.is_set():
                raise StopIteration
            self.open()
            self._keep_new(self._reader.next())
        message = self._shown = self._ready.popleft()
        with self._home.guard:
            self._home.seen.show(message.position)
        return message

    def process(
        self,
        handler: Callable[[Message], None],
        *,
        concurrency: int = 1,
        drain_on: Iterable[signal.Signals] = (signal.SIGTERM,),
    ) -> None:
        """Call a handler with every message, until the subscriber is closed.

        When the handler returns, its message is acked; when it raises, the message is nacked (and redelivered
        as the subscription's settings say), unless the handler has settled it. ``sys.exit()`` in a handler
        ends processing, and SystemExit is raised here. The ack deadlines of messages that wait here or are
        being handled are extended automatically. Processing ends, and closes the subscriber, when `close` is
        called, when the subscription is deleted (which raises SubscriptionDeleted), or on a signal in
        ``drain_on``: then no more handlers are started, running ones finish, and waiting messages go to other
        readers.

        Parameters
        ----------
        handler
            Called with each message.
        concurrency : int
            Maximum messages handled at a time; with 1 they are handled in order.
        drain_on
            The signals that end processing. They are handled only in a program's main thread.
        """
        if self._auto_ack:
            raise ValueError("process() acks messages after the handler: subscribe without auto_ack")
        if concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        if self._ack_deadline_s is None:
            self._ack_deadline_s = PROCESSED_DEADLINE_S
        self.open()

        def traced(message: Message) -> None:
            with handling(message, self.space, self.id):
                handler(message)

        processing = Processing(self, self.close, traced, concurrency, self._ack_deadline_s)
        processing.run(drain_on)

    def open(self) -> None:
        """Ensure that the subscription exists, if a filter was given. May be called twice."""
        self._origin.check("subscriber")
        if self._closing.is_set():
            raise ClientClosed("this subscriber is closed")
        if not self.id:
            try:
                self.id = self._home.acks.id = self._ensure()
            except SubscriptionMoved as moved:
                self.id = self._home.acks.id = moved.id
                self._follow(moved)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all acks and nacks are durable; raise the error of one that was refused.

        FlushTimeout after ``timeout_s`` seconds; default: the client's ``timeout_s``.
        """
        self._origin.check("subscriber")
        self._home.acks.flush(self._timeout_s if timeout_s is None else timeout_s)

    def close(self) -> None:
        """Send the last acks and close the stream; a loop that iterates ends. May be called twice.

        In a forked process this does nothing: the stream belongs to the parent.
        """
        if self._closing.is_set() or not self._origin.is_here():
            return
        self._closing.set()
        self._home.acks.close(self._timeout_s)
        self._ready.clear()
        self._reader.close()
        self._home.connection.close()

    def _keep_new(self, frames: list[Frame]) -> None:
        home = self._home
        with home.guard:
            for frame in frames:
                if frame.kind == SOUGHT:
                    home.seen.sought()
                position = read_position(self.id, frame)
                if position is None:
                    continue
                if home.seen.is_new(position):
                    self._ready.append(Message(position, frame.data, home, frame.attempt, self._encryption))
                elif home.seen.is_done(position):
                    with suppress(ClientClosed):
                        home.acks.ack(position)

    def _follow(self, moved: SubscriptionMoved) -> None:
        """Go on at the service to which the subscription has moved. No message is waiting here then."""
        left = self._home
        try:
            connection = left.connection.moved_to(moved.url, moved.token)
        except ValueError as error:
            raise ConnectionFailed(f"{moved}\nhint: {error}", left.connection.endpoint.url) from None
        logger.info("subscription %s: has moved to %s", self.id, connection.endpoint.url)
        acks = AckSender(connection.perform, self.space)
        acks.id = self.id
        self._has_moved = True
        self._home = Home(connection, acks, self._origin)
        left.is_left = True
        left.acks.close(self._timeout_s)
        left.connection.close()

    def _read_forever(self) -> Generator[list[Frame], None, None]:
        chance = random.Random()
        backoff = Backoff(STAY_CONNECTED, 0.0, chance) if self._has_moved else None
        while not self._closing.is_set():
            try:
                with closing(self._read_connection()) as connection:
                    for frames in connection:
                        backoff = Backoff(STAY_CONNECTED, 0.0, chance)
                        if frames:
                            yield frames
                url = self._home.connection.endpoint.url
                error: FieldfareError = ConnectionFailed("the service ended the stream", url)
            except SubscriptionMoved as moved:
                self._follow(moved)
                backoff = Backoff(STAY_CONNECTED, 0.0, chance)
                continue
            except FieldfareError as caught:
                error = caught
            if self._closing.is_set():
                return
            if backoff is None or not (is_passing(error) or isinstance(error, ConnectionFailed)):
                raise error
            wait_s = backoff.next_wait_s(error, time.monotonic()) or 0.0
            logger.info("subscription %s: %s; again in %.1f s", self.id, error, wait_s)
            self._closing.wait(wait_s)

    def _read_connection(self) -> Generator[list[Frame], None, None]:
        """Yield the frames of one connection, as lists; first an empty list, once it is open."""
        timeout = httpx.Timeout(self._timeout_s, read=STREAM_SILENCE_S)
        path = stream_path(self.space, self.id, self._window, self._ack_deadline_s)
        try:
            with self._home.connection.http.stream(
                "GET", path, headers=STREAM_HEADERS, timeout=timeout
            ) as response:
                if response.status_code != 200:
                    response.read()
                check_stream(response, self._home.connection.endpoint)
                self._reader.response = response
                with self._home.guard:
                    self._home.seen.reconnected()
                parser = EventStreamParser()
                yield []
                for chunk in response.iter_raw():
                    yield parser.feed(chunk)
        except HTTP_ERRORS as error:
            raise_translated(error, self._home.connection.endpoint)
        finally:
            self._reader.response = None
