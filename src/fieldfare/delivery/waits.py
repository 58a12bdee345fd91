"""Messages that are to be given again, at once or when their time has come: a part of `Delivery`."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence

AT_ONCE = -math.inf
FORGOTTEN = 1_000
"""Times of messages that were settled before leave memory when they are so many more than the others."""


class Waits:
    """When each of some messages is due; of a message that is put here twice only the last time counts."""

    __slots__ = ("_later", "_ready", "due")

    def __init__(self, ready: Sequence[int] = ()) -> None:
        self.due: dict[int, float] = dict.fromkeys(ready, AT_ONCE)
        """By message. Each is in one of the heaps too, which may hold more."""
        self._ready = sorted(ready)
        self._later: list[tuple[float, int]] = []

    @property
    def is_ready(self) -> bool:
        """Whether something is due now."""
        while self._ready and self.due.get(self._ready[0]) != AT_ONCE:
            heapq.heappop(self._ready)
        return bool(self._ready)

    @property
    def next_due_s(self) -> float:
        """When the next one is due that is not yet; it may have left."""
        return self._later[0][0] if self._later else math.inf

    def put(self, key: int, due_s: float = AT_ONCE) -> None:
        """A message is due then, and no sooner."""
        self.due[key] = due_s
        if due_s == AT_ONCE:
            heapq.heappush(self._ready, key)
            return
        heapq.heappush(self._later, (due_s, key))
        if len(self._later) > 2 * len(self.due) + FORGOTTEN:
            self._later = [(due_s, key) for key, due_s in self.due.items() if due_s != AT_ONCE]
            heapq.heapify(self._later)

    def put_all(self, keys: Sequence[int]) -> None:
        """Messages are due now."""
        self.due.update(dict.fromkeys(keys, AT_ONCE))
        self._ready += keys
        heapq.heapify(self._ready)

    def pop(self) -> int | None:
        """The oldest that is due now."""
        if not self.is_ready:
            return None
        key = heapq.heappop(self._ready)
        del self.due[key]
        return key

    def pop_ready(self) -> list[int]:
        """All that are due now."""
        keys = [key for key in self._ready if self.due.get(key) == AT_ONCE]
        self.drop(keys)
        self._ready.clear()
        return keys

    def ripe(self, now_s: float) -> Iterator[int]:
        """Those whose time comes until now, one after the other; they are not here any more."""
        while self._later and self._later[0][0] <= now_s:
            due_s, key = heapq.heappop(self._later)
            if self.due.get(key) == due_s:
                del self.due[key]
                yield key

    def drop(self, keys: Iterable[int]) -> None:
        """These are not to be given again."""
        for key in keys:
            self.due.pop(key, None)
