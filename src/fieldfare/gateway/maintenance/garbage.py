"""Tuning of Python's garbage collector for a process with very many long-lived objects.

A full collection visits every object: with 100,000 subscriptions and 10,000 open streams it stops the process
for 0.3 s. Objects that survive a long collection are live, so they are frozen: later collections visit only
newer objects. Reference counting still frees frozen objects; only reference cycles among them remain. So when
the number of frozen objects has doubled since the last collection of all objects, all are unfrozen and
collected again: garbage never takes more memory than live objects.
"""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import suppress

LONG_S = 0.02
"""Duration in seconds from which a full collection's survivors are frozen."""

FULL = 2
"""The number of the garbage collector's oldest generation."""


class Garbage:
    """A controller of the garbage collector that freezes the survivors of long collections.

    The collector is global: use this in a process that runs nothing else. `start` and `close` it on the event
    loop.

    Parameters
    ----------
    long_s : float
        Duration in seconds from which a full collection's survivors are frozen.
    """

    def __init__(self, long_s: float = LONG_S) -> None:
        self._long_s = long_s
        self._began_s = 0.0
        self._all_frozen = 0
        self._is_asked = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Collect all objects now, and freeze the survivors."""
        self._loop = asyncio.get_running_loop()
        self.collect_all()
        gc.callbacks.append(self._collected)

    def close(self) -> None:
        """Restore the collector's previous behaviour."""
        if self._loop is None:
            return  # it was not started
        self._loop = None
        gc.callbacks.remove(self._collected)
        gc.unfreeze()

    def collect_all(self) -> None:
        """Collect all objects, including frozen reference cycles, and freeze the survivors."""
        if self._loop is None:
            return  # closed after the call was scheduled
        self._is_asked = True
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._all_frozen = gc.get_freeze_count()
        self._is_asked = False

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        """Handle the start or end of a collection, on any thread; no other one starts until this returns."""
        if info["generation"] != FULL:
            return
        now_s = time.perf_counter()
        if phase == "start":
            self._began_s = now_s
        elif now_s - self._began_s >= self._long_s:
            gc.freeze()
            if not self._is_asked and gc.get_freeze_count() > 2 * self._all_frozen and self._loop:
                self._is_asked = True
                with suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self.collect_all)
