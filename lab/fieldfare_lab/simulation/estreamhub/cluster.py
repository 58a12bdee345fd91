"""Hosts, the manager and the enforcer in simulated time, with the engine's jobs as the work of slices.

Manager and enforcer are those of ``fieldfare.elasticity``, and so are the messages. A simulated host answers
them for slices that are jobs: it stops a slice when the items that its new place lacks are done, sends its
state at the link's rate once none of its jobs runs, and the receiver resumes with the items that arrived
meanwhile. It checks the progress every few milliseconds, so a move takes that much longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
import simpy
from numpy.typing import NDArray

from fieldfare.effects import Effect, Machine, Send, Timer, source
from fieldfare.elasticity.configuration import Configuration, SlicePlace
from fieldfare.elasticity.manager import (
    ConfigurationKept,
    ConfigurationRead,
    KeepConfiguration,
    Manager,
    ReadConfiguration,
)
from fieldfare.elasticity.messages import (
    AddHost,
    CopyPrepared,
    HostAdded,
    HostProbes,
    HostReleased,
    MigrationRequest,
    PrepareCopy,
    Probe,
    Pulse,
    ReleaseHost,
    RestoreSlice,
    SendCopy,
    SliceActive,
    SliceMove,
    Wired,
    Wiring,
)
from fieldfare.elasticity.operators import Operators
from fieldfare_lab.elasticity.messages import SliceCopy, SliceState
from fieldfare_lab.simulation.estreamhub.engine import Cores, CostModel, Engine
from fieldfare_lab.simulation.network import Network

EDGE = "edge"


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """Durations in seconds; except for the link's rate they are not in the paper.

    Parameters
    ----------
    message_s
        A message from one host to another.
    keep_s
        A durable write of the configuration to a coordination service.
    host_start_s
        From the request for a host to its first heartbeat.
    heartbeat_s
        Interval of a host's probes.
    link_bytes_per_s
        1 Gb/s (section VI.A).
    poll_s
        Interval at which a host checks whether a slice may stop.
    transient_bytes
        The state of an access point, and of an exit point.
    queues_reach_back
        Whether a new place receives the items that its origins still keep, like `fieldfare.elasticity.host`;
        or only later ones, like the paper, so that a move waits for all items that waited before it.
    """

    message_s: float = 0.0005
    keep_s: float = 0.01
    host_start_s: float = 1.0
    heartbeat_s: float = 1.0
    link_bytes_per_s: float = 125e6
    poll_s: float = 0.002
    transient_bytes: tuple[int, int] = (10_000, 100_000)
    queues_reach_back: bool = True


@dataclass(frozen=True, slots=True)
class ReadMatches:
    """Check whether a slice may stop now, or its state may leave."""

    asked: SendCopy


@dataclass(frozen=True, slots=True)
class CopyArrives:
    """The state has arrived over the link."""

    asked: SendCopy


@dataclass(slots=True)
class MigrationRecord:
    """One slice's move: from the request to prepare until it runs, and when it was stopped."""

    slice: str
    began_s: float
    stopped_s: float = np.nan
    active_s: float = np.nan

    @property
    def move_s(self) -> float:
        return self.active_s - self.began_s


@dataclass(slots=True)
class Records:
    """The results of a run: moves, and each host's load at each heartbeat."""

    moves: list[MigrationRecord] = field(default_factory=list)
    loads: list[tuple[float, str, float]] = field(default_factory=list)
    hosts: list[tuple[float, int]] = field(default_factory=list)

    def last(self, name: str) -> MigrationRecord:
        return next(move for move in reversed(self.moves) if move.slice == name)


class SimulatedHost:
    """Answers the manager for its slices."""

    def __init__(self, name: str, cluster: ElasticCluster) -> None:
        self.name = name
        self.cores = Cores(cluster.engine.model.cores)
        self._cluster = cluster
        self._epochs: dict[str, int] = {}
        self._copying: set[str] = set()
        self._prepared: dict[str, int] = {}
        self._busy_s: dict[str, float] = {}
        self._looked_s = 0.0

    def start(self, now: float) -> list[Effect]:
        self._looked_s = now
        return [Timer(now + self._cluster.model.heartbeat_s, Pulse())]

    def handle(self, message: object, now: float) -> list[Effect]:
        """Process a message, after the engine's jobs up to now."""
        engine = self._cluster.engine
        engine.advance(now)
        sender, message = source(self.name, message)
        if isinstance(message, Pulse):
            return self._pulse(now)
        if isinstance(message, Wiring):
            return self._wire(sender, message)
        if isinstance(message, RestoreSlice):
            return self._run(message.slice, message.epoch, now)
        if isinstance(message, PrepareCopy):
            return self._prepare(sender, message, now)
        if isinstance(message, SendCopy):
            is_new = self._epochs.get(message.slice, message.epoch) < message.epoch
            if not is_new or message.slice in self._copying:
                return []
            self._copying.add(message.slice)
            return self._look(message, now)
        if isinstance(message, ReadMatches):
            return self._look(message.asked, now)
        if isinstance(message, CopyArrives):
            self._copying.discard(message.asked.slice)
            del self._epochs[message.asked.slice]
            return [Send(message.asked.to, SliceCopy(message.asked.slice, message.asked.epoch, SliceState()))]
        if isinstance(message, SliceCopy):
            self._cluster.records.last(message.slice).active_s = now
            return self._run(message.slice, message.epoch, now)
        return []

    def _prepare(self, sender: str, message: PrepareCopy, now: float) -> list[Effect]:
        if self._epochs.get(message.slice) == message.epoch:
            return [Send(sender, SliceActive(message.slice, message.epoch))]
        if self._prepared.get(message.slice) != message.epoch:
            self._prepared[message.slice] = message.epoch
            self._cluster.records.moves.append(MigrationRecord(message.slice, now))
        return [Send(sender, CopyPrepared(message.slice, message.epoch))]

    def _pulse(self, now: float) -> list[Effect]:
        engine, cluster = self._cluster.engine, self._cluster
        passed_s = (now - self._looked_s) * engine.model.cores
        self._looked_s = now
        probes = {}
        for name in self._epochs:
            number = cluster.numbers[name]
            busy_s = engine.busy_s[number] - self._busy_s.get(name, 0.0)
            self._busy_s[name] = engine.busy_s[number]
            probes[name] = Probe(busy_s / passed_s, cluster.state_bytes(number))
        if self.name != EDGE:
            cluster.records.loads.append((now, self.name, sum(probe.cpu for probe in probes.values())))
        return [
            Timer(now + cluster.model.heartbeat_s, Pulse()),
            Send("manager", HostProbes(dict(self._epochs), probes)),
        ]

    def _run(self, name: str, epoch: int, now: float) -> list[Effect]:
        number = self._cluster.numbers[name]
        self._epochs[name] = epoch
        self._busy_s[name] = self._cluster.engine.busy_s[number]
        self._cluster.engine.go_on(number, self.cores, now)
        return [Send("manager", SliceActive(name, epoch))]

    def _wire(self, sender: str, wiring: Wiring) -> list[Effect]:
        """Confirm a wiring with the number of jobs of each origin, which arrive independent of the wiring."""
        sent = {}
        for name, hosts in wiring.places.items():
            if len(hosts) > 1:
                engine, number = self._cluster.engine, self._cluster.numbers[name]
                is_whole = self._cluster.model.queues_reach_back
                reach = engine.done[number] if is_whole else engine.arrived[number]
                sent[name] = dict.fromkeys(self._cluster.origins(self, name), reach)
        return [Send(sender, Wired(wiring.version, sent))]

    def origins(self) -> tuple[str, ...]:
        """Return the slices at this host."""
        return ("source",) if self.name == EDGE else tuple(self._epochs)

    def _look(self, asked: SendCopy, now: float) -> list[Effect]:
        engine, number = self._cluster.engine, self._cluster.numbers[asked.slice]
        again: list[Effect] = [Timer(now + self._cluster.model.poll_s, ReadMatches(asked))]
        if engine.done[number] < max(asked.reach.values()):
            return again
        record = self._cluster.records.last(asked.slice)
        if np.isnan(record.stopped_s):
            record.stopped_s = now
            engine.stop(number)
        if engine.running[number]:
            return again
        copy_s = self._cluster.state_bytes(number) / self._cluster.model.link_bytes_per_s
        return [Timer(now + copy_s, CopyArrives(asked))]


class ElasticCluster:
    """A run: publications arrive, and the enforcer, if there is one, moves slices.

    Parameters
    ----------
    places
        The initial slices of each host. Default: one host has all.
    """

    def __init__(
        self,
        cost: CostModel,
        arrived_s: NDArray[np.float64],
        enforcer: Machine | None = None,
        model: ClusterModel | None = None,
        places: Sequence[Sequence[str]] | None = None,
        seed: int = 1,
    ) -> None:
        self.model = model or ClusterModel()
        self.engine = Engine(cost, arrived_s)
        self.records = Records()
        operators = Operators(cost.access_points, {"M": cost.matchers}, cost.exit_points)
        self.numbers = {name: number for number, name in enumerate(operators.slices)}
        self.environment = simpy.Environment()
        self.network = Network(self.environment, self, lambda: self.model.message_s, Random(seed))
        self._kept: Configuration | None = None
        self._hosts: dict[str, SimulatedHost] = {}
        first = Configuration(operators, {"source": EDGE}).begun(len(places) if places else 1)
        if places is not None:
            where = {name: host for host, names in zip(first.hosts, places, strict=True) for name in names}
            spots = {name: SlicePlace(where[name], 1, is_lost=True) for name in operators.slices}
            first = first.changed(places=spots)
        for name in (EDGE, *first.hosts):
            self._start_host(name)
        self.network.add("enforcer", enforcer or IdleStream())
        self.manager = Manager(first)
        self.network.add("manager", self.manager)

    def _start_host(self, name: str) -> None:
        self._hosts[name] = SimulatedHost(name, self)
        self.network.add(name, self._hosts[name])

    def origins(self, host: SimulatedHost, target: str) -> tuple[str, ...]:
        """Return the slices at a host whose outputs reach a target."""
        upstream = self.manager.configuration.operators.upstream(target, ("source",))
        return tuple(name for name in host.origins() if name in upstream)

    def state_bytes(self, number: int) -> int:
        """Return the bytes that move with a slice."""
        cost = self.engine.model
        if number < cost.access_points:
            return self.model.transient_bytes[0]
        if number < cost.access_points + cost.matchers:
            return cost.subscriptions * cost.subscription_bytes // cost.matchers
        return self.model.transient_bytes[1]

    def move(self, name: str, to: str) -> None:
        """Request a move, as an enforcer would."""
        self.network.hand_in("manager", MigrationRequest((SliceMove(name, to),), 0, (), "asked for"))

    def run(self, until_s: float) -> None:
        """Run until a time, and record the number of hosts once per second."""
        while self.environment.now < until_s:
            self.environment.run(until=min(until_s, self.environment.now + 1.0))
            now = self.environment.now
            self.records.hosts.append((now, len(self.manager.configuration.hosts)))
        self.engine.advance(until_s)

    def answer(self, name: str, question: object) -> tuple[float, object]:
        if isinstance(question, ReadConfiguration):
            return 0.0, ConfigurationRead(self._kept)
        if isinstance(question, KeepConfiguration):
            self._kept = question.configuration
            return self.model.keep_s, ConfigurationKept(question.configuration.version)
        if isinstance(question, AddHost):
            if question.host not in self._hosts:
                self._start_host(question.host)
            return self.model.host_start_s, HostAdded(question.host)
        assert isinstance(question, ReleaseHost)
        self.network.crash(question.host)
        return self.model.message_s, HostReleased(question.host)

    def told(self, name: str, news: object) -> None:
        raise AssertionError(f"{name} tells {news}")

    def stopped(self, name: str) -> None:
        raise AssertionError(f"{name} stops")


class IdleStream:
    """An enforcer that requests nothing."""

    def start(self, now: float) -> list[Effect]:
        return []

    def handle(self, message: object, now: float) -> list[Effect]:
        return []
