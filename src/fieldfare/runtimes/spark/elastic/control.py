"""The driver's thread that grows and shrinks a service: it runs the machines of ``elasticity`` on executors.

    executors, tasks' CPU ─▶ ExecutorHosts ◀─▶ Manager ◀─▶ Enforcer
                                  │               └─ configuration ─▶ elastic.json
                                  └─ open slices, request and decommission executors, say where tasks go

What the machines ask for is done here, or by threads of its own where it takes a Spark job. Nothing that is
matched waits for any of it: a task that is not where its slices are mapped maps them.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

from msgspec.structs import replace as replace_fields
from pyspark.sql import SparkSession

from fieldfare.effects import Ask, Effect, Machine, Received, Send, Tell, Timer
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
from fieldfare.elasticity.messages import AddHost, HostReleased, MigrationRequest, Pulse, ReleaseHost
from fieldfare.partitioning import NO_SLICE
from fieldfare.pipeline.manifest import Manifest
from fieldfare.runtimes.spark.cluster import tasks_folder
from fieldfare.runtimes.spark.elastic.executors import Executor, Executors
from fieldfare.runtimes.spark.elastic.placed import PlacedTask, open_placed, place_tasks
from fieldfare.runtimes.spark.elastic.record import (
    Decision,
    ElasticLoads,
    ElasticRecord,
    HostLoad,
    MovesSeen,
    SliceLoadNow,
    take_wish,
)
from fieldfare.runtimes.spark.query import reason
from fieldfare.runtimes.spark.spread.loads import MatcherWork
from fieldfare.storage import open_index_store
from fieldfare.storage.errors import FormatError, IndexStoreError
from fieldfare.storage.folder import DataFolder

OPERATOR = "M"
LOOK_S = 0.2
SAY_S = 1.0
OPEN_TRIES = 5
OPENERS = 4
"""So many executors are made warm at once."""
CALM_S = 600.0
POLICY = ElasticityPolicy(releases_per_hour=3)
"""The paper's, but that hosts are released at most a few times an hour."""
SETTINGS = ManagerSettings(dead_after_s=45.0, start_s=180.0)
"""Another executor has so long to come in the place of one that died; it takes half a minute to be warm."""

_log = logging.getLogger("fieldfare.pipeline")


@dataclass(frozen=True, slots=True)
class ElasticSettings:
    """How a service grows and shrinks: between which numbers of hosts, or whether it only says how.

    For `calm_s` seconds after hosts were added none is released.
    """

    schedule: HostSchedule
    dry_run: bool = False
    calm_s: float = CALM_S


def slice_names(matchers: int) -> tuple[str, ...]:
    """What the matchers of a query are called as slices of the operator M."""
    return Operators(0, {OPERATOR: matchers}, 0).slices


class ElasticControl:
    """See above; `start` and `close` it around a query with several matchers."""

    def __init__(
        self, session: SparkSession, folder: DataFolder, settings: ElasticSettings, matchers: int
    ) -> None:
        self._session, self._folder, self._settings = session, folder, settings
        self._tasks_folder = tasks_folder(session, folder)
        self._store = open_index_store(folder.index_url)
        self._executors = Executors(session)
        self._seen: dict[str, Executor] = {}
        self._names = slice_names(matchers)
        self._numbers = {name: number for number, name in enumerate(self._names)}
        try:
            self._record = ElasticRecord.read(folder.elastic)
        except FormatError as error:
            _log.error("%s: hosts and slices are placed anew", error)
            self._record = ElasticRecord()
        first = Configuration(Operators(0, {OPERATOR: matchers}, 0), {})
        kept = self._record.configuration
        if kept is not None and kept.operators != first.operators:
            # Cut anew for another number of matchers: as many hosts, with other slices.
            first = replace(first, started=kept.started, version=kept.version)
            first = first.begun(max(1, len(kept.hosts)))
            self._record.configuration = None
        else:
            # Who only says what would be done leaves the cluster as it is.
            first = first.begun(
                max(1, len(self._executors.seen())) if settings.dry_run else self._bounds()[0]
            )
        self._manager = Manager(first, SETTINGS)
        self._policy = replace(POLICY, calm_s=settings.calm_s)
        self._enforcer = Enforcer(self._policy)
        self._hosts = ExecutorHosts(self._names)
        self._machines: dict[str, Machine] = {
            "manager": self._manager,
            "enforcer": self._enforcer,
            "hosts": self._hosts,
        }
        self._inbox: queue.SimpleQueue[tuple[str, object]] = queue.SimpleQueue()
        self._timers: list[tuple[float, int, str, object]] = []
        self._ticks = count()
        self._moves = MovesSeen()
        self._asked = self._granted = 0
        self._wanted = self._requested = 0
        self._unwanted: set[str] = set()
        self._looked_s = self._said_s = 0.0
        self._placed: Mapping[str, str] = {}
        self._sizes: tuple[int, dict[str, int]] = (-1, {})
        self._stop = threading.Event()
        self._openers = ThreadPoolExecutor(OPENERS, "fieldfare-open")
        self._thread = threading.Thread(target=self._run, name="fieldfare-elastic", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End; what is under way is gone on with by the next one."""
        self._stop.set()
        self._thread.join(5.0)
        self._openers.shutdown(wait=False, cancel_futures=True)

    # What the query asks, and tells

    def tasks(self) -> list[PlacedTask]:
        """Who is to match a batch: a task for each core of every executor that has slices."""
        at: dict[str, list[str]] = {}
        placed, seen = self._placed, self._seen
        for name in self._names:
            executor = placed.get(name, "")
            at.setdefault(executor if executor in seen else "", []).append(name)
        tasks = []
        for executor, names in at.items():
            known = seen.get(executor)
            # Those that have no place yet run where there is room.
            pieces = min(len(names), known.cores if known else max(1, sum(e.cores for e in seen.values())))
            for piece in self._evenly(names, pieces):
                numbers = tuple(sorted(self._numbers[name] for name in piece))
                tasks.append(PlacedTask(numbers, known.location if known else None))
        return tasks

    def _evenly(self, names: list[str], pieces: int) -> list[list[str]]:
        """Slices in so many tasks, by what they took lately."""
        groups: list[tuple[float, list[str]]] = [(0.0, []) for _ in range(pieces)]
        probes = self._hosts.probes
        loads = {name: probes[name].cpu if name in probes else 0.0 for name in names}
        for name in sorted(names, key=lambda name: (-loads[name], name)):
            least = min(range(pieces), key=lambda i: (groups[i][0], len(groups[i][1])))
            load, group = groups[least]
            groups[least] = load + loads[name], [*group, name]
        return [group for _, group in groups]

    def worked(
        self, manifest: int, tasks: Sequence[PlacedTask], work: Iterable[MatcherWork], took_s: float
    ) -> None:
        """Take in what a batch's tasks took, which lasted so long: slices', and evenly what is nobody's."""
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
        self._inbox.put(("hosts", Worked(cpu_s, sent, self._memory(manifest), took_s)))

    def _memory(self, number: int) -> dict[str, int]:
        """How many bytes the files of each slice have."""
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
        """Keep Python's processes alive where slices are placed, and what a manifest names mapped there."""
        tasks = [task for task in self.tasks() if task.location is not None]
        if tasks:
            rows = place_tasks(self._session, tasks)
            open_placed(rows, self._tasks_folder, manifest, len(self._names))

    # The thread

    def _run(self) -> None:
        for name, machine in self._machines.items():
            self._carry_out(name, machine.start(time.monotonic()))
        while not self._stop.is_set():
            try:
                self._step()
            except Exception as error:
                # It places and counts; what is published is matched without it.
                if not self._stop.is_set():
                    _log.error("the service cannot grow or shrink now: %s", reason(error))
                    _log.debug("traceback", exc_info=True)
                self._stop.wait(1.0)

    def _step(self) -> None:
        with suppress(queue.Empty):
            name, message = self._inbox.get(timeout=LOOK_S / 2)
            self._hand_in(name, message)
        if self._inbox.empty():  # Nothing is on its way to the manager: with each pulse below something is.
            self._take_wish()
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, name, message = heappop(self._timers)
            self._hand_in(name, message)
        if now - self._looked_s >= LOOK_S:
            self._looked_s = now
            self._resize()
            seen = self._executors.seen()
            if seen != self._seen:
                self._seen = seen
                self._hand_in("hosts", ExecutorsSeen({each.id: each.cores for each in seen.values()}))
        if now - self._said_s >= SAY_S:
            self._said_s = now
            least, most = self._bounds()
            self._enforcer.policy = replace(self._policy, hosts_min=least, hosts_max=most)
            self._say(least, most)

    def _resize(self) -> None:
        """Ask the cluster for what is wanted, again until it has heard it."""
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

    def _hand_in(self, name: str, message: object) -> None:
        now = time.monotonic()
        try:
            effects = self._machines[name].handle(message, now)
        except Exception:
            if isinstance(message, Pulse):  # Each asks for the next: the machine would stand still for ever.
                heappush(self._timers, (now + SAY_S, next(self._ticks), name, message))
            raise
        self._carry_out(name, effects)

    def _carry_out(self, name: str, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Timer():
                    heappush(self._timers, (effect.at_s, next(self._ticks), name, effect.message))
                case Send(message=MigrationRequest()):
                    self._asked_for(effect.message)
                case Send() if effect.to in self._machines:
                    message = effect.message
                    said = message if isinstance(message, Received) else Received(name, message)
                    self._inbox.put((effect.to, said))
                case Send():
                    self._inbox.put(("hosts", ToHost(effect.to, effect.message)))
                case Ask():
                    self._do(effect.question)
                case Tell(news=SlicesPlaced(executors)):
                    self._placed = executors

    def _asked_for(self, wanted: Any) -> None:
        """What the enforcer, or somebody by hand, wants: noted, and done unless it is only to be said."""
        is_done = not self._settings.dry_run
        _log.info("%s%s", wanted.reason, "" if is_done else " (dry run)")
        now_ms = time.time_ns() // 1_000_000
        decision = Decision(
            now_ms, wanted.reason, list(wanted.moves), wanted.new_hosts, list(wanted.released), is_done
        )
        self._keep_record(replace_fields(self._record, decisions=[*self._record.decisions, decision]))
        if is_done:
            self._inbox.put(("manager", Received("enforcer", wanted)))

    def _do(self, question: object) -> None:
        match question:
            case ReadConfiguration():
                kept = self._record.configuration
                if kept is not None:
                    self._inbox.put(("hosts", HostsWanted(kept.hosts)))
                self._inbox.put(("manager", ConfigurationRead(kept)))
            case KeepConfiguration():
                self._keep(question.configuration)
            case AddHost():
                pass  # its executor comes because the configuration has it
            case ReleaseHost():
                self._inbox.put(("manager", HostReleased(question.host)))
            case RequestExecutors():
                self._wanted = question.count
            case DecommissionExecutor():
                self._unwanted.add(question.executor)
            case MapSlices():
                self._openers.submit(self._open, question)

    def _keep(self, configuration: Configuration) -> None:
        before = self._record.configuration
        if configuration == before:
            self._inbox.put(("manager", ConfigurationKept(configuration.version)))
            return
        if before is not None and configuration.version <= before.version:
            self._inbox.put(("manager", ConfigurationRead(before)))
            return
        moves = self._moves.look(before, configuration, time.time_ns() / 1e6)
        self._keep_record(
            replace_fields(self._record, configuration=configuration, moves=[*self._record.moves, *moves])
        )
        self._inbox.put(("hosts", HostsWanted(configuration.hosts)))
        self._inbox.put(("manager", ConfigurationKept(configuration.version)))

    def _keep_record(self, record: ElasticRecord) -> None:
        """What is not on disk, as when that is full, was not decided."""
        record.keep(self._folder.elastic)
        self._record = record

    def _open(self, wanted: MapSlices) -> None:
        """Have slices mapped on an executor, and see that it was there that they were."""
        here: list[float] = []
        with suppress(Exception):
            executor = self._seen[wanted.executor]
            numbers = tuple(self._numbers[name] for name in wanted.slices)
            task = PlacedTask(numbers, executor.location)
            rows = place_tasks(self._session, [task] * executor.cores)
            for _ in range(OPEN_TRIES):
                newest = self._store.newest()
                number = newest.number if newest is not None else 0
                opened = open_placed(rows, self._tasks_folder, number, len(self._names))
                here = [each.processors for each in opened if each.executor == wanted.executor]
                if here or self._stop.is_set():
                    break
        processors = min(here, default=inf)
        self._inbox.put(("hosts", SlicesMapped(wanted.executor, wanted.slices, bool(here), processors)))

    def _take_wish(self) -> None:
        """Have a slice moved by hand; the manager takes one request at a time."""
        configuration = self._manager.configuration
        if configuration.moves or configuration.moving or not self._folder.elastic_wishes.exists():
            return
        move = take_wish(self._folder)
        if move is not None:
            self._asked_for(MigrationRequest((move,), 0, (), "by hand"))

    def _say(self, least: int, most: int) -> None:
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
        loads.say(self._folder.elastic_loads)
