"""Ji et al. 2013, sections I and II: D-DBR, sentence by sentence, with FBR as the baseline."""

from __future__ import annotations

import pickle
import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from routing_worlds import Observed, Range, world

from fieldfare.gateway.federation.heeding import Heeding
from fieldfare.model import Change
from fieldfare.storage.links import Advertisement
from fieldfare.storage.sqlite.links import LinkStore
from fieldfare_lab.routing.messages import (
    Advertise,
    Publication,
    SetAdvertisement,
    Subscribe,
)

LINE = "A-B B-C C-D"
GRID = "A-B B-C D-E E-F G-H H-I A-D D-G B-E E-H C-F F-I"
EVENTS = {"A": (0, 99)}


def subscribed(protocol: str, edges: str = LINE) -> Observed:
    """A publishes; C and D subscribe."""
    built = world(protocol, edges, EVENTS)
    built.subscribe("C", "s", 0, 50)
    built.subscribe("D", "t", 0, 10)
    built.done()
    built.observe()
    return built


def test_a_broker_has_four_matching_tables_and_two_of_topology() -> None:
    state = subscribed("ddbr").broker("C").state
    assert list(state.advertisements) == ["ad"]  # L-SRT
    assert sorted(state.groups[""].advertisements.origins) == ["A", "B", "D"]  # R-SRT
    assert list(state.subscriptions.subscriptions) == ["s"]  # L-PRT
    assert list(state.groups[""].subscriptions.entries()) == []  # R-PRT: C publishes nothing that is wanted
    overlay = state.multicast.overlays[""]
    assert overlay.members() == ["A", "B", "C", "D"]  # TRT
    assert overlay.next_hop("C", "A") == "B"  # SPRT


def test_an_event_carries_the_addresses_of_interested_brokers() -> None:
    built = subscribed("ddbr")
    built.publish("A", 5)
    built.publish("A", 40)
    built.done()
    first, second = (
        routed.destinations for sender, _, routed in built.contents(Publication) if sender == "A"
    )
    assert (first, second) == (("C", "D"), ("C",))


@pytest.mark.parametrize("protocol, stored", [("ddbr", [1, 0, 0]), ("fbr", [1, 1, 1])])
def test_subscriptions_are_stored_at_no_intermediate_broker(protocol: str, stored: list[int]) -> None:
    """Limitation 2, subscription duplication: FBR stores one at each hop."""
    built = world(protocol, LINE, EVENTS)
    built.subscribe("D", "t", 0, 10)
    built.done()
    states = [built.broker(name).state for name in "ABC"]
    found = [sum(len(list(g.subscriptions.entries())) for g in each.groups.values()) for each in states]
    assert found == stored


@pytest.mark.parametrize("advertised, stored", [((0, 99), 3), ((0, 20), 2), ((55, 65), 1), ((90, 99), 0)])
def test_a_subscription_is_sent_to_the_brokers_with_intersecting_advertisements(
    tmp_path: Path, advertised: tuple[int, int], stored: int
) -> None:
    """Section II: fewer are stored at a broker that advertises less; in the machine and in the service."""
    subscriptions = {"s": (0, 50), "t": (0, 10), "u": (60, 70)}
    built = world("ddbr", LINE, {"A": advertised})
    for id, (low, high) in subscriptions.items():
        built.subscribe("D", id, low, high)
    built.done()
    assert len(list(built.broker("A").state.groups[""].subscriptions.entries())) == stored
    heeding = Heeding(LinkStore(tmp_path / "links.db"))
    heeding.take([Advertisement("A", "default", 1, "data.n BETWEEN {} AND {}".format(*advertised))])
    filters = [f"data.n BETWEEN {low} AND {high}" for low, high in subscriptions.values()]
    changes = [Change(1, "default", number, text, "sql") for number, text in enumerate(filters)]
    assert sum(heeding.needs("A", each) for each in changes) == stored
    assert all(heeding.needs("B", each) for each in changes), "without an advertisement, all of them"


@pytest.mark.parametrize("protocol, matchings", [("ddbr", [2, 0, 0, 1]), ("fbr", [2, 2, 2, 1])])
def test_an_event_is_matched_at_its_source_and_destinations_only(protocol: str, matchings: list[int]) -> None:
    """Limitation 3, redundant and repeated matching: FBR matches at each hop."""
    built = world(protocol, LINE, EVENTS)
    built.subscribe("D", "t", 0, 10)
    built.done()
    before = {name: built.broker(name).counters.matchings for name in "ABCD"}
    built.publish("A", 5)
    built.done()
    assert built.sites["D"].delivered
    assert [built.broker(name).counters.matchings - before[name] for name in "ABCD"] == matchings


def test_separate_tables_for_local_and_remote_lower_the_matching_cost() -> None:
    """A destination examines its clients' subscriptions, not the many that other brokers have there."""
    built = world("ddbr", LINE, {"A": (0, 99), "D": (0, 99)})
    for i in range(20):
        built.subscribe("B", f"b{i}", 0, 99)
    built.subscribe("D", "t", 0, 10)
    built.done()
    state, counters = built.broker("D").state, built.broker("D").counters
    assert len(list(state.groups[""].subscriptions.entries())) == 20
    before = counters.examined
    built.publish("A", 5)
    built.done()
    assert counters.examined - before == 1


def test_each_link_carries_one_copy_with_its_part_of_the_list() -> None:
    built = world("ddbr", GRID, {"A": (0, 99)})
    for name in "BCDEFGHI":
        built.subscribe(name, "s", 0, 50)
    built.done()
    built.observe()
    built.publish("A", 5)
    built.done()
    crossed = built.contents(Publication)
    links = [frozenset(each[:2]) for each in crossed]
    assert len(links) == len(set(links)) == 8
    for _, receiver, routed in crossed:
        onward = [name for sender, _, part in crossed if sender == receiver for name in part.destinations]
        assert sorted([*onward, receiver]) == sorted(routed.destinations)


def test_messages_take_shortest_paths() -> None:
    built = world("ddbr", GRID, EVENTS)
    built.subscribe("I", "s", 0, 50)
    built.done()
    built.observe()
    built.publish("A", 5)
    built.done()
    path = [each[:2] for each in built.contents(Publication)]
    assert len(path) == 4 and all(a[1] == b[0] for a, b in pairwise(path))


def test_advertisements_and_subscriptions_are_routed_like_events() -> None:
    """An advertisement to all brokers, a subscription to the brokers with intersecting advertisements."""
    built = world("ddbr", GRID, {"A": (0, 99), "E": (0, 10), "I": (50, 99)})
    built.subscribe("G", "s", 0, 20)
    built.done()
    asked = {receiver for _, receiver, routed in built.contents(Subscribe) if receiver in routed.destinations}
    assert asked == {"A", "E"}
    built.observe()
    built.command("A", SetAdvertisement("more", Range(100, 200)))
    built.done()
    crossed = built.contents(Advertise)
    assert len(crossed) == len({frozenset(each[:2]) for each in crossed}) == 8


def test_a_change_of_the_topology_leaves_the_matching_tables_alone() -> None:
    """Limitations 1 and 4: general topologies, and flexibility in reconfiguration."""
    built = subscribed("ddbr", f"{LINE} D-A")

    def tables() -> bytes:
        return b"".join(
            pickle.dumps((state.advertisements, state.subscriptions, state.groups))
            for state in (built.broker(name).state for name in "ABCD")
        )

    before = tables()
    built.cut("A", "B")
    built.run(10)
    assert tables() == before and built.crossed == []
    built.publish("A", 5)
    built.done()
    assert [each[:2] for each in built.contents(Publication)] == [("A", "D"), ("D", "C")]
    built.heal("A", "B")
    built.done()
    assert built.faults() == [] and built.delivered("C").total() == built.delivered("D").total() == 1


def test_filter_based_routing_waits_for_a_cut_link_where_another_path_exists() -> None:
    """Limitation 4: FBR's trees do not follow the topology. Links keep what they have, so nothing is lost."""
    built = subscribed("fbr", f"{LINE} D-A")
    parent = (
        built.broker("C")
        .state.groups[built.broker("C").state.origins["A"]]
        .advertisements.origins["A"]
        .source
    )
    built.cut("C", parent)
    built.publish("A", 5)
    built.run(20)
    assert built.delivered("C").total() == 0
    built.heal("C", parent)
    built.done()
    assert built.delivered("C").total() == 1
