"""The files of deploy/nginx and deploy/caddy, in the programs themselves, do what clients need."""

from __future__ import annotations

import json
import shutil
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from browser import CHROMIUM, chromium
from proxy_support import DEADLINE_S, NAME, PROGRAMS, Proxied, proxied
from websockets.sync.client import connect

from fieldfare import Client

SPACE = "/v1/spaces/default"
KINDS = {
    "json": "content-type: application/cloudevents+json",
    "lines": "content-type: application/x-ndjson",
    "arrow": "content-type: application/vnd.apache.arrow.stream",
}
BODY_MAX_BYTES = 8 << 20
STREAMS = 20
AT_ONCE_S = 5.0
"""Seconds within which a message must arrive, far less than between two heartbeats."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed"),
]


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def proxy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    if PROGRAMS[request.param] is None:
        pytest.skip(f"{request.param} is not installed: apt-get install {request.param}")
    with proxied(request.param, tmp_path_factory.mktemp(request.param), heartbeat_s="60") as found:
        yield found


def client_of(proxy: Proxied) -> Client:
    return Client(proxy.local_url, ca_file=proxy.certificate)


def event(id: int, **data: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": str(id), "source": "/proxied", "type": "t", "data": data}


def publish(proxy: Proxied, *events: dict[str, Any]) -> None:
    """Publish without the proxy."""
    body = "".join(json.dumps(each) + "\n" for each in events)
    name, kind = KINDS["lines"].split(": ")
    httpx.post(f"{proxy.gateway.url}{SPACE}/events", content=body, headers={name: kind}).raise_for_status()


def subscribe(proxy: Proxied, id: str, filter: str) -> None:
    url = f"{proxy.gateway.url}{SPACE}/subscriptions/{id}"
    httpx.put(url, json={"filter": filter}).raise_for_status()


def test_a_pull_that_waits_is_answered_when_a_message_arrives(proxy: Proxied) -> None:
    with client_of(proxy) as client:
        subscribe(proxy, "waiting", "data.kind = 'waiting'")
        assert client.pull("waiting", wait_s=1) == []
        later = threading.Timer(0.5, publish, (proxy, event(1, kind="waiting")))
        later.start()
        start_s = time.monotonic()
        (message,) = client.pull("waiting", wait_s=50)
        assert time.monotonic() - start_s < 10
        client.ack("waiting", [message.position])
        later.join()


def test_each_message_of_a_stream_is_passed_on_at_once(proxy: Proxied) -> None:
    """A proxy that collects small messages would hold them until there are some KiB."""
    subscribe(proxy, "small", "data.kind = 'small'")
    stream = proxy.curl(f"{SPACE}/subscriptions/small/stream?ack=auto", "-w", "%{http_version}")
    assert stream.stdout is not None
    try:
        assert stream.stdout.readline() == ": fieldfare\n"
        waits_s = []
        for number in range(20):
            start_s = time.monotonic()
            publish(proxy, event(number, kind="small", number=number))
            while not (line := stream.stdout.readline()).startswith("data:"):
                assert line, "the stream ended"
            assert json.loads(line.removeprefix("data:"))["data"]["number"] == number
            waits_s.append(time.monotonic() - start_s)
        assert max(waits_s) < AT_ONCE_S
    finally:
        stream.terminate()
        stream.wait()


def test_a_pull_whose_client_is_gone_takes_no_messages(proxy: Proxied) -> None:
    """A proxy that does not pass on the end would have them delivered to nobody, until their ack deadline."""
    subscribe(proxy, "gone", "data.kind = 'gone'")
    body = ("--json", json.dumps({"wait_s": 50}))
    pulls = [proxy.curl(f"{SPACE}/subscriptions/gone/pull", *body) for _ in range(3)]
    until(lambda: waiting(proxy) == 3)
    for pull in pulls:
        pull.terminate()
        pull.communicate()
    until(lambda: waiting(proxy) == 0)
    publish(proxy, event(1, kind="gone"))
    with client_of(proxy) as client:
        (message,) = client.pull("gone", wait_s=20)
        client.ack("gone", [message.position])


def waiting(proxy: Proxied) -> int:
    """The number of open streams, WebSockets and pulls."""
    answer = httpx.get(f"{proxy.gateway.url}{SPACE}/quotas")
    return int(answer.json()["used"]["connections"])


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come true in time"
        time.sleep(0.02)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium is installed: apt-get install chromium")
def test_a_page_has_twenty_streams_and_a_websocket(proxy: Proxied, tmp_path: Path) -> None:
    for number in range(STREAMS):
        subscribe(proxy, f"page-{number}", "data.kind = 'page'")
    subscribe(proxy, "page-socket", "data.kind = 'page'")
    with chromium(
        tmp_path, "--ignore-certificate-errors", f"--host-resolver-rules=MAP {NAME} 127.0.0.1"
    ) as page:
        page.open(f"{proxy.url}/")
        page.run(OPEN_STREAMS % {"streams": STREAMS, "space": SPACE})
        page.wait(f"window.opened === {STREAMS + 1}")
        publish(proxy, event(1, kind="page"))
        page.wait(f"window.heard.size === {STREAMS + 1}")
        assert page.run("fetch('/healthz').then((answer) => answer.status)") == 200
        assert page.run("performance.getEntriesByType('navigation')[0].nextHopProtocol") == "h2"


OPEN_STREAMS = """(() => {
    window.opened = 0;
    window.heard = new Set();
    window.sources = [];
    const place = (id) => "%(space)s/subscriptions/page-" + id;
    for (let number = 0; number < %(streams)d; number += 1) {
        const source = new EventSource(place(number) + "/stream?ack=auto");
        source.onopen = () => { window.opened += 1; };
        source.onmessage = () => { window.heard.add(number); };
        window.sources.push(source);
    }
    const address = "wss://" + location.host + place("socket") + "/websocket";
    const socket = new WebSocket(address, "cloudevents.json");
    socket.onopen = () => { window.opened += 1; };
    socket.onmessage = () => { window.heard.add("socket"); };
    window.sources.push(socket);
})()"""


def test_messages_are_settled_on_a_websocket(proxy: Proxied) -> None:
    subscribe(proxy, "socket", "data.kind = 'socket'")
    trusted = ssl.create_default_context(cafile=str(proxy.certificate))
    url = f"wss://localhost:{proxy.port}{SPACE}/subscriptions/socket/websocket"
    with connect(url, ssl=trusted, subprotocols=["cloudevents.json"]) as socket:  # type: ignore[list-item]
        publish(proxy, event(1, kind="socket"))
        message = json.loads(socket.recv(timeout=180))
        assert message["data"] == {"kind": "socket"}
        ack = event(1, positions=[message["fieldfareposition"]]) | {"type": "fieldfare.ack"}
        socket.send(json.dumps(ack))
        answer = json.loads(socket.recv(timeout=180))
        assert answer["type"] == "fieldfare.done", answer


def test_the_largest_body_is_accepted_and_a_larger_one_refused(proxy: Proxied, tmp_path: Path) -> None:
    lines = [json.dumps(event(number, pad="x" * (BODY_MAX_BYTES // 10))) for number in range(10)]
    missing = BODY_MAX_BYTES - sum(len(line) + 1 for line in lines)
    lines[0] = json.dumps(event(0, pad="x" * (BODY_MAX_BYTES // 10 + missing)))
    body = tmp_path / "body"
    body.write_text("".join(line + "\n" for line in lines))
    assert body.stat().st_size == BODY_MAX_BYTES
    upload = ("-H", KINDS["lines"], "--data-binary", f"@{body}")
    status, answer = proxy.ask(f"{SPACE}/events", *upload)
    assert (status, json.loads(answer)["count"]) == ("2 200", 10)
    chunked = ("-H", "content-length:", "-H", "transfer-encoding: chunked")
    status, _ = proxy.ask(f"{SPACE}/events", *upload, *chunked)
    assert status == "2 200"
    body.write_bytes(body.read_bytes() + b"\n" * 10)
    for options in (upload, (*upload, *chunked)):
        status, _ = proxy.ask(f"{SPACE}/events", *options)
        assert status == "2 413"


def test_long_attributes_in_binary_mode_are_passed_on(proxy: Proxied, tmp_path: Path) -> None:
    values = {"specversion": "1.0", "id": "1", "source": "/long", "type": "t", "note": "x" * 50_000}
    (tmp_path / "head").write_text("".join(f"ce-{name}: {value}\n" for name, value in values.items()))
    status, answer = proxy.ask(f"{SPACE}/events", "-H", f"@{tmp_path}/head", "--json", "{}")
    assert status == "2 200", answer


def test_a_large_table_is_published(proxy: Proxied) -> None:
    count = 7_000
    columns = {
        "id": [str(number) for number in range(count)],
        "source": ["/tables"] * count,
        "type": ["t"] * count,
        "text": [f"{number:x}" * (1_000 // len(f"{number:x}")) for number in range(count)],
    }
    with client_of(proxy) as client:
        assert len(client.publish_table(pa.table(columns))) == count


def test_the_gateway_gets_the_path_the_name_and_the_request_id_as_they_were_sent(proxy: Proxied) -> None:
    subscribe(proxy, "a:b", "TRUE")
    status, answer = proxy.ask(f"{SPACE}/subscriptions/a%3Ab")
    assert (status, json.loads(answer)["id"]) == ("2 200", "a:b")
    status, answer = proxy.ask(f"{SPACE}/subscriptions/a%2Fb")
    assert (status, json.loads(answer)["type"]) == ("2 400", "urn:fieldfare:problem:bad-path")
    _, answer = proxy.ask("/healthz", "-i", "-H", "X-Request-Id: gate-17")
    assert "x-request-id: gate-17" in answer.lower()
    origin = f"Origin: {proxy.url}"
    status, _ = proxy.ask(f"{SPACE}/subscriptions", "-H", origin)
    assert status == "2 200"
    status, answer = proxy.ask(f"{SPACE}/subscriptions", "-H", "Origin: https://elsewhere.example")
    assert (status, json.loads(answer)["type"]) == ("2 403", "urn:fieldfare:problem:cross-origin")


def test_a_client_publishes_and_reads_over_a_restart_of_the_gateway(proxy: Proxied) -> None:
    with client_of(proxy) as client, client.subscribe("over", "data.kind = 'over'") as messages:
        client.publish(event(1, kind="over")).result(60)
        first = next(messages)
        first.ack()
        proxy.gateway.stop()
        try:
            status, _ = proxy.ask("/healthz")
            assert status == "2 502"
            waiting = client.publish(event(2, kind="over"))
            time.sleep(0.5)
            assert not waiting.done()
        finally:
            proxy.gateway.start()
        waiting.result(60)
        found = [next(messages)]
        while found[-1].event["id"] != "2":
            found.append(next(messages))
        assert [each.event["id"] for each in found if each.event["id"] != "1"] == ["2"]
        found[-1].ack()
