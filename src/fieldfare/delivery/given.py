"""The matches of one subscription that were given and are not behind its cursor, and which of them are acked.

They lie in order in an array that loses its front; a flag beside each says whether it is acked. What is acked
beyond the front is also kept as *runs* of neighbours, each known by its two ends, so that one message that is
stuck costs one run, however many behind it are acked::

    keys    3  5  9 12 14 20        the front, 3, is never acked: it would not be here any more
    acked   .  x  x  .  x  .        runs: 5-9 and 14-14

A run holds whatever lies between its ends: between two matches that were given in a row nothing matches.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

_DROPPED_AT_LEAST = 64
_DROPPED_SHARE = 4
"""What is passed is let go of when it is a quarter of all: thousands of streams have a thousand keys each."""


class Given:
    """See above. Every verb takes time logarithmic in what is held, or linear in what it settles."""

    __slots__ = ("_ends", "_first", "_flags", "_keys", "_starts")

    def __init__(self) -> None:
        self._keys = array("q")
        self._flags = bytearray()
        self._first = 0
        self._ends: dict[int, int] = {}
        """The end of the run that starts at a key."""
        self._starts: dict[int, int] = {}
        """The start of the run that ends at a key."""

    def __len__(self) -> int:
        return len(self._keys) - self._first

    @property
    def front(self) -> int | None:
        """The oldest that is not acked, if there is one."""
        return self._keys[self._first] if self._first < len(self._keys) else None

    @property
    def end(self) -> int:
        """Behind the last one; 0 where none is held."""
        return self._keys[-1] + 1 if self._keys else 0

    def extend(self, keys: Sequence[int]) -> None:
        """These were given, in order, after all before."""
        self._keys.extend(keys)
        self._flags += bytes(len(keys))

    def is_open(self, key: int) -> bool:
        """Whether a match was given and is not acked."""
        at = bisect_left(self._keys, key, self._first)
        return at < len(self._keys) and self._keys[at] == key and not self._flags[at]

    def ack(self, key: int) -> bool:
        """Settle one; False when it was not given, or is acked already."""
        keys, at = self._keys, self._first
        if at < len(keys) and keys[at] == key:
            self._pass_front()
            return True
        at = bisect_left(keys, key, at)
        if at >= len(keys) or keys[at] != key or self._flags[at]:
            return False
        self._flags[at] = 1
        start = end = key
        if self._flags[at - 1]:  # never before the front, which is not acked
            start = self._starts.pop(keys[at - 1])
        if at + 1 < len(keys) and self._flags[at + 1]:
            end = self._ends.pop(keys[at + 1])
        self._ends[start] = end
        self._starts[end] = start
        return True

    def ack_up_to(self, key: int) -> list[int]:
        """Settle all up to and including a key; those that were open."""
        keys, first = self._keys, self._first
        at = bisect_right(keys, key, first)
        passed = [keys[i] for i in range(first, at) if not self._flags[i]]
        for start, end in list(self._ends.items()):
            if start <= key:
                del self._ends[start], self._starts[end]
                if end > key:
                    self._ends[keys[at]], self._starts[end] = end, keys[at]
        self._first = at
        self._pass_acked()
        return passed

    def every(self, count: int, key: int) -> list[int]:
        """Each so many-th match, up to a key."""
        at = bisect_left(self._keys, key, self._first)
        return list(self._keys[self._first + count - 1 : at : count])

    def runs(self) -> tuple[tuple[int, int], ...]:
        """First and last key of each run that is acked beyond the front, in no order."""
        return tuple(self._ends.items())

    def _pass_front(self) -> None:
        self._first += 1
        self._pass_acked()

    def _pass_acked(self) -> None:
        """Move the front over the run that it stands at, if any, and let go of what is behind it."""
        first = self._first
        if first < len(self._keys) and self._flags[first]:
            end = self._ends.pop(self._keys[first])
            del self._starts[end]
            self._first = first = bisect_right(self._keys, end, first)
        if first >= _DROPPED_AT_LEAST and _DROPPED_SHARE * first >= len(self._keys):
            # An array that is cut keeps what it had room for; a new one has none to spare.
            self._keys, self._flags = self._keys[first:], self._flags[first:]
            self._first = 0
