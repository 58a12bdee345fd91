"""The order of a publisher's requests in flight: which request each of them follows."""

from __future__ import annotations

from bisect import bisect_left, insort

FIRST = -1
"""The sequence that the first request follows: none."""


class InFlight:
    """The sequences of one producer's requests, from when a batch is cut until its outcome is known.

    Each request follows the previous one that is still in flight; without one, the newest that is known to be
    in the log. So later requests do not wait for one that has failed; and if that did arrive although its
    answer was lost, the service reports it as the newest, and the later ones follow it.
    """

    def __init__(self) -> None:
        self._open: list[int] = []
        self._newest = FIRST

    @property
    def front(self) -> int | None:
        """The oldest sequence in flight; None if there is none."""
        return self._open[0] if self._open else None

    def add(self, sequence: int) -> None:
        """Add the sequence of a new request, or of the first part of a split one."""
        insort(self._open, sequence)

    def end(self, sequence: int, is_taken: bool) -> None:
        """Remove a request whose outcome is known; ``is_taken``: the log has at least one of its events."""
        self._open.remove(sequence)
        if is_taken:
            self._newest = max(self._newest, sequence)

    def follows(self, sequence: int) -> int:
        """Return the sequence that a request follows if it is sent now."""
        at = bisect_left(self._open, sequence)
        before = self._open[at - 1] if at else FIRST
        # A later request may be in the log already: then this one is too, and is sent as a repeat.
        return max(before, self._newest) if self._newest < sequence else before

    def learn(self, sequence: int, newest: int) -> None:
        """Note the newest sequence in the log, as the service reported it for a request.

        Only the report for the oldest request in flight counts: any other may be out of date.
        """
        if sequence == self.front:
            self._newest = newest
