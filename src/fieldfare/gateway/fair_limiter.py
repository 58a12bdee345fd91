"""Limits on concurrent work, in total and per space, with threads that respect them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class FairLimiter:
    """A semaphore with a limit in total and one per space; the state of an unused space is dropped.

    At most ``each`` requests of a space queue for the total limit, so that other spaces wait briefly.

    Parameters
    ----------
    most
        Maximum places taken in total; further callers wait.
    each
        Maximum places taken by one space; its further callers wait.
    """

    def __init__(self, most: int, each: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._each = each
        self._spaces: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()
        """Number of callers per space that have a place or wait for one."""
        self.taken = 0

    async def acquire(self, space: str) -> None:
        """Take a place for a space, waiting until there is one."""
        mine = self._spaces.get(space)
        if mine is None:
            mine = self._spaces[space] = asyncio.Semaphore(self._each)
        self._users[space] += 1
        try:
            await mine.acquire()
            try:
                await self._all.acquire()
            except BaseException:
                mine.release()
                raise
        except BaseException:
            self._leave(space)
            raise
        self.taken += 1

    def release(self, space: str) -> None:
        """Release a place that `acquire` took for a space."""
        self.taken -= 1
        self._all.release()
        self._spaces[space].release()
        self._leave(space)

    def _leave(self, space: str) -> None:
        self._users[space] -= 1
        if not self._users[space]:
            del self._users[space], self._spaces[space]


class ThreadsClosed(Exception):
    """The gateway is stopping: its threads accept no more work."""


class FairExecutor:
    """A fair thread pool: one space never occupies all threads.

    The queue is bounded by the number of callers, as each stream, pull or push waits for one task at a time.

    Parameters
    ----------
    most
        Threads of the pool.
    each
        Maximum threads that work for one space at a time.
    name
        Prefix of the threads' names.
    """

    def __init__(self, most: int, each: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(most, thread_name_prefix=name)
        self._slots = FairLimiter(most, each)
        self.closed = False
        """Whether running work should end; may be read on any thread."""

    async def run(self, space: str, work: Callable[..., T], *args: Any) -> T:
        """Run a function on a thread, in the turn of a space; raise ThreadsClosed when the gateway stops.

        If the caller is cancelled, its place is released only when the thread is done.
        """
        await self._slots.acquire(space)
        loop = asyncio.get_running_loop()

        def give_back(_done: object) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._slots.release, space)

        try:
            if self.closed:
                raise ThreadsClosed
            doing = self._threads.submit(work, *args)
        except BaseException:
            self._slots.release(space)
            raise
        doing.add_done_callback(give_back)
        return await asyncio.wrap_future(doing)

    def stop(self) -> None:
        """Accept no more work, without waiting for running work."""
        self.closed = True

    def close(self, *, wait: bool = True) -> None:
        """End the threads; with ``wait``, running work is finished on return."""
        self.stop()
        self._threads.shutdown(wait=wait, cancel_futures=True)
