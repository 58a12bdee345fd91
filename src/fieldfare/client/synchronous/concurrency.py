"""How an ordinary program waits, wakes and starts; ``client/asynchronous`` has the same names for asyncio."""

from __future__ import annotations

import atexit
import signal
import socket
import threading
import weakref
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future as Future
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import httpx

Value = TypeVar("Value")

Lock = threading.Lock
Guard = threading.RLock


class Cancelled(BaseException):
    """What ends a worker in the middle of something: nothing does, a thread goes on to its end."""


class Signal:
    """Wakes threads that wait; all its verbs are called with the guard held."""

    def __init__(self, guard: AbstractContextManager[Any]) -> None:
        self._condition = threading.Condition(guard)  # type: ignore[arg-type]
        self.fire = self._condition.notify_all
        self.fire_one = self._condition.notify
        self.wait = self._condition.wait
        self.wait_for = self._condition.wait_for

    def hold_until(self, condition: Callable[[], bool]) -> None:
        """Make the caller wait until the condition holds."""
        while not condition():
            self._condition.wait()


Flag = threading.Event


class Workers:
    """The threads that work in the background for one owner."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: list[threading.Thread] = []

    def __len__(self) -> int:
        return len(self._threads)

    @staticmethod
    def can_start() -> bool:
        """Whether one can be started here and now."""
        return True

    def start(self, work: Callable[[], None]) -> None:
        """Start one more."""
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def end(self, timeout_s: float | None, *, at_once: bool = False) -> None:
        """Wait until all have ended, for each so long at the most: nobody can end a thread at once."""
        for thread in self._threads:
            thread.join(timeout_s)


def is_being_ended() -> bool:
    """Whether the worker that asks is being cancelled: no thread is."""
    return False


class Promise(Future[Value]):
    """A future with what resolves it. It cannot be cancelled: a queued event cannot be called back."""

    resolve = Future.set_result
    refuse = Future.set_exception
    outcome = Future.result

    def cancel(self) -> bool:
        return False


class Reader(Generic[Value]):
    """Reads a generator, and can be closed while another thread waits for its next value.

    Attributes
    ----------
    response : httpx.Response or None
        The stream that the generator reads at the moment.
    """

    def __init__(self, values: Generator[Value, None, None]) -> None:
        self.response: httpx.Response | None = None
        self._values = values

    def next(self) -> Value:
        """The next value; StopIteration when there is none, or when it is closed."""
        return next(self._values)

    def close(self) -> None:
        """End the generator, or whoever waits for it."""
        response = self.response
        try:
            self._values.close()
        except ValueError:
            # Another thread is in it, waiting for the stream.
            if response is not None:
                _interrupt(response)


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


def off_the_loop(work: Callable[[], Value]) -> Value:
    """Have something done that waits for the disk: here, where nobody else is kept waiting."""
    return work()


def open_early(open_it: Callable[[], None]) -> None:
    """Open something as soon as it is made."""
    open_it()


def call_at_exit(work: Callable[[], None]) -> Callable[[], None]:
    """Have a method called when the program ends if its object still lives; gives what takes that back."""
    reference = weakref.WeakMethod(work)

    def call() -> None:
        method = reference()
        if method is not None:
            method()

    atexit.register(call)
    return lambda: atexit.unregister(call)


def on_signals(signals: Iterable[signal.Signals], call: Callable[[], None]) -> Callable[[], None]:
    """Have something called when the process is sent one of these signals; gives what takes that back.

    Only on the main thread: others are told of no signal.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    before = [(each, signal.signal(each, lambda number, frame: call())) for each in signals]

    def take_back() -> None:
        for each, handler in before:
            signal.signal(each, handler)

    return take_back
