"""Unusual forms of HTTP: older versions, half-closed connections, absolute targets."""

from __future__ import annotations

import gzip
import json
import socket

import httpx
import pytest
from gateway_support import EVENTS, SUBSCRIPTIONS, NaivePipeline, event, served, until
from test_connections import BINARY, GET, POST, PULL, ask, connect, problem, stored
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as open_socket

pytestmark = pytest.mark.long

EVENT = POST + BINARY + b"Content-Length: 2\r\n\r\n{}"


def read_to_end(connection: socket.socket) -> tuple[bytes, bytes]:
    """Read until the connection ends: head and body."""
    data = b""
    while more := connection.recv(65536):
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    return head, body


def half_closed(client: httpx.Client, request: bytes) -> tuple[bytes, bytes]:
    with connect(client) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return read_to_end(connection)


@pytest.mark.parametrize("loop", ["auto", "asyncio"])
def test_a_client_that_has_closed_its_writing_side_is_answered(tmp_path, loop):
    """``nc -N`` stored its event, got no answer, and stored it again."""
    with served(tmp_path, loop=loop) as (gateway, client):
        head, body = half_closed(client, EVENT)
        assert head.startswith(b"HTTP/1.1 200 ") and json.loads(body)["count"] == 1
        assert b"connection: close" in head.lower()
        head, body = half_closed(client, GET + GET + GET)
        assert body.count(b"HTTP/1.1 200 ") == 2, "all requests that came are answered"
        assert half_closed(client, EVENT[:-1])[0].startswith(b"HTTP/1.1 400 ")
        assert half_closed(client, EVENT[:80])[0].startswith(b"HTTP/1.1 400 ")
        assert half_closed(client, GET + EVENT[:80])[1].startswith(b'{"status":"alive"}')
        assert half_closed(client, b"") == (b"", b"")
        assert gateway.log.end() == 1


def test_a_pull_of_a_client_that_only_reads_gets_what_there_is_and_does_not_wait(tmp_path):
    with served(tmp_path) as (gateway, client):
        client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "true"}).raise_for_status()
        assert json.loads(half_closed(client, PULL)[1]) == {"messages": []}
        lines = {"content-type": "application/cloudevents+json"}
        client.post(EVENTS, content=json.dumps(event()), headers=lines).raise_for_status()
        NaivePipeline(gateway).step()
        assert len(json.loads(half_closed(client, PULL)[1])["messages"]) == 1
        head, body = half_closed(
            client, b"GET /v1/spaces/default/subscriptions/a/stream HTTP/1.1\r\nHost: a.localhost\r\n\r\n"
        )
        assert head.startswith(b"HTTP/1.1 200 ") and body.endswith(b"0\r\n\r\n")
        until(lambda: gateway.deliveries.connected == 0)


def test_an_answer_to_http_1_0_has_no_chunks(tmp_path):
    """Its client took the sizes of the chunks for a part of the stream."""
    with served(tmp_path) as (gateway, client):
        client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "true"}).raise_for_status()
        lines = {"content-type": "application/cloudevents+json"}
        client.post(EVENTS, content=json.dumps(event()), headers=lines).raise_for_status()
        NaivePipeline(gateway).step()
        with connect(client) as connection:
            connection.sendall(b"GET /v1/spaces/default/subscriptions/a/stream HTTP/1.0\r\n\r\n")
            data = b""
            while b'"specversion"' not in data:
                data += connection.recv(65536)
            head, _, body = data.partition(b"\r\n\r\n")
            assert b"transfer-encoding" not in head.lower() and b"connection: close" in head.lower()
            assert body.startswith(b": fieldfare\n\nid: 0-0-0\ndata: {")
            client.delete(f"{SUBSCRIPTIONS}/a").raise_for_status()
            while more := connection.recv(65536):
                data += more
            assert data.endswith(b"event: deleted\ndata: {}\n\n")
        with connect(client) as connection:
            connection.sendall(GET.replace(b"1.1", b"1.0"))
            head, body = read_to_end(connection)
            assert b"content-length" in head.lower() and json.loads(body) == {"status": "alive"}


def test_http_1_0_is_not_told_to_continue(tmp_path):
    """It does not know the answer 100 and took it for the one to its request (RFC 9110, 10.1.1)."""
    asking = EVENT.replace(b"Content-Length", b"Expect: 100-continue\r\nContent-Length").replace(
        b"/1.1", b"/1.0"
    )
    with served(tmp_path) as (gateway, client):
        with connect(client) as connection:
            connection.sendall(asking)
            head, body = read_to_end(connection)
            assert head.startswith(b"HTTP/1.1 200 ") and json.loads(body)["count"] == 1
        assert gateway.log.end() == 1


UNSERVED = {
    "0.9": b"GET /healthz\r\n\r\n",
    "1.2": GET.replace(b"1.1", b"1.2"),
    "2.0": GET.replace(b"1.1", b"2.0"),
    "3.0": GET.replace(b"1.1", b"3.0"),
}


@pytest.mark.parametrize("request_bytes", UNSERVED.values(), ids=UNSERVED.keys())
def test_other_versions_are_refused_by_name(tmp_path, request_bytes):
    with served(tmp_path) as (_, client):
        told = problem(ask(client, request_bytes), 505)
        assert told["type"].endswith(":http-version") and "HTTP" in told["detail"]


def test_chunks_in_http_1_0_are_refused(tmp_path):
    """A proxy in front reads such a body to the end of the connection (RFC 9112, 6.1)."""
    chunked = (
        POST.replace(b"1.1", b"1.0") + BINARY + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    )
    with served(tmp_path) as (gateway, client):
        problem(ask(client, chunked), 400)
        assert gateway.log.end() == 0


def absolute(target: bytes, host: bytes = b"localhost") -> bytes:
    return b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"


def test_of_an_absolute_target_the_host_counts(tmp_path):
    """The Host header counted, so what a proxy named as host was not looked at (RFC 9112, 3.2.2)."""
    with served(tmp_path, allowed_hosts="good.example") as (_, client):
        assert ask(client, absolute(b"http://good.example/healthz", b"evil.example"))[0] == 200
        assert ask(client, absolute(b"HTTP://good.example:80/healthz?a=http://b"))[0] == 200
        assert ask(client, absolute(b"http://[::1]:7737/healthz", b"evil.example"))[0] == 200
        problem(ask(client, absolute(b"http://evil.example/healthz", b"good.example")), 421)
        problem(ask(client, absolute(b"/healthz?http://good.example", b"evil.example")), 421)
        problem(ask(client, absolute(b"http://good.example?/healthz")), 404)
        for target in (
            b"http://user@good.example/healthz",
            b"ftp://good.example/healthz",
            b"http:///healthz",
        ):
            problem(ask(client, absolute(target)), 400)
        no_host = b"GET http://good.example/healthz HTTP/1.1\r\n\r\n"
        problem(ask(client, no_host), 400)
        offer = absolute(
            b"http://evil.example/healthz", b"good.example\r\nConnection: upgrade\r\nUpgrade: h2c"
        )
        problem(ask(client, offer), 421)


def test_x_gzip_is_gzip(tmp_path):
    packed = gzip.compress(b"{}")
    for name in (b"x-gzip", b"X-GZIP"):
        head = POST + BINARY + b"Content-Encoding: " + name + b"\r\nContent-Length: %d\r\n\r\n" % len(packed)
        with served(tmp_path / name.decode()) as (gateway, client):
            assert ask(client, head + packed)[0] == 200
            assert stored(gateway)[0]["data"] == {}


def test_blank_lines_do_not_hold_a_connection(tmp_path):
    """A line now and then stopped the clock of a connection without a request."""
    with served(tmp_path, keep_alive_s=0.5) as (_, client), connect(client) as connection:
        connection.sendall(GET)
        assert connection.recv(65536)
        connection.sendall(b"\r\n")
        assert connection.recv(1) == b""


def test_a_web_socket_is_closed_as_going_away_when_the_server_stops(tmp_path):
    """It was closed with 1012, after which libraries connect again at once."""
    with served(tmp_path) as (_, client):
        client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "true"}).raise_for_status()
        url = str(client.base_url).replace("http", "ws")
        reading = open_socket(f"{url}{SUBSCRIPTIONS}/a/websocket")
        found = reading.__enter__()
    with reading, pytest.raises(ConnectionClosed) as closed:
        found.recv()
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001


def test_an_event_source_that_finds_no_place_connects_again(tmp_path):
    """A browser's EventSource ends for good at any status but 200, also at the 429 or 503 of a short lack."""
    source = {"accept": "text/event-stream"}
    with served(tmp_path) as (_, client):
        client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "true"}).raise_for_status()
        client.put("/v1/spaces/default/quotas", json={"connections": 1}).raise_for_status()
        stream = f"{SUBSCRIPTIONS}/a/stream"
        with client.stream("GET", stream) as held:
            assert held.status_code == 200
            answer = client.get(f"{stream}?ack=auto", headers=source)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = answer.text.splitlines()
            assert (
                lines[0].startswith(": ") and lines[1].startswith("retry: ") and answer.text.endswith("\n\n")
            )
            assert client.get(f"{stream}?ack=auto").status_code == 429, "no EventSource"
            assert client.get(stream, headers=source).status_code == 429, "our client, which acks"
