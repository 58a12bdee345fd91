"""A cluster of brokers for tests: control messages are lost, late and cut, and brokers crash.

Links carry events exactly once and in order (``fieldfare.routing`` does), also to a broker that was down.
Everything else may be lost. A broker's state is stored after each message, and its effects are carried out
after that. The oracle knows nothing of sessions: each event that matches belongs to its subscriber, once, and
those of one origin in order.
"""

from __future__ import annotations

import pickle
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

import numpy as np

from fieldfare.balancing import Load, MatchingCost
from fieldfare.balancing.messages import MeasureLoad, Pie, SessionId
from fieldfare.balancing.press import Profile
from fieldfare.effects import Ask, Effect, Received, Send, Tell, Timer
from fieldfare_lab.balancing import MigratingBalancer, MigratingState
from fieldfare_lab.balancing.messages import (
    Attach,
    Attached,
    Detach,
    Detached,
    Drop,
    Open,
    Sample,
    Sampled,
    Subscribed,
    Subscription,
)
from fieldfare_lab.simulation.balancing.head import HeadBalancer, HeadSettings, HeadState
from fieldfare_lab.simulation.balancing.offload import offload
from fieldfare_lab.simulation.balancing.subscriber import Subscriber

SETTINGS = HeadSettings(
    offload=offload,
    stabilise_s=10,
    detection_s=2,
    pie_s=10,
    stale_s=30,
    sampling_s=4,
    reply_s=2,
    retry_s=1,
    rest_s=0,
)


@dataclass(frozen=True)
class Range:
    """A filter: the integers from `low` to `high`."""

    low: int
    high: int

    @property
    def key(self) -> Range:
        return self

    def covers(self, other: Range) -> bool:
        return self.low <= other.low and other.high <= self.high

    def matches(self, event: int) -> bool:
        return self.low <= event <= self.high


@dataclass
class Entry:
    """A subscription in a broker's tables: the records of each origin that are delivered here."""

    subscription: Subscription
    session: SessionId | None
    first: dict[str, int]
    until: dict[str, int] = field(default_factory=dict)
    is_held: bool = False
    kept: list[tuple[str, int]] = field(default_factory=list)


@dataclass
class Edge:
    """An edge broker: what is stored, its tables, and the events that come to it."""

    stored: bytes
    machine: MigratingBalancer | None = None
    life: int = 0
    delay_unit_s: float = 0.001
    entries: dict[str, Entry] = field(default_factory=dict)
    arriving: dict[str, deque[Any]] = field(default_factory=lambda: defaultdict(deque))
    arrived: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    dropped: set[tuple[SessionId, str]] = field(default_factory=set)
    draining: dict[SessionId, dict[str, dict[str, int]]] = field(default_factory=dict)


class World:
    """Edge brokers of a cluster, their head, subscribers, and origins of events."""

    def __init__(self, seed: int, settings: HeadSettings = SETTINGS) -> None:
        self.rng = Random(seed)
        self.settings = settings
        self.now = 0.0
        self.rate = 20.0
        self.loss = 0.0
        self.crash_share = 0.0
        self.lag_s: dict[str, float] = {}
        self.edges: dict[str, Edge] = {}
        self.head: HeadBalancer | None = None
        self.clients: dict[str, Subscriber] = {}
        self.silent: set[str] = set()
        self.records: dict[str, list[int]] = {"P": [], "Q": []}
        self.since: dict[str, tuple[Subscription, dict[str, int]]] = {}
        self.delivered: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self.to_lose: dict[str, int] = defaultdict(int)
        self.cuts: set[str] = set()
        self.to_crash: dict[str, list[str]] = {}
        self.write: Callable[[str, str, object], None] | None = None
        self.duplicate_share = 0.0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    # Commands of tests

    def build(self, *names: str) -> None:
        """Start a cluster; the first broker has the least room."""
        state = HeadState("H", "H", names, ())
        self.head = HeadBalancer(state, self.settings)
        for name in names:
            self.edges[name] = Edge(pickle.dumps(MigratingState(name, "H", "H")))
            self.start(name)
        self._carry_out("H", self.head.start(self.now), 0)

    def subscribe(self, broker: str, id: str, low: int, high: int, *, is_pinned: bool = False) -> None:
        subscription = Subscription(id, f"c-{id}", Range(low, high), is_pinned)
        places = {origin: len(events) for origin, events in self.records.items()}
        self.since[id] = subscription, places
        self.clients[f"c-{id}"] = Subscriber(f"c-{id}", self.settings.retry_s)
        self.edges[broker].entries[id] = Entry(subscription, None, dict(places))
        self._handle(broker, Subscribed(subscription))

    def publish(self, origin: str, event: int) -> None:
        self.records[origin].append(event)
        for name in self.edges:
            self._arrive(name, origin, len(self.records[origin]) - 1)

    def _arrive(self, name: str, origin: str, item: Any) -> None:
        self.edges[name].arriving[origin].append(item)
        late_s = self.lag_s.get(name, 0.0) + 0.01 + 0.05 * self.rng.random()
        self._at(self.now + late_s, lambda: self._take(name, origin))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self._queue and self._queue[0][0] <= until:
            self.now, _, action = heappop(self._queue)
            action()
        self.now = until

    def crash(self, name: str) -> None:
        edge = self.edges[name]
        if edge.machine is None:
            return
        edge.machine, edge.life = None, edge.life + 1
        # The runtime forgets attachments that were not answered; what was stored stays.
        edge.draining.clear()

    def start(self, name: str) -> None:
        edge = self.edges[name]
        if edge.machine is not None:
            return
        edge.machine = MigratingBalancer(pickle.loads(edge.stored), self.settings)
        self._finish(name, edge.machine.start(self.now))
        self._forget(name)
        for origin in self.records:
            while edge.arriving[origin] and edge.machine is not None:
                self._take(name, origin)

    def _forget(self, name: str) -> None:
        """Drop attachments that the balancer does not know any more."""
        edge = self.edges[name]
        state = pickle.loads(edge.stored)
        known = {(session, id) for session, each in state.incoming.items() for id in each.places}
        if state.accepting is not None:
            known |= {(state.accepting.session, id) for id in state.accepting.joined}
        for id, entry in list(edge.entries.items()):
            if entry.is_held and (entry.session, id) not in known:
                del edge.entries[id]

    def settle(self, seconds: float = 120) -> None:
        """End all trouble, start all brokers, and let sessions finish."""
        self.loss = self.crash_share = self.duplicate_share = 0.0
        self.to_lose.clear()
        self.to_crash.clear()
        self.cuts.clear()
        self.silent.clear()
        for name in self.edges:
            self.start(name)
        self.run(seconds)

    def wrong(self) -> list[str]:
        """Return what contradicts the oracle."""
        found = []
        for id, (subscription, places) in self.since.items():
            for origin, events in self.records.items():
                due = [
                    offset
                    for offset in range(places[origin], len(events))
                    if subscription.region.matches(events[offset])  # type: ignore[attr-defined]
                ]
                got = [offset for each, offset in self.delivered[id] if each == origin]
                if due != got:
                    found.append(f"{id}, {origin}: due {due}, delivered {got}")
        for name, edge in self.edges.items():
            if edge.machine is None:
                continue
            open_ = {id for id, entry in edge.entries.items() if not entry.is_held}
            state = edge.machine.state
            if open_ != set(state.subscriptions):
                found.append(f"{name} delivers {sorted(open_)}, its balancer {sorted(state.subscriptions)}")
            if state.outgoing or state.incoming or any(entry.is_held for entry in edge.entries.values()):
                found.append(f"{name} has an unfinished session")
        return found

    # The network

    def _at(self, at_s: float, action: Callable[[], None]) -> None:
        heappush(self._queue, (max(at_s, self.now), next(self._order), action))

    def _handle(self, name: str, message: object) -> None:
        if name == "H":
            assert self.head is not None
            self._carry_out("H", self.head.handle(message, self.now), 0)
        elif name in self.clients:
            if name not in self.silent:
                self._carry_out(name, self.clients[name].handle(message, self.now), 0)
        elif (machine := self.edges[name].machine) is not None:
            self._finish(name, machine.handle(message, self.now))

    def _finish(self, name: str, effects: list[Effect]) -> bool:
        """Store the state and what it told, then carry out the other effects; False: crashed before."""
        edge = self.edges[name]
        assert edge.machine is not None
        kinds = [type(each.message).__name__ for each in effects if isinstance(each, Send)]
        if self.crash_share and self.rng.random() < self.crash_share:
            self._restart(name)
            return False
        edge.stored = pickle.dumps(edge.machine.state)
        for effect in effects:
            if isinstance(effect, Tell):
                self._told(name, effect.news)
        named = [kind for kind in kinds if kind in self.to_crash.get(name, [])]
        if named:
            self.to_crash[name].remove(named[0])
            self._restart(name)
            return True
        self._carry_out(name, effects, edge.life)
        return True

    def _restart(self, name: str) -> None:
        self.crash(name)
        self._at(self.now + 3 * self.rng.random() + 0.5, lambda: self.start(name))

    def _carry_out(self, name: str, effects: list[Effect], life: int) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._send(name, effect)
            elif isinstance(effect, Timer):
                self._at(effect.at_s, lambda effect=effect: self._own(name, effect.message, life))  # type: ignore
            elif isinstance(effect, Ask):
                self._asked(name, effect.question, life)

    def _own(self, name: str, message: object, life: int) -> None:
        if name not in self.edges or self.edges[name].life == life:
            self._handle(name, message)

    def _send(self, name: str, effect: Send) -> None:
        kind = type(effect.message).__name__
        is_lost = self.rng.random() < self.loss or name in self.cuts or effect.to in self.cuts
        if self.to_lose[kind] > 0:
            self.to_lose[kind] -= 1
            is_lost = True
        if self.write is not None and not isinstance(effect.message, Pie):
            self.write("lost" if is_lost else "to", name, effect)
        if is_lost:
            return
        copies = 2 if self.rng.random() < self.duplicate_share else 1
        for _ in range(copies):
            late_s = 0.01 + 0.04 * self.rng.random() if self.loss or copies > 1 else 0.02
            self._at(self.now + late_s, lambda: self._handle(effect.to, Received(name, effect.message)))

    # The runtime of an edge broker

    def _asked(self, name: str, question: object, life: int) -> None:
        if isinstance(question, MeasureLoad):
            self._own(name, self._load(name, question.since_s), life)
        elif isinstance(question, Sample):
            answer = self._sampled(question)
            self._at(self.now + question.timeout_s / 4, lambda: self._own(name, answer, life))
        elif isinstance(question, Attach):
            for origin in self.records:
                # The origin answers on the link on which its events come.
                place = len(self.records[origin])
                self._arrive(name, origin, (question, place, life))
        elif isinstance(question, Detach):
            self._detach(name, question)

    def _load(self, name: str, since_s: float) -> Load:
        edge = self.edges[name]
        subscriptions = len(edge.entries)
        return Load(
            input_per_s=self.rate,
            matching_s=subscriptions * edge.delay_unit_s,
            subscriptions=subscriptions,
            output_bytes_per_s=0.0,
            output_bytes_per_s_max=1e6,
            cpu=min(1.0, self.rate * subscriptions * edge.delay_unit_s),
            cost=MatchingCost(subscription_s=edge.delay_unit_s),
            span_s=self.now - since_s,
        )

    def _sampled(self, asked: Sample) -> Sampled:
        samples = range(10)
        keys = [key for key in asked.keys if isinstance(key, Range)]
        bits = np.array([[key.matches(each) for each in samples] for key in keys], dtype=bool)
        css = [each for each in asked.css if isinstance(each, Range)]
        accepted = np.array([any(each.matches(event) for each in css) for event in samples], dtype=bool)
        bits = bits.reshape(len(keys), len(samples))
        return Sampled(asked.session, Profile(tuple(keys), bits, accepted, self.rate, 100.0))

    def _take(self, name: str, origin: str) -> None:
        """Take what comes next from an origin."""
        edge = self.edges[name]
        if edge.machine is None or not edge.arriving[origin]:
            return
        item = edge.arriving[origin].popleft()
        if isinstance(item, tuple):
            self._attached(name, origin, *item)
            return
        edge.arrived[origin] = item + 1
        event = self.records[origin][item]
        for id, entry in list(edge.entries.items()):
            is_mine = origin in entry.first and entry.first[origin] <= item
            if not is_mine or item >= entry.until.get(origin, item + 1):
                continue
            if not entry.subscription.region.matches(event):  # type: ignore[attr-defined]
                continue
            if entry.is_held:
                entry.kept.append((origin, item))
            else:
                self.delivered[id].append((origin, item))
        self._drained(name)

    def _attached(self, name: str, origin: str, asked: Attach, place: int, life: int) -> None:
        edge = self.edges[name]
        id = asked.subscription.id
        if edge.life != life or (asked.session, id) in edge.dropped:
            return
        entry = edge.entries.setdefault(id, Entry(asked.subscription, asked.session, {}, is_held=True))
        entry.first[origin] = place
        if len(entry.first) == len(self.records):
            self._handle(name, Attached(asked.session, id, dict(entry.first)))

    def _detach(self, name: str, asked: Detach) -> None:
        edge = self.edges[name]
        for id, places in asked.places.items():
            entry = edge.entries.get(id)
            if entry is not None and not entry.until:
                entry.until = {at: max(place, edge.arrived[at]) for at, place in places.items()}
        edge.draining[asked.session] = {
            id: edge.entries[id].until for id in asked.places if id in edge.entries
        }
        self._drained(name)

    def _drained(self, name: str) -> None:
        edge = self.edges[name]
        for session, places in list(edge.draining.items()):
            if all(edge.arrived[at] >= place for each in places.values() for at, place in each.items()):
                del edge.draining[session]
                self._at(self.now, lambda s=session, p=places: self._left(name, s, p, edge.life))  # type: ignore

    def _left(self, name: str, session: SessionId, places: dict[str, dict[str, int]], life: int) -> None:
        edge = self.edges[name]
        if edge.life != life:
            return
        assert edge.machine is not None
        # The tables are stored together with the balancer's state.
        if self._finish(name, edge.machine.handle(Detached(session, places), self.now)):
            for id in places:
                edge.entries.pop(id, None)

    def _told(self, name: str, news: object) -> None:
        edge = self.edges[name]
        if self.write is not None:
            self.write("tells", name, news)
        if isinstance(news, Open):
            entry = edge.entries[news.id]
            entry.is_held = False
            for origin, place in news.places.items():
                entry.first[origin] = max(entry.first[origin], place)
            kept, entry.kept = entry.kept, []
            self.delivered[news.id] += [(at, offset) for at, offset in kept if offset >= news.places[at]]
        elif isinstance(news, Drop):
            edge.dropped.add((news.session, news.id))
            entry = edge.entries.get(news.id)  # type: ignore[assignment]
            if entry is not None and entry.session == news.session and entry.is_held:
                del edge.entries[news.id]
