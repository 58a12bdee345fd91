"""Connections as clients really open them, and as attackers do: over a socket, byte by byte."""

from __future__ import annotations

import json
import re
import socket
import time

import httpx
import pytest
from gateway_support import DEADLINE_S, EVENTS, served, until
from loop_watch import watched

pytestmark = pytest.mark.long

BINARY = (
    b"Host: localhost\r\nce-specversion: 1.0\r\nce-id: 1\r\nce-source: /test\r\nce-type: t\r\n"
    b"Content-Type: application/json\r\n"
)
POST = b"POST " + EVENTS.encode() + b" HTTP/1.1\r\n"
PULL_BODY = b'{"wait_s": 20}'
PULL = (
    b"POST /v1/spaces/default/subscriptions/a/pull HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(PULL_BODY), PULL_BODY)
)
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connect(client: httpx.Client) -> socket.socket:
    return socket.create_connection(("127.0.0.1", client.base_url.port), timeout=DEADLINE_S)


def read_answer(connection: socket.socket, rest: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """One answer: its status, headers and body."""
    data = rest
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        assert more, data
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65536)
    return int(status.split()[1]), headers, body


def ask(client: httpx.Client, *pieces: bytes) -> tuple[int, dict[str, str], bytes]:
    with connect(client) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return read_answer(connection)


def problem(answer: tuple[int, dict[str, str], bytes], status: int) -> dict:
    assert answer[0] == status, answer
    assert answer[1]["content-type"] == "application/problem+json"
    told = json.loads(answer[2])
    assert told["status"] == status and told["detail"]
    return told


def stored(gateway) -> list[dict]:
    records = gateway.log.read(gateway.log.start(), gateway.log.end())
    return [json.loads(line) for record in records for line in record.payload.splitlines()]


OFFERS = {
    "curl": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQC\r\n",
    "websocket": b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    "unheard of": b"connection: upgrade\r\nupgrade: quark/7, TLS/1.0\r\n",
}


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS.keys())
@pytest.mark.parametrize("cut", [None, 20, 1], ids=["at once", "in pieces", "byte by byte"])
def test_a_request_that_offers_another_protocol_keeps_its_body(tmp_path, offer, cut):
    """Java's HttpClient offers h2c with its first request: its events were acknowledged and stored without
    their data. Whatever is offered, the request is HTTP/1.1 too, and so are those after it."""
    body = b'{"x": 1}'
    fixed = POST + BINARY + offer + b"Content-Length: 8\r\n\r\n" + body
    chunked = POST + BINARY + offer + b"Transfer-Encoding: chunked\r\n\r\n3\r\n" + body[:3] + b"\r\n5\r\n"
    chunked += body[3:] + b"\r\n0\r\n\r\n"
    with served(tmp_path) as (gateway, client), connect(client) as connection:
        for request in (fixed, chunked, fixed):
            size = cut or len(request)
            for at in range(0, len(request), size):
                connection.sendall(request[at : at + size])
            status, headers, body = read_answer(connection)
            assert (status, json.loads(body)["count"]) == (200, 1)
            assert "upgrade" not in headers
        connection.sendall(GET)
        assert read_answer(connection)[0] == 200
        assert [event["data"] for event in stored(gateway)] == [{"x": 1}] * 3


def test_a_chunked_body_that_is_too_large_and_complete_is_answered(tmp_path):
    """All of it had come when it was found too large: the gateway waited for more until the client left."""
    head = POST + BINARY + b"Transfer-Encoding: chunked\r\n\r\n"
    with served(tmp_path, body_max_bytes=20_000, event_max_bytes=10_000) as (_, client):
        problem(ask(client, head + b"7530\r\n" + b" " * 30_000 + b"\r\n0\r\n\r\n"), 413)


def test_a_tunnel_is_refused(tmp_path):
    with served(tmp_path) as (_, client):
        problem(ask(client, b"CONNECT other:443 HTTP/1.1\r\nHost: other:443\r\n\r\n"), 405)


def test_white_space_around_a_headers_value_is_not_part_of_it(tmp_path):
    """A content type of ``application/json `` was stored so, and filters on it did not match."""
    request = POST + BINARY.replace(b"json\r\n", b"json \t \r\n") + b"Content-Length:  2  \r\n\r\n{}"
    with served(tmp_path) as (gateway, client):
        assert ask(client, request)[0] == 200
        assert stored(gateway)[0]["datacontenttype"] == "application/json"


def test_a_trailer_does_not_pass_for_a_header(tmp_path):
    """Trailers after a chunked body arrive too late for the checks of the head."""
    request = POST + BINARY + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nce-subject: late\r\n\r\n"
    with served(tmp_path) as (gateway, client):
        assert ask(client, request)[0] == 200
        assert "subject" not in stored(gateway)[0]


def test_a_body_that_is_asked_for_first_is_sent_only_where_it_is_wanted(tmp_path):
    """curl asks before it sends more than a megabyte: for a refused body of 60 MB no byte need be sent."""
    asking = POST + BINARY + b"Expect: 100-continue\r\nContent-Length: "
    with served(tmp_path) as (gateway, client):
        with connect(client) as connection:
            connection.sendall(asking + b"2\r\n\r\n")
            assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(b"{}")
            assert read_answer(connection)[0] == 200
        refused = asking.replace(b"ce-specversion", b"x")
        for head, status in ((asking + b"60000000", 413), (refused + b"60000", 415)):
            with connect(client) as connection:
                connection.sendall(head + b"\r\n\r\n")
                problem(read_answer(connection), status)
                assert connection.recv(1) == b""
        assert gateway.log.end() == 1


UNREADABLE = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 TLS hello\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "two lengths": POST + BINARY + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a length and chunks": POST
    + BINARY
    + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length of 30 digits": POST + BINARY + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n{}",
    "a negative length": POST + BINARY + b"Content-Length: -1\r\n\r\n{}",
    "a space before the colon": b"GET /healthz HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "a bad chunk": POST + BINARY + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "an endless chunk": POST + BINARY + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n",
    "a target that is none": b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "bytes in the target": b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_is_no_http_is_told_so_as_a_problem(tmp_path, request_bytes):
    with served(tmp_path) as (gateway, client):
        answer = ask(client, request_bytes)
        problem(answer, 400)
        assert answer[1]["connection"] == "close"
        assert gateway.log.end() == 0
        assert client.get("/healthz").status_code == 200


def test_a_broken_request_does_not_cut_off_the_answer_to_the_one_before_it(tmp_path):
    """A proxy shares a connection between its users: one user's invalid request must not affect another."""
    with served(tmp_path) as (_, client), connect(client) as connection:
        connection.sendall(GET + b"nonsense\r\n\r\n")
        status, _, body = read_answer(connection)
        assert (status, json.loads(body)) == (200, {"status": "alive"})
        assert connection.recv(1) == b""


HEADS = {
    "a header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 100_000,
    "a target": b"GET /healthz?" + b"x" * 100_000,
    "many headers": b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * 300 + b"\r\n",
    "large headers": b"GET /healthz HTTP/1.1\r\n" + (b"a: " + b"b" * 1000 + b"\r\n") * 80 + b"\r\n",
    "a trailer": POST + BINARY + b"Transfer-Encoding: chunked\r\n\r\n0\r\na: " + b"b" * 200_000,
    "a chunk's line": POST + BINARY + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"b" * 200_000,
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_a_head_without_end_is_refused_before_it_fills_the_memory(tmp_path, head):
    with served(tmp_path) as (_, client):
        problem(ask(client, head), 431)
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize("size", [20_000, 30_000, 60_000])
def test_large_heads_of_pipelined_requests_are_measured_one_by_one(tmp_path, size):
    """A head that began behind other requests in one read was charged with their bytes, and refused."""
    large = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * size + b"\r\n\r\n"
    count = 12
    with served(tmp_path) as (_, client), connect(client) as connection:
        connection.sendall(large * count)
        connection.shutdown(socket.SHUT_WR)
        answers = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answers.count(b"HTTP/1.1 200 ") == count


@pytest.mark.parametrize("size", [66_000, 100_000, 120_000])
def test_a_head_is_refused_for_its_size_wherever_its_reads_are_cut(tmp_path, size):
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * size + b"\r\n\r\n"
    with served(tmp_path) as (_, client):
        for before in (b"", GET, GET * 20):
            with connect(client) as connection:
                connection.sendall(before + head)
                connection.shutdown(socket.SHUT_WR)
                answers = b"".join(iter(lambda: connection.recv(65536), b""))
            assert answers.count(b"HTTP/1.1 200 ") == len(before) // len(GET)


def test_many_chunks_in_small_writes_are_no_large_head(tmp_path):
    """Lines before chunks that came alone were added up over a whole body, and refused at 64 KiB."""
    line, body = b"1;" + b"x" * 1000 + b"\r\n", b'"%s"' % (b"x" * 80)
    with served(tmp_path) as (gateway, client), connect(client) as connection:
        connection.sendall(POST + BINARY + b"Transfer-Encoding: chunked\r\n\r\n")
        for byte in body:
            connection.sendall(line)
            client.get("/healthz").raise_for_status()  # the line has been read alone
            connection.sendall(b"%c\r\n" % byte)
        connection.sendall(b"0\r\n\r\n")
        assert read_answer(connection)[0] == 200
        assert stored(gateway)[0]["data"] == "x" * 80


def test_a_client_sending_one_byte_at_a_time_is_disconnected(tmp_path):
    """Slowloris: a few thousand connections, each sending a header now and then, held a server for ever."""
    with served(tmp_path, head_timeout_s=1.0, body_timeout_s=1.0) as (gateway, client):
        with connect(client) as silent, connect(client) as head, connect(client) as body:
            head.sendall(b"GET /healthz HTTP/1.1\r\nX-a: b\r\n")
            body.sendall(POST + BINARY + b"Content-Length: 1000\r\n\r\n{")
            assert "head" in problem(read_answer(head), 408)["detail"]
            assert "body" in problem(read_answer(body), 408)["detail"]
            assert silent.recv(1) == b""
        assert gateway.log.end() == 0
        assert client.get("/healthz").status_code == 200


def test_a_body_that_trickles_is_cut_off_however_often_a_byte_comes(tmp_path):
    with served(tmp_path, body_timeout_s=0.3) as (_, client), connect(client) as connection:
        connection.sendall(POST + BINARY + b"Content-Length: 100000\r\n\r\n{")
        connection.setblocking(False)
        deadline_s = time.monotonic() + DEADLINE_S
        answer = b""
        while not answer:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
            try:
                answer = connection.recv(65536)
            except BlockingIOError:
                connection.send(b" ")
        assert b" 408 " in answer.splitlines()[0]


def test_bodies_that_are_held_back_do_not_fill_the_memory(tmp_path):
    """Ten thousand connections that each send all of 8 MiB but its end would take 80 GB for a minute."""
    most = 1 << 20
    with served(tmp_path, bodies_max_bytes=most) as (gateway, client):
        held = [connect(client) for _ in range(4)]
        for connection in held:
            connection.sendall(POST + BINARY + b"Content-Length: 300000\r\n\r\n" + b" " * 299_999)
        until(lambda: gateway.bodies.held_bytes > most - 300_000)
        answer = client.post(EVENTS, content=b" " * 300_000, headers={"content-type": "application/x-ndjson"})
        assert answer.status_code == 429 and answer.json()["why"] == "bodies"
        assert gateway.bodies.held_bytes <= most
        for connection in held:
            connection.close()
        until(lambda: gateway.bodies.held_bytes == 0)
        assert client.get("/healthz").status_code == 200


def test_incomplete_bodies_of_one_space_do_not_block_others(tmp_path):
    """With forty slow bodies, from a client that may publish in one space only, no client of any other space
    could publish, pull or ack for a minute.
    """
    most = 1 << 20
    lines = {"content-type": "application/x-ndjson"}
    with served(tmp_path, bodies_max_bytes=most) as (gateway, client):
        client.post("/v1/spaces", json={"name": "calm"}).raise_for_status()
        client.put("/v1/spaces/calm/subscriptions/a", json={"filter": "true"}).raise_for_status()
        held = [connect(client) for _ in range(4)]
        for connection in held:
            connection.sendall(POST + BINARY + b"Content-Length: 300000\r\n\r\n" + b" " * 299_999)
        until(lambda: gateway.bodies.held_bytes > most - 300_000)
        event = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":"%s"}' % (b"x" * 300_000)
        answer = client.post("/v1/spaces/calm/events", content=event, headers=lines)
        assert answer.status_code == 200, answer.text
        pulled = client.post("/v1/spaces/calm/subscriptions/a/pull", json={"max": 1, "wait_s": 0})
        assert pulled.status_code == 200, pulled.text
        filters = {"filter": "x" * 300_000}
        for path in ("/v1/spaces/default/subscriptions", "/v1/filters:check"):
            answer = client.post(path, json=filters)
            assert (answer.status_code, answer.json()["why"]) == (429, "bodies")
        for path in ("subscriptions", "events", "subscriptions/a/pull", "subscriptions/a/ack"):
            answer = client.post(f"/v1/spaces/made-up/{path}", json=filters)
            assert answer.status_code in (404, 415), "who makes up spaces has no share of theirs"
        assert client.put("/v1/spaces/made-up/quotas", json=filters).status_code == 404
        for connection in held:
            connection.close()
        until(lambda: gateway.bodies.held_bytes == 0)
        assert not gateway.bodies._room._held


def test_when_connections_run_out_idle_ones_give_way_and_then_new_ones_are_told(tmp_path):
    with served(tmp_path, connections_max=3) as (_, client):
        held = [connect(client) for _ in range(3)]
        assert client.get("/healthz").status_code == 200
        assert held[0].recv(1) == b""
        client.put("/v1/spaces/default/subscriptions/a", json={"filter": "true"}).raise_for_status()
        client.close()
        busy = [connect(client) for _ in range(3)]
        for each in busy:
            each.sendall(PULL)
        until(lambda: _refused(client))
        for each in (*held, *busy):
            each.close()


UNFINISHED = {
    "a head": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n",
    "a body": POST + BINARY + b"Content-Length: 1000\r\n\r\n{",
    "a body that is refused": POST + b"Host: localhost\r\nContent-Type: a/b\r\nContent-Length: 1000\r\n\r\n{",
    "an unread body": b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
    "no HTTP": b"nonsense\r\n\r\n",
}


@pytest.mark.parametrize("begun", UNFINISHED.values(), ids=UNFINISHED.keys())
@pytest.mark.parametrize("loop", ["auto", "asyncio"])
def test_requests_that_do_not_end_give_way_to_those_that_do(tmp_path, begun, loop):
    """With the maximum number of them, reopened from time to time, all other clients got 503 for ever."""
    with served(tmp_path, connections_max=3, loop=loop) as (gateway, client):
        client.close()
        held = [connect(client) for _ in range(3)]
        for each in held:
            each.sendall(begun)
        for _ in range(5):
            answer = ask(client, GET)
            assert answer[0] == 200, answer
            held.append(connect(client))
            held[-1].sendall(begun)
        answers = [_read_all(each) for each in held[:3]]
        for answer in answers:
            assert len(re.findall(rb"^HTTP/1.1 \d", answer, re.M)) <= 1, "one request has one answer"
        for each in held:
            each.close()
        assert gateway.log.end() == 0


def test_a_request_that_gives_way_is_told_to_come_again(tmp_path):
    with served(tmp_path, connections_max=1) as (_, client):
        client.close()
        with connect(client) as connection:
            connection.sendall(GET + UNFINISHED["a head"])
            assert read_answer(connection)[0] == 200
            assert ask(client, GET)[0] == 200
            answer = read_answer(connection)
            assert answer[1]["retry-after"] and answer[1]["connection"] == "close"
            assert "was incomplete" in problem(answer, 503)["detail"]


def _read_all(connection: socket.socket) -> bytes:
    data = b""
    try:
        while more := connection.recv(65536):
            data += more
    except ConnectionResetError:
        pass
    return data


def _refused(client: httpx.Client) -> bool:
    answer = ask(client, GET)
    if answer[0] == 200:
        return False
    assert answer[1]["retry-after"] and answer[1]["connection"] == "close"
    problem(answer, 503)
    return True


def test_a_client_that_does_not_read_answers_is_disconnected(tmp_path):
    """A stopped program at the other end held its stream's messages, and a connection, for ever."""
    with served(tmp_path, send_timeout_s=0.3) as (_, client), connect(client) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        asking = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.settimeout(0.05)
        deadline_s = time.monotonic() + DEADLINE_S
        with pytest.raises(ConnectionError):
            while time.monotonic() < deadline_s:
                try:
                    connection.sendall(asking)
                except TimeoutError:
                    pass


CROWDED = {
    "pipelined requests": GET * 6_000,
    "one-byte chunks": POST + BINARY + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 40_000,
    "empty headers": b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 60_000,
    "blank lines": b"\r\n" * 120_000,
}


@pytest.mark.parametrize("crowd", CROWDED.values(), ids=CROWDED.keys())
def test_no_read_of_many_small_parts_holds_the_others_up(tmp_path, monkeypatch, crowd):
    """A quarter of a megabyte comes in one read, and may be 40,000 chunks of a body or 6,000 requests."""
    with watched(monkeypatch, tmp_path) as (_, client, watch), connect(client) as connection:
        connection.settimeout(1)
        try:
            connection.sendall(crowd)
            connection.recv(1)
        except OSError:
            pass
        assert client.get("/healthz").status_code == 200
        watch.check()
