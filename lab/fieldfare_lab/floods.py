"""Floods: ways in which one space can load a service at the highest rate it can, ignoring answers.

Each runs in a separate process, at the lowest priority, in the space ``flood``, and never ends on its own:
`flooding` starts and kills it. ``benchmarks/neighbours.py`` measures the effect of each on another space;
``python -m tests.faults --attacks`` runs them together with its faults.
"""

from __future__ import annotations

import http.client
import itertools
import json
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

Address = tuple[str, int]

SPACE = "/v1/spaces/flood"
QUOTAS = {
    "events_per_s": 2_000.0,
    "bytes_per_s": 1_000_000.0,
    "matching_ms_per_s": 100.0,
    "changes_per_s": 200.0,
    "delivered_bytes_per_s": 4_000_000.0,
    "subscriptions": 20_000.0,
    "filter_cost": 10_000.0,
    "connections": 200.0,
}
"""Quotas that an operator would set for a space that is not trusted."""
JSON = {"content-type": "application/json"}
BATCH = {"content-type": "application/cloudevents-batch+json"}


def event(data: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": "1", "source": "/floods", "type": "t", "data": data}


class Asker:
    """A connection for one request after another; it is opened again when it breaks."""

    def __init__(self, address: Address) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=120)

    def ask(self, method: str, path: str, value: Any, headers: dict[str, str] = JSON) -> int:
        try:
            body = value if isinstance(value, bytes) else json.dumps(value)
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            self._connection.close()
            time.sleep(0.05)
            return 0


def flood_events(address: Address) -> None:
    body = json.dumps([event({"x": number, "text": "y" * 50}) for number in range(500)]).encode()
    asker = Asker(address)
    while True:
        asker.ask("POST", f"{SPACE}/events", body, BATCH)


def flood_filters(address: Address) -> None:
    asker = Asker(address)
    for number in itertools.count():
        filter = f"data.text LIKE '%a_{number}%' OR data.x LIKE '%_{number}_%'"
        asker.ask("PUT", f"{SPACE}/subscriptions/f{number % 3_000}", {"filter": filter})


def meet_filters(address: Address) -> None:
    asker = Asker(address)
    body = json.dumps([event({"x": "a1b2", "text": "abcdefgh" * 20})]).encode()
    while True:
        asker.ask("POST", f"{SPACE}/events", body, BATCH)
        time.sleep(0.05)


def flood_subscriptions(address: Address) -> None:
    asker, turn = Asker(address), 0
    while True:
        some = [{"id": f"s{number}", "filter": f"data.x = {turn + number}"} for number in range(1_000)]
        asker.ask("POST", f"{SPACE}/subscriptions", {"subscriptions": some})
        turn += 1


def flood_slow_readers(address: Address) -> None:
    asker, held = Asker(address), []
    some = [{"id": f"r{number}", "filter": "data.x >= 0"} for number in range(200)]
    asker.ask("POST", f"{SPACE}/subscriptions", {"subscriptions": some})
    for number in range(200):
        connection = socket.create_connection(address)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        path = f"{SPACE}/subscriptions/r{number}/stream?window=20000"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        held.append(connection)
    body = json.dumps([event({"x": 1, "text": "y" * 1_000})]).encode()
    while True:
        asker.ask("POST", f"{SPACE}/events", body, BATCH)
        time.sleep(0.02)


def flood_returning(address: Address) -> None:
    asker, path = Asker(address), f"{SPACE}/subscriptions/c{threading.get_ident()}"
    asker.ask("PUT", path, {"filter": "data.x >= 0"})
    body = json.dumps([event({"x": 1, "text": "y" * 1_000})] * 200).encode()
    asker.ask("POST", f"{SPACE}/events", body, BATCH)
    while True:
        with suppress(OSError), socket.create_connection(address, timeout=5) as stream:
            stream.sendall(f"GET {path}/stream?window=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            left_bytes = 1 << 20
            while left_bytes > 0 and (more := stream.recv(1 << 16)):
                left_bytes -= len(more)


def flood_early(address: Address) -> None:
    asker = Asker(address)
    producer = f"p{threading.get_ident()}"
    body = json.dumps([event({"x": number}) for number in range(20)]).encode()
    for number in itertools.count():
        follows = 10**9 if number % 100 == 99 else -1
        order = {"fieldfare-sequence": str(follows + 2), "fieldfare-follows": str(follows)}
        if number == 0:
            order = {"fieldfare-sequence": "9"}
        headers = BATCH | {"fieldfare-producer": producer} | order
        asker.ask("POST", f"{SPACE}/events", body, headers)


def flood_nested(address: Address) -> None:
    asker = Asker(address)
    for number in range(6):
        filter = f"ANY x IN data.a SATISFIES (ANY y IN data.a SATISFIES (x + y = {9_999_990 + number}))"
        asker.ask("PUT", f"{SPACE}/subscriptions/n{number}", {"filter": filter})
    body = json.dumps([event({"a": list(range(900))})]).encode()
    while True:
        asker.ask("POST", f"{SPACE}/events", body, BATCH)


def flood_conjunctions(address: Address) -> None:
    asker = Asker(address)
    for number in range(60):
        parts = [f"(data.a{k} LIKE '%a_{number}%' OR data.b{k} LIKE '%_{number}_%')" for k in range(4)]
        path = f"{SPACE}/subscriptions/c{number}"
        asker.ask("PUT", path, {"filter": " AND ".join(parts)})
    body = json.dumps([event({f"{name}{k}": "xab1" for k in range(4) for name in "ab"})] * 5).encode()
    while True:
        asker.ask("POST", f"{SPACE}/events", body, BATCH)
        time.sleep(1)


def flood_pattern(address: Address) -> None:
    asker = Asker(address)
    body = json.dumps([event({f"f{k}": f"p{k}x" for k in range(400)})] * 8).encode()
    for number in itertools.count():
        fields = {f"f{k}": [{"wildcard": f"*a{k}_{number}*b*"}, {"prefix": f"p{k}"}] for k in range(400)}
        some = {"filter": json.dumps({"data": fields}), "dialect": "eventbridge"}
        asker.ask("PUT", f"{SPACE}/subscriptions/p", some)
        asker.ask("POST", f"{SPACE}/events", body, BATCH)
        time.sleep(1)


def flood_levels(address: Address) -> None:
    """Nested patterns with many members, whose costs multiply, and filters with deeply nested parentheses."""
    asker = Asker(address)
    for number in itertools.count():
        pattern: Any = [{"prefix": "a"}]
        for level in range(10 + number % 40):
            pattern = {f"m{level}": pattern}
        some = {"filter": json.dumps({"data": pattern}), "dialect": "eventbridge"}
        asker.ask("PUT", f"{SPACE}/subscriptions/l{number % 50}", some)
        depth = 1 + number % 400
        asker.ask("POST", "/v1/filters:check", {"filter": "(" * depth + "data.x = 1" + ")" * depth})


def flood_tests(address: Address) -> None:
    """Tests of filters against a thousand events each, by clients that disconnect before the answer."""
    filter = "ANY x IN data.a SATISFIES (ANY y IN data.a SATISFIES (x + y = 5000))"
    events = [event({"a": list(range(100))})] * 1_000
    body = json.dumps({"filter": filter, "events": events}).encode()
    head = "POST /v1/filters:test HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    while True:
        with suppress(OSError), socket.create_connection(address, timeout=5) as connection:
            connection.sendall(request)
            time.sleep(0.1)


def flood_unfinished(address: Address) -> None:
    """Hundreds of connections with incomplete requests, opened again when they are closed."""
    held: list[socket.socket] = []
    beginnings = (
        b"POST /v1/spaces/flood/events HTTP/1.1\r\nHost: local",
        b"POST /v1/spaces/flood/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 1000\r\n\r\n{",
        b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nX: ",
    )
    for number in itertools.count():
        if len(held) == 500:
            held.pop(0).close()
        with suppress(OSError):
            connection = socket.create_connection(address, timeout=5)
            held.append(connection)
            connection.sendall(beginnings[number % len(beginnings)])
        time.sleep(0.005)


class _Refusing(BaseHTTPRequestHandler):
    """Answers every method with 501, quietly."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


def flood_push(address: Address) -> None:
    """A thousand subscriptions pushed to one server that refuses everything, with different queries."""
    asker = Asker(address)
    server = HTTPServer(("127.0.0.1", 0), _Refusing)
    port = server.server_port
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for first in range(0, 1_000, 100):
        some = [
            {
                "id": f"w{number}",
                "filter": "data.x >= 0",
                "push": {"url": f"http://127.0.0.1:{port}/hook?n={number}"},
            }
            for number in range(first, first + 100)
        ]
        asker.ask("POST", f"{SPACE}/subscriptions", {"subscriptions": some})
    body = json.dumps([event({"x": 1})]).encode()
    while True:
        asker.ask("POST", f"{SPACE}/events", body, BATCH)
        time.sleep(0.2)


FLOODS: dict[str, tuple[Callable[[Address], None], ...]] = {
    "events": (flood_events,) * 4,
    "filters": (flood_filters, meet_filters),
    "subscriptions": (flood_subscriptions,) * 2,
    "slow_readers": (flood_slow_readers,),
    "returning": (flood_returning,) * 20,
    "early": (flood_early,) * 50,
    "nested": (flood_nested,) * 4,
    "conjunctions": (flood_conjunctions,),
    "pattern": (flood_pattern,),
    "levels": (flood_levels,) * 2,
    "tests": (flood_tests,) * 4,
    "unfinished": (flood_unfinished,),
    "push": (flood_push,),
}
"""The floods by name; each function runs on its own connection."""


def flood(kind: str, address: Address) -> None:
    os.nice(19)
    threads = [threading.Thread(target=work, args=(address,)) for work in FLOODS[kind]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def flooding(kind: str, address: Address) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=flood, args=(kind, address), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()
