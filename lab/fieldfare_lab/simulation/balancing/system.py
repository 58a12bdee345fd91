"""Clusters of brokers, publishers and subscribers: the machines of ``fieldfare.balancing`` in simulated time.

All machines run in one `Network`, which counts their messages by hops. Heads route without delay of their own
(the paper: "negligible"); a hop takes `LINK_S`. A record's offset is given by the head of the publishers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import numpy as np
import simpy

from fieldfare.balancing import Load, Metric
from fieldfare.balancing.messages import Decided, MeasureLoad, SessionEnded
from fieldfare.balancing.press import Profile, aggregate
from fieldfare.effects import Ask, Effect, Send
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
from fieldfare_lab.simulation.balancing.edge_engine import EdgeEngine, Machine
from fieldfare_lab.simulation.balancing.head import HeadBalancer, HeadSettings, HeadState
from fieldfare_lab.simulation.balancing.stock_market import Market, StockRegion
from fieldfare_lab.simulation.balancing.subscriber import Subscriber
from fieldfare_lab.simulation.network import Network

LINK_S = 0.01
"""A message's time on one link."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster-head and its edge brokers. Clusters form a chain; publishers are at the first head."""

    head: str
    edges: dict[str, Machine]


@dataclass(frozen=True, slots=True)
class Estimation:
    """A performance metric as estimated by an offload algorithm, and as measured after the session."""

    at_s: float
    broker: str
    role: str
    metric: str
    before: float
    estimated: float
    measured: float


@dataclass(slots=True)
class _Pending:
    role: str
    before: Load
    estimated: Load
    due_s: float | None = None


@dataclass(slots=True)
class Records:
    """What happened in a run."""

    loads: list[tuple[float, str, Load]] = field(default_factory=list)
    moves: list[tuple[float, int, str, str]] = field(default_factory=list)
    """(time, subscriber, from, to)."""
    sessions: list[tuple[float, str, Decided]] = field(default_factory=list)
    estimations: list[Estimation] = field(default_factory=list)
    control: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    events: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Messages by the second in which they were sent."""
    kinds: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    delays: dict[int, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.0, 0.0]))
    """By 10 s: sum of delays, and number of deliveries."""


class BalancedBrokers(Network):
    """Brokers of some clusters that balance the load of a market.

    Parameters
    ----------
    first_broker
        The edge broker at which all subscribers join.
    is_balancing
        Whether sessions are begun; without them, the load stays where it came.
    starts_s
        Edge brokers that start later than the others.
    """

    def __init__(
        self,
        clusters: Sequence[Cluster],
        market: Market,
        first_broker: str,
        settings: HeadSettings,
        rng: Random,
        is_balancing: bool = True,
        is_calibrated: bool = False,
        starts_s: Mapping[str, float] | None = None,
    ) -> None:
        self.clock = simpy.Environment()
        super().__init__(self.clock, self, lambda: LINK_S, rng)
        self.market, self.settings = market, settings
        self.records = Records()
        self.first_broker = first_broker
        self._rng = rng
        by_subscriber = market.matched[:, market.subscriber_columns]
        self._matched = [np.flatnonzero(row) for row in by_subscriber]
        count = len(market.regions)
        self.joined_at = np.full(count, np.iinfo(np.int64).max)
        self.expected = np.zeros((2, count), dtype=np.int64)
        self.received = np.zeros((2, count), dtype=np.int64)
        self.offset = 0
        self.engines: dict[str, EdgeEngine] = {}
        self._distance: dict[str, int] = {}
        self._cluster: dict[str, int] = {}
        self._pending: dict[str, _Pending] = {}
        self._speed = [1.0] * len(market.intervals_s)
        self._is_publishing = True
        self._starts_s = starts_s or {}
        self._regions = [Subscription(f"s{id}", f"c{id}", region) for id, region in enumerate(market.regions)]
        heads = [each.head for each in clusters]
        for place, cluster in enumerate(clusters):
            self._add_cluster(place, cluster, heads, is_calibrated, is_balancing)

    def _add_cluster(
        self, place: int, cluster: Cluster, heads: list[str], is_calibrated: bool, is_balancing: bool
    ) -> None:
        neighbours = tuple(heads[at] for at in (place - 1, place + 1) if 0 <= at < len(heads))
        for name, machine in cluster.edges.items():
            engine = EdgeEngine(
                self.clock,
                machine,
                self._matched,
                len(self.market.regions),
                self.market.quotes.sizes,
                self._deliver,
                is_calibrated,
            )
            self.engines[name] = engine
            self._distance[name] = place + 2
            self._cluster[name] = place
            if is_balancing:
                balancer = MigratingBalancer(MigratingState(name, cluster.head, cluster.head), self.settings)
                self._at(self._starts_s.get(name, 0.0), partial(self.add, name, balancer))
        self._cluster[cluster.head] = place
        if is_balancing:
            edges = tuple(cluster.edges)
            state = HeadState(cluster.head, cluster.head, edges, neighbours)
            self.add(cluster.head, HeadBalancer(state, self.settings))

    # The market

    def open(self, starts_s: float, joins_s: tuple[float, float]) -> None:
        """Schedule publishers, and subscribers who join in a span of time."""
        for publisher, interval_s in enumerate(self.market.intervals_s):
            start, end = self.market.published[publisher]
            quote = self._rng.randrange(start, end)
            self._at(starts_s + self._rng.random() * interval_s, self._publisher(publisher, quote))
        for id in range(len(self.market.regions)):
            self._at(self._rng.uniform(*joins_s), lambda id=id: self._join(id))  # type: ignore[misc]

    def _publisher(self, publisher: int, quote: int) -> Callable[[], None]:
        start, end = self.market.published[publisher]

        def publish() -> None:
            nonlocal quote
            if not self._is_publishing:
                return
            self._publish(quote)
            quote = quote + 1 if quote + 1 < end else start
            interval_s = self.market.intervals_s[publisher] / self._speed[publisher]
            self._at(self.clock.now + interval_s, publish)

        return publish

    def double(self, share: float, at_s: float) -> None:
        """Let a share of the publishers double their rates at a time."""
        count = len(self._speed)
        chosen = self._rng.sample(range(count), round(share * count))

        def doubled() -> None:
            for publisher in chosen:
                self._speed[publisher] = 2.0

        self._at(at_s, doubled)

    def set_speeds(self, at_s: float, speeds: Mapping[int, float]) -> None:
        """Change the rates of some publishers, as multiples of the drawn ones, at a time."""

        def change() -> None:
            for publisher, speed in speeds.items():
                self._speed[publisher] = speed

        self._at(at_s, change)

    def _join(self, id: int) -> None:
        engine = self.engines[self.first_broker]
        self._count_control("subscription", self._distance[self.first_broker])
        self.joined_at[id] = self.offset
        engine.set_places(id, self.offset)
        if self.first_broker in self.machines:
            self.hand_in(self.first_broker, Subscribed(self._regions[id]))

    def _publish(self, quote: int) -> None:
        offset, self.offset = self.offset, self.offset + 1
        now, second = self.clock.now, int(self.clock.now)
        matched = self._matched[quote]
        matched = matched[self.joined_at[matched] <= offset]
        self.expected[0][matched] += 1
        self.expected[1][matched] += offset + 1
        self.records.events[second] += 1
        farthest = 0
        for name, engine in self.engines.items():
            if len(engine.subscribers_of(offset, quote)):
                farthest = max(farthest, self._cluster[name])
                self.records.events[second] += 1
                self._at(now + LINK_S * self._distance[name], partial(engine.arrive, offset, quote, now))
        self.records.events[second] += farthest

    def _deliver(self, subscribers: Any, offset: int, delay_s: float) -> None:
        self.received[0][subscribers] += 1
        self.received[1][subscribers] += offset + 1
        self.records.events[int(self.clock.now)] += len(subscribers)
        sums = self.records.delays[int(self.clock.now // 10)]
        sums[0] += delay_s * len(subscribers)
        sums[1] += len(subscribers)

    def run(self, until_s: float, drains_s: float = 60.0) -> None:
        """Run, then stop publishing and let the queues drain."""
        self._at(self.clock.now, self._watch)
        self.clock.run(until_s)
        self._is_publishing = False
        self.clock.run(until_s + drains_s)

    def _watch(self) -> None:
        for name, engine in self.engines.items():
            if name not in self.machines:
                engine.snapshot()
            self.records.loads.append((self.clock.now, name, engine.load(0.0)))
        self._at(self.clock.now + 20, self._watch)

    def lost(self) -> int:
        """Return the number of events that a subscriber should have and has not."""
        return int(np.maximum(0, self.expected[0] - self.received[0]).sum())

    def doubled_or_foreign(self) -> int:
        """Return the number of deliveries too many, or of other events than expected."""
        too_many = int(np.maximum(0, self.received[0] - self.expected[0]).sum())
        same = self.received[0] == self.expected[0]
        return too_many + int((same & (self.received[1] != self.expected[1])).sum())

    # Messages of machines

    def carry_out(self, name: str, effects: Sequence[Effect]) -> None:
        left: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Send):
                if effect.to.startswith("c") and effect.to not in self.machines:
                    self.add(effect.to, Subscriber(effect.to, self.settings.retry_s))
                self._count_control(type(effect.message).__name__, self._hops(name, effect.to))
                left.append(effect)
            elif isinstance(effect, Ask) and not isinstance(effect.question, MeasureLoad):
                self._asked(name, effect.question)
            else:
                left.append(effect)
        super().carry_out(name, left)

    def _count_control(self, kind: str, hops: int) -> None:
        self.records.control[int(self.clock.now)] += hops
        self.records.kinds[kind] += hops

    def _hops(self, one: str, other: str) -> int:
        """Links between two machines: subscribers are one from each edge, edges one from their heads."""
        if one.startswith("c") or other.startswith("c"):
            return 1
        between = abs(self._cluster[one] - self._cluster[other])
        return between + (one in self.engines) + (other in self.engines)

    def answer(self, name: str, question: object) -> tuple[float, object]:
        assert isinstance(question, MeasureLoad)
        load = self.engines[name].load(question.since_s)
        self._measured(name, load)
        return 0.0, load

    def _asked(self, name: str, question: object) -> None:
        if isinstance(question, Sample):
            self._sample(name, question)
        elif isinstance(question, Attach):
            self._attach(name, question)
        elif isinstance(question, Detach):
            self._detach(name, question)
        else:
            raise TypeError(question)

    def _sample(self, name: str, asked: Sample) -> None:
        engine, began_s = self.engines[name], self.clock.now
        if asked.from_log:
            from_s = max(asked.since_s, began_s - asked.timeout_s)
            recent = [entry for entry in engine.log if entry[0] >= from_s]
            if len(recent) > asked.samples:
                recent = recent[-asked.samples :]
                from_s = recent[0][0]
            self._answer(name, self._profile(asked, [quote for _, quote in recent], began_s - from_s))
            return
        taken: list[int] = []

        def watch(quote: int) -> None:
            taken.append(quote)
            if len(taken) == asked.samples:
                end()

        def end() -> None:
            if watch in engine.watching:
                engine.watching.remove(watch)
                self._answer(name, self._profile(asked, taken, self.clock.now - began_s))

        engine.watching.append(watch)
        self._at(began_s + asked.timeout_s, end)

    def _answer(self, name: str, message: object) -> None:
        self._at(self.clock.now, lambda: self.hand_in(name, message))

    def _profile(self, asked: Sample, quotes: list[int], span_s: float) -> Sampled:
        unique, matched = self.market.unique, self.market.matched
        rows = matched[quotes]
        keys = tuple(key for key in asked.keys if isinstance(key, StockRegion))
        css = [unique[each] for each in asked.css if isinstance(each, StockRegion)]
        accepted = aggregate(rows[:, css].T, len(quotes))
        bits = np.ascontiguousarray(rows[:, [unique[key] for key in keys]].T)
        size = float(self.market.quotes.sizes[quotes].mean()) if quotes else 0.0
        per_s = len(quotes) / span_s if span_s > 0 else 0.0
        sizes = self.market.quotes.sizes[quotes] if asked.from_log else None
        return Sampled(asked.session, Profile(keys, bits, accepted, per_s, size, sizes))

    def _attach(self, name: str, asked: Attach) -> None:
        id, hops = int(asked.subscription.id[1:]), self._distance[name] - 1
        self._count_control("subscription", hops)
        engine = self.engines[name]

        def at_origin() -> None:
            engine.set_places(id, self.offset, is_held=True)
            answer = Attached(asked.session, asked.subscription.id, {"origin": self.offset})
            self._at(self.clock.now + LINK_S * hops, lambda: self.hand_in(name, answer))

        self._at(self.clock.now + LINK_S * hops, at_origin)

    def _detach(self, name: str, asked: Detach) -> None:
        engine = self.engines[name]
        places = {id: max(at["origin"], engine.last_arrived + 1) for id, at in asked.places.items()}
        ids = [int(id[1:]) for id in places]
        for id, place in zip(ids, places.values(), strict=True):
            engine.set_places(id, int(engine.first[id]), place)
        self._count_control("unsubscription", len(ids) * (self._distance[name] - 1))

        def left() -> None:
            for id in ids:
                engine.remove(id)
            self.hand_in(name, Detached(asked.session, {id: {"origin": at} for id, at in places.items()}))

        # All records before the places are on their way here.
        arrived_s = self.clock.now + LINK_S * (self._distance[name] + 1)
        self._at(arrived_s, lambda: engine.drain(max(places.values()), left))

    def _at(self, at_s: float, action: Callable[[], None]) -> None:
        timer = self.clock.timeout(max(0.0, at_s - self.clock.now))
        timer.callbacks.append(lambda _: action())

    # What machines tell

    def told(self, name: str, news: object) -> None:
        if isinstance(news, Open):
            id = int(news.id[1:])
            self.engines[name].open(id, news.places["origin"])
            self.records.moves.append((self.clock.now, id, news.session.offloader, name))
        elif isinstance(news, Drop):
            if self.engines[name].held[int(news.id[1:])]:
                self.engines[name].remove(int(news.id[1:]))
        elif isinstance(news, Decided):
            self.records.sessions.append((self.clock.now, name, news))
            if news.moved:
                self._pending[name] = _Pending("offloading", news.before[0], news.after[0])
                self._pending[news.to] = _Pending("accepting", news.before[1], news.after[1])
            else:
                self._pending.pop(name, None)
        elif isinstance(news, SessionEnded) and news.moved:
            self.engines[name].snapshot()
            if name in self._pending:
                self._pending[name].due_s = self.clock.now + self.settings.stabilise_s - 1e-6

    def _measured(self, name: str, load: Load) -> None:
        pending = self._pending.get(name)
        if pending is None or pending.due_s is None or self.clock.now < pending.due_s:
            return
        if self.engines[name].is_catching_up:
            # What is sent now belongs to the time before the session: measured once that is over.
            pending.due_s = self.clock.now + self.settings.stabilise_s - 1e-6
            return
        del self._pending[name]
        for metric in Metric:
            values = [float(each.metric(metric)) for each in (pending.before, pending.estimated, load)]
            self.records.estimations.append(
                Estimation(self.clock.now, name, pending.role, metric.value, *values)
            )

    def stopped(self, name: str) -> None:
        raise AssertionError(name)
