"""How an asyncio program waits, wakes and starts; ``client/synchronous`` has the same names for threads.

Everything runs on one event loop, so nothing has to be guarded between two awaits.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

import httpx

from fieldfare.client.errors import FieldfareError

Value = TypeVar("Value")

AsyncFuture = asyncio.Future
AsyncLock = asyncio.Lock
Cancelled = asyncio.CancelledError
"""What ends a worker in the middle of something."""


class AsyncGuard(nullcontext[None]):
    """Where threads would need a lock."""


class AsyncSignal:
    """Wakes every task that waits at this moment."""

    def __init__(self, guard: AsyncGuard) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def fire(self) -> None:
        """Wake all that wait."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    fire_one = fire
    """Wake at least one that waits."""

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

    def hold_until(self, condition: Callable[[], bool]) -> None:
        """Make the caller wait: not here, where it would stop the whole loop."""


class AsyncFlag:
    """Is set once; waiting for it ends then."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self.is_set = self._event.is_set
        self.set = self._event.set

    async def wait(self, timeout_s: float) -> None:
        """Return when it is set, or after ``timeout_s``."""
        try:
            await asyncio.wait_for(self._event.wait(), timeout_s)
        except TimeoutError:
            pass


class AsyncWorkers:
    """The tasks that work in the background for one owner."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        return len(self._tasks)

    @staticmethod
    def can_start() -> bool:
        """Whether there is an event loop to start one on."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start one more."""
        name = f"{self._name}-{len(self._tasks)}"
        self._tasks.append(asyncio.create_task(work(), name=name))

    async def end(self, timeout_s: float | None, *, at_once: bool = False) -> None:
        """Wait until all have ended; those that do not in time, or are to end at once, are cancelled."""
        if self._tasks and not at_once:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def is_being_ended() -> bool:
    """Whether the worker that asks is being cancelled, and not only something that it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class AsyncPromise(asyncio.Future[Value]):
    """A future with what resolves it; the task that waits for it may have been cancelled meanwhile."""

    def resolve(self, value: Value) -> None:
        if not self.done():
            self.set_result(value)

    def refuse(self, error: FieldfareError) -> None:
        if not self.done():
            self.set_exception(error)

    async def outcome(self) -> Value:
        """Wait for it."""
        return await self


class AsyncReader(Generic[Value]):
    """Reads a generator, and can be closed while somebody waits for its next value.

    Attributes
    ----------
    response : httpx.Response or None
        The stream that the generator reads at the moment.
    """

    def __init__(self, values: AsyncGenerator[Value, None]) -> None:
        self.response: httpx.Response | None = None
        self._values = values
        self._closed = False
        # In a task of its own, so that `close` can end the wait without cancelling whoever iterates.
        self._waiting: asyncio.Task[Value] | None = None

    async def next(self) -> Value:
        """The next value; StopAsyncIteration when there is none, or when it is closed."""
        self._waiting = asyncio.create_task(self._next())
        try:
            return await self._waiting
        except asyncio.CancelledError:
            if self._closed:
                raise StopAsyncIteration from None
            raise
        finally:
            self._waiting = None

    async def _next(self) -> Value:
        return await anext(self._values)

    async def close(self) -> None:
        """End the generator, or whoever waits for it."""
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        else:
            await self._values.aclose()


async def off_the_loop(work: Callable[[], Value]) -> Value:
    """Have something done that waits for the disk."""
    return await asyncio.to_thread(work)


def open_early(open_it: Callable[[], Awaitable[None]]) -> None:
    """Open something as soon as it is made: not here; ``async with`` or its first use does."""


def call_at_exit(work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Have a method called when the program ends: not here, where the event loop has ended by then.

    Gives what takes that back.
    """
    return lambda: None


def on_signals(signals: Iterable[signal.Signals], call: Callable[[], None]) -> Callable[[], None]:
    """Have something called when the process is sent one of these signals; gives what takes that back.

    Only where that is possible: on the main thread's loop, and not on every system.
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
            loop.remove_signal_handler(each)  # which leaves the system's own in its place
            signal.signal(each, handler)

    return take_back
