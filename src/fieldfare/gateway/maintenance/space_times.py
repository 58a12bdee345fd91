"""Matching time and matches by space over the last minute, from the blocks of the match log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from heapq import nlargest
from typing import NamedTuple

WINDOW_S = 60.0
"""Seconds that a block counts; older blocks are dropped."""
SLOT_S = 5.0
"""Seconds of blocks that are kept, and dropped, as one sum."""


class SpaceTime(NamedTuple):
    """The matching of one space: its key, milliseconds of processor time and matches, each per second."""

    space: str
    ms_per_s: float
    matches_per_s: float


class SpaceTimes:
    """Sums of the last `WINDOW_S` seconds by space; used on one thread.

    Parameters
    ----------
    clock_s
        A monotonic clock, in seconds; default: this machine's.
    """

    def __init__(self, clock_s: Callable[[], float] | None = None) -> None:
        self._clock_s = clock_s or time.monotonic
        self._began_s = self._clock_s()
        self._slots: deque[tuple[float, dict[str, list[float]]]] = deque()
        """Start of each slot, and milliseconds and matches by space."""

    def add(self, spent_ms: Mapping[str, float], matches: Mapping[str, int]) -> None:
        """Add the figures of a block."""
        now_s = self._clock_s()
        if not self._slots or now_s - self._slots[-1][0] >= SLOT_S:
            self._drop_old(now_s)
            self._slots.append((now_s, {}))
        of_slot = self._slots[-1][1]
        for at, figures in enumerate((spent_ms, matches)):
            for space, figure in figures.items():
                of_slot.setdefault(space, [0.0, 0.0])[at] += figure

    def _drop_old(self, now_s: float) -> None:
        while self._slots and now_s - self._slots[0][0] >= WINDOW_S:
            self._slots.popleft()

    def costliest(self, most: int) -> tuple[float, list[SpaceTime]]:
        """Return the milliseconds per second of all spaces, and the `most` spaces that take the most."""
        now_s = self._clock_s()
        self._drop_old(now_s)
        sums: dict[str, list[float]] = {}
        for _, of_slot in self._slots:
            for space, figures in of_slot.items():
                both = sums.setdefault(space, [0.0, 0.0])
                both[0] += figures[0]
                both[1] += figures[1]
        elapsed_s = max(SLOT_S, min(WINDOW_S, now_s - self._began_s))
        named = nlargest(most, sums.items(), key=lambda item: (*item[1], item[0]))
        spaces = [SpaceTime(name, ms / elapsed_s, matches / elapsed_s) for name, (ms, matches) in named]
        return sum(ms for ms, _ in sums.values()) / elapsed_s, spaces
