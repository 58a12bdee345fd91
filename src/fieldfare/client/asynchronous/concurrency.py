"""Locks, signals, workers and futures for asyncio; ``client/synchronous`` has the same names for threads.

Everything runs on one event loop, so code between two awaits needs no lock.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import nullcontext, suppress
from typing import Any, Generic, TypeVar

import httpx

from fieldfare.client.errors import FieldfareError, WrongContext
from fieldfare.client.forks import FORKS

Value = TypeVar("Value")

AsyncFuture = asyncio.Future
AsyncLock = asyncio.Lock
Cancelled = asyncio.CancelledError
"""The exception that ends a worker early."""


class AsyncGuard(nullcontext[None]):
    """A lock that does nothing: on one event loop none is needed."""


class AsyncOrigin:
    """The process and event loop that an object belongs to; its connections and tasks work nowhere else.

    An object created while no event loop runs belongs to the first loop that it is used in.
    """

    def __init__(self) -> None:
        self._forks = FORKS.count
        self._loop = _running_loop()

    def is_here(self) -> bool:
        """Whether the caller runs in the object's process and event loop."""
        if self._forks != FORKS.count:
            return False
        loop = _running_loop()
        if self._loop is None:
            self._loop = loop
        return loop is None or self._loop is loop

    def is_in_use(self) -> bool:
        """Whether the object's event loop is in this process and still running."""
        return self._forks == FORKS.count and self._loop is not None and self._loop.is_running()

    def check(self, what: str) -> None:
        """Raise WrongContext in another process or event loop; ``what`` names the object in the message."""
        if self._forks != FORKS.count:
            raise WrongContext(f"this {what} was created before a fork: create one in this process")
        if not self.is_here():
            raise WrongContext(f"this {what} belongs to another event loop: create one in this loop")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class AsyncSignal:
    """Wakes the tasks that are waiting at this moment, like a condition variable."""

    def __init__(self, guard: AsyncGuard) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def fire(self) -> None:
        """Wake all waiters."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    fire_one = fire
    """Wake at least one waiter."""

    async def wait(self, timeout_s: float | None = None) -> None:
        """Return when fired, or after ``timeout_s`` seconds."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=timeout_s)
        finally:
            self._waiters.discard(waiter)

    async def wait_for(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until the condition holds, checking at each firing; False after ``timeout_s`` seconds."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not condition():
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return False
            await self.wait(left_s)
        return True

    def block_until(self, condition: Callable[[], bool]) -> None:
        """Do nothing: blocking the caller would block the whole event loop."""


class AsyncFlag:
    """A flag that is set once and can be waited for."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.is_set = self._event.is_set
        self.set = self._event.set

    async def wait(self, timeout_s: float) -> None:
        """Return when the flag is set, or after ``timeout_s`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()


class AsyncWorkers:
    """The background tasks of one owner."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        return len(self._tasks)

    @staticmethod
    def can_start() -> bool:
        """Whether an event loop is running to start a task on."""
        return _running_loop() is not None

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start one more task."""
        name = f"{self._name}-{len(self._tasks)}"
        self._tasks.append(asyncio.create_task(work(), name=name))

    async def end(self, timeout_s: float | None, *, at_once: bool = False) -> None:
        """Wait until all tasks have ended; cancel them after ``timeout_s`` seconds, or now if ``at_once``."""
        if self._tasks and not at_once:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def is_being_ended() -> bool:
    """Whether the calling worker itself is being cancelled, and not only something that it awaited."""
    return _cancellations() > 0


def _cancellations() -> int:
    """Return the number of requests to cancel the calling task."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


class AsyncPromise(asyncio.Future[Value]):
    """A future with methods to resolve it; they do nothing if its waiter was cancelled meanwhile."""

    def resolve(self, value: Value) -> None:
        if not self.done():
            self.set_result(value)

    def refuse(self, error: FieldfareError) -> None:
        if not self.done():
            self.set_exception(error)

    async def outcome(self) -> Value:
        """Wait for the result."""
        return await self


class AsyncReader(Generic[Value]):
    """Reads a generator, and can be closed while a task waits for the next value.

    Attributes
    ----------
    response : httpx.Response or None
        The stream that the generator is reading.
    """

    def __init__(self, values: AsyncGenerator[Value, None]) -> None:
        self.response: httpx.Response | None = None
        self._values = values
        self._closed = False
        # A separate task, so that `close` can end the wait without cancelling the task that iterates.
        self._waiting: asyncio.Task[Value] | None = None

    async def next(self) -> Value:
        """Return the next value; StopAsyncIteration at the end, or when the reader is closed."""
        before = _cancellations()
        self._waiting = asyncio.create_task(self._next())
        try:
            return await self._waiting
        except asyncio.CancelledError:
            if self._closed and _cancellations() == before:
                raise StopAsyncIteration from None
            raise
        finally:
            self._waiting = None

    async def _next(self) -> Value:
        return await anext(self._values)

    async def close(self) -> None:
        """Close the generator; a pending `next` raises StopAsyncIteration."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        else:
            await self._values.aclose()


async def off_the_loop(work: Callable[[], Value]) -> Value:
    """Run blocking work (such as a disk sync) in a thread."""
    return await asyncio.to_thread(work)


def open_early(open_it: Callable[[], Awaitable[None]]) -> None:
    """Do nothing: ``async with`` or the first use opens the object."""


def call_at_exit(work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Do nothing: the event loop has ended before the program exits.

    Return a function that does nothing (in the synchronous client it unregisters the call).
    """
    return lambda: None


def on_signals(signals: Iterable[signal.Signals], call: Callable[[], None]) -> Callable[[], None]:
    """Call a function when the process gets one of these signals; return a function that undoes this.

    Signals that cannot be handled are skipped: loops outside the main thread, and some systems, handle none.
    """
    loop = asyncio.get_running_loop()
    before: list[tuple[signal.Signals, Any]] = []
    for each in signals:
        handler = signal.getsignal(each)
        try:
            loop.add_signal_handler(each, call)
        except (NotImplementedError, RuntimeError, ValueError):
            continue
        before.append((each, handler))

    def take_back() -> None:
        for each, handler in before:
            loop.remove_signal_handler(each)  # This restores the system's default handler only.
            signal.signal(each, handler)

    return take_back
