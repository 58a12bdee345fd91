"""WebSockets of attackers: byte by byte, without end, without reading, with invalid data."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest
from gateway_support import DEADLINE_S, SUBSCRIPTIONS, NaivePipeline, event, served, until
from loop_watch import watched
from test_connections import BINARY as HEADERS
from test_connections import POST, ask, connect, problem, read_answer
from test_sockets import heard, opened, said
from test_streams import publish, subscribe

from fieldfare.delivery.delivery import Delivery
from fieldfare.gateway.admission import connections
from fieldfare.gateway.admission.sockets import Socket
from fieldfare.storage.errors import EventLogError

pytestmark = pytest.mark.long

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
KEY = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
VERSION = b"Sec-WebSocket-Version: 13\r\n"
PATH = f"{SUBSCRIPTIONS}/a/websocket"


def offer(path: str = PATH, headers: bytes = KEY + VERSION, version: bytes = b"1.1") -> bytes:
    """A request that offers to go on as a WebSocket."""
    start = b"GET %s HTTP/%s\r\nHost: localhost\r\n" % (path.encode(), version)
    return start + b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + headers + b"\r\n"


def frame(kind: int, data: bytes = b"", *, is_last: bool = True) -> bytes:
    """A client's frame, with a mask that changes nothing."""
    size = len(data)
    if size < 126:
        shown = bytes([0x80 | size])
    elif size < 1 << 16:
        shown = bytes([0x80 | 126]) + struct.pack("!H", size)
    else:
        shown = bytes([0x80 | 127]) + struct.pack("!Q", size)
    return bytes([(0x80 if is_last else 0) | kind]) + shown + b"\0\0\0\0" + data


@contextmanager
def raw(client: httpx.Client, path: str = PATH, buffer_bytes: int | None = None) -> Iterator[socket.socket]:
    """An open socket, to be written to byte by byte."""
    with socket.socket() as found:
        if buffer_bytes is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        found.settimeout(DEADLINE_S)
        found.connect(("127.0.0.1", client.base_url.port))
        found.sendall(offer(path))
        head = b""
        while b"\r\n\r\n" not in head:
            head += found.recv(1)
        assert head.startswith(b"HTTP/1.1 101 "), head
        yield found


def closed_with(found: socket.socket) -> int:
    """Return the code with which the other side closes; fail if it sends anything else."""
    data = b""
    while len(data) < 4:
        more = found.recv(4096)
        assert more, data
        data += more
    assert data[0] == 0x80 | CLOSE, data
    return int(struct.unpack("!H", data[2:4])[0])


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that client data causes no log lines: a client could fill the log, and push out all other
    lines."""
    with caplog.at_level(logging.WARNING):
        yield
        assert [record.getMessage() for record in caplog.records] == []


NOT_RIGHT = {
    "a body": offer(headers=KEY + VERSION + b"Content-Length: 5\r\n") + b"hello",
    "chunks": offer(headers=KEY + VERSION + b"Transfer-Encoding: chunked\r\n") + b"0\r\n\r\n",
    "a body that is asked for": offer(
        headers=KEY + VERSION + b"Content-Length: 5\r\nExpect: 100-continue\r\n"
    ),
    "no key": offer(headers=VERSION),
    "a key that is none": offer(headers=VERSION + b"Sec-WebSocket-Key: x\r\n"),
    "two keys": offer(headers=VERSION + KEY + KEY),
    "another version": offer(headers=KEY + b"Sec-WebSocket-Version: 12\r\n"),
    "HTTP/1.0": offer(version=b"1.0"),
}


@pytest.mark.parametrize("request_bytes", NOT_RIGHT.values(), ids=NOT_RIGHT.keys())
def test_an_offer_that_is_not_right_is_answered_as_the_request_that_it_is(tmp_path, request_bytes, quiet):
    """An offer with a body was not answered, and its connection was held for ever: with some thousands of
    them no other client could connect. No key was needed for this."""
    with served(tmp_path) as (_, client):
        subscribe(client, "a", "data.x = 1")
        answer = ask(client, request_bytes)
        assert problem(answer, 426)["type"] == "urn:fieldfare:problem:upgrade-required"
        assert answer[1]["sec-websocket-version"] == "13"


@pytest.mark.parametrize(
    "more",
    [
        b"".join(b"X-%d: 1\r\n" % number for number in range(150)),
        b"X-A: " + b"a" * 20_000 + b"\r\n",
        b"X-A: \xe4\xff\r\n",
        b"Content-Length: 0\r\n",
        b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n",
    ],
    ids=["many headers", "a long header", "no ASCII", "no body", "an extension"],
)
def test_what_head_a_request_may_have_the_one_of_a_websocket_may_have_too(tmp_path, more):
    """A head that one parser accepted and the next one rejected was never answered."""
    with served(tmp_path) as (_, client), connect(client) as found:
        subscribe(client, "a", "data.x = 1")
        found.sendall(offer(headers=more + KEY + VERSION))
        answer = found.recv(4096)
        assert answer.startswith(b"HTTP/1.1 101 ")
        assert b"permessage" not in answer


def test_an_offer_to_the_whole_address_is_one_to_its_path(tmp_path):
    with served(tmp_path) as (_, client), connect(client) as found:
        subscribe(client, "a", "data.x = 1")
        found.sendall(offer("http://localhost" + PATH + "?window=3"))
        assert found.recv(4096).startswith(b"HTTP/1.1 101 ")


def test_where_there_is_no_websocket_the_offer_is_ignored_however_the_path_ends(tmp_path, quiet):
    with served(tmp_path) as (_, client):
        subscribe(client, "websocket", "data.x = 1")
        status, _, body = ask(client, offer(f"{SUBSCRIPTIONS}/websocket"))
        assert (status, json.loads(body)["id"]) == (200, "websocket")
        assert problem(ask(client, offer("/x/websocket")), 404)["type"].endswith(":unknown-route")


def test_refusals_are_not_written_to_the_log(tmp_path, quiet):
    with served(tmp_path) as (_, client):
        subscribe(client, "a", "data.x = 1")
        for path, status in ((PATH.replace("/a/", "/b/"), 404), (f"{PATH}?window=0", 400)):
            problem(ask(client, offer(path)), status)
        problem(ask(client, offer().replace(b"localhost", b"evil.example")), 421)
        for _ in range(5):  # gone before it is answered
            with connect(client) as found:
                found.sendall(offer())
                found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert client.get("/healthz").status_code == 200


EARLY = {
    "a ping": frame(PING, b"x"),
    "a message": frame(TEXT, b"{}"),
    "a close": frame(CLOSE, struct.pack("!H", 1000)),
    "nonsense": b"\xff\xff\xff\xff",
    "much": frame(PING, b"x" * 100) * 1_000,
}


@pytest.mark.parametrize("early", EARLY.values(), ids=EARLY.keys())
def test_a_client_that_does_not_wait_for_the_answer_is_refused(tmp_path, early, quiet):
    """A pong was sent before the answer that opens the socket; invalid data ended in a traceback."""
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        with connect(client) as found:
            found.sendall(offer() + early)
            assert problem(read_answer(found), 400)["type"].endswith(":bad-http")
        assert gateway.deliveries.connected == 0


FLOODS = {
    "pings": frame(PING) * 60_000,
    "pongs": frame(PONG) * 60_000,
    "messages": frame(TEXT) * 2_000 + frame(CLOSE),
    "parts of a message": frame(TEXT, is_last=False) + frame(0, is_last=False) * 60_000,
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
def test_no_flood_of_small_frames_holds_the_others_up(tmp_path, monkeypatch, flood):
    """A quarter of a megabyte comes in one read, and is 40,000 frames: all others waited half a second."""
    with watched(monkeypatch, tmp_path) as (_, client, watch):
        subscribe(client, "a", "data.x = 1")
        with raw(client) as found:
            reader = threading.Thread(target=_read_all, args=(found,), daemon=True)
            reader.start()
            with suppress(OSError):
                found.sendall(flood)
            assert client.get("/healthz").status_code == 200
            found.shutdown(socket.SHUT_WR)
            reader.join(DEADLINE_S)
        watch.check()


def _read_all(found: socket.socket) -> None:
    with suppress(OSError):
        while found.recv(1 << 20):
            pass


def test_messages_in_one_read_are_all_answered_in_turn(tmp_path):
    with served(tmp_path) as (_, client):
        subscribe(client, "a", "data.x = 1")
        with opened(client, "a") as found:
            texts = [said("nack", {"positions": []}, str(number)) for number in range(1, 501)]
            found.socket.sendall(b"".join(frame(TEXT, text.encode()) for text in texts))
            answers = [heard(found)["data"]["said"] for _ in texts]
            assert sorted(map(int, answers)) == list(range(1, 501))


def test_a_message_in_many_parts_is_one(tmp_path):
    text = said("nack", {"positions": []}, "whole").encode()
    parts = [frame(TEXT, is_last=False), *(frame(0, bytes([byte]), is_last=False) for byte in text)]
    parts += [frame(0, is_last=False) + frame(PING, b"between")] * 3_000 + [frame(0)]
    with served(tmp_path) as (_, client):
        subscribe(client, "a", "data.x = 1")
        with opened(client, "a") as found:
            found.socket.sendall(b"".join(parts))
            assert heard(found)["data"] == {"said": "whole", "returned": 0}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Socket]:
    """The gateway's ends of the sockets that are opened."""
    sockets: list[Socket] = []

    class Seen(Socket):
        most_bytes = 0

        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            sockets.append(self)

        def handle_ping(self):
            super().handle_ping()
            Seen.most_bytes = max(Seen.most_bytes, self.transport.get_write_buffer_size())

    monkeypatch.setattr(connections, "Socket", Seen)
    return sockets


def test_pings_that_nobody_reads_the_answers_of_do_not_fill_the_memory(tmp_path, made):
    """60 MB of them took as much memory, and so on for two minutes."""
    with served(tmp_path) as (_, client):
        subscribe(client, "a", "data.x = 1")
        with raw(client, buffer_bytes=4096) as found:
            for _ in range(20):
                found.sendall(frame(PING, b"x" * 120) * 5_000)
            found.sendall(frame(PING, b"the last one") + frame(TEXT, b"{}"))
            end = b""
            while b"fieldfare.problem" not in end:
                more = found.recv(1 << 20)
                assert more
                end = (end + more)[-1000:]
            assert b"the last one" in end
        assert made[0].most_bytes < 1 << 20


def test_a_message_that_does_not_come_to_its_end_is_cut_off(tmp_path, quiet):
    with served(tmp_path, body_timeout_s=1.0) as (_, client):
        subscribe(client, "a", "data.x = 1")
        begun = frame(TEXT, b"x" * 1000)
        for start in (begun[:-1], frame(TEXT, b"x", is_last=False) + frame(PING)):
            with raw(client) as found:
                found.sendall(start)
                data = found.recv(4096)
                if data[0] == 0x80 | PONG:
                    data = data[2:] or found.recv(4096)
                assert data[0] == 0x80 | CLOSE and struct.unpack("!H", data[2:4])[0] == 1008
        with raw(client) as found:  # who says one thing after the other is not
            for _ in range(8):
                found.sendall(frame(TEXT, b"{}") + frame(TEXT, b"{}")[:3])
                assert found.recv(4096)[0] == 0x80 | TEXT
                found.sendall(frame(TEXT, b"{}")[3:])
                assert found.recv(4096)[0] == 0x80 | TEXT


def test_messages_that_are_held_back_do_not_fill_the_memory(tmp_path):
    """Ten thousand sockets on each of which all but the end of a mebibyte has come took 10 GB."""
    most = 1 << 20
    with served(tmp_path, bodies_max_bytes=most) as (_, client):
        subscribe(client, "a", "data.x = 1")
        begun = frame(TEXT, b"x" * 600_000)[:-1]
        with raw(client) as first, raw(client) as second:
            first.sendall(begun)
            second.sendall(begun)
            first.setblocking(False)
            second.setblocking(False)
            ends: list[bytes] = []

            def ended() -> bool:
                for each in (first, second):
                    with suppress(BlockingIOError):
                        ends.append(each.recv(100))
                return bool(ends)

            until(ended)
            assert ends[0][0] == 0x80 | CLOSE
            assert struct.unpack("!H", ends[0][2:4])[0] == 1013
            with opened(client, "a") as found:  # what is small goes on
                found.send(said("nack", {"positions": []}))
                assert heard(found)["type"] == "fieldfare.done"


def test_what_is_being_answered_counts_as_bodies_do(tmp_path):
    most = 1 << 20
    with served(tmp_path, bodies_max_bytes=most) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        with connect(client) as held, opened(client, "a") as found:
            held.sendall(POST + HEADERS + b"Content-Length: 900000\r\n\r\n" + b" " * 899_999)
            until(lambda: gateway.bodies.held_bytes == 899_999)
            found.send(said("terminate", {"positions": [], "reason": "x" * 300_000}))
            answer = heard(found)["data"]
            assert (answer["status"], answer["why"]) == (429, "bodies")
            found.send(said("terminate", {"positions": [], "reason": "x" * 100_000}))
            assert heard(found)["type"] == "fieldfare.done"
        until(lambda: gateway.bodies.held_bytes == 0)


WRONG = {
    "no UTF-8": (frame(TEXT, b"\xff\xfe") * 3, 1007),
    "a kind that there is not": (b"\x8f\x80\0\0\0\0" * 3, 1002),
    "no mask": (b"\x81\x02{}", 1002),
    "a long ping": (b"\x89\xfe\x00\xff\0\0\0\0" + b"x" * 255, 1002),
    "a code that there is not": (frame(CLOSE, struct.pack("!H", 99)), 1002),
    "64 MiB": (b"\x81\xff" + struct.pack("!Q", 64 << 20) + b"\0\0\0\0" + b"x" * 100, 1009),
}


@pytest.mark.parametrize(("wrong", "code"), WRONG.values(), ids=WRONG.keys())
def test_nonsense_closes_its_socket_and_is_not_written_to_the_log(tmp_path, wrong, code, quiet):
    """In the middle of a backlog each ended in a traceback."""
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        with raw(client) as found:
            found.sendall(wrong)
            assert closed_with(found) == code
        publish(client, *(event(number, {"x": 1, "text": "x" * 500}) for number in range(2_000)))
        NaivePipeline(gateway).step()
        for _ in range(5):
            with raw(client, f"{PATH}?window=20000") as found:
                found.recv(1000)
                found.sendall(wrong)
                _read_all(found)
        until(lambda: gateway.deliveries.connected == 0)


def test_a_revoked_key_ends_a_socket_though_what_was_said_on_it_is_still_being_done(tmp_path, monkeypatch):
    """While the disk hung, a client whose key was revoked still got messages."""
    admin = tmp_path / "admin.key"
    admin.write_text("k" * 40)
    with served(tmp_path / "data", admin_key_file=admin) as (gateway, client):
        client.headers["authorization"] = "Bearer " + "k" * 40
        subscribe(client, "a", "data.x = 1")
        made = client.post("/v1/keys", json={"space": "default", "rights": ["subscribe"]}).json()
        hangs, goes_on = threading.Event(), threading.Event()
        save = gateway.writer.save_cursors

        async def slow(marks):
            hangs.set()
            await asyncio.to_thread(goes_on.wait, 2 * DEADLINE_S)
            await save(marks)

        monkeypatch.setattr(gateway.writer, "save_cursors", slow)
        key = {"Authorization": f"Bearer {made['key']}"}
        try:
            with opened(client, "a", additional_headers=key) as found:
                publish(client, event(1, {"x": 1}))
                NaivePipeline(gateway).step()
                place = heard(found)["fieldfareposition"]
                found.send(said("ack", {"positions": [place]}))
                assert hangs.wait(DEADLINE_S)
                client.delete(f"/v1/keys/{made['id']}").raise_for_status()
                until(lambda: gateway.deliveries.connected == 0)
        finally:
            goes_on.set()


@pytest.mark.parametrize("error", [EventLogError("record 0 is broken"), OSError(24, "Too many open files")])
def test_when_storage_fails_a_socket_is_closed_with_a_reason(tmp_path, monkeypatch, caplog, error):
    """It was closed without one, and the log had a traceback each time that its reader reconnected."""
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        publish(client, event(1, {"x": 1}))
        NaivePipeline(gateway).step()

        async def broken(*_):
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(gateway.records, "compose", broken)
            with raw(client) as found:
                assert closed_with(found) == 1011
        until(lambda: gateway.deliveries.connected == 0)
        told = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert [(record.getMessage(), record.exc_info) for record in told] == [
            (f"storage failed: {error}", None)
        ]
        with opened(client, "a") as again:
            assert heard(again)["fieldfareposition"] == "0-0-0"


def test_an_opened_or_closed_socket_does_not_wake_all_others(tmp_path, monkeypatch):
    """With four thousand sockets on one subscription, deleting it blocked all others for half a minute."""
    count, looks = 100, 0
    has_message = Delivery.has_message

    def counted(*given):
        nonlocal looks
        looks += 1
        return has_message(*given)

    monkeypatch.setattr(Delivery, "has_message", counted)
    with served(tmp_path) as (gateway, client), ExitStack() as sockets:
        subscribe(client, "a", "data.x = 1")
        found = [sockets.enter_context(raw(client)) for _ in range(count)]
        for each in found[: count // 2]:
            each.close()
        until(lambda: gateway.deliveries.connected == count // 2)
        client.delete(f"{SUBSCRIPTIONS}/a").raise_for_status()
        until(lambda: gateway.deliveries.connected == 0)
    assert looks <= 10 * count


def test_a_socket_that_was_closed_does_not_stay_because_nobody_reads_the_end(tmp_path, made):
    """With little before it in the way, the close waited for ever, and held its connection."""
    with served(tmp_path, loop="asyncio", send_timeout_s=0.5) as (_, client):
        subscribe(client, "a", "data.x = 1")
        with raw(client, buffer_bytes=4096) as found:
            transport = made[0].transport
            transport.set_write_buffer_limits(high=1 << 30)  # a client that never pauses the writer
            while not transport.get_write_buffer_size():
                found.sendall(frame(PING, b"x" * 120) * 100)
            client.delete(f"{SUBSCRIPTIONS}/a").raise_for_status()
            until(lambda: made[0].disconnected)
