"""One space floods, another goes about its business: how much later does that one hear of its events?

    python benchmarks/neighbours.py --json

starts a service of its own. In the space `calm` 50 events are published a second, one by one, for one stream
(server-sent events) that gets them all. That is timed alone, and beside each kind of flood that the space
`flood` makes, as hard as it can, minding no answer:

events
    Batches of 500 events, on four connections.
filters
    Filters that the index hardly narrows are registered, as many as are taken; 20 events a second meet them.
subscriptions
    Bulk requests of 1,000 subscriptions each, put and replaced in turns, on two connections.
slow_readers
    50 events a second of 1 KiB match 200 streams that read nothing.
returning
    20 streams each read a mebibyte of what waits for them, break off and come back, and are given it again.
early
    Batches of 20 events that are to follow others (``Fieldfare-Follows``), on fifty connections: of a hundred
    one waits for what never comes, the others are behind what has come long ago.

nested
    Six filters with ANY inside ANY, and as many events of 900 elements as are taken.
conjunctions
    60 filters of 16 conjunctions that all may hold, and five events of 100 bytes a second.
pattern
    A pattern of 21 KB that is put again every second, and eight events a second for which it is a candidate.

It prints one JSON object: of each flood p99_alone_ms and p99_beside_ms, publish call to arrival, and their
ratio; and `worst_ratio`. Goal: 1.2. Both are medians over turns (``--turns``) of so many seconds: alone,
beside, beside, alone, and so on, so that what drifts is on both sides; `turns_alone_ms` and
`turns_beside_ms` show how much they differ. After a flood it is waited until all of it is matched, its space
is gone and the calm one has gone on for some seconds: what a flood leaves to be done would make the time
alone longer, and the ratio less.

The flooding space has the quotas that are printed as `quotas`: without (``--no-quotas``) who floods takes
what there is. All share one machine; whoever floods does so at the lowest priority (nice 19), so that it is
the service that is measured, and not who gets the processor first.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fieldfare.cli.demo.service import Service
from fieldfare.client import Client

Address = tuple[str, int]

CALM_EVENTS_PER_S = 50
WARM_S = 3.0
ARRIVAL_WAIT_S = 60.0
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
JSON = {"content-type": "application/json"}
BATCH = {"content-type": "application/cloudevents-batch+json"}


def event(data: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": "1", "source": "/neighbours", "type": "t", "data": data}


class Asker:
    """One connection on which is asked for one thing after the other; it is made again when it breaks."""

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


# The floods


def flood_events(address: Address) -> None:
    body = json.dumps([event({"x": number, "text": "y" * 50}) for number in range(500)]).encode()
    asker = Asker(address)
    while True:
        asker.ask("POST", "/v1/spaces/flood/events", body, BATCH)


def flood_filters(address: Address) -> None:
    asker = Asker(address)
    for number in itertools.count():
        filter = f"data.text LIKE '%a_{number}%' OR data.x LIKE '%_{number}_%'"
        asker.ask("PUT", f"/v1/spaces/flood/subscriptions/f{number % 3_000}", {"filter": filter})


def meet_filters(address: Address) -> None:
    asker = Asker(address)
    body = json.dumps([event({"x": "a1b2", "text": "abcdefgh" * 20})]).encode()
    while True:
        asker.ask("POST", "/v1/spaces/flood/events", body, BATCH)
        time.sleep(0.05)


def flood_subscriptions(address: Address) -> None:
    asker, turn = Asker(address), 0
    while True:
        some = [{"id": f"s{number}", "filter": f"data.x = {turn + number}"} for number in range(1_000)]
        asker.ask("POST", "/v1/spaces/flood/subscriptions", {"subscriptions": some})
        turn += 1


def flood_slow_readers(address: Address) -> None:
    asker, held = Asker(address), []
    some = [{"id": f"r{number}", "filter": "data.x >= 0"} for number in range(200)]
    asker.ask("POST", "/v1/spaces/flood/subscriptions", {"subscriptions": some})
    for number in range(200):
        connection = socket.create_connection(address)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        path = f"/v1/spaces/flood/subscriptions/r{number}/stream?window=20000"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        held.append(connection)
    body = json.dumps([event({"x": 1, "text": "y" * 1_000})]).encode()
    while True:
        asker.ask("POST", "/v1/spaces/flood/events", body, BATCH)
        time.sleep(0.02)


def flood_returning(address: Address) -> None:
    asker, path = Asker(address), f"/v1/spaces/flood/subscriptions/c{threading.get_ident()}"
    asker.ask("PUT", path, {"filter": "data.x >= 0"})
    body = json.dumps([event({"x": 1, "text": "y" * 1_000})] * 200).encode()
    asker.ask("POST", "/v1/spaces/flood/events", body, BATCH)
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
        asker.ask("POST", "/v1/spaces/flood/events", body, headers)


def flood_nested(address: Address) -> None:
    asker = Asker(address)
    for number in range(6):
        filter = f"ANY x IN data.a SATISFIES (ANY y IN data.a SATISFIES (x + y = {9_999_990 + number}))"
        asker.ask("PUT", f"/v1/spaces/flood/subscriptions/n{number}", {"filter": filter})
    body = json.dumps([event({"a": list(range(900))})]).encode()
    while True:
        asker.ask("POST", "/v1/spaces/flood/events", body, BATCH)


def flood_conjunctions(address: Address) -> None:
    asker = Asker(address)
    for number in range(60):
        parts = [f"(data.a{k} LIKE '%a_{number}%' OR data.b{k} LIKE '%_{number}_%')" for k in range(4)]
        path = f"/v1/spaces/flood/subscriptions/c{number}"
        asker.ask("PUT", path, {"filter": " AND ".join(parts)})
    body = json.dumps([event({f"{name}{k}": "xab1" for k in range(4) for name in "ab"})] * 5).encode()
    while True:
        asker.ask("POST", "/v1/spaces/flood/events", body, BATCH)
        time.sleep(1)


def flood_pattern(address: Address) -> None:
    asker = Asker(address)
    body = json.dumps([event({f"f{k}": f"p{k}x" for k in range(400)})] * 8).encode()
    for number in itertools.count():
        fields = {f"f{k}": [{"wildcard": f"*a{k}_{number}*b*"}, {"prefix": f"p{k}"}] for k in range(400)}
        some = {"filter": json.dumps({"data": fields}), "dialect": "eventbridge"}
        asker.ask("PUT", "/v1/spaces/flood/subscriptions/p", some)
        asker.ask("POST", "/v1/spaces/flood/events", body, BATCH)
        time.sleep(1)


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
}
"""What each does, on a connection each."""


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


# Who is beside it


class Calm:
    """The space that is measured: its stream, and when what came there."""

    def __init__(self, address: Address) -> None:
        self._asker = Asker(address)
        self._came_s: dict[int, float] = {}
        self._number = 0
        self._stream = socket.create_connection(address)
        path = "/v1/spaces/calm/subscriptions/all/stream?ack=auto"
        self._stream.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        for line in self._stream.makefile("rb"):
            if line.startswith(b"data: "):
                now_s = time.monotonic()
                self._came_s[msgspec.json.decode(line[6:])["data"]["number"]] = now_s

    def latencies_ms(self, seconds: float) -> list[float]:
        """Publish for so long; the time of each event from when it was due, however slow answers are."""
        sent_s: dict[int, float] = {}
        begin_s = time.monotonic()
        for turn in range(int(seconds * CALM_EVENTS_PER_S)):
            due_s = begin_s + turn / CALM_EVENTS_PER_S
            time.sleep(max(0.0, due_s - time.monotonic()))
            self._number += 1
            sent_s[self._number] = due_s
            some = [event({"number": self._number})]
            status = self._asker.ask("POST", "/v1/spaces/calm/events", some, BATCH)
            if status != 200:
                raise RuntimeError(f"an event of the calm space was answered with {status}")
        deadline_s = time.monotonic() + ARRIVAL_WAIT_S
        while self._number not in self._came_s and time.monotonic() < deadline_s:
            time.sleep(0.01)
        missing = sent_s.keys() - self._came_s.keys()
        if missing:
            raise RuntimeError(f"{len(missing)} of {len(sent_s)} events did not come in {ARRIVAL_WAIT_S:g} s")
        return [1000 * (self._came_s[number] - due_s) for number, due_s in sent_s.items()]


def measure(
    url: str, kinds: list[str], seconds: float, turns: int, quotas: dict[str, float]
) -> dict[str, Any]:
    host, _, port = url.rpartition("/")[2].rpartition(":")
    address = (host, int(port))
    calm = Calm(address)
    figures: dict[str, Any] = {}
    for kind in kinds:
        alone, beside = [], []
        for turn in range(turns):
            for is_beside in (False, True) if turn % 2 == 0 else (True, False):
                if is_beside:
                    beside.append(beside_a_flood(url, calm, kind, address, seconds, quotas))
                else:
                    calm.latencies_ms(WARM_S)
                    alone.append(calm.latencies_ms(seconds))
        figures[kind] = compared(alone, beside)
    figures["worst_ratio"] = max(figures[kind]["ratio"] for kind in kinds)
    return figures


def beside_a_flood(
    url: str, calm: Calm, kind: str, address: Address, seconds: float, quotas: dict[str, float]
) -> list[float]:
    with Client(url) as client:
        client.create_space("flood")
        client.set_quotas("flood", quotas)
        with flooding(kind, address):
            calm.latencies_ms(WARM_S)
            found = calm.latencies_ms(seconds)
        client.delete_space("flood")
        wait_until_matched(client)
    return found


def compared(alone: list[list[float]], beside: list[list[float]]) -> dict[str, Any]:
    """Medians over turns of what each turn came to."""
    alone_ms, beside_ms = ([float(np.quantile(turn, 0.99)) for turn in turns] for turns in (alone, beside))
    return {
        "p99_alone_ms": round(float(np.median(alone_ms)), 2),
        "p99_beside_ms": round(float(np.median(beside_ms)), 2),
        "p50_alone_ms": round(float(np.median(np.concatenate(alone))), 2),
        "p50_beside_ms": round(float(np.median(np.concatenate(beside))), 2),
        "turns_alone_ms": [round(each, 1) for each in alone_ms],
        "turns_beside_ms": [round(each, 1) for each in beside_ms],
        "ratio": round(float(np.median(beside_ms) / np.median(alone_ms)), 2),
    }


def wait_until_matched(client: Client) -> None:
    deadline_s = time.monotonic() + ARRIVAL_WAIT_S
    while int(client.stats()["lag_events"]) and time.monotonic() < deadline_s:
        time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=2, help="each alone and beside (default: %(default)s)")
    parser.add_argument("--floods", default=",".join(FLOODS), help="of %(default)s")
    parser.add_argument("--no-quotas", action="store_true", help="let it have what it likes")
    options = parser.parse_args()
    quotas = {} if options.no_quotas else QUOTAS
    prefix = "fieldfare-neighbours-"
    with tempfile.TemporaryDirectory(prefix=prefix) as folder, Service(Path(folder)) as service:
        service.wait_until_ready()
        with Client(service.url, "calm") as client:
            client.create_space("calm")
            client.create_subscription("data.number > 0", "all")
        figures = measure(service.url, options.floods.split(","), options.seconds, options.turns, quotas)
    figures["quotas"] = quotas
    if options.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:14} {json.dumps(figure)}")
    return 0 if figures["worst_ratio"] < 1.2 else 1


if __name__ == "__main__":
    sys.exit(main())
