"""Brokers joined by links over loopback: exactly once, from one exact place, through cuts and restarts."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from gateway_support import BATCH, DEADLINE_S, NaivePipeline, _Server, encode, event, until

from fieldfare.gateway.admission.connections import server_config
from fieldfare.gateway.app import create_app
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.federation import wire
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.runtimes.process.listening import listening_socket

ENTRIES = {"content-type": wire.MEDIA_TYPE}


class Site:
    """A gateway with a naive pipeline, behind a server on a port of its own, which can be stopped."""

    def __init__(self, data: Path, name: str, port: int) -> None:
        self.data, self.name, self.port = data, name, port
        self.peers: dict[str, int] = {}
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=DEADLINE_S)
        self._stack = contextlib.ExitStack()
        self.is_running = False

    def start(self) -> None:
        peers = tuple(f"{name}=http://127.0.0.1:{port}" for name, port in self.peers.items())
        settings = GatewaySettings.model_validate({"data": self.data, "broker": self.name, "peers": peers})
        self.gateway = gateway = Gateway(settings)
        config = server_config(
            create_app(gateway), settings, None, loop="asyncio", timeout_graceful_shutdown=5
        )
        server = _Server(config, gateway)
        listener = listening_socket("127.0.0.1", self.port)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        until(lambda: server.started)
        stop = threading.Event()
        matcher = threading.Thread(target=self._match, args=(NaivePipeline(gateway), stop))
        matcher.start()

        def end() -> None:
            stop.set()
            matcher.join(DEADLINE_S)
            server.should_exit = True
            thread.join(DEADLINE_S)
            assert not thread.is_alive() and not matcher.is_alive()

        self._stack.callback(end)
        self.is_running = True

    def _match(self, pipeline: NaivePipeline, stop: threading.Event) -> None:
        while not stop.wait(0.005):
            pipeline.step()
            pipeline.beat()

    def stop(self) -> None:
        self.is_running = False
        self._stack.close()

    def subscribe(self, id: str, filter: str) -> int:
        answer = self.client.put(f"/v1/spaces/default/subscriptions/{id}", json={"filter": filter})
        assert answer.status_code in (200, 201), answer.text
        return int(self.gateway.registry.get("default", id).revision)  # type: ignore[union-attr]

    def publish(self, *ids: int) -> None:
        events = [event(each, {"n": each}) for each in ids]
        answer = self.client.post("/v1/spaces/default/events", content=encode(events), headers=BATCH)
        assert answer.status_code == 200, answer.text

    def pull(self, id: str) -> list[int]:
        """Take the messages that are there now."""
        url = f"/v1/spaces/default/subscriptions/{id}"
        answer = self.client.post(f"{url}/pull", json={"max": 1000}).json()
        positions = [each["position"] for each in answer["messages"]]
        if positions:
            self.client.post(f"{url}/ack", json={"positions": positions}).raise_for_status()
        return [int(each["event"]["id"]) for each in answer["messages"]]

    def take(self, id: str, count: int) -> list[int]:
        """Take messages until there are enough."""
        found: list[int] = []
        until(lambda: found.extend(self.pull(id)) or len(found) >= count)
        return found

    def brokers(self) -> dict[str, Any]:
        answer = self.client.get("/v1/brokers")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def of(self, name: str) -> dict[str, Any]:
        return next((each for each in self.brokers()["brokers"] if each["name"] == name), {})

    def counts(self, revision: int, *origins: str) -> bool:
        """Whether a subscription of this site counts for all later events of other sites."""
        return all(self.of(name).get("counts_through", -1) >= revision for name in origins)

    def is_quiet(self) -> bool:
        """Whether all that this site has to tell others is told."""
        state, revision = self.brokers(), self.gateway.registry.revision()
        return not any(each["outbox_entries"] for each in state["links"]) and all(
            each["told_revision"] == revision for each in state["brokers"] if each["name"] != self.name
        )


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def sites(root: Path, names: str, links: str) -> Iterator[list[Site]]:
    """Start sites, each letter of `names` one, with links given as pairs of letters."""
    found = {name: Site(root / name, name, free_port()) for name in names}
    for one, other in links.split():
        found[one].peers[other] = found[other].port
        found[other].peers[one] = found[one].port
    try:
        for site in found.values():
            site.start()
        yield list(found.values())
    finally:
        for site in found.values():
            if site.is_running:
                site.stop()


def test_an_event_reaches_the_subscribers_of_the_other_site_once(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        revision = b.subscribe("mine", "data.n < 100")
        a.subscribe("home", "data.n < 5")
        until(lambda: b.counts(revision, "a"))
        a.publish(1, 200, 2)
        a.publish(50)
        assert b.take("mine", 3) == [1, 2, 50]
        assert a.take("home", 2) == [1, 2]
        b.publish(7)
        assert b.take("mine", 1) == [7]
        assert a.pull("home") == []
        assert b.of("a")["events_received"] == a.of("b")["events_sent"] == 2
        assert b.of("a")["sent_twice"] == 0
        [record] = b.gateway.log.read(0, 1)
        assert record.origin is not None and record.origin.startswith("a/0-0/")


def test_a_site_between_passes_events_on_and_matches_nothing(tmp_path: Path) -> None:
    with sites(tmp_path, "abc", "ab bc") as (a, b, c):
        revision = c.subscribe("far", "data.n > 3")
        until(lambda: c.counts(revision, "a", "b"))
        a.publish(*range(10))
        assert c.take("far", 6) == [4, 5, 6, 7, 8, 9]
        assert b.gateway.log.end() == 0, "what is for others is not in its log"
        b.publish(11)
        assert c.take("far", 1) == [11]
        revision = b.subscribe("near", "data.n > 8")
        until(lambda: b.counts(revision, "a", "c"))
        until(a.is_quiet)
        before = a.brokers()["links"][0]["sent_entries"]
        a.publish(9)
        assert b.take("near", 1) == [9] == c.take("far", 1)
        until(a.is_quiet)
        assert a.brokers()["links"][0]["sent_entries"] == before + 1, "one copy for both"


def test_a_cut_site_gets_everything_once_when_it_is_back(tmp_path: Path) -> None:
    with sites(tmp_path, "abc", "ab bc") as (a, b, c):
        revision = c.subscribe("far", "data.n >= 0")
        until(lambda: c.counts(revision, "a"))
        a.publish(1)
        assert c.take("far", 1) == [1]
        for first, site in ((10, c), (20, b), (30, a)):
            site.stop()
            if site is not a:
                a.publish(first, first + 1)
            site.start()
            if site is a:
                a.publish(first, first + 1)
            assert sorted(c.take("far", 2)) == [first, first + 1]
        assert c.pull("far") == []
        assert c.of("a")["sent_twice"] == 0
        assert c.of("a")["events_received"] == a.of("c")["events_sent"]


def test_a_subscription_counts_from_one_place_while_events_flow(tmp_path: Path) -> None:
    """All events from some place on, none before it, and none twice: also after a replacement."""
    with sites(tmp_path, "ab", "ab") as (a, b):
        stop, published = threading.Event(), list[int]()

        def flow() -> None:
            number = 0
            while not stop.wait(0.002):
                a.publish(number, number + 1)
                published.extend((number, number + 1))
                number += 2

        b.subscribe("other", "data.n >= 0")
        flowing = threading.Thread(target=flow)
        flowing.start()
        until(lambda: len(published) > 20)
        made = b.subscribe("mine", "data.n >= 0")
        until(lambda: b.counts(made, "a") and len(published) > 60)
        replaced = b.subscribe("mine", "data.n >= 0 AND data.n % 2 = 0")
        until(lambda: b.counts(replaced, "a"))
        later = len(published)
        until(lambda: len(published) > later + 20)
        stop.set()
        flowing.join(DEADLINE_S)
        expected = published[-1] // 2 * 2
        got: list[int] = []
        until(lambda: got.extend(b.pull("mine")) or (got and got[-1] == expected))
        assert len(set(got)) == len(got) and got == sorted(got)
        odd = [each for each in got if each % 2]
        assert odd, "the first version counted for a while"
        assert [each for each in got if each <= odd[-1]] == list(range(got[0], odd[-1] + 1))
        assert [each for each in got if each > odd[-1]] == list(range(odd[-1] + 1, expected + 1, 2))


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose neighbours n and m do not run."""
    site = Site(tmp_path_factory.mktemp("lone") / "a", "a", free_port())
    site.peers = {"n": free_port(), "m": free_port()}
    site.start()
    yield site
    site.stop()


def batch(*entries: Any, first: int = 1, **changed: Any) -> dict[str, Any]:
    head = {"version": 1, "source": "n", "identity": "of n", "to": "a", "routing": "ddbr", "first": first}
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
        (batch(version=2), 400, "update the older one"),
        (batch(to="b"), 409, "This is the broker 'a', not 'b'"),
        (batch(source="m"), 400, "is of 'm', not of 'n'"),
        (batch(routing="fbr"), 409, "routes by ddbr, not by 'fbr'"),
        (batch(events(), first=3), 409, "but 1 comes next"),
        (batch(events(source="a", destinations=[["m", 0, 1]])), 400, "a loop"),
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


def test_a_stranger_is_no_neighbour(lone: Site) -> None:
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
        ({"broker": "a", "peers": "b=ftp://b:1"}, "no neighbour such as"),
        ({"broker": "a", "peers": "b"}, "no neighbour such as"),
        ({"broker": "a", "peers": "b=http://b:1,b=http://c:1"}, "named twice"),
        ({"broker": "a/b"}, "match pattern"),
    ],
)
def test_settings_that_make_no_broker_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GatewaySettings.model_validate(given)
