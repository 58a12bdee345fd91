"""A webhook receiver on this machine with configurable answers, and an independent check of signatures."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gateway_support import SUBSCRIPTIONS, Running, event, until_async

from fieldfare.delivery.breaker import BreakerState
from fieldfare.delivery.keys import offset_of

LOOPBACK = {"webhook_allow": "127.0.0.1"}
SECRETS = ("whsec_" + base64.b64encode(bytes(range(32))).decode(), "whsec_" + "QUJD" * 8)

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Got:
    """A request, and its events in any mode."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at_s: float = field(default_factory=time.monotonic)

    @property
    def events(self) -> list[dict[str, Any]]:
        kind = self.headers.get("content-type", "")
        if kind.startswith("application/cloudevents-batch+json"):
            return list(json.loads(self.body))
        if kind.startswith("application/cloudevents+json"):
            return [json.loads(self.body)]
        named = {name[3:]: value for name, value in self.headers.items() if name.startswith("ce-")}
        return [named | {"datacontenttype": kind, "data": self.body}]

    @property
    def ids(self) -> list[str]:
        return [each["id"] for each in self.events]


def allowing(got: Got) -> Answer:
    return 200, {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "*"}, b""


class Receiver:
    """Answers POST as ``answers`` say, one after the other, then 204; OPTIONS as ``handshake`` says."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.got: list[Got] = []
        self.asked: list[Got] = []
        self.answers: queue.SimpleQueue[Callable[[Got], Answer]] = queue.SimpleQueue()
        self.always: Callable[[Got], Answer] | None = None
        self.handshake: Callable[[Got], Answer] = allowing
        self.under_way = self.under_way_most = 0
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_OPTIONS(self) -> None:
                got = self._read()
                receiver.asked.append(got)
                self._answer(receiver.handshake(got))

            def do_POST(self) -> None:
                got = self._read()
                if len(got.body) < int(self.headers["content-length"]):
                    self.close_connection = True  # who sent it was killed
                    return
                with receiver._lock:
                    receiver.got.append(got)
                    receiver.under_way += 1
                    receiver.under_way_most = max(receiver.under_way_most, receiver.under_way)
                try:
                    answer = receiver._next()(got)
                finally:
                    with receiver._lock:
                        receiver.under_way -= 1
                self._answer(answer)

            def _read(self) -> Got:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                return Got(self.command, self.path, headers, body)

            def _answer(self, answer: Answer) -> None:
                status, headers, body = answer
                if status == 0:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                with contextlib.suppress(OSError):
                    self.send_response_only(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    if status != 204:
                        self.send_header("content-length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{self.port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def _next(self) -> Callable[[Got], Answer]:
        if self.always is not None:
            return self.always
        try:
            return self.answers.get_nowait()
        except queue.Empty:
            return lambda got: (204, {}, b"")

    def answer(self, *statuses: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Set the answers to the next requests."""
        for status in statuses:
            self.answers.put(lambda got, status=status: (status, headers or {}, body))

    @property
    def ids(self) -> list[str]:
        """The ids of all received events, in order."""
        return [id for got in list(self.got) for id in got.ids]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver(tls)
    try:
        yield receiver
    finally:
        receiver.close()


def verify(got: Got, secret: str) -> None:
    """Verify a signature as the Standard Webhooks specification tells a receiver, written from its text
    alone."""
    key = base64.b64decode(secret.split("_", 1)[1])
    id, at = got.headers["webhook-id"], got.headers["webhook-timestamp"]
    assert abs(time.time() - int(at)) < 300
    signed = f"{id}.{at}.".encode() + got.body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    given = [each.split(",", 1) for each in got.headers["webhook-signature"].split(" ")]
    assert any(version == "v1" and hmac.compare_digest(each, expected) for version, each in given)


async def pushed(
    r: Running, url: str, id: str = "a", *, push: dict[str, Any] | None = None, **delivery: Any
) -> dict:
    """A subscription for events with x = 1, pushed to an address."""
    settings = {"push": {"url": url} | (push or {}), **delivery}
    answer = await r.client.put(f"{SUBSCRIPTIONS}/{id}", json={"filter": "data.x = 1", "delivery": settings})
    assert answer.status_code in (200, 201), answer.text
    return dict(answer.json())


async def described(r: Running, id: str = "a") -> dict[str, Any]:
    answer = await r.client.get(f"{SUBSCRIPTIONS}/{id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def change(r: Running, id: str = "a", **settings: Any) -> dict[str, Any]:
    answer = await r.client.patch(f"{SUBSCRIPTIONS}/{id}", json={"delivery": settings})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def is_broken(r: Running, id: str = "a") -> bool:
    """Whether the circuit breaker of a subscription's address or of its server is open."""
    pushes = [each for each in r.gateway.pushes._pushes.values() if each.subscription.id == id]
    return any(
        each.breaker.state is BreakerState.OPEN for push in pushes for each in (push.gate, push.gate.server)
    )


async def some(r: Running, count: int, first: int = 0) -> list[str]:
    """Publish and match a number of matching events; return their positions."""
    offset = (await r.publish(*(event(first + i, {"x": 1}) for i in range(count))))["offset"]
    r.pipeline.step()
    return [f"0-{offset}-{i}" for i in range(count)]


async def settled(r: Running) -> None:
    """Wait until all that matched is acked or given up, and that is durable."""
    end = r.gateway.match_log.end(r.gateway.log.start())

    def is_settled() -> bool:
        deliveries = r.gateway.deliveries
        for delivery in deliveries.loaded.values():
            deliveries._scheduler.bring(delivery)
            is_read = all(
                offset_of(partition.cursor_key) >= end for partition in delivery.partitions.values()
            )
            if not (is_read and delivery.is_saved):
                return False
        return bool(deliveries.loaded)

    await until_async(is_settled)
