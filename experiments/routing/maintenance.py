"""The cost of a topology change, at 100 and 1,000 brokers, and who hears of it: a link goes down."""

from __future__ import annotations

import statistics
import sys
from random import Random
from typing import Any

from overlay_runs import RESULTS, SEEDS, has_quotes, publishers_of, strategy_of, workload_of

from fieldfare_lab.simulation.routing.topologies import clustered
from fieldfare_lab.simulation.routing.traces import Brokers

SIZES = (100, 1_000)
CHANGES = 5
RUNS = 3
"""Seeds of each size; with 1,000 brokers, a run of D-DBR takes a minute."""


def measured(size: int, protocol: str, seed: int) -> dict[str, Any]:
    """Cut and heal some links of one overlay."""
    topology = clustered(size, Random(f"topology {size} {seed}"))
    workload = workload_of(seed, 20, 0, 1)
    brokers = Brokers(
        topology,
        strategy_of(protocol, topology),
        workload,
        publishers_of(topology, seed),
        is_ready=True,
        advertises=False,
    )
    states = [brokers.broker(name).state for name in topology.brokers]
    rows = [sum(len(each.rows) for each in state.multicast.overlays.values()) for state in states]
    rng = Random(f"changes {seed}")
    messages, reached, outside = 0, [], []
    for pair in rng.sample(sorted(topology.links), CHANGES):
        brokers.messages.clear()
        brokers.informed.clear()
        brokers.cut_link(*pair)
        brokers.settle()
        messages += brokers.messages["LinkState"]
        cluster = {name for group in topology.links[pair] for name in topology.clusters[group]}
        reached.append(len(brokers.informed))
        outside.append(len(brokers.informed - cluster))
        brokers.heal(*pair)
        brokers.settle()
    return {
        "brokers": size,
        "protocol": protocol,
        "seed": seed,
        "rows_a_broker": round(statistics.mean(rows), 1),
        "rows_max": max(rows),
        "messages_a_change": round(messages / CHANGES, 1),
        "brokers_reached": round(statistics.mean(reached), 1),
        "reached_outside_the_cluster": round(statistics.mean(outside), 1),
    }


def main() -> None:
    if "--draw" in sys.argv or not has_quotes():
        return
    rows = []
    for size in SIZES:
        for protocol in ("D-DBR", "MERC"):
            rows += [measured(size, protocol, seed) for seed in SEEDS[:RUNS]]
            print(rows[-1], flush=True)
    RESULTS.write("maintenance", rows)


if __name__ == "__main__":
    main()
