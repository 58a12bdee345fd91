"""What part of the time the changes of one space may take while another space publishes.

A change of a filter is work for all: for the gateway and its disk, for the indexer, and for whoever matches
the events of all spaces and has to learn the filter first. Who asks for one after the other, as fast as they
are answered, would make everybody's events late. So each space has some time for its changes, of which more
comes as it passes: ``SHARE`` of it. What has a change under way uses it up, and when all is used the next
change waits, as long as there is another space that publishes: alone, nobody waits.

Times are in seconds of a clock that never goes back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fieldfare.gateway.turns import NOBODY

SHARE = 1 / 8
BURST_S = 0.05
"""So much is there of whoever has changed nothing for a while."""
DEBT_MAX_S = 0.1
"""No request is paid for longer, however long it took: the next one waits for ``DEBT_MAX_S / SHARE``."""
WAIT_MIN_S = 0.001
ACTIVE_S = 1.0
"""Who published so long ago still does."""


@dataclass(slots=True)
class _Time:
    """Of one space: what was left of its time as of a moment, and how many of its changes are under way."""

    left_s: float
    at_s: float
    changes: int = 0

    def pass_to(self, now_s: float) -> None:
        passed_s, self.at_s = now_s - self.at_s, now_s
        comes = SHARE - 1 if self.changes else SHARE
        self.left_s = max(-DEBT_MAX_S, min(BURST_S, self.left_s + passed_s * comes))


@dataclass(slots=True)
class ChangeShares:
    """The time that each space has for its changes."""

    _times: dict[str, _Time] = field(default_factory=dict)
    _published: dict[str, float] = field(default_factory=dict)
    """When the two spaces published that did so last."""

    def published(self, space: str, now_s: float) -> None:
        """A space publishes something."""
        self._published.pop(space, None)
        while len(self._published) > 1:
            del self._published[next(iter(self._published))]
        self._published[space] = now_s

    @asynccontextmanager
    async def turn(self, space: str) -> AsyncIterator[None]:
        """Wait until a space has some time for a change, which is under way while this is open."""
        while space != NOBODY and (wait_s := self.wait_s(space, time.monotonic())) > 0:
            await asyncio.sleep(wait_s)
        self.begin(space, time.monotonic())
        try:
            yield
        finally:
            self.end(space, time.monotonic())

    def wait_s(self, space: str, now_s: float) -> float:
        """How long the next change of a space is to wait at least; 0 when it may begin now."""
        times = self._times.get(space)
        if times is None or not self._is_another_active(space, now_s):
            return 0.0
        times.pass_to(now_s)
        return 0.0 if times.left_s > 0 else WAIT_MIN_S - times.left_s / SHARE

    def begin(self, space: str, now_s: float) -> None:
        """A change of a space is under way."""
        times = self._times.setdefault(space, _Time(BURST_S, now_s))
        times.pass_to(now_s)
        times.changes += 1

    def end(self, space: str, now_s: float) -> None:
        """It is done, or was refused."""
        times = self._times.get(space)
        if times is not None:  # else the space was deleted meanwhile
            times.pass_to(now_s)
            times.changes -= 1

    def forget(self, space: str) -> None:
        """A space was deleted."""
        self._times.pop(space, None)
        self._published.pop(space, None)

    def _is_another_active(self, space: str, now_s: float) -> bool:
        return any(each != space and now_s - at_s < ACTIVE_S for each, at_s in self._published.items())
