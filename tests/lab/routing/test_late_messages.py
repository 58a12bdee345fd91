"""A broker that was removed for good does not come back by its messages that come late."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from explorer import History, clustered, history
from routing_support import Range, World

from fieldfare.effects import Received, Send, Tell
from fieldfare_lab.routing import Broker, Fbr
from fieldfare_lab.routing.messages import (
    Advertise,
    Content,
    Forward,
    Refused,
    Routed,
    Subscribe,
    Unadvertise,
)

ALL = Range(0, 99)


def hand_in(
    broker: Broker, peer: str, group: str, source: str, content: Content
) -> tuple[list[str], list[Content]]:
    """Hand in a link's next entry; return what is refused, and what is sent on to other brokers."""
    link = broker.state.multicast.links[peer]
    routed = Routed(group, source, 3, (broker.state.name,), content)
    effects = broker.handle(Received(peer, Forward(link.received_session, link.watermark + 1, routed)), 100.0)
    refused = [
        each.news.reason for each in effects if isinstance(each, Tell) and isinstance(each.news, Refused)
    ]
    sent = [
        each.message.routed.content
        for each in effects
        if isinstance(each, Send) and isinstance(each.message, Forward)
    ]
    return refused, sent


def broker_of(world: World, name: str) -> Broker:
    found = world.sites[name].broker
    assert found is not None
    return found


def three_clusters() -> World:
    edges, strategy, groups = clustered("A: A1-E; B: E-B1 B1-F E-F; C: F-C1; A/B B/C")
    world = World(0, strategy)
    for name in sorted({name for edge in edges for name in edge}):
        world.add(name)
    for a, b in edges:
        world.link(a, b, *groups(a, b))
    assert world.settle()
    return world


def test_a_late_advertisement_does_not_bring_a_removed_origin_back_in_another_cluster() -> None:
    world = three_clusters()
    world.subscribe("B1", "s", 0, 99)
    assert world.settle()
    b1, late = broker_of(world, "B1"), Advertise("A1", "late", 99, ALL, ("A", "B"))
    world.remove("A1", by="E")
    assert world.settle()
    for name in ("B1", "F", "C1"):
        assert "A1" not in broker_of(world, name).state.origins
    assert hand_in(b1, "E", "B", "E", late) == ([], [])
    assert "A1" not in b1.state.origins and b1.is_quiet()


def test_a_removal_that_overtakes_the_only_advertisement_is_passed_on_once() -> None:
    world = three_clusters()
    f = broker_of(world, "F")
    removal = Unadvertise("A2", None, 0, ("A", "B"), is_removed=True)
    assert hand_in(f, "E", "B", "E", removal) == (
        [],
        [Unadvertise("A2", None, 0, ("A", "B", "C"), is_removed=True)],
    )
    assert hand_in(f, "E", "B", "E", removal) == ([], [])
    assert hand_in(f, "E", "B", "E", Advertise("A2", "", 1, ALL, ("A", "B"))) == ([], [])
    assert "A2" not in f.state.origins


def test_a_late_subscription_of_a_removed_broker_is_not_stored_in_another_cluster() -> None:
    world = three_clusters()
    world.remove("A1", by="E")
    assert world.settle()
    b1 = broker_of(world, "B1")
    assert hand_in(b1, "E", "B", "E", Subscribe("A1", "s", 7, ALL, ())) == ([], [])
    assert not list(b1.state.groups["B"].subscriptions.entries())


@pytest.mark.parametrize(
    "content",
    [Advertise("C", "late", 99, ALL), Subscribe("C", "late", 99, ALL, ())],
    ids=["advertisement", "subscription"],
)
def test_a_late_message_of_a_removed_broker_is_refused_in_its_cluster(content: Content) -> None:
    world = World(0)
    for name in "ABC":
        world.add(name)
    for a, b in ("AB", "BC", "AC"):
        world.link(a, b)
    assert world.settle()
    world.remove("C", by="B")
    assert world.settle()
    a1 = broker_of(world, "A")
    assert hand_in(a1, "B", "", "C", content) == (
        ["'C' was removed: what it sent before is not processed."],
        [],
    )
    assert list(a1.state.origins) == ["B"] and not list(a1.state.groups[""].subscriptions.entries())


def test_a_removal_does_not_chase_an_advertisement_around_a_ring() -> None:
    """C gets the advertisement from B, and after its end once more from A."""
    world = World(0, lambda _: Fbr())
    for name in "ABC":
        world.add(name)
    for a, b in ("AB", "BC", "CA"):
        world.link(a, b)
    assert world.settle()
    world.cut("A", "C")
    world.add("D")
    world.link("A", "D")
    world.run(5)
    world.remove("D", by="A")
    world.run(5)
    world.heal("A", "C")
    assert world.settle()
    assert all("D" not in broker_of(world, name).state.origins for name in "ABC")


def is_spare(explored: History, name: str) -> bool:
    """Whether the others of each of its clusters stay connected without a broker, which is no edge broker."""
    mine = {group for pair, groups in explored.world.links.items() if name in pair for group in groups}
    for cluster in mine:
        links = [pair for pair, groups in explored.world.links.items() if cluster in groups]
        others = {each for pair in links for each in pair} - {name}
        reached = {min(others)}
        for _ in others:
            reached |= {each for pair in links if name not in pair and pair & reached for each in pair}
        if reached != others:
            return False
    return len(mine) == 1


@pytest.mark.parametrize("protocol", ["ddbr", "fbr", "fbr-covering", "merc"])
@pytest.mark.parametrize("seed", range(5))
def test_nothing_of_a_removed_broker_is_left(protocol: str, seed: int) -> None:
    """In the middle of a history one broker is removed that no other needs for its paths."""
    explored = history(seed, protocol)
    world, rng = explored.world, explored.rng
    world.crash_share = 0.0
    for _ in range(25):
        explored._act()
        world.run(rng.choice((0.0, 0.02, 0.2)))
    world.heal_all()
    if explored.later:
        for name in sorted(explored.later):
            explored._join(name)
        world.run(2)
    gone = next(name for name in reversed(explored.names) if is_spare(explored, name))
    peers = sorted(name for pair in world.links if gone in pair for name in pair if name != gone)
    for peer in peers if protocol.startswith("fbr") else peers[:1]:
        world.remove(gone, peer)
    assert world.settle()
    for name in sorted(world.sites.keys() - {gone}):
        state = broker_of(world, name).state
        assert gone not in state.origins
        left = [
            (each.subscriber, each.id)
            for group in state.groups.values()
            for each in group.subscriptions.entries()
            if each.subscriber == gone
        ]
        assert left == []
        for event in range(0, 100, 7):
            world.publish(name, event)
    assert world.settle()
    if len(peers) == 1:
        # It passed nothing on, so that nothing of the others was lost with it.
        assert [each for each in world.faults() if f"'{gone}'" not in each] == []
