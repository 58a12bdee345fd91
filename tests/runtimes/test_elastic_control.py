"""The thread that grows and shrinks a service, without Spark: its record, and requests of users."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from fieldfare.elasticity.bounds import HostSchedule
from fieldfare.elasticity.executor_hosts import MapSlices, SlicesMapped, SlicesPlaced
from fieldfare.elasticity.manager import KeepConfiguration, ManagerSettings
from fieldfare.elasticity.messages import MigrationRequest, Pulse, SliceMove
from fieldfare.runtimes import machines
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.distributed.tasks import Opened, PinnedTask, Spread
from fieldfare.runtimes.spark.elastic import control as controls
from fieldfare.runtimes.spark.elastic.control import ElasticControl, ElasticSettings
from fieldfare.runtimes.spark.elastic.executors import Executor
from fieldfare.runtimes.spark.elastic.jobs import PinnedJobs
from fieldfare.storage import elastic as records
from fieldfare.storage.elastic import ElasticRecord, take_move_request, wish
from fieldfare.storage.folder import DataFolder


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    folder = DataFolder(tmp_path / "data")
    folder.make()
    return folder


def new_control(folder: DataFolder) -> ElasticControl:
    context = MagicMock()
    context.master = "spark://127.0.0.1:7077"
    return ElasticControl(context, folder, ElasticSettings(HostSchedule.parsed("2..4")), 3)


@asynccontextmanager
async def begun(folder: DataFolder) -> AsyncIterator[ElasticControl]:
    """A control that has stored its first configuration, of three slices on two hosts."""
    control = new_control(folder)
    control._start_machines()
    await settle(control)
    try:
        yield control
    finally:
        await control._runner.close()


async def settle(control: ElasticControl) -> None:
    """Wait until no message and no answer is on its way."""
    while control._runner._asks or not control._runner.is_idle:
        await asyncio.sleep(0)


def fill_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(records, "write_checked", refuse)


def test_a_decision_that_a_full_disk_rejects_has_no_effect(folder: DataFolder, monkeypatch) -> None:
    """It was shown as done, and would have been written down as such later."""

    async def run() -> None:
        async with begun(folder) as control:
            kept = control._record.configuration
            assert kept is not None and ElasticRecord.read(folder.elastic).configuration == kept
            with monkeypatch.context() as full:
                fill_disk(full)
                with pytest.raises(OSError, match="No space"):
                    control._asked_for(MigrationRequest((SliceMove("M:1", "host2"),), 0, (), "by hand"))
                changed = kept.changed(moves=(SliceMove("M:1", "host2"),))
                with pytest.raises(OSError, match="No space"):
                    await control._answer("manager", KeepConfiguration(changed))
            assert (control._record.decisions, control._record.configuration) == ([], kept)
            assert control._runner.is_idle and control._manager.configuration == kept
            control._asked_for(MigrationRequest((SliceMove("M:2", "host1"),), 0, (), "again"))
            assert [each.reason for each in ElasticRecord.read(folder.elastic).decisions] == ["again"]

    asyncio.run(run())


def test_a_move_is_stored_once_a_full_disk_has_space_again(folder: DataFolder, monkeypatch, caplog) -> None:
    async def run() -> None:
        async with begun(folder) as control:
            with monkeypatch.context() as full:
                control._asked_for(MigrationRequest((SliceMove("M:2", "host1"),), 0, (), "by hand"))
                fill_disk(full)
                await settle(control)
            assert "KeepConfiguration of manager failed: [Errno 28] No space left on device" in caplog.text
            assert not control._record.configuration.moves
            control._manager._said_s.clear()  # `again_s` has passed
            control._runner.dispatch("manager", Pulse())
            await settle(control)
            assert ElasticRecord.read(folder.elastic).configuration.moves == (SliceMove("M:2", "host1"),)

    asyncio.run(run())


def test_an_invalid_record_is_replaced_by_a_new_one(folder: DataFolder, caplog) -> None:
    """Hosts that are gone: slices were placed there for ever, and nothing more was decided."""

    async def run() -> None:
        async with begun(folder):
            text = folder.elastic.read_text()
        folder.elastic.write_text(text.replace('"hosts":["host1","host2"]', '"hosts":["host7"]'))
        async with begun(folder) as control:
            assert "hosts and slices are placed again" in caplog.text
            kept = ElasticRecord.read(folder.elastic).configuration
            assert kept == control._manager.configuration
            assert kept.hosts == ("host1", "host2")

    asyncio.run(run())


def test_a_machine_that_fails_at_its_pulse_has_another(folder: DataFolder, monkeypatch) -> None:
    """Each pulse sets the timer of the next: it beat no more."""
    monkeypatch.setattr(machines, "RETRY_S", 0.0)
    monkeypatch.setattr("fieldfare.elasticity.executor_hosts.PULSE_S", 0.0)
    beats = 0

    def beat(now: float) -> list[object]:
        nonlocal beats
        beats += 1
        return [1 / 0] if beats == 1 else []

    async def run() -> None:
        async with begun(folder) as control:
            monkeypatch.setattr(control._hosts, "_beat", beat)
            async with asyncio.timeout(60):
                while beats < 3:
                    await asyncio.sleep(0)

    asyncio.run(run())


def test_a_requested_move_waits_for_messages_to_the_manager(folder: DataFolder) -> None:
    """The manager takes one request at a time: this one was noted as done, and was not."""

    async def run() -> None:
        async with begun(folder) as control:
            wish(folder, SliceMove("M:1", "host2"))
            request = MigrationRequest((SliceMove("M:2", "host1"),), 0, (), "local: too much")
            monkeypatch_decide(control, request)
            control._runner.dispatch("enforcer", "probes")  # its request is on its way to the manager
            control._observe()
            assert [each.reason for each in control._record.decisions] == ["local: too much"]
            assert take_move_request(folder) == SliceMove("M:1", "host2")

    asyncio.run(run())


def monkeypatch_decide(control: ElasticControl, request: MigrationRequest) -> None:
    """Have the enforcer send this request at its next message."""
    control._enforcer.handle = lambda message, now: [controls.Send(controls.DECISIONS, request)]


def test_a_wish_is_taken_though_the_machines_have_a_pulse_each_second(folder: DataFolder) -> None:
    """It was looked for in the moment of the pulses only, and with each of them something is on its way."""

    async def run() -> None:
        async with begun(folder) as control:
            wish(folder, SliceMove("M:1", "host2"))
            for name in ("manager", "hosts"):
                control._runner.dispatch(name, Pulse())
            async with asyncio.timeout(60):
                while not control._record.decisions:
                    control._observe()
                    await asyncio.sleep(0)
            assert [each.reason for each in control._record.decisions] == ["by hand"]

    asyncio.run(run())


def test_the_thread_counts_work_and_ends_with_close(folder: DataFolder) -> None:
    """Work that comes after the end is ignored: the query's last batch may report it then."""
    control = new_control(folder)
    control.start(lambda: None, lambda *_: None)
    try:
        until(lambda: control._record.configuration is not None)
        control.worked(1, [], [], 1000.0)
        until(lambda: control._hosts._works)
    finally:
        control.close()
    control._thread.join(60)
    assert not control._thread.is_alive() and control._loop.is_closed()
    control.worked(2, [], [], 1.0)
    control.close()


class Cluster:
    """Executors that are there once they are requested."""

    def __init__(self) -> None:
        self.count = 0

    def request(self, count: int) -> None:
        self.count = count

    def seen(self) -> dict[str, Executor]:
        return {str(i): Executor(str(i), f"executor_localhost_{i}", 1) for i in range(self.count)}


def test_a_slice_that_a_user_moves_is_placed_at_its_new_host(folder: DataFolder, monkeypatch) -> None:
    """All of the way on the control's thread: executors come, slices are mapped, one moves by hand."""
    monkeypatch.setattr("fieldfare.elasticity.executor_hosts.PULSE_S", 0.02)
    monkeypatch.setattr(controls, "SETTINGS", ManagerSettings(0.02, 0.2, 600.0, 600.0))
    monkeypatch.setattr(controls, "LOOK_S", 0.01)
    monkeypatch.setattr(
        ElasticControl, "_open", lambda self, wanted: SlicesMapped(wanted.executor, wanted.slices)
    )
    control = new_control(folder)
    control._executors = Cluster()
    control.start(lambda: None, lambda *_: None)
    try:
        until(lambda: set(control._placed.values()) == {"0", "1"} and len(control._placed) == 3)
        places = control._manager.configuration.places
        name, before = "M:1", control._placed["M:1"]
        to = next(host for host in ("host1", "host2") if host != places[name].host)
        wish(folder, SliceMove(name, to))
        until(lambda: control._placed[name] != before)
        until(lambda: ElasticRecord.read(folder.elastic).configuration.places[name].host == to)
        record = ElasticRecord.read(folder.elastic)
        assert [each.reason for each in record.decisions] == ["by hand"]
        assert len(control.tasks()) == 2 and all(task.location for task in control.tasks())
    finally:
        control.close()


def test_connected_tasks_map_slices_or_else_a_job_does(folder: DataFolder, monkeypatch) -> None:
    control = new_control(folder)
    control._executors = Cluster()
    control._seen = {"1": Executor("1", "executor_localhost_1", 1)}
    ran_at = iter(["2", "1"])  # the first job's task ran elsewhere, as the slot was taken
    monkeypatch.setattr(controls, "place_tasks", lambda *_: None)
    monkeypatch.setattr(controls, "open_placed", lambda *_: [Opened(next(ran_at), 1.0)])
    mapped = control._open(MapSlices("1", ("M:1",)))
    assert mapped == SlicesMapped("1", ("M:1",), is_done=True, processors=1.0)
    asked = []

    def open_connected(*request: object) -> list[Opened]:
        asked.append(request)
        return [Opened("1", 0.5), Opened("1", 2.0)]

    control._open_connected = open_connected
    mapped = control._open(MapSlices("1", ("M:1", "M:3")))
    assert mapped == SlicesMapped("1", ("M:1", "M:3"), is_done=True, processors=0.5)
    assert asked == [(control._seen["1"], (0, 2), 0)]


class Placed:
    """A control of slices at executors."""

    def __init__(self, *executors: str | None) -> None:
        self.executors = list(executors)

    def only_executor(self) -> Executor | None:
        first, *others = self.executors
        return Executor("0", first, 1) if first is not None and not others else None

    def tasks(self) -> list[PinnedTask]:
        return [PinnedTask((number,), location) for number, location in enumerate(self.executors)]

    def start(self, *given: object) -> None:
        self.on_placed, self.open_connected = given

    followed = open_all = close = lambda *_: None


def test_matchers_are_connected_where_several_executors_have_slices(folder: DataFolder) -> None:
    context = MagicMock(master="local[2]")
    control = Placed("a", "b", "c")
    batches = MicroBatchSettings(tasks=2, matchers=3)
    jobs = PinnedJobs(context, folder, batches, Spread(3, 2), control, MagicMock())
    try:
        assert jobs._connected is not None and jobs.follower is jobs._connected
        assert control.open_connected(Executor("1", "b", 1), (1,), 5) is None  # none is connected yet
        control.executors = ["a", None]  # a slice has no host
        assert jobs.follower is None
        control.executors = ["a"]
        assert jobs.follower is jobs._ranges
    finally:
        jobs.close()


def until(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_an_executor_is_the_only_one_while_it_has_all_slices(folder: DataFolder) -> None:
    placements: list[Executor | None] = []

    async def run() -> None:
        control = new_control(folder)
        control._on_placed = lambda: placements.append(control.only_executor())
        seen = [Executor("4", "executor_127.0.0.1_4", 2), Executor("5", "executor_127.0.0.2_5", 2)]
        control._seen = {each.id: each for each in seen}
        for at in ("44", "444", "445", "555", "666"):
            places = dict(zip(control._names, at, strict=False))
            control._place("hosts", SlicesPlaced(places))

    asyncio.run(run())
    assert [each and each.id for each in placements] == [None, "4", None, "5", None]


def test_the_work_of_a_task_that_follows_is_the_slices_load(folder: DataFolder) -> None:
    """Without it a busy service would look idle, and never grow."""

    async def run() -> None:
        async with begun(folder) as control:
            control._loop = asyncio.get_running_loop()
            hosts = control._hosts
            hosts._cores = {"4": 2}
            hosts._beat_s = 100.0
            for _ in range(2):  # two tasks overlap
                control.followed(0.3, 1.0)
            await asyncio.sleep(0)
            await settle(control)
            hosts._beat(101.0)
            assert sum(each.cpu for each in hosts.probes.values()) == pytest.approx(0.3)

    asyncio.run(run())
