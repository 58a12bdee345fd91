"""What the programs share that run an elastic service on a real Spark cluster of this machine."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx

from fieldfare.cli.demo.service import Service, ServicePlaces
from fieldfare.elasticity.messages import SliceMove
from fieldfare.runtimes.spark.elastic.record import ElasticLoads, ElasticRecord, Move, wish
from fieldfare_lab.spark_cluster import SparkCluster

WORKERS, MATCHERS = 3, 8
ATTRIBUTES, DOMAIN = 4, 1000
WITHIN_S = 240.0


class Publisher(threading.Thread):
    """Sends an event every `pause_s` seconds; `sent` has when each was, by its place."""

    def __init__(self, url: str, pause_s: float) -> None:
        super().__init__(daemon=True)
        self._http = httpx.Client(base_url=url, timeout=30)
        self._pause_s = pause_s
        self._enough = threading.Event()
        self.sent: dict[str, float] = {}

    def run(self) -> None:
        n, random, due_s = 0, Random(2), time.monotonic()
        while True:
            due_s = max(due_s + self._pause_s, time.monotonic() - 1.0)
            if self._enough.wait(max(0.0, due_s - time.monotonic())):
                return
            n += 1
            data = {"n": n, **{f"a{i}": random.randrange(DOMAIN) for i in range(ATTRIBUTES)}}
            event = {"specversion": "1.0", "id": str(n), "source": "/e", "type": "t", "data": data}
            sent_s = time.monotonic()
            answer = self._http.post(
                "/v1/spaces/default/events",
                content=json.dumps(event) + "\n",
                headers={"content-type": "application/x-ndjson"},
            )
            answer.raise_for_status()
            place = answer.json()
            self.sent[f"{place['partition']}-{place['offset']}-0"] = sent_s

    def stop(self) -> None:
        self._enough.set()
        self.join(60)


class ElasticScene:
    """An elastic service, and what is seen of it from outside."""

    def __init__(self, service: Service) -> None:
        self.service, self.folder = service, service.folder

    @property
    def loads(self) -> ElasticLoads | None:
        return ElasticLoads.read(self.folder.elastic_loads)

    @property
    def record(self) -> ElasticRecord:
        return ElasticRecord.read(self.folder.elastic)

    def wait(self, condition: Callable[[], Any], within_s: float = WITHIN_S) -> Any:
        give_up_s = time.monotonic() + within_s
        while not (value := condition()):
            if time.monotonic() > give_up_s:
                said = self.folder.log_of("pipeline").read_text()[-3000:]
                raise TimeoutError(f"it did not come true in {within_s:g} s:\n{said}")
            time.sleep(0.02)
        return value

    def is_settled(self) -> bool:
        """All slices are where the configuration says, on executors that are warm."""
        loads, record = self.loads, self.record
        if loads is None or record.configuration is None or record.configuration.moves:
            return False
        places = {name: place.host for name, place in record.configuration.places.items()}
        moving = any(place.to or place.is_lost for place in record.configuration.places.values())
        at = {each.slice: each.host for each in loads.slices}
        return not moving and at == places and all(each.is_warm for each in loads.hosts)

    def move(self, name: str, to: str) -> Move:
        """Have a slice moved by hand; gives when that was."""
        moves = self.record.moves
        last_ms = moves[-1].placed_ms if moves else 0.0
        wish(self.folder, SliceMove(name, to))

        def done() -> Move | None:
            moves = self.record.moves
            return moves[-1] if moves and moves[-1].placed_ms > last_ms else None

        found: Move = self.wait(done)
        assert (found.slice, found.to_host) == (name, to)
        return found


@contextmanager
def elastic_scene(bounds: str, matchers: int) -> Iterator[ElasticScene]:
    """A standalone cluster of three workers of a core each, and a service with some matchers on it."""
    os.environ |= {
        "FIELDFARE_MATCHERS": str(matchers),
        "FIELDFARE_PARTITIONING": "hash",
        "FIELDFARE_ELASTIC": bounds,
    }
    with (
        tempfile.TemporaryDirectory(prefix="elastic-") as folder,
        SparkCluster(WORKERS) as cluster,
        Service(Path(folder) / "data", ServicePlaces(master=cluster.address)) as service,
    ):
        service.wait_until_ready()
        yield ElasticScene(service)


def came_after_ms(
    publisher: Publisher, came: dict[str, list[tuple[int, float]]]
) -> list[tuple[float, float]]:
    """When each event was sent, by the monotonic clock, and after how many milliseconds it came."""
    return sorted(
        (sent_s, 1000 * (came[place][0][1] - sent_s))
        for place, sent_s in publisher.sent.items()
        if place in came
    )
