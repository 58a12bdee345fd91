"""The in-flight window of a partition: delivered matches from the cursor on, acked or not.

The matches are in a queue, in log order, with a flag for each: acked or not. Acked matches beyond the front
are also kept as *runs* of neighbors, each stored by its two ends, so that one stuck message costs one run,
however many matches after it are acked::

    keys    3  5  9 12 14 20        the front, 3, is never acked: it would have left the window
    acked   .  x  x  .  x  .        runs: 5-9 and 14-14

A run covers every key between its ends: there is no match between two matches that were delivered in a row.
"""

from __future__ import annotations

from collections.abc import Sequence

from fieldfare.delivery.pages import KeyQueue


class InFlightWindow:
    """The in-flight window of a partition.

    Each method takes time logarithmic in the size of the window, or linear in the number of matches settled.
    """

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
        """The oldest match that is not acked; None if the window is empty."""
        return self._keys[0] if self._flags else None

    @property
    def end(self) -> int:
        """The key behind the last match; 0 if the window is empty."""
        return self._keys[len(self._keys) - 1] + 1 if self._flags else 0

    @property
    def open_count(self) -> int:
        """The number of matches that are not acked."""
        return self._flags.count(0)

    def extend(self, keys: Sequence[int]) -> None:
        """Append delivered matches, in order, after all earlier ones."""
        self._keys.extend(keys)
        self._flags += bytes(len(keys))

    def is_open(self, key: int) -> bool:
        """Return whether a match was delivered and is not acked."""
        at = self._keys.place(key)
        return at < len(self._keys) and self._keys[at] == key and not self._flags[at]

    def ack(self, key: int) -> bool:
        """Settle a match; False if it was not delivered, or is acked already."""
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
        """Settle all matches up to and including a key; return the ones that were open."""
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
        """Return every ``count``-th match before a key."""
        return [self._keys[at] for at in range(count - 1, self._keys.place(key), count)]

    def runs(self) -> tuple[tuple[int, int], ...]:
        """Return the first and last key of each run acked beyond the front, in no order."""
        return tuple(self._ends.items())

    def _pass(self, count: int) -> None:
        """Move the front over ``count`` matches, and over the run that follows them, if any."""
        self._drop(count)
        if self._flags and self._flags[0]:
            end = self._ends.pop(self._keys[0])
            del self._starts[end]
            self._drop(self._keys.behind(end))

    def _drop(self, count: int) -> None:
        self._keys.drop(count)
        del self._flags[:count]
