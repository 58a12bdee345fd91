"""A publisher that tunes itself against fixed settings: the real client, the real gateway, a path with delay.

    python benchmarks/publisher.py --json

For each round trip (0, 20, 140 ms, made by a small proxy on loopback) and each way to publish:

throughput
    Events handed over one by one as fast as the program can, until all are durable: events a second.
latency
    Events handed over at a given rate: mean time from the call until the event is durable, in ms.

One JSON object comes out; ``worst_ratio_to_best_static`` is the worst of all ratios of auto to the best fixed
setting of the same row, written so that over 1 is worse than the best.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from statistics import mean
from typing import Any

from fieldfare import BatchSettings, Client
from fieldfare.client import FlushTimeout, Publisher

EVENT = {"source": "/bench", "type": "t", "data": {"price": 17.25, "pad": "x" * 150}}

STATIC = {
    "1 event": BatchSettings(max_events=1, linger_ms=0),
    "10 events": BatchSettings(max_events=10, linger_ms=0),
    "100 events": BatchSettings(max_events=100, linger_ms=0),
    "1000 events": BatchSettings(max_events=1000, linger_ms=0),
    "10000 events": BatchSettings(max_events=10_000, linger_ms=0),
    "100 events, 5 ms": BatchSettings(max_events=100, linger_ms=5),
    "1000 events, 5 ms": BatchSettings(max_events=1000, linger_ms=5),
    "10000 events, 50 ms": BatchSettings(max_events=10_000, linger_ms=50),
}
AUTO = "auto"
RATES_PER_S = (50, 2000)
MOST_QUEUED = 20_000


class DelayedPipe(asyncio.Protocol):
    """Hands on what comes, ``delay_s`` later, in order."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._target: asyncio.Transport | None = None
        self._early: list[bytes] = []

    def connect(self, target: asyncio.Transport) -> None:
        self._target = target
        for data in self._early:
            self.data_received(data)
        self._early.clear()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self._target is None:
            self._early.append(data)
        else:
            asyncio.get_running_loop().call_later(self._delay_s, self._target.write, data)

    def connection_lost(self, error: Exception | None) -> None:
        if self._target is not None:
            asyncio.get_running_loop().call_later(self._delay_s, self._target.close)


def run_proxy(pipe: Connection, port: int, round_trip_s: float) -> None:
    """Listen on a free port, and forward to the other with half the round trip each way."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()

        async def join(near: DelayedPipe) -> None:
            far_transport, far = await loop.create_connection(
                lambda: DelayedPipe(round_trip_s / 2), "127.0.0.1", port
            )
            far.connect(near.transport)  # type: ignore[arg-type]
            near.connect(far_transport)

        class Near(DelayedPipe):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                super().connection_made(transport)
                task = loop.create_task(join(self))
                tasks.add(task)
                task.add_done_callback(tasks.discard)

        server = await loop.create_server(lambda: Near(round_trip_s / 2), "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


@contextmanager
def gateway() -> Iterator[int]:
    """A gateway on an empty data directory; its port."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "fieldfare.gateway", "--data", data, "--port", "0"]
        settings = {name: value for name, value in os.environ.items() if not name.startswith("FIELDFARE_")}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=settings
        )
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split("ready on ")[1].split()[0]
            yield int(url.rsplit(":", 1)[1])
        finally:
            process.terminate()
            process.communicate(timeout=30)


@contextmanager
def delayed(port: int, round_trip_ms: float) -> Iterator[str]:
    """The URL of the gateway behind a path of this round trip."""
    if not round_trip_ms:
        yield f"http://127.0.0.1:{port}"
        return
    context = multiprocessing.get_context("spawn")
    here, there = multiprocessing.Pipe()
    proxy = context.Process(target=run_proxy, args=(there, port, round_trip_ms / 1000), daemon=True)
    proxy.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        proxy.terminate()
        proxy.join()


def measure_throughput(publisher: Publisher, seconds: float) -> float:
    """Events a second that became durable while they were handed over as fast as can be."""
    before = publisher.stats().acknowledged_events
    started_s = time.perf_counter()
    while (passed_s := time.perf_counter() - started_s) < seconds:
        for _ in range(100):
            publisher.publish(EVENT)
        if publisher.stats().queued_events > MOST_QUEUED:
            time.sleep(0.005)
    return (publisher.stats().acknowledged_events - before) / passed_s


def measure_latency_ms(publisher: Publisher, rate_per_s: float, seconds: float) -> float:
    """Mean age at which events of a Poisson process are durable; of those that are not, the age so far."""
    chance = random.Random(1)
    ages_s: dict[int, float] = {}
    dues_s: list[float] = []

    def finish(number: int, _: object) -> None:
        ages_s[number] = time.perf_counter() - dues_s[number]

    due_s = time.perf_counter()
    end_s = due_s + seconds
    while (due_s := due_s + chance.expovariate(rate_per_s)) < end_s:
        time.sleep(max(0.0, due_s - time.perf_counter()))
        # From the moment it was due: a program that is held up must not look quick.
        dues_s.append(due_s)
        publisher.publish(EVENT).add_done_callback(partial(finish, len(dues_s) - 1))
    with suppress(FlushTimeout):
        publisher.flush(seconds)
    now_s = time.perf_counter()
    return 1000 * mean(ages_s.get(number, now_s - due_s) for number, due_s in enumerate(dues_s))


def measure(url: str, name: str, what: str, seconds: float) -> float:
    """One figure of one way to publish."""
    with Client(url) as client:
        publisher = client.publisher(STATIC.get(name, AUTO))
        publisher.publish_many([EVENT] * 200)  # Connection and code are warm.
        try:
            if what == "throughput":
                return measure_throughput(publisher, seconds)
            return measure_latency_ms(publisher, float(what), seconds)
        finally:
            publisher.close(timeout_s=0.01)


def compare(url: str, round_trip_ms: float, seconds: float) -> Iterator[dict[str, Any]]:
    """A row for each measure: every fixed setting, auto, and the ratio to the best."""
    for what in ("throughput", *map(str, RATES_PER_S)):
        figures = {name: measure(url, name, what, seconds) for name in (*STATIC, AUTO)}
        statics = [figures[name] for name in STATIC]
        if what == "throughput":
            best, worst = max(statics), min(statics)
            ratio = best / figures[AUTO]
        else:
            best, worst = min(statics), max(statics)
            ratio = figures[AUTO] / best
        measured = {name: round(value, 2) for name, value in figures.items()}
        label = "throughput_per_s" if what == "throughput" else f"latency_ms_at_{what}_per_s"
        yield {
            "round_trip_ms": round_trip_ms,
            "measure": label,
            **measured,
            "best_static": round(best, 2),
            "worst_static": round(worst, 2),
            "ratio_to_best_static": round(ratio, 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each measurement")
    parser.add_argument("--round-trips", type=float, nargs="*", default=[0, 20, 140], metavar="MS")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with gateway() as port:
        for round_trip_ms in options.round_trips:
            with delayed(port, round_trip_ms) as url:
                for row in compare(url, round_trip_ms, options.seconds):
                    rows.append(row)
                    if not options.json:
                        print(row, flush=True)
    figures = {
        "rows": rows,
        "event_bytes": len(json.dumps(EVENT)),
        "worst_ratio_to_best_static": max(row["ratio_to_best_static"] for row in rows),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
