"""How a service on a Spark cluster scales, and what the death of a worker costs.

    python benchmarks/cluster.py --json

starts, for 1, 2 and 3 workers, a standalone cluster (a master and workers, processes of their own on
loopback), a Kafka broker, and a service that has them; without Kafka (`--log sqlite`) the log is a file that
the workers of this machine read. Each worker, with all that it starts, is limited to half a core by a control
group while it is measured; so two cores are shared by at most one and a half of workers, and by all else. It
prints one JSON object:

events_per_s
    For 1, 2, 3 workers: from the moment when Spark's driver, which was stopped while events were published,
    goes on, to the last block of matches.
scaling
    That of three workers over three times that of one. Goal: 0.85.
worker_gap_s
    The longest time in which a subscriber got nothing, when a worker of three is killed while 50 events a
    second are published; and `live_gap_s` in as many seconds before that. Goal: 5.
lost, doubled
    Messages that did not come then, or twice. Goal: 0.
cores
    What each core did while it was measured (busy, as a share), and how much of a core each worker took.
machine_cores, cpu_limit, log, events, subscriptions
    What was measured. `cpu_limit` is null where control groups cannot be made: then nothing is limited, and
    `scaling` says little.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import httpx

from fieldfare.cli.demo.service import Service, ServicePlaces
from fieldfare.client import Client, NewSubscription
from fieldfare.storage import open_event_log, open_match_log
from fieldfare.storage.event_log import ends_of
from fieldfare.storage.folder import DataFolder
from fieldfare_lab.cpu_group import why_no_groups
from fieldfare_lab.feeding import Feed, Reader
from fieldfare_lab.kafka_broker import KafkaBroker, why_no_broker
from fieldfare_lab.spark_cluster import SparkCluster, why_no_cluster

WORKERS = (1, 2, 3)
CPU_LIMIT = 0.5
ATTRIBUTES = 4
DOMAIN, WIDTH = 1000, 250
RECORD_EVENTS = 2_000
BULK = 5_000
WARM_EVENTS = 40_000
PARTITIONS = 6
MATCHED_WITHIN_S = 280.0
LIVE_S = 8.0
LIVE_PAUSE_S = 0.02


def subscribe(url: str, count: int) -> None:
    """Ranges on four attributes, as in BlueDove's workload: an event of four matches 0.4 %."""
    random = Random(1)
    with Client(url, timeout_s=120.0) as client:
        client.create_subscription("data.n >= 0", "all")
        for first in range(0, count, BULK):
            some = []
            for number in range(first, min(first + BULK, count)):
                lows = [random.randrange(DOMAIN - WIDTH) for _ in range(ATTRIBUTES)]
                text = " AND ".join(
                    f"data.a{i} BETWEEN {low} AND {low + WIDTH}" for i, low in enumerate(lows)
                )
                some.append(NewSubscription(text, f"s{number}"))
            client.create_subscriptions(some)


def publish(url: str, events: int) -> None:
    """Events as JSON lines, in records of equal size, for all partitions in turn."""
    random = Random(2)
    with httpx.Client(base_url=url, timeout=120) as http:
        for first in range(0, events, RECORD_EVENTS):
            lines = []
            for n in range(first, min(first + RECORD_EVENTS, events)):
                data = ",".join(f'"a{i}":{random.randrange(DOMAIN)}' for i in range(ATTRIBUTES))
                head = f'{{"specversion":"1.0","id":"{n}","source":"/b","type":"t"'
                lines.append(f'{head},"data":{{{data}}}}}\n')
            headers = {"content-type": "application/x-ndjson"}
            while True:
                answer = http.post("/v1/spaces/default/events", content="".join(lines), headers=headers)
                if answer.status_code not in (429, 503):
                    answer.raise_for_status()
                    break
                time.sleep(0.2)


def matched_up_to(folder: DataFolder) -> tuple[int, ...]:
    """What the pipeline says."""
    try:
        return tuple(json.loads(folder.heartbeat.read_bytes()).get("matched") or ())
    except (OSError, ValueError):
        return ()


def wait_matched(folder: DataFolder) -> tuple[int, ...]:
    """Wait until everything is matched that is in the log now; where the log ends."""
    log = open_event_log(folder.log_url)
    ends = tuple(ends_of(log))
    log.close()
    give_up_s = time.monotonic() + MATCHED_WITHIN_S
    while matched_up_to(folder) != ends:
        if time.monotonic() > give_up_s:
            raise TimeoutError(f"matched up to {matched_up_to(folder)}, not {ends}")
        time.sleep(0.2)
    return ends


def last_matched_ms(folder: DataFolder, starts: Sequence[int], ends: Sequence[int]) -> float:
    """When the last block of these records was written, as its task says."""
    log, last_ms = open_match_log(folder.matches_url), 0.0
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        partition, offset = log.partition(number), start
        while offset < end:
            block = partition.block_at(offset)
            assert block is not None
            last_ms = max(last_ms, float(block.extra.get("matched_ms", 0.0)))
            offset = block.end
    return last_ms


def core_times() -> list[tuple[float, float]]:
    """For each core, how long it worked, and how long it was there."""
    found = []
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("cpu") and line[3].isdigit():
            times = [int(text) for text in line.split()[1:9]]
            found.append((float(sum(times) - times[3] - times[4]), float(sum(times))))
    return found


class Run:
    """A service on a cluster of so many workers, from its start to its end."""

    def __init__(self, workers: int, log: str, limit: float | None) -> None:
        self._stack = ExitStack()
        self.limit = limit
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-")))
            places: dict[str, Any] = {}
            if log == "kafka":
                broker = stack.enter_context(KafkaBroker())
                places["log"] = f"kafka://{broker.address}/events?partitions={PARTITIONS}"
                places["index_store"] = (folder / "shared").as_uri()
            # A start is not what is measured: until then they have what there is.
            self.cluster = stack.enter_context(SparkCluster(workers, cpu_limit=limit and os.cpu_count()))
            places["master"] = self.cluster.address
            self.service = stack.enter_context(Service(folder / "data", ServicePlaces(**places)))
            self.service.wait_until_ready()
            self._stack = stack.pop_all()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def throughput(self, events: int, subscriptions: int) -> dict[str, Any]:
        """What is matched in a second of a backlog, and what the cores did meanwhile."""
        folder = self.service.folder
        subscribe(self.service.url, subscriptions)
        self.service.wait_until_indexed()
        for _ in range(2):
            publish(self.service.url, WARM_EVENTS)
            starts = wait_matched(folder)
        groups = [each.group for each in self.cluster.workers if each.group is not None]
        java = int(folder.jvm_pid.read_text().split()[0])
        os.kill(java, signal.SIGSTOP)
        try:
            publish(self.service.url, events)
            for group in groups:
                group.limit(self.limit or 1.0)
            used_s, cores = [group.used_s() for group in groups], core_times()
            began_ms = time.time() * 1000
        finally:
            os.kill(java, signal.SIGCONT)
        ends = wait_matched(folder)
        took_s = (last_matched_ms(folder, starts, ends) - began_ms) / 1000
        looked_s = time.time() - began_ms / 1000
        return {
            "events_per_s": round(events / took_s),
            "workers_busy": [
                round((group.used_s() - before_s) / looked_s, 2)
                for group, before_s in zip(groups, used_s, strict=True)
            ],
            "cores_busy": [
                round((busy - before) / max(1.0, total - total_before), 2)
                for (busy, total), (before, total_before) in zip(core_times(), cores, strict=True)
            ],
        }

    def kill_a_worker(self) -> dict[str, Any]:
        """Publish for some seconds, kill a worker, publish on; what came of it, and the longest pauses."""
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


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else on stdout"
    )
    parser.add_argument("--log", choices=("kafka", "sqlite"), default="kafka")
    parser.add_argument("--events", type=int, default=400_000, help="default: %(default)s")
    parser.add_argument("--subscriptions", type=int, default=20_000, help="default: %(default)s")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=list(WORKERS), help="how many each time (default: 1 2 3)"
    )
    options = parser.parse_args()
    reason = why_no_cluster() or (why_no_broker() if options.log == "kafka" else None)
    if reason is not None:
        print(f"there can be no cluster here: {reason}", file=sys.stderr)
        return 1
    limit = CPU_LIMIT if why_no_groups() is None else None
    measured, figures = [], {}
    for workers in options.workers:
        with Run(workers, options.log, limit) as run:
            measured.append({"workers": workers, **run.throughput(options.events, options.subscriptions)})
            print(measured[-1], file=sys.stderr)
            if workers == max(options.workers):
                figures = run.kill_a_worker()
    rates = [each["events_per_s"] for each in measured]
    figures = {
        "events_per_s": rates,
        "scaling": round(rates[-1] * options.workers[0] / (rates[0] * options.workers[-1]), 2),
        **figures,
        "cores": measured,
        "machine_cores": os.cpu_count(),
        "cpu_limit": limit,
        "log": options.log,
        "events": options.events,
        "subscriptions": options.subscriptions,
    }
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=2))
    return 1 if figures["lost"] or figures["doubled"] else 0


if __name__ == "__main__":
    sys.exit(main())
