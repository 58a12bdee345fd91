"""Hostile neighbours: messages that no broker can have sent are refused by name, and change nothing."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from routing_support import Range, World

from fieldfare.effects import Received, Send, Tell
from fieldfare.routing.messages import BROKERS_MAX, LINKS_MAX, NAME_LENGTH_MAX, LinkRow
from fieldfare_lab.routing import Broker
from fieldfare_lab.routing.messages import (
    CLUSTERS_MAX,
    Accepted,
    Ack,
    Advertise,
    Content,
    Delivered,
    Forward,
    LinkState,
    LinkUp,
    Origin,
    Publication,
    Refused,
    Remove,
    Routed,
    SetSubscription,
    Settle,
    Settled,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)

ALL = Range(0, 99)
RECORD = Publication(Origin("B", 0, 7, 3), 5)


@pytest.fixture
def broker() -> Broker:
    """A, with neighbours B and C; it subscribes at B."""
    world = World(0)
    for name in "ABC":
        world.add(name)
    for a, b in ("AB", "AC", "BC"):
        world.link(a, b)
    world.run(3)
    world.subscribe("A", "s", 0, 99)
    world.run(3)
    assert world.settle()
    found = world.sites["A"].broker
    assert found is not None
    return found


def forward(broker: Broker, content: Content, source: str = "B", **changes: object) -> Forward:
    """The next entry of the link from B."""
    link = broker.state.multicast.links["B"]
    routed = replace(Routed("", source, 3, ("A",), content), **changes)  # type: ignore[arg-type]
    return Forward(link.received_session, link.watermark + 1, routed)


def refusals(broker: Broker, message: object, sender: str = "B") -> list[str]:
    effects = broker.handle(Received(sender, message), 100.0)
    news = [each.news for each in effects if isinstance(each, Tell)]
    assert not any(isinstance(each, Delivered) for each in news)
    return [each.reason for each in news if isinstance(each, Refused)]


def tables(broker: Broker) -> bytes:
    state = broker.state
    return pickle.dumps((state.groups, state.subscriptions, state.origins, state.askers, state.held))


LONG = "x" * (NAME_LENGTH_MAX + 1)

BAD_CONTENTS: list[tuple[Content, dict[str, object], str]] = [
    (replace(RECORD, origin=Origin("C", 0, 7, 3)), {}, "cannot come from"),
    (replace(RECORD, origin=Origin("B", 0, -1, 3)), {}, "offset"),
    (replace(RECORD, origin=Origin("B", 0, 7, 1 << 64)), {}, "stamp"),
    (replace(RECORD, origin=Origin(LONG, 0, 7, 3)), {}, "at most"),
    (RECORD, {"destinations": tuple(f"b{i}" for i in range(BROKERS_MAX + 1))}, "at most"),
    (RECORD, {"destinations": ("A", "A")}, "twice"),
    (RECORD, {"destinations": ()}, "empty"),
    (RECORD, {"source": "A"}, "comes back"),
    (RECORD, {"group": "other"}, "does not belong to cluster"),
    (RECORD, {"stamp": -1}, "revision"),
    (Advertise("C", "ad", 9, ALL), {}, "cannot come from"),
    (Advertise("B", "ad", 9, ALL, tuple(f"c{i}" for i in range(CLUSTERS_MAX + 1))), {}, "at most"),
    (Advertise("B", "ad", 9, ALL, ("c", "c")), {}, "twice"),
    (Subscribe("C", "s", 9, ALL, ()), {}, "cannot come from"),
    (Subscribe("B", "s", 9, ALL, (), is_stored="no"), {}, "not true or false"),  # type: ignore[arg-type]
    (Advertise("B", None, 9, ALL), {}, "advertisement"),  # type: ignore[arg-type]
    (Unadvertise("C", None, 9, is_removed=True), {}, "cannot come from"),
    (Unadvertise("B", None, 9, is_removed=1), {}, "not true or false"),  # type: ignore[arg-type]
    (Unsubscribe("B", "none", 9, ()), {}, "no subscription"),
    (Accepted("A", "s", 9, "B", 99, 0, 0), {}, "not asked"),
    (Settled(1, 0), {}, "not asked to settle"),
    (Settle(99), {}, "not open"),
]


@pytest.mark.parametrize("content, changes, reason", BAD_CONTENTS)
def test_a_content_that_no_broker_sends_is_refused(
    broker: Broker, content: Content, changes: dict[str, object], reason: str
) -> None:
    before = tables(broker)
    found = refusals(broker, forward(broker, content, **changes))
    assert len(found) == 1 and reason in found[0]
    assert tables(broker) == before


def test_a_version_that_goes_back_is_refused(broker: Broker) -> None:
    assert refusals(broker, forward(broker, Subscribe("B", "s", 9, ALL, ()))) == []
    before = tables(broker)
    for version in (9, 8):
        (reason,) = refusals(broker, forward(broker, Subscribe("B", "s", version, Range(0, 1), ())))
        assert "not newer than 9" in reason
    assert tables(broker) == before


def test_an_old_advertisement_does_not_replace_a_newer_one(broker: Broker) -> None:
    refusals(broker, forward(broker, Advertise("B", "ad", 9, ALL)))
    before = tables(broker)
    assert refusals(broker, forward(broker, Advertise("B", "ad", 8, Range(0, 1)))) == []
    assert tables(broker) == before


def test_a_replayed_link_session_is_not_processed_again(broker: Broker) -> None:
    entry = forward(broker, RECORD)
    first = broker.handle(Received("B", entry), 100.0)
    assert any(isinstance(each, Tell) and isinstance(each.news, Delivered) for each in first)
    assert refusals(broker, entry) == []
    broker.handle(Received("B", forward(broker, Settle(entry.session))), 100.0)
    for number in range(1, 50):
        assert refusals(broker, Forward(entry.session, number, entry.routed)) == []
        assert refusals(broker, Forward(entry.session + 5, number, entry.routed)) == []


def test_an_acknowledgement_of_what_was_not_sent_changes_nothing(broker: Broker) -> None:
    broker.handle(SetSubscription("t", ALL), 100.0)
    link = broker.state.multicast.links["B"]
    sent = list(link.sent)
    assert sent
    assert "was not sent" in refusals(broker, Ack(1, link.next_number))[0]
    assert "not an integer" in refusals(broker, Ack(1, -5))[0]
    assert refusals(broker, Ack(99, 1)) == []
    assert list(link.sent) == sent


BAD_ROWS = [
    (LinkRow("X", "x", 1, (("X", 1.0),)), "link to itself"),
    (LinkRow("X", "x", 1, tuple((f"b{i}", 1.0) for i in range(LINKS_MAX + 1))), "at most"),
    (LinkRow("X", "x", 1, (("B", 1.0), ("B", 2.0))), "twice"),
    (LinkRow("X", "x", 1, (("B", float("nan")),)), "latency"),
    (LinkRow("X", "x", -1, ()), "version"),
    (LinkRow(LONG, "x", 1, ()), "at most"),
    (LinkRow("A", "another A", 99, ()), "Another broker has the name 'A'"),
    (LinkRow("C", "another C", 99, ()), "Another broker has the name 'C'"),
]


@pytest.mark.parametrize("row, reason", BAD_ROWS)
def test_a_row_that_no_broker_writes_is_refused(broker: Broker, row: LinkRow, reason: str) -> None:
    before = broker.state.multicast.overlays[""].digest()
    (found,) = refusals(broker, LinkState("", (row,)))
    assert reason in found
    assert broker.state.multicast.overlays[""].digest() == before


def test_rows_of_more_brokers_than_a_cluster_may_have_are_refused(broker: Broker) -> None:
    rows = tuple(LinkRow(f"b{i}", "x", 1, ()) for i in range(BROKERS_MAX))
    (found,) = refusals(broker, LinkState("", rows))
    assert f"more than {BROKERS_MAX}" in found


def test_a_removed_broker_does_not_come_back(broker: Broker) -> None:
    broker.handle(Remove("C"), 100.0)
    broker.handle(Received("B", LinkState("", (LinkRow("C", "C-2", 1 << 61, ()),))), 100.0)
    assert broker.state.multicast.overlays[""].members() == ["A", "B"]


def test_a_stranger_and_a_wrong_type_are_refused(broker: Broker) -> None:
    assert "not a neighbour" in refusals(broker, Ack(1, 1), sender="X")[0]
    assert "do not send str" in refusals(broker, "hello")[0]
    assert "do not send SetSubscription" in refusals(broker, SetSubscription("s", None))[0]


def test_a_link_to_itself_is_refused(broker: Broker) -> None:
    effects = broker.handle(LinkUp("A"), 100.0)
    assert [each for each in effects if isinstance(each, Tell)]
    assert not [each for each in effects if isinstance(each, Send)]
