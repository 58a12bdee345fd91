"""What the gateway does besides answering: figures, the lag, the pipeline's heartbeat."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fieldfare.gateway.readiness import HeartbeatWatch, PipelineWatch, WriterProbe, disk_free_bytes
from fieldfare.storage.event_log import ends_of

if TYPE_CHECKING:
    from fieldfare.gateway.app import Gateway

logger = logging.getLogger("fieldfare.gateway")

LIFE_S = 1.0
"""How often the gateway gives a sign of life."""


class Background:
    """The gateway's own tasks; `start` and `close` them with it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._tasks: list[asyncio.Task[None]] = []
        self._maintained_s = time.monotonic()
        self.lag_events = 0
        self.log_end = sum(ends_of(gateway.log))
        self.disk_free_bytes = disk_free_bytes(gateway.settings.data)
        settings = gateway.settings
        self.pipeline = PipelineWatch(gateway.heartbeat_path, settings.pipeline_stale_s)
        indexer = settings.folder.heartbeat_of("indexer")
        self.indexer = HeartbeatWatch("indexer", indexer, settings.pipeline_stale_s)
        self.probes = (
            WriterProbe("log", lambda: gateway.writer.probe()),
            WriterProbe(
                "registry", lambda: gateway.writer.change(lambda ends: gateway.registry.apply([], ends, 0))
            ),
        )
        self._take_figures()

    def start(self) -> None:
        settings = self._gateway.settings
        for name, period_s, work in (
            ("life", LIFE_S, self._live),
            ("stats", settings.stats_s, self._observe),
            ("maintenance", settings.maintenance_s, self._maintain),
        ):
            task = asyncio.get_running_loop().create_task(_repeat(name, period_s, work))
            self._tasks.append(task)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _observe(self) -> None:
        await self.observe()
        if self._gateway.maintenance.is_asked:
            await asyncio.to_thread(self._gateway.maintenance.mend)
            self._gateway.pump.look_again()

    async def _live(self) -> None:
        """Show the supervisor, by the lock's time, that the event loop goes round."""
        with suppress(OSError):
            os.utime(self._gateway.settings.folder.lock_of("gateway"))

    async def observe(self) -> None:
        """Take in all that is matched by now, and the figures that change all the time."""
        await self._gateway.tail.catch_up()
        self._take_figures()

    def _take_figures(self) -> None:
        gateway = self._gateway
        self.log_end = sum(ends_of(gateway.log))
        self.lag_events = gateway.tail.lag_events()
        self.disk_free_bytes = disk_free_bytes(gateway.settings.data)
        now_s, now_ms = time.monotonic(), time.time_ns() // 1_000_000
        self.pipeline.look(gateway.tail.tip, self.log_end, now_s, now_ms)
        self.indexer.look(now_s, now_ms)
        metrics = gateway.metrics
        metrics.sample(now_s)
        metrics.lag.set(self.lag_events)
        metrics.subscriptions.set(gateway.subscriptions.count)
        metrics.connected.set(gateway.pump.connected)
        metrics.queued_bytes.set(gateway.writer.queued_bytes)

    async def _maintain(self) -> None:
        await self._gateway.pump.save_progress()
        now_s = time.monotonic()
        elapsed_s, self._maintained_s = now_s - self._maintained_s, now_s
        await asyncio.to_thread(self._gateway.maintenance.round, elapsed_s)

    async def stats(self) -> dict[str, Any]:
        """The document of ``/v1/stats``."""
        gateway = self._gateway
        await self.observe()
        metrics = gateway.metrics
        events_per_s, matches_per_s = metrics.rates()
        return {
            "log_end": self.log_end,
            "matched_end": gateway.tail.tip,
            "lag_events": self.lag_events,
            "events_total": metrics.events_total,
            "matches_total": metrics.matches_total,
            "delivered_total": metrics.delivered_total,
            "subscriptions": gateway.subscriptions.count,
            "connected": gateway.pump.connected,
            "events_per_s": round(events_per_s, 1),
            "matches_per_s": round(matches_per_s, 1),
            "match_latency_ms": metrics.match_latency_ms(),
            "log_bytes": gateway.log.size_bytes(),
            "disk_free_bytes": self.disk_free_bytes,
            "notices": list(gateway.maintenance.notices),
            "quarantined_records": len(gateway.quarantine.offsets()),
            "pid": os.getpid(),
        }


async def _repeat(name: str, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(period_s)
        try:
            await work()
        except Exception:
            logger.exception("%s failed; it will be tried again", name)
