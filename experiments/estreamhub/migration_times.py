"""Table I: the time to move a slice, for 25 moves of each operator and size of state, with several seeds.

There are 4, 8 and 4 slices on 2, 4 and 2 hosts, as in the paper. With 100,000 subscriptions there are 100
publications per second. With more subscriptions the rate is lower in proportion to the matching time, because
4 hosts can match at most 56 per second against 500,000 (Figure 6). The paper's column of 50,000 subscriptions
per slice means either 400,000 subscriptions in total or, as its text says, 500,000, which are 62,500 per
slice; both are run.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from elastic_runs import RESULTS, SEEDS

from fieldfare_lab.simulation.estreamhub.cluster import ElasticCluster
from fieldfare_lab.simulation.estreamhub.engine import CostModel, arrivals

MOVES = 25
PAUSE_S = 2.0
PUBLICATIONS_PER_S = 100.0
COLUMNS = [("AP", 12_500), ("M", 12_500), ("M", 50_000), ("M", 62_500), ("EP", 12_500)]
"""Operator, and subscriptions of a matcher's slice."""
PAPER_MS = {("AP", 12_500): 232, ("M", 12_500): 1497, ("M", 50_000): 2533, ("EP", 12_500): 275}


def large_slices(subscriptions: int) -> CostModel:
    """The paper's placement: few, large slices."""
    return CostModel(8 * subscriptions, access_points=4, matchers=8, exit_points=4)


def places() -> list[list[str]]:
    """Two slices per host."""
    names = [f"{name}:{i + 1}" for name, count in (("AP", 4), ("M", 8), ("EP", 4)) for i in range(count)]
    return [names[i : i + 2] for i in range(0, len(names), 2)]


def moves(operator: str, subscriptions: int, seed: int = SEEDS[0]) -> ElasticCluster:
    """A run in which random slices of one operator move to random other hosts."""
    cost = large_slices(subscriptions)
    per_s = PUBLICATIONS_PER_S * 12_500 / subscriptions
    until_s = 10 + MOVES * PAUSE_S
    rng = np.random.default_rng([seed, subscriptions])
    cluster = ElasticCluster(cost, 1.0 + arrivals([(0, per_s), (until_s, per_s)], rng), places=places())
    chance = Random(f"{operator}{subscriptions}{seed}")
    cluster.run(10.0)
    for i in range(MOVES):
        configuration = cluster.manager.configuration
        name = chance.choice([each for each in configuration.places if each.startswith(f"{operator}:")])
        hosts = [host for host in configuration.hosts if host != configuration.places[name].host]
        cluster.move(name, chance.choice(hosts))
        cluster.run(10.0 + (i + 1) * PAUSE_S)
    return cluster


def measure() -> list[dict[str, Any]]:
    rows = []
    for operator, subscriptions in COLUMNS:
        for seed in SEEDS:
            records = moves(operator, subscriptions, seed).records.moves
            move_ms = 1000 * np.array([record.move_s for record in records])
            stopped_ms = 1000 * np.array([record.active_s - record.stopped_s for record in records])
            rows.append(
                {
                    "operator": operator,
                    "subscriptions_a_slice": subscriptions,
                    "seed": seed,
                    "moves": len(records),
                    "paper_ms": PAPER_MS.get((operator, subscriptions), ""),
                    "move_mean_ms": round(float(move_ms.mean()), 1),
                    "move_deviation_ms": round(float(move_ms.std()), 1),
                    "stopped_mean_ms": round(float(stopped_ms.mean()), 1),
                    "stopped_max_ms": round(float(stopped_ms.max()), 1),
                }
            )
    return rows


def main() -> None:
    for row in RESULTS.keep("table_1", measure):
        print(row)


if __name__ == "__main__":
    main()
