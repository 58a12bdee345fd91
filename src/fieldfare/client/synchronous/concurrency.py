"""Locks, signals, workers and futures for threads; ``client/asynchronous`` has the same names for asyncio."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import threading
import weakref
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future as Future
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import httpx

from fieldfare.client.errors import WrongContext
from fieldfare.client.forks import FORKS

Value = TypeVar("Value")

Lock = threading.Lock
Guard = threading.RLock

SIGNAL_POLL_S = 0.5
"""Maximum seconds of one wait of the main thread. A signal that the system gives to another thread does
not end the wait, and Python calls its handler in the main thread only."""


class Cancelled(BaseException):
    """The exception that ends a worker early. Never raised: a thread cannot be cancelled."""


class Origin:
    """The process that an object belongs to. A fork copies its sockets and locks, but not its threads."""

    def __init__(self) -> None:
        self._forks = FORKS.count

    def is_here(self) -> bool:
        """Whether the caller runs in the object's process."""
        return self._forks == FORKS.count

    def is_in_use(self) -> bool:
        """Return False: without event loops, the object is not in use elsewhere in this process."""
        return False

    def check(self, what: str) -> None:
        """Raise WrongContext in a forked process; ``what`` names the object in the message."""
        if self._forks != FORKS.count:
            raise WrongContext(f"this {what} was created before a fork: create one in this process")


class Signal:
    """Wakes waiting threads; call its methods with the guard held."""

    def __init__(self, guard: AbstractContextManager[Any]) -> None:
        self._condition = threading.Condition(guard)  # type: ignore[arg-type]
        self.fire = self._condition.notify_all
        self.fire_one = self._condition.notify
        self.wait = self._condition.wait
        self.wait_for = self._condition.wait_for

    def block_until(self, condition: Callable[[], bool]) -> None:
        """Block the caller until the condition holds."""
        while not condition():
            self._condition.wait()


Flag = threading.Event


class Workers:
    """The background threads of one owner."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads: list[threading.Thread] = []

    def __len__(self) -> int:
        return len(self._threads)

    @staticmethod
    def can_start() -> bool:
        """Return True: a thread can be started at any time."""
        return True

    def start(self, work: Callable[[], None]) -> None:
        """Start one more thread."""
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=work, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def end(self, timeout_s: float | None, *, at_once: bool = False) -> None:
        """Wait up to ``timeout_s`` seconds for each thread to end. ``at_once`` has no effect on threads."""
        for thread in self._threads:
            thread.join(SIGNAL_POLL_S if timeout_s is None else timeout_s)
            while timeout_s is None and thread.is_alive():
                thread.join(SIGNAL_POLL_S)


def is_being_ended() -> bool:
    """Return False: a thread cannot be cancelled."""
    return False


class Promise(Future[Value]):
    """A future with methods to resolve it. It cannot be cancelled: a queued event cannot be recalled."""

    resolve = Future.set_result
    refuse = Future.set_exception

    _forks = 0
    """Fork count when the promise was created; `_mark_promises` sets it in a forked process."""

    def result(self, timeout: float | None = None) -> Value:
        """As `Future` does; WrongContext in a forked process, where no thread would ever resolve it."""
        self._check()
        return super().result(timeout)

    outcome = result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As `Future` does; WrongContext in a forked process, where no thread would ever resolve it."""
        self._check()
        return super().exception(timeout)

    def cancel(self) -> bool:
        return False

    def _check(self) -> None:
        # Not `done()`: a thread of the parent may have held its lock.
        if self._forks != FORKS.count and self._state != "FINISHED":
            raise WrongContext("this event was published before a fork: the parent process waits for it")


def _mark_promises() -> None:
    """In a forked process, mark new promises, to distinguish them from those that the parent created."""

    def marked(promise: Promise[Any]) -> None:
        Future.__init__(promise)
        promise._forks = FORKS.count

    Promise.__init__ = marked  # type: ignore[assignment, method-assign]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_promises)


class Reader(Generic[Value]):
    """Reads a generator, and can be closed while another thread waits for the next value.

    Attributes
    ----------
    response : httpx.Response or None
        The stream that the generator is reading.
    """

    def __init__(self, values: Generator[Value, None, None]) -> None:
        self.response: httpx.Response | None = None
        self._values = values

    def next(self) -> Value:
        """Return the next value; StopIteration at the end, or when the reader is closed."""
        return next(self._values)

    def close(self) -> None:
        """Close the generator, or interrupt the thread that waits for its next value."""
        response = self.response
        try:
            self._values.close()
        except ValueError:
            # Another thread is inside the generator and waits for the stream.
            if response is not None:
                _interrupt(response)


def _interrupt(response: httpx.Response) -> None:
    """Wake the thread that waits for the stream's next bytes, by shutting down its socket."""
    stream: Any = response.extensions.get("network_stream")
    connection = stream.get_extra_info("socket") if stream is not None else None
    if connection is None:
        return
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # The connection is closed already.


def off_the_loop(work: Callable[[], Value]) -> Value:
    """Run blocking work in the calling thread: there is no event loop to block."""
    return work()


def open_early(open_it: Callable[[], None]) -> None:
    """Open an object as soon as it is created."""
    open_it()


def call_at_exit(work: Callable[[], None]) -> Callable[[], None]:
    """Call a method at program exit if its object still exists; return a function that undoes this."""
    reference = weakref.WeakMethod(work)

    def call() -> None:
        method = reference()
        if method is not None:
            method()

    atexit.register(call)
    return lambda: atexit.unregister(call)


def on_signals(signals: Iterable[signal.Signals], call: Callable[[], None]) -> Callable[[], None]:
    """Call a function when the process gets one of these signals; return a function that undoes this.

    Only in the main thread; elsewhere it does nothing, as Python handles signals in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    before = [(each, signal.signal(each, lambda number, frame: call())) for each in signals]

    def take_back() -> None:
        for each, handler in before:
            signal.signal(each, handler)

    return take_back
