"""The latency of a lightly loaded service: single events at a steady pace, timed until they are delivered."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldfare.cli.demo.check import INDEX_BITS
from fieldfare.cli.demo.followers import Deliveries, Followers, join_deliveries
from fieldfare.client import AsyncClient, BatchSettings
from fieldfare.model import Position

PROBE = "latency-probe"
PROBE_FILTER = "type LIKE 'com.fieldfare.flight.%'"
EVENTS_PER_S = 200
WARM_S = 3
MEASURED_S = 20
ARRIVAL_WAIT_S = 10.0
CONNECT_WAIT_S = 60.0
LOOK_EVERY_S = 0.1


def measure_latencies_s(
    url: str, events: pa.ChunkedArray, events_per_s: int = EVENTS_PER_S, filter: str = PROBE_FILTER
) -> NDArray[np.float64]:
    """Publish single events at a steady pace and time each from the publish call to its delivery.

    A subscriber in another process receives all of them over server-sent events. Events before the first
    delivery, and in the `WARM_S` seconds after it, do not count.

    Parameters
    ----------
    url
        A running service without other load.
    events
        The events to publish, repeated if there are too few.
    events_per_s
        Events published per second.
    filter
        The subscriber's filter; every event must match it.

    Returns
    -------
    float64 array
        Seconds, one for each event in the order of publishing.

    Raises
    ------
    RuntimeError
        If an event was not delivered exactly once.
    """
    return asyncio.run(_measure(url, events, events_per_s, filter))


async def _measure(url: str, events: pa.ChunkedArray, events_per_s: int, filter: str) -> NDArray[np.float64]:
    async with AsyncClient(url) as client:
        await client.create_subscription(filter, PROBE)
        with Followers(url, [PROBE]) as followers:
            await _connect(client, followers, events[0].as_py())
            warm_count, count = WARM_S * events_per_s, (WARM_S + MEASURED_S) * events_per_s
            texts = events[: min(count, len(events))].to_pylist()
            sent_s, positions, deliveries = await _publish_steadily(
                client, followers, [texts[i % len(texts)] for i in range(count)], events_per_s
            )
        await client.delete_subscription(PROBE)
    return _latencies_s(sent_s, positions, deliveries)[warm_count:]


async def _connect(client: AsyncClient, followers: Followers, text: bytes) -> None:
    """Publish one event and wait for its delivery, so that the subscriber's start is not measured."""
    await client.publish(text)
    deadline_s = time.monotonic() + CONNECT_WAIT_S
    while not len(followers.receive()):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the subscriber got nothing for {CONNECT_WAIT_S:.0f} s")
        await asyncio.sleep(LOOK_EVERY_S)


async def _publish_steadily(
    client: AsyncClient, followers: Followers, texts: list[bytes], events_per_s: int
) -> tuple[list[float], list[Position], Deliveries]:
    # Here an event waits neither for other events nor for the answer to the previous one.
    settings = BatchSettings(linger_ms=0, max_in_flight=16)
    sent_s, futures = [], []
    async with client.publisher(settings) as publisher:
        begin_s = time.monotonic()
        for number, text in enumerate(texts):
            wait_s = begin_s + number / events_per_s - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            sent_s.append(time.monotonic())
            futures.append(publisher.publish(text))
        positions = await asyncio.gather(*futures)
    reports: list[Deliveries] = []
    deadline_s = time.monotonic() + ARRIVAL_WAIT_S
    while sum(map(len, reports)) < len(texts) and time.monotonic() < deadline_s:
        await asyncio.sleep(LOOK_EVERY_S)
        reports.append(followers.receive())
    return sent_s, positions, join_deliveries(reports)


def _latencies_s(
    sent_s: list[float], positions: list[Position], deliveries: Deliveries
) -> NDArray[np.float64]:
    packed = np.array([(position.offset << INDEX_BITS) | position.index for position in positions], np.int64)
    by_position, by_arrival = np.argsort(packed), np.argsort(deliveries.positions)
    if not np.array_equal(packed[by_position], deliveries.positions[by_arrival]):
        raise RuntimeError(f"{len(packed)} events were published, {len(deliveries)} messages were delivered")
    received_s = np.empty(len(packed))
    received_s[by_position] = deliveries.received_s[by_arrival]
    latencies_s: NDArray[np.float64] = received_s - np.array(sent_s)
    return latencies_s
