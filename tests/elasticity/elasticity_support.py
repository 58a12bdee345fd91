"""Slices that move between hosts that die, on a network that loses, doubles and delays."""

from __future__ import annotations

from random import Random
from typing import Any

import simpy

from fieldfare.effects import Effect, Machine
from fieldfare.elasticity.configuration import Configuration
from fieldfare.elasticity.manager import (
    ConfigurationKept,
    ConfigurationRead,
    KeepConfiguration,
    Manager,
    ReadConfiguration,
)
from fieldfare.elasticity.messages import (
    AddHost,
    ClusterProbes,
    HostAdded,
    HostReleased,
    MigrationRequest,
    ReleaseHost,
    SliceMove,
)
from fieldfare.elasticity.operators import Operators
from fieldfare_lab.elasticity.host import OUTSIDE, SliceHost
from fieldfare_lab.elasticity.messages import (
    KeepSlice,
    Offered,
    RecallSlice,
    SliceKept,
    SliceRecalled,
    SliceState,
)
from fieldfare_lab.elasticity.operators import Notification, Outputs, Publication, Registration, operator_of
from fieldfare_lab.simulation.network import Network

OPERATORS = Operators(2, {"M": 3}, 2)


class Ranges:
    """A filtering library: a filter is a range of numbers, an event is a number."""

    def __init__(self) -> None:
        self.stored: dict[int, tuple[int, int]] = {}

    def store(self, number: int, filter_: tuple[int, int]) -> None:
        self.stored[number] = filter_

    def matching(self, event: int) -> tuple[int, ...]:
        return tuple(sorted(number for number, (low, high) in self.stored.items() if low <= event <= high))


class Source:
    """Gives each thing to one access point in turn."""

    def __init__(self, operators: Operators) -> None:
        self._operators, self._count = operators, 0

    def process(self, content: Any) -> Outputs:
        slices = self._operators.access_point_slices
        self._count += 1
        return [(slices[self._count % len(slices)], content)]

    def state(self) -> int:
        return self._count

    def restore(self, state: Any) -> None:
        self._count = state


class Sink:
    """Hears notifications."""

    def __init__(self) -> None:
        self.heard: list[Notification] = []

    def process(self, content: Notification) -> Outputs:
        self.heard.append(content)
        return []

    def state(self) -> None:
        return None

    def restore(self, state: Any) -> None:
        pass


class Store:
    """The state that survives crashes; a slice's state of an old epoch is refused."""

    def __init__(self) -> None:
        self.configuration: Configuration | None = None
        self.slices: dict[str, SliceState] = {}
        self.epochs: dict[str, int] = {}

    def answer(self, question: object) -> object:
        if isinstance(question, KeepConfiguration):
            kept, new = self.configuration, question.configuration
            if kept is not None and new != kept and new.version != kept.version + 1:
                return ConfigurationRead(kept)
            self.configuration = new
            return ConfigurationKept(question.configuration.version)
        if isinstance(question, ReadConfiguration):
            return ConfigurationRead(self.configuration)
        assert isinstance(question, KeepSlice | RecallSlice)
        is_over = question.epoch < self.epochs.get(question.slice, 0)
        if not is_over:
            self.epochs[question.slice] = question.epoch
        if isinstance(question, RecallSlice):
            state = None if is_over else self.slices.get(question.slice, SliceState())
            return SliceRecalled(question.slice, question.epoch, state)
        if not is_over:
            self.slices[question.slice] = question.state
        return SliceKept(question.slice, question.epoch, question.state, not is_over)


class Listener:
    """Stands in for the enforcer: decides nothing."""

    def __init__(self) -> None:
        self.probes: list[ClusterProbes] = []

    def start(self, now: float) -> list[Effect]:
        return []

    def handle(self, message: Any, now: float) -> list[Effect]:
        self.probes.append(message.message)
        return []


class Cluster:
    """Some hosts, a manager, and an edge with a source and a sink. Everything random comes from one seed."""

    def __init__(self, seed: int, hosts: int = 2, keep_most_s: float = 0.02) -> None:
        self.keep_most_s = keep_most_s
        self.rng = Random(seed)
        self.environment = simpy.Environment()
        self.network = Network(self.environment, self, self.delay_s, self.rng)
        self.store = Store()
        self.sink = Sink()
        self.hosts: dict[str, SliceHost] = {}
        self.released: list[str] = []
        self.published = 0
        edge = SliceHost("edge", lambda name: self.sink if name == "sink" else Source(OPERATORS))
        self._add("edge", edge)
        self.enforcer = Listener()
        self._add("enforcer", self.enforcer)
        for name in ("source", "sink"):
            self.network.carry_out("edge", edge.run(name, 1))
        self.first = Configuration(OPERATORS, {"source": "edge", "sink": "edge"}).begun(hosts)
        for name in self.first.hosts:
            self.start_host(name)
        self.start_manager()

    def delay_s(self) -> float:
        return self.rng.uniform(0.001, 0.1)

    @property
    def now(self) -> float:
        return self.environment.now

    def _add(self, name: str, machine: Machine) -> None:
        self.network.add(name, machine)

    # Events

    def start_host(self, name: str) -> None:
        self.hosts[name] = SliceHost(name, lambda each: operator_of(each, OPERATORS, lambda _: Ranges()))
        self._add(name, self.hosts[name])

    def start_manager(self) -> None:
        """One that knows nothing but what was kept."""
        self.manager = Manager(self.first)
        self._add("manager", self.manager)

    def restart_manager(self) -> None:
        """The manager dies; another is started at once."""
        self.manager = Manager(self.first)
        self.network.restart("manager", self.manager)

    def crash(self, name: str) -> None:
        self.network.crash(name)

    def lose(self, share: float) -> None:
        self.network.loss = self.network.doubled = share

    def subscribe(self, number: int, low: int, high: int) -> None:
        self.network.hand_in("edge", Offered("source", Registration(number, "M", (low, high))))

    def publish(self, event: int) -> None:
        self.network.hand_in("edge", Offered("source", Publication(self.published, "M", event)))
        self.published += 1

    def ask(self, *moves: SliceMove, new_hosts: int = 0, released: tuple[str, ...] = ()) -> None:
        """Request moves, as an enforcer would."""
        self.network.hand_in("manager", MigrationRequest(moves, new_hosts, released, "asked for"))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        if end > self.now:
            self.environment.run(until=end)

    # The world outside of its network

    def answer(self, name: str, question: object) -> tuple[float, object]:
        if isinstance(question, AddHost):
            if question.host not in self.hosts:
                self.start_host(question.host)
            return 0.1, HostAdded(question.host)
        if isinstance(question, ReleaseHost):
            self.network.crash(question.host)
            self.released.append(question.host)
            return 0.1, HostReleased(question.host)
        return self.rng.uniform(0.001, self.keep_most_s), self.store.answer(question)

    def told(self, name: str, news: object) -> None:
        raise AssertionError(f"{name} tells {news}")

    def stopped(self, name: str) -> None:
        raise AssertionError(f"{name} stops")

    # State

    def stored(self) -> set[int]:
        """The subscriptions that have been kept at their matchers."""
        return {
            each.number
            for name, state in self.store.slices.items()
            if name.startswith("M")
            for each in state.content
        }

    @property
    def configuration(self) -> Configuration:
        assert self.store.configuration is not None
        return self.store.configuration

    def where(self) -> dict[str, str]:
        return {name: place.host for name, place in self.configuration.places.items()}


__all__ = ["OUTSIDE", "Cluster", "SliceMove"]
