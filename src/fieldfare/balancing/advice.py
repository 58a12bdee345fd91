"""Advice for a broker about its load, from figures that are there: detection and the offload algorithms.

The machines of this package learn these figures in messages; here an operator sees them, and decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fieldfare.balancing.detection import BrokerAction, broker_actions
from fieldfare.balancing.load import Load, Metric, Resource, metrics_of
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
        found.append(
            Advice(action, plan(action, load, peer, poset, profile(action.broker), movable, settings))
        )
        if found[-1].plan is not None:
            break
    return found


def plan(
    action: BrokerAction,
    load: Load,
    peer: Peer,
    poset: Poset,
    profile: Profile,
    movable: Mapping[Hashable, int],
    settings: BalancingSettings,
    ceiling: float = math.inf,
) -> Plan | None:
    """Return the subscriptions to move for an entry of the broker-action list; None if no move helps here.

    A difference also shrinks if the other broker gets more to do, and this one no less: as with the input
    where publishers are, which the paper has at brokers of their own. And no move ends an overload of the
    CPU that other programs of the machine make.
    """
    beside = float(load.cpu) - float(load.input_ratio)
    if action.overloaded is Resource.CPU and beside >= settings.lower_overload.cpu:
        return None
    loads = load, peer.load
    made = offload(
        action.metric, action.overloaded, loads, poset, profile, movable, peer.css, settings, ceiling
    )
    if action.overloaded is None:
        relief = float(load.metric(action.metric)) - float(made.mine.metric(action.metric))
    else:
        relief = float(load.ratio(action.overloaded)) - float(made.mine.ratio(action.overloaded))
    return made if made.moved and relief > 0 else None


def mean_ratio(metric: Metric, loads: Iterable[Load]) -> float:
    """Return the metric that all brokers had if their load were in proportion to what they can take.

    A broker that is given more than that would have to pass it on to others.
    """
    used, most = 0.0, 0.0
    for load in loads:
        if metric is Metric.OUTPUT:
            used, most = used + load.output_bytes_per_s, most + load.output_bytes_per_s_max
        elif metric is Metric.INPUT and load.matching_s > 0:
            used, most = used + load.input_per_s, most + 1 / load.matching_s
    return used / most if most else math.inf


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
