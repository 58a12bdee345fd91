"""The matches of one subscription that were given and are not behind its cursor, and which of them are acked.

They lie in order in a queue that loses its front; a flag beside each says whether it is acked. What is acked
beyond the front is also kept as *runs* of neighbours, each known by its two ends, so that one message that is
stuck costs one run, however many behind it are acked::

    keys    3  5  9 12 14 20        the front, 3, is never acked: it would not be here any more
    acked   .  x  x  .  x  .        runs: 5-9 and 14-14

A run holds whatever lies between its ends: between two matches that were given in a row nothing matches.
"""

from __future__ import annotations

from collections.abc import Sequence

from fieldfare.delivery.pages import KeyQueue


class Given:
    """See above. Every verb takes time logarithmic in what is held, or linear in what it settles."""

    __slots__ = ("_ends", "_flags", "_keys", "_starts")

    def __init__(self) -> None:
        self._keys = KeyQueue()
        self._flags = bytearray()
        self._ends: dict[int, int] = {}
        """The end of the run that starts at a key."""
        self._starts: dict[int, int] = {}
        """The start of the run that ends at a key."""

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def front(self) -> int | None:
        """The oldest that is not acked, if there is one."""
        return self._keys[0] if self._flags else None

    @property
    def end(self) -> int:
        """Behind the last one; 0 where none is held."""
        return self._keys[len(self._keys) - 1] + 1 if self._flags else 0

    def extend(self, keys: Sequence[int]) -> None:
        """These were given, in order, after all before."""
        self._keys.extend(keys)
        self._flags += bytes(len(keys))

    def is_open(self, key: int) -> bool:
        """Whether a match was given and is not acked."""
        at = self._keys.place(key)
        return at < len(self._keys) and self._keys[at] == key and not self._flags[at]

    def ack(self, key: int) -> bool:
        """Settle one; False when it was not given, or is acked already."""
        keys = self._keys
        if self._flags and keys[0] == key:
            self._pass(1)
            return True
        at = keys.place(key)
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
        keys = self._keys
        at = keys.behind(key)
        passed = [each for each, flag in zip(keys.first(at), self._flags, strict=False) if not flag]
        for start, end in list(self._ends.items()):
            if start <= key:
                del self._ends[start], self._starts[end]
                if end > key:
                    self._ends[keys[at]], self._starts[end] = end, keys[at]
        self._pass(at)
        return passed

    def every(self, count: int, key: int) -> list[int]:
        """Each so many-th match, up to a key."""
        return [self._keys[at] for at in range(count - 1, self._keys.place(key), count)]

    def runs(self) -> tuple[tuple[int, int], ...]:
        """First and last key of each run that is acked beyond the front, in no order."""
        return tuple(self._ends.items())

    def _pass(self, count: int) -> None:
        """Move the front over so many, and over the run that it stands at then, if any."""
        self._drop(count)
        if self._flags and self._flags[0]:
            end = self._ends.pop(self._keys[0])
            del self._starts[end]
            self._drop(self._keys.behind(end))

    def _drop(self, count: int) -> None:
        self._keys.drop(count)
        del self._flags[:count]
