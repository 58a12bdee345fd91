"""Brokers joined by links over loopback: exactly once, from one exact place, through cuts and restarts."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import pytest
from gateway_support import BATCH, DEADLINE_S, EVENTS, NaivePipeline, _Server, encode, event, until

from fieldfare.filters import compile_filter
from fieldfare.gateway.admission.connections import server_config
from fieldfare.gateway.app import create_app
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.federation import wire
from fieldfare.gateway.federation.interest import first_pages, later_pages
from fieldfare.gateway.federation.service import open_federation
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.model import Change
from fieldfare.runtimes.process.listening import listening_socket
from fieldfare.storage.errors import FormatError, StorageError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.sqlite.links import SqliteLinks

ENTRIES = {"content-type": wire.MEDIA_TYPE}


class Site:
    """A gateway with a naive pipeline, behind a server on a port of its own, which can be stopped."""

    def __init__(self, data: Path, name: str, port: int) -> None:
        self.data, self.name, self.port = data, name, port
        self.peers: dict[str, int] = {}
        self.url = f"http://127.0.0.1:{port}"
        self.client = httpx.Client(base_url=self.url, timeout=DEADLINE_S)
        self.settings: dict[str, Any] = {}
        self._stack = contextlib.ExitStack()
        self.is_running = False

    def start(self) -> None:
        peers = tuple(f"{name}=http://127.0.0.1:{port}" for name, port in self.peers.items())
        given = {"data": self.data, "broker": self.name, "peers": peers, **self.settings}
        settings = GatewaySettings.model_validate(given)
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

    def subscribe(self, id: str, filter: Any, dialect: str = "sql") -> int:
        body = {"filter": filter, "dialect": dialect}
        answer = self.client.put(f"/v1/spaces/default/subscriptions/{id}", json=body)
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


def test_filters_of_all_dialects_spaces_and_removals_reach_the_other_site(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        b.subscribe("pattern", {"data": {"n": [{"numeric": ["<", 10]}]}}, "eventbridge")
        b.subscribe("list", [{"exact": {"type": "t"}}], "subscriptions")
        revision = b.subscribe("cesql", "id = '3'", "cesql")
        until(lambda: b.counts(revision, "a"))
        assert a.of("b")["filters"] == 3
        a.publish(3, 30)
        assert b.take("pattern", 1) == [3] == b.take("cesql", 1)
        assert b.take("list", 2) == [3, 30]
        for id in ("pattern", "list", "cesql"):
            b.client.delete(f"/v1/spaces/default/subscriptions/{id}").raise_for_status()
        until(lambda: a.of("b")["filters"] == 0)
        b.client.post("/v1/spaces", json={"name": "other"}).raise_for_status()
        path = "/v1/spaces/other/subscriptions/mine"
        b.client.put(path, json={"filter": "data.n = 1"}).raise_for_status()
        until(lambda: a.of("b")["filters"] == 1)
        until(lambda: b.counts(b.gateway.registry.revision(), "a"))
        a.publish(1)
        a.client.post("/v1/spaces", json={"name": "other"}).raise_for_status()
        answer = a.client.post("/v1/spaces/other/events", content=encode([event(1, {"n": 1})]), headers=BATCH)
        answer.raise_for_status()
        [found] = until(lambda: b.client.post(f"{path}/pull", json={}).json()["messages"])
        assert found["event"]["id"] == "1"
        assert a.of("b")["events_sent"] == 2, "nothing was sent for removed filters, or of another space"


def test_a_step_that_fails_after_its_first_half_is_repeated_without_a_double(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill: the log has the records and the registry the filters, and the inbox has them, too."""
    failures = {"processed": 3, "acknowledge": 3, "add": 3, "receive": 3}
    for name in failures:
        done = getattr(SqliteLinks, name)

        def failing(self: SqliteLinks, *given: Any, name: str = name, done: Any = done, **more: Any) -> None:
            if name in ("add", "receive"):
                if failures[name] and self.correspondents():
                    failures[name] -= 1
                    raise StorageError("the disk is slow today")
                done(self, *given, **more)
                return
            if failures[name]:
                failures[name] -= 1
                raise StorageError("the disk is slow today")
            done(self, *given, **more)

        monkeypatch.setattr(SqliteLinks, name, failing)
    with sites(tmp_path, "ab", "ab") as (a, b):
        revision = b.subscribe("mine", "data.n >= 0")
        until(lambda: b.counts(revision, "a"))
        for name in failures:
            failures[name] = 2
        a.publish(1, 2)
        a.publish(3)
        assert b.take("mine", 3) == [1, 2, 3]
        until(lambda: not any(failures.values()))
        a.publish(4)
        assert b.take("mine", 1) == [4]
        assert b.of("a")["sent_twice"] == 0
        assert b.of("a")["events_received"] == a.of("b")["events_sent"] == 3


def matched(site: Site) -> dict[int, list[str]]:
    """The ids of the events that each subscription of a site has matched, by its match log and log."""
    gateway, found = site.gateway, dict[int, list[str]]()
    offset, end = gateway.log.start(), gateway.log.end()
    lines = {record.offset: record.payload.splitlines() for record in gateway.log.read(offset, end)}
    while offset < end:
        block = gateway.match_log.partition(0).block_at(offset)
        assert block is not None
        for number in block.numbers().tolist():
            for at, index in zip(*(each.tolist() for each in block.matches_of(number, offset)), strict=True):
                found.setdefault(number, []).append(json.loads(lines[at][index])["id"])
        offset = block.end
    return found


def expected(site: Site, all_sites: list[Site]) -> dict[int, list[str]]:
    """The same, from the logs of the sites where the events were published, and this site's registry.

    An event of another site counts for the versions that are valid at the revision of this site that its
    site knew when it was published.
    """
    registry, wanted = site.gateway.registry, dict[int, list[str]]()
    versions = [each for each in registry.versions(registry.revision(), 0) if each.space == "default"]
    for origin in all_sites:
        store = origin.gateway.federation._brokers  # type: ignore[union-attr]
        numbers = {each.name: each.number for each in store.brokers()}
        runs = [run for run in store.runs() if run.number == numbers.get(site.name)]
        for record in origin.gateway.log.read(0, origin.gateway.log.end()):
            if record.origin is not None:
                continue
            stamp = record.stamp
            if origin is not site:
                stamp = max((run.theirs for run in runs if run.revision <= stamp), default=-1)
            for line in map(json.loads, record.payload.splitlines()):
                for version in versions:
                    text = str(version.filter)
                    if version.revision <= stamp < version.closed_by and compile_filter(text).matches(line):
                        wanted.setdefault(version.number, []).append(line["id"])
    return wanted


@pytest.mark.parametrize("seed", range(2))
def test_each_subscription_matches_exactly_the_events_of_its_versions(tmp_path: Path, seed: int) -> None:
    """Random changes, events and restarts at three sites; the logs say what each should have got."""
    random = Random(seed)
    with sites(tmp_path, "abc", "ab bc") as found:
        until(lambda: all(site.of(other.name) for site in found for other in found))
        for step in range(90):
            site, chance = random.choice(found), random.random()
            if chance < 0.04:
                site.stop()
                site.start()
            elif chance < 0.3:
                test = random.choice(("<", "=", ">"))
                site.subscribe(
                    random.choice("xyz"), f"data.n {test} {random.randrange(10)} AND {step} = {step}"
                )
            elif chance < 0.36:
                site.client.delete(f"/v1/spaces/default/subscriptions/{random.choice('xyz')}")
            else:
                given = [
                    event(f"{step}-{n}", {"n": random.randrange(10)}) for n in range(random.randrange(1, 4))
                ]
                site.client.post(EVENTS, content=encode(given), headers=BATCH).raise_for_status()
        until(lambda: all(site.is_quiet() for site in found))
        for site in found:
            for other in found:
                if other is not site:
                    until(
                        lambda site=site, other=other: (
                            site.of(other.name)["events_received"]  # type: ignore[misc]
                            == other.of(site.name)["events_sent"]
                        )
                    )
            until(lambda site=site: site.gateway.match_log.end(0) == site.gateway.log.end())  # type: ignore[misc]
        for site in found:
            got, wanted = matched(site), expected(site, found)
            destinations = {each.number for each in site.gateway.federation._brokers.brokers()}  # type: ignore[union-attr]
            mine = {number: sorted(ids) for number, ids in got.items() if number not in destinations}
            assert mine == {number: sorted(ids) for number, ids in wanted.items()}
            assert all(each.get("sent_twice", 0) == 0 for each in site.brokers()["brokers"])
            assert mine, "something was matched"


class Wire:
    """A way from one site to another that can be cut: it passes bytes between a port and the site's."""

    def __init__(self, to: int) -> None:
        self.to = to
        self.is_cut = False
        self._listener = listening_socket("127.0.0.1", 0)
        self._listener.listen()
        self._open: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", 0 if self.is_cut else self.to))
                except OSError:
                    near.close()
                    continue
                self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                other.sendall(data)
        for each in (one, other):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self.is_cut = True
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self._listener.close()


def test_where_a_link_is_cut_events_go_another_way(tmp_path: Path) -> None:
    a, b, c = found = [Site(tmp_path / name, name, free_port()) for name in "abc"]
    there, back = Wire(c.port), Wire(a.port)
    a.peers, b.peers = {"b": b.port, "c": there.port}, {"a": a.port, "c": c.port}
    c.peers = {"a": back.port, "b": b.port}
    try:
        for site in found:
            site.start()
        revision = c.subscribe("mine", "data.n >= 0")
        until(lambda: c.counts(revision, "a") and a.of("c")["next_hop"] == "c")
        a.publish(1)
        assert c.take("mine", 1) == [1]
        until(a.is_quiet)
        there.cut()
        back.cut()
        until(lambda: a.of("c")["next_hop"] == "b")
        a.publish(2)
        assert c.take("mine", 1) == [2]
        assert b.gateway.log.end() == 0
        there.is_cut = back.is_cut = False
        until(lambda: a.of("c")["next_hop"] == "c")
        a.publish(3)
        assert c.take("mine", 1) == [3]
        assert c.of("a")["sent_twice"] == 0 and c.of("a")["events_received"] == 3
    finally:
        for site in found:
            if site.is_running:
                site.stop()
        there.close()
        back.close()


def test_a_neighbour_needs_a_key_with_the_right(tmp_path: Path) -> None:
    admin = tmp_path / "admin.key"
    admin.write_text("a" * 40)
    a, b = found = [Site(tmp_path / name, name, free_port()) for name in "ab"]
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
        open_federation(settings, given, given, given, given, given, given)


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
        ({"broker": "a", "body_max_bytes": "1MiB"}, "FIELDFARE_BODY_MAX_BYTES"),
        ({"broker": "a", "event_max_bytes": "8MiB"}, "takes batches of 9437184 bytes"),
    ],
)
def test_settings_that_make_no_broker_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GatewaySettings.model_validate(given)


def test_pages_of_changes_are_complete_up_to_their_last_change() -> None:
    """Only all filters together are a state; a later page is one, up to its last change."""
    count = 2 * wire.FILTERS_MAX + 5
    changes = [Change(n, "default", n, f"n = {n}", "sql") for n in range(1, count + 1)]
    of_others = [Change(count + 1, ">default", 9, "n = 1", "sql"), Change(count + 2, ">default", 9, None)]
    first = list(first_pages([*changes, *of_others], count + 2))
    assert [(len(page), theirs) for page, theirs in first] == [(1000, None), (1000, None), (5, count + 2)]
    later = list(later_pages([*changes, *of_others], count + 2))
    assert [(len(page), theirs) for page, theirs in later] == [(1000, 1000), (1000, 2000), (5, count + 2)]
    assert list(later_pages(of_others, count + 2)) == [((), count + 2)], "others' filters are not passed on"
    long = [Change(n, "default", n, "x" * 60_000, "sql") for n in range(1, 30)]
    assert max(len(page) for page, _ in later_pages(long, 30)) <= 16
