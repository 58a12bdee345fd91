"""Many open streams, few of which get messages: their cost, and the delay until delivery.

    python benchmarks/live.py --json

starts a service with 100,000 subscriptions, opens a stream (server-sent events) for 10,000 of
them, and publishes 200 events per second for 20 seconds, one by one, with the client's default publisher.
Each event matches the subscription of one stream and no other. Prints one JSON object:

gateway_cpu_percent
    Processor time of the gateway's process in those seconds, as a percentage of one core. Goal: 20.
gateway_idle_cpu_percent
    The same for some seconds before, while nothing is published: mostly heartbeats.
p50_ms, p99_ms
    From the publish call to the arrival at the streams' client, which is a separate process. Service,
    publisher and client share the machine. Goal for p99: 250.
gateway_rss_bytes
    Resident memory of the gateway at the end.
streams, subscriptions, events, equal
    The parameters; `equal` says whether every event arrived once, on the right stream and no other.

``--gateway-only`` runs the gateway without Spark: a small process writes the match log, which is possible
because events and filters are so simple here. This measures the gateway alone, on a machine that is too small
for both. Each open stream needs one open file in this process and one in the gateway: ``ulimit -n`` must
allow them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from streams import (
    SPARE_FILES,
    Arrivals,
    followed,
    memory_bytes_of,
    name_of,
    processor_s,
    raise_open_files,
)

from fieldfare.cli.demo.service import Service
from fieldfare.client import AsyncClient, Client, NewSubscription
from fieldfare.storage import NewMatchBlock, open_event_log, open_match_log, open_registry
from fieldfare.storage.folder import DataFolder

BULK = 2_500
IDLE_S = 10.0
WARM_S = 5.0
ARRIVAL_WAIT_S = 10.0
MATCH_EVERY_S = 0.02


# A gateway without Spark


def match(data: str, streams: int) -> None:
    """Write the match log: each event names the subscription that it matches."""
    folder = DataFolder(Path(data))
    log = open_event_log(folder.log_url).partitions[0]
    registry = open_registry(folder.registry_url)
    subscriptions = [registry.get("default", name_of(number)) for number in range(streams)]
    numbers = [each.number for each in subscriptions if each is not None]
    matches = open_match_log(folder.matches_url).partition(0)
    at = log.start()
    while True:
        found = list(log.read(at, log.end()))
        if found:
            lines = [line for record in found for line in record.payload.splitlines()]
            matched = [numbers[msgspec.json.decode(line)["data"]["stream"]] for line in lines]
            end = found[-1].offset + 1
            counts = np.array([record.count for record in found], np.int32)
            indptr = np.arange(len(lines) + 1, dtype=np.int64)
            matches.write(NewMatchBlock.by_event(at, end, counts, indptr, np.array(matched, np.uint32)))
            at = end
        time.sleep(MATCH_EVERY_S)


class GatewayOnly:
    """A replacement for `Service` without a pipeline; start `match` when the subscriptions exist."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._matcher: Any = None
        self.url = ""

    def __enter__(self) -> GatewayOnly:
        command = [sys.executable, "-m", "fieldfare.gateway", "--data", str(self._data), "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._matcher is not None:
            self._matcher.kill()
        self._process.terminate()
        self._process.wait()

    def wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().split()[4]

    def match_for(self, streams: int) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._matcher = spawn.Process(target=match, args=(str(self._data), streams), daemon=True)
        self._matcher.start()


# The measurement


def register(url: str, subscriptions: int) -> None:
    with Client(url, timeout_s=120.0) as client:
        for first in range(0, subscriptions, BULK):
            some = range(first, min(first + BULK, subscriptions))
            client.create_subscriptions(
                [NewSubscription(f"data.stream = {number}", name_of(number)) for number in some]
            )


async def publish(url: str, streams: int, events_per_s: int, first: int, count: int) -> None:
    """Single events at a steady rate, each for another stream than the one before."""
    step = step_of(streams)
    async with AsyncClient(url) as client, client.publisher() as publisher:
        begin_s = time.monotonic()
        for number in range(first, first + count):
            wait_s = begin_s + (number - first) / events_per_s - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            data = {"stream": number * step % streams, "number": number, "sent_s": time.monotonic()}
            publisher.publish({"source": "/live", "type": "t", "data": data})


def step_of(streams: int) -> int:
    """Return the distance from one event's stream to the next one's, so that all streams get equally many."""
    return next(step for step in range(int(streams * 0.618) + 1, 3 * streams) if np.gcd(step, streams) == 1)


def measure(url: str, options: argparse.Namespace, pipe: Connection) -> dict[str, Any]:
    with Client(url) as client:
        pid = int(client.stats()["pid"])
    before_s, began_s = processor_s(pid), time.monotonic()
    time.sleep(IDLE_S)
    idle = (processor_s(pid) - before_s) / (time.monotonic() - began_s)
    warm, count = int(WARM_S * options.rate), int(options.seconds * options.rate)
    asyncio.run(publish(url, options.streams, options.rate, 0, warm))
    before_s, began_s = processor_s(pid), time.monotonic()
    asyncio.run(publish(url, options.streams, options.rate, warm, count))
    busy = (processor_s(pid) - before_s) / (time.monotonic() - began_s)
    with Client(url) as client:
        deadline_s = time.monotonic() + ARRIVAL_WAIT_S
        while int(client.stats()["delivered_total"]) < warm + count and time.monotonic() < deadline_s:
            time.sleep(0.1)
    time.sleep(0.2)
    pipe.send("enough")
    found: Arrivals = pipe.recv()
    latencies_ms = 1000 * (found["came_s"] - found["sent_s"])[found["number"] >= warm]
    p50_ms, p99_ms = np.quantile(latencies_ms, (0.5, 0.99))
    return {
        "gateway_cpu_percent": round(100 * busy, 1),
        "gateway_idle_cpu_percent": round(100 * idle, 1),
        "p50_ms": round(float(p50_ms), 1),
        "p99_ms": round(float(p99_ms), 1),
        "gateway_rss_bytes": memory_bytes_of(pid)[0],
        "streams": options.streams,
        "subscriptions": options.subscriptions,
        "events": count,
        "equal": is_equal(found, options.streams, warm + count),
    }


def is_equal(found: Arrivals, streams: int, count: int) -> bool:
    came = np.sort(found, order="number")
    numbers = np.arange(count)
    return np.array_equal(came["number"], numbers) and np.array_equal(
        came["stream"], numbers * step_of(streams) % streams
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else on stdout"
    )
    parser.add_argument("--streams", type=int, default=10_000, help="open streams (default: %(default)s)")
    parser.add_argument("--subscriptions", type=int, default=100_000, help="filters (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=200, help="events per second (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="seconds to measure (default: %(default)s)"
    )
    parser.add_argument(
        "--gateway-only", action="store_true", help="run the gateway without Spark: see above"
    )
    options = parser.parse_args()
    raise_open_files(options.streams)
    os.environ.setdefault("FIELDFARE_CONNECTIONS_MAX", str(options.streams + SPARE_FILES))
    with tempfile.TemporaryDirectory(prefix="fieldfare-live-") as folder:
        data = Path(folder) / "data"
        with GatewayOnly(data) if options.gateway_only else Service(data) as service:
            service.wait_until_ready()
            register(service.url, options.subscriptions)
            if isinstance(service, GatewayOnly):
                service.match_for(options.streams)
            else:
                service.wait_until_indexed()
            with followed(service.url, options.streams) as pipe:
                figures = measure(service.url, options, pipe)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:26} {figure}")
    return 0 if figures["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
