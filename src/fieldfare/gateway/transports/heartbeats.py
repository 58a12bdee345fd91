"""Heartbeats of all idle streams, with one shared timer."""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from typing import Protocol

BEATS_BATCH_SIZE = 100
"""Maximum streams that send a heartbeat in one step; the others follow in the next one."""

ROUNDS = 200
"""Minimum wait between two steps is period / `ROUNDS`: heartbeats due within it are sent together."""


class IdleStream(Protocol):
    """A stream that can send heartbeats while it is idle."""

    def beat(self) -> None:
        """Send a heartbeat."""


class Heartbeats:
    """Streams in order of their last send: a send moves the stream to the end of the queue.

    Parameters
    ----------
    period_s
        Seconds of silence after which a stream sends a heartbeat.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._silent: dict[IdleStream, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def sent(self, stream: IdleStream) -> None:
        """Record that a stream has sent something, and postpone its heartbeat."""
        self._silent.pop(stream, None)
        self._silent[stream] = time.monotonic()
        if self._timer is None:
            self._set_timer(self._period_s)

    def ended(self, stream: IdleStream) -> None:
        """Remove a stream that has ended."""
        self._silent.pop(stream, None)

    def _ring(self) -> None:
        now_s = time.monotonic()
        oldest = list(islice(self._silent.items(), BEATS_BATCH_SIZE))
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
