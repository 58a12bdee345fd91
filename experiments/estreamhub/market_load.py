"""Figure 9: a day of the market in 40 minutes; and, beyond the paper, a predictive enforcer.

New York's ticks of 10 October 2013 replace Frankfurt's, scaled to the paper's peak: 190 publications per
second as a mean over 30 s, which is what the paper plots. They are harder to follow: almost nothing until
9:30, and then, within one second of the experiment, several times the load that one host can match. After the
close there is almost nothing again, while Frankfurt's evening keeps the paper's system at 3 hosts.

Each run is repeated with several seeds of the arrivals. Each day's predictive enforcer uses the mean of
the loads that its own runs of the earlier days have seen, with the same seed; the first day's is a run
of the paper's policy. Its constants were chosen with the days of `CHOSEN_ON`, with one seed and less than
half of this load; the other days were examined afterwards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import altair as alt
from elastic_runs import (
    MARKET_DAYS,
    OURS,
    PAPERS,
    POLICIES,
    RESULTS,
    SEEDS,
    SPAN_S,
    arrivals_of,
    market_rates,
    over_time,
    panels,
    run,
    summary,
    ticks,
)
from numpy.typing import NDArray

from fieldfare.elasticity.enforcer import Enforcer
from fieldfare_lab.elasticity.forecast import Forecast, PredictiveEnforcer
from fieldfare_lab.simulation.estreamhub.cluster import ClusterModel, ElasticCluster

PREDICTIVE = "predictive"
"""The predictive enforcer, with the loads of the days before."""
WITHOUT_DAYS = "predictive, no earlier days"
"""The predictive enforcer without a forecast."""
CHOSEN_ON = ("8 October", "9 October", "10 October")
WAITING = "the paper's rules, moves wait for the backlog"
"""As in the paper: a new place receives only later items. Run for the drawn day only."""
MARKET_SEEDS = 5
DRAWN = 3
"""10 October."""
PAPER_HOSTS = [
    {"time_s": 1800, "hosts": 8, "words": "the paper: 8, at its peak"},
    {"time_s": 2395, "hosts": 3, "words": ""},
    {"time_s": 5, "hosts": 1, "words": ""},
]


def seen(cluster: ElasticCluster) -> dict[int, float]:
    """The load that a day's enforcer has seen: the CPU of all hosts in each second."""
    total: dict[int, float] = defaultdict(float)
    for now_s, _, load in cluster.records.loads:
        total[round(now_s)] += load
    return total


def typical(days: Sequence[dict[int, float]]) -> Forecast:
    """The mean of some days."""
    seconds = sorted(set().union(*days))
    return Forecast(seconds, [sum(day.get(second, 0.0) for day in days) / len(days) for second in seconds])


def enforcers(day: int, before: Sequence[dict[int, float]]) -> dict[str, Enforcer]:
    """A day's policies, given the loads seen before it."""
    found = {policy: Enforcer(POLICIES[policy]) for policy in (PAPERS, OURS)}
    if before:
        found |= {
            PREDICTIVE: PredictiveEnforcer(typical(before)),
            WITHOUT_DAYS: PredictiveEnforcer(Forecast((), ())),
        }
    return found | ({WAITING: Enforcer(POLICIES[PAPERS])} if day == DRAWN else {})


def week(found: NDArray[Any], seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All days in sequence for each policy, and one of them over time."""
    runs, rows = [], []
    before: list[dict[int, float]] = []
    for day, name in enumerate(MARKET_DAYS):
        arrived_s = arrivals_of(market_rates(found, day), seed)
        for policy, enforcer in enforcers(day, before).items():
            model = ClusterModel(queues_reach_back=policy != WAITING)
            cluster = run(arrived_s, float(SPAN_S), enforcer, model=model)
            runs.append({"day": name, "policy": policy, "seed": seed} | summary(cluster, SPAN_S))
            print(runs[-1], flush=True)
            if day == DRAWN and policy in (PAPERS, OURS, PREDICTIVE):
                rows += [{"policy": policy, **row} for row in over_time(cluster, SPAN_S)]
            if policy == (PREDICTIVE if before else PAPERS):
                today = seen(cluster)
        before.append(today)
    return runs, rows


def measure(found: NDArray[Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The week with each seed, and the drawn day over time with the first."""
    weeks = [week(found, seed) for seed in SEEDS[:MARKET_SEEDS]]
    return [row for runs, _ in weeks for row in runs], weeks[0][1]


def main() -> None:
    found = ticks()
    if found is None:
        return
    kept: list[list[dict[str, Any]]] = []
    RESULTS.keep("figure_9_runs", lambda: kept.extend(measure(found)) or kept[0])
    rows = RESULTS.keep("figure_9", lambda: kept[1])
    chart = panels(
        *(rows, "policy", PAPER_HOSTS, alt.Scale(type="log", domain=[0.03, 100], nice=False)),
        "the paper: below 1 s",
        align="left",
        dx=10,
    )
    RESULTS.draw(
        "figure_9",
        chart.properties(title=f"Figure 9: New York on {MARKET_DAYS[DRAWN]} 2013, 40 minutes for 13 hours"),
    )


if __name__ == "__main__":
    main()
