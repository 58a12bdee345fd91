"""The driver's thread that grows and shrinks a service: it runs the machines of ``elasticity`` on executors.

    executors, tasks' CPU ─▶ ExecutorHosts ◀─▶ Manager ◀─▶ Enforcer
                                  │               └─ configuration ─▶ elastic.json
                                  └─ open slices, request and decommission executors, place tasks

This thread runs the machines in an event loop; requests that need a Spark job run in threads of their own.
Matching never waits for them: a task that runs where its slices are not mapped maps them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf

from msgspec.structs import replace as replace_fields
from pyspark import SparkContext

from fieldfare.effects import Machine, Received, Send
from fieldfare.elasticity import (
    Configuration,
    ElasticityPolicy,
    Enforcer,
    Manager,
    ManagerSettings,
    Operators,
)
from fieldfare.elasticity.bounds import HostSchedule
from fieldfare.elasticity.executor_hosts import (
    DecommissionExecutor,
    ExecutorHosts,
    ExecutorsSeen,
    HostsWanted,
    MapSlices,
    RequestExecutors,
    SlicesMapped,
    SlicesPlaced,
    ToHost,
    Worked,
)
from fieldfare.elasticity.manager import (
    ConfigurationKept,
    ConfigurationRead,
    KeepConfiguration,
    ReadConfiguration,
)
from fieldfare.elasticity.messages import AddHost, HostReleased, MigrationRequest, ReleaseHost
from fieldfare.partitioning import NO_SLICE
from fieldfare.pipeline.manifest import Manifest
from fieldfare.runtimes.machines import MachineRunner
from fieldfare.runtimes.spark.cluster import tasks_folder
from fieldfare.runtimes.spark.distributed.loads import MatcherWork
from fieldfare.runtimes.spark.distributed.tasks import Opened, PinnedTask, place_tasks
from fieldfare.runtimes.spark.elastic.executors import Executor, Executors
from fieldfare.runtimes.spark.elastic.pinned import open_placed
from fieldfare.runtimes.spark.failures import reason
from fieldfare.runtimes.spark.index_cache import OPEN_TRIES
from fieldfare.storage import open_index_store
from fieldfare.storage.elastic import (
    Decision,
    ElasticLoads,
    ElasticRecord,
    HostLoad,
    MovesSeen,
    SliceLoadNow,
    take_move_request,
)
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.folder import DataFolder

OPERATOR = "M"
DECISIONS = "decisions"
"""The name to which the enforcer sends its requests: they are recorded before the manager gets them."""
LOOK_S = 0.2
SAY_S = 1.0
RETRY_S = 1.0
CLOSING_S = 5.0
OPENERS = 4
"""Maximum executors that are warmed at the same time."""
CALM_S = 600.0
POLICY = ElasticityPolicy(releases_per_hour=3)
"""The paper's policy, but hosts are released at most a few times per hour."""
SETTINGS = ManagerSettings(dead_after_s=45.0, start_s=180.0)
"""Time limits for replacing a dead executor; a new one takes half a minute to be warm."""

REQUESTS = (
    ReadConfiguration,
    KeepConfiguration,
    AddHost,
    ReleaseHost,
    RequestExecutors,
    DecommissionExecutor,
)
"""The machines' requests that need no Spark job."""

OpenConnected = Callable[[Executor, tuple[int, ...], int], list[Opened] | None]
"""Maps slices of matchers at an executor's connected tasks, of a manifest; None if none is connected."""

_log = logging.getLogger("fieldfare.pipeline")


@dataclass(frozen=True, slots=True)
class ElasticSettings:
    """How a service grows and shrinks: bounds for the number of hosts, and whether it only logs decisions.

    No host is released for `calm_s` seconds after hosts were added.
    """

    schedule: HostSchedule
    dry_run: bool = False
    calm_s: float = CALM_S


class ElasticControl:
    """Grows and shrinks a service with several matchers, from `start` to `close`."""

    def __init__(
        self, context: SparkContext, folder: DataFolder, settings: ElasticSettings, matchers: int
    ) -> None:
        self._context, self._folder, self._settings = context, folder, settings
        self._tasks_folder = tasks_folder(context, folder)
        self._store = open_index_store(folder.index_url)
        self._executors = Executors(context)
        self._seen: dict[str, Executor] = {}
        operators = Operators(0, {OPERATOR: matchers}, 0)
        self._names = operators.slices  # of the matchers
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._record = ElasticRecord.read_or_new(folder.elastic)
        first = Configuration(operators, {})
        kept = self._record.configuration
        if kept is not None and kept.operators != operators:
            # Cut again for another number of matchers: the same number of hosts, with other slices.
            first = replace(first, started=kept.started, version=kept.version)
            first = first.begun(max(1, len(kept.hosts)))
            self._record.configuration = None
        else:
            # A dry run leaves the cluster as it is.
            first = first.begun(
                max(1, len(self._executors.seen())) if settings.dry_run else self._bounds()[0]
            )
        self._manager = Manager(first, SETTINGS)
        self._policy = replace(POLICY, calm_s=settings.calm_s)
        self._enforcer = Enforcer(self._policy, DECISIONS)
        self._hosts = ExecutorHosts(self._names)
        self._machines: dict[str, Machine] = {
            "manager": self._manager,
            "enforcer": self._enforcer,
            "hosts": self._hosts,
        }
        self._runner = MachineRunner(
            {MapSlices: self._map_slices} | dict.fromkeys(REQUESTS, self._answer),
            {SlicesPlaced: self._place},
            self._send,
            logger=_log,
        )
        self._moves = MovesSeen()
        self._asked = self._granted = 0
        self._wanted = self._requested = 0
        self._unwanted: set[str] = set()
        self._looked_s = self._said_s = 0.0
        self._placed: Mapping[str, str] = {}
        self._on_placed: Callable[[], None] = lambda: None
        self._open_connected: OpenConnected = lambda *_: None
        self._sizes: tuple[int, dict[str, int]] = (-1, {})
        self._stop = asyncio.Event()
        self._openers = ThreadPoolExecutor(OPENERS, "fieldfare-open")
        self._thread = threading.Thread(target=self._run, name="fieldfare-elastic", daemon=True)

    def start(self, on_placed: Callable[[], None], open_connected: OpenConnected) -> None:
        """Start the thread.

        Parameters
        ----------
        on_placed : callable
            Called each time that slices are at other executors.
        open_connected : callable
            Maps slices at connected tasks, which use the slots of their executor.
        """
        self._on_placed, self._open_connected = on_placed, open_connected
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def close(self) -> None:
        """Stop; the next control resumes unfinished changes."""
        with suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(CLOSING_S)
        self._openers.shutdown(wait=False, cancel_futures=True)

    # Called by the jobs

    def tasks(self) -> list[PinnedTask]:
        """Return the tasks that match a batch: one for each core of every executor that has slices."""
        at: dict[str, list[str]] = {}
        placed, seen = self._placed, self._seen
        for name in self._names:
            executor = placed.get(name, "")
            at.setdefault(executor if executor in seen else "", []).append(name)
        tasks = []
        for executor, names in at.items():
            known = seen.get(executor)
            # Slices without a host run wherever there is room.
            pieces = min(len(names), known.cores if known else max(1, sum(e.cores for e in seen.values())))
            for piece in self._evenly(names, pieces):
                numbers = tuple(sorted(self._numbers[name] for name in piece))
                tasks.append(PinnedTask(numbers, known.location if known else None))
        return tasks

    def only_executor(self) -> Executor | None:
        """Return the executor at which all slices are; None if they are at several, or have none."""
        placed = self._placed
        at = set(placed.values())
        return self._seen.get(at.pop()) if len(placed) == len(self._names) and len(at) == 1 else None

    def _evenly(self, names: list[str], pieces: int) -> list[list[str]]:
        """Distribute slices over `pieces` tasks, balanced by their recent CPU load."""
        groups: list[tuple[float, list[str]]] = [(0.0, []) for _ in range(pieces)]
        probes = self._hosts.probes
        loads = {name: probes[name].cpu if name in probes else 0.0 for name in names}
        for name in sorted(names, key=lambda name: (-loads[name], name)):
            least = min(range(pieces), key=lambda i: (groups[i][0], len(groups[i][1])))
            load, group = groups[least]
            groups[least] = load + loads[name], [*group, name]
        return [group for _, group in groups]

    def worked(
        self, manifest: int, tasks: Sequence[PinnedTask], work: Iterable[MatcherWork], took_s: float
    ) -> None:
        """Add the CPU time of a batch that took `took_s`; time of no slice is shared evenly."""
        cpu_s = dict.fromkeys(self._names, 0.0)
        sent = dict.fromkeys(self._names, 0)
        mates = {number: task.matchers for task in tasks for number in task.matchers}
        wanted = {number: task.location for task in tasks for number in task.matchers}
        ran: dict[tuple[int, ...], str] = {}
        for done in work:
            number = done.matcher % len(self._names) if done.matcher >= 0 else None
            if number is None:
                sharing: Sequence[int] = range(len(self._names))
            elif done.slice == NO_SLICE:
                sharing = mates[number]
            else:
                sharing = (number,)
            if number is not None:
                ran[mates[number]] = done.executor
            for each in sharing:
                cpu_s[self._names[each]] += done.cpu_s / len(sharing)
                sent[self._names[each]] += done.sent_bytes // len(sharing)
        for mine, executor in ran.items():
            location = wanted[mine[0]]
            if location is not None:
                self._asked += 1
                self._granted += location.rpartition("_")[2] == executor
        self._count(Worked(cpu_s, sent, self._memory(manifest), took_s))

    def followed(self, cpu_s: float, took_s: float) -> None:
        """Add the matching time of a task that followed the log for `took_s`: the slices share it evenly."""
        self._count(Worked(dict.fromkeys(self._names, cpu_s / len(self._names)), {}, self._sizes[1], took_s))

    def _count(self, worked: Worked) -> None:
        with suppress(RuntimeError):  # the loop has ended already
            self._loop.call_soon_threadsafe(self._runner.dispatch, "hosts", worked)

    def _memory(self, number: int) -> dict[str, int]:
        """Return the size in bytes of each slice's files."""
        if number != self._sizes[0]:
            with suppress(OSError, IndexStoreError):
                self._sizes = number, self._sizes_of(self._store.manifest(number))
        return self._sizes[1]

    def _sizes_of(self, manifest: Manifest) -> dict[str, int]:
        sizes = dict.fromkeys(self._names, 0)
        for space in manifest.spaces.values():
            for part in space.slices if len(space.slices) > 1 else ():
                name = self._names[part.matcher % len(self._names)]
                sizes[name] += sum(self._store.path(file).stat().st_size for file in part.files())
        return sizes

    def open_all(self, manifest: int) -> None:
        """Keep Python processes alive where slices are placed, with a manifest's slices mapped."""
        self._memory(manifest)
        tasks = [task for task in self.tasks() if task.location is not None]
        if tasks:
            rows = place_tasks(self._context, tasks)
            open_placed(rows, self._tasks_folder, manifest, len(self._names))

    # The thread

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._control())
        finally:
            self._loop.close()

    async def _control(self) -> None:
        self._start_machines()
        while not self._stop.is_set():
            wait_s = LOOK_S
            try:
                self._observe()
            except Exception as error:
                # This thread only places and counts; events are matched without it.
                _log.error("the service cannot be scaled now; retrying: %s", reason(error))
                _log.debug("traceback", exc_info=True)
                wait_s = RETRY_S
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._stop.wait()
        await self._runner.close()

    def _start_machines(self) -> None:
        for name, machine in self._machines.items():
            self._runner.add(name, machine)

    def _observe(self) -> None:
        """Look at the executors and at a user's requests, and report."""
        if self._runner.is_idle:  # no message is on its way to the manager
            self._start_requested_move()
        self._resize()
        seen = self._executors.seen()
        if seen != self._seen:
            self._seen = seen
            self._runner.dispatch("hosts", ExecutorsSeen({each.id: each.cores for each in seen.values()}))
        now = time.monotonic()
        if now - self._said_s >= SAY_S:
            self._said_s = now
            least, most = self._bounds()
            self._enforcer.policy = replace(self._policy, hosts_min=least, hosts_max=most)
            self._write_loads(least, most)

    def _resize(self) -> None:
        """Request the wanted executors from the cluster, until the request succeeds."""
        if self._settings.dry_run:
            return
        if self._wanted != self._requested:
            self._executors.request(self._wanted)
            self._requested = self._wanted
        for executor in self._unwanted & self._seen.keys():
            self._executors.give_back(executor)
        self._unwanted &= self._seen.keys()

    def _bounds(self) -> tuple[int, int]:
        here = time.localtime()
        return self._settings.schedule.at(60 * here.tm_hour + here.tm_min)

    def _send(self, sender: str, effect: Send) -> None:
        if isinstance(effect.message, MigrationRequest):
            self._asked_for(effect.message)
        else:
            self._runner.dispatch("hosts", ToHost(effect.to, effect.message))

    def _place(self, name: str, news: SlicesPlaced) -> None:
        self._placed = news.executors
        self._on_placed()

    def _asked_for(self, wanted: MigrationRequest) -> None:
        """Record a request of the enforcer or of a user; carry it out unless this is a dry run."""
        is_done = not self._settings.dry_run
        _log.info("%s%s", wanted.reason, "" if is_done else " (dry run)")
        now_ms = time.time_ns() // 1_000_000
        decision = Decision(
            now_ms, wanted.reason, list(wanted.moves), wanted.new_hosts, list(wanted.released), is_done
        )
        self._keep_record(replace_fields(self._record, decisions=[*self._record.decisions, decision]))
        if is_done:
            self._runner.dispatch("manager", Received("enforcer", wanted))

    async def _answer(self, name: str, question: object) -> object:
        match question:
            case ReadConfiguration():
                kept = self._record.configuration
                if kept is not None:
                    self._runner.dispatch("hosts", HostsWanted(kept.hosts))
                return ConfigurationRead(kept)
            case KeepConfiguration(configuration):
                return self._write_record(configuration)
            case ReleaseHost(host):
                return HostReleased(host)
            case RequestExecutors(wanted):
                self._wanted = wanted
            case DecommissionExecutor(executor):
                self._unwanted.add(executor)
        return None  # also for AddHost: an executor is requested because the configuration has the host

    def _write_record(self, configuration: Configuration) -> ConfigurationKept | ConfigurationRead:
        before = self._record.configuration
        if configuration != before:
            if before is not None and configuration.version <= before.version:
                return ConfigurationRead(before)
            moves = self._moves.completed(before, configuration, time.time_ns() / 1e6)
            moves = [*self._record.moves, *moves]
            self._keep_record(replace_fields(self._record, configuration=configuration, moves=moves))
            self._runner.dispatch("hosts", HostsWanted(configuration.hosts))
        return ConfigurationKept(configuration.version)

    def _keep_record(self, record: ElasticRecord) -> None:
        """Keep the record; a decision that cannot be written (on a full disk) does not take effect."""
        record.write(self._folder.elastic)
        self._record = record

    async def _map_slices(self, name: str, wanted: MapSlices) -> SlicesMapped:
        return await self._loop.run_in_executor(self._openers, self._open, wanted)

    def _open(self, wanted: MapSlices) -> SlicesMapped:
        """Map slices on an executor, and check that they were mapped there."""
        here: list[float] = []
        with suppress(Exception):
            executor = self._seen[wanted.executor]
            numbers = tuple(self._numbers[name] for name in wanted.slices)
            task = PinnedTask(numbers, executor.location)
            rows = place_tasks(self._context, [task] * executor.cores)
            for _ in range(OPEN_TRIES):
                newest = self._store.newest()
                number = newest.number if newest is not None else 0
                opened = self._open_connected(executor, numbers, number)
                if opened is None:
                    opened = open_placed(rows, self._tasks_folder, number, len(self._names))
                here = [each.processors for each in opened if each.executor == wanted.executor]
                if here or self._stop.is_set():
                    break
        processors = min(here, default=inf)
        return SlicesMapped(wanted.executor, wanted.slices, bool(here), processors)

    def _start_requested_move(self) -> None:
        """Carry out a user's request to move a slice; the manager takes one request at a time."""
        configuration = self._manager.configuration
        if configuration.moves or configuration.moving or not self._folder.elastic_wishes.exists():
            return
        move = take_move_request(self._folder)
        if move is not None:
            self._asked_for(MigrationRequest((move,), 0, (), "by hand"))

    def _write_loads(self, least: int, most: int) -> None:
        bodies, placed, probes = self._hosts.bodies, self._hosts.placed, self._hosts.probes
        slices = [
            SliceLoadNow(name, placed.get(name, ""), round(each.cpu, 4), each.memory_bytes)
            for name, each in probes.items()
        ]
        hosts = []
        for host in self._manager.configuration.hosts:
            executor, cores, is_warm = bodies.get(host, ("", 0, False))
            cpu = sum(each.cpu for each in slices if each.host == host)
            hosts.append(HostLoad(host, executor, cores, is_warm, round(cpu, 4)))
        now_ms = time.time_ns() // 1_000_000
        loads = ElasticLoads(
            now_ms, self._settings.dry_run, least, most, hosts, slices, self._asked, self._granted
        )
        loads.write(self._folder.elastic_loads)
