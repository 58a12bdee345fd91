"""Delays of events at a publishing rate, from a trace: each broker is a queue with one server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from random import Random

from fieldfare_lab.simulation.routing.traces import DELAY_S, Step, Trace

HANDLING_S = 0.0005
"""A broker's time for a message, without matching."""
WARMING_SHARE = 0.1
"""The first events of a run whose delays are left out."""


@dataclass(frozen=True, slots=True)
class Delays:
    """The delays of deliveries in one run, in seconds, and the busiest broker's share of busy time."""

    mean_s: float
    p99_s: float
    busiest: float


def delays(trace: Trace, rate_per_min: float, entry_s: float, seed: int, duration_s: float = 60.0) -> Delays:
    """Return the delays of a Poisson stream of events that repeats those of a trace, in random order.

    A step takes `HANDLING_S`, and ``entry_s`` for each table entry that was examined; then copies are sent.
    A delay is from publication to the end of the step that delivers.
    """
    rng = Random(seed)
    events = [(steps, _children(steps)) for _, steps in sorted(trace.events.items())]
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
        steps, children = events[runs[run]]
        step = steps[place]
        takes_s = HANDLING_S + entry_s * step.examined
        done_s = max(now, free_s.get(step.broker, 0.0)) + takes_s
        free_s[step.broker] = done_s
        busy_s[step.broker] = busy_s.get(step.broker, 0.0) + takes_s
        if step.delivered and run >= first:
            found += [done_s - started[run]] * step.delivered
        for child in children[place]:
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


def highest_rate(trace: Trace, entry_s: float, below_s: float, seed: int, duration_s: float = 60.0) -> float:
    """Return the highest rate, in events per minute, at which the mean delay stays below a bound."""
    low, high = 0.0, 1_000.0
    while high < RATE_MAX and delays(trace, high, entry_s, seed, duration_s).mean_s < below_s:
        low, high = high, high * 2
    while high - low > 0.03 * high:
        rate = (low + high) / 2
        if delays(trace, rate, entry_s, seed, duration_s).mean_s < below_s:
            low = rate
        else:
            high = rate
    return low


def calibrated_entry_s(traces: Sequence[Trace], rate_per_min: float, mean_s: float) -> float:
    """Return the time of an entry with which the mean delay of several traces, at a rate, is as given."""
    low, high = 0.0, 1e-3
    for _ in range(18):
        middle = (low + high) / 2
        means = [delays(trace, rate_per_min, middle, seed).mean_s for seed, trace in enumerate(traces)]
        if sum(means) / len(means) < mean_s:
            low = middle
        else:
            high = middle
    return (low + high) / 2
