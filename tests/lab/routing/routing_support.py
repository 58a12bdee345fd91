"""A world of brokers for tests: links that delay, lose, are cut and heal; crashes; and what must come out.

A broker's state is stored after each message, together with what it delivered, and its effects are carried
out after that; a crash loses everything since. The oracle knows nothing of routing: it takes each origin's
answers (`Counts`) and stamps, and says which record counts for which subscription.
"""

from __future__ import annotations

import pickle
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from fieldfare.effects import Effect, Received, Send, Tell, Timer
from fieldfare_lab.routing import (
    Broker,
    BrokerSettings,
    Ddbr,
    new_state,
)
from fieldfare_lab.routing.messages import (
    Counts,
    Delivered,
    Filter,
    LinkDown,
    LinkUp,
    Publish,
    Refused,
    Remove,
    SetAdvertisement,
    SetSubscription,
)
from fieldfare_lab.routing.strategy import Strategy

VALUES = 100
"""Events are the integers below this."""


@dataclass(frozen=True)
class Range:
    """A filter: the integers from `low` to `high`."""

    low: int
    high: int

    def matches(self, event: Any) -> bool:
        return bool(self.low <= event <= self.high)

    def intersects(self, other: Any) -> bool:
        return True if not isinstance(other, Range) else self.low <= other.high and other.low <= self.high

    def covers(self, other: Any) -> bool:
        return isinstance(other, Range) and self.low <= other.low and other.high <= self.high

    def __str__(self) -> str:
        return f"{self.low}..{self.high}"


@dataclass
class Site:
    """A broker as the world sees it: what is stored, and what happened there."""

    strategy: Strategy
    stored: bytes
    broker: Broker | None = None
    life: int = 0
    offset: int = 0
    delivered: list[Delivered] = field(default_factory=list)
    counts: list[Counts] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    filters: dict[tuple[str, int], Filter | None] = field(default_factory=dict)
    records: list[tuple[int, int, Any]] = field(default_factory=list)
    """(offset, stamp, event) of each record published here."""


class World:
    """Brokers and links in simulated time.

    Parameters
    ----------
    strategy
        Returns the routing protocol of the broker with a name.
    delay_s
        Draws the delay of a message.
    late_share
        Share of the messages on a link that is cut which arrive all the same.
    crash_share
        Share of the steps after which a broker crashes before its state is stored. For tests of the tests,
        `stores_first` False carries effects out before the state is stored.
    """

    def __init__(
        self,
        seed: int,
        strategy: Callable[[str], Strategy] = lambda _: Ddbr(),
        settings: BrokerSettings | None = None,
        broker: type[Broker] = Broker,
    ) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.sites: dict[str, Site] = {}
        self.links: dict[frozenset[str], tuple[str, ...]] = {}
        self.up: dict[frozenset[str], int] = {}
        self.delay_s: Callable[[], float] = lambda: 0.01
        self.loss = 0.0
        self.late_share = 0.0
        self.crash_share = 0.0
        self.stores_first = True
        self.removed: set[str] = set()
        self.write: Callable[[str, str, object], None] | None = None
        self._strategy = strategy
        self._settings = settings or BrokerSettings()
        self._broker = broker
        self._connected: dict[tuple[str, frozenset[str]], int | None] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._epoch = count(1)

    # What tests do

    def add(self, name: str, ads: Iterable[tuple[str, Filter]] = ()) -> None:
        strategy = self._strategy(name)
        state = new_state(name, f"{name}-{len(self.sites)}", strategy)
        self.sites[name] = Site(strategy, pickle.dumps(state))
        self.start(name)
        for id, filter in ads:
            self.command(name, SetAdvertisement(id, filter))

    def link(self, a: str, b: str, *groups: str) -> None:
        self.links[frozenset((a, b))] = groups or ("",)
        self.heal(a, b)

    def start(self, name: str) -> None:
        site = self.sites[name]
        if site.broker is not None:
            return
        site.broker = self._broker(pickle.loads(site.stored), site.strategy, self._settings)
        self._finish(name, site.broker.start(self.now))
        for pair in self.links:
            if name in pair and pair in self.up:
                self.up[pair] = next(self._epoch)
                self._report_up(pair)

    def crash(self, name: str) -> None:
        site = self.sites[name]
        site.broker = None
        site.life += 1
        for pair in self.links:
            if name in pair and pair in self.up:
                (other,) = pair - {name}
                self._report(other, LinkDown(name), pair)

    def cut(self, a: str, b: str) -> None:
        pair = frozenset((a, b))
        if self.up.pop(pair, None) is not None:
            for name, other in ((a, b), (b, a)):
                self._report(name, LinkDown(other), pair)

    def heal(self, a: str, b: str) -> None:
        pair = frozenset((a, b))
        if pair not in self.up:
            self.up[pair] = next(self._epoch)
            self._report_up(pair)

    def subscribe(self, name: str, id: str, low: int, high: int) -> None:
        self.command(name, SetSubscription(id, Range(low, high)))

    def unsubscribe(self, name: str, id: str) -> None:
        self.command(name, SetSubscription(id, None))

    def publish(self, name: str, event: Any) -> None:
        site = self.sites[name]
        if site.broker is None:
            return
        self.command(name, Publish(0, site.offset, event))
        if site.broker is None:
            # A log feeds its broker again after a crash.
            self.start(name)
            self.command(name, Publish(0, site.offset, event))
        site.offset += 1

    def remove(self, name: str, by: str) -> None:
        self.crash(name)
        self.removed.add(name)
        for pair in [pair for pair in self.links if name in pair]:
            del self.links[pair]
            self.up.pop(pair, None)
        self.command(by, Remove(name))

    def command(self, name: str, message: object) -> None:
        self._step(name, message)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._queue and self._queue[0][0] <= end:
            self.now, _, act = heappop(self._queue)
            act()
        self.now = end

    def settle(self, limit_s: float = 120.0) -> bool:
        """Run until nothing is in custody and nothing outstanding; return whether that came about."""
        end = self.now + limit_s
        while self.now < end:
            self.run(1.0)
            brokers = [site.broker for name, site in self.sites.items() if name not in self.removed]
            if all(broker is not None and broker.is_quiet() for broker in brokers):
                return True
        return False

    def heal_all(self) -> None:
        self.loss = self.crash_share = 0.0
        for name in sorted(self.sites.keys() - self.removed):
            self.start(name)
        for pair in self.links:
            self.heal(*sorted(pair))

    # What must come out

    def expected(self, name: str) -> Counter[tuple[str, str, int]]:
        """(subscription, origin, offset) of each record that counts by the origins' answers and stamps."""
        site = self.sites[name]
        answers: dict[tuple[str, str], list[tuple[int, int, bool]]] = defaultdict(list)
        for each in site.counts:
            answers[each.subscription, each.origin].append((each.version, each.revision, each.is_end))
        found: Counter[tuple[str, str, int]] = Counter()
        for (id, origin), starts in answers.items():
            starts.sort()
            for offset, stamp, event in self.sites[origin].records:
                counting = [(version, is_end) for version, revision, is_end in starts if revision <= stamp]
                filter = site.filters[id, counting[-1][0]] if counting and not counting[-1][1] else None
                if filter is not None and filter.matches(event):
                    found[id, origin, offset] += 1
        return found

    def delivered(self, name: str) -> Counter[tuple[str, str, int]]:
        return Counter(
            (id, each.publication.origin.broker, each.publication.origin.offset)
            for each in self.sites[name].delivered
            for id in each.subscriptions
        )

    def faults(self) -> list[str]:
        """Each record that was lost, doubled or foreign."""
        found = []
        for name in sorted(self.sites.keys() - self.removed):
            expected, delivered = self.expected(name), self.delivered(name)
            for key in sorted(expected.keys() | delivered.keys()):
                if expected[key] != delivered[key]:
                    found.append(f"{name} {key}: {delivered[key]} times, not {expected[key]}")
        return found

    # How it goes on

    def _step(self, name: str, message: object) -> None:
        site = self.sites[name]
        if site.broker is None:
            return
        if self.write is not None:
            self.write("to", name, message)
        effects = site.broker.handle(message, self.now)
        if self.crash_share and self.rng.random() < self.crash_share:
            if not self.stores_first:
                self._carry_out(name, [each for each in effects if isinstance(each, Send)])
            self.crash(name)
            self._at(self.rng.uniform(0.1, 5.0), lambda: self.start(name))
            return
        if isinstance(message, Publish) and site.broker.state.published.get(0) == message.offset + 1:
            site.records.append((message.offset, site.broker.state.revision, message.event))
        if isinstance(message, SetSubscription):
            site.filters[message.id, site.broker.state.revision] = message.filter
        self._finish(name, effects)

    def _finish(self, name: str, effects: list[Effect]) -> None:
        site = self.sites[name]
        assert site.broker is not None
        site.stored = pickle.dumps(site.broker.state)
        for effect in effects:
            if isinstance(effect, Tell):
                if self.write is not None:
                    self.write("from", name, effect.news)
                if isinstance(effect.news, Delivered):
                    site.delivered.append(effect.news)
                elif isinstance(effect.news, Counts):
                    site.counts.append(effect.news)
                elif isinstance(effect.news, Refused):
                    site.refused.append(effect.news)
        self._carry_out(name, effects)

    def _carry_out(self, name: str, effects: Iterable[Effect]) -> None:
        life = self.sites[name].life
        for effect in effects:
            if isinstance(effect, Send):
                pair = frozenset((name, effect.to))
                epoch = self.up.get(pair)
                if epoch is not None and not (self.loss and self.rng.random() < self.loss):
                    received = Received(name, effect.message)
                    self._at(self.delay_s(), self._arrival(pair, epoch, effect.to, received))
            elif isinstance(effect, Timer):
                self._at(effect.at_s - self.now, self._own(name, life, effect.message))

    def _arrival(self, pair: frozenset[str], epoch: int, to: str, message: object) -> Callable[[], None]:
        """A connection carries messages to a broker that knows of it; some come when it has ended."""

        def arrive() -> None:
            is_open = self.up.get(pair) == epoch and self._connected.get((to, pair)) == epoch
            if is_open or (self._knows(to, pair) and self.late_share > self.rng.random()):
                self._step(to, message)

        return arrive

    def _knows(self, name: str, pair: frozenset[str]) -> bool:
        broker = self.sites[name].broker
        return broker is not None and not pair.isdisjoint(broker.state.multicast.links)

    def _own(self, name: str, life: int, message: object) -> Callable[[], None]:
        return lambda: self._step(name, message) if self.sites[name].life == life else None

    def _report_up(self, pair: frozenset[str]) -> None:
        for name in sorted(pair):
            (other,) = pair - {name}
            if self.sites[name].broker is not None and self.sites[other].broker is not None:
                self._report(name, LinkUp(other, self.links[pair]), pair)

    def _report(self, name: str, message: LinkUp | LinkDown, pair: frozenset[str]) -> None:
        epoch, life = self.up.get(pair), self.sites[name].life

        def arrive() -> None:
            if self.up.get(pair) == epoch and self.sites[name].life == life:
                self._connected[name, pair] = epoch if isinstance(message, LinkUp) else None
                self._step(name, message)

        self._at(self.delay_s(), arrive)

    def _at(self, delay_s: float, act: Callable[[], None]) -> None:
        heappush(self._queue, (self.now + max(0.0, delay_s), next(self._order), act))
