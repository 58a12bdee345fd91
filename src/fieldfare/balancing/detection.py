"""Detection: is a broker overloaded, and does its load differ from another's (section 3.2)?

    1. input, output, CPU or memory ratio > 0.95 ──▶ balance at once; > 0.9 ──▶ N/A, and inert between the two
    2. only if nothing is overloaded: I_r, O_r or delay exceeds a neighbour's by more than a threshold

The result is the broker-action list: whom to ask, in which order, and which metric to balance.

Where the text is open:

* A broker offloads, so only metrics that exceed the neighbour's are in its list.
* An overloaded broker asks every broker whose state is OK. PIE messages have neither CPU nor memory: for an
  overloaded CPU brokers are ordered by I_r, for overloaded memory by matching delay. With several overloaded
  resources, the one furthest above its bound is balanced first.
* Table 2 lets the match algorithm handle an overloaded CPU, section 5.2 the input ratio, too. Here an
  overloaded input ratio begins with the input algorithm, and the match algorithm continues below 0.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fieldfare.balancing.load import (
    Load,
    Metric,
    Metrics,
    Resource,
    delay_difference,
    difference,
    metrics_of,
)
from fieldfare.balancing.settings import BalancingSettings, Triggers

METRIC_OF = {
    Resource.INPUT: Metric.INPUT,
    Resource.OUTPUT: Metric.OUTPUT,
    Resource.CPU: Metric.INPUT,
    Resource.MEMORY: Metric.DELAY,
}
"""The performance metric by which brokers are ordered for an overloaded resource."""


@dataclass(frozen=True, slots=True)
class BrokerAction:
    """An entry of the broker-action list.

    Attributes
    ----------
    broker
        The load-accepting broker.
    metric
        The metric to balance.
    overloaded
        The overloaded resource that is the reason; None for a difference.
    difference
        By how much the metric exceeds the other broker's.
    """

    broker: str
    metric: Metric
    difference: float
    overloaded: Resource | None = None


def exceeding(load: Load, bounds: BalancingSettings, *, higher: bool) -> list[Resource]:
    """Return the resources above their higher (or lower) overload threshold, the furthest above first.

    A CPU that only works off a queue is left out, unless `sheds_backlog`.
    """
    ratios = bounds.higher_overload if higher else bounds.lower_overload
    found = [(float(load.ratio(each)) - ratios.of(each), each) for each in Resource]
    above = [(excess, each) for excess, each in found if excess > 0]
    if not bounds.sheds_backlog and load.input_ratio <= bounds.lower_overload.input:
        beside = load.cpu - min(1.0, load.input_ratio)
        if load.input_queue_s > 0 and beside > 0:
            above = [(excess, each) for excess, each in above if each is not Resource.CPU]
    return [each for _, each in sorted(above, key=lambda entry: (-entry[0], list(Resource).index(entry[1])))]


def triggered(
    mine: Metrics, theirs: Metrics, triggers: Triggers, normalisation_s: float
) -> list[tuple[float, Metric]]:
    """Return the metrics that exceed the other's by more than their thresholds, with the differences."""
    found = [(difference(metric, mine, theirs, normalisation_s), metric) for metric in Metric]
    return [(exceeds, metric) for exceeds, metric in found if exceeds > triggers.of(metric)]


def broker_actions(
    load: Load, peers: Mapping[str, Metrics], settings: BalancingSettings, triggers: Triggers | None = None
) -> list[BrokerAction]:
    """Return the broker-action list, by descending difference.

    Parameters
    ----------
    peers
        The metrics of the brokers that may accept load.
    triggers
        The thresholds of differences; None: `BalancingSettings.local`.
    """
    overloaded = exceeding(load, settings, higher=True)
    if overloaded:
        return overload_actions(load, peers, overloaded[0], settings)
    if exceeding(load, settings, higher=False):
        return []
    return difference_actions(metrics_of(load), peers, triggers or settings.local, settings.normalisation_s)


def overload_actions(
    load: Load, peers: Mapping[str, Metrics], overloaded: Resource, settings: BalancingSettings
) -> list[BrokerAction]:
    """Return an entry for each broker that may take load from an overloaded one."""
    metric = METRIC_OF[overloaded]
    return _sorted(
        [
            BrokerAction(
                name,
                metric,
                difference(metric, metrics_of(load), theirs, settings.normalisation_s),
                overloaded,
            )
            for name, theirs in peers.items()
        ]
    )


def difference_actions(
    mine: Metrics, peers: Mapping[str, Metrics], triggers: Triggers, normalisation_s: float
) -> list[BrokerAction]:
    """Return an entry for each metric that exceeds a broker's by more than its threshold."""
    return _sorted(
        [
            BrokerAction(name, metric, exceeds)
            for name, theirs in peers.items()
            for exceeds, metric in triggered(mine, theirs, triggers, normalisation_s)
        ]
    )


def is_stable(before: Metrics, now: Metrics, settings: BalancingSettings) -> bool:
    """Return whether no metric changed by more than the stabilise percentage between two detections."""
    changes = (
        now.input_ratio - before.input_ratio,
        now.output_ratio - before.output_ratio,
        delay_difference(now.matching_s, before.matching_s, settings.normalisation_s),
    )
    return all(abs(change) <= settings.stabilise_change for change in changes)


def _sorted(actions: list[BrokerAction]) -> list[BrokerAction]:
    return sorted(actions, key=lambda each: (-each.difference, each.broker, each.metric))


class LastingDifferences:
    """The differences that exceed their thresholds, and since when."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, Metric], float] = {}

    def note(self, actions: list[BrokerAction], now: float) -> None:
        """Set the differences that exceed their thresholds now."""
        keys = [(each.broker, each.metric) for each in actions]
        self._since = {key: self._since.get(key, now) for key in keys}

    def age_s(self, action: BrokerAction, now: float) -> float:
        """Return for how long a difference has exceeded its threshold."""
        return now - self._since.get((action.broker, action.metric), now)
