"""The balancer of a cluster-head: PIE between clusters, global detection, mediation (sections 3.2, 3.3).

    local PIE of its edge brokers ──▶ the other edge brokers; in a global session the other head's, too
    mean of them ──▶ global PIE, one cluster-hop away; a head without edge brokers passes it one hop on
    the mean exceeds a neighbour's by 0.15 ──▶ Request ──▶ both BUSY, edges watch each other (Figure 4b)
    all edge brokers are in each other's balanced set ──▶ Cancel ──▶ Ended

Cluster-heads themselves are not balanced (the paper's future work).

Where the text is open:

* Figure 4b's subset of the states is taken to be OK, BUSY and N/A. There is no detection while an edge broker
  is BUSY or STABILIZING: the mean would mislead.
* A cluster with an edge broker that is N/A accepts nothing. It begins a session if its mean is above the
  higher overload threshold, or once its edge brokers can do nothing for each other.
* Between edge brokers of the two clusters the local thresholds apply.
* A global session ends at the latest after `session_s`: differences that no subscription can even out must
  not keep a cluster BUSY.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fieldfare.balancing.detection import BrokerAction, LastingDifferences, difference_actions
from fieldfare.balancing.load import (
    UNIT,
    Capacity,
    Metric,
    Metrics,
    difference,
    joint_metrics,
)
from fieldfare.balancing.messages import (
    Again,
    Cancel,
    Pie,
    Reply,
    Request,
    SessionId,
    State,
    StateChanged,
    Targets,
    Tick,
)
from fieldfare.effects import Effect, Send, Tell, Timer, source
from fieldfare_lab.balancing.edge import shifted
from fieldfare_lab.balancing.messages import Watch
from fieldfare_lab.balancing.settings import MigratingSettings

GLOBAL_STATES = (State.OK, State.BUSY, State.NOT_AVAILABLE)
"""The states of a cluster (Figure 4b)."""
LIFE_PIES = 1_000_000_000
"""PIE messages that one life of a head can number."""


@dataclass(frozen=True, slots=True)
class HeadSettings(MigratingSettings):
    """The settings of cluster-heads, too.

    Parameters
    ----------
    cluster_hops
        How far global PIE messages go, and with joint plans sessions of clusters. The paper: 1. Higher: a
        subscriber moves over several clusters at once.
    session_s
        Time after which a global session ends although not all edge brokers are balanced. Not in the paper.
    """

    cluster_hops: int = 1
    session_s: float = 600.0


@dataclass(frozen=True, slots=True)
class GlobalPie:
    """A global PIE message: the mean load of a cluster's edge brokers.

    Attributes
    ----------
    passed
        The cluster-heads without edge brokers that passed it on.
    """

    cluster: str
    head: str
    number: int
    metrics: Metrics
    state: State
    passed: tuple[str, ...] = ()
    capacity: Capacity = UNIT


@dataclass(frozen=True, slots=True)
class Ended:
    """A global session has ended at the sender, too."""

    session: SessionId


@dataclass(slots=True)
class GlobalSession:
    """A session with another cluster; `is_mine` if this head began it."""

    id: SessionId
    partner: str
    until_s: float
    is_mine: bool
    targets: Targets = ()
    cluster: str = ""
    brokers: tuple[str, ...] = ()
    is_accepted: bool = False


@dataclass(slots=True)
class HeadState:
    """The durable state of a cluster-head's balancer.

    Attributes
    ----------
    edges
        The edge brokers of the cluster.
    neighbours
        The neighbouring cluster-heads.
    ending
        Sessions that this head has ended, until their partners answer.
    """

    name: str
    cluster: str
    edges: tuple[str, ...]
    neighbours: tuple[str, ...]
    life: int = 0
    sessions: int = 0
    pies: int = 0
    state: State = State.OK
    session: GlobalSession | None = None
    ending: dict[SessionId, str] = field(default_factory=dict)


class HeadBalancer:
    """Balances a cluster with its neighbours."""

    def __init__(self, state: HeadState, settings: HeadSettings | None = None) -> None:
        self.state = state
        self.settings = settings or HeadSettings()
        self._edges: dict[str, tuple[float, Pie]] = {}
        self._partners: dict[str, tuple[float, Pie]] = {}
        self._clusters: dict[str, tuple[float, GlobalPie]] = {}
        self._published: tuple[float, GlobalPie] | None = None
        self._left: list[BrokerAction] = []
        self._heads: dict[str, str] = {}
        self._lasting = LastingDifferences()
        self._follow_until_s = -math.inf

    def start(self, now: float) -> list[Effect]:
        """Start a life; a session of an earlier one that was accepted goes on."""
        self.state.life += 1
        effects: list[Effect] = [self._tick(now)]
        for ending, partner in self.state.ending.items():
            effects += self._cancel(ending, partner, now)
        session = self.state.session
        if session is not None and not session.is_accepted:
            effects += self._end(session, now)
        return effects

    def _tick(self, now: float) -> Timer:
        return Timer(now + self.settings.detection_s, Tick(self.state.life))

    def handle(self, message: object, now: float) -> list[Effect]:
        """Process a message of an edge broker, another head, or the head's own timer."""
        sender, inner = source(self.state.name, message)
        match inner:
            case Tick():
                if inner.life != self.state.life:
                    return []
                return [*self._detect(now), self._tick(now)]
            case Pie():
                return self._pie(sender, inner, now)
            case GlobalPie():
                return self._global_pie(sender, inner, now)
            case Request():
                return self._requested(sender, inner, now)
            case Reply():
                return self._replied(sender, inner, now)
            case Cancel():
                return self._cancelled(sender, inner, now)
            case Ended():
                self.state.ending.pop(inner.session, None)
                return []
            case Again():
                return self._again(inner, now)
        raise TypeError(f"{self.state.name} cannot handle {type(inner).__name__}")

    # PIE

    def _pie(self, sender: str, pie: Pie, now: float) -> list[Effect]:
        is_own = pie.broker in self.state.edges
        known = self._edges if is_own else self._partners
        session = self.state.session
        if not is_own and (session is None or sender != session.partner):
            return []
        if pie.broker in known and known[pie.broker][1].number >= pie.number:
            return []
        known[pie.broker] = now, pie
        targets = [each for each in self.state.edges if each != pie.broker]
        if is_own and session is not None and session.is_accepted:
            targets.append(session.partner)
        return [*(Send(to, pie) for to in targets), *self._update(now)]

    def _fresh(self, known: dict[str, tuple[float, Pie]], now: float) -> dict[str, Pie]:
        return {name: pie for name, (at, pie) in known.items() if now - at <= self.settings.stale_s}

    def metrics(self, now: float) -> Metrics | None:
        """Return the cluster's load; None while an edge broker is unheard."""
        edges = self._fresh(self._edges, now)
        if not self.state.edges or set(edges) != set(self.state.edges):
            return None
        if self.settings.joint:
            return joint_metrics([(edges[name].metrics, edges[name].capacity) for name in self.state.edges])
        return mean_metrics([edges[name].metrics for name in self.state.edges])

    def _capacity(self) -> Capacity:
        return total_capacity([self._edges[name][1].capacity for name in self.state.edges])

    def _publish(self, now: float) -> list[Effect]:
        mine = self.metrics(now)
        if mine is None:
            return []
        if self._published is not None:
            at, last = self._published
            scale = self.settings.normalisation_s
            changes = [abs(difference(metric, mine, last.metrics, scale)) for metric in Metric]
            is_same = last.state is self.state.state and max(changes) < self.settings.pie_change
            if is_same and now - at < self.settings.pie_s:
                return []
        self.state.pies += 1
        number = self.state.life * LIFE_PIES + self.state.pies
        pie = GlobalPie(
            self.state.cluster, self.state.name, number, mine, self.state.state, (), self._capacity()
        )
        self._published = now, pie
        return [Send(to, pie) for to in self.state.neighbours]

    def _known(self, now: float) -> dict[str, GlobalPie]:
        """Return the global PIE messages that are not stale, by head."""
        found = self._clusters.values()
        return {pie.head: pie for at, pie in found if now - at <= self.settings.stale_s}

    def _global_pie(self, sender: str, pie: GlobalPie, now: float) -> list[Effect]:
        if pie.head == self.state.name or self.state.name in pie.passed:
            return []
        known = self._clusters.get(pie.cluster)
        if known is not None and known[1].number >= pie.number:
            return []
        self._clusters[pie.cluster] = now, pie
        self._heads[pie.head] = pie.cluster
        if self.state.edges and len(pie.passed) + 1 >= self.settings.cluster_hops:
            return []
        passed = replace(pie, passed=(*pie.passed, self.state.name))
        return [Send(to, passed) for to in self.state.neighbours if to not in (sender, pie.head)]

    # Detection

    def _update(self, now: float) -> list[Effect]:
        before = self.state.state
        edges = self._fresh(self._edges, now)
        if self.state.session is not None:
            self.state.state = State.BUSY
        elif any(pie.state is State.NOT_AVAILABLE for pie in edges.values()):
            self.state.state = State.NOT_AVAILABLE
        else:
            self.state.state = State.OK
        effects = self._publish(now)
        if self.state.state is not before:
            effects.append(Tell(StateChanged(before, self.state.state)))
        return effects

    def _detect(self, now: float) -> list[Effect]:
        session = self.state.session
        if session is not None:
            is_over = session.is_mine and session.is_accepted and self._is_balanced(session, now)
            if is_over or (session.is_accepted and now >= session.until_s):
                return self._end(session, now)
            return self._update(now)
        effects = self._update(now)
        mine = self.metrics(now)
        if mine is None:
            return effects
        edges = self._fresh(self._edges, now)
        if any(pie.state in (State.BUSY, State.STABILIZING) for pie in edges.values()):
            return effects
        if self.state.state is State.NOT_AVAILABLE and not self._may_shed(mine, now):
            return effects
        actions = self._actions(mine, now)
        return [*effects, *self._begin(actions, now)] if actions else effects

    def _actions(self, mine: Metrics, now: float) -> list[BrokerAction]:
        settings = self.settings
        known = self._known(now)
        metrics = {name: pie.metrics for name, pie in known.items()}
        triggers = settings.global_
        if settings.joint:
            targets = self._targets(mine, known)
            own = targets[self.state.name]
            metrics = {name: shifted(each, targets[name], own) for name, each in metrics.items()}
            if now < self._follow_until_s:
                triggers = triggers.scaled(settings.follow_share)
        found = difference_actions(mine, metrics, triggers, settings.normalisation_s)
        self._lasting.note(found, now)
        is_urgent = self.state.state is State.NOT_AVAILABLE
        return [
            each
            for each in found
            if known[each.broker].state is State.OK
            and (is_urgent or self._lasting.age_s(each, now) >= settings.lasting_s)
        ]

    def _targets(self, mine: Metrics, known: Mapping[str, GlobalPie]) -> dict[str, Metrics]:
        """Return the metrics that each cluster is to have, by head."""
        names = [self.state.name, *known]
        own = mine, self._capacity(), 0
        others = [(pie.metrics, pie.capacity, len(pie.passed) + 1) for pie in known.values()]
        targets = local_targets([own, *others], self.settings.global_.input)
        return dict(zip(names, targets, strict=True))

    def _may_shed(self, mine: Metrics, now: float) -> bool:
        bounds = self.settings.higher_overload
        if mine.input_ratio > bounds.input or mine.output_ratio > bounds.output:
            return True
        edges = self._fresh(self._edges, now)
        others = set(self.state.edges)
        # No edge broker could take anything: a shedding one has an empty balanced set.
        takers = [name for name, pie in edges.items() if pie.state is State.OK]
        return not takers or all(others - {name} <= pie.balanced for name, pie in edges.items())

    def _is_balanced(self, session: GlobalSession, now: float) -> bool:
        theirs = self._fresh(self._partners, now)
        found = {**self._fresh(self._edges, now), **theirs}
        all_of = {*self.state.edges, *session.brokers}
        if not set(session.brokers) <= set(theirs):
            return False
        return set(found) >= all_of and all(all_of - {name} <= found[name].balanced for name in all_of)

    # Mediation

    def _begin(self, actions: list[BrokerAction], now: float) -> list[Effect]:
        self.state.sessions += 1
        session = SessionId(self.state.name, self.state.life, self.state.sessions)
        self._left = [each for each in actions[1:] if each.broker != actions[0].broker]
        until_s = now + self.settings.session_s
        partner = actions[0].broker
        targets: Targets = ()
        mine = self.metrics(now)
        if self.settings.joint and mine is not None:
            known = {pie.head: pie for _, pie in self._clusters.values()}
            by_head = self._targets(mine, known)
            targets = (
                (self.state.cluster, by_head[self.state.name]),
                (known[partner].cluster, by_head[partner]),
            )
        self.state.session = GlobalSession(session, partner, until_s, is_mine=True, targets=targets)
        return [
            Send(partner, Request(session, self.state.edges, targets)),
            Timer(now + self.settings.reply_s, Again(session, "reply", self.state.life)),
            *self._update(now),
        ]

    def _requested(self, sender: str, request: Request, now: float) -> list[Effect]:
        session = self.state.session
        is_same = session is not None and session.id == request.session
        edges = self._fresh(self._edges, now)
        is_steady = not any(pie.state is State.NOT_AVAILABLE for pie in edges.values())
        if not is_same and (self.state.state is not State.OK or not is_steady or self.metrics(now) is None):
            state = State.BUSY if self.state.state is State.OK else self.state.state
            return [Send(sender, Reply(request.session, state))]
        effects: list[Effect] = []
        if not is_same:
            # The partner ends the session; this end is in case that it never does.
            until_s = now + 2 * self.settings.session_s
            session = GlobalSession(request.session, sender, until_s, is_mine=False, targets=request.targets)
            self.state.session = session
            effects = self._accepted(session, self._heads.get(sender, sender), request.brokers, now)
        return [Send(sender, Reply(request.session, State.OK, brokers=self.state.edges)), *effects]

    def _replied(self, sender: str, reply: Reply, now: float) -> list[Effect]:
        session = self.state.session
        if session is None or session.id != reply.session or session.is_accepted:
            return []
        if reply.state is not State.OK:
            return self._next(now)
        return self._accepted(session, self._heads.get(sender, sender), reply.brokers, now)

    def _accepted(
        self, session: GlobalSession, cluster: str, brokers: tuple[str, ...], now: float
    ) -> list[Effect]:
        """Tell the edge brokers of both clusters to hear each other's PIE messages."""
        session.cluster, session.brokers, session.is_accepted = cluster, brokers, True
        self._partners.clear()
        watch: list[Effect] = [
            Send(edge, Watch(cluster, brokers, session.targets)) for edge in self.state.edges
        ]
        known: list[Effect] = [Send(session.partner, pie) for pie in self._fresh(self._edges, now).values()]
        return [*watch, *known, *self._update(now)]

    def _next(self, now: float) -> list[Effect]:
        self.state.session = None
        return self._begin(self._left, now) if self._left else self._update(now)

    def _end(self, session: GlobalSession, now: float) -> list[Effect]:
        self.state.session = None
        self._partners.clear()
        watch: list[Effect] = []
        if session.is_accepted:
            watch = [Send(edge, Watch(session.cluster, ())) for edge in self.state.edges]
            self._follow_until_s = now + self.settings.follow_s
        self.state.ending[session.id] = session.partner
        return [*watch, *self._cancel(session.id, session.partner, now), *self._update(now)]

    def _cancel(self, session: SessionId, partner: str, now: float) -> list[Effect]:
        return [
            Send(partner, Cancel(session)),
            Timer(now + self.settings.retry_s, Again(session, "cancel", self.state.life)),
        ]

    def _cancelled(self, sender: str, cancel: Cancel, now: float) -> list[Effect]:
        effects: list[Effect] = [Send(sender, Ended(cancel.session))]
        session = self.state.session
        if session is None or session.id != cancel.session:
            return effects
        self.state.session = None
        self._partners.clear()
        watch = [Send(edge, Watch(session.cluster, ())) for edge in self.state.edges]
        return [*effects, *watch, *self._update(now)]

    def _again(self, again: Again, now: float) -> list[Effect]:
        session = self.state.session
        if again.life != self.state.life:
            return []
        if again.step == "cancel" and again.session in self.state.ending:
            return self._cancel(again.session, self.state.ending[again.session], now)
        is_asked = session is not None and session.id == again.session and not session.is_accepted
        if again.step == "reply" and session is not None and is_asked:
            self.state.ending[session.id] = session.partner
            return [*self._cancel(session.id, session.partner, now), *self._next(now)]
        return []


def total_capacity(all_of: Sequence[Capacity]) -> Capacity:
    """Return the capacity of several brokers."""
    return Capacity(sum(each.matching for each in all_of), sum(each.output for each in all_of))


def local_targets(all_of: Sequence[tuple[Metrics, Capacity, int]], hop: float) -> list[Metrics]:
    """Return the metrics that clusters are to have if a cluster-hop is to be worth its distance.

    The less room the busiest resource leaves, the less distance counts: with a mean utilisation u, a cluster
    is to have `hop * (1 - u)` less for each hop.

    Parameters
    ----------
    all_of
        The metrics and capacity of each cluster, and its cluster-hops from the one that offloads.
    """
    mean = joint_metrics([(metrics, capacity) for metrics, capacity, _ in all_of])
    used = max(mean.input_ratio, mean.output_ratio, 1e-9)
    total = sum(capacity.matching for _, capacity, _ in all_of)
    middle = sum(capacity.matching * hops for _, capacity, hops in all_of) / total
    shares = [max(0.0, 1 + hop * max(0.0, 1 - used) / used * (middle - hops)) for _, _, hops in all_of]
    return [
        Metrics(mean.input_ratio * share, mean.output_ratio * share, mean.matching_s * share)
        for share in shares
    ]


def mean_metrics(all_of: list[Metrics]) -> Metrics:
    """Return the mean of each metric: the load of a cluster."""
    count = max(1, len(all_of))
    return Metrics(
        sum(each.input_ratio for each in all_of) / count,
        sum(each.output_ratio for each in all_of) / count,
        sum(each.matching_s for each in all_of) / count,
    )
