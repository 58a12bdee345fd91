"""How much a flood in one space delays the delivery of another space's events.

    python benchmarks/neighbours.py --json

starts a service. In the space `calm` 50 events per second are published, one by one, for one stream
(server-sent events) that gets them all. Their delay is measured without a flood, and during each kind of
flood in the space `flood`, whose clients send at the highest rate they can and ignore the answers:

events
    Batches of 500 events, on four connections.
filters
    As many filters as are accepted, which the index hardly narrows, and 20 events per second that they may
    match.
subscriptions
    Bulk requests of 1,000 subscriptions each, alternately created and replaced, on two connections.
slow_readers
    50 events per second of 1 KiB that match 200 streams that read nothing.
returning
    20 streams that each read a mebibyte of their backlog, disconnect and reconnect, and get it again.
early
    Batches of 20 events that follow others (``Fieldfare-Follows``), on fifty connections: one in a hundred
    waits for a request that never comes, the others follow a number that has been followed long ago.

nested
    Six filters with ANY inside ANY, and as many events of 900 elements as are accepted.
conjunctions
    60 filters of 16 conjunctions that may all hold, and five events of 100 bytes per second.
pattern
    A pattern of 21 KB that is put again every second, and eight events per second for which it is a
    candidate.
levels
    Patterns of up to 50 nested members, and requests to check filters with up to 400 parentheses.
tests
    Requests to test filters against a thousand events each, by clients that disconnect before the answer.
unfinished
    500 connections with incomplete requests, opened again when they are closed.
push
    1,000 subscriptions pushed to one server that refuses everything, with different queries in the address;
    five events per second.

Prints one JSON object: for each flood p99_alone_ms and p99_beside_ms, from the publish call to the arrival,
and their ratio; and `worst_ratio`. Goal: 1.2. Both are medians over turns (``--turns``) of some seconds:
alone, beside, beside, alone, and so on, so that a drift affects both sides equally; `turns_alone_ms` and
`turns_beside_ms` show how much the turns differ. After a flood the benchmark waits until all of its events
are matched, its space is deleted and the calm space has run for some seconds: work left over from a flood
would increase the time alone, and reduce the ratio.

The flooding space has the quotas that are printed as `quotas`. Without them (``--no-quotas``) it uses all the
capacity that is left. Everything runs on one machine; the flooding processes have the lowest priority (nice
19), so that the benchmark measures the service, and not the competition for the processor.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fieldfare.cli.demo.service import Service
from fieldfare.client import Client
from fieldfare_lab.floods import BATCH, FLOODS, QUOTAS, Address, Asker, event, flooding

CALM_EVENTS_PER_S = 50
WARM_S = 3.0
ARRIVAL_WAIT_S = 60.0


class Calm:
    """The space that is measured: its stream, and the arrival times of its events."""

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
        """Publish for some seconds; return each event's delay since it was due, even if answers are slow."""
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
    """Medians of the results of the turns."""
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
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds per turn (default: %(default)s)")
    parser.add_argument(
        "--turns", type=int, default=2, help="turns with and without each flood (default: %(default)s)"
    )
    parser.add_argument("--floods", default=",".join(FLOODS), help="kinds of floods, of %(default)s")
    parser.add_argument("--no-quotas", action="store_true", help="set no quotas for the flooding space")
    options = parser.parse_args()
    quotas = {} if options.no_quotas else QUOTAS
    prefix = "fieldfare-neighbours-"
    os.environ["FIELDFARE_WEBHOOK_ALLOW"] = (
        "127.0.0.1"  # for the flood `push`, whose server runs on this machine
    )
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
