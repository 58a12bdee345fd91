"""Hosts that are executors of an engine which moves no state: they answer the manager as Figure 3's hosts do.

A host is a name of the manager's; its body is an executor, which the engine starts and may lose. A slice's
state is in immutable files and in the log, so the steps of a move have little to do here:

    PrepareCopy    fetch and map the slice's files at the new host's executor     CopyPrepared
    Wiring         nothing: the log has what either place needs                   Wired
    SendCopy       from the next batch on, the slice's tasks prefer the new host  SliceActive
    RestoreSlice   fetch and map; then as SendCopy                                SliceActive
    RemoveSlice    the files stay until their room is needed

A lost executor is replaced by another one if one comes before the manager considers its host dead; a new
executor becomes the body of a host that has none, and counts once it is warm. Executors that no host is
waiting for are released.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from fieldfare.effects import Ask, AskFailed, Effect, Received, Send, Tell, Timer
from fieldfare.elasticity.messages import (
    CopyPrepared,
    HostProbes,
    PrepareCopy,
    Probe,
    Pulse,
    RemoveSlice,
    RestoreSlice,
    SendCopy,
    SliceActive,
    Wired,
    Wiring,
)

PULSE_S = 1.0
"""Interval of heartbeats with the slices' costs, in seconds."""
LEAST_CORES = 0.01
"""Minimum number of CPUs assumed for an executor, which avoids a division by zero."""


@dataclass(frozen=True, slots=True)
class HostsWanted:
    """The hosts in the configuration, oldest first."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExecutorsSeen:
    """The present executors, with their cores."""

    cores: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ToHost:
    """A message of the manager to a host."""

    host: str
    message: object


@dataclass(frozen=True, slots=True)
class Worked:
    """The work of slices in the last `took_s` seconds: CPU seconds, and bytes of events."""

    cpu_s: Mapping[str, float]
    sent_bytes: Mapping[str, int]
    memory_bytes: Mapping[str, int]
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MapSlices:
    """Request to map slices on an executor and to warm it. Answer: `SlicesMapped`."""

    executor: str
    slices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlicesMapped:
    """Whether slices were mapped, and how many CPUs the executor may use, independent of its tasks."""

    executor: str
    slices: tuple[str, ...]
    is_done: bool = True
    processors: float = inf


@dataclass(frozen=True, slots=True)
class RequestExecutors:
    """Request a total number of executors. There is no answer: `ExecutorsSeen` reports them."""

    count: int


@dataclass(frozen=True, slots=True)
class DecommissionExecutor:
    """Request to release an executor, which gets no more tasks."""

    executor: str


@dataclass(frozen=True, slots=True)
class SlicesPlaced:
    """The preferred executor of each slice's tasks, from now on; slices without one are absent."""

    executors: Mapping[str, str]


@dataclass(slots=True)
class _Body:
    executor: str
    cores: float
    is_warm: bool = False
    is_opening: bool = False
    mapped: set[str] = field(default_factory=set)
    epochs: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Spread:
    """The work of a batch, and the seconds over which it still has to be counted.

    It is reported when the batch is complete. Counted in one heartbeat, a batch of ten seconds would appear
    as ten times its load, and the following ten seconds as idle.
    """

    work: Worked
    over_s: float
    left_s: float

    def share(self, passed_s: float) -> float:
        """Return the share of the work that falls on the next `passed_s` seconds, and count it."""
        counted_s = min(self.left_s, passed_s)
        self.left_s -= counted_s
        return counted_s / self.over_s


class ExecutorHosts:
    """All hosts of a manager, with executors as their bodies."""

    def __init__(self, slices: Iterable[str], manager: str = "manager") -> None:
        self._manager = manager
        self._slices = tuple(slices)
        self._hosts: tuple[str, ...] = ()
        self._bodies: dict[str, _Body] = {}
        self._active: dict[str, str] = {}
        self._wiring = Wiring(-1, {})
        self._cores: dict[str, int] = {}
        self._waiting: dict[tuple[str, str], PrepareCopy | RestoreSlice] = {}
        self._given_back: set[str] = set()
        self._asked_for: int | None = None
        self._works: list[_Spread] = []
        self._memory: dict[str, int] = {}
        self._beat_s = 0.0
        self.probes: dict[str, Probe] = {}
        """The cost of each slice up to the last heartbeat."""

    @property
    def bodies(self) -> dict[str, tuple[str, float, bool]]:
        """The executor of each host that has one, the CPUs it may use, and whether it is warm."""
        return {host: (body.executor, body.cores, body.is_warm) for host, body in self._bodies.items()}

    @property
    def placed(self) -> dict[str, str]:
        """The host of each slice that runs at one."""
        return dict(self._active)

    def start(self, now: float) -> list[Effect]:
        self._beat_s = now
        return [Timer(now + PULSE_S, Pulse())]

    def handle(self, message: object, now: float) -> list[Effect]:
        """Process a message; see the module's description."""
        match message:
            case Pulse():
                return [Timer(now + PULSE_S, Pulse()), *self._beat(now)]
            case HostsWanted():
                self._hosts = message.hosts
                return self._embody()
            case ExecutorsSeen():
                self._cores = dict(message.cores)
                return self._embody()
            case SlicesMapped():
                return self._opened(message)
            case AskFailed(MapSlices(executor, slices)):
                return self._opened(SlicesMapped(executor, slices, is_done=False))
            case AskFailed(RequestExecutors()):
                self._asked_for = None  # requested again with the next change of executors or hosts
                return []
            case AskFailed(DecommissionExecutor(executor)):
                self._given_back.discard(executor)
                return []
            case Worked():
                self._worked(message)
                return []
            case ToHost():
                body = self._bodies.get(message.host)
                # A host without a warm body does not answer; the manager repeats its messages.
                return self._told(message.host, body, message.message) if body and body.is_warm else []
        raise TypeError(f"no host knows what {message!r} is")

    # Bodies

    def _embody(self) -> list[Effect]:
        """Assign executors to hosts, and release executors that no host needs."""
        if not self._hosts:
            return []
        effects: list[Effect] = []
        self._given_back &= self._cores.keys()
        before = self._executors_of_slices()
        for host, body in list(self._bodies.items()):
            if body.executor not in self._cores or host not in self._hosts:
                del self._bodies[host]
                self._active = {name: at for name, at in self._active.items() if at != host}
        used = {body.executor for body in self._bodies.values()} | self._given_back
        free = [each for each in self._cores if each not in used]
        for host in (host for host in self._hosts if host not in self._bodies):
            if free:
                executor = free.pop(0)
                self._bodies[host] = _Body(executor, self._cores[executor])
                effects += self._open(self._bodies[host], self._wired_to(host))
        if self._asked_for != len(self._hosts):
            self._asked_for = len(self._hosts)
            effects.append(Ask(RequestExecutors(self._asked_for)))
        for executor in free:
            self._given_back.add(executor)
            effects.append(Ask(DecommissionExecutor(executor)))
        return effects + self._report_placements(before)

    def _wired_to(self, host: str) -> tuple[str, ...]:
        """Return the slices that run at a host, according to the known wiring."""
        return tuple(name for name in self._slices if self._wiring.places.get(name, ("",))[0] == host)

    def _open(self, body: _Body, slices: tuple[str, ...]) -> list[Effect]:
        """Map slices, one request at a time; slices still missing then are requested again."""
        if body.is_opening:
            return []
        body.is_opening = True
        return [Ask(MapSlices(body.executor, slices))]

    def _opened(self, message: SlicesMapped) -> list[Effect]:
        found = next((each for each in self._bodies.items() if each[1].executor == message.executor), None)
        if found is None:
            return []
        host, body = found
        body.is_opening = False
        if not message.is_done:
            return []  # retried with the next pulse, or at the manager's next message
        body.cores = min(self._cores[body.executor], message.processors)
        body.mapped |= set(message.slices)
        body.is_warm = True
        before = self._executors_of_slices()
        effects: list[Effect] = []
        for name in message.slices:
            asked = self._waiting.pop((host, name), None)
            if asked is not None:
                effects += self._told(host, body, asked)
        effects += self._adopt(host, body)
        return effects + self._report_placements(before)

    def _adopt(self, host: str, body: _Body) -> list[Effect]:
        """Activate the slices that the wiring places here: an earlier driver or another body had them."""
        due = [name for name in self._wired_to(host) if name not in self._active]
        for name in due:
            if name in body.mapped:
                self._active[name] = host
        missing = tuple(name for name in due if name not in body.mapped)
        return self._open(body, missing) if missing else []

    # Messages of the manager

    def _told(self, host: str, body: _Body, message: object) -> list[Effect]:
        before = self._executors_of_slices()
        effects: list[Effect] = []
        match message:
            case Wiring():
                effects.append(self._from(host, Wired(message.version, {})))
                if message.version >= self._wiring.version:
                    self._wiring = message
                    for each, its in self._bodies.items():
                        effects += self._adopt(each, its) if its.is_warm else []
            case PrepareCopy() | RestoreSlice():
                effects += self._prepare(host, body, message)
            case SendCopy():
                to = self._bodies.get(message.to)
                if to is not None and to.epochs.get(message.slice) == message.epoch:
                    effects += self._activate(message.slice, message.to, message.epoch)
            case RemoveSlice():
                if body.epochs.get(message.slice, 0) <= message.epoch:
                    body.epochs.pop(message.slice, None)
        return effects + self._report_placements(before)

    def _prepare(self, host: str, body: _Body, message: PrepareCopy | RestoreSlice) -> list[Effect]:
        name = message.slice
        if name not in body.mapped:
            self._waiting[host, name] = message
            return self._open(body, (name,))
        if body.epochs.get(name, -1) > message.epoch:
            return []
        is_here = body.epochs.get(name) == message.epoch and self._active.get(name) == host
        body.epochs[name] = message.epoch
        if isinstance(message, RestoreSlice) or is_here:
            return self._activate(name, host, message.epoch)
        return [self._from(host, CopyPrepared(name, message.epoch))]

    def _activate(self, name: str, host: str, epoch: int) -> list[Effect]:
        self._active[name] = host
        places = {**self._wiring.places, name: (host,)}
        self._wiring = Wiring(self._wiring.version, places)
        return [self._from(host, SliceActive(name, epoch))]

    # Messages of hosts

    def _beat(self, now: float) -> list[Effect]:
        passed_s, self._beat_s = max(1e-3, now - self._beat_s), now
        shares = [(each.work, each.share(passed_s)) for each in self._works]
        self._works = [each for each in self._works if each.left_s > 0]
        for name in self._slices:
            body = self._bodies.get(self._active.get(name, ""))
            cores = body.cores if body else max(self._cores.values(), default=1)
            cpu_s = sum(share * work.cpu_s.get(name, 0.0) for work, share in shares)
            sent_bytes = sum(share * work.sent_bytes.get(name, 0) for work, share in shares)
            cpu = cpu_s / passed_s / max(LEAST_CORES, cores)
            self.probes[name] = Probe(cpu, self._memory.get(name, 0), sent_bytes / passed_s)
        effects: list[Effect] = []
        for host, body in self._bodies.items():
            if body.is_warm:
                effects += self._adopt(host, body)
                effects.append(self._from(host, HostProbes(dict(body.epochs), self._probes_of(host))))
            else:
                effects += self._open(body, self._wired_to(host))
        return effects

    def _probes_of(self, host: str) -> dict[str, Probe]:
        return {name: self.probes[name] for name, at in self._active.items() if at == host}

    def _worked(self, message: Worked) -> None:
        over_s = max(1e-3, message.took_s)
        self._works.append(_Spread(message, over_s, over_s))
        self._memory |= message.memory_bytes

    def _from(self, host: str, message: object) -> Effect:
        return Send(self._manager, Received(host, message))

    def _executors_of_slices(self) -> dict[str, str]:
        return {name: self._bodies[host].executor for name, host in self._active.items()}

    def _report_placements(self, before: Mapping[str, str]) -> list[Effect]:
        now = self._executors_of_slices()
        return [Tell(SlicesPlaced(now))] if now != before else []
