"""Matchers that stay connected: the driver follows the log, and lets them match each range."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any

import pyarrow as pa
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "storage"))

from following_support import DEADLINE_S, wait_for, wait_until_matched
from indexing import bring_index_up_to_date
from pipeline_support import SPACES
from pyspark.sql import SparkSession
from test_match_loop import Service

from fieldfare.planning.cuts import CutSettings
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.distributed import connections as connections_module
from fieldfare.runtimes.spark.distributed import following as following_module
from fieldfare.runtimes.spark.distributed import tasks as tasks_module
from fieldfare.runtimes.spark.distributed.connections import MatcherConnections, MatchersLostError, serve
from fieldfare.runtimes.spark.distributed.following import ConnectedJobs, _ConnectedTasks, _Opening
from fieldfare.runtimes.spark.distributed.jobs import SpreadJobs
from fieldfare.runtimes.spark.distributed.tasks import Dispatch, PinnedTask, Spread, executor_here
from fieldfare.runtimes.spark.follower_hub import DriverAddress, FollowerHub, link_to
from fieldfare.runtimes.spark.following import FollowerLane
from fieldfare.runtimes.spark.match_loop import MatchLoop
from fieldfare.runtimes.spark.range_task import RANGES, RecordRange
from fieldfare.storage import open_index_store
from fieldfare.storage.errors import IndexStoreError

HERE = "127.0.0.1"
BOTH = {"a.0": b"first", "a.1": b"second"}


class Task:
    """A task in a thread; by default it answers with what it was asked, twice."""

    def __init__(
        self,
        hub: FollowerHub,
        name: str,
        answer: Callable[[bytearray], Iterable[Any]] = lambda order: [order] * 2,
    ) -> None:
        self.orders: list[bytearray] = []
        self._link = link_to(hub.address, name)
        self._answer = answer
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection = self._link.serve()
        assert connection is not None
        serve(connection, DEADLINE_S, self._carry_out)
        self._link.close()

    def _carry_out(self, order: bytearray) -> Iterator[Any]:
        self.orders.append(order)
        yield from self._answer(order)

    def wait(self) -> None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def hub() -> Iterator[FollowerHub]:
    found = FollowerHub(HERE, HERE, 0, lambda stamp: None)
    yield found
    found.close()


def test_each_task_gets_its_order_and_all_answers_come_back(hub: FollowerHub) -> None:
    connections = MatcherConnections(["a.0", "a.1"])
    with hub.receiving(connections.add):
        tasks = [Task(hub, "a.0"), Task(hub, "a.1", lambda _: [])]
        assert connections.wait(DEADLINE_S)
        for _ in range(2):
            assert list(connections.ask(BOTH)) == [b"first"] * 2
        assert list(connections.ask({"a.0": b"alone"})) == [b"alone"] * 2
        assert tasks[0].orders == [b"first", b"first", b"alone"]
        assert tasks[1].orders == [b"second"] * 2
        connections.close()
        for each in tasks:
            each.wait()


def test_a_large_answer_comes_complete(hub: FollowerHub) -> None:
    content = os.urandom(30 << 20)
    connections = MatcherConnections(["a.0"])
    with hub.receiving(connections.add):
        task = Task(hub, "a.0", lambda _: [pa.py_buffer(content), content])
        assert connections.wait(DEADLINE_S)
        assert all(each == content for each in connections.ask({"a.0": b"x"}))
        connections.close()
        task.wait()


@pytest.mark.parametrize("parts", [0, 1])
def test_an_error_of_a_task_names_its_cause_and_ends_the_task(hub: FollowerHub, parts: int) -> None:
    def answer(_: object) -> Iterator[bytes]:
        yield from [b"part"] * parts
        raise ValueError("the index is torn")

    connections = MatcherConnections(["a.0", "a.1"])
    with hub.receiving(connections.add):
        tasks = [Task(hub, "a.0"), Task(hub, "a.1", answer)]
        assert connections.wait(DEADLINE_S)
        with pytest.raises(MatchersLostError, match="ValueError: the index is torn"):
            list(connections.ask(BOTH))
        tasks[1].wait()
        connections.close()
        tasks[0].wait()


def test_a_matcher_that_hangs_or_dies_is_lost(hub: FollowerHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections_module, "ANSWER_S", 0.1)
    goes_on = threading.Event()

    def hangs(_: object) -> Iterator[bytes]:
        goes_on.wait(DEADLINE_S)
        yield b"late"

    connections = MatcherConnections(["a.0"])
    with hub.receiving(connections.add):
        task = Task(hub, "a.0", hangs)
        assert connections.wait(DEADLINE_S)
        with pytest.raises(MatchersLostError, match=r"the task a\.0 was lost: timed out"):
            list(connections.ask({"a.0": b"x"}))
        connections.close()
        goes_on.set()
        task.wait()
    with pytest.raises(MatchersLostError, match=r"the task a\.0 was lost"):
        list(connections.ask({"a.0": b"x"}))


def test_a_copy_stays_connected_and_gets_no_orders(hub: FollowerHub) -> None:
    """If a copy that Spark starts ended, Spark would end the task of which it is a copy."""
    connections = MatcherConnections(["a.0"])
    with hub.receiving(connections.add):
        first = Task(hub, "a.0")
        assert connections.wait(DEADLINE_S)
        copy = Task(hub, "a.0")
        wait_for(lambda: len(connections._copies) == 1)
        assert list(connections.ask({"a.0": b"x"})) == [b"x"] * 2
        assert not copy.orders
        connections.close()
        first.wait()
        copy.wait()


def test_tasks_of_other_jobs_and_late_ones_end(hub: FollowerHub) -> None:
    connections = MatcherConnections(["a.0", "a.1"])
    with hub.receiving(connections.add):
        Task(hub, "b.0").wait()
        first = Task(hub, "a.0")
        assert not connections.wait(0.05)
        connections.close()
        first.wait()
        Task(hub, "a.1").wait()
    Task(hub, "a.1").wait()
    assert not connections.is_open


def test_a_stranger_gets_no_orders(hub: FollowerHub) -> None:
    connections = MatcherConnections(["a.0"])
    with hub.receiving(connections.add):
        with socket.create_connection((HERE, hub.address.port)) as stranger:
            stranger.sendall(b"0" * 32 + b" a.0\nserve\n")
            stranger.settimeout(DEADLINE_S)
            assert stranger.recv(1) == b""
        assert not connections.wait(0.0)


def test_a_task_serves_a_connection_with_a_high_descriptor() -> None:
    """A process has a file open for each part of its index, and `select` takes no descriptor above 1023."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], min(limits[1], 2_048)), limits[1]))
    driver, low = socket.socketpair()
    with driver, socket.socket(fileno=fcntl.fcntl(low.detach(), fcntl.F_DUPFD, 1_500)) as high:
        driver.sendall(b"\0\0\0\1x")
        driver.shutdown(socket.SHUT_WR)
        serve(high, DEADLINE_S, lambda order: iter([order]))
        assert driver.recv(9) == b"\0\0\0\1x\0\0\0\0"
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Reports:
    """The work that was reported."""

    def __init__(self) -> None:
        self.times_s: list[tuple[float, float]] = []
        self.work: list[Any] = []
        self.manifests: set[int] = set()

    def __call__(self, manifest: int, tasks: Any, summaries: Any, from_s: float, to_s: float) -> None:
        self.times_s.append((from_s, to_s))
        self.manifests.add(manifest)
        self.work += [each for row in summaries for each in row["work"]]


class Scene:
    """A service with spaces cut in several ways, and its loop, whose matchers are connected."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self.service = Service(folder, seed=5)
        self.cuts = CutSettings.parsed(
            "auto", 1, [f"{SPACES[0]}=hash:3", f"{SPACES[1]}=attribute_space:2"], 1 << 40
        )
        self.service.live_a_little(60)
        bring_index_up_to_date(self.service.folder, self.cuts)
        newest = open_index_store(self.service.folder.index_url).newest()
        assert newest is not None
        context = session.sparkContext
        batches = MicroBatchSettings(tasks=2, split_bytes=2_000, matchers=max(2, newest.matchers))
        spread = Spread(batches.matchers, batches.tasks)
        self.tasks = [
            PinnedTask(tuple(range(first, spread.matchers, 2))) for first in range(min(2, spread.matchers))
        ]
        self.reports = Reports()
        hub = FollowerHub(HERE, HERE, 0, lambda stamp: None)
        self.connected = ConnectedJobs(
            context, self.service.folder, batches, spread, hub, lambda: self.tasks, self.reports
        )
        self.connected.follow_s = 3.0
        jobs = SpreadJobs(context, self.service.folder, spread, None, self.connected)
        self.loop = MatchLoop(context, self.service.folder, batches, jobs)

    def live(self, events: int) -> None:
        self.service.live_a_little(events)
        bring_index_up_to_date(self.service.folder, self.cuts)
        wait_until_matched(self.service, [])
        assert self.loop.is_active, self.loop.exception()

    def wait_for(self, kind: str) -> None:
        wait_for(lambda: self.loop.activity.kind == kind or not self.loop.is_active)
        assert self.loop.is_active, self.loop.exception()


@pytest.fixture
def scene(session: SparkSession, tmp_path: Path) -> Iterator[Scene]:
    found = Scene(session, tmp_path)
    yield found
    found.loop.stop()
    assert found.loop.exception() is None
    found.service.check()


@pytest.mark.spark
def test_the_driver_follows_with_connected_matchers_and_batches_match_a_backlog(scene: Scene) -> None:
    scene.wait_for("follows")
    until_s = time.monotonic() + 8
    while time.monotonic() < until_s:
        scene.live(4)
    assert scene.reports.work, "the driver followed"
    assert all(each["slice"] >= 0 and each["events"] for each in scene.reports.work)
    assert all(to_s - from_s > 0 for from_s, to_s in scene.reports.times_s)
    for _ in range(2):
        scene.live(200)
    scene.wait_for("follows")
    scene.live(3)


@pytest.mark.spark
def test_lost_and_failing_matchers_are_replaced_by_batches(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks are ended at any moment, and slices move."""
    random = Random(8)
    scene.wait_for("follows")
    for turn in range(12):
        scene.service.live_a_little(3)
        bring_index_up_to_date(scene.service.folder, scene.cuts)
        time.sleep(random.uniform(0, 0.02))  # so that it happens at any moment
        for each in list(scene.connected._present):
            named = list(each.connections._connections.values())
            if turn % 3 == 0:
                scene.connected.end()
            elif turn % 3 == 1 and named:
                named[0].shutdown(socket.SHUT_RDWR)
            else:
                scene.tasks = [PinnedTask(task.matchers, None) for task in reversed(scene.tasks)]
        wait_until_matched(scene.service, [])
        assert scene.loop.is_active, scene.loop.exception()
    scene.wait_for("follows")
    scene.live(3)


@pytest.mark.spark
@pytest.mark.parametrize("is_told", [True, False])
def test_while_there_is_no_place_for_matchers_there_are_batches(scene: Scene, is_told: bool) -> None:
    scene.wait_for("follows")
    scene.live(4)
    tasks, scene.tasks = scene.tasks, []
    if is_told:
        scene.connected.end()
    else:
        scene.live(4)
    wait_for(lambda: scene.loop.activity.kind != "follows")
    scene.live(4)
    assert scene.loop.activity.kind != "follows"
    scene.tasks = tasks
    scene.wait_for("follows")
    scene.live(4)


@pytest.mark.spark
def test_matchers_change_their_tasks_without_a_pause_and_map_their_slices_before(scene: Scene) -> None:
    scene.wait_for("follows")
    home = "executor_localhost_driver"
    first, second = (task.matchers for task in scene.tasks)
    scene.tasks = [PinnedTask(first, home), PinnedTask(second)]
    scene.live(4)
    wait_for(lambda: bool(scene.connected._present) and scene.connected._present[0].tasks[0].location == home)
    scene.wait_for("follows")
    newest = open_index_store(scene.service.folder.index_url).newest()
    assert newest is not None
    (present,) = scene.connected._present
    for _ in range(4):
        first, second = second, first
        opened = scene.connected.open(home, first, newest.number)
        assert opened is not None and [each.executor for each in opened] == [executor_here()]
        scene.tasks = [PinnedTask(first, home), PinnedTask(second)]
        wait_for(lambda first=first: next(iter(present.matchers.values())) == first)
        scene.live(2)
        assert scene.connected._present == [present]
    assert scene.connected.open("executor_elsewhere_1", (0,), newest.number) is None


def test_a_task_may_be_without_matchers_but_not_matchers_without_a_task() -> None:
    connected = _ConnectedTasks(
        "a", [PinnedTask((0, 1), "here"), PinnedTask((2,), "there"), PinnedTask((3,), "there")]
    )
    assert connected.matchers == {"a.0": (0, 1), "a.1": (2,), "a.2": (3,)}
    for refused in (
        [],
        [PinnedTask((0, 1, 2, 3), "elsewhere")],
        [PinnedTask((0, 1), "here"), PinnedTask((2,), "there"), PinnedTask((3,), None)],
        [PinnedTask((0, 1), "there"), PinnedTask((2,), "there"), PinnedTask((3,), "there")],
    ):
        assert not connected.assign(refused)
        assert connected.matchers == {"a.0": (0, 1), "a.1": (2,), "a.2": (3,)}
    assert connected.assign(
        [PinnedTask((0, 1), "here"), PinnedTask((3,), "there"), PinnedTask((2,), "there")]
    )
    assert connected.matchers == {"a.0": (0, 1), "a.1": (2,), "a.2": (3,)}, "slices are mapped there"
    tasks = [PinnedTask((1, 3), "there"), PinnedTask((0, 2), "there")]
    assert connected.assign(tasks)
    assert (connected.matchers, connected.tasks) == ({"a.1": (1, 3), "a.2": (0, 2)}, tasks)


class ContendedQueue(SimpleQueue[_Opening]):
    """A queue that has an item when it is asked, which another thread then takes."""

    def empty(self) -> bool:
        return False


def test_two_threads_drop_the_requests_to_map_slices() -> None:
    """The thread of the job and that of the follower close the connections at the same time."""
    connected = _ConnectedTasks("a", [PinnedTask((0,), "here")])
    connected._openings = ContendedQueue()
    for each in (connected.carry_out_openings, connected.close):
        thread = threading.Thread(target=each, daemon=True)
        thread.start()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


@pytest.mark.spark
def test_tasks_that_wait_for_slots_do_not_count_as_unreached(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else replays and warming would end following for ten minutes."""
    monkeypatch.setattr(following_module, "CONNECT_S", 0.2)
    monkeypatch.setattr(following_module, "CONNECTED_S", 0.1)
    context, folder = session.sparkContext, Service(tmp_path, seed=5).folder
    hub, freed = FollowerHub(HERE, HERE, 0, lambda stamp: None), tmp_path / "freed"
    tasks = [PinnedTask((0,)), PinnedTask((1,))]
    jobs = ConnectedJobs(
        context, folder, MicroBatchSettings(tasks=2, matchers=2), Spread(2, 2), hub, lambda: tasks, Reports()
    )

    def occupies(rows: Iterator[int]) -> Iterator[int]:
        while not freed.exists():
            time.sleep(0.01)
        yield from rows

    with ThreadPoolExecutor() as threads:
        other = threads.submit(context.parallelize(range(2), 2).mapPartitions(occupies).collect)
        wait_for(lambda: len(context.statusTracker().getActiveStageIds()) == 1)
        ended = threads.submit(jobs.follow, [FollowerLane((0,), 5.0)])
        wait_for(lambda: bool(jobs._present) and not jobs._present[0].connections.is_open)
        freed.touch()
        assert ended.result(DEADLINE_S).is_behind
        other.result(DEADLINE_S)
    assert jobs._reach._unreached == 0
    monkeypatch.setattr(FollowerHub, "address", DriverAddress(HERE, 1, ""))  # nothing listens there
    assert jobs.follow([FollowerLane((0,), 5.0)]).is_behind
    assert jobs._reach._unreached == 1
    jobs.close()


def test_a_late_task_does_not_match_with_an_index_without_the_records_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest was removed after others had matched the records, and a rebuilt index lacks the spaces."""
    service = Service(tmp_path, seed=5)
    service.live_a_little(40)
    end, opened = len(service.records), tasks_module._opened(service.folder)
    monkeypatch.setattr(opened.cache, "indexes", lambda number, stamp: {})
    read = Dispatch(service.folder, Spread(2, 1), frozenset((0, 1)))
    ranges = pa.RecordBatch.from_pylist([asdict(RecordRange(0, 0, end, 1))], RANGES)
    assert list(read(iter([ranges])))
    opened.matches.partition(0).fill(0, end)
    with pytest.raises(IndexStoreError, match="is matched already"):
        list(read(iter([ranges])))


def test_copies_of_tasks_end_where_a_job_is_to_map_slices(hub: FollowerHub) -> None:
    """A copy may have the only slot of a new executor."""
    jobs = ConnectedJobs.__new__(ConnectedJobs)
    connected = _ConnectedTasks("a", [PinnedTask((0,), "here")])
    jobs._present = [connected]
    with hub.receiving(connected.connections.add):
        tasks = [Task(hub, "a.0")]
        assert connected.connections.wait(DEADLINE_S)
        assert jobs.open("there", (0,), 7) is None
        assert connected.connections.is_open
        tasks.append(Task(hub, "a.0"))
        wait_for(lambda: connected.connections.has_copies)
        assert jobs.open("there", (0,), 7) is None
        for each in tasks:
            each.wait()


def test_slices_that_no_connected_task_maps_are_for_a_job_of_their_own() -> None:
    """The tasks end before they have mapped them, or fail."""
    for end in ("before", "meanwhile", "error"):
        connected = _ConnectedTasks("a", [PinnedTask((0, 1), "here"), PinnedTask((2,), "there")])
        opening = _Opening("there", (1,), 7, Future())
        assert not connected.request_opening(opening._replace(location="elsewhere"))
        if end == "before":
            connected.close()
            assert not connected.request_opening(opening)
            continue
        assert connected.request_opening(opening)
        if end == "error":
            with pytest.raises(KeyError):  # its tasks are not connected
                connected.carry_out_openings()
        connected.close()
        assert opening.result.result(DEADLINE_S) is None
