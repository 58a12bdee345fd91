"""The four limitations of filter-based routing, for all protocols, on overlays with and without cycles.

Hops of a delivery beyond the shortest path; subscriptions stored per broker; matchings, and entries held,
examined and compared, per event; and a reconfiguration: a link is cut while events are on their way, and
healed 15 seconds later.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from random import Random
from typing import Any

from overlay_runs import (
    PROTOCOLS,
    RESULTS,
    SEEDS,
    calibration,
    has_quotes,
    publishers_of,
    strategy_of,
    workload_of,
)

from fieldfare_lab.routing import BrokerSettings
from fieldfare_lab.simulation.routing.topologies import Pair, Topology, clustered
from fieldfare_lab.simulation.routing.traces import Brokers, Step, expected

BROKERS, SUBSCRIPTIONS, EVENTS = 40, 200, 100
BEFORE, DURING = 40, 40
"""Events published before the cut and while the link is down; the others follow after it is healed."""
CUT_S = 15.0


def overlay(kind: str, seed: int) -> Topology:
    """Return the overlay of a seed; without cycles, it is a tree."""
    rng = Random(f"limitations {seed}")
    if kind == "acyclic":
        return clustered(BROKERS, rng, edges=1, further_links=0.0)
    return clustered(BROKERS, rng)


def busiest_link(brokers: Brokers, protocol_links: dict[Pair, int], kind: str) -> Pair:
    """Return the link that carried most events; with cycles, one whose ends stay connected."""
    links = sorted(protocol_links, key=lambda pair: (-protocol_links[pair], pair))
    if kind == "acyclic":
        return links[0]
    return next(pair for pair in links if _stay_connected(brokers.topology, pair))


def _stay_connected(topology: Topology, cut: Pair) -> bool:
    """Return whether a link's ends are connected without it, within each of its clusters."""
    for cluster in topology.links[cut]:
        reached, waiting = set[str](), [cut[0]]
        while waiting:
            name = waiting.pop()
            if name in reached:
                continue
            reached.add(name)
            for pair, clusters in topology.links.items():
                if pair != cut and cluster in clusters and name in pair:
                    waiting += pair
        if cut[1] not in reached:
            return False
    return True


def carried(brokers: Brokers) -> dict[Pair, int]:
    """Return how many copies of events each link carried."""
    found: dict[Pair, int] = defaultdict(int)
    for steps in brokers.trace.events.values():
        for step in steps:
            if step.parent >= 0:
                a, b = sorted((step.broker, steps[step.parent].broker))
                found[a, b] += 1
    return found


def hops(topology: Topology, runs: list[list[Step]]) -> tuple[float, float]:
    """Return the mean hops of a delivery, and the mean of the shortest paths."""
    taken = shortest = deliveries = 0
    for steps in runs:
        depths: list[int] = []
        least = _distances(topology, steps[0].broker)
        for step in steps:
            depths.append(depths[step.parent] + 1 if step.parent >= 0 else 0)
            taken += depths[-1] * step.delivered
            shortest += least[step.broker] * step.delivered
            deliveries += step.delivered
    return taken / max(1, deliveries), shortest / max(1, deliveries)


def _distances(topology: Topology, start: str) -> dict[str, int]:
    """Return the hops to each broker on a shortest path."""
    found, reached = {start: 0}, [start]
    for name in reached:
        for pair in topology.links:
            if name in pair:
                (other,) = set(pair) - {name}
                if other not in found:
                    found[other] = found[name] + 1
                    reached.append(other)
    return found


def measured(kind: str, protocol: str, seed: int) -> dict[str, Any]:
    """Run one protocol on one overlay."""
    topology = overlay(kind, seed)
    workload = workload_of(seed, calibration("chain")["symbols"], SUBSCRIPTIONS, EVENTS)
    brokers = Brokers(
        topology, strategy_of(protocol, topology), workload, publishers_of(topology, seed), BrokerSettings()
    )
    brokers.subscribe(workload, every_s=3.0)
    rng, wanted = Random(f"publish {seed}"), expected(workload, topology)

    def publish(events: range) -> None:
        for event in events:
            brokers.publish(rng.choice(brokers.publishers), event)
            brokers.settle(0.02)

    publish(range(BEFORE))
    brokers.settle(2.0)
    runs = list(brokers.trace.events.values())
    steps = [step for found in runs for step in found]
    taken, shortest = hops(topology, runs)
    remote = [
        sum(group.subscriptions.stored() for group in brokers.broker(name).state.groups.values())
        for name in topology.brokers
    ]
    cut = busiest_link(brokers, carried(brokers), kind)
    brokers.messages.clear()
    brokers.publish(brokers.publishers[0], BEFORE)
    brokers.cut_link(*cut)
    publish(range(BEFORE + 1, BEFORE + DURING))
    brokers.settle(CUT_S)
    sent = dict(brokers.messages)
    due = {(event, each) for event in range(BEFORE + DURING) for each in wanted[event]}
    done = {(event, each) for event, found in brokers.delivered.items() for each in found}
    brokers.heal(*cut)
    publish(range(BEFORE + DURING, EVENTS))
    brokers.settle(CUT_S)
    everything = {(event, each) for event, found in wanted.items() for each in found}
    now = {(event, each) for event, found in brokers.delivered.items() for each in found}
    return {
        "overlay": kind,
        "protocol": protocol,
        "seed": seed,
        "hops_a_delivery": round(taken, 2),
        "shortest_hops": round(shortest, 2),
        "remote_entries_a_broker": round(statistics.mean(remote), 1),
        "matchings_an_event": round(sum(step.matchings for step in steps) / BEFORE, 1),
        "held_an_event": round(sum(step.held for step in steps) / BEFORE, 1),
        "examined_an_event": round(sum(step.examined for step in steps) / BEFORE, 1),
        "compared_an_event": round(sum(step.compared for step in steps) / BEFORE, 1),
        "topology_messages": sent.get("LinkState", 0),
        "rerouted_messages": sent.get("Forward", 0) - sent.get("Publication", 0),
        "late": len(due - done),
        "due": len(due),
        "lost": len(everything - now),
        "foreign": len(now - everything),
        "doubled": brokers.repeated,
    }


def main() -> None:
    if "--draw" in sys.argv or not has_quotes():
        return
    rows = []
    for kind in ("acyclic", "cyclic"):
        for protocol in PROTOCOLS:
            rows += [measured(kind, protocol, seed) for seed in SEEDS]
            print(rows[-1], flush=True)
    RESULTS.write("limitations", rows)


if __name__ == "__main__":
    main()
