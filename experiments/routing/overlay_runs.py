"""Shared by the routing experiments: the paper's points, protocols, overlays, workload, seeds, calibration.

The paper gives neither workload nor degree, selectivity or costs. Here: quotes of stocks; every second broker
has a publisher of all of them, and there are four subscriptions a broker. 100 brokers form ten clusters, each
a graph with cycles. Two overlays: *hierarchy*, a backbone, each broker of which is an edge of one of nine
clusters below it, as the paper compares MERC with the Internet's hierarchy; and *chain*, clusters that are
nearly a chain. A message takes 50 ms on a link and 0.5 ms at a broker. Three cost models: *held*, every entry
of a table takes time, as where all matching subscriptions are looked for; *examined*, a table is scanned up
to the first match of each destination; and *compared*, only the entries asked for at the event's origin take
time, as where the table is kept by origin.

Two numbers are set for each overlay: the number of symbols, so that D-DBR's mean destination list is 2.12;
and the time of a table entry, for each cost model, so that FBR's mean latency at 2,000 messages per minute is
1,087 ms in the median of the seeds.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from results_folder import ResultsFolder, as_data  # noqa: E402

from fieldfare.routing.overlay import Overlay  # noqa: E402
from fieldfare_lab.routing import ClusterTree, Ddbr, Fbr, Merc  # noqa: E402
from fieldfare_lab.routing.messages import LinkRow  # noqa: E402
from fieldfare_lab.routing.strategy import Strategy  # noqa: E402
from fieldfare_lab.simulation.routing.queueing import Counted, MatchingCost  # noqa: E402
from fieldfare_lab.simulation.routing.topologies import Topology, clustered, hierarchy  # noqa: E402
from fieldfare_lab.simulation.routing.traces import Brokers, expected  # noqa: E402
from fieldfare_lab.simulation.routing.workload import (  # noqa: E402
    QUOTES,
    Workload,
    read_quotes,
    stock_workload,
)

__all__ = ["as_data"]

RESULTS = ResultsFolder(HERE / "results")
DATA = Path(os.environ.get("FIELDFARE_SHARED_DATA", HERE.parents[2] / "shared" / "data")) / QUOTES
CALIBRATION = HERE / "calibration.json"

FBR_RATE, FBR_MEAN_MS = 2_000, 1_087
FBR_NEXT_RATE, FBR_NEXT_MS = 2_500, 2_843
DDBR_RATE, DDBR_MEAN_MS = 14_000, 491
MERC_RATE = 11_000
LISTS = {"D-DBR": 2.12, "MERC": 1.18}
"""The paper's points (section IV); rates in messages per minute, latencies in ms."""

PROTOCOLS = ("FBR", "D-DBR", "MERC")
OVERLAYS: dict[str, Callable[[int, Random], Topology]] = {"hierarchy": hierarchy, "chain": clustered}
COUNTED: tuple[Counted, ...] = ("held", "examined", "compared")
SET_UPS = tuple((overlay, counted) for overlay in OVERLAYS for counted in COUNTED)
"""Overlays and cost models; FBR's point is met in each of them."""
OVERLOADED_MS = 10_000
"""Mean latency of a run of 60 s above which the brokers count as overloaded, and higher rates are not run."""
SEEDS = (1, 2, 3, 4, 5)
PROCESSES = len(os.sched_getaffinity(0))
"""Runs at a time: as many as this process may use cores."""
BROKERS, SUBSCRIPTIONS, EVENTS = 100, 400, 200
PUBLISHER_EVERY = 2


def has_quotes() -> bool:
    """Return whether the quotes are there; say so where they are not."""
    if not DATA.exists():
        print(f"Skipped: {DATA.name} is missing; FIELDFARE_SHARED_DATA names its folder.")
    return DATA.exists()


def strategy_of(protocol: str, topology: Topology) -> Callable[[str], Strategy]:
    """Return the strategy of each broker."""
    if protocol == "FBR":
        return lambda _: Fbr()
    if protocol == "D-DBR":
        return lambda _: Ddbr()
    tree = ClusterTree(topology.tree, {name: topology.clusters_of(name) for name in topology.edges})
    return lambda name: Merc(name, topology.clusters_of(name), tree)


def publishers_of(topology: Topology, seed: int, every: int = PUBLISHER_EVERY) -> list[str]:
    """Draw the brokers with a publisher."""
    names = topology.brokers
    return sorted(Random(f"publishers {seed}").sample(names, max(1, len(names) // every)))


def general(overlay: str, seed: int) -> Topology:
    """Return the general topology of a seed."""
    return OVERLAYS[overlay](BROKERS, Random(f"topology {seed}"))


def workload_of(
    seed: int, symbols: int, subscriptions: int = SUBSCRIPTIONS, events: int = EVENTS
) -> Workload:
    """Return the workload of a seed."""
    return stock_workload(quotes(), symbols, subscriptions, events, Random(f"workload {seed}"))


def quotes() -> dict[str, list[dict[str, Any]]]:
    """Return the quotes, read once."""
    if not _quotes:
        _quotes.update(read_quotes(DATA))
    return _quotes


_quotes: dict[str, list[dict[str, Any]]] = {}


def run(
    topology: Topology, protocol: str, workload: Workload, publishers: Sequence[str], seed: int
) -> Brokers:
    """Run the machines: subscribe, publish each event once, and check the deliveries."""
    brokers = Brokers(
        topology, strategy_of(protocol, topology), workload, publishers, is_ready=protocol != "FBR"
    )
    brokers.subscribe(workload)
    brokers.messages.clear()
    rng = Random(f"publish {seed}")
    for event in range(len(workload.events)):
        brokers.publish(rng.choice(brokers.publishers), event)
        if event % 20 == 19:
            brokers.settle()
    brokers.settle()
    if brokers.delivered != expected(workload, topology) or brokers.repeated or brokers.refused:
        raise AssertionError(f"{protocol}: not every event was delivered exactly once")
    return brokers


def mean_list(topology: Topology, workload: Workload, publishers: Sequence[str], seed: int) -> float:
    """Return D-DBR's mean destination list over all copies on links, from the shortest-path trees."""
    rows: dict[str, list[tuple[str, float]]] = {name: [] for name in topology.brokers}
    for a, b in topology.links:
        rows[a].append((b, 1.0))
        rows[b].append((a, 1.0))
    overlay = Overlay(topology.brokers[0])
    overlay.merge([LinkRow(name, name, 1, tuple(links)) for name, links in rows.items()])
    wanted, rng = expected(workload, topology), Random(f"publish {seed}")
    trees = {name: overlay.tree(name) for name in publishers}
    copies = listed = 0
    for event in range(len(workload.events)):
        source = rng.choice(list(publishers))
        below: dict[str, int] = {}
        for name in {name for name, _ in wanted[event]} - {source}:
            while name != source:
                below[name] = below.get(name, 0) + 1
                name = trees[source][name]
        copies += len(below)
        listed += sum(below.values())
    return listed / max(1, copies)


def calibrated_symbols(overlay: str) -> int:
    """Return the number of symbols with which D-DBR's mean list on an overlay is nearest to the paper's."""
    topologies = [general(overlay, seed) for seed in SEEDS]
    setups = [(each, publishers_of(each, seed), seed) for seed, each in zip(SEEDS, topologies, strict=True)]

    def distance(symbols: int) -> float:
        lists = [
            mean_list(topology, workload_of(seed, symbols), names, seed) for topology, names, seed in setups
        ]
        return abs(statistics.mean(lists) - LISTS["D-DBR"])

    return min(range(12, 48, 4), key=distance)


def calibration(overlay: str) -> dict[str, Any]:
    """Return what ``general_topology.py`` has set for an overlay: ``symbols``, ``entry_us``."""
    found: dict[str, Any] = json.loads(CALIBRATION.read_text())[overlay]
    return found


def cost_of(overlay: str, counted: Counted) -> MatchingCost:
    """Return the cost that ``general_topology.py`` has set for an overlay."""
    return MatchingCost(counted, calibration(overlay)["entry_us"][counted] / 1e6)


def spread(values: Sequence[float], form: str = ".0f") -> str:
    """Return the median and, in brackets, the smallest and the largest where they differ.

    An infinite latency is one of overloaded brokers.
    """
    low, middle, high = (
        f"{each:{form}}" if each < math.inf else "overloaded"
        for each in (min(values), statistics.median(values), max(values))
    )
    return middle if low == high else f"{middle} ({low} to {high})"
