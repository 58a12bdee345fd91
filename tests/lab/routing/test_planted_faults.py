"""The explorer finds faults: each of these is planted in a broker or its runtime, and found."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from explorer import History, history

from fieldfare_lab.routing.covering import Covering
from fieldfare_lab.routing.destinations import Numbering
from fieldfare_lab.routing.links import Link
from fieldfare_lab.routing.matching import Matching
from fieldfare_lab.routing.merc import ClusterTree
from fieldfare_lab.routing.messages import Unsubscribe
from fieldfare_lab.routing.multicast import Multicast
from fieldfare_lab.routing.state import Received
from fieldfare_lab.routing.tables import LocalSubscription

SEEDS_MAX = 60


def found_within(protocol: str, prepare: Callable[[History], None] = lambda _: None, first: int = 0) -> str:
    """What the explorer finds first; it begins with a seed that finds it today."""
    for seed in (*range(first, SEEDS_MAX), *range(first)):
        explored = history(seed, protocol)
        prepare(explored)
        if wrong := explored.explore():
            return wrong[0]
    return "nothing"


@pytest.mark.long
def test_an_acknowledgement_before_storing_is_found() -> None:
    def prepare(explored: History) -> None:
        explored.world.stores_first = False
        explored.world.crash_share = 0.01

    assert found_within("ddbr", prepare, first=4) != "nothing"


@pytest.mark.long
def test_rerouting_without_settling_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(multicast: Multicast, now: float, after_s: float) -> None:
        for link in list(multicast.links.values()):
            if (
                not link.is_up
                and link.sent
                and multicast._next_hop(multicast.overlays.get(link.groups[0]), multicast.me, link.peer)
            ):
                link.is_settling = True
                for routed in link.settled(link.session, 0) or ():
                    multicast.send(routed)

    def accept(link: Link, forward: object) -> bool:
        """A receiver that follows its sender's sessions without having closed its own."""
        if forward.session > link.received_session:  # type: ignore[attr-defined]
            link.received_session, link.watermark = forward.session, 0  # type: ignore[attr-defined]
        return original(link, forward)  # type: ignore[arg-type]

    original = Link.accept
    monkeypatch.setattr(Multicast, "settle", settle)
    monkeypatch.setattr(Link, "accept", accept)
    assert found_within("ddbr", first=25) != "nothing"


@pytest.mark.long
def test_dropping_the_old_version_at_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Matching._ask

    def ask(matching: Matching, subscription: LocalSubscription, origins: list[str]) -> None:
        original(matching, subscription, origins)
        for there in subscription.origins.values():
            if there.asking:
                there.filter = None

    monkeypatch.setattr(Matching, "_ask", ask)
    assert " times" in found_within("ddbr", first=6)


@pytest.mark.long
@pytest.mark.parametrize("protocol, first", [("fbr", 17), ("merc", 10)])
def test_dropping_it_at_once_in_between_is_found(
    protocol: str, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Matching._unsubscribed

    def unsubscribed(matching: Matching, name: str, source: str, asked: Unsubscribe) -> None:
        original(matching, name, source, asked)
        entry = matching.state.groups[name].subscriptions.get(source, (asked.subscriber, asked.id))
        if entry is not None:
            entry.versions.clear()

    monkeypatch.setattr(Matching, "_unsubscribed", unsubscribed)
    assert "0 times" in found_within(protocol, first=first)


@pytest.mark.long
def test_a_covering_subscription_that_ends_before_the_covered_are_stored_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Covering, "_store_uncovered", lambda *_: None)
    assert "0 times" in found_within("fbr-covering")


@pytest.mark.long
def test_answers_that_overtake_records_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Received, "has_all", lambda received, answer: True)
    assert "times" in found_within("ddbr", first=6)


@pytest.mark.long
def test_a_list_by_another_numbering_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Numbering, "fits", lambda *_: True)
    assert found_within("ddbr") != "nothing"


@pytest.mark.long
def test_a_pair_of_clusters_without_a_designated_edge_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterTree, "designated", lambda *_: "")
    assert "does not know" in found_within("merc")
