"""The balancer of an edge broker that migrates its subscriptions, and balances across clusters.

The *balanced set* of a broker are those to which it has nothing to offload: no metric exceeds theirs by a
threshold, or the last session with them found nothing to move. It is empty while the broker is BUSY,
STABILIZING or sheds an overload.
"""

from __future__ import annotations

from fieldfare.balancing.detection import exceeding, triggered
from fieldfare.balancing.edge import EdgeBalancer
from fieldfare.balancing.load import Load, Metrics, metrics_of
from fieldfare.balancing.messages import Pie, State
from fieldfare.effects import Effect
from fieldfare_lab.balancing.acceptor import MigratingAcceptor
from fieldfare_lab.balancing.messages import (
    Attached,
    Detached,
    Done,
    Join,
    Released,
    ReleaseNoted,
    Sampled,
    Subscribed,
    Unsubscribed,
    Watch,
)
from fieldfare_lab.balancing.offloader import MigratingOffloader
from fieldfare_lab.balancing.poset import Poset
from fieldfare_lab.balancing.settings import MigratingSettings
from fieldfare_lab.balancing.state import MigratingState


def shifted(metrics: Metrics, from_: Metrics, to: Metrics) -> Metrics:
    """Return a peer's metrics as a broker with the target `to` compares them with its own."""
    return Metrics(
        metrics.input_ratio + to.input_ratio - from_.input_ratio,
        metrics.output_ratio + to.output_ratio - from_.output_ratio,
        metrics.matching_s + to.matching_s - from_.matching_s,
    )


class MigratingBalancer(EdgeBalancer):
    """Balances an edge broker with the others that it hears of; its state is durable."""

    state: MigratingState
    settings: MigratingSettings
    _offloader: MigratingOffloader
    _acceptor: MigratingAcceptor

    def __init__(self, state: MigratingState, settings: MigratingSettings | None = None) -> None:
        super().__init__(state, settings or MigratingSettings())
        left = {id for each in state.outgoing.values() for id in each.joined or ()}
        here = [(id, each.region) for id, each in state.subscriptions.items() if id not in left]
        self.poset = Poset(here)
        self._offloader = MigratingOffloader(state, self.settings, self.poset)
        self._acceptor = MigratingAcceptor(state, self.settings, self.poset)
        self._watched: dict[str, tuple[str, ...]] = {}
        self._targets: dict[str, Metrics] = {}

    def start(self, now: float) -> list[Effect]:
        """Start a life, and continue the sessions of the one before."""
        tick = super().start(now)
        effects = [*self._offloader.resume(now), *self._acceptor.resume(now)]
        return [*self._ended(effects, now), *tick]

    def _session(self, sender: str, inner: object, now: float) -> list[Effect] | None:
        offloader, acceptor = self._offloader, self._acceptor
        match inner:
            case Sampled():
                return offloader.sampled(inner, now)
            case Join():
                return acceptor.join(sender, inner, now)
            case Attached():
                return acceptor.attached(inner, now)
            case Done():
                return offloader.done(sender, inner)
            case Detached():
                return offloader.detached(inner, now)
            case Released():
                return acceptor.released(sender, inner, now)
            case ReleaseNoted():
                offloader.noted(inner.session)
                return []
        return super()._session(sender, inner, now)

    def _own(self, inner: object, now: float) -> list[Effect]:
        match inner:
            case Watch():
                self._watch(inner)
                return []
            case Subscribed():
                each = inner.subscription
                if self.settings.joint and not self.state.subscriptions:
                    # Rates over the time without subscriptions say nothing of what they receive.
                    self.state.measured_from_s = now
                self.state.subscriptions[each.id] = each
                self.poset.add(each.id, each.region)
                return []
            case Unsubscribed():
                self.state.subscriptions.pop(inner.id, None)
                if inner.id in self.poset:
                    self.poset.remove(inner.id)
                self.state.moved_s.pop(inner.id, None)
                return self._acceptor.unsubscribed(inner.id)
        return super()._own(inner, now)

    def _watch(self, watch: Watch) -> None:
        self._targets = dict(watch.targets)
        if watch.brokers:
            self._watched[watch.cluster] = watch.brokers
            return
        for broker in self._watched.pop(watch.cluster, ()):
            self._peers.pop(broker, None)

    def _heard(self, pie: Pie, now: float) -> None:
        if pie.cluster == self.state.cluster or pie.broker in self._watched.get(pie.cluster, ()):
            super()._heard(pie, now)

    def _metrics_of(self, pie: Pie) -> Metrics:
        """Return a peer's metrics; in a global session, as if its cluster had this one's target."""
        mine, theirs = self._targets.get(self.state.cluster), self._targets.get(pie.cluster)
        return pie.metrics if mine is None or theirs is None else shifted(pie.metrics, theirs, mine)

    def _counted(self, load: Load) -> Load:
        return super()._counted(load) if self.settings.joint else load

    def balanced(self, now: float) -> frozenset[str]:
        """Return the balanced set."""
        load, settings = self.load, self.settings
        if load is None or self.state.state not in (State.OK, State.NOT_AVAILABLE):
            return frozenset()
        if exceeding(load, settings, higher=True):
            return frozenset()
        peers = self.peers(now)
        if exceeding(load, settings, higher=False):
            return frozenset(peers)
        mine = metrics_of(load)
        return frozenset(
            [
                name
                for name, pie in peers.items()
                if all(
                    self._is_held(name, metric, pie.metrics, now)
                    for _, metric in triggered(
                        mine, self._metrics_of(pie), self.triggers(now), settings.normalisation_s
                    )
                )
            ]
        )

    def _joint_targets(self, load: Load, now: float) -> dict[str, Metrics]:
        clusters = {name: pie.cluster for name, pie in self.peers(now).items()}
        clusters[self.state.name] = self.state.cluster
        found = super()._joint_targets(load, now)
        return {name: self._targets.get(clusters[name], mean) for name, mean in found.items()}
