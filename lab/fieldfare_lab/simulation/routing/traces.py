"""Brokers run as machines on a simulated network; what each event made them do is recorded.

What a broker does for an event does not depend on the load, as long as subscriptions and topology stay as
they are. So the machines run once, and ``queueing`` computes the delays at each publishing rate from a trace.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import simpy

from fieldfare.effects import Effect, Received, Send
from fieldfare.routing.messages import LinkRow
from fieldfare_lab.routing import (
    Broker,
    BrokerSettings,
    new_state,
)
from fieldfare_lab.routing.links import Link
from fieldfare_lab.routing.messages import (
    Beat,
    Delivered,
    Forward,
    LinkDown,
    LinkState,
    LinkUp,
    Publication,
    Publish,
    Refused,
    SetSubscription,
)
from fieldfare_lab.routing.state import Group
from fieldfare_lab.routing.strategy import Strategy
from fieldfare_lab.simulation.network import Network
from fieldfare_lab.simulation.routing.topologies import Topology
from fieldfare_lab.simulation.routing.workload import Workload

DELAY_S = 0.05
"""A message's time on a link: a wide-area link."""
START_S = 10.0
"""Simulated seconds in which brokers with timers exchange topology and advertisements."""
QUIET_S = 1e6
"""The interval of the brokers' timers where nothing is lost: none fires."""

_COUNTED = ("held", "examined", "compared", "matchings", "listed")
"""The counters of a broker that a step has, too."""


@dataclass(slots=True)
class Step:
    """One broker's work for one event.

    Attributes
    ----------
    held, examined, compared, matchings
        Entries of the tables that it matched with, those that it scanned, those of them that it compared with
        the event (see `fieldfare.routing.tables.Counters`), and how often it matched.
    listed
        Destinations on the lists of the copies that it sent.
    parent
        The step that sent the event here; -1 at its origin.
    """

    broker: str
    parent: int
    held: int = 0
    examined: int = 0
    compared: int = 0
    matchings: int = 0
    delivered: int = 0
    sent: int = 0
    listed: int = 0


@dataclass(slots=True)
class Trace:
    """The steps of each event, parents first."""

    events: dict[int, list[Step]] = field(default_factory=lambda: defaultdict(list))


class Brokers(Network):
    """The brokers of an overlay, with a record of their work for events.

    Parameters
    ----------
    strategy
        Returns the protocol of a broker.
    publishers
        The brokers that advertise stocks; the others advertise nothing.
    is_ready
        Whether each broker knows the topology from the beginning, instead of learning it from messages: for
        large overlays.
    advertises
        Whether advertisements are sent.
    """

    def __init__(
        self,
        topology: Topology,
        strategy: Callable[[str], Strategy],
        workload: Workload,
        publishers: Sequence[str],
        settings: BrokerSettings | None = None,
        is_ready: bool = False,
        advertises: bool = True,
    ) -> None:
        self.clock = simpy.Environment()
        super().__init__(self.clock, self, lambda: DELAY_S, Random(0))
        self.topology = topology
        self.publishers = list(publishers)
        self.trace = Trace()
        self.messages: dict[str, int] = defaultdict(int)
        self.refused: list[Refused] = []
        self.delivered: dict[int, set[tuple[str, str]]] = defaultdict(set)
        self.repeated = 0
        self.informed: set[str] = set()
        self._down_links: set[frozenset[str]] = set()
        self._offsets: dict[str, int] = defaultdict(int)
        self._coming: dict[tuple[int, str, str], deque[int]] = defaultdict(deque)
        self._step: Step | None = None
        for name in topology.brokers:
            protocol = strategy(name)
            state = new_state(name, name, protocol)
            ad = workload.stocks if name in self.publishers else workload.nothing
            state.advertisements["stocks"] = (state.next_revision(), ad)
            self.add(name, Broker(state, protocol, settings or BrokerSettings(beat_s=QUIET_S)))
        for a, b in topology.links:
            if is_ready:
                self._connect(a, b)
            else:
                self.heal(a, b)
        if is_ready:
            self._complete(advertises)
        self.settle(None if settings is None else START_S)

    def broker(self, name: str) -> Broker:
        """Return a broker."""
        found = self.machines[name]
        assert isinstance(found, Broker)
        return found

    def settle(self, until_s: float | None = None) -> None:
        """Run until no message is on its way, or for some simulated seconds."""
        if until_s is not None:
            self.clock.run(self.clock.now + until_s)
            return
        while self.clock.peek() < self.clock.now + QUIET_S / 2:
            self.clock.step()

    def subscribe(self, workload: Workload, every_s: float | None = None) -> None:
        """Create the subscriptions of a workload, and wait for the answers.

        Parameters
        ----------
        every_s
            Simulated seconds to wait after each 50; by default, until no message is on its way. It must be
            given for brokers with timers.
        """
        names = self.topology.brokers
        for number, (place, filter) in enumerate(workload.subscriptions):
            name = names[int(place * len(names))]
            self.hand_in(name, SetSubscription(f"s{number}", filter))
            if number % 50 == 49:
                self.settle(every_s)
        self.settle(every_s)
        if self.refused:
            raise AssertionError(f"A broker refused a message: {self.refused[0]}")

    def publish(self, publisher: str, event: int) -> None:
        """Publish an event at a broker."""
        offset = self._offsets[publisher]
        self._offsets[publisher] += 1
        self.hand_in(publisher, Publish(0, offset, event))

    def cut_link(self, a: str, b: str) -> None:
        """Cut a link; what is on its way over it is lost."""
        self._down_links.add(frozenset((a, b)))
        self.hand_in(a, LinkDown(b))
        self.hand_in(b, LinkDown(a))

    def heal(self, a: str, b: str) -> None:
        """Let a link come up."""
        self._down_links.discard(frozenset((a, b)))
        groups = self._shared(a, b)
        self.hand_in(a, LinkUp(b, groups))
        self.hand_in(b, LinkUp(a, groups))

    def _shared(self, a: str, b: str) -> tuple[str, ...]:
        """Return the clusters of a link, as its brokers' protocol sees them."""
        others = self.broker(b).strategy.clusters
        return tuple([name for name in self.broker(a).strategy.clusters if name in others])

    def _connect(self, a: str, b: str) -> None:
        for name, peer in ((a, b), (b, a)):
            link = Link(peer, self._shared(name, peer), is_up=True)
            self.broker(name).state.multicast.links[peer] = link

    def _complete(self, advertises: bool) -> None:
        """Give each broker the rows of its clusters, as if they had been exchanged."""
        rows: dict[str, dict[str, LinkRow]] = defaultdict(dict)
        for name in self.topology.brokers:
            state = self.broker(name).state
            for group in state.multicast.overlays:
                links = tuple(sorted((peer, 1.0) for peer in state.multicast.peers(group)))
                state.row_version += 1
                rows[group][name] = LinkRow(name, state.identity, state.row_version, links)
        for name in self.topology.brokers:
            state = self.broker(name).state
            for group, overlay in state.multicast.overlays.items():
                overlay.merge(rows[group].values())
                overlay.rows[name] = rows[group][name]
                if not advertises:
                    state.groups.setdefault(group, Group()).told.update(rows[group])
                self.broker(name).matching.greet(group)
            self.hand_in(name, Beat())

    # The network

    def hand_in(self, name: str, message: object) -> None:
        if isinstance(message, Received) and frozenset((name, message.sender)) in self._down_links:
            return
        event = _event_of(message)
        if isinstance(message, Received) and isinstance(message.message, LinkState):
            self.informed.add(name)
        if event is None:
            self._step = None
            super().hand_in(name, message)
            return
        steps, counters = self.trace.events[event], self.broker(name).counters
        waiting = self._coming[event, message.sender, name] if isinstance(message, Received) else None
        step = Step(name, waiting.popleft() if waiting else -1)
        steps.append(step)
        before = [getattr(counters, name) for name in _COUNTED]
        self._step = step
        super().hand_in(name, message)
        for name, count in zip(_COUNTED, before, strict=True):
            setattr(step, name, getattr(counters, name) - count)
        self._step = None

    def carry_out(self, name: str, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if not isinstance(effect, Send):
                continue
            self.messages[type(effect.message).__name__] += 1
            event = _event_of(effect.message)
            if isinstance(effect.message, Forward) and event is not None:
                self.messages["Publication"] += 1
                step = self._step
                if step is not None:
                    step.sent += 1
                    number = len(self.trace.events[event]) - 1
                    self._coming[event, name, effect.to].append(number)
        super().carry_out(name, effects)

    # The outside

    def answer(self, name: str, question: object) -> tuple[float, object]:
        raise AssertionError(question)

    def told(self, name: str, news: object) -> None:
        if isinstance(news, Delivered):
            if self._step is not None:
                self._step.delivered += len(news.subscriptions)
            event = news.publication.event
            found = {(name, each) for each in news.subscriptions}
            self.repeated += len(found & self.delivered[event])
            self.delivered[event] |= found
        elif isinstance(news, Refused):
            self.refused.append(news)

    def stopped(self, name: str) -> None:
        raise AssertionError(name)


def _event_of(message: object) -> int | None:
    """Return the number of the event that a message carries or publishes; None for other messages."""
    inner = message.message if isinstance(message, Received) else message
    if isinstance(inner, Publish):
        return int(inner.event)
    if isinstance(inner, Forward) and isinstance(inner.routed.content, Publication):
        return int(inner.routed.content.event)
    return None


def expected(workload: Workload, topology: Topology) -> dict[int, set[tuple[str, str]]]:
    """Return for each event the (broker, subscription) pairs to which it must be delivered."""
    names, found = topology.brokers, defaultdict[int, set[tuple[str, str]]](set)
    for number, (place, filter) in enumerate(workload.subscriptions):
        for event in filter.matched:
            found[event].add((names[int(place * len(names))], f"s{number}"))
    return found
