"""Storage is never read on the event loop: while a disk hangs, only requests that need it wait."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_support import BATCH, EVENTS, SUBSCRIPTIONS, NaivePipeline, encode, event, served, until
from starlette.routing import compile_path
from websockets.sync.client import connect

from fieldfare.gateway.context import Gateway
from fieldfare.gateway.federation.wire import MEDIA_TYPE
from fieldfare.gateway.openapi.document import api_document
from fieldfare.storage.files.match_block import FileBlock
from fieldfare.storage.quarantine import QuarantinedRecord

DOCUMENT = api_document()

JSON = {"content-type": "application/json"}
LISTS = (
    *(SUBSCRIPTIONS, f"{SUBSCRIPTIONS}?sort=backlog", f"{SUBSCRIPTIONS}?search=data"),
    *(f"{SUBSCRIPTIONS}?owner=ann", f"{SUBSCRIPTIONS}?sort=backlog&label=env=prod"),
    *("/v1/backlogs", "/v1/spaces/default/backlog", "/v1/spaces/default/attributes"),
    *("/v1/caller", "/v1/audit"),
)
TYPES = {EVENTS: BATCH, "/v1/brokers/there/entries": {"content-type": MEDIA_TYPE}}


class Reads:
    """The calls of storage on the thread of a running event loop."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.calls = 0

    def note(self, what: str) -> None:
        self.calls += 1
        if asyncio._get_running_loop() is not None:
            self.seen.add(what)

    def watch(self, monkeypatch: pytest.MonkeyPatch, kind: type[Any]) -> None:
        """Record every call of a class's methods, and every step of the iterators that they return."""
        for name, verb in vars(kind).items():
            if callable(verb) and not name.startswith("__") and name not in ("close", "forget", "on_broken"):
                monkeypatch.setattr(kind, name, self._noted(f"{kind.__name__}.{name}", verb))

    def _noted(self, what: str, verb: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(verb)
        def noted(*arguments: Any, **more: Any) -> Any:
            self.note(what)
            found = verb(*arguments, **more)
            return self._each(what, found) if isinstance(found, Iterator) else found

        return noted

    def _each(self, what: str, found: Iterator[Any]) -> Iterator[Any]:
        for item in found:
            self.note(what)
            yield item

    def watch_files(self, folder: Path) -> None:
        """Record every file and folder under a folder that is opened. (Such an audit hook cannot be
        removed.)"""

        def opened(name: str, arguments: tuple[Any, ...]) -> None:
            if name in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(str(folder)):
                self.note(f"{name} {arguments[0]}")

        sys.addaudithook(opened)


def stream(client: httpx.Client, url: str, pieces: int) -> None:
    with client.stream("GET", url) as response:
        assert response.status_code == 200, url
        found = 0
        for chunk in response.iter_raw():
            found += chunk.count(b"\n\n")
            if found >= pieces:
                return


def converse(client: httpx.Client, path: str) -> None:
    """Ack the first message on a WebSocket, and hear that it is done."""
    url = str(client.base_url.copy_with(scheme="ws", path=path))
    key = {"Authorization": client.headers["authorization"]}
    with connect(url, additional_headers=key) as socket:
        place = json.loads(socket.recv(timeout=60))["fieldfareposition"]
        said = {"specversion": "1.0", "id": "1", "source": "/r", "type": "fieldfare.ack"}
        socket.send(json.dumps(said | {"data": {"positions": [place]}}))
        while json.loads(socket.recv(timeout=60))["type"] != "fieldfare.done":
            pass


def set_up(client: httpx.Client, gateway: Gateway) -> None:
    """Create the state in which the tested gateway starts: subscriptions with cursors, and their matches."""
    for id in "abcd":
        assert client.put(f"{SUBSCRIPTIONS}/{id}", json={"filter": "data.x = 1"}).status_code == 201
    for number in range(6):
        client.post(EVENTS, content=encode([event(number, {"x": 1})]), headers=BATCH).raise_for_status()
    NaivePipeline(gateway).step(3)
    NaivePipeline(gateway).step()
    client.post(f"{SUBSCRIPTIONS}/a/ack", json={"positions": ["0-1-0"]}).raise_for_status()
    gateway.quarantine.add(QuarantinedRecord(2, "default", 1, "it failed", 5))


def requests() -> Iterator[tuple[str, str, Any, int]]:
    """One request for each route, and some invalid ones: method, path, body, status."""
    a, nothing = f"{SUBSCRIPTIONS}/a", f"{SUBSCRIPTIONS}/nothing"
    yield from (("GET", path, None, 200) for path in ("/healthz", "/metrics", "/openapi.json", "/v1/stats"))
    yield "GET", "/v1/pipeline", None, 200
    yield "GET", "/v1/trace?seconds=0.05", None, 200
    yield "GET", "/readyz", None, 503
    yield "GET", "/v1/spaces", None, 200
    yield from (("POST", "/v1/spaces", {"name": "market"}, status) for status in (201, 409))
    yield "GET", "/v1/spaces/market/quotas", None, 200
    yield "PUT", "/v1/spaces/market/quotas", {"subscriptions": 1}, 200
    for verb, body in (("PUT", {"filter": "data.x = 1"}), ("GET", None)):
        yield verb, "/v1/spaces/market/advertisement", body, 200
    for id, status in (("a", 201), ("b", 409), ("a", 200)):
        yield "PUT", f"/v1/spaces/market/subscriptions/{id}", {"filter": "data.x = 2"}, status
    yield "GET", "/v1/spaces/market/delayed", None, 200
    yield "DELETE", "/v1/spaces/market/delayed/1", None, 404
    yield from (("DELETE", "/v1/spaces/market", None, status) for status in (204, 404))
    yield from (("GET", path, None, 200) for path in LISTS)
    for path in (a, f"{a}x", nothing):
        yield "GET", path, None, 200 if path == a else 404
    yield "PUT", f"{SUBSCRIPTIONS}/e", {"filter": "data.x = 2"}, 201
    yield "PUT", f"{SUBSCRIPTIONS}/b", {"filter": "data.x > 0"}, 200
    yield "POST", SUBSCRIPTIONS, {"filter": "data.x = 3"}, 201
    yield (
        "POST",
        SUBSCRIPTIONS,
        {"subscriptions": [{"id": f"m{i}", "filter": "data.x = 4"} for i in range(99)]},
        200,
    )
    yield "POST", EVENTS, [event(9, {"x": 1})], 200
    for path in (a, nothing):
        known = 200 if path == a else 404
        yield "POST", f"{path}/pull", {"max": 2}, known
        yield "POST", f"{path}/ack", {"positions": ["0-0-0"]}, known
        yield "POST", f"{path}/nack", {"positions": ["0-2-0"]}, known
        yield "POST", f"{path}/extend", {"positions": ["0-2-0"]}, known
        yield "POST", f"{path}/terminate", {"positions": ["0-2-0"]}, known
        yield "GET", f"{path}/dead-letters", None, known
        yield "POST", f"{path}/dead-letters/retry", {}, known
        yield "DELETE", f"{path}/dead-letters", None, known
        yield "GET", f"{path}/backlog", None, known
        yield "GET", f"{path}/move", None, 404
        yield "POST", f"{path}/move", {"to": "nowhere"}, 409 if path == a else 404
        yield "POST", f"{path}/ticket", {"valid_s": 5}, 201 if path == a else 404
        yield "POST", f"{path}/seek", {"to": "2020-01-01T00:00:00Z"}, known
        yield "PATCH", path, {"delivery": {"max_attempts": 5}}, known
    yield "POST", f"{a}/ack", {"up_to": "0-3-0"}, 200
    yield "POST", f"{a}/ack", {"up_to": "0-99-0"}, 400
    yield "POST", f"{a}/ack", {"positions": ["0-99-0"]}, 400
    yield "GET", f"{nothing}/stream", None, 404
    for verb, more in (("check", {}), ("explain", {"space": "default"}), ("test", {"events": [event()]})):
        yield "POST", f"/v1/filters:{verb}", {"filter": "data.x = 1", **more}, 200
    yield "POST", "/v1/filters:convert", {"filter": {"source": ["x"]}, "dialect": "eventbridge"}, 200
    yield "GET", "/v1/brokers", None, 200
    yield "GET", "/v1/balance", None, 200
    yield "POST", "/v1/balance", {"drain": True}, 409
    yield "GET", "/v1/leave", None, 200
    yield "POST", "/v1/leave", {"force": True}, 202
    yield "DELETE", "/v1/leave", None, 200
    yield "DELETE", "/v1/brokers/other", None, 404
    yield "POST", "/v1/brokers/there/entries", {}, 400
    yield "GET", "/v1/keys", None, 200
    yield "POST", "/v1/keys", {"rights": ["publish"], "space": "default"}, 201
    yield "DELETE", "/v1/keys/nothing", None, 404
    yield "GET", "/v1/quarantine", None, 200
    yield "POST", "/v1/quarantine/0-2-0/retry", None, 200
    yield "POST", "/v1/quarantine/0-2-0/retry", None, 404
    yield "DELETE", f"{SUBSCRIPTIONS}/d", None, 204
    yield "DELETE", f"{SUBSCRIPTIONS}/d", None, 404


def test_no_route_and_no_background_task_reads_storage_on_the_event_loop(tmp_path, monkeypatch):
    """The first request for a subscription, its cursor or the log's end made all others wait for the disk."""
    (tmp_path / "admin.key").write_text("k" * 40)
    keys = {"admin_key_file": tmp_path / "admin.key"}
    with served(tmp_path, **keys) as (gateway, client):
        client.headers["authorization"] = "Bearer " + "k" * 40
        set_up(client, gateway)
    reads = Reads()
    links = {"broker": "here", "peers": ("there=http://127.0.0.1:9",)}
    settings = (
        keys | links | {"stats_s": 0.02, "maintenance_s": 0.02, "record_cache_bytes": 1, "heartbeat_s": 0.02}
    )
    with served(tmp_path, **settings) as (gateway, client), monkeypatch.context() as patch:
        client.headers["authorization"] = "Bearer " + "k" * 40
        stores = (gateway._keys, gateway.log, gateway.registry, gateway.match_log, gateway.quarantine)
        partitions = (gateway.log.partitions[0], gateway.match_log.partition(0))
        for kind in {FileBlock, *map(type, (*stores, *partitions))}:
            reads.watch(patch, kind)
        reads.watch_files(tmp_path)
        walked = set()
        for method, path, body, status in requests():
            content = None if body is None else encode(body)
            headers = None if body is None else TYPES.get(path, JSON)
            answer = client.request(method, path, content=content, headers=headers)
            assert answer.status_code == status, (method, path, answer.text)
            walked.add((method, path))
        made = client.get("/v1/keys").json()["keys"][0]["id"]
        assert client.delete(f"/v1/keys/{made}").status_code == 204
        NaivePipeline(gateway).step()
        walked.add(("GET", f"{SUBSCRIPTIONS}/c/stream"))
        walked.add(("GET", f"{SUBSCRIPTIONS}/c/websocket"))
        converse(client, f"{SUBSCRIPTIONS}/c/websocket")
        stream(client, f"{SUBSCRIPTIONS}/c/stream", 8)
        stream(client, f"{SUBSCRIPTIONS}/b/stream?ack=auto&last_event_id=0-1-0", 7)
        gateway.log.trim(4)  # what a reader stands at goes
        assert client.post(f"{SUBSCRIPTIONS}/c/pull", json={}).json()["messages"][0]["position"] == "0-4-0"
        rounds = gateway.background._maintained_s
        until(lambda: gateway.background._maintained_s > rounds)
        assert reads.calls > 100
        assert not reads.seen
    for path, item in DOCUMENT["paths"].items():
        for verb in item.keys() - {"parameters"}:
            pattern = compile_path(path)[0]
            asked = (at.partition("?")[0] for method, at in walked if method == verb.upper())
            assert any(map(pattern.match, asked)), (verb, path)
