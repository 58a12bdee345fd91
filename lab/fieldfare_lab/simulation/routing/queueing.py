"""Delays of events at a publishing rate, from a trace: each broker is a queue with one server."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import numpy as np

from fieldfare_lab.simulation.routing.queueing_kernels import queue_delays
from fieldfare_lab.simulation.routing.traces import DELAY_S, Step, Trace

Counted = Literal["held", "examined", "compared"]
"""The table entries that take time: see `MatchingCost`."""
HANDLING_S = 0.0005
"""A broker's time for a message, without matching."""
WARMING_SHARE = 0.1
"""The first events of a run whose delays are left out."""


@dataclass(frozen=True, slots=True)
class MatchingCost:
    """A broker's time for matching: each counted table entry takes equally long.

    Parameters
    ----------
    counted
        Which entries take time: all that the table holds, as where all matching subscriptions are looked for;
        those that a scan examines up to the first match of each destination; or only those that are compared
        with the event, as in a table that is kept by origin.
    entry_s
        The time of an entry, in seconds.
    """

    counted: Counted
    entry_s: float

    def of(self, step: Step) -> float:
        """Return the time that a step takes to match."""
        return self.entry_s * int(getattr(step, self.counted))


@dataclass(frozen=True, slots=True)
class Delays:
    """The delays of deliveries in one run, in seconds, and the busiest broker's share of busy time."""

    mean_s: float
    p99_s: float
    busiest: float


def delays(
    trace: Trace, rate_per_min: float, cost: MatchingCost, seed: int, duration_s: float = 60.0
) -> Delays:
    """Return the delays of a Poisson stream of events that repeats those of a trace, in random order.

    A step takes `HANDLING_S` and its matching; then copies are sent.
    A delay is from publication to the end of the step that delivers.
    """
    rng, steps = Random(seed), _flattened(trace)
    at_s, started_s, events = 0.0, list[float](), list[int]()
    while at_s < duration_s:
        at_s += rng.expovariate(rate_per_min / 60)
        events.append(rng.randrange(len(steps.first)))
        started_s.append(at_s)
    takes_s = np.array([HANDLING_S + cost.of(step) for each in _in_order(trace) for step in each])
    busy_s = np.zeros(int(steps.broker.max()) + 1)
    found_s, counts = queue_delays(
        np.array(started_s),
        steps.first[np.array(events)],
        (steps.broker, takes_s, steps.delivered, steps.child_start, steps.children),
        busy_s,
        (int(WARMING_SHARE * len(events)), DELAY_S),
    )
    if not len(found_s):
        return Delays(0.0, 0.0, 0.0)
    each_s = np.sort(np.repeat(found_s, counts))
    p99_s = each_s[int(0.99 * (len(each_s) - 1))]
    return Delays(float(each_s.mean()), float(p99_s), float(busy_s.max()) / duration_s)


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of a trace as arrays; the steps of an event follow each other.

    Attributes
    ----------
    first
        The first step of each event.
    child_start, children
        Where the children of each step begin, with an end; and the steps that they are.
    """

    first: Any
    broker: Any
    delivered: Any
    child_start: Any
    children: Any


def _in_order(trace: Trace) -> list[list[Step]]:
    return [steps for _, steps in sorted(trace.events.items())]


def _flattened(trace: Trace) -> _Steps:
    numbers: dict[str, int] = {}
    first, broker, delivered = list[int](), list[int](), list[int]()
    child_start, children = [0], list[int]()
    for steps in _in_order(trace):
        start = len(broker)
        first.append(start)
        for step, below in zip(steps, _children(steps), strict=True):
            broker.append(numbers.setdefault(step.broker, len(numbers)))
            delivered.append(step.delivered)
            children += [start + place for place in below]
            child_start.append(len(children))
    return _Steps(
        *(np.array(each, dtype=np.int64) for each in (first, broker, delivered, child_start, children))
    )


def _children(steps: Sequence[Step]) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in steps]
    for place, step in enumerate(steps):
        if step.parent >= 0:
            children[step.parent].append(place)
    return children


RATE_MAX = 200_000.0
"""Events per minute beyond which no higher rate is searched for."""


def highest_rate(
    trace: Trace, cost: MatchingCost, below_s: float, seed: int, duration_s: float = 60.0
) -> float:
    """Return the highest rate, in events per minute, at which the mean delay stays below a bound."""
    low, high = 0.0, 1_000.0
    while high < RATE_MAX and delays(trace, high, cost, seed, duration_s).mean_s < below_s:
        low, high = high, high * 2
    while high - low > 0.03 * high:
        rate = (low + high) / 2
        if delays(trace, rate, cost, seed, duration_s).mean_s < below_s:
            low = rate
        else:
            high = rate
    return low


def calibrated(
    traces: Mapping[int, Trace], counted: Counted, rate_per_min: float, mean_s: float
) -> MatchingCost:
    """Return the cost with which the mean delay at a rate is as given, in the median of several seeds."""
    low, high = 0.0, 1e-2
    for _ in range(20):
        cost = MatchingCost(counted, (low + high) / 2)
        means = [delays(trace, rate_per_min, cost, seed).mean_s for seed, trace in traces.items()]
        if statistics.median(means) < mean_s:
            low = cost.entry_s
        else:
            high = cost.entry_s
    return MatchingCost(counted, (low + high) / 2)
