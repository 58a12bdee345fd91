"""The order of a publisher's requests that are under way at the same time: what each of them follows."""

from __future__ import annotations

from bisect import bisect_left, insort

FIRST = -1
"""What the first request follows."""


class InFlight:
    """The sequences of one producer's requests, from when they are cut until their fates are known.

    Each follows the one before it that may still become part of the log; where there is none, the newest
    that is known to be in the log. So a request that is given up is not waited for by those behind it; and if
    it did arrive, although nobody heard of it, the service names it as the newest, and they follow that.
    """

    def __init__(self) -> None:
        self._open: list[int] = []
        self._newest = FIRST

    @property
    def front(self) -> int | None:
        """The first whose fate is not known; None when there is none."""
        return self._open[0] if self._open else None

    def add(self, sequence: int) -> None:
        """A request was cut; a part of one comes before the rest of it."""
        insort(self._open, sequence)

    def end(self, sequence: int, is_taken: bool) -> None:
        """The fate of one is known."""
        self._open.remove(sequence)
        if is_taken:
            self._newest = max(self._newest, sequence)

    def follows(self, sequence: int) -> int:
        """What a request is to follow if it is sent now."""
        at = bisect_left(self._open, sequence)
        before = self._open[at - 1] if at else FIRST
        # One behind it may have its answer already: then this one is in the log, and a repeat.
        return max(before, self._newest) if self._newest < sequence else before

    def learn(self, sequence: int, newest: int) -> None:
        """The service has said, to a request, which is the newest; only the front hears what still holds."""
        if sequence == self.front:
            self._newest = newest
