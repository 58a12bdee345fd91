"""Advice for a broker about its load, from figures that are there: detection and joint plans.

The machines of this package learn these figures in messages; here an operator sees them, and decides.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fieldfare.balancing.detection import BrokerAction, broker_actions
from fieldfare.balancing.joint import plan_jointly
from fieldfare.balancing.load import (
    Load,
    Metrics,
    Resource,
    capacity_of,
    joint_metrics,
    metrics_of,
)
from fieldfare.balancing.messages import State
from fieldfare.balancing.plans import Plan
from fieldfare.balancing.press import Profile
from fieldfare.balancing.settings import BalancingSettings, Triggers


@dataclass(frozen=True, slots=True)
class Peer:
    """Another broker: its load, and its state."""

    load: Load
    state: State


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


def joint_target(load: Load, peers: Iterable[Peer]) -> Metrics:
    """Return the metrics that a broker and its peers have once subscriptions are in proportion to capacities.

    A broker that takes no load has no weight: what it has too much is its own to give away.
    """
    takers = [each.load for each in peers if each.state is not State.NOT_AVAILABLE]
    return joint_metrics([(metrics_of(each), capacity_of(each)) for each in (load, *takers)])


def advise(
    load: Load,
    peers: Mapping[str, Peer],
    profile: Callable[[str], Profile],
    movable: Mapping[Hashable, int],
    settings: BalancingSettings,
    triggers: Triggers | None = None,
) -> list[Advice]:
    """Return the broker-action list with its plans, up to the first that makes something better.

    Parameters
    ----------
    profile
        Returns what PRESS found, for a load-accepting broker.
    movable
        By key of the profile, 1 for a subscription that may move.
    triggers
        The thresholds of differences; None: `BalancingSettings.local`.
    """
    found: list[Advice] = []
    target = joint_target(load, peers.values())
    takers = {name: metrics_of(peer.load) for name, peer in peers.items() if peer.state is State.OK}
    for action in broker_actions(load, takers, settings, triggers):
        loads = load, peers[action.broker].load
        made = plan(action, loads, profile(action.broker), movable, (target, target), settings)
        found.append(Advice(action, made))
        if made is not None:
            break
    return found


def plan(
    action: BrokerAction,
    loads: tuple[Load, Load],
    profile: Profile,
    movable: Mapping[Hashable, int],
    targets: tuple[Metrics, Metrics],
    settings: BalancingSettings,
) -> Plan | None:
    """Return the subscriptions to move for an entry of the broker-action list; None if no move helps here.

    Each key of the profile is one subscription here. A difference also shrinks if the other broker gets more
    to do, and this one no less: as with the input where publishers are, which the paper has at brokers of
    their own. And no move ends an overload of the CPU that other programs of the machine make.
    """
    load, present = loads[0], dict.fromkeys(profile.keys, 1)
    beside = float(load.cpu) - float(load.input_ratio)
    if action.overloaded is Resource.CPU and beside >= settings.lower_overload.cpu:
        return None
    made = plan_jointly(action, loads, profile, present, movable, targets, settings)
    if action.overloaded is None:
        relief = float(load.metric(action.metric)) - float(made.mine.metric(action.metric))
    else:
        relief = float(load.ratio(action.overloaded)) - float(made.mine.ratio(action.overloaded))
    return made if made.moved and relief > 0 else None


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
