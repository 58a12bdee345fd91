"""What the gateway does every so often, besides answering."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from fieldfare.gateway.admission.tls import Certificates
from fieldfare.gateway.delivery.pump import Pump
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.gateway.upkeep.figures import Figures
from fieldfare.gateway.upkeep.maintenance import Maintenance
from fieldfare.gateway.upkeep.unused import Unused

logger = logging.getLogger("fieldfare.gateway")

LIFE_S = 1.0
"""How often the gateway gives a sign of life."""

CERTIFICATES_S = 2.0
"""How often it looks whether its certificate was renewed."""


class Background:
    """The gateway's own tasks; `start` and `close` them with it."""

    def __init__(
        self,
        settings: GatewaySettings,
        figures: Figures,
        maintenance: Maintenance,
        pump: Pump,
        unused: Unused,
        certificates: Certificates | None,
    ) -> None:
        self._settings = settings
        self._figures = figures
        self._maintenance = maintenance
        self._pump = pump
        self._certificates = certificates
        self._unused = unused
        self._tasks: list[asyncio.Task[None]] = []
        self._maintained_s = time.monotonic()

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
            task = asyncio.get_running_loop().create_task(_repeat("tls", CERTIFICATES_S, self._renew))
            self._tasks.append(task)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _live(self) -> None:
        """Show the supervisor, by the lock's time, that the event loop goes round."""
        with suppress(OSError):
            os.utime(self._settings.folder.lock_of("gateway"))

    async def _renew(self) -> None:
        """Have a certificate that was renewed be shown from now on."""
        assert self._certificates is not None
        await asyncio.to_thread(self._certificates.renew)

    async def _observe(self) -> None:
        await self._figures.observe()
        if self._maintenance.is_asked:
            await asyncio.to_thread(self._maintenance.mend)
            self._pump.look_again()

    async def maintain(self) -> None:
        """One round of maintenance, after cursors that only passed over what did not match were saved."""
        await self._pump.save_progress()
        now_s = time.monotonic()
        elapsed_s, self._maintained_s = now_s - self._maintained_s, now_s
        # A gateway that hung, or was stopped, could not be used meanwhile.
        await self._unused.round(min(elapsed_s, 2 * self._settings.maintenance_s))
        await asyncio.to_thread(self._maintenance.round, elapsed_s)


async def _repeat(name: str, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(period_s)
        try:
            await work()
        except Exception:
            logger.exception("%s failed; it will be tried again", name)
