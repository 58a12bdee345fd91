"""Limits the share of time that one space's filter changes may take while another space publishes.

A filter change is work for all: for the gateway and its disk, for the indexer, and for the matchers of all
spaces' events, which have to learn the filter first. A client that makes one change after the other, as fast
as they are answered, would delay all events. So each space has a time budget for changes, which grows by
`SHARE` of the elapsed time. A change under way spends it, and when it is used up, the next change waits while
another space publishes. Without another publisher, no change waits.

Times are in seconds of a monotonic clock.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fieldfare.gateway.fair_queue import NO_SPACE
from fieldfare.gateway.token_bucket import TokenBucket

SHARE = 1 / 8
BURST_S = 0.05
"""Maximum time budget of a space, in seconds, reached after a while without changes."""
DEBT_MAX_S = 0.1
"""Maximum time debt of a space, in seconds: its next change waits about ``DEBT_MAX_S / SHARE`` at most."""
WAIT_MIN_S = 0.001
ACTIVE_S = 1.0
"""A space counts as publishing for this many seconds after its last publish."""


@dataclass(slots=True)
class ChangeRateShare:
    """The time budgets of the spaces for their changes."""

    _budgets: dict[str, TokenBucket] = field(default_factory=dict)
    """The time that each space has left, in seconds."""
    _changes: Counter[str] = field(default_factory=Counter)
    """The number of changes of each space that are under way."""
    _published: dict[str, float] = field(default_factory=dict)
    """Time of the last publish, for the two spaces that published last."""
    _first: dict[str, asyncio.Lock] = field(default_factory=dict)
    """Held by the change of a space that waits for its turn; the others queue for it, in order."""

    def published(self, space: str, now_s: float) -> None:
        """Record that a space publishes."""
        self._published.pop(space, None)
        while len(self._published) > 1:
            del self._published[next(iter(self._published))]
        self._published[space] = now_s

    @asynccontextmanager
    async def turn(self, space: str) -> AsyncIterator[None]:
        """Wait until a space has time for a change, and count it as under way while this is open.

        The changes of a space get their turns in the order of the calls. A client that lost its connection
        and repeated a request would otherwise be answered before the first request is carried out, which
        would then undo a later change.
        """
        async with self._first.setdefault(space, asyncio.Lock()):
            while space != NO_SPACE and (wait_s := self.wait_s(space, time.monotonic())) > 0:
                await asyncio.sleep(wait_s)
            self.change_started(space, time.monotonic())
        try:
            yield
        finally:
            self.change_ended(space, time.monotonic())

    def wait_s(self, space: str, now_s: float) -> float:
        """Return the minimum seconds that a space's next change has to wait; 0 if it may start now."""
        budget = self._budgets.get(space)
        if budget is None or not self._is_another_active(space, now_s):
            return 0.0
        budget.fill(now_s)
        return 0.0 if budget.level > 0 else WAIT_MIN_S - budget.level / SHARE

    def change_started(self, space: str, now_s: float) -> None:
        """Record the start of a space's change."""
        self._budgets.setdefault(space, TokenBucket(SHARE, BURST_S, BURST_S, now_s, DEBT_MAX_S))
        self._count(space, 1, now_s)

    def change_ended(self, space: str, now_s: float) -> None:
        """Record the end of a space's change, successful or refused."""
        if space in self._budgets:  # else the space was deleted meanwhile
            self._count(space, -1, now_s)

    def _count(self, space: str, more: int, now_s: float) -> None:
        budget = self._budgets[space]
        budget.fill(now_s)
        self._changes[space] += more
        budget.rate = SHARE - 1 if self._changes[space] else SHARE

    def forget(self, space: str) -> None:
        """Forget a deleted space."""
        self._budgets.pop(space, None)
        self._changes.pop(space, None)
        self._published.pop(space, None)
        self._first.pop(space, None)

    def _is_another_active(self, space: str, now_s: float) -> bool:
        return any(each != space and now_s - at_s < ACTIVE_S for each, at_s in self._published.items())
