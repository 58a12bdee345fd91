"""How many of something may be under way at a time: in all, and of one space."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Slots:
    """Places for it; those of a space that has none any more leave memory.

    Of each space no more than ``each`` are before those of another: whoever waits, its turn comes soon.

    Parameters
    ----------
    most
        In all.
    each
        Of one space.
    """

    def __init__(self, most: int, each: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._each = each
        self._spaces: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()
        """How many of a space have a place, or wait for one."""
        self.taken = 0

    async def acquire(self, space: str) -> None:
        """Wait for a place."""
        mine = self._spaces.setdefault(space, asyncio.Semaphore(self._each))
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
        """Give it back."""
        self.taken -= 1
        self._all.release()
        self._spaces[space].release()
        self._leave(space)

    def _leave(self, space: str) -> None:
        self._users[space] -= 1
        if not self._users[space]:
            del self._users[space], self._spaces[space]


class SharedThreads:
    """Threads that do for spaces what takes long: a crowd of one space leaves another a thread.

    What waits is no more than there are who wait for it, each for one thing: streams, pulls, pushes.

    Parameters
    ----------
    each
        How many work for one space at a time; there is one more.
    name
        Of the threads.
    """

    def __init__(self, each: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(each + 1, thread_name_prefix=name)
        self._slots = Slots(each + 1, each)

    async def run(self, space: str, work: Callable[..., T], *args: Any) -> T:
        """Have something done for a space, in its turn."""
        await self._slots.acquire(space)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, *args)
        finally:
            self._slots.release(space)

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)
