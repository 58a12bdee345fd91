"""A service under a steady load: delay of events, publishing rate, and growth of memory.

    python benchmarks/service.py --json [--minutes 30]

starts a service with 100,000 subscriptions, of which 5,000 have an open stream (server-sent
events), and publishes 2,000 events per second with the client's publisher, in which an event may wait 20 ms
for others. Each event matches two of the streams' subscriptions. Two more subscriptions match every event:
one has an open stream that is never read, the other is pulled, one message for each 10,000 events. Prints one
JSON object:

p50_ms, p99_ms
    From the moment when an event was due to be published (an open loop: a publisher that is late makes
    events late) to its arrival at the streams' client, which is a separate process. Goal for p99: 1,000.
rss_growth_percent
    Growth of the memory of all of the service's processes from the second fifth of the time to the last,
    as medians. Goal: 5 over 30 minutes. ``--plot`` draws the memory over time.
rss_mb
    Both of these medians, by process: its own memory, and (``mapped``) pages of files, which several
    processes may share.
publish_events_per_s
    Publishing alone, to a separate gateway without readers: requests of 500 events of 230 bytes,
    four at a time; the median of five runs. Goal: 200,000.
publish_runs
    The rates of all five runs.
equal
    Whether every event arrived twice, once on each of its streams, and nowhere else.

Service, publisher and clients share the machine, so publisher and clients wake rarely: a publisher that sent
requests of a few events, and a client that woke for each message, would use enough of two cores that the
service could not keep up.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from live import GatewayOnly, step_of
from streams import SPARE_FILES, Arrivals, followed, memory_bytes_of, name_of, open_stream, raise_open_files

from fieldfare.cli.demo.service import Service
from fieldfare.client import AsyncClient, BatchSettings, Client, NewSubscription

BULK = 2_500
WARM_S = 10.0
SEEN_EVERY_S = 1.0
ARRIVAL_WAIT_S = 20.0
READ_ONE_IN = 10_000
LINGER_MS = 20.0
"""Maximum time that an event waits in the publisher for others: 40 events come in this time, and
the fixed cost of a request is that of many events."""
NEVER, SELDOM = "never-read", "seldom-read"

PUBLISHED_BATCH_SIZE, CONNECTIONS, PUBLISH_S, PUBLISH_RUNS = 500, 4, 4.0, 5
PAD = "x" * 120

ROLES = {
    "bin/java ": "java",
    "worker_daemon": "python workers",
    "gateway": "gateway",
    "indexer": "indexer",
    "driver": "driver",
}
"""Words in the command of each process; the first one that occurs determines its name."""


def register(url: str, subscriptions: int) -> None:
    """Subscriptions each of which matches the events of one number, and two that match all events."""
    with Client(url, timeout_s=120.0) as client:
        for id in (NEVER, SELDOM):
            client.create_subscription("data.number >= 0", id)
        for first in range(0, subscriptions, BULK):
            some = range(first, min(first + BULK, subscriptions))
            client.create_subscriptions(
                [NewSubscription(f"data.one = {n} OR data.other = {n}", name_of(n)) for n in some]
            )


def streams_of(number: int | np.ndarray[Any, Any], streams: int, step: int) -> tuple[Any, Any]:
    """The two streams that get an event; ``step`` comes from `step_of`."""
    one = number * step % streams
    return one, (one + streams // 2) % streams


async def publish(url: str, streams: int, events_per_s: int, count: int) -> float:
    """Publish single events, each when it is due; return the lateness of the last one."""
    step = step_of(streams)
    async with AsyncClient(url) as client, client.publisher(BatchSettings(linger_ms=LINGER_MS)) as publisher:
        begin_s = time.monotonic()
        for number in range(count):
            due_s = begin_s + number / events_per_s
            if due_s > time.monotonic():
                await asyncio.sleep(max(due_s - time.monotonic(), 0.002))
            one, other = streams_of(number, streams, step)
            data = {"one": one, "other": other, "number": number, "sent_s": due_s, "pad": PAD}
            publisher.publish({"source": "/service", "type": "t", "data": data})
        return time.monotonic() - due_s


@contextmanager
def slow_readers(url: str, seldom_s: float) -> Iterator[None]:
    """Two slow readers: an open stream that is never read, and pulls of a message from time to time."""
    host, _, port = url.rpartition("/")[2].rpartition(":")
    never = open_stream((host, int(port)), NEVER)
    enough = threading.Event()

    def read_seldom() -> None:
        with Client(url) as client:
            while not enough.wait(seldom_s):
                for message in client.pull(SELDOM, 1):
                    client.ack(SELDOM, [message.position])

    thread = threading.Thread(target=read_seldom, daemon=True)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join(30)
        never.close()


@dataclass(frozen=True)
class Seen:
    """The memory of a service's processes at one time.

    Attributes
    ----------
    at_s
        Seconds since the watch began.
    sizes_bytes
        For each process its own memory; ``mapped`` is the total of all mapped files.
    """

    at_s: float
    sizes_bytes: dict[str, int]

    @property
    def rss_bytes(self) -> int:
        return sum(self.sizes_bytes.values())


@contextmanager
def watched(url: str, seen: list[Seen]) -> Iterator[None]:
    """Record the memory of all of a service's processes every second."""
    with Client(url) as client:
        gateway = int(client.stats()["pid"])
    pid = int(Path(f"/proc/{gateway}/stat").read_text().rpartition(")")[2].split()[1])
    enough = threading.Event()

    def look() -> None:
        began_s = time.monotonic()
        while not enough.wait(SEEN_EVERY_S):
            sizes_bytes: dict[str, int] = defaultdict(int)
            for each in family_of(pid):
                with suppress(FileNotFoundError):  # it has ended meanwhile
                    all_bytes, mapped_bytes = memory_bytes_of(each)
                    sizes_bytes[role_of(each)] += all_bytes - mapped_bytes
                    sizes_bytes["mapped"] += mapped_bytes
            seen.append(Seen(time.monotonic() - began_s, dict(sizes_bytes)))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def family_of(pid: int) -> list[int]:
    """A process and its descendants."""
    found = [pid]
    for each in found:
        with suppress(FileNotFoundError):
            for task in Path(f"/proc/{each}/task").glob("*/children"):
                found += map(int, task.read_text().split())
    return found


def role_of(pid: int) -> str:
    """The role of a process of a service."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return next((role for word, role in ROLES.items() if word in command), "others")


def fifths(seen: Sequence[Seen], name: str | None = None) -> tuple[float, float]:
    """The median memory of the second fifth of the time and of the last, of one process or of all."""
    sizes = [each.rss_bytes if name is None else each.sizes_bytes.get(name, 0) for each in seen]
    fifth = max(1, len(sizes) // 5)
    return statistics.median(sizes[fifth : 2 * fifth]), statistics.median(sizes[-fifth:])


def growth(seen: Sequence[Seen]) -> dict[str, Any]:
    """Growth from the second fifth to the last."""
    early, late = fifths(seen)
    names = sorted({name for each in seen for name in each.sizes_bytes})
    return {
        "rss_growth_percent": round(100 * (late / early - 1), 1),
        "rss_mb": {name: [round(size / 1e6) for size in fifths(seen, name)] for name in names},
        "rss_bytes": seen[-1].rss_bytes,
    }


def measure_load(options: argparse.Namespace, seen: list[Seen]) -> dict[str, Any]:
    count = int(60 * options.minutes * options.rate)
    with (
        tempfile.TemporaryDirectory(prefix="fieldfare-service-") as folder,
        Service(Path(folder) / "data") as service,
    ):
        service.wait_until_ready()
        register(service.url, options.subscriptions)
        service.wait_until_indexed()
        with (
            followed(service.url, options.streams) as pipe,
            slow_readers(service.url, READ_ONE_IN / options.rate),
            watched(service.url, seen),
        ):
            late_s = uvloop.run(publish(service.url, options.streams, options.rate, count))
            time.sleep(ARRIVAL_WAIT_S)
            pipe.send("enough")
            found: Arrivals = pipe.recv()
    warm = int(WARM_S * options.rate)
    latencies_ms = 1000 * (found["came_s"] - found["sent_s"])[found["number"] >= warm]
    p50_ms, p99_ms = np.quantile(latencies_ms, (0.5, 0.99))
    return {
        "p50_ms": round(float(p50_ms), 1),
        "p99_ms": round(float(p99_ms), 1),
        **growth(seen),
        "publisher_late_ms": round(1000 * late_s, 1),
        "events": count,
        "equal": is_equal(found, options.streams, count),
    }


def is_equal(found: Arrivals, streams: int, count: int) -> bool:
    numbers = np.arange(count)
    expected = np.concatenate(
        [numbers * streams + each for each in streams_of(numbers, streams, step_of(streams))]
    )
    came = found["number"].astype(np.int64) * streams + found["stream"]
    return np.array_equal(np.sort(came), np.sort(expected))


def publish_alone() -> float:
    """Events per second that a gateway accepts."""
    event = {"specversion": "1.0", "source": "/s", "type": "t", "data": {"number": 1, "pad": PAD}}
    body = "".join(json.dumps(event | {"id": f"{n:06}"}) + "\n" for n in range(PUBLISHED_BATCH_SIZE)).encode()
    with (
        tempfile.TemporaryDirectory(prefix="fieldfare-service-") as folder,
        GatewayOnly(Path(folder) / "data") as gateway,
        ThreadPoolExecutor(CONNECTIONS) as threads,
    ):
        gateway.wait_until_ready()
        port = int(gateway.url.rpartition(":")[2])
        send(port, body, 0.5)
        began_s = time.monotonic()
        sent = sum(threads.map(lambda _: send(port, body, PUBLISH_S), range(CONNECTIONS)))
        return sent * PUBLISHED_BATCH_SIZE / (time.monotonic() - began_s)


def send(port: int, body: bytes, for_s: float) -> int:
    """Send a request repeatedly on one connection; return the number of requests."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    until_s, count = time.monotonic() + for_s, 0
    while time.monotonic() < until_s:
        headers = {"content-type": "application/x-ndjson"}
        connection.request("POST", "/v1/spaces/default/events", body, headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {text!r}")
        count += 1
    connection.close()
    return count


def plot(seen: Sequence[Seen], path: str) -> None:
    """Draw the memory over time."""
    import altair

    rows = [{"minutes": each.at_s / 60, "GB": each.rss_bytes / 1e9} for each in seen]
    lines = altair.Chart(altair.InlineData(values=rows)).mark_line(strokeWidth=1)
    lines.encode(
        altair.X("minutes:Q", title="minutes under load"),
        altair.Y("GB:Q", title="resident memory of all processes, GB", scale=altair.Scale(zero=True)),
    ).properties(width=560, height=220).save(path, scale_factor=2)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else on stdout"
    )
    parser.add_argument("--streams", type=int, default=5_000, help="open streams (default: %(default)s)")
    parser.add_argument("--subscriptions", type=int, default=100_000, help="filters (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=2_000, help="events per second (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=1.0, help="minutes of load (default: %(default)s)")
    parser.add_argument("--plot", metavar="FILE", help="file in which to draw the memory over time")
    options = parser.parse_args()
    raise_open_files(options.streams)
    os.environ.setdefault("FIELDFARE_CONNECTIONS_MAX", str(options.streams + SPARE_FILES))
    runs = [publish_alone() for _ in range(PUBLISH_RUNS)]
    seen: list[Seen] = []
    figures = {
        "publish_events_per_s": round(statistics.median(runs)),
        "publish_runs": [round(each) for each in runs],
        **measure_load(options, seen),
        "streams": options.streams,
        "subscriptions": options.subscriptions,
    }
    if options.plot:
        plot(seen, options.plot)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:22} {figure}")
    return 0 if figures["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
