"""The cost of an event, step by step, on one core: ``python experiments/scaling/calibrate.py``.

The steps are decoding JSON, searching an index, and sorting matches by subscription, for indexes of 10,000 to
five million subscriptions of the two kinds in `workloads`. The figures are processor time, the minimum of
several rounds. Then the fixed time that Spark needs per task is measured. Writes ``calibration.json``, from
which the curves are drawn.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import numpy as np
import pyarrow as pa
from workloads import PATHS, WORKLOADS, event_lines

from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.grouping import group_by_subscription
from fieldfare.matching.index import Index
from fieldfare.runtimes.spark.session import SparkSettings, service_session
from fieldfare_lab.workloads.predicate_columns import build_part_from_columns

HERE = Path(__file__).resolve().parent
FILE = HERE / "calibration.json"
SPREAD = HERE.parent / "bluedove" / "results" / "on_spark_40000_paper_local.csv"
SIZES = [10_000, 100_000, 1_000_000, 5_000_000]
EVENTS = 8192
BATCHES = 8


def measured(kind: str, size: int, rounds: int) -> dict[str, Any]:
    """A number of subscriptions of one kind."""
    paths, predicates, count = WORKLOADS[kind](size, 1)
    part = build_part_from_columns(paths, predicates, np.arange(count, dtype=np.uint32))
    index, offsets = Index((part,)), np.zeros(EVENTS, np.int64)
    payloads = [event_lines(EVENTS, size, seed) for seed in range(BATCHES)]
    decode_s = find_s = order_s = float("inf")
    for _ in range(rounds + 1):
        started_s = process_time()
        batches = [decode_json_lines(payload, EVENTS, PATHS[kind]) for payload in payloads]
        decoded_s = process_time()
        found = [
            pairs.behind(place * EVENTS)
            for place, events in enumerate(batches)
            for pairs in index.collect(events, offsets)
        ]
        found_s = process_time()
        lists = group_by_subscription(found)
        ordered_s = process_time()
        decode_s = min(decode_s, decoded_s - started_s)
        find_s, order_s = min(find_s, found_s - decoded_s), min(order_s, ordered_s - found_s)
    events = EVENTS * BATCHES
    return {
        "workload": kind,
        "subscriptions": size,
        "decode_us": round(1e6 * decode_s / events, 3),
        "search_us": round(1e6 * find_s / events, 3),
        "order_us": round(1e6 * order_s / events, 3),
        "matches": round(len(lists.ordinals) / events, 2),
        "event_bytes": round(sum(map(len, payloads)) / events),
        "index_bytes": round(part.size_bytes / size, 1),
    }


def send_us() -> float:
    """The cost of sending an event from one task to another, for BlueDove's workload on Spark.

    Two cores match it where the log is read, or at two matchers of the attribute space; the difference of the
    medians (``experiments/bluedove/on_spark.py --part spread``) is used as the cost of sending it.
    """
    rates: dict[tuple[str, str], list[float]] = {}
    with SPREAD.open() as file:
        for row in csv.DictReader(file):
            system = (row["partitioning"], row["policy"])
            rates.setdefault(system, []).append(float(row["messages_per_s"]))
    fused, sent = median(rates["replicated", "fused"]), median(rates["replicated", "random"])
    return round(2e6 * max(0.0, 1 / sent - 1 / fused), 3)


def nothing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task without work, to time the rest; it reads all rows, or its worker would not be reused."""
    yield from (batch.slice(0, 0) for batch in batches)


def overheads(rounds: int) -> dict[str, float]:
    """Seconds in which the driver launches a task, and in which a Python task runs on its slot."""
    with TemporaryDirectory() as folder:
        session = service_session(SparkSettings(cores=2), Path(folder))
        try:
            launch_s, task_s = float("inf"), float("inf")
            for _ in range(rounds + 1):
                for tasks, is_python in ((2000, False), (400, True)):
                    numbers = session.range(0, tasks, numPartitions=tasks)
                    rows = numbers.mapInArrow(nothing, "id long") if is_python else numbers.filter("id < 0")
                    started_s = perf_counter()
                    rows.write.format("noop").mode("overwrite").save()
                    each_s = (perf_counter() - started_s) / tasks
                    if is_python:
                        task_s = min(task_s, 2 * each_s)
                    else:
                        launch_s = min(launch_s, each_s)
        finally:
            session.stop()
    return {"launch_s": round(launch_s, 6), "task_s": round(task_s, 6)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    rows = []
    for kind in WORKLOADS:
        for size in SIZES:
            rows.append(measured(kind, size, options.rounds))
            print(rows[-1], file=sys.stderr, flush=True)
    options.out.write_text(
        json.dumps({"steps": rows, "send_us": send_us(), "overheads": overheads(options.rounds)}, indent=1)
        + "\n"
    )


if __name__ == "__main__":
    main()
