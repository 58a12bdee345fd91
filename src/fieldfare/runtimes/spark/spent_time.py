"""CPU time of matching by space, measured in the task that matches.

It goes into the match log with the matches (``storage.match_log.SPENT_MS``), where the gateway reads it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from heapq import nlargest
from typing import TypeVar

from fieldfare.storage.match_log import SPENT_MS

T = TypeVar("T")

SPACES_NAMED_MAX = 1_000
"""Maximum spaces that a block names with their time; those with the least time are left out."""


class SpentTime:
    """CPU time of this thread by space, in milliseconds.

    Parameters
    ----------
    clock_s
        Clock in seconds; default: the thread's CPU time.
    """

    def __init__(self, clock_s: Callable[[], float] | None = None) -> None:
        self._clock_s = clock_s or time.thread_time
        self.by_space: dict[str, float] = {}

    @property
    def total_ms(self) -> float:
        return sum(self.by_space.values())

    def measured(self, space: str, items: Iterator[T]) -> Iterator[T]:
        """Yield the items; the time to produce them, but not to use them, is added to the space's time."""
        while True:
            started_s = self._clock_s()
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                self.add(space, 1000 * (self._clock_s() - started_s))
            yield item

    def add(self, space: str, spent_ms: float) -> None:
        self.by_space[space] = self.by_space.get(space, 0.0) + spent_ms

    def add_all(self, spent_ms: Mapping[str, float]) -> None:
        for space, ms in spent_ms.items():
            self.add(space, ms)

    def figures(self) -> dict[str, float]:
        """Return the figures for a block: milliseconds of at most `SPACES_NAMED_MAX` spaces."""
        named = nlargest(SPACES_NAMED_MAX, self.by_space.items(), key=lambda item: item[1])
        return {f"{SPENT_MS} {space}": round(ms, 3) for space, ms in named}
