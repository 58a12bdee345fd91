"""The service's figures and readiness: metrics, `/v1/stats`, and whether events are accepted and matched."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from dataclasses import dataclass
from typing import Annotated

from msgspec import Struct

from fieldfare.gateway.admission.load import Load
from fieldfare.gateway.delivery.backlogs import Backlogs
from fieldfare.gateway.delivery.match_log_follower import MatchLogFollower
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.maintenance.readiness import (
    DISK_FULL_BYTES,
    HeartbeatWatch,
    PipelineWatch,
    StorageProbe,
    disk_free_bytes,
)
from fieldfare.gateway.maintenance.rounds import Maintenance
from fieldfare.gateway.maintenance.supervisor import read_supervisor
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.push.pushes import Pushes
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.writer import Writer
from fieldfare.storage.event_log import EventLog, ends_of
from fieldfare.storage.quarantine import Quarantine

WORST_SPACES, WORST_SUBSCRIPTIONS = 100, 10
"""Spaces and subscriptions with the greatest backlogs that have metrics of their own; others have none."""


class LatencyDocument(Struct):
    """Milliseconds from an event's append until it was matched, over the last minute."""

    p50: Annotated[float | None, "Median; null if nothing was matched in the last minute."]
    p99: Annotated[float | None, "99th percentile; null if nothing was matched in the last minute."]


class StatsDocument(Struct):
    """Current figures of the service."""

    log_end: Annotated[int, "Number of records that were ever appended to the log."]
    matched_end: Annotated[int, "Number of those records that are matched."]
    lag_events: Annotated[int, "Number of events appended and not matched yet."]
    lag_s: Annotated[float, "Age of the oldest event that is not matched yet, in seconds; 0 if all are."]
    events_total: Annotated[int, "Events appended since the gateway's start."]
    matches_total: Annotated[int, "Matches found since the gateway's start."]
    delivered_total: Annotated[int, "Messages delivered to subscribers since the gateway's start."]
    subscriptions: Annotated[int, "Number of subscriptions of all spaces."]
    connected: Annotated[int, "Number of open streams and WebSockets."]
    events_per_s: Annotated[float, "Events appended per second, over the last 5 s or so."]
    matches_per_s: Annotated[float, "Matches found per second, over the last 5 s or so."]
    match_latency_ms: Annotated[LatencyDocument, "Milliseconds from an event's append until it was matched."]
    log_bytes: Annotated[int, "Bytes of the event log on disk."]
    disk_free_bytes: Annotated[int, "Free bytes on the disk of the data directory."]
    notices: Annotated[list[str], "What an operator should look at, as sentences."]
    quarantined_records: Annotated[int, "Number of records set aside because matching them failed."]
    pid: Annotated[int, "Id of the gateway's process."]


@dataclass
class Figures:
    """An observer of everything that publishers and subscribers depend on.

    Parameters
    ----------
    settings
        Limits on the age of heartbeats, and the data directory.
    log, quarantine, tail, writer, subscriptions, deliveries, pushes, maintenance
        The components observed.
    load, metrics
        The objects updated with the results.
    backlogs
        The backlogs, whose greatest ones are metrics.
    """

    settings: GatewaySettings
    log: EventLog
    quarantine: Quarantine
    tail: MatchLogFollower
    writer: Writer
    subscriptions: Subscriptions
    deliveries: DeliveryService
    pushes: Pushes
    maintenance: Maintenance
    load: Load
    metrics: Metrics
    backlogs: Backlogs

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._log_end = 0
        folder, stale_s = self.settings.folder, self.settings.pipeline_stale_s
        self._pipeline = PipelineWatch(folder.heartbeat, stale_s)
        self._indexer = HeartbeatWatch("indexer", folder.heartbeat_of("indexer"), stale_s)
        self._probes = (
            StorageProbe("the log cannot be read", lambda: asyncio.to_thread(self._read)),
            StorageProbe("the log cannot be written", lambda: self.writer.probe()),
            StorageProbe("the registry cannot be written", self.subscriptions.probe),
        )
        self._read()

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has been appended since the last observation, and nothing waited then."""
        return self.load.lag_events == 0 and sum(self.writer.log_ends) == self._log_end

    async def observe(self) -> None:
        """Read the match log up to its end, and update load and metrics."""
        await self.tail.catch_up()
        await asyncio.to_thread(self._read)
        metrics = self.metrics
        metrics.sample(time.monotonic())
        metrics.lag.set(self.load.lag_events)
        metrics.subscriptions.set(self.subscriptions.count)
        metrics.connected.set(self.deliveries.connected)
        metrics.queued_bytes.set(self.writer.queued_bytes)
        self.pushes.observe()

    async def scrape(self) -> None:
        """Update all metrics, those of the service's state and disk too."""
        await self.observe()
        state = self.metrics.state
        for component, said in (await self.checks()).items():
            state.ready.labels(component).set(said == "ready")
        state.disk_free_bytes.set(self.load.disk_free_bytes)
        state.log_bytes.set(await asyncio.to_thread(self.log.size_bytes))
        state.quarantined.set(len(await asyncio.to_thread(self.quarantine.places)))
        state.lag_seconds.set(await asyncio.to_thread(self._lag_s))
        supervisor = await asyncio.to_thread(read_supervisor, self.settings.folder)
        state.processes.deaths = {} if supervisor is None else dict(supervisor.deaths)
        await self._scrape_backlogs()

    async def _scrape_backlogs(self) -> None:
        """Update the metrics of backlogs, unless the first count has not begun yet."""
        try:
            sums = await self.backlogs.worst_spaces(WORST_SPACES)
            page = await self.backlogs.page(None, None, WORST_SUBSCRIPTIONS)
        except HttpProblem:
            return
        self.metrics.backlogs.replace(sums, page.items)

    def _lag_s(self) -> float:
        """Return the age of the oldest event that is not matched, in seconds by the wall clock; else 0."""
        firsts = [
            record.appended_ms
            for partition, tip in zip(self.log.partitions, self.tail.tips, strict=True)
            if tip < partition.end()
            for record in partition.read(tip, tip + 1)
        ]
        return max(0.0, time.time() - min(firsts) / 1000) if firsts else 0.0

    def _read(self) -> None:
        tip = self.tail.tip
        # A broker may take seconds to answer, so this is outside the lock: no other thread waits for it.
        self._log_end = sum(ends_of(self.log))
        self.load.lag_events = self.tail.lag_events()
        self._read_local(tip)

    def _read_local(self, tip: int) -> None:
        """Update from this machine's files: free disk space and the heartbeats."""
        with self._lock:
            self.load.disk_free_bytes = disk_free_bytes(self.settings.data)
            now_s, now_ms = time.monotonic(), time.time_ns() // 1_000_000
            self._pipeline.read_heartbeat(tip, self._log_end, now_s, now_ms)
            self._indexer.read_heartbeat(now_s, now_ms)

    async def checks(self) -> dict[str, str]:
        """Return ``ready`` or the reason why not, for each component the service needs; in bounded time."""
        await self.tail.catch_up()
        readable, writable, registry = await asyncio.gather(*(probe.state() for probe in self._probes))
        if readable != "ready":
            await asyncio.to_thread(self._read_local, self.tail.tip)
        log = writable if writable != "ready" else readable
        checks = {
            "pipeline": self._pipeline.state(time.monotonic()),
            "indexer": self._indexer.state(time.monotonic()),
            "log": log,
            "registry": registry,
            "disk": "ready",
        }
        free_bytes = self.load.disk_free_bytes
        least_bytes = max(self.settings.disk_free_min_bytes, DISK_FULL_BYTES)
        if free_bytes < least_bytes:
            checks["disk"] = (
                f"{free_bytes >> 20} MiB are free, and {least_bytes >> 20} MiB are needed "
                "(FIELDFARE_DISK_FREE_MIN_BYTES)"
            )
        return checks

    async def stats(self) -> StatsDocument:
        """Return the document of ``/v1/stats``."""
        await self.observe()
        log_bytes = await asyncio.to_thread(self.log.size_bytes)
        quarantined = await asyncio.to_thread(self.quarantine.places)
        metrics = self.metrics
        events_per_s, matches_per_s = metrics.rates()
        return StatsDocument(
            log_end=self._log_end,
            matched_end=self.tail.tip,
            lag_events=self.load.lag_events,
            lag_s=round(await asyncio.to_thread(self._lag_s), 3),
            events_total=metrics.events_total,
            matches_total=metrics.matches_total,
            delivered_total=metrics.delivered_total,
            subscriptions=self.subscriptions.count,
            connected=self.deliveries.connected,
            events_per_s=round(events_per_s, 1),
            matches_per_s=round(matches_per_s, 1),
            match_latency_ms=LatencyDocument(**metrics.match_latency_ms()),
            log_bytes=log_bytes,
            disk_free_bytes=self.load.disk_free_bytes,
            notices=list(self.maintenance.notices),
            quarantined_records=len(quarantined),
            pid=os.getpid(),
        )
