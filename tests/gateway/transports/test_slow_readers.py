"""Slow readers get everything, in order; readers that read nothing are sent little and disconnected.

This is tested on every transport, because each has different buffers between the gateway and the client.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_support import DEADLINE_S, SUBSCRIPTIONS, NaivePipeline, event, served, until
from test_streams import Stream, publish, subscribe

from fieldfare.gateway.admission import connections, unread
from fieldfare.gateway.admission.connections import Connection
from fieldfare.gateway.admission.unread import WRITTEN_AHEAD_BYTES

STREAM = "GET {path}/stream?window=20000&ack_deadline_s=600 HTTP/1.1\r\nHost: localhost\r\n\r\n"
SOCKET = (
    "GET {path}/websocket?window=20000&ack_deadline_s=600 HTTP/1.1\r\nHost: localhost\r\n"
    "Connection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
ASK_ONCE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
TEXT = 1
LAST = "the last one"

Message = tuple[str, int]
"""A position, and the number of an event."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is missing")
    folder = tmp_path_factory.mktemp("tls")
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    named = ["-keyout", "server.pem", "-out", "server.crt", "-subj", "/CN=localhost", "-days", "2"]
    subprocess.run([*made, *named], cwd=folder, check=True, capture_output=True)
    both = folder / "server.pem"
    both.write_text(both.read_text() + (folder / "server.crt").read_text())
    return both


@pytest.fixture(params=["plain", "tls"])
def tls(request: pytest.FixtureRequest) -> dict[str, str]:
    """The settings of a gateway with TLS, or of one without."""
    if request.param == "plain":
        return {}
    return {"tls_cert": str(request.getfixturevalue("certificate"))}


@contextmanager
def opened(client: httpx.Client, asking: str, buffer_bytes: int) -> Iterator[socket.socket]:
    """A connection with a small system buffer, on which the subscription `a` is read."""
    plain = socket.socket()
    with closing(plain):
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        plain.settimeout(DEADLINE_S)
        plain.connect((client.base_url.host, client.base_url.port))
        found = plain
        if client.base_url.scheme == "https":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            found = context.wrap_socket(plain)
        with closing(found):
            found.sendall(asking.format(path=f"{SUBSCRIPTIONS}/a").encode())
            yield found


def read(found: socket.socket, size_bytes: int, pause_s: float) -> bytes:
    """Read everything up to the last event, a number of bytes at a time, with a pause before each."""
    data = bytearray()
    while LAST.encode() not in data[-2 * size_bytes :]:
        more = found.recv(size_bytes)
        assert more, f"cut off after {len(data)} bytes"
        data += more
        time.sleep(pause_s)
    return bytes(data)


def messages(asking: str, data: bytes) -> list[Message]:
    return _of_stream(data) if asking is STREAM else list(_of_socket(data.partition(b"\r\n\r\n")[2]))


def _of_stream(data: bytes) -> list[Message]:
    # The framing of the answer's chunks is between messages, and is skipped.
    found = re.findall(rb"id: (\S+)\ndata: (.*)\n", data)
    return [(position.decode(), json.loads(text)["data"]["number"]) for position, text in found]


def _of_socket(data: bytes) -> Iterator[Message]:
    at = 0
    while at + 2 <= len(data):
        opcode, size = data[at] & 15, data[at + 1]
        at += 2
        if size >= 126:
            width = 2 if size == 126 else 8
            (size,) = struct.unpack("!H" if width == 2 else "!Q", data[at : at + width])
            at += width
        if opcode == TEXT and at + size <= len(data):
            text = json.loads(data[at : at + size])
            yield text["fieldfareposition"], text["data"]["number"]
        at += size


def numbered(count: int, text: str) -> list[dict]:
    """Events, of which the last one ends with a special text."""
    return [
        event(number, {"x": 1, "number": number, "text": text + LAST * (number == count - 1)})
        for number in range(count)
    ]


@pytest.mark.parametrize("asking", [STREAM, SOCKET], ids=["stream", "socket"])
def test_a_slow_reader_gets_a_whole_backlog_in_order(tmp_path, tls, asking):
    """Five megabytes, of which the system takes 32 KiB ahead."""
    count = 5_000
    with served(tmp_path, **tls) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        events = numbered(count, "y" * 900)
        for start in range(0, count, 500):
            publish(client, *events[start : start + 500])
        NaivePipeline(gateway).step()
        with opened(client, asking, 32 << 10) as found:
            data = read(found, 16 << 10, 0.001)
        positions = [f"0-{record}-{index}" for record in range(count // 500) for index in range(500)]
        assert messages(asking, data) == list(zip(positions, range(count), strict=True))
        assert gateway.metrics.delivered_total == count


@pytest.mark.parametrize("asking", [STREAM, SOCKET], ids=["stream", "socket"])
def test_a_reader_that_keeps_reading_is_not_disconnected_during_a_long_event(tmp_path, tls, asking):
    """On a slow line an event of a mebibyte takes minutes: the reader was disconnected in the middle, each
    time."""
    with served(tmp_path, send_timeout_s=3.0, heartbeat_s=0.2, **tls) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        publish(client, *numbered(1, "y" * 900_000))
        NaivePipeline(gateway).step()
        with opened(client, asking, 16 << 10) as found:
            begun_s = time.monotonic()
            data = read(found, 16 << 10, 0.07)
            # Longer than the limit; what the systems hold in the end, and a ping behind it, takes less.
            assert time.monotonic() - begun_s > 1.2 * 3.0
        assert messages(asking, data) == [("0-0-0", 0)]


@pytest.mark.parametrize("asking", [STREAM, SOCKET], ids=["stream", "socket"])
def test_a_reader_that_reads_nothing_is_sent_little_and_disconnected(tmp_path, tls, asking):
    """With TLS half a mebibyte more was written for each of them, and encoded."""
    count = 4_000
    with served(tmp_path, send_timeout_s=3, **tls) as (gateway, client):
        for id in ("a", "reader"):
            subscribe(client, id, "data.x = 1")
        publish(client, *numbered(count, "y" * 1_000))
        with opened(client, asking, 4_096):
            until(lambda: gateway.deliveries.connected == 1)
            NaivePipeline(gateway).step()
            path = f"{SUBSCRIPTIONS}/reader/stream"
            with client.stream("GET", path, params={"window": count}) as response:
                Stream(response).messages(count)
            assert gateway.metrics.delivered_total - count < count / 5
            until(lambda: gateway.deliveries.connected == 0)


def test_a_reader_that_keeps_reading_is_not_disconnected_when_files_run_out(tmp_path, monkeypatch):
    """The bytes that its system had accepted were compared with those in a buffer, and seemed to be none."""
    looks, dup = itertools.count(), os.dup

    def dup_or_not(descriptor: int) -> int:
        if next(looks) % 2:
            raise OSError(errno.EMFILE, "too many open files")
        return dup(descriptor)

    with served(tmp_path, send_timeout_s=1.0, heartbeat_s=0.2) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        publish(client, *numbered(1, "y" * 900_000))
        NaivePipeline(gateway).step()
        monkeypatch.setattr(unread.os, "dup", dup_or_not)
        with opened(client, STREAM, 16 << 10) as found:
            data = read(found, 16 << 10, 0.07)
        assert messages(STREAM, data) == [("0-0-0", 0)] and next(looks) > 2


@pytest.mark.parametrize("last", ["", "Connection: close\r\n"], ids=["kept", "closed"])
def test_an_unread_end_of_an_answer_does_not_keep_a_connection_open(tmp_path, monkeypatch, last):
    """It was only closed when everything was read, which never happened: a thousand of them blocked all
    others."""
    made: list[Connection] = []
    connection_made = Connection.connection_made

    def noted(self: Connection, transport: Any) -> None:
        made.append(self)
        connection_made(self, transport)

    monkeypatch.setattr(Connection, "connection_made", noted)
    with served(tmp_path, keep_alive_s=2.0, send_timeout_s=3.0) as (_, client), socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        plain.connect((client.base_url.host, client.base_url.port))
        until(lambda: made)
        (connection,) = made

        def answered() -> bool:
            return connection.cycle is not None and connection.cycle.response_complete

        def ask(more: str = "") -> None:
            before = connection.cycle
            plain.sendall(f"GET /metrics HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode())
            until(lambda: connection.cycle is not before and answered())

        ask()
        while not connection.transport.get_write_buffer_size():
            ask()
        if last:
            ask(last)
        assert 0 < connection.transport.get_write_buffer_size() < WRITTEN_AHEAD_BYTES
        until(lambda: connection not in connection.connections)


@pytest.mark.parametrize("loop", ["asyncio", "auto"])
def test_a_client_that_left_before_it_is_disconnected_causes_no_error(
    tmp_path, tls, loop, monkeypatch, caplog
):
    monkeypatch.setattr(connections, "LINGER_S", 0.1)
    with served(tmp_path, loop=loop, **tls) as (_, client):
        for asked in (b"garbage\r\n\r\n", ASK_ONCE):
            with opened(client, "", 16 << 10) as found:
                found.sendall(asked)
                assert found.recv(8) == b"HTTP/1.1"
        time.sleep(0.2)
    assert not caplog.records
