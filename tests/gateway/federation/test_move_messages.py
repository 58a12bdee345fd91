"""Messages of moves that are wrong, repeated, late or of the wrong broker change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from federation_support import Site, sites
from gateway_support import until

from fieldfare.gateway.federation import wire
from fieldfare.gateway.federation.moving.sessions import Moves
from fieldfare.storage.sqlite.links import LinkStore

SESSION = "0123456789abcdef" * 2
OF_ONE = "/v1/spaces/default/subscriptions/mine"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Site, Site]]:
    with sites(tmp_path_factory.mktemp("pair"), "ab", "ab") as (a, b):
        a.subscribe("known", "data.n > 0")
        until(lambda: "a" in b.gateway.federation._correspondence.brokers)  # type: ignore[union-attr]
        yield a, b


def offer(**changed: Any) -> wire.Offer:
    given = {"space": "default", "id": "mine", "filter": "data.n > 0", "dialect": "sql", "delivery": {}}
    return wire.Offer(**given | {"digest": b"d" * 32} | changed)  # type: ignore[arg-type]


def send(of: Site, to: Site, step: wire.Step, session: str = SESSION) -> None:
    """Have a site send a message of a move, and wait until the other one has processed it."""
    message = wire.Move(of.name, (wire.Destination(to.name),), session, step)
    store = LinkStore(of.gateway.settings.folder.links_path)
    store.add([(to.name, wire.encoder.encode(message))])
    store.close()
    sent, received = (each.gateway.federation._store for each in (of, to))  # type: ignore[union-attr]
    until(lambda: to.name not in sent.outboxes() and not received.inbound(10))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"space": "nowhere"}, "there is no space"),
        ({"filter": "data.n >"}, "its filter is refused"),
        ({"filter": "x" * 100_000}, "its filter is refused"),
        ({"dialect": "perl"}, "its filter is refused"),
        ({"delivery": {"max_attempts": 0}}, "its setting /max_attempts is refused"),
        ({"delivery": {"paused_because": "x"}}, "there is no setting"),
        ({"delivery": {"push": {"url": "https://127.0.0.1/"}}}, "is refused"),
        ({"owner": "a\nb"}, "its owner is refused"),
        ({"labels": {"a b": "c"}}, "its labels/a b is refused"),
        ({"labels": {f"k{n}": "" for n in range(33)}}, "its labels is refused"),
        ({"id": "known"}, "a subscription with this id exists"),
    ],
)
def test_an_offer_that_cannot_be_taken_is_refused(
    pair: tuple[Site, Site], changed: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = pair
    if changed.get("id") == "known":
        b.subscribe("known", "data.n < 0")
    send(a, b, offer(**changed))
    assert b.gateway.registry.get("default", "mine") is None and not b.brokers()["moves"]
    assert said in caplog.text
    assert b.client.get("/v1/spaces/default/subscriptions/known").status_code in (200, 404)


@pytest.mark.parametrize(
    "changed",
    [
        *({"id": "../x"}, {"space": "a b"}, {"digest": b"short"}, {"delivery": []}, {"filter": 5}),
        *({"owner": 5}, {"labels": {"a": 5}}, {"labels": ["a"]}),
    ],
)
def test_a_message_that_no_broker_sends_is_no_entry(changed: dict[str, Any]) -> None:
    message = wire.Move("a", (wire.Destination("b"),), SESSION, offer(**changed))
    with pytest.raises(ValueError):
        wire.decode_entry(wire.encoder.encode(message))


def test_repeated_late_and_foreign_messages_change_nothing(pair: tuple[Site, Site]) -> None:
    a, b = pair
    moves: Moves = b.gateway.federation.moves  # type: ignore[union-attr]
    for step in (
        wire.Ended({"a": 5}),
        wire.HandOver({}),
        wire.Accepted(("a",), "http://elsewhere"),
        wire.Refused("no"),
        wire.Taken(),
    ):
        send(a, b, step)
        assert not b.brokers()["moves"], "there is no such session"
    send(a, b, offer())
    send(a, b, offer(filter="data.n > 9"))
    until(lambda: b.brokers()["moves"] in ({"arriving": 1}, {"accepted": 1}, {}))
    # The other broker knows no such session: it has it cancelled once it is accepted.
    until(lambda: not b.brokers()["moves"])
    assert b.gateway.registry.get("default", "mine") is None
    assert moves.find_caller(b"fm_x") is None


def test_a_session_is_that_of_its_two_brokers(tmp_path: Path) -> None:
    with sites(tmp_path, "abc", "ab bc ac") as (a, b, c):
        a.subscribe("mine", "data.n > 0")
        revision = a.gateway.registry.revision()
        until(lambda: a.counts(revision, "b", "c"))
        until(lambda: "c" in b.gateway.federation._correspondence.brokers)  # type: ignore[union-attr]
        a.publish(1)
        until(lambda: a.client.get(f"{OF_ONE}/backlog").json()["pending"] == 1)
        a.client.post(f"{OF_ONE}/move", json={"to": "b"}).raise_for_status()
        until(lambda: b.brokers()["moves"].get("ready"))
        [move] = a.gateway.federation.moves._book.moves.values()  # type: ignore[union-attr]
        for site in (a, b):
            for step in (wire.HandOver({}), wire.Taken(), wire.Cancelled(), wire.Ended({"a": 10**9})):
                send(c, site, step, move.session)
        assert a.brokers()["moves"] == {"ended": 1} and b.brokers()["moves"] == {"ready": 1}
        assert a.take("mine", 1) == [1]
        until(lambda: b.client.get(OF_ONE).status_code == 200)
        send(a, b, wire.HandOver({"paused": True}), move.session)
        send(a, b, wire.Cancelled(), move.session)
        assert "paused" not in b.client.get(OF_ONE).json().get("delivery", {})
        assert b.brokers()["moves"] == {"here": 1}
