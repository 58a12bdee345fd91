"""Scaling of a service on a Spark cluster, the cost of a worker's death, and the cost of Kafka.

    python benchmarks/cluster.py --json

starts, for 1, 2 and 3 workers, a standalone cluster (a master and workers, as separate processes on
loopback), a Kafka broker, and a service that uses them; with `--log sqlite` the log is a file that
the workers of this machine read. During a measurement, a control group limits each worker and its child
processes to half a core, so the workers use at most one and a half of two cores, and everything else has the
rest.

A backlog is built while all processes are warm: the indexer is stopped, and one more subscription is created,
which the index does not hold. So the source waits, as usual, for a manifest that covers the new events, while
Spark, executors and Python workers keep running. Then the indexer is resumed.

Prints one JSON object. The whole benchmark takes an hour; `--parts`, `--log`, `--partitioning` and
`--workers` select a part of it.

events_per_s
    For 1, 2, 3 workers: from the moment when the index covers the backlog to the last block of matches;
    medians over the turns. ``runs`` has the figures for each log, and for each partitioning with the first
    log. Spaces are always cut for as many matchers as the largest cluster has workers.
scaling
    The rate with three workers divided by three times the rate with one. Goal: 0.85.
worker_gap_s
    The longest time in which a subscriber got no message, when one of three workers is killed while 50 events
    per second are published. `live_gap_s` is the longest gap in an equally long time before that. Goal: 5.
lost, doubled
    Messages that were then lost, or delivered twice. Goal: 0.
runs, cores
    The load of each core during a measurement (shares of busy time, and of time taken by the host of a
    virtual machine), and the share of a core that each worker and each of the service's own processes used.
latency
    For single events at 200 and at 1,000 a second, with the most workers, the first log and partitioning: the
    time from the publish call to the delivery, p50 and p99 of 20 s, in milliseconds. ``change_ms`` are
    the median and the maximum time from a subscription's creation to the delivery of an event that is
    published right after it. To compare versions, run this part for each in turn, with the other one's
    ``src`` in PYTHONPATH.
kafka_ratio
    The demo's throughput (`benchmarks/end_to_end.py`, on this machine) with its log in Kafka, divided by that
    with SQLite: medians over the turns. Goal: 0.85. `demo` has each turn, with p50 and p99 of delivery at
    200 events/s.
machine_cores, cpu_limit, events, subscriptions
    The parameters. With a smaller `--cpu-limit` the service itself has the rest of the cores, just as it has
    its own machine in a real cluster. `cpu_limit` is null where control groups cannot be created: then
    nothing is limited, and `scaling` is not meaningful.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
from service import family_of

from fieldfare.cli.demo.service import Service, ServicePlaces
from fieldfare.client import AsyncClient, BatchSettings, Client
from fieldfare.partitioning.encoding import kind_of
from fieldfare.runtimes.process.heartbeat import read_beat
from fieldfare.storage import open_event_log, open_index_store, open_match_log
from fieldfare.storage.event_log import ends_of
from fieldfare.storage.folder import DataFolder
from fieldfare_lab.cpu_group import why_no_groups
from fieldfare_lab.feeding import Feed, Reader, subscribe_ranges
from fieldfare_lab.kafka_broker import KafkaBroker, why_no_broker
from fieldfare_lab.latency import measure_latencies_s
from fieldfare_lab.spark_cluster import SparkCluster, why_no_cluster

WORKERS = (1, 2, 3)
LOGS = ("kafka", "sqlite")
PARTITIONINGS = ("replicated", "hash", "attribute_space")
PARTS = ("throughput", "death", "latency", "demo")
CPU_LIMIT = 0.5
ATTRIBUTES = 4
DOMAIN, WIDTH = 1000, 250
RECORD_EVENTS = 2_000
RECORDS = 50
"""Number of different events, which are published repeatedly."""
PUBLISHERS = 2
WARM_EVENTS, WARM_TURNS = 400_000, 2
PARTITIONS = 6
CUT_WITHIN_S = 150.0
MATCHED_WITHIN_S = 280.0
HELD_MAX_S = 50.0
"""Maximum time that the indexer is stopped, in seconds: without heartbeats for longer, it is restarted."""
LIVE_S = 8.0
LIVE_PAUSE_S = 0.02
TURNS = 2
LATENCY_RATES = (200, 1_000)
CHANGES = 20


def draw_records() -> list[bytes]:
    """Records of equal size, events as JSON lines."""
    random, records = Random(2), []
    for record in range(RECORDS):
        lines = []
        for n in range(record * RECORD_EVENTS, (record + 1) * RECORD_EVENTS):
            data = ",".join(f'"a{i}":{random.randrange(DOMAIN)}' for i in range(ATTRIBUTES))
            lines.append(f'{{"specversion":"1.0","id":"{n}","source":"/b","type":"t","data":{{{data}}}}}\n')
        records.append("".join(lines).encode())
    return records


def publish(url: str, records: Sequence[bytes], events: int) -> None:
    """Publish a number of events as fast as the service accepts them, to all partitions in turn."""
    due, lock = iter(range(events // RECORD_EVENTS)), threading.Lock()

    def work() -> None:
        with httpx.Client(base_url=url, timeout=120) as http:
            while True:
                with lock:
                    number = next(due, None)
                if number is None:
                    return
                content = records[number % len(records)]
                headers = {"content-type": "application/x-ndjson"}
                while (
                    answer := http.post("/v1/spaces/default/events", content=content, headers=headers)
                ).status_code in (429, 503):
                    time.sleep(0.2)
                answer.raise_for_status()

    with ThreadPoolExecutor(PUBLISHERS) as pool:
        for done in [pool.submit(work) for _ in range(PUBLISHERS)]:
            done.result()


def wait_until(holds: Any, within_s: float, what: str) -> None:
    give_up_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"waited {within_s:.0f} s for {what}")
        time.sleep(0.005)


def wait_matched(folder: DataFolder) -> tuple[int, ...]:
    """Wait until all events now in the log are matched; return the end of the log."""
    log = open_event_log(folder.log_url)
    ends = tuple(ends_of(log))
    log.close()
    wait_until(
        lambda: tuple(read_beat(folder.heartbeat).get("matched") or ()) == ends,
        MATCHED_WITHIN_S,
        f"everything to be matched up to {ends}",
    )
    return ends


@contextmanager
def held_back(service: Service) -> Iterator[None]:
    """Make events that are published inside wait for the index; on exit the index covers them."""
    folder = service.folder
    indexer, store = int(read_beat(folder.heartbeat_of("indexer"))["pid"]), open_index_store(folder.index_url)
    began_s, newest = time.monotonic(), store.newest()
    os.kill(indexer, signal.SIGSTOP)
    try:
        with Client(service.url) as client:
            client.create_subscription("data.n < 0", f"none-{began_s}")
        yield
        if time.monotonic() - began_s > HELD_MAX_S:
            raise TimeoutError(f"to build the backlog took more than {HELD_MAX_S:.0f} s: choose fewer events")
    finally:
        os.kill(indexer, signal.SIGCONT)
    wait_until(lambda: store.newest() != newest, MATCHED_WITHIN_S, "the index to cover the backlog")


def last_matched_ms(folder: DataFolder, starts: Sequence[int], ends: Sequence[int]) -> float:
    """Return when the last block of these records was written, according to its task."""
    log, last_ms = open_match_log(folder.matches_url), 0.0
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        partition, offset = log.partition(number), start
        while offset < end:
            block = partition.block_at(offset)
            assert block is not None
            last_ms = max(last_ms, float(block.extra.get("matched_ms", 0.0)))
            offset = block.end
    return last_ms


def core_times() -> list[tuple[int, int, int]]:
    """For each core: busy time, time that the host gave to other guests (steal), and total time."""
    found = []
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("cpu") and line[3].isdigit():
            times = [int(text) for text in line.split()[1:9]]
            idle, waiting, stolen = times[3], times[4], times[7]
            found.append((sum(times) - idle - waiting - stolen, stolen, sum(times)))
    return found


def service_times(service: Service) -> dict[str, float]:
    """Processor seconds that each of a service's processes has used so far, including its child processes."""
    tick_s, found = 1 / os.sysconf("SC_CLK_TCK"), {}
    with Client(service.url) as client:
        pids = {"gateway": int(client.stats()["pid"])}
    for name in ("indexer", "pipeline"):
        pids[name] = int(read_beat(service.folder.heartbeat_of(name))["pid"])
    for name, pid in pids.items():
        ticks = 0
        for each in family_of(pid):
            with suppress(FileNotFoundError):
                fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))  # with that of children that have ended
        found[name] = ticks * tick_s
    return found


class Run:
    """A service on a cluster with a number of workers, from its start to its end."""

    def __init__(self, workers: int, log: str, partitioning: str, matchers: int, limit: float | None) -> None:
        self._stack = ExitStack()
        self.limit = limit
        self.kind = partitioning if matchers > 1 else "replicated"
        # Settings that only this experiment uses reach the service through its environment.
        os.environ |= {"FIELDFARE_PARTITIONING": partitioning, "FIELDFARE_MATCHERS": str(matchers)}
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-")))
            places: dict[str, Any] = {}
            if log == "kafka":
                broker = stack.enter_context(KafkaBroker())
                places["log"] = f"kafka://{broker.address}/events?partitions={PARTITIONS}"
                places["index_store"] = (folder / "shared").as_uri()
            # The start is not measured: until it is over, workers are not limited.
            self.cluster = stack.enter_context(SparkCluster(workers, cpu_limit=limit and os.cpu_count()))
            places["master"] = self.cluster.address
            self.service = stack.enter_context(Service(folder / "data", ServicePlaces(**places)))
            self.service.wait_until_ready()
            self._stack = stack.pop_all()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def prepare(self, subscriptions: int) -> None:
        """Create the subscriptions, and wait until the space is cut as requested."""
        url, store = self.service.url, open_index_store(self.service.folder.index_url)
        self.records = draw_records()
        publish(url, self.records, WARM_EVENTS)  # How a space is cut depends on its events.
        subscribe_ranges(url, 0, subscriptions, ATTRIBUTES, DOMAIN, WIDTH)
        self.service.wait_until_indexed()

        def is_cut() -> bool:
            space = manifest.spaces.get("default") if (manifest := store.newest()) else None
            kind = None if space is None else kind_of(space.partitioning)
            return self.kind in ("replicated", kind)

        wait_until(is_cut, CUT_WITHIN_S, f"the space to be cut by {self.kind}")
        for _ in range(WARM_TURNS):
            publish(url, self.records, WARM_EVENTS)
            wait_matched(self.service.folder)
        if self.limit is not None:
            self.cluster.limit(self.limit)

    def throughput(self, events: int) -> dict[str, Any]:
        """The matching rate of a backlog, and the load of the cores meanwhile."""
        folder, groups = self.service.folder, [w.group for w in self.cluster.workers if w.group is not None]
        starts = wait_matched(folder)
        with held_back(self.service):
            publish(self.service.url, self.records, events)
            used_s, cores, own_s = (
                [group.used_s() for group in groups],
                core_times(),
                service_times(self.service),
            )
        began_ms = time.time() * 1000
        ends = wait_matched(folder)
        looked_s = time.time() - began_ms / 1000
        used_s = [group.used_s() - before_s for group, before_s in zip(groups, used_s, strict=True)]
        passed = [
            [now - before for now, before in zip(*each, strict=True)]
            for each in zip(core_times(), cores, strict=True)
        ]
        service_busy = {
            name: round((now_s - own_s[name]) / looked_s, 2)
            for name, now_s in service_times(self.service).items()
        }
        took_s = (last_matched_ms(folder, starts, ends) - began_ms) / 1000
        return {
            "events_per_s": round(events // RECORD_EVENTS * RECORD_EVENTS / took_s),
            "took_s": round(took_s, 2),
            "workers_busy": [round(each / looked_s, 2) for each in used_s],
            "service_busy": service_busy,
            "cores_busy": [round(busy / max(1, there), 2) for busy, _, there in passed],
            "cores_stolen": [round(stolen / max(1, there), 2) for _, stolen, there in passed],
        }

    def latency(self) -> dict[str, Any]:
        """Latencies of single events at a steady pace, and of the first event for new subscriptions."""
        wait_matched(self.service.folder)
        found: dict[str, Any] = {}
        events = pa.chunked_array([[line for record in self.records for line in record.splitlines()]])
        for rate in LATENCY_RATES:
            latencies_ms = 1000 * measure_latencies_s(self.service.url, events, rate, "type = 't'")
            p50_ms, p99_ms = np.quantile(latencies_ms, (0.5, 0.99)).round(1).tolist()
            found[f"{rate}_per_s"] = {"p50_ms": p50_ms, "p99_ms": p99_ms}
        times_ms = sorted(asyncio.run(measure_changes_ms(self.service.url)))
        found["change_ms"] = [round(times_ms[len(times_ms) // 2], 1), round(times_ms[-1], 1)]
        return found

    def kill_a_worker(self) -> dict[str, Any]:
        """Publish for some seconds, kill a worker, keep publishing; return losses and the longest pauses."""
        url = self.service.url
        feed, reader = Feed(url, LIVE_PAUSE_S), Reader(url, "all")
        feed.start()
        reader.start()
        time.sleep(LIVE_S)
        killed_s = time.monotonic()
        self.cluster.kill_worker(0)
        time.sleep(2 * LIVE_S)
        stands = feed.stop()
        give_up_s = time.monotonic() + MATCHED_WITHIN_S
        while len(reader.came) < len(stands) and time.monotonic() < give_up_s:
            time.sleep(0.1)
        reader.stop()
        return {
            "worker_gap_s": round(reader.longest_gap_s(killed_s - 0.5, killed_s + 2 * LIVE_S - 1.0), 2),
            "live_gap_s": round(reader.longest_gap_s(killed_s - LIVE_S / 2, killed_s), 2),
            "lost": len(stands.keys() - reader.came.keys()),
            "doubled": sum(len(came) > 1 for came in reader.came.values()),
            "fed": len(stands),
        }


async def measure_changes_ms(url: str) -> list[float]:
    """Create subscriptions, one after the other, and publish an event for each."""
    found = []
    async with AsyncClient(url) as client, client.publisher(BatchSettings(linger_ms=0)) as publisher:
        for number in range(CHANGES):
            began_s = time.monotonic()
            id = f"change-{number}-{began_s}"
            await client.create_subscription(f"data.change = {number}", id)
            await publisher.publish({"source": "/l", "type": "t", "data": {"change": number}})
            async with client.subscribe(id) as messages:
                async for message in messages:
                    found.append((time.monotonic() - began_s) * 1000)
                    message.ack()
                    break
            await client.delete_subscription(id)
            await asyncio.sleep(0.5)
    return found


def measure_run(
    options: argparse.Namespace, log: str, partitioning: str, limit: float | None
) -> dict[str, Any]:
    """Events per second for each number of workers; with the first log and partitioning also kill one."""
    is_first = log == options.log[0] and partitioning == options.partitioning[0]
    most, cores, death, latency = max(options.workers), [], {}, []
    for turn, workers in product(range(options.turns), options.workers):
        is_largest = is_first and workers == most
        dies = is_largest and turn == 0 and "death" in options.parts
        waits = is_largest and "latency" in options.parts
        if not dies and not waits and "throughput" not in options.parts:
            continue
        with Run(workers, log, partitioning, most, limit) as run:
            run.prepare(options.subscriptions)
            if "throughput" in options.parts:
                cores.append({"workers": workers, **run.throughput(options.events)})
                print(log, partitioning, cores[-1], file=sys.stderr)
            if waits:
                latency.append(run.latency())
                print(latency[-1], file=sys.stderr)
            if dies:
                death = run.kill_a_worker()
                print(death, file=sys.stderr)
    rates = [
        median(each["events_per_s"] for each in cores if each["workers"] == workers)
        for workers in (options.workers if cores else ())
    ]
    scaling = {}
    if rates:
        scaling["events_per_s"] = rates
        scaling["scaling"] = round(rates[-1] * options.workers[0] / (rates[0] * options.workers[-1]), 2)
    return {"log": log, "partitioning": partitioning, **scaling, "cores": cores, "latency": latency, **death}


def measure_demo(turns: int) -> dict[str, Any]:
    """The demo and the light load on one machine, with the log in SQLite and in Kafka, alternating."""
    found: dict[str, list[dict[str, Any]]] = {log: [] for log in LOGS}
    end_to_end = [sys.executable, str(Path(__file__).with_name("end_to_end.py")), "--json"]
    with_broker = [sys.executable, "-m", "fieldfare_lab.kafka_broker"]
    os.environ.pop("FIELDFARE_PARTITIONING", None)
    os.environ.pop("FIELDFARE_MATCHERS", None)
    for turn in range(turns):
        for log in LOGS if turn % 2 else reversed(LOGS):
            command = [*with_broker, *end_to_end, "--log", log] if log == "kafka" else end_to_end
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            figures = json.loads(done.stdout)
            kept = ("throughput_events_per_s", "latency_p50_ms", "latency_p99_ms", "equal")
            found[log].append({name: figures[name] for name in kept})
            print(log, found[log][-1], file=sys.stderr)
    rates = {log: median(each["throughput_events_per_s"] for each in found[log]) for log in LOGS}
    return {"kafka_ratio": round(rates["kafka"] / rates["sqlite"], 2), "demo": found}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else on stdout"
    )
    for name, choices in (("log", LOGS), ("partitioning", PARTITIONINGS), ("parts", PARTS)):
        parser.add_argument(
            f"--{name}",
            choices=choices,
            nargs="+",
            default=list(choices),
            help="what to measure (default: all of these)",
        )
    parser.add_argument("--events", type=int, default=4_000_000, help="default: %(default)s")
    parser.add_argument("--subscriptions", type=int, default=20_000, help="default: %(default)s")
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=list(WORKERS),
        help="numbers of workers to measure (default: 1 2 3)",
    )
    parser.add_argument(
        "--cpu-limit", type=float, default=CPU_LIMIT, help="a worker's share of a core (default: %(default)s)"
    )
    parser.add_argument(
        "--turns", type=int, default=TURNS, help="measurements of each combination (default: %(default)s)"
    )
    return parser.parse_args()


def main() -> int:
    options = parse()
    reason = why_no_cluster() or (why_no_broker() if "kafka" in options.log else None)
    if reason is not None:
        print(f"there can be no cluster here: {reason}", file=sys.stderr)
        return 1
    limit = options.cpu_limit if why_no_groups() is None else None
    figures: dict[str, Any] = {}
    if {"throughput", "death", "latency"} & set(options.parts):
        ways = [(options.log[0], each) for each in options.partitioning]
        ways += [(each, options.partitioning[0]) for each in options.log[1:]]
        if "throughput" not in options.parts:
            ways = ways[:1]
        runs = [measure_run(options, *way, limit) for way in ways]
        figures |= {
            name: value for name, value in runs[0].items() if name not in ("log", "partitioning", "cores")
        }
        figures["runs"] = runs
    if "demo" in options.parts:
        figures |= measure_demo(options.turns)
    figures |= {
        "machine_cores": os.cpu_count(),
        "cpu_limit": limit,
        "events": options.events,
        "subscriptions": options.subscriptions,
    }
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=2))
    return 1 if figures.get("lost") or figures.get("doubled") else 0


if __name__ == "__main__":
    sys.exit(main())
