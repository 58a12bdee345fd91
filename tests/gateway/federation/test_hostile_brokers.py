"""Hostile, mistaken and unknown neighbours are refused, and so are invalid settings of a broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from federation_support import Site, sites
from gateway_support import event, until

from fieldfare.gateway.federation import wire
from fieldfare.gateway.federation.inbox import counted, settled
from fieldfare.gateway.federation.opening import open_federation
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.storage.errors import FormatError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.links import Correspondent
from fieldfare.storage.sqlite.links import LinkStore
from fieldfare_lab.ports import find_free_port

ENTRIES = {"content-type": wire.MEDIA_TYPE}


def test_a_neighbour_needs_a_key_with_the_right(tmp_path: Path) -> None:
    admin = tmp_path / "admin.key"
    admin.write_text("a" * 40)
    a, b = found = [Site(tmp_path / name, name, find_free_port()) for name in "ab"]
    a.peers, b.peers = {"b": b.port}, {"a": a.port}
    a.settings = {"admin_key_file": admin}
    keys = {"authorization": f"Bearer {'a' * 40}"}
    try:
        a.start()
        made = {
            right: a.client.post("/v1/keys", json={"rights": [right]}, headers=keys).json()["key"]
            for right in ("watch", "broker")
        }
        (tmp_path / "peer.key").write_text(made["watch"])
        b.settings = {"peer_key_file": tmp_path / "peer.key"}
        b.start()
        refused = "it answered 403: This request needs the right to broker"
        until(lambda: refused in (b.brokers()["links"][0]["trouble"] or ""))
        assert not b.brokers()["links"][0]["is_up"]
        b.stop()
        (tmp_path / "peer.key").write_text(made["broker"])
        b.start()
        until(lambda: b.brokers()["links"][0]["is_up"])
    finally:
        for site in found:
            if site.is_running:
                site.stop()


def test_a_log_in_kafka_is_refused(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    replace(folder, log="kafka://localhost:1/log", match_log="kafka://localhost:1/log.matches").note()
    settings = GatewaySettings.model_validate({"data": tmp_path, "broker": "a"})
    given: Any = None
    with pytest.raises(FormatError, match="a broker needs its log in its data directory"):
        open_federation(settings, given)


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose neighbours n and m do not run."""
    site = Site(tmp_path_factory.mktemp("lone") / "a", "a", find_free_port())
    site.peers = {"n": find_free_port(), "m": find_free_port()}
    site.start()
    yield site
    site.stop()


def batch(*entries: Any, first: int = 1, **changed: Any) -> dict[str, Any]:
    head = {
        "version": wire.VERSION,
        "source": "n",
        "identity": "of n",
        "to": "a",
        "routing": "ddbr",
        "first": first,
    }
    return head | {"entries": entries, "digest": "", "rows": ()} | changed


def events(**changed: Any) -> dict[str, Any]:
    found = {"type": "events", "source": "n", "destinations": [["a", 0, 1]], "space": "default"}
    found |= {"partition": 0, "offset": 0, "stamp": 0, "count": 1, "payload": b"{}\n"}
    return found | changed


def row(name: str, identity: str, *links: str) -> dict[str, Any]:
    return {"name": name, "identity": identity, "version": 1 << 50, "links": links}


@pytest.mark.parametrize(
    ("sent", "status", "said"),
    [
        (batch(version=wire.VERSION + 1), 400, "update the older one"),
        (batch(to="b"), 409, "This is the broker 'a', not 'b'"),
        (batch(source="m"), 400, "is of 'm', not of 'n'"),
        (batch(routing="fbr"), 409, "has --routing ddbr, the neighbour 'fbr'"),
        (batch(cluster="north"), 409, "belongs to the cluster '' here"),
        (batch(events(), first=3), 409, "but 1 comes next"),
        (batch(events(destinations=[["n", 0, 1]])), 400, "come back to it"),
        (batch(events(destinations=[["m", 0, 1], ["m", 0, 1]])), 400, "twice"),
        (batch(events(destinations=[])), 400, "not valid"),
        (batch(events(destinations=[[f"b{n}", 0, 1] for n in range(1_001)])), 400, "length <= 1000"),
        (batch(events(destinations=[["m\n", 0, 1]])), 400, "is not the name"),
        (batch(events(space="../x")), 400, "is not the name"),
        (batch(events(stamp=-1)), 400, ">= 0"),
        (batch(events(offset=1 << 63)), 400, "not valid"),
        (batch(events(type="settle")), 400, "Invalid value"),
        (batch(*[events()] * 257), 400, "length <= 256"),
        (batch(rows=[row("a", "another")]), 409, "Two brokers have the name 'a'"),
        (batch(rows=[row("x", "of x", "x")]), 409, "a link to itself"),
        (batch(rows=[row("x", "of x", *map(str, range(1_001)))]), 400, "length <= 1000"),
        (
            batch(rows=[row(f"x{n}", "of x", *map(str, range(1_000))) for n in range(11)]),
            409,
            "more than 10000 links",
        ),
        ([1, 2], 400, "not valid"),
    ],
)
def test_a_hostile_neighbour_is_refused_and_changes_nothing(
    lone: Site, sent: Any, status: int, said: str
) -> None:
    before = lone.gateway.log.end(), lone.gateway.federation._store.watermark("n")  # type: ignore[union-attr]
    body = msgspec.msgpack.encode(sent)
    answer = lone.client.post("/v1/brokers/n/entries", content=body, headers=ENTRIES)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["detail"]
    after = lone.gateway.log.end(), lone.gateway.federation._store.watermark("n")  # type: ignore[union-attr]
    assert after == before


def test_an_entry_that_comes_back_to_its_origin_is_given_another_way(tmp_path: Path) -> None:
    """It was refused each time it was sent again, and so the link was down for good."""
    with sites(tmp_path, "abc", "ab bc ac") as (a, b, c):
        revision = b.subscribe("mine", "data.n > 0")
        until(lambda: b.counts(revision, "a", "c"))
        # As c would send it on, if it thought that the way to b led over a.
        sent = wire.Events("a", (wire.Destination("b", revision, 1),), "default", 0, 0, 0, 1, b"{}\n")
        store = LinkStore(c.gateway.settings.folder.links_path)
        store.add([("a", wire.encoder.encode(sent))])
        store.close()
        until(lambda: b.of("a").get("events_received") == 1)
        c.publish(5)
        assert b.take("mine", 1) == [5]
        until(lambda: all(link["is_up"] for link in a.brokers()["links"] + c.brokers()["links"]))


def test_an_unknown_broker_is_refused(lone: Site) -> None:
    body = msgspec.msgpack.encode(batch(source="x"))
    answer = lone.client.post("/v1/brokers/x/entries", content=body, headers=ENTRIES)
    assert answer.status_code == 404 and "is not a neighbour" in answer.json()["detail"]
    answer = lone.client.post("/v1/brokers/n/entries", json={})
    assert answer.status_code == 415


def test_what_a_neighbour_repeats_or_spoils_is_taken_once_or_left_out(lone: Site) -> None:
    """A repeated batch, a repeated entry in a new batch, an unknown space, invalid events, a stamp ahead."""
    link = "/v1/brokers/m/entries"

    def send(*entries: Any, first: int) -> int:
        sent = batch(*entries, first=first, source="m", identity="of m")
        answer = lone.client.post(link, content=msgspec.msgpack.encode(sent), headers=ENTRIES)
        assert answer.status_code == 200, answer.text
        return int(wire.decode_answer(answer.content).watermark)

    def entry(sequence: int, *given: Any, revision: int = 0, **changed: Any) -> dict[str, Any]:
        payload = b"".join(json.dumps(each).encode() + b"\n" for each in given)
        places = {"destinations": [["a", revision, sequence]], "count": len(given), "payload": payload}
        return events(source="m", **places, **changed)

    start = lone.gateway.log.end()
    good = entry(1, event(1), revision=1 << 40)
    assert send(good, first=1) == 1 == send(good, first=1)
    assert send(good, entry(2, event(2)), first=1) == 2
    assert send(entry(2, event(2)), first=3) == 3
    assert send(entry(3, event(3), space="nowhere"), entry(4, {"no": "event"}), first=4) == 5
    assert send(entry(5, event(5)), first=6) == 6
    until(lambda: lone.of("m").get("events_received") == 5)
    records = list(lone.gateway.log.read(start, lone.gateway.log.end()))
    assert [json.loads(each.payload)["id"] for each in records] == ["1", "2", "5"]
    assert all(each.stamp <= lone.gateway.registry.revision() for each in records)
    assert lone.of("m")["sent_twice"] == 1 and lone.brokers()["dropped_events"] == 2


def test_another_broker_of_a_known_name_is_refused(lone: Site) -> None:
    for identity, status in (("of n", 200), ("of another", 409)):
        body = msgspec.msgpack.encode(batch(identity=identity))
        answer = lone.client.post("/v1/brokers/n/entries", content=body, headers=ENTRIES)
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"peers": "b=http://b:1"}, "--peer needs --broker"),
        ({"broker": "a", "peers": "a=http://b:1"}, "neighbour of itself"),
        ({"broker": "a", "peers": "b=ftp://b:1"}, "is not a neighbour: write"),
        ({"broker": "a", "peers": "b"}, "is not a neighbour: write"),
        ({"broker": "a", "peers": "b=http://b:1,b=http://c:1"}, "named twice"),
        ({"broker": "a/b"}, "match pattern"),
        ({"broker": "a", "body_max_bytes": "1MiB"}, "FIELDFARE_BODY_MAX_BYTES"),
        ({"broker": "a", "event_max_bytes": "8MiB"}, "takes batches of 9437184 bytes"),
    ],
)
def test_settings_that_make_no_broker_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GatewaySettings.model_validate(given)


def test_a_neighbour_sends_nothing_of_another_cluster(tmp_path: Path) -> None:
    """The neighbours n and s of an edge broker are in different clusters."""
    site = Site(tmp_path / "a", "a", find_free_port())
    site.peers = {"N/n": find_free_port(), "S/s": find_free_port()}
    site.settings = {"routing": "merc", "clusters": ("N", "S")}
    site.start()

    def answered(peer: str, cluster: str, *entries: Any, **changed: Any) -> str:
        sent = batch(*entries, source=peer, identity=f"of {peer}", routing="merc", cluster=cluster, **changed)
        body = msgspec.msgpack.encode(sent)
        answer = site.client.post(f"/v1/brokers/{peer}/entries", content=body, headers=ENTRIES)
        return "" if answer.status_code == 200 else f"{answer.status_code} {answer.json()['detail']}"

    def row_in(cluster: str, name: str, *beyond: str) -> dict[str, Any]:
        return row(name, f"of {name}", "a") | {"cluster": cluster, "beyond": beyond}

    try:
        assert answered("n", "N", rows=[row_in("N", "n")]) == ""
        assert answered("s", "S", rows=[row_in("S", "s")]) == ""
        wrong = {
            "belongs to the cluster 'N' here": ("n", "S"),
            "is of the cluster 'S'": ("n", "N", {"rows": [row_in("S", "m")]}),
            "two brokers may share only one cluster": ("n", "N", {"rows": [row_in("N", "s")]}),
            "must not form a ring": ("n", "N", {"rows": [row_in("N", "n", "N") | {"version": 1 << 51}]}),
            "'s', which is not in the cluster 'N'": ("n", "N", events(destinations=[["s", 0, 1]])),
            "'s', which is not in the cluster": ("n", "N", events(source="s")),
            "is not valid": ("n", "N", events(origin="a>b>c")),
        }
        for message, (peer, cluster, *more) in wrong.items():
            changed = more[0] if more and "rows" in more[0] else {}
            answer = answered(peer, cluster, *([] if changed else more), **changed)
            assert message in answer and answer[:2] == "40", answer
        assert {each["name"] for each in site.brokers()["brokers"]} == {"a", "n", "s"}
        # Its own events come back over another cluster, or have crossed too many.
        for first, origin in ((1, "1>a/0-1/1"), (2, "100>b/0-1/1")):
            assert (
                answered("n", "N", events(destinations=[["a", 0, first]], origin=origin), first=first) == ""
            )
        until(lambda: site.brokers()["dropped_events"] == 2)
        assert site.gateway.log.end() == 0 and site.of("n")["events_received"] == 2
    finally:
        site.stop()


def test_an_entry_stored_while_a_link_comes_up_is_sent_over_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had been routed by the old topology, after all others were routed by the new one."""
    site = Site(tmp_path / "a", "a", find_free_port())
    site.peers = {"n": find_free_port(), "m": find_free_port()}
    site.start()
    try:
        links = site.gateway.federation.links  # type: ignore[union-attr]
        rows = [row("m", "of m", "a"), row("n", "of n", "a")]
        body = msgspec.msgpack.encode(batch(rows=rows))
        site.client.post("/v1/brokers/n/entries", content=body, headers=ENTRIES).raise_for_status()
        done = links._store.receive

        async def unnoticed(peer: Any, error: Exception) -> None:
            """Nothing listens there; that must not take the link down again."""
            await asyncio.sleep(0.05)

        monkeypatch.setattr(links, "_failed", unnoticed)

        def receive(*given: Any) -> None:
            links._clusters.set_up("m", is_up=True)
            links.must_reroute = True
            site.gateway.federation.wake()  # type: ignore[union-attr]
            until(lambda: not links.must_reroute)
            done(*given)

        monkeypatch.setattr(links._store, "receive", receive)
        entry = batch(events(destinations=[["m", 0, 1]]))
        body = msgspec.msgpack.encode(entry)
        site.client.post("/v1/brokers/n/entries", content=body, headers=ENTRIES).raise_for_status()

        def ways() -> list[str]:
            waiting = links._store.unsent(("m", "n", ""), 0, 100)
            return [peer for _, peer, found in waiting if isinstance(wire.decode_entry(found), wire.Events)]

        until(lambda: ways() == ["m"] or (bool(links._store.transmit("m", 9, 1 << 20)[1]) and not ways()))
    finally:
        site.stop()


def test_an_overtaken_notice_of_counting_filters_replaces_no_later_one() -> None:
    """Otherwise the later revision would never count, once nothing else changes."""
    later = wire.Counts("n", (wire.Destination("a"),), 1, theirs=9, after=2)
    state = counted(Correspondent("n", received=1), later)
    state = counted(state, msgspec.structs.replace(later, theirs=7, after=1))
    assert settled(replace(state, ahead={2: 7})).counts_through == 9


def test_the_revision_of_an_entry_is_no_bound_for_those_that_follow() -> None:
    """An edge broker sends its own events and, later, older ones that it passes on."""
    state = settled(Correspondent("n", floor=5, ahead={1: 20, 2: 18}))
    assert (state.received, state.floor) == (2, 5)
