"""Real processes: a gateway that is killed, and connections that are reset, under requests on their way."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from client_support import PATIENT
from real_gateway import RealGateway
from tests.doses import rounds

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))

from wire import Wire

from fieldfare import AsyncClient, BatchSettings, Client, Position
from fieldfare.client import PublisherStats
from fieldfare.storage import open_event_log
from fieldfare.storage.folder import DataFolder

pytestmark = pytest.mark.long

EVENTS, KILLS = 500 * rounds(6), rounds(3)
BATCH = BatchSettings(max_events=10, linger_ms=1, max_in_flight=5)


def event(number: int) -> dict[str, Any]:
    return {"source": "/s", "type": "t", "data": {"n": number}}


class Line:
    """A gateway behind a path with a delay, and what befalls them between two events."""

    def __init__(self, gateway: RealGateway, wire: Wire, seed: int) -> None:
        self.gateway = gateway
        self.wire = wire
        self.most_at_once = 0
        self._random = random.Random(seed)
        self._kills = {self._random.randrange(200, EVENTS - 200) for _ in range(KILLS)}

    def suffer(self, number: int) -> None:
        """Now and then connections are reset, and `KILLS` times the gateway dies."""
        self.most_at_once = max(self.most_at_once, len(self.wire._open) // 2)
        if number in self._kills:
            self.gateway.kill()
            self.gateway.start()
            self.wire.target = self.gateway.url
        elif self._random.random() < 0.01:
            self.wire.cut()


@contextmanager
def suffering(data: Path, seed: int) -> Iterator[Line]:
    data.mkdir()
    gateway, wire = RealGateway(data), Wire()
    gateway.start()
    wire.target, wire.delay_s = gateway.url, 0.005
    try:
        yield Line(gateway, wire, seed)
    finally:
        wire.close()
        gateway.stop()


def check(data: Path, positions: list[Position], line: Line, stats: PublisherStats) -> None:
    log = open_event_log(DataFolder(data).log_url)
    (partition,) = log.partitions
    stored = [
        (json.loads(text)["data"]["n"], Position(0, record.offset, index))
        for record in partition.read(0, partition.end())
        for index, text in enumerate(record.payload.splitlines())
    ]
    log.close()
    assert [number for number, _ in stored] == list(range(EVENTS)), "lost, doubled or out of order"
    assert [at for _, at in stored] == positions
    assert line.most_at_once > 1, "requests were under way together: the test is of something"
    assert stats.repeated_requests > 0 and stats.failed_events == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_events_are_in_the_log_once_and_in_order_though_the_gateway_is_killed(
    tmp_path: Path, seed: int
) -> None:
    with suffering(tmp_path / "data", seed) as line, Client(line.wire.url) as client:
        publisher = client.publisher(BATCH, PATIENT)
        futures = []
        for number in range(EVENTS):
            futures.append(publisher.publish(event(number)))
            if number % 10 == 0:
                futures[max(0, number - 100)].result(60)  # so that what befalls them meets some of them
            line.suffer(number)
        publisher.close()
        check(tmp_path / "data", [future.result(0) for future in futures], line, publisher.stats())


def test_an_asyncio_program_keeps_the_order_too(tmp_path: Path) -> None:
    async def story(line: Line) -> tuple[list[Position], PublisherStats]:
        async with AsyncClient(line.wire.url) as client:
            publisher = client.publisher(BATCH, PATIENT)
            futures = []
            for number in range(EVENTS):
                futures.append(publisher.publish(event(number)))
                if number % 10 == 0:
                    await futures[max(0, number - 100)]
                await asyncio.to_thread(line.suffer, number)
            await publisher.close()
            return [await future for future in futures], publisher.stats()

    with suffering(tmp_path / "data", 3) as line:
        positions, stats = asyncio.run(asyncio.wait_for(story(line), 250))
        check(tmp_path / "data", positions, line, stats)
