"""Ji et al. 2013, section III: MERC, sentence by sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from explorer import CLUSTERS
from routing_worlds import Range, clusters

from fieldfare_lab.routing import ClusterTree, Merc
from fieldfare_lab.routing.messages import (
    Advertise,
    Publication,
    SetAdvertisement,
    Subscribe,
)


def test_a_broker_knows_only_the_brokers_of_its_clusters() -> None:
    built = clusters()
    known = {name: sorted(built.broker(name).state.multicast.overlays) for name in built.sites}
    assert known == {"A1": ["A"], "A2": ["A"], "AB": ["A", "B"], "B1": ["B"], "B2": ["B"]}
    assert built.broker("A1").state.multicast.overlays["A"].members() == ["A1", "A2", "AB"]


def test_an_edge_broker_has_four_tables_for_each_cluster_and_the_local_ones_once() -> None:
    built = clusters(ads={"A1": (0, 50), "B1": (0, 50)})
    built.subscribe("AB", "edge", 0, 9)
    built.subscribe("A2", "a", 0, 9)
    built.subscribe("B2", "b", 0, 9)
    built.done()
    state = built.broker("AB").state
    assert sorted(state.groups) == sorted(state.multicast.overlays) == ["A", "B"]
    assert list(state.subscriptions.subscriptions) == ["edge"]
    assert list(state.advertisements) == ["ad"]
    for cluster, publisher, subscriber in (("A", "A1", "A2"), ("B", "B1", "B2")):
        group = state.groups[cluster]
        assert publisher in group.advertisements.origins
        assert [each.subscriber for each in group.subscriptions.entries()] == [subscriber]
    inner = built.broker("A1").state
    assert sorted(inner.groups) == sorted(inner.multicast.overlays) == ["A"]


def test_an_edge_broker_replaces_the_source_and_keeps_the_origin() -> None:
    built = clusters(ads={"A1": (0, 50)})
    built.subscribe("B2", "out", 10, 30)
    built.done()
    built.observe()
    built.publish("A1", 20)
    built.done()
    ((_, _, at_edge),) = built.contents(Publication, "AB")
    ((_, _, beyond),) = built.contents(Publication, "B2")
    assert (at_edge.source, beyond.source) == ("A1", "AB")
    assert at_edge.content == beyond.content
    assert beyond.content.origin.broker == "A1"


def test_an_advertisement_goes_to_all_brokers_of_the_other_clusters() -> None:
    built = clusters()
    built.command("A1", SetAdvertisement("new", Range(0, 5)))
    built.done()
    for name in ("B1", "B2"):
        ((_, _, routed),) = built.contents(Advertise, name)
        assert (routed.source, routed.content.origin) == ("AB", "A1")


def test_a_subscription_goes_to_brokers_with_matching_advertisements() -> None:
    built = clusters(ads={"B1": (0, 50), "B2": (60, 90)})
    built.subscribe("A1", "s", 0, 10)
    built.done()
    assert {receiver for _, receiver, _ in built.contents(Subscribe, "B1")} == {"B1"}
    assert built.contents(Subscribe, "B2") == []
    stored = [each.source for each in built.broker("B1").state.groups["B"].subscriptions.entries()]
    assert stored == ["AB"]


def test_an_event_goes_to_brokers_with_matching_subscriptions() -> None:
    built = clusters(ads={"A1": (0, 50)})
    built.subscribe("B1", "s", 0, 10)
    built.subscribe("B2", "t", 0, 50)
    built.done()
    built.observe()
    built.publish("A1", 30)
    built.done()
    assert built.contents(Publication, "B1") == []
    assert len(built.contents(Publication, "B2")) == 1


def test_an_event_is_matched_once_for_each_cluster() -> None:
    built = clusters("A: A1-A2 A2-AB; B: AB-B1 B1-B2; A/B", ads={"A1": (0, 50)})
    built.subscribe("B2", "t", 0, 50)
    built.done()
    before = {name: built.broker(name).counters.matchings for name in built.sites}
    built.publish("A1", 30)
    built.done()
    matchings = {name: built.broker(name).counters.matchings - n for name, n in before.items()}
    # L-PRT and R-PRT at the source, L-PRT and cluster B's R-PRT at the edge, L-PRT at the destination.
    assert matchings == {"A1": 2, "A2": 0, "AB": 2, "B1": 0, "B2": 1}


def test_destination_lists_are_limited_to_the_cluster() -> None:
    built = clusters(ads={"A1": (0, 50)})
    for name in ("A2", "B1", "B2"):
        built.subscribe(name, "s", 0, 50)
    built.done()
    built.observe()
    built.publish("A1", 30)
    built.done()
    members = {"A": {"A1", "A2", "AB"}, "B": {"AB", "B1", "B2"}}
    crossed = built.contents(Publication)
    assert crossed and all(set(routed.destinations) <= members[routed.group] for _, _, routed in crossed)


def test_a_change_in_one_cluster_is_not_seen_in_another() -> None:
    built = clusters()
    before = built.broker("A1").state.multicast.overlays["A"].digest()
    built.cut("B1", "B2")
    built.run(10)
    assert {message.group for _, _, message in built.link_states} == {"B"}
    assert built.broker("A1").state.multicast.overlays["A"].digest() == before


def test_clients_may_be_attached_at_an_edge_broker() -> None:
    built = clusters(ads={"AB": (0, 50), "A1": (0, 50)})
    for name in built.sites:
        built.subscribe(name, "s", 0, 50)
    built.done()
    built.publish("AB", 1)
    built.publish("A1", 2)
    built.done()
    assert built.faults() == []
    assert [built.delivered(name).total() for name in sorted(built.sites)] == [2] * 5


@pytest.mark.parametrize("text", CLUSTERS)
def test_clusters_may_be_connected_in_a_hierarchy(text: str) -> None:
    built = clusters(text)
    for name in built.sites:
        built.command(name, SetAdvertisement("ad", Range(0, 99)))
        built.subscribe(name, "s", 0, 50)
    built.done()
    for name in built.sites:
        built.publish(name, 7)
    built.done()
    assert built.faults() == []
    assert {built.delivered(name).total() for name in built.sites} == {len(built.sites)}


def test_one_edge_of_a_pair_is_designated_for_each_origin() -> None:
    """The paper leaves open what several edge brokers between two clusters do."""
    tree = ClusterTree((("A", "B"),), dict.fromkeys(("E", "F", "G"), ("A", "B")))
    designated = {tree.designated("A", "B", f"origin {i}", f"origin {i}") for i in range(30)}
    assert designated == {"E", "F", "G"}
    assert tree.designated("A", "B", "F", "F") == "F"


@pytest.mark.parametrize(
    "pairs, edges",
    [
        ((("A", "B"), ("B", "C"), ("C", "A")), {"E": ("A", "B", "C")}),
        ((("A", "B"), ("C", "D")), {"E": ("A", "B"), "F": ("C", "D")}),
        ((("A", "B"), ("B", "C")), {"E": ("A", "B")}),
        ((("A", "B"), ("B", "C")), {"E": ("A", "B"), "F": ("B", "C"), "G": ("A", "C")}),
    ],
)
def test_clusters_that_are_no_tree_are_refused(
    pairs: tuple[tuple[str, str], ...], edges: dict[str, tuple[str, ...]]
) -> None:
    with pytest.raises(ValueError):
        ClusterTree(pairs, edges)


def test_a_broker_of_several_clusters_is_configured_as_an_edge() -> None:
    tree = ClusterTree((("A", "B"),), {"E": ("A", "B")})
    with pytest.raises(ValueError, match="not configured as an edge broker"):
        Merc("X", ("A", "B"), tree)
