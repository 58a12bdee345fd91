"""Common parts of the programs that run an elastic service on a real Spark cluster on this machine."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from fieldfare.cli.demo.service import Service, ServicePlaces
from fieldfare.client import Client
from fieldfare.client.encrypting import NO_ENCRYPTION, Encryption
from fieldfare.elasticity.messages import SliceMove
from fieldfare.storage.elastic import ElasticLoads, ElasticRecord, Move, wish
from fieldfare_lab.cpu_group import why_no_groups
from fieldfare_lab.feeding import Reader, subscribe_scores
from fieldfare_lab.spark_cluster import SparkCluster, why_no_cluster

WORKERS, MATCHERS = 3, 8
ATTRIBUTES, DOMAIN = 4, 1000
EVENT_S = 0.05
WITHIN_S = 240.0
FIRST_EVENTS = 40
TRIED_PER_S, TRIED_S, LOOKED_AT_S = (20.0, 70.0), 16.0, 10.0
WORKER_PROCESSORS = 0.5
"""Cores that a control group allows each worker when its load is measured: three workers share two cores
with the rest of the service and its users."""
SCORES = 20_000
"""Number of subscriptions that are computed for each event; see `subscribe_scores`."""


class Publisher(threading.Thread):
    """Sends the due events, in one request every `EVENT_S`; `sent` has the time of each, by position.

    `due` returns the number of events that are due, by the seconds since the first.
    """

    def __init__(
        self,
        url: str,
        due: Callable[[float], int] = lambda _: 1,
        space: str = "default",
        encryption: Encryption = NO_ENCRYPTION,
    ) -> None:
        super().__init__(daemon=True)
        self._client = Client(url, space, timeout_s=30, encryption=encryption)
        self._due = due
        self._enough = threading.Event()
        self.started_s = 0.0
        self.sent: dict[str, float] = {}

    def run(self) -> None:
        n, random = 0, Random(2)
        due_s = self.started_s = time.monotonic()
        while True:
            due_s = max(due_s + EVENT_S, time.monotonic() - 1.0)
            if self._enough.wait(max(0.0, due_s - time.monotonic())):
                return
            events = []
            for _ in range(self._due(due_s - self.started_s)):
                n += 1
                data = {"n": n, **{f"a{i}": random.randrange(DOMAIN) for i in range(ATTRIBUTES)}}
                events.append({"id": str(n), "source": "/e", "type": "t", "data": data})
            if events:
                sent_s = time.monotonic()
                self.sent |= {str(position): sent_s for position in self._client.publish_many(events)}

    def stop(self) -> None:
        self._enough.set()
        self.join(60)
        self._client.close()


class Cost(NamedTuple):
    """Processor time per event, and per second independent of the number of events."""

    event_s: float
    always: float

    def rate_per_s(self, processors: float) -> float:
        """Return the number of events per second that use a number of cores."""
        return max(0.0, processors - self.always) / self.event_s


class ElasticScene:
    """An elastic service, as observed from outside."""

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
        """Whether all slices are at the configured places, on warm executors."""
        loads, record = self.loads, self.record
        if loads is None or record.configuration is None or record.configuration.moves:
            return False
        places = {name: place.host for name, place in record.configuration.places.items()}
        moving = any(place.to or place.is_lost for place in record.configuration.places.values())
        at = {each.slice: each.host for each in loads.slices}
        return not moving and at == places and all(each.is_warm for each in loads.hosts)

    def settle(self) -> None:
        """Wait for an index of all subscriptions, and for all slices to be at their places."""
        self.service.wait_until_indexed()
        self.wait(self.is_settled)

    def move(self, name: str, to: str) -> Move:
        """Request a slice's move; return the time of the request."""
        moves = self.record.moves
        last_ms = moves[-1].placed_ms if moves else 0.0
        wish(self.folder, SliceMove(name, to))

        def done() -> Move | None:
            moves = self.record.moves
            return moves[-1] if moves and moves[-1].placed_ms > last_ms else None

        found: Move = self.wait(done)
        assert (found.slice, found.to_host) == (name, to)
        return found

    def store_scores(self) -> tuple[Reader, Cost]:
        """Store `SCORES`, and match some events; return a reader of all events, and the cost of one."""
        with Client(self.service.url) as client:
            client.create_subscription("data.n >= 0", "all")
        subscribe_scores(self.service.url, SCORES, ATTRIBUTES, DOMAIN)
        self.settle()
        first, reader = Publisher(self.service.url), Reader(self.service.url, "all")
        reader.start()
        first.start()
        self.wait(lambda: len(first.sent) >= FIRST_EVENTS)
        first.stop()
        self.wait(lambda: len(reader.came) >= len(first.sent))
        some, more = (self._processors_at(rate_per_s) for rate_per_s in TRIED_PER_S)
        event_s = max(1e-6, (more - some) / (TRIED_PER_S[1] - TRIED_PER_S[0]))
        cost = Cost(event_s, max(0.0, some - event_s * TRIED_PER_S[0]))
        print(f"{some:.3f} and {more:.3f} of a core at {TRIED_PER_S} events a second: {cost}")
        return reader, cost

    def _processors_at(self, rate_per_s: float) -> float:
        """Return the cores that the slices use at an event rate."""
        random, seen = np.random.default_rng(1), LoadsSeen(self)
        publisher = Publisher(self.service.url, lambda _: int(random.poisson(EVENT_S * rate_per_s)))
        publisher.start()
        time.sleep(TRIED_S - LOOKED_AT_S)
        seen.start()
        time.sleep(LOOKED_AT_S)
        seen.stop()
        publisher.stop()
        return float(np.mean([sum(host.cpu * host.cores for host in each.hosts) for each in seen.loads]))


class LoadsSeen(threading.Thread):
    """The loads that the service reports, second by second."""

    def __init__(self, scene: ElasticScene) -> None:
        super().__init__(daemon=True)
        self._scene = scene
        self._enough = threading.Event()
        self.loads: list[ElasticLoads] = []

    def run(self) -> None:
        while not self._enough.wait(0.25):
            loads = self._scene.loads
            if loads is not None and (not self.loads or loads.time_ms != self.loads[-1].time_ms):
                self.loads.append(loads)

    def stop(self) -> None:
        self._enough.set()
        self.join(5)


def why_no_loads() -> str | None:
    """Return what is missing here for a cluster with measurable loads, or None."""
    return why_no_cluster() or why_no_groups()


@contextmanager
def elastic_scene(
    bounds: str,
    matchers: int = MATCHERS,
    worker_processors: float | None = None,
    index_store: str | None = None,
    **settings: str,
) -> Iterator[ElasticScene]:
    """A standalone cluster of three workers with one core each, and a service with some matchers on it.

    `worker_processors` is the share of a processor of each worker. With an address as `index_store`,
    executors fetch the slices' files from there. `settings` are the service's, as environment variables.
    """
    os.environ |= {
        "FIELDFARE_MATCHERS": str(matchers),
        "FIELDFARE_PARTITIONING": "hash",
        "FIELDFARE_ELASTIC": bounds,
        **settings,
    }
    with (
        tempfile.TemporaryDirectory(prefix="elastic-") as folder,
        SparkCluster(WORKERS, cpu_limit=worker_processors) as cluster,
        Service(
            Path(folder) / "data", ServicePlaces(master=cluster.address, index_store=index_store)
        ) as service,
    ):
        service.wait_until_ready()
        yield ElasticScene(service)


def came_after_ms(
    publisher: Publisher, came: dict[str, list[tuple[int, float]]]
) -> list[tuple[float, float]]:
    """The time when each event was sent, by the monotonic clock, and its delay in milliseconds."""
    return sorted(
        (sent_s, 1000 * (came[place][0][1] - sent_s))
        for place, sent_s in publisher.sent.items()
        if place in came
    )
