"""The queue of messages to redeliver, at once or after a delay: a part of `Delivery`."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence

AT_ONCE = -math.inf
FORGOTTEN = 1_000
"""Delays in the heap, beyond twice the number of messages, at which stale ones are removed from it."""


class RetryQueue:
    """A queue of messages with due times; if a message is put in twice, the last due time counts."""

    __slots__ = ("_later", "_ready", "due")

    def __init__(self, ready: Sequence[int] = ()) -> None:
        self.due: dict[int, float] = dict.fromkeys(ready, AT_ONCE)
        """Due time by message, in seconds. Each is also in a heap, which may hold stale entries."""
        self._ready = sorted(ready)
        self._later: list[tuple[float, int]] = []

    @property
    def is_ready(self) -> bool:
        """Whether a message is due now."""
        while self._ready and self.due.get(self._ready[0]) != AT_ONCE:
            heapq.heappop(self._ready)
        return bool(self._ready)

    @property
    def next_due_s(self) -> float:
        """Next future due time, in seconds, or infinity; its message may have been removed already."""
        return self._later[0][0] if self._later else math.inf

    def put(self, key: int, due_s: float = AT_ONCE) -> None:
        """Add a message, or change its due time."""
        self.due[key] = due_s
        if due_s == AT_ONCE:
            heapq.heappush(self._ready, key)
            return
        heapq.heappush(self._later, (due_s, key))
        if len(self._later) > 2 * len(self.due) + FORGOTTEN:
            self._later = [(due_s, key) for key, due_s in self.due.items() if due_s != AT_ONCE]
            heapq.heapify(self._later)

    def put_all(self, keys: Sequence[int]) -> None:
        """Add messages that are due now."""
        self.due.update(dict.fromkeys(keys, AT_ONCE))
        self._ready += keys
        heapq.heapify(self._ready)

    def pop(self) -> int | None:
        """Remove and return the oldest message that is due now; None if there is none."""
        if not self.is_ready:
            return None
        key = heapq.heappop(self._ready)
        del self.due[key]
        return key

    def pop_ready(self) -> list[int]:
        """Remove and return all messages that are due now."""
        keys = [key for key in self._ready if self.due.get(key) == AT_ONCE]
        self.drop(keys)
        self._ready.clear()
        return keys

    def ripe(self, now_s: float) -> Iterator[int]:
        """Remove and yield the delayed messages whose due time is not after ``now_s``."""
        while self._later and self._later[0][0] <= now_s:
            due_s, key = heapq.heappop(self._later)
            if self.due.get(key) == due_s:
                del self.due[key]
                yield key

    def drop(self, keys: Iterable[int]) -> None:
        """Remove messages: they are not redelivered."""
        for key in keys:
            self.due.pop(key, None)
