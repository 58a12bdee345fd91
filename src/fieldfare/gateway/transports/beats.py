"""Signs of life of all streams that have nothing to say: one timer for all of them."""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from typing import Protocol

BEATS_AT_ONCE = 100
"""So many streams are told in one step."""

ROUNDS = 200
"""Those whose time comes within such a part of the period are told together."""


class Silent(Protocol):
    """A stream that has nothing to say."""

    def beat(self) -> None:
        """Show that it lives."""


class Beats:
    """Who has been silent since when, in order: whoever sends something goes to the end of the queue.

    Parameters
    ----------
    period_s
        So long a stream may be silent; then it is told.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._silent: dict[Silent, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def sent(self, stream: Silent) -> None:
        """A stream has sent something; its time comes later."""
        self._silent.pop(stream, None)
        self._silent[stream] = time.monotonic()
        if self._timer is None:
            self._set_timer(self._period_s)

    def ended(self, stream: Silent) -> None:
        """A stream has ended."""
        self._silent.pop(stream, None)

    def _ring(self) -> None:
        now_s = time.monotonic()
        oldest = list(islice(self._silent.items(), BEATS_AT_ONCE))
        for stream, since_s in oldest:
            if since_s + self._period_s <= now_s:
                self.sent(stream)
                stream.beat()
        self._timer = None
        if self._silent:
            first_s = next(iter(self._silent.values()))
            self._set_timer(max(first_s + self._period_s - now_s, self._period_s / ROUNDS))

    def _set_timer(self, wait_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._ring)
