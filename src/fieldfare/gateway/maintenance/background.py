"""The gateway's periodic background tasks."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from fieldfare.free_memory import release_free_memory
from fieldfare.gateway.admission.tls import Certificates
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.maintenance.figures import Figures
from fieldfare.gateway.maintenance.rounds import Maintenance
from fieldfare.gateway.maintenance.unused import Unused
from fieldfare.gateway.settings import GatewaySettings

logger = logging.getLogger("fieldfare.gateway")

LIFE_S = 1.0
"""Interval of the gateway's heartbeat, in seconds."""

QUIET_FACTOR = 4.0
"""Factor for the interval of statistics while no event is appended or waits to be matched."""

RELEASE_S = 5.0
"""Seconds without an event after which freed memory is given back."""


class Background:
    """The gateway's background tasks; `start` and `close` them together with the gateway."""

    def __init__(
        self,
        settings: GatewaySettings,
        figures: Figures,
        maintenance: Maintenance,
        deliveries: DeliveryService,
        unused: Unused,
        certificates: Certificates | None,
    ) -> None:
        self._settings = settings
        self._figures = figures
        self._maintenance = maintenance
        self._deliveries = deliveries
        self._certificates = certificates
        self._unused = unused
        self._tasks: list[asyncio.Task[None]] = []
        self._maintained_s = time.monotonic()
        self._observed_s = self._released_s = 0.0
        self._busy_s = self._maintained_s

    def start(self) -> None:
        settings = self._settings
        for name, period_s, work in (
            ("life", LIFE_S, self._live),
            ("stats", settings.stats_s, self._observe),
            ("maintenance", settings.maintenance_s, self.maintain),
        ):
            task = asyncio.get_running_loop().create_task(_repeat(name, period_s, work))
            self._tasks.append(task)

        if self._certificates is not None:
            task = asyncio.get_running_loop().create_task(self._certificates.keep_renewed())
            self._tasks.append(task)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _live(self) -> None:
        """Touch the lock file: its time shows the supervisor that the event loop is running."""
        with suppress(OSError):
            os.utime(self._settings.folder.lock_of("gateway"))

    async def _observe(self) -> None:
        now_s, is_quiet = time.monotonic(), self._figures.is_quiet
        if not is_quiet:
            self._busy_s = now_s
        elif self._released_s < self._busy_s < now_s - RELEASE_S:
            self._released_s = now_s
            await asyncio.to_thread(release_free_memory)
        if not is_quiet or now_s >= self._observed_s + QUIET_FACTOR * self._settings.stats_s:
            self._observed_s = now_s
            await self._figures.observe()
        if self._maintenance.is_asked:
            await asyncio.to_thread(self._maintenance.mend)
            self._deliveries.look_again()

    async def maintain(self) -> None:
        """Save the cursors that only advanced over events without a match, then run a maintenance round."""
        await self._deliveries.save_progress()
        now_s = time.monotonic()
        elapsed_s, self._maintained_s = now_s - self._maintained_s, now_s
        # Clients cannot use subscriptions while the gateway hangs or is stopped: that time does not count.
        await self._unused.round(min(elapsed_s, 2 * self._settings.maintenance_s))
        await asyncio.to_thread(self._maintenance.round, elapsed_s)
        # It has done what `_observe` would have done for readers that wait at a gap or a corrupt block.
        self._deliveries.look_again()


async def _repeat(name: str, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(period_s)
        try:
            await work()
        except Exception:
            logger.exception("%s failed; retrying later", name)
