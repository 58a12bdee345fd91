"""Advice for a broker about its load, from figures that are there: detection and the offload algorithms.

The machines of this package learn these figures in messages; here an operator sees them, and decides.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from fieldfare.balancing.detection import BrokerAction, broker_actions, exceeding
from fieldfare.balancing.load import Load, metrics_of
from fieldfare.balancing.messages import State
from fieldfare.balancing.offload import Plan, offload
from fieldfare.balancing.poset import Poset, Region
from fieldfare.balancing.press import Profile
from fieldfare.balancing.settings import BalancingSettings


@dataclass(frozen=True, slots=True)
class Peer:
    """Another broker: its load, its state, and the filters of its subscriptions."""

    load: Load
    state: State
    css: tuple[Region, ...] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """The subscriptions to move to another broker, and why.

    Attributes
    ----------
    action
        The entry of the broker-action list.
    plan
        The choice of subscriptions, and both loads after it; None: with this broker nothing gets better.
    """

    action: BrokerAction
    plan: Plan | None


def state_of(load: Load, settings: BalancingSettings, *, is_busy: bool, is_stabilizing: bool) -> State:
    """Return the load balancing state of a broker (section 3.2)."""
    if is_busy:
        return State.BUSY
    if exceeding(load, settings, higher=False):
        return State.NOT_AVAILABLE
    return State.STABILIZING if is_stabilizing else State.OK


def advise(
    load: Load,
    peers: Mapping[str, Peer],
    poset: Poset,
    profile: Callable[[str], Profile],
    movable: Mapping[Hashable, int],
    settings: BalancingSettings,
) -> list[Advice]:
    """Return the broker-action list with its plans, up to the first that makes something better.

    Parameters
    ----------
    profile
        Returns what PRESS found, for a load-accepting broker.
    movable
        By key of the poset, the number of subscriptions that may move.
    """
    found: list[Advice] = []
    takers = {name: peer for name, peer in peers.items() if peer.state is State.OK}
    for action in broker_actions(
        load, {name: metrics_of(peer.load) for name, peer in takers.items()}, settings
    ):
        peer = takers[action.broker]
        plan = offload(
            action.metric,
            action.overloaded,
            (load, peer.load),
            poset,
            profile(action.broker),
            movable,
            peer.css,
            settings,
        )
        # A difference also shrinks if the other broker gets more to do, and this one no less: as with the
        # input where publishers are, which the paper has at brokers of their own.
        is_better = float(plan.mine.metric(action.metric)) < float(load.metric(action.metric))
        is_done = bool(plan.moved) and (is_better or action.overloaded is not None)
        found.append(Advice(action, plan if is_done else None))
        if is_done:
            break
    return found


@dataclass(frozen=True, slots=True)
class Share:
    """The load that a subscription adds to its broker."""

    key: Hashable
    matched_per_s: float
    bytes_per_s: float


def spread(shares: Sequence[Share], peers: Mapping[str, Load]) -> dict[Hashable, str]:
    """Return a broker for each subscription of one that is drained: each time the one with the most room.

    The largest come first. The room is what the more utilised of input and output leaves.
    """
    loads, found = dict(peers), dict[Hashable, str]()
    for share in sorted(shares, key=lambda each: (-each.bytes_per_s, str(each.key))):
        to = min(loads, key=lambda name: (_used(loads[name]), loads[name].subscriptions, name))
        before = loads[to]
        loads[to] = replace(
            before,
            subscriptions=before.subscriptions + 1,
            input_per_s=before.input_per_s + share.matched_per_s,
            deliveries_per_s=before.deliveries_per_s + share.matched_per_s,
            output_bytes_per_s=before.output_bytes_per_s + share.bytes_per_s,
        )
        found[share.key] = to
    return found


def _used(load: Load) -> float:
    return float(max(load.input_ratio, load.output_ratio))
