"""Delays of events at a publishing rate, from a trace: each broker is a queue with one server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Literal

from fieldfare_lab.simulation.routing.traces import DELAY_S, Step, Trace

Counted = Literal["examined", "compared"]
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
        Whether all entries that a scan examines take time, or only those that are compared with the event, as
        in a table that is kept by origin.
    entry_s
        The time of an entry, in seconds.
    """

    counted: Counted
    entry_s: float

    def of(self, step: Step) -> float:
        """Return the time that a step takes to match."""
        return self.entry_s * (step.examined if self.counted == "examined" else step.compared)


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
    rng = Random(seed)
    events = [
        [
            (step.broker, HANDLING_S + cost.of(step), step.delivered, children)
            for step, children in zip(steps, _children(steps), strict=True)
        ]
        for _, steps in sorted(trace.events.items())
    ]
    waiting: list[tuple[float, int, int, int]] = []
    order, runs, at_s = count(), list[int](), 0.0
    started: list[float] = []
    while at_s < duration_s:
        at_s += rng.expovariate(rate_per_min / 60)
        runs.append(rng.randrange(len(events)))
        started.append(at_s)
        waiting.append((at_s, next(order), len(runs) - 1, 0))
    free_s: dict[str, float] = {}
    busy_s: dict[str, float] = {}
    found: list[float] = []
    first = int(WARMING_SHARE * len(runs))
    while waiting:
        now, _, run, place = heappop(waiting)
        broker, takes_s, delivered, children = events[runs[run]][place]
        done_s = max(now, free_s.get(broker, 0.0)) + takes_s
        free_s[broker] = done_s
        busy_s[broker] = busy_s.get(broker, 0.0) + takes_s
        if delivered and run >= first:
            found += [done_s - started[run]] * delivered
        for child in children:
            heappush(waiting, (done_s + DELAY_S, next(order), run, child))
    found.sort()
    if not found:
        return Delays(0.0, 0.0, 0.0)
    return Delays(
        sum(found) / len(found), found[int(0.99 * (len(found) - 1))], max(busy_s.values()) / duration_s
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
    """Return the cost with which the mean delay of the traces of several seeds, at a rate, is as given."""
    low, high = 0.0, 1e-2
    for _ in range(20):
        cost = MatchingCost(counted, (low + high) / 2)
        means = [delays(trace, rate_per_min, cost, seed).mean_s for seed, trace in traces.items()]
        if sum(means) / len(means) < mean_s:
            low = cost.entry_s
        else:
            high = cost.entry_s
    return MatchingCost(counted, (low + high) / 2)
