"""BlueDove on real Spark: messages per second for the four partitionings and four policies.

    python experiments/bluedove/on_spark.py --part pipeline                     all on one machine
    python experiments/bluedove/on_spark.py --part spread --spark local         two matchers
    python experiments/bluedove/on_spark.py --part spread --spark cluster       ... in separate executors
    python experiments/bluedove/on_spark.py --part spread --workload traffic --spark local
    python experiments/bluedove/on_spark.py --part spread --subscriptions 1000000 --runs 1 --spark local
    python experiments/bluedove/on_spark.py --part lost                         cost of a lost executor

Without options it runs all of these in turn, except the one with a million subscriptions.

Events are in a service's log, as JSON or as Arrow; a run ends when all their matches are in its match log on
disk. `fused` is the service's form on one machine: the task that reads events matches them, with slices
that all workers map. The other systems send events to two matchers, and the matches to the tasks that write
the blocks, through two shuffles: on ``local[2]`` between two Python workers of one Java process, on
``local-cluster`` between executors. All systems must find the same number of matches.

Workloads: ``paper`` (every range moved inside the axis, as the paper crops its distributions), ``uncropped``
(centres may be outside the axis: a fifth of the subscriptions can never match), ``traffic`` (METR-LA's week,
if the data is available). Every system runs several times, and the systems alternate. The CSV has a row for
each run; the printed table has median, minimum and maximum. ``--json`` prints one object at the end.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import shutil
import signal
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from spark_tables import print_table, summarise
from systems import write_csv

from fieldfare.filters import Conjunction, NormalForm, encode_normal_form
from fieldfare.filters.values import ValueSet, greater_than, less_than
from fieldfare.matching.events.arrow_decoder import columns_from_arrow
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.partitioning import Extents, extents_of
from fieldfare.pipeline.manifest import Manifest, SpaceManifest
from fieldfare.planning.choosing import choose_partitioning
from fieldfare.runtimes.spark.session import SparkSettings, service_session, standard_error_to
from fieldfare.storage import open_event_log, open_index_store
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.folder import DataFolder
from fieldfare_lab.simulation.bluedove.workload import LENGTH, PATHS, RANGE_WIDTH, Boxes, boxes, points
from fieldfare_lab.spark.batches import BatchReport, LogBatches
from fieldfare_lab.spark.fixed_index import write_space
from fieldfare_lab.workloads.synthetic import closed_range

DEFAULT_FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"
DATA = Path(os.environ.get("FIELDFARE_SHARED_DATA", DEFAULT_FOLDER)) / "metr_la_week_lon_lat_speed.csv.gz"
PARTS = ["pipeline", "spread", "lost"]
SUBSCRIPTIONS = 40_000
RECORD_EVENTS = 5_000
SPACE = "default"
MATCHERS = 2
MASTERS = {"local": "local[2]", "cluster": "local-cluster[2,1,1024]"}
POLICIES = ("adaptive", "response_time", "subscription_count", "random")
SYSTEMS = [
    ("replicated", "fused"),
    *(("attribute_space", policy) for policy in (*POLICIES, "balanced")),
    ("single_attribute", "adaptive"),
    ("hash", "adaptive"),
    ("replicated", "random"),
    ("replicated", "adaptive"),
]


@dataclass(frozen=True, eq=False)
class Workload:
    """Subscriptions and events of four attributes: values is float64 or int64[n, 4]."""

    name: str
    names: tuple[str, ...]
    forms: Sequence[NormalForm]
    values: NDArray[Any]

    @property
    def entries(self) -> list[IndexEntry]:
        return [
            IndexEntry(n + 1, n, 0, OPEN_END, encode_normal_form(form), "", "sql")
            for n, form in enumerate(self.forms)
        ]

    @property
    def extents(self) -> Extents:
        return extents_of(enumerate(self.forms), [("data", name) for name in self.names])

    def table(self, start: int, end: int) -> pa.RecordBatch:
        """Events as Arrow: their context attributes, and `data` as a struct."""
        data = [pa.array(np.ascontiguousarray(column)) for column in self.values[start:end].T]
        size = end - start
        columns = {
            "id": pa.array(map(str, range(start, end)), pa.string()),
            "source": pa.array(["/m"] * size),
            "specversion": pa.array(["1.0"] * size),
            "type": pa.array(["m"] * size),
            "data": pa.StructArray.from_arrays(data, names=list(self.names)),
        }
        return pa.record_batch(list(columns.values()), names=list(columns))

    def sample(self, size: int = 5_000) -> ColumnBatch:
        return columns_from_arrow(self.table(0, size), [("data", name) for name in self.names])

    def payload(self, start: int, end: int, form: str) -> bytes:
        """A record: JSON lines, or an Arrow stream."""
        if form == "arrow":
            sink = pa.BufferOutputStream()
            batch = self.table(start, end)
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            return bytes(sink.getvalue())
        data = ",".join(f'"{name}":%r' for name in self.names)
        line = '{"id":"%d","source":"/m","specversion":"1.0","type":"m","data":{' + data + "}}\n"
        return "".join(
            line % (n, *values) for n, values in enumerate(self.values[start:end].tolist(), start)
        ).encode()


def bluedove(subscriptions: int, events: int) -> Workload:
    """The paper's workload, as in all figures: every range 250 wide, moved inside the axis if needed."""
    names = tuple(path[1] for path in PATHS)
    drawn = boxes(subscriptions, np.random.default_rng([1, subscriptions]))
    return Workload("paper", names, list(drawn.normal_forms()), points(events, np.random.default_rng(2)))


def uncropped(subscriptions: int, events: int) -> Workload:
    """Hot spots at fifths and centres that may be outside the axis, so that half as many match an event."""
    rng = np.random.default_rng([3, subscriptions])
    low = (
        rng.normal([200.0, 400.0, 600.0, 800.0], 250.0, (subscriptions, 4)).astype(np.int64)
        - RANGE_WIDTH // 2
    )
    # A range beyond the axis matches nothing, but is still a subscription.
    drawn = Boxes(np.clip(low, -1, LENGTH), np.clip(low + RANGE_WIDTH, -1, LENGTH))
    names = tuple(path[1] for path in PATHS)
    return Workload("uncropped", names, list(drawn.normal_forms()), points(events, np.random.default_rng(2)))


def traffic(subscriptions: int, _events: int) -> Workload:
    """METR-LA: drivers subscribe to slow traffic near a place, at some hours of the day.

    A subscription is a box of 2 to 10 km around one of the 207 detectors, a speed below 25 to 60 mph, and two
    to six hours. The events are the week's 417,312 measurements in order.
    """
    with gzip.open(DATA, "rt") as file:
        rows = [[*row[2:], row[0][11:16]] for row in list(csv.reader(file))[1:]]
    values = np.array([[*map(float, row[:3]), 60 * int(row[3][:2]) + int(row[3][3:])] for row in rows])
    rng = np.random.default_rng([4, subscriptions])
    centres = values[rng.integers(0, len(values), subscriptions), :2]
    halves = rng.uniform(0.01, 0.05, (subscriptions, 1))
    slow = rng.choice([25, 35, 45, 60], subscriptions)
    first = rng.integers(0, 18 * 60, subscriptions)
    last = first + rng.integers(120, 360, subscriptions)
    low, high = centres - halves, centres + halves
    forms = []
    paths = [("data", name) for name in ("latitude", "longitude", "minute", "speed")]
    for i in range(subscriptions):
        sides = [_between(low[i, 1], high[i, 1]), _between(low[i, 0], high[i, 0])]
        sides += [
            closed_range(int(first[i]), int(last[i])),
            ValueSet(numbers=less_than(Decimal(int(slow[i])))),
        ]
        forms.append(NormalForm((Conjunction(tuple(zip(paths, sides, strict=True)), True),)))
    return Workload("traffic", ("longitude", "latitude", "speed", "minute"), forms, values)


WORKLOADS = {"paper": bluedove, "uncropped": uncropped, "traffic": traffic}


def _between(low: float, high: float) -> ValueSet:
    above = greater_than(Decimal(f"{low:.5f}"), or_equal=True)
    return ValueSet(numbers=above.intersection(less_than(Decimal(f"{high:.5f}"), or_equal=True)))


class Bench:
    """One workload in a service's directory, and its runs."""

    def __init__(self, workload: Workload, root: Path, form: str = "json") -> None:
        self.workload = workload
        self.form = form
        self.folder = DataFolder(root / form)
        self.folder.make()
        self.store = open_index_store(self.folder.index_url)
        self.entries, self.extents = workload.entries, workload.extents
        self._manifests: dict[tuple[str, int], Manifest] = {}
        log, count = open_event_log(self.folder.log_url), len(workload.values)
        bounds = [(start, min(count, start + RECORD_EVENTS)) for start in range(0, count, RECORD_EVENTS)]
        for first in range(0, len(bounds), 40):
            log.append(
                [
                    NewRecord(SPACE, workload.payload(start, end, form), end - start, None, None, 0)
                    for start, end in bounds[first : first + 40]
                ]
            )
        self.end = log.partitions[0].end()
        log.close()

    def cut(self, partitioning: str, matchers: int) -> None:
        """Cut the index into slices in this way: write them once, and name them in a new manifest."""
        known = self._manifests.get((partitioning, matchers))
        if known is not None:
            self.store.write_manifest(replace(known, number=self.store.greatest_number() + 1))
            return
        chosen = choose_partitioning(partitioning, matchers, self.extents, self.workload.sample())
        known = write_space(self.store, SPACE, self.entries, chosen, self.extents)
        self._manifests[partitioning, matchers] = known

    def batches(self, session: SparkSession, partitioning: str, policy: str) -> LogBatches:
        fused = policy == "fused"
        self.cut(partitioning, 1 if fused else MATCHERS)
        return LogBatches(session, self.folder, forwarding=None if fused else policy)

    def ranges(self, batch_events: int) -> list[tuple[int, int]]:
        step = max(1, batch_events // RECORD_EVENTS)
        return [(start, min(self.end, start + step)) for start in range(0, self.end, step)]

    def run(self, session: SparkSession, partitioning: str, policy: str, batch_events: int) -> dict[str, Any]:
        """Match everything, after a first batch that warms up and lets the policy learn."""
        batches = self.batches(session, partitioning, policy)
        ranges = self.ranges(batch_events)
        batches.match(*ranges[0])
        reports = [batches.match(*each) for each in ranges]
        self.forget_matches()
        return self.row(session, partitioning, policy, batches.manifest.spaces[SPACE], reports)

    def forget_matches(self) -> None:
        shutil.rmtree(self.folder.matches)

    def row(
        self,
        session: SparkSession,
        partitioning: str,
        policy: str,
        cut: SpaceManifest,
        reports: list[BatchReport],
    ) -> dict[str, Any]:
        events, seconds = len(self.workload.values), sum(report.seconds for report in reports)
        matches = sum(report.matches for report in reports)
        busy_s = sum(report.busy_s for report in reports)
        sizes = [part.size for part in cut.slices]
        visited = sum(sizes[n] * count for report in reports for (_, n), count in report.visits.items())
        return {
            "spark": session.sparkContext.master,
            "workload": self.workload.name,
            "form": self.form,
            "subscriptions": len(self.entries),
            "partitioning": partitioning,
            "policy": policy,
            "messages_per_s": round(events / seconds),
            "matches_per_s": round(matches / seconds),
            "matches": matches,
            "busy_s": [round(float(each), 1) for each in busy_s],
            "busy_us": round(1e6 * float(busy_s.sum()) / events, 2),
            "imbalance": round(float(np.std(busy_s) / np.mean(busy_s)), 3),
            "searched": round(visited / events) if visited else sizes[0],
            "copies": round(sum(sizes) / len(self.entries), 2),
            "shuffled_bytes": round(sum(report.sent_bytes for report in reports) / events),
            "match_log_bytes": round(sum(report.size_bytes for report in reports) / events),
        }


@contextmanager
def spark(master: str, root: Path) -> Iterator[SparkSession]:
    """A session with the service's settings, local or with a cluster."""
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "127.0.0.1")
    extra = {"spark.master": master, "spark.executor.memory": "800m", "spark.task.maxFailures": "4"}
    with standard_error_to(root / "spark.log"):
        session = service_session(SparkSettings(cores=2), root / "spark", extra)
    try:
        yield session
    finally:
        session.stop()


def compare(
    bench: Bench, session: SparkSession, batch_events: int, systems: Sequence[tuple[str, str]], runs: int
) -> list[dict[str, Any]]:
    """A row for each run of each system; the systems alternate, so that a slow minute affects all. Their
    numbers of matches must be equal.
    """
    rows = []
    for number in range(1, runs + 1):
        for partitioning, policy in systems:
            row = bench.run(session, partitioning, policy, batch_events)
            rows.append({"run": number, **row})
            print(rows[-1], file=sys.stderr, flush=True)
            if row["matches"] != rows[0]["matches"]:
                raise RuntimeError(f"{rows[-1]} and {rows[0]} do not agree")
    return rows


def pipeline(root: Path, name: str, events: int, runs: int) -> list[dict[str, Any]]:
    """The whole pipeline on one machine, with JSON and with Arrow in the log."""
    rows = []
    workload = WORKLOADS[name](SUBSCRIPTIONS, events)
    for form in ("json", "arrow"):
        with tempfile.TemporaryDirectory(dir=root) as folder:
            bench = Bench(workload, Path(folder), form)
            with spark(MASTERS["local"], root) as session:
                rows += compare(bench, session, events, [("replicated", "fused")], runs)
    return rows


def executors(session: SparkSession) -> list[int]:
    """The ids of the executors' processes, which are children of this session's Java process."""
    java = session.sparkContext._gateway.proc.pid
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                if parent == java and b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # It ended meanwhile.
    return found


def lose_executor(bench: Bench, session: SparkSession, batch_events: int) -> dict[str, Any]:
    """Kill one of two executors during a batch; return the time of that batch and of the next ones."""
    batches = bench.batches(session, "attribute_space", "adaptive")
    batch = bench.ranges(batch_events)[0]
    calm = [batches.match(*batch) for _ in range(4)][1:]
    usual_s = statistics.median(report.seconds for report in calm)
    victim = executors(session)[0]
    timer = threading.Timer(usual_s / 2, os.kill, (victim, signal.SIGKILL))
    timer.start()
    hit = batches.match(*batch)
    timer.join()
    after = [batches.match(*batch) for _ in range(3)]
    bench.forget_matches()
    if any(report.matches != calm[0].matches for report in (hit, *after)):
        raise RuntimeError("matches were lost with the executor")
    return {
        "usual_s": round(usual_s, 2),
        "hit_s": round(hit.seconds, 2),
        "gap_s": round(hit.seconds - usual_s, 2),
        "after_s": [round(report.seconds, 2) for report in after],
        "executors_after": len(executors(session)),
    }


def spread(
    root: Path, name: str, kind: str, subscriptions: int, events: int, runs: int
) -> list[dict[str, Any]]:
    """All partitionings and policies on one kind of Spark and one workload."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        bench = Bench(WORKLOADS[name](subscriptions, events), Path(folder))
        batch_events = max(len(bench.workload.values) // 2, 2 * RECORD_EVENTS)
        with spark(MASTERS[kind], root) as session:
            return compare(bench, session, batch_events, SYSTEMS, runs)


def lost(root: Path, subscriptions: int, events: int) -> dict[str, Any]:
    """See `lose_executor`."""
    with tempfile.TemporaryDirectory(dir=root) as folder:
        bench = Bench(bluedove(subscriptions, events), Path(folder))
        with spark(MASTERS["cluster"], root) as session:
            return lose_executor(bench, session, events)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument(
        "--workload",
        nargs="+",
        choices=list(WORKLOADS),
        help="default: paper and uncropped for the pipeline, paper and traffic for the matchers",
    )
    parser.add_argument(
        "--spark", nargs="+", choices=list(MASTERS), help="default: both, but only local for traffic"
    )
    parser.add_argument("--subscriptions", type=int, default=SUBSCRIPTIONS)
    parser.add_argument(
        "--events", type=int, help="default: depends on the part and the number of subscriptions"
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each system (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout at the end")
    return parser.parse_args()


def main() -> None:
    options = parse()
    events = options.events or (1_000_000 if options.subscriptions <= 100_000 else 60_000)
    figures: dict[str, Any] = {"rows": []}

    def keep(name: str, rows: list[dict[str, Any]]) -> None:
        write_csv(name, rows)
        summary = summarise(rows)
        print_table(summary)
        figures["rows"] += summary

    with tempfile.TemporaryDirectory(prefix="fieldfare-bluedove-") as scratch:
        root = Path(scratch)
        if "pipeline" in options.part:
            for name in options.workload or ["paper", "uncropped"]:
                rows = pipeline(root, name, options.events or 2_000_000, options.runs)
                keep(f"on_spark_pipeline_{name}", rows)
        for name in (options.workload or ["paper", "traffic"]) if "spread" in options.part else ():
            if name == "traffic" and not DATA.exists():
                print(f"METR-LA is left out: {DATA.name} is not there", file=sys.stderr)
                continue
            for kind in options.spark or (["local"] if name == "traffic" else MASTERS):
                rows = spread(root, name, kind, options.subscriptions, events, options.runs)
                keep(f"on_spark_{options.subscriptions}_{name}_{kind}", rows)
        if "lost" in options.part:
            figures["lost_executor"] = lost(root, options.subscriptions, events)
            print(figures["lost_executor"], flush=True)
            write_csv(f"on_spark_{options.subscriptions}_lost", [figures["lost_executor"]])
    if options.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
