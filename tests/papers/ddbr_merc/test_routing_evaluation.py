"""Ji et al. 2013 (D-DBR, MERC), section IV, in simulated time: its claims in small doses.

The figures themselves are made by experiments/routing.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "experiments" / "routing"))

import overlay_runs  # noqa: E402

from fieldfare_lab.simulation.routing.queueing import HANDLING_S, MatchingCost, delays, highest_rate  # noqa: E402
from fieldfare_lab.simulation.routing.topologies import Topology, clustered, line  # noqa: E402
from fieldfare_lab.simulation.routing.traces import DELAY_S, Brokers, Step, Trace  # noqa: E402
from fieldfare_lab.simulation.routing.workload import Workload, stock_workload  # noqa: E402

pytestmark = pytest.mark.long

ENTRY_S = 100e-6
COST = MatchingCost("examined", ENTRY_S)


@cache
def quotes() -> dict[str, list[dict[str, Any]]]:
    rng = Random(3)

    def quote(symbol: str) -> dict[str, Any]:
        low = round(rng.uniform(10, 100), 2)
        numbers = {"open": low + 1, "high": low + 2, "low": low, "close": low + 1.5, "volume": 1e6 * low}
        return {"class": "STOCK", "symbol": symbol, **numbers}

    return {f"S{n}": [quote(f"S{n}") for _ in range(20)] for n in range(30)}


def workload() -> Workload:
    return stock_workload(quotes(), 20, 150, 40, Random(4))


@cache
def general() -> Topology:
    return clustered(24, Random(1), cluster_size=8)


@cache
def ran(protocol: str) -> Brokers:
    """Run the machines; it fails unless each event is delivered exactly once to each subscription."""
    topology = general()
    return overlay_runs.run(topology, protocol, workload(), overlay_runs.publishers_of(topology, 1), 1)


def steps_of(protocol: str) -> list[Step]:
    return [step for steps in ran(protocol).trace.events.values() for step in steps]


def test_an_event_is_matched_at_fewer_brokers_by_destinations_than_at_every_hop() -> None:
    matched = {name: sum(step.matchings > 0 for step in steps_of(name)) for name in overlay_runs.PROTOCOLS}
    assert matched["D-DBR"] <= matched["MERC"] < matched["FBR"]


def test_no_more_entries_are_compared_than_examined_and_examined_than_held() -> None:
    """A broker of FBR also holds the subscriptions that other origins' events need."""
    for name in overlay_runs.PROTOCOLS:
        assert all(step.compared <= step.examined <= step.held for step in steps_of(name))
    held, examined, compared = (
        sum(getattr(step, name) for step in steps_of("FBR")) for name in overlay_runs.COUNTED
    )
    assert 0 < compared < examined < held


def test_matching_takes_as_long_as_the_counted_entries() -> None:
    step = Step("a", -1, held=30, examined=10, compared=4)
    assert MatchingCost("held", 2.0).of(step) == 60
    assert MatchingCost("examined", 2.0).of(step) == 20
    assert MatchingCost("compared", 2.0).of(step) == 8


def test_fewer_entries_are_examined_by_destinations() -> None:
    examined = {name: sum(step.examined for step in steps_of(name)) for name in overlay_runs.PROTOCOLS}
    assert examined["D-DBR"] < examined["MERC"] < examined["FBR"]


def test_latency_and_throughput_are_best_with_destinations_and_mercs_lie_between() -> None:
    cost = MatchingCost("examined", 20 * ENTRY_S)
    rates = {
        name: highest_rate(ran(name).trace, cost, 1.5, 1, duration_s=10) for name in overlay_runs.PROTOCOLS
    }
    means = {
        name: delays(ran(name).trace, rates["FBR"], cost, 1, duration_s=10).mean_s
        for name in overlay_runs.PROTOCOLS
    }
    assert means["D-DBR"] < means["MERC"] < means["FBR"]
    assert rates["FBR"] < rates["MERC"] < rates["D-DBR"]


def test_mercs_destination_lists_are_shorter() -> None:
    lists = {
        name: sum(step.listed for step in steps_of(name)) / sum(step.sent for step in steps_of(name))
        for name in ("D-DBR", "MERC")
    }
    assert 1 < lists["MERC"] < lists["D-DBR"]


def test_the_lists_are_those_of_the_shortest_path_trees() -> None:
    """The selectivity is set with them before the machines run."""
    topology = general()
    names = overlay_runs.publishers_of(topology, 1)
    listed, sent = (sum(getattr(step, name) for step in steps_of("D-DBR")) for name in ("listed", "sent"))
    assert overlay_runs.mean_list(topology, workload(), names, 1) == pytest.approx(listed / sent)


def test_an_event_of_an_idle_overlay_takes_its_hops_and_its_matching() -> None:
    steps = [Step("a", -1, examined=10, sent=1), Step("b", 0), Step("c", 1, examined=5, delivered=2)]
    found = delays(Trace({0: steps}), 1, COST, 1, duration_s=3_600)
    assert found.mean_s == pytest.approx(3 * HANDLING_S + 2 * DELAY_S + 15 * ENTRY_S)


def test_an_overloaded_broker_makes_delays_grow() -> None:
    steps = [Step("a", -1, examined=1_000, delivered=1)]
    idle, busy, over = (
        delays(Trace({0: steps}), rate, MatchingCost("examined", 1e-3), 1).mean_s for rate in (1, 50, 120)
    )
    assert idle < busy < over / 5


@pytest.mark.parametrize("size", [3, 4, 7, 10])
def test_a_line_of_brokers_has_clusters_that_share_their_ends(size: int) -> None:
    topology = line(size)
    assert len(topology.brokers) == size and len(topology.links) == size - 1
    assert len(topology.clusters) > 1 and len(topology.edges) == len(topology.clusters) - 1
    assert all(topology.links.values())


def test_every_seed_delivers_each_event_exactly_once_in_trees_too() -> None:
    for seed in (1, 2):
        topology = clustered(15, Random(seed), cluster_size=5, edges=1, further_links=0.0)
        assert len(topology.links) == 14
        for protocol in overlay_runs.PROTOCOLS:
            overlay_runs.run(topology, protocol, workload(), topology.brokers[:4], seed)
