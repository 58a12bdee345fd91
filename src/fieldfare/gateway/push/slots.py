"""How many of something may be under way at a time: in all, and of one space."""

from __future__ import annotations

import asyncio
from collections import Counter


class Slots:
    """Places for it; those of a space that has none any more leave memory.

    Parameters
    ----------
    most
        In all; a space has a quarter of them.
    """

    def __init__(self, most: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._each = max(1, most // 4)
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
