"""A broker between two others is removed with what it had acknowledged: the origin sends it another way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from federation_support import Site, sites
from gateway_support import until

from fieldfare.gateway.federation.links import Links, Peer
from fieldfare.gateway.federation.wire import Answer, Batch, decode_batch, encoder
from fieldfare.storage.sqlite.kept import receipts
from fieldfare.storage.sqlite.links import LinkStore

RING = "ab ac bd cd"
"""From b to c the shortest paths go over a and over d; the tree of b takes a."""


def hold(links: Links, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let no entry leave a broker for some neighbours; its requests are empty."""
    transmit = links._store.transmit

    def held(peer: str, count_max: int, bytes_max: int) -> tuple[int, list[bytes]]:
        return transmit(peer, 0 if peer in names else count_max, bytes_max)

    monkeypatch.setattr(links._store, "transmit", held)


def remove_dead(site: Site, name: str) -> None:
    until(lambda: site.of(name)["next_hop"] is None)
    assert site.client.delete(f"/v1/brokers/{name}").status_code == 204


def kept(site: Site) -> int:
    return site.gateway.federation._store.kept_totals()[0]  # type: ignore[union-attr]


def confirming(site: Site) -> set[str]:
    """Return the brokers whose receipts a site has stored: copies are kept for these."""
    with site.gateway.federation._store._reading() as connection:  # type: ignore[union-attr]
        return set(receipts(connection))


def know_one_another(*found: Site) -> None:
    """Wait until each site knows that all links are up, and has receipts of all others."""
    links = {site.name: sorted(site.peers) for site in found}
    until(
        lambda: all(
            {each["name"]: each["links"] for each in site.brokers()["brokers"]} == links for site in found
        )
    )
    until(lambda: all(site.is_quiet() for site in found))
    until(lambda: all(confirming(site) == links.keys() - {site.name} for site in found))
    until(lambda: not any(map(kept, found)))


@pytest.mark.parametrize("is_killed", [False, True])
def test_events_and_filters_at_a_removed_broker_arrive_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    with sites(tmp_path, "abcd", RING) as (a, b, c, d):
        c.subscribe("mine", "data.n >= 0")
        revision = b.subscribe("theirs", "data.n >= 0")
        until(lambda: b.of("c").get("filters") == 1 == c.of("b").get("filters"))
        until(lambda: b.counts(revision, "c"))
        know_one_another(a, b, c, d)
        with monkeypatch.context() as patched:
            hold(a.gateway.federation.links, patched, "c")  # type: ignore[union-attr]
            b.publish(1, 2)
            later = b.subscribe("later", "data.n >= 100")
            until(lambda: kept(b) >= 2)
            a.stop()
        if is_killed:
            b.stop()
            b.start()
        until(lambda: b.of("a").get("next_hop", "a") is None)
        b.publish(3)
        assert c.take("mine", 1) == [3], "it goes another way by itself"
        remove_dead(d, "a")
        assert sorted(c.take("mine", 2)) == [1, 2]
        until(lambda: b.counts(later, "c"))
        c.publish(100)
        assert b.take("later", 1) == [100]
        until(lambda: kept(b) == 0)
        assert c.of("b")["sent_twice"] == 0 and c.pull("mine") == [100]


def test_a_broker_that_has_passed_entries_on_is_removed_and_nothing_comes_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sites(tmp_path, "abcd", RING) as (a, b, c, d):
        c.subscribe("mine", "data.n >= 0")
        until(lambda: b.of("c").get("filters") == 1)
        know_one_another(a, b, c, d)
        links = c.gateway.federation.links  # type: ignore[union-attr]
        monkeypatch.setattr(links.receipts, "for_peer", lambda peer: ())
        for number in range(5):
            b.publish(number)
            assert c.take("mine", 1) == [number]
        until(lambda: kept(b) == 5)
        a.stop()
        remove_dead(d, "a")
        until(lambda: kept(b) == 5 and not any(each["outbox_entries"] for each in b.brokers()["links"]))
        b.publish(5)
        assert c.take("mine", 1) == [5] and c.pull("mine") == []
        assert c.of("b")["sent_twice"] == 0


def test_a_kill_while_entries_are_sent_again_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sites(tmp_path, "abcd", RING) as (a, b, c, d):
        c.subscribe("mine", "data.n >= 0")
        until(lambda: b.of("c").get("filters") == 1)
        know_one_another(a, b, c, d)
        with monkeypatch.context() as patched:
            hold(a.gateway.federation.links, patched, "c")  # type: ignore[union-attr]
            for number in range(4):
                b.publish(number)
                until(lambda number=number: kept(b) == number + 1)
            a.stop()
        store = b.gateway.federation._store  # type: ignore[union-attr]
        send_again, done = store.send_again, []

        def killed(ways: Any) -> None:
            if done:
                raise OSError("killed here")
            done.extend(ways[:2])
            send_again(ways[:2])
            raise OSError("killed here")

        monkeypatch.setattr(store, "send_again", killed)
        remove_dead(d, "a")
        until(lambda: done)
        b.stop()
        b.start()
        assert sorted(c.take("mine", 4)) == [0, 1, 2, 3]
        until(lambda: kept(b) == 0)
        assert c.of("b")["sent_twice"] == 0 and c.pull("mine") == []


def test_nothing_is_kept_for_a_broker_that_sends_no_receipts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of an earlier version does not know the field of a batch."""
    post = Links._post

    async def without(self: Links, peer: Peer, body: bytes, headers: Any) -> Answer:
        if not headers:
            batch, _ = decode_batch(body)
            given = {name: getattr(batch, name) for name in Batch.__struct_fields__ if name != "receipts"}
            body = encoder.encode(given)
        return await post(self, peer, body, headers)

    monkeypatch.setattr(Links, "_post", without)
    with sites(tmp_path, "abc", "ab bc") as (a, b, c):
        c.subscribe("mine", "data.n >= 0")
        until(lambda: a.of("c").get("filters") == 1 and all(each.is_quiet() for each in (a, b, c)))
        a.publish(1)
        assert c.take("mine", 1) == [1]
        assert kept(a) == 0


def test_entries_for_a_neighbour_whose_link_is_taken_away_go_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sites(tmp_path, "abc", "ab bc ac") as (a, b, c):
        b.subscribe("mine", "data.n >= 0")
        until(lambda: a.of("b").get("filters") == 1)
        know_one_another(a, b, c)
        with monkeypatch.context() as patched:
            hold(a.gateway.federation.links, patched, "b")  # type: ignore[union-attr]
            a.publish(1)
            until(lambda: a.of("b")["events_sent"] == 1)
            a.stop()
        store = LinkStore(tmp_path / "a" / "links.db")
        store.transmit("b", 1, 1 << 20)  # As if a request was under way.
        store.close()
        del a.peers["b"], b.peers["a"]
        b.stop()
        b.start()
        a.start()
        assert b.take("mine", 1) == [1] and b.pull("mine") == []
        a.publish(2)
        assert b.take("mine", 1) == [2]
        assert b.of("a")["sent_twice"] == 0
