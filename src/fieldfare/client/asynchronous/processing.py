"""Message processing: concurrent handlers, automatic ack deadline extension, graceful shutdown."""

from __future__ import annotations

import logging
import signal
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress

from fieldfare.client.asynchronous.concurrency import (
    AsyncGuard,
    AsyncSignal,
    AsyncWorkers,
    Cancelled,
    is_being_ended,
    on_signals,
)
from fieldfare.client.errors import ClientClosed
from fieldfare.client.message import Message

logger = logging.getLogger("fieldfare.client")

EXTENDED_PER_DEADLINE = 3
"""How many times per ack deadline the deadlines of all held messages are extended."""


class AsyncProcessing:
    """One call of `AsyncSubscriber.process`.

    One worker receives messages and others handle them; the subscriber's window bounds how many wait in
    between.

    Parameters
    ----------
    messages, close
        A subscriber's messages, and the function that closes the subscriber.
    handler
        Called with each message.
    concurrency
        Maximum messages handled at a time.
    deadline_s
        The ack deadline, in seconds: without an extension or an ack, the service then redelivers a message.
    """

    def __init__(
        self,
        messages: AsyncIterator[Message],
        close: Callable[[], Awaitable[None]],
        handler: Callable[[Message], Awaitable[None]],
        concurrency: int,
        deadline_s: float,
    ) -> None:
        self._messages = messages
        self._close = close
        self._handler = handler
        self._concurrency = concurrency
        self._deadline_s = deadline_s
        self._guard = AsyncGuard()
        self._changed = AsyncSignal(self._guard)
        self._waiting: deque[Message] = deque()
        self._handled: set[Message] = set()
        self._draining = False
        self._ended = False
        self._error: BaseException | None = None

    async def run(self, signals: Iterable[signal.Signals]) -> None:
        """Handle messages until `drain` is called or the subscriber ends; raise the error that ended it."""
        handlers = AsyncWorkers("fieldfare-handlers")
        helpers = AsyncWorkers("fieldfare-processing")
        take_back = on_signals(signals, self.drain)  # Before the first message: a signal would cut it off.
        try:
            helpers.start(self._absorb)
            helpers.start(self._extend)
            for _ in range(self._concurrency):
                handlers.start(self._handle_some)
            await handlers.end(None)
        finally:
            take_back()
            self.drain()
            await handlers.end(0.0, at_once=True)
            with self._guard:
                self._ended = True
                self._changed.fire()
            await self._close()
            await helpers.end(1.0)
        if self._error is not None:
            raise self._error

    def drain(self) -> None:
        """Start no more handlers; those that are running finish."""
        with self._guard:
            self._draining = True
            self._changed.fire()

    async def _absorb(self) -> None:
        try:
            async for message in self._messages:
                with self._guard:
                    if self._draining:
                        return
                    self._waiting.append(message)
                    self._changed.fire()
        except Exception as error:
            self._error = error
        finally:
            self.drain()

    async def _handle_some(self) -> None:
        while (message := await self._next()) is not None:
            settle = message.ack
            try:
                await self._handler(message)
            except BaseException as error:
                if is_being_ended():
                    raise
                logger.warning("the handler failed at %s", message, exc_info=True)
                settle = message.nack
                if not isinstance(error, (Exception, Cancelled)):  # sys.exit(), for example
                    self._error = error
                    self.drain()
            finally:
                with self._guard:
                    self._handled.discard(message)
            if not message.settled:
                with suppress(ClientClosed):  # The message is redelivered then.
                    settle()

    async def _next(self) -> Message | None:
        with self._guard:
            await self._changed.wait_for(lambda: self._draining or len(self._waiting) > 0)
            if self._draining:
                return None
            message = self._waiting.popleft()
            self._handled.add(message)
            return message

    async def _extend(self) -> None:
        """Extend the ack deadlines of all messages that wait here or are being handled."""
        while not await self._is_over():
            with self._guard:
                held = [] if self._draining else list(self._waiting)
                held += [message for message in self._handled if not message.settled]
            for message in held:
                if not message.settled:
                    with suppress(ClientClosed):  # The message is redelivered then.
                        message.extend(self._deadline_s)

    async def _is_over(self) -> bool:
        """Wait until the next extension is due; return True if processing has ended meanwhile."""
        with self._guard:
            return await self._changed.wait_for(lambda: self._ended, self._deadline_s / EXTENDED_PER_DEADLINE)
