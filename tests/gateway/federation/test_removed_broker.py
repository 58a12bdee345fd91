"""A broker that is gone for good is removed: nothing is kept for it, and what it had sent still arrives."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from federation_support import Site, sites
from gateway_support import until
from typer.testing import CliRunner

from fieldfare.cli.app import app
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.custody import Custody
from fieldfare.gateway.federation.link_entries import LOST
from fieldfare.gateway.federation.links import Peer
from fieldfare.gateway.federation.service import Federation
from fieldfare.gateway.federation.wire import Answer
from fieldfare.storage.errors import StorageError
from fieldfare.storage.links import Correspondent
from fieldfare.storage.sqlite.links import LinkStore


def remove(site: Site, name: str) -> int:
    return site.client.delete(f"/v1/brokers/{name}").status_code


def remove_dead(site: Site, name: str) -> None:
    """Remove a broker that was stopped, as soon as its links are known to be down."""
    until(lambda: site.of(name)["next_hop"] is None)
    assert remove(site, name) == 204


def waiting(site: Site) -> int:
    """Return the number of entries that a site has not sent."""
    state = site.brokers()
    return sum(each["outbox_entries"] for each in state["links"]) + int(state["without_path"])


def is_forgotten(site: Site, name: str) -> bool:
    state = site.of(name)
    return bool(state["is_removed"] and state["filters"] == 0 and state["destination"] is None)


def test_a_removed_broker_keeps_no_history_and_no_filters(tmp_path: Path) -> None:
    with sites(tmp_path, "abc", "ab bc") as (a, b, c):
        c.subscribe("far", "data.n >= 0")
        b.subscribe("near", "data.n >= 0")
        until(lambda: a.of("c").get("filters") == 1 == a.of("b").get("filters") and a.is_quiet())
        c.stop()
        a.publish(1, 2)
        assert b.take("near", 2) == [1, 2]
        until(lambda: waiting(a) + waiting(b) > 0)
        revision = a.subscribe("later", "data.n < 0")
        until(lambda: a.of("b")["counts_through"] == revision)
        assert a.gateway.federation.history_floor() < revision, "the dead broker may still send events"
        remove_dead(a, "c")
        until(lambda: is_forgotten(a, "c") and is_forgotten(b, "c"))
        revision = a.subscribe("last", "data.n < 0")
        until(lambda: a.gateway.federation.history_floor() >= revision)
        for site in (a, b):
            until(lambda site=site: waiting(site) == 0)
        a.publish(3)
        assert b.take("near", 1) == [3]
        assert not a.of("b")["is_removed"]


def test_a_removed_broker_is_refused_for_ever(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        until(lambda: a.of("b").get("next_hop") == "b" and a.is_quiet())
        b.stop()
        remove_dead(a, "b")
        until(lambda: is_forgotten(a, "b"))
        b.start()
        until(lambda: "was removed from these sites" in (b.brokers()["links"][0]["trouble"] or ""))
        a.stop()
        a.start()
        assert is_forgotten(a, "b")
        b.stop()
        b.start()
        until(lambda: "was removed from these sites" in (b.brokers()["links"][0]["trouble"] or ""))
        assert "--peer b" in a.brokers()["links"][0]["trouble"] and not a.brokers()["links"][0]["is_up"]
        assert remove(a, "b") == 204, "a repeated request is answered like the first"


def test_a_broker_that_can_be_reached_is_not_removed(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        until(lambda: a.of("b").get("next_hop") == "b")
        assert remove(a, "b") == 409
        assert remove(a, "a") == 404 == remove(a, "x")
        b.subscribe("mine", "data.n >= 0")
        until(lambda: a.of("b").get("filters") == 1)
        said = CliRunner().invoke(app, ["brokers", "remove", "b", "--url", a.url])
        assert said.exit_code == 1 and "can be reached" in said.output
        b.stop()
        until(lambda: a.of("b")["next_hop"] is None)
        assert CliRunner().invoke(app, ["brokers", "remove", "b", "--url", a.url]).exit_code == 0
        until(lambda: is_forgotten(a, "b"))
        assert "b: removed" in CliRunner().invoke(app, ["brokers", "--url", a.url]).output


def test_what_a_removed_broker_had_sent_still_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sites(tmp_path, "abc", "ab bc") as (a, b, c):
        a.subscribe("mine", "data.n >= 0")
        until(lambda: c.of("a").get("filters") == 1 and all(each.is_quiet() for each in (a, b, c)))
        links, is_open = b.gateway.federation.links, threading.Event()
        post = links._post

        async def held(peer: Peer, *request: Any) -> Answer:
            while peer.name == "a" and not is_open.is_set():
                await asyncio.sleep(0.01)
            return await post(peer, *request)

        monkeypatch.setattr(links, "_post", held)
        c.publish(7)
        until(lambda: c.of("a")["events_sent"] == 1 and waiting(c) == 0)
        c.stop()
        remove_dead(b, "c")
        is_open.set()
        until(lambda: is_forgotten(a, "c"))
        assert a.take("mine", 1) == [7]
        a.publish(8)
        assert a.take("mine", 1) == [8] and a.pull("mine") == []


@pytest.mark.parametrize("step", ["_forget_broker", "forget"])
def test_a_kill_while_a_broker_is_forgotten_leaves_nothing_of_it(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> Any:
        raise OSError("killed here")

    with sites(tmp_path, "ab", "ab") as (a, b):
        b.subscribe("mine", "data.n >= 0")
        until(lambda: a.of("b").get("filters") == 1 and a.is_quiet())
        b.stop()
        with monkeypatch.context() as patched:
            patched.setattr(Federation if step == "_forget_broker" else LinkStore, step, killed)
            remove_dead(a, "b")
            a.stop()
        a.start()
        until(lambda: is_forgotten(a, "b"))
        until(lambda: a.gateway.federation._store.published() is None)


def test_entries_for_a_removed_neighbour_have_no_path_and_no_number(tmp_path: Path) -> None:
    store = LinkStore(tmp_path / "links.db")
    store.add(
        [("b", b"sent"), ("b", b"unsent"), ("c", b"other")], [Correspondent("b", messages=1, through=3)]
    )
    assert store.transmit("b", 1, 100) == (1, [b"sent"])
    assert store.published() == 3
    store.forget(Correspondent("b", messages=1, through=3, is_removed=True))
    assert [(peer, entry) for _, peer, entry in store.unsent(["", "b", "c"], 0, 10)] == [
        ("", b"sent"),
        ("", b"unsent"),
        ("c", b"other"),
    ]
    assert store.published() is None
    store.close()


def test_an_entry_that_a_disk_has_lost_does_not_wait_for_a_path_for_ever(tmp_path: Path) -> None:
    """A site with one could not leave, and showed an entry without a path."""
    store = LinkStore(tmp_path / "links.db")
    store.add([("", LOST)])
    clusters = Clusters("a", store.identity, ("",), {}, 1, ())
    links: Any = SimpleNamespace(peers={}, must_reroute=True, is_held=True)
    assert asyncio.run(Custody(clusters, store, links).reroute())
    assert store.outboxes() == {}
    store.close()


OF_ONE = "/v1/spaces/default/subscriptions/mine"


@pytest.mark.parametrize("gone", ["b", "a"])
@pytest.mark.parametrize("is_moved", [False, True])
def test_a_removed_broker_leaves_no_subscription_between_two(
    tmp_path: Path, gone: str, is_moved: bool
) -> None:
    """It could be neither read, replaced nor deleted any more."""
    with sites(tmp_path, "ab", "ab") as (a, b):
        revision = a.subscribe("mine", "data.n >= 0")
        until(lambda: a.counts(revision, "b"))
        a.publish(1)
        until(lambda: a.client.get(f"{OF_ONE}/backlog").json()["pending"] == 1)
        a.client.post(f"{OF_ONE}/move", json={"to": "b"}).raise_for_status()
        until(lambda: b.brokers()["moves"].get("ready"))
        if is_moved:
            assert a.take("mine", 1) == [1]
            until(lambda: b.client.get(OF_ONE).status_code == 200)
        dead, left = (b, a) if gone == "b" else (a, b)
        dead.stop()
        remove_dead(left, gone)
        if left is a and is_moved:
            until(lambda: a.client.get(OF_ONE).status_code == 404)
            a.subscribe("mine", "data.n >= 0")
        until(lambda: left.client.get(OF_ONE).status_code == 200)
        assert left.client.get(OF_ONE).json()["filter"] == "data.n >= 0"
        left.publish(2)
        expected = [1, 2] if left is a and not is_moved else [2]
        assert left.take("mine", len(expected)) == expected
        assert left.client.delete(OF_ONE).status_code == 204


# For "a", an entry from b to c may go by way of a and be gone with it: b sends it again.
@pytest.mark.parametrize("gone", ["b", "a"])
def test_a_broker_that_is_removed_after_an_offer_leaves_no_subscription_between_two(
    tmp_path: Path, gone: str
) -> None:
    with sites(tmp_path, "abc", "ab bc ac") as (a, b, c):
        revision = a.subscribe("mine", "data.n >= 0")
        until(lambda: a.counts(revision, "b", "c"))
        c.stop()
        a.client.post(f"{OF_ONE}/move", json={"to": "b"}).raise_for_status()
        until(lambda: b.brokers()["moves"].get("arriving"))
        dead, left = (b, a) if gone == "b" else (a, b)
        dead.stop()
        c.start()
        remove_dead(left, gone)
        until(lambda: left.brokers()["moves"] in ({}, {"here": 1}))
        left.publish(2)
        c.publish(3)
        assert sorted(left.take("mine", 2)) == [2, 3]
        left.stop()
        left.start()
        assert left.client.get(OF_ONE).json()["filter"] == "data.n >= 0"
        assert left.client.delete(OF_ONE).status_code == 204


def test_a_link_that_breaks_while_the_disk_is_full_comes_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that sends to the neighbour ended with the error; nothing was sent until the next start."""
    is_full, refusals = True, 0
    real = LinkStore.set_row

    def set_row(self: LinkStore, version: int, rows: bytes) -> None:
        nonlocal refusals
        if is_full:
            refusals += 1
            raise StorageError("the disk is full")
        real(self, version, rows)

    with sites(tmp_path, "ab", "ab") as (a, b):
        b.subscribe("far", "data.n >= 0")
        until(lambda: a.of("b").get("filters") == 1 and a.is_quiet())
        monkeypatch.setattr(LinkStore, "set_row", set_row)
        b.stop()
        until(lambda: refusals)
        is_full = False
        b.start()
        a.publish(1)
        assert b.take("far", 1) == [1]
