"""The proxy that stands for a broker with a slow subscriber: which answers it holds back, and until when.

The subscriber either sleeps for longer than any test lasts, or reads within milliseconds. No test depends on
how long that takes: they check what must be true at each answer.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fieldfare_lab.slow_broker import SlowBroker, Subscriber

ASLEEP = Subscriber(read_s=0.001, vacation_s=1e9)
AWAKE = Subscriber(read_s=0.005, vacation_s=0.005)
WAIT_S = 30.0


class Gateway(ThreadingHTTPServer):
    """Answers requests to /refused with 429 and all others with 200, and remembers their bodies."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []
        self.has_new = threading.Condition()

    def wait_for(self, count: int) -> None:
        with self.has_new:
            assert self.has_new.wait_for(lambda: len(self.bodies) >= count, WAIT_S)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Gateway

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(429 if self.path == "/refused" else 200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
        with self.server.has_new:
            self.server.bodies.append(body)
            self.server.has_new.notify_all()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()


class Delivered:
    """The events that the subscriber has read."""

    def __init__(self) -> None:
        self.numbers: list[object] = []
        self._has_new = threading.Condition()

    def __call__(self, data: dict[str, object]) -> None:
        with self._has_new:
            self.numbers.append(data["n"])
            self._has_new.notify_all()

    def wait_for(self, count: int) -> None:
        with self._has_new:
            assert self._has_new.wait_for(lambda: len(self.numbers) >= count, WAIT_S)


def send(connection: HTTPConnection, sequence: int, numbers: range, path: str = "/events") -> None:
    body = b"".join(json.dumps({"data": {"n": n}}).encode() + b"\n" for n in numbers)
    headers = {"Fieldfare-Producer": "p", "Fieldfare-Sequence": str(sequence)}
    connection.request("POST", path, body, headers)


def status(connection: HTTPConnection) -> int:
    answer = connection.getresponse()
    answer.read()
    return answer.status


def connect(broker: SlowBroker) -> HTTPConnection:
    return HTTPConnection("127.0.0.1", broker.port, timeout=WAIT_S)


def test_an_answer_is_held_back_until_each_message_has_a_place(gateway: Gateway) -> None:
    """Three places: a request of three is answered; one more message waits until the broker closes."""
    broker = SlowBroker(gateway.server_port, ASLEEP, 3, Delivered())
    with closing(connect(broker)) as first, closing(connect(broker)) as second:
        send(first, 1, range(3))
        assert status(first) == 200
        send(second, 2, range(3, 4))
        gateway.wait_for(2)
        # Refused requests need no place; these show that the broker had time to answer the second one.
        for number in range(20):
            send(first, 3 + number, range(9), "/refused")
            assert status(first) == 429
        broker.close()
        with pytest.raises((HTTPException, OSError)):
            status(second)
    assert len(gateway.bodies) == 22, "requests are passed on at once"


def test_a_repeated_request_needs_no_places(gateway: Gateway) -> None:
    """All places are taken, but the messages of the repeat have theirs."""
    broker = SlowBroker(gateway.server_port, ASLEEP, 3, Delivered())
    with closing(broker), closing(connect(broker)) as connection:
        for _ in range(2):
            send(connection, 1, range(3))
            assert status(connection) == 200


def test_no_more_messages_are_answered_than_read_or_in_the_buffer(gateway: Gateway) -> None:
    delivered = Delivered()
    broker = SlowBroker(gateway.server_port, AWAKE, 3, delivered)
    with closing(broker), closing(connect(broker)) as connection:
        for start in range(0, 40, 2):
            send(connection, start, range(start, start + 2))
            assert status(connection) == 200
            assert start + 2 - len(delivered.numbers) <= 3
        delivered.wait_for(40)
    assert delivered.numbers == list(range(40)), "in order, and each once"


def test_a_request_with_more_messages_than_places_is_answered_when_some_are_read(gateway: Gateway) -> None:
    delivered = Delivered()
    broker = SlowBroker(gateway.server_port, AWAKE, 3, delivered)
    with closing(broker), closing(connect(broker)) as connection:
        send(connection, 1, range(10))
        assert status(connection) == 200
        assert len(delivered.numbers) >= 7
        delivered.wait_for(10)
    assert delivered.numbers == list(range(10))
