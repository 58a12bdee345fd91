"""The balancer of an edge broker: detection, PIE and the two mediators (Cheung and Jacobsen 2006, Figure 2).

          ┌──────────────── load still changes, or 30 s not over ──────────────┐
          ▼                                                                    │
    ┌── STABILIZING ──▶ OK ◀── ratios ≤ 0.9 ── N/A        a session ends ──▶ (loads moved)
    │       │            │  ── a ratio > 0.9 ─▶ │
    └───────┴── session ─┴─── ratio > 0.95 ─────┴──▶ BUSY       (Figure 4a; no detection while BUSY)

Where the text is open:

* A STABILIZING broker with a ratio above 0.9 is N/A, and STABILIZING again if that ends before its time.
* A session that moved nothing leaves the state as it was.
* Of two requests that cross, that of the broker with the lower name stands. A broker that all have refused
  waits for up to three detections, by its name and the number of its sessions.
"""

from __future__ import annotations

import math
from zlib import crc32

from fieldfare.balancing.acceptor import Acceptor
from fieldfare.balancing.detection import (
    BrokerAction,
    LastingDifferences,
    broker_actions,
    difference_actions,
    exceeding,
    is_stable,
)
from fieldfare.balancing.load import (
    NO_CAPACITY,
    Load,
    Metric,
    Metrics,
    capacity_of,
    difference,
    joint_metrics,
    metrics_of,
)
from fieldfare.balancing.messages import (
    Again,
    Cancel,
    Chosen,
    Drained,
    MeasureLoad,
    Migrated,
    Pie,
    Reply,
    Request,
    SessionEnded,
    Shifted,
    State,
    StateChanged,
    Tick,
)
from fieldfare.balancing.offloader import Offloader
from fieldfare.balancing.settings import BalancingSettings, Triggers
from fieldfare.balancing.state import EdgeState
from fieldfare.effects import Ask, AskFailed, Effect, Send, Tell, Timer, source

PAUSES_MAX = 4
"""Detections, at most, without a request after all brokers have refused."""
LIFE_PIES = 1_000_000_000
"""PIE messages that one life of a broker can number."""


class EdgeBalancer:
    """Balances an edge broker with the others that it hears of.

    Parameters
    ----------
    is_passive
        Whether the broker takes part in no session: it only measures and publishes its load.

    Attributes
    ----------
    state
        All that is not measured.
    load
        The load of the last detection; None before the first one.
    """

    def __init__(
        self,
        state: EdgeState,
        settings: BalancingSettings | None = None,
        *,
        is_passive: bool = False,
    ) -> None:
        self.state = state
        self.settings = settings or BalancingSettings()
        self.load: Load | None = None
        self._offloader = Offloader(state, self.settings)
        self._is_passive, self._is_drained = is_passive, False
        self._acceptor = Acceptor(state, self.settings)
        self._peers: dict[str, tuple[float, Pie]] = {}
        self._published: tuple[float, Pie] | None = None
        self._metrics: Metrics | None = None
        self._pause_s = self._follow_until_s = -math.inf
        self._lasting = LastingDifferences()
        self._held: dict[tuple[str, Metric], tuple[float, float, float]] = {}

    def start(self, now: float) -> list[Effect]:
        """Start a life."""
        self.state.life += 1
        return [self._tick(now)]

    def _tick(self, now: float) -> Timer:
        return Timer(now + self.settings.detection_s, Tick(self.state.life))

    def handle(self, message: object, now: float) -> list[Effect]:
        """Process a message; see `messages`."""
        sender, inner = source(self.state.name, message)
        effects = self._session(sender, inner, now)
        if effects is None:
            effects = self._own(inner, now)
        return self._ended(effects, now)

    def _session(self, sender: str, inner: object, now: float) -> list[Effect] | None:
        """Pass what belongs to a session to its mediator; None for the rest."""
        offloader, acceptor = self._offloader, self._acceptor
        match inner:
            case Request() if self._is_passive:
                return [Send(sender, Reply(inner.session, State.NOT_AVAILABLE))]
            case Request():
                if offloader.gives_way_to(sender):
                    withdrawn = self._ended(offloader.give_way(), now)
                    return [*withdrawn, *acceptor.requested(sender, inner, self.load, now)]
                return acceptor.requested(sender, inner, self.load, now)
            case Reply():
                return offloader.replied(sender, inner, now)
            case Cancel():
                return acceptor.cancelled(sender, inner, now)
            case Chosen():
                return offloader.chosen(inner, now)
            case Migrated():
                return offloader.migrated(inner, now)
            case Again():
                if inner.life != self.state.life:
                    return []
                return [
                    *offloader.again(inner.step, inner.session, now),
                    *acceptor.again(inner.step, inner.session, now),
                ]
        return None

    def _own(self, inner: object, now: float) -> list[Effect]:
        match inner:
            case Tick():
                if inner.life != self.state.life:
                    return []
                return [Ask(MeasureLoad(self.state.measured_from_s)), self._tick(now)]
            case Load():
                return self._measured(inner, now)
            case Pie():
                self._heard(inner, now)
            case Shifted():
                self._unsettle(now)
                return self._update(now)
            case Drained():
                self._is_drained = not inner.is_over
                return self._update(now)
            case AskFailed():
                # Other questions are repeated by the timers of their sessions, or by the next detection.
                return self._offloader.failed(inner.question, now)
            case _:
                raise TypeError(f"{self.state.name} cannot handle {type(inner).__name__}")
        return []

    # PIE

    def _heard(self, pie: Pie, now: float) -> None:
        if pie.broker == self.state.name:
            return
        known = self._peers.get(pie.broker)
        # The numbers of a broker whose clock was set back are low: without the last condition, it would not
        # be heard until its clock has caught up.
        if known is None or known[1].number < pie.number or now - known[0] > self.settings.stale_s:
            self._peers[pie.broker] = now, pie

    def peers(self, now: float) -> dict[str, Pie]:
        """Return the last PIE messages that are not stale."""
        heard = [(name, pie) for name, (at, pie) in self._peers.items() if now - at <= self.settings.stale_s]
        return {name: self._offloader.believed(pie, now) for name, pie in heard}

    def _metrics_of(self, pie: Pie) -> Metrics:
        """Return a peer's metrics as they are compared with this broker's."""
        return pie.metrics

    def balanced(self, now: float) -> frozenset[str]:
        """Return the brokers to which this one has nothing to offload, where a cluster-head asks for them."""
        return frozenset()

    def _publish(self, now: float) -> list[Effect]:
        if self.load is None:
            return []
        state, mine = self.state, metrics_of(self.load)
        balanced = self.balanced(now)
        if self._published is not None:
            at, last = self._published
            changes = [
                abs(difference(metric, mine, last.metrics, self.settings.normalisation_s))
                for metric in Metric
            ]
            is_same = (last.state, last.balanced) == (state.state, balanced)
            if is_same and max(changes) < self.settings.pie_change and now - at < self.settings.pie_s:
                return []
        state.pies += 1
        number = state.life * LIFE_PIES + state.pies
        pie = Pie(state.name, state.cluster, number, mine, state.state, balanced, capacity_of(self.load))
        self._published = now, pie
        return [Send(state.head, pie)]

    # Detection

    def _measured(self, load: Load, now: float) -> list[Effect]:
        before, self.load = self._metrics, self._counted(load)
        self._metrics = metrics_of(self.load)
        state, settings = self.state, self.settings
        waited_s = now - state.stable_from_s
        if state.is_stabilizing and waited_s >= 0 and before is not None:
            is_stable_now = is_stable(before, self._metrics, settings)
            state.is_stabilizing = not is_stable_now and waited_s < settings.unstable_s
        self._note_differences(now)
        effects = self._update(now)
        if state.state is not State.BUSY:
            effects += self._detect(now)
        return effects

    def _counted(self, load: Load) -> Load:
        return load.of_arrivals()

    def _update(self, now: float) -> list[Effect]:
        """Set the state (Figure 4a), and publish it."""
        state, before = self.state, self.state.state
        if state.is_busy:
            state.state = State.BUSY
        elif self._is_drained or (
            self.load is not None and exceeding(self.load, self.settings, higher=False)
        ):
            state.state = State.NOT_AVAILABLE
        else:
            state.state = State.STABILIZING if state.is_stabilizing else State.OK
        effects = self._publish(now)
        if state.state is not before:
            effects.append(Tell(StateChanged(before, state.state)))
        return effects

    def triggers(self, now: float) -> Triggers:
        """Return the thresholds of differences, which are lower for a while after a session."""
        settings = self.settings
        return settings.local.scaled(settings.follow_share) if now < self._follow_until_s else settings.local

    def _note_differences(self, now: float) -> None:
        assert self._metrics is not None
        peers = {name: self._metrics_of(pie) for name, pie in self.peers(now).items()}
        scale = self.settings.normalisation_s
        self._lasting.note(difference_actions(self._metrics, peers, self.triggers(now), scale), now)

    def _detect(self, now: float) -> list[Effect]:
        load, state = self.load, self.state.state
        assert load is not None
        peers = {name: pie for name, pie in self.peers(now).items() if pie.state is State.OK}
        metrics = {name: self._metrics_of(pie) for name, pie in peers.items()}
        actions = broker_actions(load, metrics, self.settings, self.triggers(now))
        is_shedding = bool(actions) and actions[0].overloaded is not None
        if now < self._pause_s or (is_shedding and load.span_s < self.settings.overload_span_s):
            return []
        if self._is_passive or self._is_drained or self._offloader.allowance(now) < 1:
            return []
        if state is State.STABILIZING and not is_shedding:
            return []
        actions = [
            each
            for each in actions
            if not self._is_held(each.broker, each.metric, peers[each.broker].metrics, now)
            and self.waits_s(each, now) == 0
        ]
        if not actions:
            return []
        self._offloader.targets = self._joint_targets(load, now)
        return [*self._offloader.begin(actions, load, now), *self._update(now)]

    def _joint_targets(self, load: Load, now: float) -> dict[str, Metrics]:
        """Return the metrics that this broker and each peer are to have."""
        peers = self.peers(now)
        known = [(pie.metrics, pie.capacity) for pie in peers.values() if pie.capacity != NO_CAPACITY]
        mean = joint_metrics([(metrics_of(load), capacity_of(load)), *known])
        return dict.fromkeys((self.state.name, *peers), mean)

    def waits_s(self, action: BrokerAction, now: float) -> float:
        """Return how long a difference must still last before it counts; nothing for an overload."""
        if action.overloaded is not None:
            return 0.0
        return max(0.0, self.settings.lasting_s - self._lasting.age_s(action, now))

    def _is_held(self, broker: str, metric: Metric, theirs: Metrics, now: float) -> bool:
        held = self._held.get((broker, metric))
        if held is None or now >= held[0] or self._metrics is None:
            return False
        scale = self.settings.normalisation_s if metric is Metric.DELAY else 1.0
        changes = (self._metrics.metric(metric) - held[1], theirs.metric(metric) - held[2])
        return all(abs(each) / scale <= self.settings.stabilise_change for each in changes)

    def _hold(self, action: BrokerAction, now: float) -> None:
        pie = self._peers.get(action.broker)
        if self._metrics is None or pie is None:
            return
        values = self._metrics.metric(action.metric), pie[1].metrics.metric(action.metric)
        self._held[action.broker, action.metric] = (now + self.settings.hold_s, *values)

    def _unsettle(self, now: float) -> None:
        """Let the load settle before it counts: it is measured from now on."""
        self._follow_until_s = now + self.settings.follow_s
        self.state.is_stabilizing = True
        self.state.stable_from_s = now + self.settings.stabilise_s
        self.state.measured_from_s = now

    def _ended(self, effects: list[Effect], now: float) -> list[Effect]:
        """Update the state after what may have begun or ended a session."""
        if self._offloader.is_refused:
            # Brokers that detect at the same moments would refuse each other for ever.
            number = crc32(f"{self.state.name} {self.state.sessions}".encode())
            self._pause_s = now + self.settings.detection_s * (number % PAUSES_MAX)
            self._offloader.is_refused = False
        if self._offloader.fruitless is not None:
            self._hold(self._offloader.fruitless, now)
            self._offloader.fruitless = None
        for effect in effects:
            if isinstance(effect, Tell) and isinstance(effect.news, SessionEnded) and effect.news.moved:
                self._unsettle(now)
        if self.state.is_busy != (self.state.state is State.BUSY):
            return [*effects, *self._update(now)]
        return effects
