"""Work that failed is repeated after a pause, and holds up no other."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass

from fieldfare.gateway.problems import WriterClosed
from fieldfare.storage.errors import StorageError

RETRY_S, RETRY_MAX_S = 1.0, 60.0
"""Pause until work that failed is repeated, in seconds; it doubles up to the second one."""

logger = logging.getLogger("fieldfare.gateway.federation")


@dataclass(slots=True)
class _Fault:
    reason: str
    pause_s: float
    again_s: float


class Retries:
    """Work by key, of which some has failed. Used on the event loop only."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._faults: dict[Hashable, _Fault] = {}

    @property
    def is_due(self) -> bool:
        """Whether the pause of work that failed is over."""
        now_s = self._clock_s()
        return any(each.again_s <= now_s for each in self._faults.values())

    def __len__(self) -> int:
        return len(self._faults)

    def reason(self, key: Hashable) -> str:
        """Return why work failed the last time; empty if it did not."""
        fault = self._faults.get(key)
        return "" if fault is None else fault.reason

    def forget(self, key: Hashable) -> None:
        """Forget work that no longer exists."""
        self._faults.pop(key, None)

    async def attempt(self, key: Hashable, what: str, work: Callable[[], Awaitable[bool]]) -> bool:
        """Try work, and return whether it was done: not if it fails, or has failed a moment ago.

        Parameters
        ----------
        what
            The work's name for the log.
        work
            Returns whether it was possible.
        """
        fault = self._faults.get(key)
        if fault is not None and self._clock_s() < fault.again_s:
            return False
        try:
            is_done = await work()
        except WriterClosed:
            raise
        except Exception as error:
            pause_s = RETRY_S if fault is None else min(RETRY_MAX_S, 2 * fault.pause_s)
            reason = str(error) or type(error).__name__
            self._faults[key] = _Fault(reason, pause_s, self._clock_s() + pause_s)
            is_known = isinstance(error, StorageError | OSError)
            logger.error("%s waits %g s: %s", what, pause_s, reason, exc_info=not is_known)
            return False
        self.forget(key)
        return is_done
