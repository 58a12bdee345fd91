"""A minimal service with the HTTP API that fails on command.

It does what a real service cannot be told to do: append and then drop the connection, refuse with 429 or 500
a chosen number of times, cut a stream in the middle. Every event matches every subscription.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

HEARTBEAT_S = 0.2
HOLD_S = 0.3
"""How long a request waits for the one that it follows."""


@dataclass
class Fault:
    """A fault for the next request of a kind."""

    kind: str  # "drop_before", "drop_after", "status"
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b'{"title": "Trouble", "detail": "told to fail"}'


class FaultyService:
    """The service's state, and the verbs by which a test moves it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.records: list[list[bytes]] = []
        self.appended: dict[tuple[str, int], tuple[int, dict[str, Any]]] = {}
        self.duplicates = 0
        self.subscriptions: dict[str, dict[str, Any]] = {}
        self.settings: dict[str, dict[str, Any]] = {}
        """Of the delivery of each subscription."""
        self.acked: dict[str, set[str]] = {}
        self.nacked: dict[str, deque[str]] = {}
        self.faults: dict[str, deque[Fault]] = {"events": deque(), "ack": deque(), "stream": deque()}
        self.requests: list[tuple[str, str]] = []
        self.events_delay_s = 0.0  # How long each request with events is held up before it is answered.
        self.answers_events = threading.Event()  # While it is clear, requests with events get no answer.
        self.answers_events.set()
        self.most_events: int | None = None  # More than that in a request are refused with 413.
        self.most_taken = 0
        self.keeps_order = True  # An older service has never heard of what a request follows.
        self.early = 0  # How many came before what they follow.
        self.events_at_once = 0
        self.most_events_at_once = 0
        self.connections = 0
        self.cut_streams = 0
        self.closing = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _make_handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FaultyService:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.closing = True
        with self.changed:
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def fail_next(self, what: str, *faults: Fault) -> None:
        """The next requests of this kind ("events", "ack", "stream") meet these faults, in this order."""
        self.faults[what].extend(faults)

    def cut_all_streams(self) -> None:
        """Break every open stream's connection."""
        with self.changed:
            self.cut_streams += 1
            self.changed.notify_all()

    def events(self) -> list[dict[str, Any]]:
        """Everything in the log, in order."""
        with self.changed:
            return [json.loads(line) for record in self.records for line in record]

    def wait_for(self, condition: Any, timeout_s: float = 120.0) -> None:
        """Wait until something is true of the service."""
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), "the service did not get there in time"

    def wait_for_requests(self, path: str, count: int) -> None:
        """Wait until ``count`` requests for a path have arrived."""
        self.wait_for(lambda: sum(each == path for _, each in self.requests) >= count)

    def append(
        self, producer: str | None, sequence: str | None, lines: list[bytes], follows: str | None = None
    ) -> tuple[int, dict[str, Any]]:
        key = (producer or "", int(sequence or 0))
        if not self.keeps_order:
            follows = None
        with self.changed:
            if follows is not None:
                self.changed.wait_for(lambda: self.newest(key[0]) >= int(follows), HOLD_S)
            if producer is not None and key in self.appended:
                self.duplicates += 1
                status, body = self.appended[key]
                return status, body | {"duplicate": True}
            newest = self.newest(key[0])
            if follows is not None and newest != int(follows):
                self.early += 1
                problem = "sequence-passed" if newest > key[1] else "out-of-order"
                return 409, {
                    "type": f"urn:fieldfare:problem:{problem}",
                    "title": "Conflict",
                    "newest": newest,
                }
            offset = len(self.records)
            good, accepted, refused = [], [], []
            for index, line in enumerate(lines):
                if (reason := _find_fault(line)) is None:
                    accepted.append({"index": index, "position": f"0-{offset}-{len(good)}"})
                    good.append(line)
                else:
                    refused.append({"index": index, "detail": reason[0], "pointer": reason[1]})
            if not good:
                return 400, {"title": "No event is good", "detail": "all were refused", "refused": refused}
            self.records.append(good)
            body: dict[str, Any] = {"partition": 0, "offset": offset, "count": len(good), "stamp": 0}
            body["duplicate"] = False
            if follows is not None:
                body["follows"] = int(follows)
            status = 200
            if refused:
                body |= {"title": "Some events were refused", "accepted": accepted, "refused": refused}
                status = 207
            self.appended[key] = (status, body)
            self.changed.notify_all()
            return status, body

    def newest(self, producer: str) -> int:
        """The newest sequence of a producer."""
        return max((sequence for name, sequence in self.appended if name == producer), default=-1)

    def waiting(self, id: str) -> list[tuple[str, bytes]]:
        """Return the messages without an ack."""
        acked = self.acked[id]
        return [
            (position, line)
            for offset, record in enumerate(self.records)
            for index, line in enumerate(record)
            if (position := f"0-{offset}-{index}") not in acked
        ]

    def put(self, id: str, filter: str, dialect: str) -> dict[str, Any]:
        with self.changed:
            value = {
                "id": id,
                "space": "default",
                "filter": filter,
                "dialect": dialect,
                "revision": len(self.requests),
                "valid_from": f"0-{len(self.records)}-0",
            }
            self.subscriptions[id] = value
            self.acked.setdefault(id, set())
            self.nacked.setdefault(id, deque())
            self.changed.notify_all()
            return value


def _find_fault(line: bytes) -> tuple[str, str] | None:
    try:
        event = json.loads(line)
    except ValueError as error:
        return f"not JSON: {error}", ""
    for name in ("specversion", "id", "source", "type"):
        if name not in event:
            return f"the attribute {name} is missing", f"/{name}"
    return None


def check_filter(text: str) -> dict[str, Any] | None:
    """The problem with a filter; this service refuses those that contain "???"."""
    if "???" not in text:
        return None
    return {
        "title": "The filter has an error",
        "detail": "expected a value, found '???'",
        "line": 1,
        "column": text.index("???") + 1,
        "hint": "write a number or a string in single quotes",
    }


class Handler(BaseHTTPRequestHandler):
    service: FaultyService
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 65536

    def setup(self) -> None:
        super().setup()
        self.service.connections += 1

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            self.wfile = io.BytesIO()  # The connection was dropped on purpose.

    def log_message(self, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        self.route("GET")

    def do_POST(self) -> None:
        self.route("POST")

    def do_PUT(self) -> None:
        self.route("PUT")

    def do_DELETE(self) -> None:
        self.route("DELETE")

    def route(self, method: str) -> None:
        parts = urlsplit(self.path)
        steps = [unquote(step) for step in parts.path.strip("/").split("/")]
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        with self.service.changed:
            self.service.requests.append((method, self.path))
            self.service.changed.notify_all()
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if steps == ["v1", "stats"]:
            return self.answer(200, {"subscriptions": len(self.service.subscriptions)})
        if steps == ["v1", "spaces"]:
            return self.spaces(method, body)
        if len(steps) < 4 or steps[2] != "default":
            return self.answer(404, {"title": "Unknown space", "detail": f"there is no space {steps[2:3]}"})
        if steps[3] == "events":
            return self.events(body)
        if steps[3] == "quotas":
            given = json.loads(body) if body else {"subscriptions": 10_000}
            limits = {"events_per_s": None, "subscriptions": 10_000}
            return self.answer(200, {"limits": limits, "used": {"subscriptions": 3}, "set": given})
        if len(steps) == 4:
            return self.collection(method, body, query)
        return self.subscription(method, steps[4], steps[5] if len(steps) > 5 else "", body, query)

    def spaces(self, method: str, body: bytes) -> None:
        if method == "POST":
            return self.answer(201, {"name": json.loads(body)["name"]})
        return self.answer(200, {"spaces": [{"name": "default"}]})

    def events(self, body: bytes) -> None:
        with self.service.changed:
            self.service.events_at_once += 1
            self.service.most_events_at_once = max(
                self.service.most_events_at_once, self.service.events_at_once
            )
        self.service.answers_events.wait(120)
        if self.service.events_delay_s:
            time.sleep(self.service.events_delay_s)
        with self.service.changed:  # Before the answer: the client may send the next request at once.
            self.service.events_at_once -= 1
        self.answer_events(body)

    def answer_events(self, body: bytes) -> None:
        fault = self.service.faults["events"].popleft() if self.service.faults["events"] else None
        if fault is not None and fault.kind == "drop_before":
            return self.drop()
        if fault is not None and fault.kind == "status":
            return self.answer_raw(fault.status, fault.body, fault.headers)
        producer, sequence, follows = (
            self.headers.get(f"fieldfare-{name}") for name in ("producer", "sequence", "follows")
        )
        lines = body.split(b"\n")[:-1]
        if self.service.most_events is not None and len(lines) > self.service.most_events:
            return self.answer(413, {"title": "Too large", "detail": "Too many events in a request"})
        self.service.most_taken = max(self.service.most_taken, len(lines))
        status, value = self.service.append(producer, sequence, lines, follows)
        if fault is not None:
            return self.drop()
        return self.answer(status, value)

    def collection(self, method: str, body: bytes, query: dict[str, str]) -> None:
        if method == "GET":
            ids = sorted(id for id in self.service.subscriptions if id > query.get("after", ""))
            page = ids[: int(query["limit"])]
            more = page[-1] if len(ids) > len(page) else None
            return self.answer(
                200, {"subscriptions": [self.service.subscriptions[id] for id in page], "next": more}
            )
        value = json.loads(body)
        if "subscriptions" not in value:
            id = value.get("id") or f"sub-{len(self.service.subscriptions):08x}"
            if id in self.service.subscriptions:
                return self.answer(409, {"title": "It exists", "detail": f"there is a subscription {id}"})
            return self.store(201, id, value)
        refused = []
        for index, item in enumerate(value["subscriptions"]):
            problem = check_filter(item["filter"])
            held = self.service.subscriptions.get(item.get("id") or "")
            if not value.get("replace", True) and held and held["filter"] != item["filter"]:
                problem = {"detail": f"there is a subscription {item['id']!r} with another filter"}
            if problem is not None:
                refused.append({"index": index, "id": item.get("id")} | problem)
            else:
                self.service.put(item.get("id") or f"bulk-{index}", item["filter"], item["dialect"])
        return self.answer(200, {"created": len(value["subscriptions"]) - len(refused), "refused": refused})

    def store(self, status: int, id: str, value: dict[str, Any]) -> None:
        problem = check_filter(value["filter"])
        if problem is not None:
            return self.answer(400, problem)
        made = self.service.put(id, value["filter"], value.get("dialect", "sql"))
        return self.answer(
            status, made | {"delivery": self.service.settings.setdefault(id, value.get("delivery", {}))}
        )

    def subscription(self, method: str, id: str, verb: str, body: bytes, query: dict[str, str]) -> None:
        if method == "PUT":
            return self.store(200, id, json.loads(body))
        if id not in self.service.subscriptions:
            return self.answer(
                404, {"title": "Unknown subscription", "detail": f"there is no subscription {id}"}
            )
        if method == "DELETE":
            with self.service.changed:
                del self.service.subscriptions[id]
                self.service.changed.notify_all()
            return self.answer(204, None)
        if verb == "stream":
            return self.stream(id, int(query["window"]))
        if method == "GET":
            if verb == "backlog":
                counts = dict.fromkeys(("pending", "in_flight", "redeliveries", "dead_letters", "readers"), 0)
                return self.answer(200, {**counts, "is_exact": True, "cursor": "0-0-0", "oldest_s": None})
            return self.answer(200, self.service.subscriptions[id])
        value = json.loads(body)
        if verb == "pull":
            with self.service.changed:
                self.service.changed.wait_for(lambda: bool(self.service.waiting(id)), value["wait_s"])
                taken = self.service.waiting(id)[: value["max"]]
            messages = [{"position": at, "event": json.loads(line)} for at, line in taken]
            return self.answer(200, {"messages": messages})
        if self.service.faults["ack"]:
            fault = self.service.faults["ack"].popleft()
            return self.answer_raw(fault.status, fault.body, fault.headers)
        with self.service.changed:
            if verb == "nack":
                self.service.nacked[id].extend(value["positions"])
            else:
                self.service.acked[id].update(value["positions"])
            self.service.changed.notify_all()
        return self.answer(200, {"cursor": "0-0-0"})

    def stream(self, id: str, window: int) -> None:
        if self.service.faults["stream"]:
            fault = self.service.faults["stream"].popleft()
            return self.answer_raw(fault.status, fault.body, fault.headers)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(b": hello\n\n")
        self.wfile.flush()
        self.close_connection = True
        try:
            self.send_messages(id, window)
        except OSError:
            pass

    def send_messages(self, id: str, window: int) -> None:
        sent: set[str] = set()
        cuts = self.service.cut_streams
        while not self.service.closing:
            with self.service.changed:
                while self.service.nacked[id]:
                    sent.discard(self.service.nacked[id].popleft())
                if cuts != self.service.cut_streams:
                    return
                deleted = id not in self.service.subscriptions
                waiting = self.service.waiting(id)
                room = window - sum(at in sent for at, _ in waiting)
                fresh = [(at, line) for at, line in waiting if at not in sent][: max(room, 0)]
                if not fresh and not deleted:
                    self.service.changed.wait(HEARTBEAT_S)
            for at, line in fresh:
                sent.add(at)
                self.wfile.write(b"id: %s\ndata: %s\n\n" % (at.encode(), line))
            if deleted:
                self.wfile.write(b"event: deleted\ndata: {}\n\n")
            elif not fresh:
                self.wfile.write(b":\n\n")
            self.wfile.flush()
            if deleted:
                return

    def drop(self) -> None:
        self.close_connection = True
        self.connection.close()

    def answer(self, status: int, value: Any) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        self.answer_raw(status, body, {})

    def answer_raw(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        kind = "application/json" if status < 300 else "application/problem+json"
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


def _make_handler(service: FaultyService) -> type[BaseHTTPRequestHandler]:
    return type("ServiceHandler", (Handler,), {"service": service})


def wait_until(condition: Any, timeout_s: float = 120.0) -> None:
    """Wait until something is true of the client's side."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it did not become true in time"
        time.sleep(0.005)
