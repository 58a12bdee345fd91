"""Figure 8: from 0 to 350 publications per second and back within half an hour, starting with one host.

The caption says 20,000 encrypted subscriptions, the text 100,000; both are run. The paper does not say how
long the rate rises and stays: here 700 s up, 400 s at the top, 650 s down.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
from elastic_runs import OURS, PAPERS, POLICIES, RESULTS, SEEDS, over_time, panels, run, summary

from fieldfare.elasticity.enforcer import Enforcer
from fieldfare_lab.simulation.estreamhub.engine import CostModel, arrivals

RATES = [(0.0, 0.0), (700.0, 350.0), (1100.0, 350.0), (1750.0, 0.0), (1800.0, 0.0)]
UNTIL_S = 1800.0
RUNS = [(100_000, PAPERS), (100_000, OURS), (20_000, PAPERS)]
PAPER_HOSTS = [
    {"time_s": 900, "hosts": 15, "words": "the paper: 15"},
    {"time_s": 1790, "hosts": 1, "words": ""},
    {"time_s": 5, "hosts": 1, "words": ""},
]
PAPER_MIGRATIONS = 246


def measure() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A row for each run with each seed, and for the first seed also the course over time."""
    runs, rows = [], []
    for subscriptions, policy in RUNS:
        for seed in SEEDS:
            arrived_s = arrivals(RATES, np.random.default_rng(seed))
            cluster = run(arrived_s, UNTIL_S, Enforcer(POLICIES[policy]), CostModel(subscriptions))
            name = {"subscriptions": subscriptions, "policy": policy, "seed": seed}
            runs.append(name | summary(cluster, UNTIL_S))
            if seed == SEEDS[0]:
                rows += [
                    {"run": f"{subscriptions:,} subscriptions, {policy}", **row}
                    for row in over_time(cluster, UNTIL_S)
                ]
    return runs, rows


def main() -> None:
    found: list[list[dict[str, Any]]] = []
    runs = RESULTS.keep("figure_8_runs", lambda: found.extend(measure()) or found[0])
    rows = RESULTS.keep("figure_8", lambda: found[1])
    for row in runs:
        print(row)
    chart = panels(rows, "run", PAPER_HOSTS, alt.Scale(domain=[0, 0.2]), dy=15)
    RESULTS.draw("figure_8", chart.properties(title="Figure 8: elastic scaling under a synthetic load"))


if __name__ == "__main__":
    main()
