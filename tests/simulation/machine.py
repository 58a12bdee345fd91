"""The service's processes on a machine that is simulated: their own code, other threads, clocks and disks.

The gateway is all there, from its ASGI application down, and so is the indexer. Of the pipeline there is its
loop, and what plans batches, matches ranges, follows the log, recovers, and looks at the past; see `spark`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1] / "matching"))

from naive_library import NAIVE

from fieldfare.delivery.delivery import Delivery
from fieldfare.delivery.read_scheduler import ReadGroup
from fieldfare.delivery.sessions import Lease, Session
from fieldfare.gateway.app import create_app
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.delivery.match_log_follower import MatchLogFollower
from fieldfare.gateway.delivery.waiter import Waiter
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.versions import Closings
from fieldfare.partitioning import ONE_SLICE, HashPartitioning, Partitioning
from fieldfare.pipeline.indexer import Indexer
from fieldfare.pipeline.placing import SlicesBuilder
from fieldfare.planning.cuts import Cut, CutRequest, CutSettings
from fieldfare.runtimes.indexer import following
from fieldfare.runtimes.indexer.index_writer import SnapshotSettings
from fieldfare.runtimes.indexer.snapshot_builder import Built, build_snapshots
from fieldfare.runtimes.spark import replay_planner
from fieldfare.storage.errors import StorageError

from .disk import Disk, IndexFile, MemoryQuarantine, SmallFile, link_file
from .spark import run_driver
from .steps import (
    Event,
    Executor,
    Loop,
    Now,
    Pool,
    Process,
    Queue,
    Semaphore,
    Steps,
    Threading,
    Time,
    pause,
    wait,
)

SLOW_LOOKS, SLOW_LOOK_S = 0.2, 0.3
"""The share of slow reads of a block, and their maximum time in seconds; subscribers connect meanwhile."""


class SomeSettings(GatewaySettings):
    """A gateway's knobs, on a disk of the simulation."""

    @property
    def folder(self) -> Any:
        return Now.machine.disk.folder


class NoPushes:
    """Nobody has a push address."""

    def observe(self) -> None: ...


class NoKeys:
    """Nobody needs a key."""

    def keys(self) -> list[Any]:
        return []

    def has_any(self) -> bool:
        return False

    def forget_revoked(self, before_ms: int, most: int) -> int:
        return 0

    def close(self) -> None: ...


class NothingDelayed:
    """Nobody has events wait for their time."""

    def held(self) -> dict[str, Any]:
        return {}

    def cancel_some(self, space: str, limit: int) -> list[Any]:
        return []

    def next_due_ms(self) -> int | None:
        return None

    def forget(self, before_ms: int, limit: int) -> int:
        return 0


class OneGateway(Gateway):
    """A gateway that sends to no address."""

    def _make_pushes(self) -> Any:
        return NoPushes()


class Snapshots:
    """Snapshots that a fiber builds; stands in the place of `SnapshotBuild`."""

    problem = "it was killed"

    def __init__(self, revision: int, floor: int, wanted: Mapping[str, Cut]) -> None:
        self.revision = revision
        self._wanted = wanted
        self.started_s = Time.monotonic()
        self.is_running = True
        self._built: Built | None = None
        self._floor = floor
        process = Now.steps.process
        assert process is not None
        process.spawn(self._build, "snapshots")

    @classmethod
    def start(cls, folder: Any, revision: int, floor: int, wanted: Mapping[str, Cut]) -> Snapshots:
        return cls(revision, floor, wanted)

    def _build(self) -> None:
        disk = Now.machine.disk
        try:
            newest = disk.open_index_store("").newest()
            spaces = newest.spaces if newest else {}
            cuts = {name: HashPartitioning(cut.matchers) for name, cut in self._wanted.items()}

            def cut_of(space: str) -> Partitioning:
                return cuts.get(space) or (spaces[space].partitioning if space in spaces else ONE_SLICE)

            built = build_snapshots(disk.open_registry(""), self.revision, self._floor, cut_of)
            files: dict[str, Any] = {}
            for space, parts in built.items():
                files[space] = [
                    IndexFile(disk.index, f"built-{self.revision}-{space}-{n}") for n in range(len(parts))
                ]
                for file, part in zip(files[space], parts, strict=True):
                    part.save(file)
            self._built = Built(files, cuts)
        except StorageError as error:
            self.problem = str(error)
        self.is_running = False

    def result(self) -> Any:
        return self._built

    def kill(self) -> None:
        self.is_running = False

    close = kill


def _save(real: Callable[..., Any]) -> Callable[..., Any]:
    def save(self: Any, path: Any) -> int:
        if isinstance(path, IndexFile):
            path.save(self)
            return 0
        return real(self, path)

    return save


def _open(real: Callable[..., Any]) -> Any:
    def open_file(path: Any, **options: Any) -> Any:
        return path.open() if isinstance(path, IndexFile) else real(path, **options)

    return staticmethod(open_file)


def _write_file(path: SmallFile, write: Callable[[Any], object]) -> int:
    return path.write(write)


OPENERS = ("open_event_log", "open_registry", "open_index_store", "open_match_log")
STANDING_IN: dict[str, dict[str, Any]] = {
    "gateway.context": {
        "open_keys": lambda url: NoKeys(), "open_delayed": lambda url: NothingDelayed(),
        "make_folder": lambda folder: None,
    },
    "gateway.admission.matching_time": {"time": Time},
    "gateway.writer": {"threading": Threading, "queue": Queue, "time": Time},
    "gateway.delivery.match_log_follower": {"time": Time, "ThreadPoolExecutor": Executor},
    "gateway.delivery.backlog": {"time": Time},
    "gateway.delivery.backlogs": {"threading": Threading, "time": Time, "ThreadPoolExecutor": Executor},
    "gateway.delivery.replays": {},
    "gateway.delivery.records": {"threading": Threading},
    "gateway.delivery.service": {"time": Time},
    "gateway.delivery.rate_limiter": {"time": Time},
    "gateway.delivery.waiter": {"time": Time},
    "gateway.filter_warnings": {"threading": Threading, "time": Time},
    "gateway.places": {"time": Time},
    "gateway.publishing.delayed": {"time": Time},
    "gateway.routes.events": {"time": Time},
    "gateway.routes.acks": {"time": Time},
    "gateway.routes.filters": {"threading": Threading},
    "gateway.fair_limiter": {"ThreadPoolExecutor": Executor},
    "gateway.subscriptions": {"time": Time},
    "gateway.subscription_store": {"time": Time},
    "gateway.transports.stream_sender": {"time": Time},
    "gateway.transports.pull": {"time": Time},
    "gateway.transports.heartbeats": {"time": Time},
    "gateway.maintenance.background": {"time": Time},
    "gateway.maintenance.pipeline_figures": {"threading": Threading, "time": Time},
    "gateway.maintenance.space_times": {"time": Time},
    "gateway.maintenance.figures": {
        "threading": Threading, "time": Time, "disk_free_bytes": lambda path: 1 << 40,
    },
    "gateway.maintenance.rounds": {"threading": Threading},
    "gateway.maintenance.replays": {
        "shutil": SimpleNamespace(
            rmtree=lambda path, ignore_errors: Now.machine.disk.remove_replay(path.name)
        )
    },
    "gateway.maintenance.restored": {},
    "gateway.maintenance.unused": {"time": Time},
    "runtimes.machines": {"time": Time},
    "runtimes.indexer.following": {"time": Time, "LOOK_S": 0.3, "PACE_S": 0.6, "KEPT_S": 1.0},
    "runtimes.indexer.index_writer": {
        "time": Time, "SnapshotBuild": Snapshots, "Indexer": partial(Indexer, library=NAIVE)
    },
    "runtimes.indexer.snapshot_builder": {"SlicesBuilder": partial(SlicesBuilder, library=NAIVE)},
    "runtimes.process.heartbeat": {"time": Time, "write_file": _write_file, "link_file": link_file},
    "runtimes.spark.batch_planner": {"time": Time},
    "runtimes.spark.following": {
        "time": Time, "LOOK_S": 0.3, "LOOK_MAX_S": 2.0, "OPEN_EVERY_S": 0.5, "STANDBY_WAIT_S": 1.0
    },
    "runtimes.spark.heartbeat": {},
    "runtimes.spark.match_loop": {
        "time": Time, "threading": Threading, "ThreadPoolExecutor": Pool, "wait": wait,
        "OVERLAP_S": 0.5, "STOPPED_S": 1.5, "BATCHES_AFTER_S": 4.0, "LATE_S": 3.0, "END_WAIT_S": 4.0,
    },
    "runtimes.spark.replay_planner": {},
    "runtimes.spark.replay_task": {"build_part": partial(build_part, library=NAIVE)},
    "runtimes.spark.range_task": {},
    "runtimes.spark.recovery": {},
    "runtimes.spark.spent_time": {"time": Time},
    "runtimes.spark.suspects_file": {"write_file": _write_file},
    "storage.folder": {},
}  # fmt: skip
"""By module, what stands in the place of what it has imported."""


class Watch:
    """Says that the registry may have changed."""

    def __init__(self, path: Any) -> None: ...

    def changed(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> None:
        Time.sleep(following.LOOK_S)

    def close(self) -> None: ...


@contextmanager
def standing_in() -> Iterator[None]:
    """While this is open the service's modules use what is simulated."""
    with ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        for path, names in STANDING_IN.items():
            module = importlib.import_module(f"fieldfare.{path}")
            for name, value in names.items():
                put(module, name, value)
            for name in OPENERS:
                if hasattr(module, name):
                    put(module, name, partial(_opened, name))
            if hasattr(module, "Quarantine"):
                put(module, "Quarantine", MemoryQuarantine)
        for module in (following, replay_planner):
            put(module, "SqliteWatch", Watch)
        put(following, "load_kernels", lambda: None)
        put(
            SnapshotSettings, "is_due", lambda self, delta_rows, rows: delta_rows >= Now.machine.snapshot_rows
        )
        for kind in (Part, Closings):
            put(kind, "save", _save(kind.save))
            put(kind, "open", _open(kind.open))
        for kind in (Delivery, ReadGroup, Lease, Session, Waiter):
            put(kind, "__hash__", lambda self: 1)  # where it lies in memory must not say whose turn it is
        put(MatchLogFollower, "_read_matches", _interrupted(MatchLogFollower._read_matches))
        maintenance = importlib.import_module("fieldfare.gateway.maintenance.replays").ReplayMaintenance
        put(maintenance, "_folders", lambda self: Now.machine.disk.replay_folders())
        yield


def _interrupted(look: Callable[..., Any]) -> Callable[..., Any]:
    """Return a read of a block that is followed by steps of others, before its result is known."""

    def interrupted(*arguments: Any) -> Any:
        found = look(*arguments)
        pause()
        random = Now.steps.random
        if random.random() < SLOW_LOOKS:
            Time.sleep(random.random() * SLOW_LOOK_S)
        return found

    return interrupted


def _opened(name: str, url: str, *more: Any) -> Any:
    return getattr(Now.machine.disk, name)(url, *more)


class Machine:
    """One machine: a disk, and the processes that run.

    Attributes
    ----------
    app, loop
        The gateway's, while it serves.
    crashes
        How often a gateway, or all of the machine, was ended.
    """

    def __init__(self, steps: Steps, disk: Disk, settings: SomeSettings, snapshot_rows: int) -> None:
        Now.machine = self
        self.steps = steps
        self.disk = disk
        self.settings = settings
        self.snapshot_rows = snapshot_rows
        self.app: Any = None
        self.loop: Loop | None = None
        self.crashes = 0
        self.processes: dict[str, Process] = {}
        self.slots = Semaphore(1)
        self.tasks: list[Any] = []
        self.on_end: list[Callable[[], None]] = []
        self.said: list[str] = []
        for name in PROCESSES:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a process that is not there."""
        if name in self.processes:
            return
        process = self.processes[name] = Process(self.steps, name)
        process.spawn(partial(PROCESSES[name], self, process), name)

    def kill(self, name: str) -> None:
        """End a process; the supervisor starts it again."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        self._complain(process)
        process.kill()
        if name == "gateway":
            self.app = self.loop = None
            self.crashes += 1
            for end in self.on_end:
                end()
        self.steps.at(self.steps.now_s + self.steps.random.random() * 2, partial(self.start, name))

    def power_failure(self) -> None:
        """All end at once, and what was not synced may go."""
        for name in list(self.processes):
            self.kill(name)
        self.disk.fail(self.steps.random)

    def kill_task(self) -> bool:
        """End a task of the pipeline's: Spark tells so; whether there was one."""
        running = [task for task in self.tasks if not task.is_over]
        if running:
            running[0].die()
        return bool(running)

    def look(self) -> None:
        """See to processes that have ended by themselves."""
        for name, process in list(self.processes.items()):
            if process.failures:
                self.kill(name)

    def _complain(self, process: Process) -> None:
        """Whatever the code did not expect is a mistake of its own."""
        for error in process.failures:
            if not isinstance(error, StorageError):
                self.said.append(f"{process.name} ended: {error!r}")
        for loop in process.loops:
            self.said += [f"{process.name}: {each}" for each in loop.failures]


def run_gateway(machine: Machine, process: Process) -> None:
    """The gateway's process."""
    gateway = OneGateway(machine.settings)
    app = create_app(gateway)
    loop = Loop(process)

    async def serve() -> None:
        gateway.writer.start()
        gateway.deliveries.start()
        gateway.space_removal.start()
        gateway.background.start()
        machine.app, machine.loop = app, loop

    loop.call_soon(lambda: loop.create_task(serve()))


def run_indexer(machine: Machine, process: Process) -> None:
    """The indexer's process."""
    # Each time it starts it is told to hold spaces otherwise: it cuts them anew while all goes on.
    wish = CutRequest("hash", 1 + machine.steps.random.randrange(3))
    following.run_indexer(machine.disk.folder, Event(), CutSettings(wish))  # type: ignore[arg-type]


PROCESSES: dict[str, Callable[[Machine, Process], None]] = {
    "gateway": run_gateway,
    "indexer": run_indexer,
    "driver": run_driver,
}
