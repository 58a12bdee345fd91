"""What the gateway does besides answering: figures, the lag, the pipeline's heartbeat."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from fieldfare.gateway.app import Gateway

logger = logging.getLogger("fieldfare.gateway")

PIPELINE_WORKS = ("ready", "running")
"""The states in which the pipeline matches what is appended."""


class PipelineHeartbeat(msgspec.Struct):
    """What the pipeline's driver writes every second."""

    pid: int
    state: str
    time_ms: int
    offset: int | None = None
    snapshot_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether events are taken and matched, and if not, why."""

    ready: bool
    checks: dict[str, str]


def read_heartbeat(path: Path) -> PipelineHeartbeat:
    """The pipeline's last heartbeat; FileNotFoundError before the first."""
    return msgspec.json.decode(path.read_bytes(), type=PipelineHeartbeat)


def pipeline_state(path: Path, now_ms: int, stale_s: float) -> str:
    """``ready``, or a sentence why the pipeline is not."""
    try:
        heartbeat = read_heartbeat(path)
    except FileNotFoundError:
        return "the pipeline has not started yet"
    except (OSError, msgspec.DecodeError) as error:
        return f"the pipeline's heartbeat cannot be read: {error}"
    age_s = (now_ms - heartbeat.time_ms) / 1000
    if age_s > stale_s:
        return f"the pipeline's last heartbeat is {age_s:.0f} s old"
    return "ready" if heartbeat.state in PIPELINE_WORKS else f"the pipeline is {heartbeat.state}"


async def readiness(gateway: Gateway) -> Readiness:
    """Look at everything that a publisher and a subscriber need."""
    settings = gateway.settings
    checks = {
        "pipeline": pipeline_state(
            gateway.heartbeat_path, time.time_ns() // 1_000_000, settings.pipeline_stale_s
        ),
        "log": "ready",
        "disk": "ready",
    }
    try:
        # Whoever holds the fence could have written.
        await asyncio.wait_for(gateway.writer.change(lambda end: end), 5.0)
    except Exception as error:
        checks["log"] = f"the log cannot be written: {error or type(error).__name__}"
    free_bytes = disk_free_bytes(settings.data)
    if free_bytes < settings.disk_free_min_bytes:
        checks["disk"] = f"{free_bytes >> 20} MiB are free"
    return Readiness(all(state == "ready" for state in checks.values()), checks)


def disk_free_bytes(path: Path) -> int:
    return shutil.disk_usage(path).free


class Background:
    """The gateway's own tasks; `start` and `close` them with it."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._tasks: list[asyncio.Task[None]] = []
        self._maintained_s = time.monotonic()
        self.lag_events = 0
        self.log_end = gateway.log.end()
        self.disk_free_bytes = disk_free_bytes(gateway.settings.data)
        self.observe()

    def start(self) -> None:
        settings = self._gateway.settings
        for name, period_s, work in (
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
        self.observe()
        if self._gateway.maintenance.is_asked:
            await asyncio.to_thread(self._gateway.maintenance.mend)
            self._gateway.pump.look_again()

    def observe(self) -> None:
        """Follow the match log's end and take the figures that change all the time."""
        gateway = self._gateway
        gateway.tail.advance()
        self.log_end = gateway.log.end()
        self.lag_events = gateway.log.backlog(gateway.tail.tip).events
        self.disk_free_bytes = disk_free_bytes(gateway.settings.data)
        metrics = gateway.metrics
        metrics.sample(time.monotonic())
        metrics.lag.set(self.lag_events)
        metrics.subscriptions.set(gateway.subscriptions.count)
        metrics.connected.set(gateway.pump.connected)
        metrics.queued_bytes.set(gateway.writer.queued_bytes)

    async def _maintain(self) -> None:
        await self._gateway.pump.save_progress()
        now_s = time.monotonic()
        elapsed_s, self._maintained_s = now_s - self._maintained_s, now_s
        await asyncio.to_thread(self._gateway.maintenance.round, elapsed_s)

    def stats(self) -> dict[str, Any]:
        """The document of ``/v1/stats``."""
        gateway = self._gateway
        self.observe()
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
            "pid": os.getpid(),
        }


async def _repeat(name: str, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(period_s)
        try:
            await work()
        except Exception:
            logger.exception("%s failed; it will be tried again", name)
