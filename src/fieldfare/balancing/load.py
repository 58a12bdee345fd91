"""The load of a broker, and what moving subscriptions changes (Cheung and Jacobsen 2006, 3.2 and 4.2).

    I_r = rate of incoming messages / maximum match rate     maximum match rate = 1 / mean matching delay
    O_r = output bandwidth used / total output bandwidth
    d'_m = (n + Δn) / n · d_m                                 equation 4

Where the text is open:

* **The new matching delay enters the estimated I_r**: the ratio that will be measured has it, too.
* Equation 4 says nothing of a broker without subscriptions. There, the time of one subscription is the
  broker's own `MatchingCost`.
* An estimated CPU ratio is the estimated I_r, and the CPU that something else than matching uses now.
* Equation 4 misfits an engine whose time follows the matches. It is the baseline; `after` uses the broker's
  `MatchingCost` in its place if `is_calibrated`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

NORMALISATION_S = 0.1
"""N_f of equation 1, in seconds: delay differences far below it are no reason to balance."""


class Metric(StrEnum):
    """A performance metric by which brokers are compared."""

    INPUT = "input"
    OUTPUT = "output"
    DELAY = "delay"


class Resource(StrEnum):
    """A resource that a broker can be short of."""

    INPUT = "input"
    OUTPUT = "output"
    CPU = "cpu"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class MatchingCost:
    """The measured times of a broker's matching engine, in seconds for each message.

    Parameters
    ----------
    fixed_s
        For a message, whatever it matches.
    subscription_s
        For each subscription in the engine.
    match_s
        For each match.
    """

    fixed_s: float = 0.0
    subscription_s: float = 0.0
    match_s: float = 0.0

    def of(self, subscriptions: Any, matches: Any) -> Any:
        """Return the mean matching delay with so large an engine, and matches for each message."""
        return self.fixed_s + self.subscription_s * subscriptions + self.match_s * matches


@dataclass(frozen=True, slots=True)
class Load:
    """A broker's load over the last seconds; of an estimate, fields may be arrays of one value per choice.

    Parameters
    ----------
    input_per_s
        Messages that arrived.
    matching_s
        Mean matching delay of a message.
    subscriptions
        Number of subscriptions in the engine.
    deliveries_per_s, output_bytes_per_s, output_bytes_per_s_max
        What is sent to subscribers, and the total output bandwidth.
    cpu, memory
        Utilisation ratios.
    memory_per_subscription
        Share of the memory that one subscription takes.
    input_queue_s, output_queue_s
        Queuing delays: alternative metrics, which lag by the delay that they measure.
    cost
        The engine's own times.
    is_calibrated
        Whether estimates use `cost` in place of equation 4.
    span_s
        The time over which the load was measured.
    """

    input_per_s: Any = 0.0
    matching_s: Any = 0.0
    subscriptions: Any = 0
    deliveries_per_s: Any = 0.0
    output_bytes_per_s: Any = 0.0
    output_bytes_per_s_max: float = 1.0
    cpu: Any = 0.0
    memory: Any = 0.0
    memory_per_subscription: float = 0.0
    input_queue_s: float = 0.0
    output_queue_s: float = 0.0
    cost: MatchingCost = MatchingCost()
    is_calibrated: bool = False
    span_s: float = 0.0

    @property
    def input_ratio(self) -> Any:
        """I_r: the share of the messages that the engine can match."""
        return self.input_per_s * self.matching_s

    @property
    def output_ratio(self) -> Any:
        """O_r: the used share of the output bandwidth."""
        return self.output_bytes_per_s / self.output_bytes_per_s_max

    def metric(self, metric: Metric) -> Any:
        """Return a performance metric."""
        if metric is Metric.DELAY:
            return self.matching_s
        return self.input_ratio if metric is Metric.INPUT else self.output_ratio

    def ratio(self, resource: Resource) -> Any:
        """Return a utilisation ratio."""
        if resource is Resource.CPU:
            return self.cpu
        if resource is Resource.MEMORY:
            return self.memory
        return self.metric(Metric(resource.value))

    def after(
        self, subscriptions: Any, input_per_s: Any, deliveries_per_s: Any, output_bytes_per_s: Any
    ) -> Load:
        """Return the estimated load after these changes, each of which may be an array."""
        changed = replace(
            self,
            subscriptions=np.maximum(0, self.subscriptions + subscriptions),
            input_per_s=np.maximum(0.0, self.input_per_s + input_per_s),
            deliveries_per_s=np.maximum(0.0, self.deliveries_per_s + deliveries_per_s),
            output_bytes_per_s=np.maximum(0.0, self.output_bytes_per_s + output_bytes_per_s),
            memory=self.memory + subscriptions * self.memory_per_subscription,
        )
        changed = replace(changed, matching_s=self._delay_after(changed))
        beside = max(0.0, self.cpu - self.input_ratio)
        return replace(changed, cpu=changed.input_ratio + beside)

    def of_arrivals(self) -> Load:
        """Return the load of what arrives now, if the engine works off a queue.

        The events of a queue are matched with subscriptions that have left since they came, too.
        """
        if not self.is_calibrated or self.input_queue_s <= 0:
            return self
        matches = _per(self.deliveries_per_s, self.input_per_s)
        return replace(self, matching_s=float(self.cost.of(self.subscriptions, matches)))

    def _delay_after(self, changed: Load) -> Any:
        if not self.is_calibrated:
            return linear_delay(
                self.matching_s, self.subscriptions, changed.subscriptions, self.cost.subscription_s
            )
        before = self.cost.of(self.subscriptions, _per(self.deliveries_per_s, self.input_per_s))
        matches = _per(changed.deliveries_per_s, changed.input_per_s)
        anchor = self.matching_s - before if self.subscriptions else 0.0
        return np.maximum(0.0, anchor + self.cost.of(changed.subscriptions, matches))


def linear_delay(matching_s: float, before: float, after: Any, subscription_s: float) -> Any:
    """Return the matching delay d'_m with another number of subscriptions (equation 4).

    Without subscriptions before, each new one takes `subscription_s`.
    """
    if before > 0:
        return matching_s * (after / before)
    return matching_s + subscription_s * after


def delay_difference(one_s: Any, other_s: Any, normalisation_s: float = NORMALISATION_S) -> Any:
    """Return the difference of two matching delays as a share (equation 1), with its sign."""
    return (one_s - other_s) / normalisation_s


def difference(
    metric: Metric, one: Load | Metrics, other: Load | Metrics, normalisation_s: float = NORMALISATION_S
) -> Any:
    """Return by how much a metric of one broker exceeds the other's; delays are normalised (equation 1)."""
    mine, theirs = one.metric(metric), other.metric(metric)
    if metric is Metric.DELAY:
        return delay_difference(mine, theirs, normalisation_s)
    return mine - theirs


@dataclass(frozen=True, slots=True)
class Metrics:
    """The three performance metrics of a PIE message."""

    input_ratio: float = 0.0
    output_ratio: float = 0.0
    matching_s: float = 0.0

    def metric(self, metric: Metric) -> float:
        """Return a performance metric."""
        if metric is Metric.DELAY:
            return self.matching_s
        return self.input_ratio if metric is Metric.INPUT else self.output_ratio


def metrics_of(load: Load) -> Metrics:
    """Return the performance metrics of a load."""
    return Metrics(float(load.input_ratio), float(load.output_ratio), float(load.matching_s))


@dataclass(frozen=True, slots=True)
class Capacity:
    """How much a broker can take: the weights of its metrics in a mean over brokers.

    Attributes
    ----------
    matching
        Of input utilisation and matching delay: subscriptions that the engine compares in a second; messages
        that it matches, where their time does not follow the subscriptions.
    output
        Of output utilisation: the total bandwidth, in bytes per second.
    """

    matching: float = 1.0
    output: float = 1.0

    def of(self, metric: Metric) -> float:
        """Return the weight of a metric."""
        return self.output if metric is Metric.OUTPUT else self.matching


def capacity_of(load: Load) -> Capacity:
    """Return a broker's capacity."""
    seconds = load.cost.subscription_s or float(load.matching_s)
    return Capacity(1 / seconds if seconds > 0 else 1.0, load.output_bytes_per_s_max)


UNIT = Capacity()
"""Of a broker that does not tell its own."""

NO_CAPACITY = Capacity(0.0, 0.0)
"""Of a broker that has no weight in a mean."""


def joint_metrics(all_of: Sequence[tuple[Metrics, Capacity]]) -> Metrics:
    """Return the metrics that all brokers have once subscriptions are in proportion to capacities."""

    def mean(metric: Metric) -> float:
        total = sum(capacity.of(metric) for _, capacity in all_of)
        return sum(each.metric(metric) * capacity.of(metric) for each, capacity in all_of) / total

    return Metrics(mean(Metric.INPUT), mean(Metric.OUTPUT), mean(Metric.DELAY))


def _per(amount: Any, messages: Any) -> Any:
    return amount / np.maximum(messages, 1e-9)
