"""The saturation rate: the highest rate without continually growing queues (Li et al. 2011, section IV.B).

The paper raises the rate until response times grow linearly. Here each rate is tried in a separate run, from
empty queues, and the saturation rate is found by bisection: above saturation the busiest matcher's backlog
grows continually.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fieldfare_lab.simulation.bluedove.model import Trace

GROWTH = 0.03
"""Growth of a matcher's backlog, in seconds of work per second, that still counts as random."""


def grows(trace: Trace) -> float:
    """Return the growth of the largest backlog from the second quarter of a run to its last, per second."""
    largest = np.array([max(waiting, default=0.0) for _, waiting in trace.backlog])
    quarter = len(largest) // 4
    early, late = largest[quarter : 2 * quarter].mean(), largest[-quarter:].mean()
    start_s, end_s = trace.backlog[0][0], trace.backlog[-1][0]
    return float((late - early) / ((end_s - start_s) / 2))


def saturation_rate(run: Callable[[float], Trace], guess_per_s: float, precision: float = 0.03) -> float:
    """Return a rate between one at which backlogs grow and one at which they do not.

    Parameters
    ----------
    run
        Makes a trace of the service at a rate in messages per second.
    guess_per_s
        First rate to try.
    precision
        Maximum relative distance of the two rates.
    """
    low, high = 0.0, float("inf")
    rate = guess_per_s
    while high > low * (1 + precision):
        if grows(run(rate)) > GROWTH:
            high = rate
        else:
            low = rate
        rate = 1.5 * low if high == float("inf") else high / 1.5 if low == 0 else (low * high) ** 0.5
    return rate
