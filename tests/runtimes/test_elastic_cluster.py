"""An elastic service on a real Spark cluster: slices move while events flow; drivers and executors die."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from service_support import Api, RunningService, command_line, descendants, until

from fieldfare.elasticity import Configuration
from fieldfare.elasticity.messages import SliceMove
from fieldfare.runtimes.process.heartbeat import read_beat
from fieldfare.storage.elastic import ElasticLoads, ElasticRecord, wish
from fieldfare_lab.cpu_group import why_no_groups
from fieldfare_lab.feeding import Feed, Reader, subscribe_scores
from fieldfare_lab.spark_cluster import SparkCluster, why_no_cluster

pytestmark = pytest.mark.slow

MATCHERS = 6
START_S = 420.0
ATTRIBUTES, DOMAIN = 4, 1000
SCORES = 20_000
"""Number of filters computed for each event that overload one executor of half a core."""


class ElasticScene:
    """A cluster of three workers, and a service that may use some of its executors."""

    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        elastic: str,
        cpu_limit: float | None = None,
        **settings: object,
    ) -> None:
        self._folder = folder
        self.cluster = stack.enter_context(SparkCluster(3, cpu_limit=cpu_limit))
        stack.callback(self.stop)
        self.serve(elastic, **settings)
        self.api = Api(self.service.url)
        self.api.put_all(
            "default", {"all": "data.n >= 0", **{f"s{i}": f"data.n = {-i - 1}" for i in range(60)}}
        )

    def serve(self, elastic: str, **settings: object) -> None:
        """Start the service, with these bounds for hosts."""
        self.service = RunningService(
            self._folder / "data",
            master=self.cluster.address,
            matchers=MATCHERS,
            partitioning="hash",
            elastic=elastic,
            **settings,
        )
        self.service.wait_ready(START_S)

    def begin(self, pause_s: float = 0.02) -> None:
        """Let events come."""
        self.feed = Feed(self.service.url, pause_s, ATTRIBUTES, DOMAIN)
        self.reader = Reader(self.service.url, "all")
        self.feed.start()
        self.reader.start()

    def stop(self) -> None:
        if self.service.process.poll() is None:
            self.service.process.terminate()
            self.service.process.wait(60)

    @property
    def record(self) -> ElasticRecord:
        return ElasticRecord.read(self.service.folder.elastic)

    @property
    def configuration(self) -> Configuration:
        found = self.record.configuration
        assert found is not None
        return found

    def loads(self) -> ElasticLoads | None:
        """Return the service's present loads; None if they are those of an earlier service."""
        found = ElasticLoads.read(self.service.folder.elastic_loads)
        return found if found is not None and time.time() - found.time_ms / 1000 < 3 else None

    def activity(self) -> str:
        """What the loop does, as the last heartbeat says."""
        return str(read_beat(self.service.folder.heartbeat).get("activity"))

    def is_settled(self) -> bool:
        """All slices run where the configuration says, on executors that are warm."""
        loads, record = self.loads(), self.record
        if loads is None or record.configuration is None:
            return False
        places = record.configuration.places
        return (
            not record.configuration.moves
            and not any(place.to or place.is_lost for place in places.values())
            and {each.slice: each.host for each in loads.slices}
            == {name: place.host for name, place in places.items()}
            and all(host.is_warm for host in loads.hosts)
        )

    def settle(self) -> None:
        until(self.is_settled, START_S, self.logs(), every_s=0.2)

    def flow(self, messages: int = 30) -> None:
        """Wait until `messages` more messages arrived, of events that were published from now on."""
        published = max(self.feed.stands.values(), default=0)
        until(
            lambda: sum(came[0][0] > published for came in list(self.reader.came.values())) >= messages,
            180,
            self.logs(),
        )

    def executor_pids(self) -> dict[str, int]:
        """The Java process of each executor."""
        found = {}
        for worker in self.cluster.workers:
            assert worker._process is not None
            for pid in descendants(worker._process.pid):
                words = command_line(pid).split()
                if "--executor-id" in words:
                    found[words[words.index("--executor-id") + 1]] = pid
        return found

    def other_host(self, name: str) -> str:
        at = self.configuration.places[name].host
        return next(host for host in self.configuration.hosts if host != at)

    def move(self, name: str) -> str:
        to = self.other_host(name)
        wish(self.service.folder, SliceMove(name, to))
        return to

    def check(self) -> None:
        """Every event came, and once."""
        stands = self.feed.stop()
        until(lambda: len(self.reader.came) >= len(stands), why=self.logs())
        self.reader.stop()
        assert {place: came[0][0] for place, came in self.reader.came.items()} == stands
        assert all(len(came) == 1 for came in self.reader.came.values())

    def logs(self) -> str:
        paths = [self.service.folder.log_of("pipeline"), self.service.folder.spark_log]
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in paths if path.exists())


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    if (reason := why_no_cluster()) is not None:
        pytest.skip(reason)
    with ExitStack() as stack:
        yield stack


def test_slices_move_between_executors_and_nothing_is_lost_after_kills(
    stack: ExitStack, tmp_path: Path
) -> None:
    """A slice is moved by hand; another move loses its driver, a third the executor that it goes to."""
    scene = ElasticScene(tmp_path, stack, "2..3")
    scene.begin()
    scene.settle()
    scene.flow()
    assert len(scene.configuration.hosts) == 2
    until(lambda: len(scene.executor_pids()) == 2, 60, scene.logs())

    to = scene.move("M:1")
    until(lambda: scene.record.moves, 60, scene.logs())
    scene.settle()
    assert scene.configuration.places["M:1"].host == to
    scene.flow()
    loads = until(scene.loads)
    assert loads.granted > 0
    assert sum(host.cpu for host in loads.hosts) > 0
    assert all(host.cpu < 1.5 for host in loads.hosts)

    scene.move("M:2")
    until(lambda: scene.configuration.moves or scene.configuration.moving, 10, scene.logs(), every_s=0.001)
    killed_s = time.monotonic()
    os.kill(scene.service.driver, signal.SIGKILL)
    scene.flow()
    print(f"driver killed: nothing came for {scene.reader.longest_gap_s(killed_s, time.monotonic()):.1f} s")
    scene.settle()
    assert {place.host for place in scene.configuration.places.values()} <= set(scene.configuration.hosts)

    to = scene.move("M:3")
    until(lambda: scene.configuration.moves or scene.configuration.moving, 10, scene.logs(), every_s=0.001)
    bodies = {host.host: host.executor for host in until(scene.loads).hosts}
    killed_s = time.monotonic()
    os.kill(scene.executor_pids()[bodies[to]], signal.SIGKILL)
    scene.flow()
    print(f"executor killed: nothing came for {scene.reader.longest_gap_s(killed_s, time.monotonic()):.1f} s")
    until(
        lambda: len(scene.configuration.hosts) >= 2 and scene.is_settled(), START_S, scene.logs(), every_s=0.2
    )
    scene.check()


def test_an_executor_is_added_while_events_flow(stack: ExitStack, tmp_path: Path) -> None:
    """The floor rises from one to two: an executor comes, is made warm, and takes half of the slices.

    A task follows the log while one executor has all of them, and the time of its matching is the load.
    """
    scene = ElasticScene(tmp_path, stack, "1")
    scene.settle()
    until(lambda: len(scene.executor_pids()) == 1, 60, scene.logs())
    until(lambda: scene.activity() == "follows", 60, scene.logs())
    event = {"specversion": "1.0", "source": "/first", "type": "t", "data": {"m": 1}}

    def has_load() -> bool:
        scene.api.publish("default", [event | {"id": str(number)} for number in range(200)])
        return sum(host.cpu for host in until(scene.loads).hosts) > 0.001

    until(has_load, 60, scene.logs())
    assert scene.activity() == "follows"
    scene.stop()
    scene.serve("2")
    scene.begin()
    until(lambda: len(scene.configuration.hosts) == 2, START_S, scene.logs())
    scene.settle()
    assert scene.record.decisions[-1].reason == "floor: 1 hosts of at least 2"
    at = [place.host for place in scene.configuration.places.values()]
    assert sorted(at.count(host) for host in scene.configuration.hosts) == [MATCHERS // 2] * 2
    assert len(scene.executor_pids()) == 2
    scene.flow()
    until(lambda: scene.activity() == "follows", 60, scene.logs())
    scene.flow()
    scene.check()


def test_a_service_grows_with_its_load_and_shrinks_afterwards(stack: ExitStack, tmp_path: Path) -> None:
    """Filters that are computed for every event are more than one executor can do, until others help."""
    if (reason := why_no_groups()) is not None:
        pytest.skip(reason)
    scene = ElasticScene(tmp_path, stack, "1..3", cpu_limit=0.5, elastic_calm=5)
    subscribe_scores(scene.service.url, SCORES, ATTRIBUTES, DOMAIN)
    scene.settle()
    assert len(scene.configuration.hosts) == 1
    assert [host.cores for host in until(scene.loads).hosts] == [0.5]
    scene.begin(0.008)
    until(lambda: len(scene.configuration.hosts) > 1, START_S, scene.logs())
    grown = next(each for each in scene.record.decisions if each.new_hosts)
    print(f"grown: {grown.reason}")
    assert grown.reason.startswith("global: mean CPU ")
    assert grown.is_done
    scene.settle()
    assert {place.host for place in scene.configuration.places.values()} == set(scene.configuration.hosts)
    scene.flow()
    stopped_ms = 1000 * time.time()
    scene.check()
    until(lambda: len(scene.configuration.hosts) == 1, START_S, scene.logs())
    shrunk = [each for each in scene.record.decisions if each.time_ms > stopped_ms and each.released]
    print(*(f"shrunk: {each.reason}" for each in shrunk), sep="\n")
    assert shrunk
    assert all(each.reason.startswith(("global: mean CPU ", "local: ")) for each in shrunk)
    until(lambda: len(scene.executor_pids()) == 1, 60, scene.logs())


def test_a_dry_run_logs_decisions_and_does_nothing(stack: ExitStack, tmp_path: Path) -> None:
    """Three idle executors where two may be: one is too many, and stays."""
    scene = ElasticScene(tmp_path, stack, "1..2", elastic_dry_run=1)
    scene.begin()
    scene.settle()
    until(lambda: scene.record.decisions, START_S, scene.logs())
    decision = scene.record.decisions[0]
    assert decision.reason == "ceiling: 3 hosts of at most 2"
    assert decision.released
    assert not decision.is_done
    assert until(scene.loads).dry_run
    scene.flow()
    assert len(scene.configuration.hosts) == 3
    assert len(scene.executor_pids()) == 3
    assert not scene.record.moves
    scene.check()
