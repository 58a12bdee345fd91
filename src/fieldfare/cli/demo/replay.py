"""Publishing the events as fast as the service accepts them, and waiting for matches and deliveries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldfare.cli.demo.check import INDEX_BITS, Positions
from fieldfare.cli.demo.figures import DemoFigures, Rate, latency_ms
from fieldfare.cli.demo.followers import Deliveries, Followers, join_deliveries
from fieldfare.client import AsyncClient, AsyncPublisher, BatchSettings

BATCH_EVENTS = 5_000
IN_FLIGHT = 4
LOOK_EVERY_S = 0.25
LOOK_OFTEN_S = 0.02
LATENCY_OVER_S = 2.0
STALLED_S = 60.0


@dataclass(frozen=True, slots=True)
class Progress:
    """The service's progress: the offset up to which records are matched, and the number of matches."""

    matched_end: int
    matches: int


async def read_progress(client: AsyncClient) -> Progress:
    """Read the service's progress."""
    stats = await client.stats()
    return Progress(stats["matched_end"], stats["matches_total"])


class Stalled(RuntimeError):
    """The service has made no progress for `STALLED_S` seconds."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """The results of a replay.

    ``positions`` has the position of each event in the log; times are in seconds of the monotonic clock.
    """

    positions: Positions
    end: int
    matches: int
    started_s: float
    matched_s: float
    deliveries: Deliveries
    latencies_s: NDArray[np.float64]

    @property
    def events_per_s(self) -> float:
        """Events per second, from the first publish to the last match."""
        return len(self.positions) / (self.matched_s - self.started_s)


class Replay:
    """One replay of events against a running service.

    Parameters
    ----------
    client
        Publishes, and reads the service's figures.
    events
        The events, one JSON object each, large_binary.
    followers
        The connected subscribers.
    show
        Called several times a second with the figures.
    """

    def __init__(
        self,
        client: AsyncClient,
        events: pa.ChunkedArray,
        followers: Followers,
        show: Callable[[DemoFigures], None],
    ) -> None:
        self._client = client
        self._events = events
        self._followers = followers
        self._show = show
        self._positions = np.full(len(events), -1, np.int64)
        self._published = 0
        self._sent_s: dict[int, float] = {}
        self._reports: list[Deliveries] = []
        self._delivered = 0
        self._event_rate, self._match_rate = Rate(), Rate()
        self._before = Progress(0, 0)

    async def run(self, expect: Callable[[int], int]) -> Replayed:
        """Publish all events, then wait until all are matched and delivered.

        Parameters
        ----------
        expect
            Called with the log's end once everything is matched; returns the expected number of deliveries.
        """
        self._before = await read_progress(self._client)
        started_s = time.monotonic()
        publishing = asyncio.create_task(self._publish_all())
        while not publishing.done():
            await asyncio.wait([publishing], timeout=LOOK_EVERY_S)
            await self._look()
        publishing.result()
        end = int(self._positions.max() >> INDEX_BITS) + 1 if len(self._positions) else 0
        progress, matched_s = await self._wait_until_matched(end)
        await self._wait_until_delivered(await asyncio.to_thread(expect, end))
        deliveries = join_deliveries(self._reports)
        return Replayed(
            self._positions,
            end,
            progress.matches - self._before.matches,
            started_s,
            matched_s,
            deliveries,
            self._latencies_s(deliveries),
        )

    async def _publish_all(self) -> None:
        settings = BatchSettings(
            max_events=BATCH_EVENTS, max_bytes=16 << 20, linger_ms=0, max_in_flight=IN_FLIGHT
        )
        slots = asyncio.Semaphore(IN_FLIGHT)
        async with self._client.publisher(settings) as publisher, asyncio.TaskGroup() as group:
            for start in range(0, len(self._events), BATCH_EVENTS):
                await slots.acquire()
                task = group.create_task(self._publish(publisher, start))
                task.add_done_callback(lambda _: slots.release())

    async def _publish(self, publisher: AsyncPublisher, start: int) -> None:
        events = self._events[start : start + BATCH_EVENTS].to_pylist()
        sent_s = time.monotonic()
        positions = await publisher.publish_many(events)
        packed = np.array([(position.offset << INDEX_BITS) | position.index for position in positions])
        self._positions[start : start + len(packed)] = packed
        self._sent_s.update(dict.fromkeys(np.unique(packed >> INDEX_BITS).tolist(), sent_s))
        self._published += len(packed)

    async def _look(self) -> Progress:
        """Read the service's progress and the deliveries, and show both."""
        progress = await read_progress(self._client)
        report = self._followers.receive()
        self._reports.append(report)
        self._delivered += len(report)
        now_s = time.monotonic()
        recent = join_deliveries(self._reports[-round(LATENCY_OVER_S / LOOK_EVERY_S) :])
        latencies_s = self._latencies_s(recent)
        matches = progress.matches - self._before.matches
        known = self._positions >= 0
        matched = int(np.count_nonzero(known & (self._positions >> INDEX_BITS < progress.matched_end)))
        self._show(
            DemoFigures(
                events=len(self._positions),
                published=self._published,
                matched=matched,
                matches=matches,
                delivered=self._delivered,
                events_per_s=self._event_rate.update(now_s, matched),
                matches_per_s=self._match_rate.update(now_s, matches),
                latency_p50_ms=latency_ms(latencies_s, 0.5),
                latency_p99_ms=latency_ms(latencies_s, 0.99),
            )
        )
        return progress

    async def _wait_until_matched(self, end: int) -> tuple[Progress, float]:
        shown_s = moved_s = time.monotonic()
        last_end = -1
        while True:
            progress = await read_progress(self._client)
            now_s = time.monotonic()
            if progress.matched_end >= end:
                await self._look()
                return progress, now_s
            if progress.matched_end > last_end:
                last_end, moved_s = progress.matched_end, now_s
            if now_s - moved_s > STALLED_S:
                raise Stalled(f"nothing was matched for {STALLED_S:.0f} s; {end - last_end} records are left")
            if now_s - shown_s > LOOK_EVERY_S:
                await self._look()
                shown_s = now_s
            await asyncio.sleep(LOOK_OFTEN_S)

    async def _wait_until_delivered(self, expected: int) -> None:
        """Wait for the last deliveries; the check decides whether they are correct."""
        moved_s = time.monotonic()
        while self._delivered < expected and time.monotonic() - moved_s < STALLED_S:
            before = self._delivered
            await asyncio.sleep(LOOK_EVERY_S)
            await self._look()
            if self._delivered > before:
                moved_s = time.monotonic()

    def _latencies_s(self, deliveries: Deliveries) -> NDArray[np.float64]:
        """Return the seconds from publish call to arrival, for each delivery of an acknowledged event."""
        if not self._sent_s or not len(deliveries):
            return np.empty(0, np.float64)
        offsets = np.array(sorted(self._sent_s), np.int64)
        sent_s = np.array([self._sent_s[offset] for offset in offsets.tolist()])
        wanted = deliveries.positions >> INDEX_BITS
        place = np.minimum(np.searchsorted(offsets, wanted), len(offsets) - 1)
        known = offsets[place] == wanted
        latencies_s: NDArray[np.float64] = deliveries.received_s[known] - sent_s[place[known]]
        return latencies_s
