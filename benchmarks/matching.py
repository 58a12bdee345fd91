"""How fast a part matches: ``python benchmarks/matching.py --workload range --subscriptions 100000 --json``.

One core. Timed are batches of at most 4,096 events given as columns; the ids of all matches are written.
"""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np

from fieldfare.matching.build import IndexEntry
from fieldfare.matching.columns import Column, ColumnBatch
from fieldfare.matching.part import Part, build_part
from fieldfare.model import OPEN_END
from fieldfare.workloads.synthetic import WORKLOADS

BATCH_EVENTS = 4096


def batches(events: ColumnBatch, size: int) -> list[ColumnBatch]:
    """The events in batches of a size."""
    return [
        ColumnBatch(
            min(size, events.size - start),
            {
                path: Column(column.kinds[start : start + size], column.words[start : start + size])
                for path, column in events.columns.items()
            },
            events.text,
        )
        for start in range(0, events.size, size)
    ]


def time_matching(part: Part, events: ColumnBatch, size: int) -> tuple[float, float, int]:
    """Seconds by the wall, seconds of the processor, and matches for all events, a batch at a time."""
    parts = batches(events, size)
    matches = 0
    started, busy = time.perf_counter(), time.thread_time()
    for batch in parts:
        matches += len(part.match(batch, np.zeros(batch.size, np.int64)).subscriptions)
    return time.perf_counter() - started, time.thread_time() - busy, matches


def small_batch_ms(part: Part, events: ColumnBatch, size: int, rounds: int = 50) -> float:
    """The median time of one small batch."""
    times = []
    for batch in batches(events, size)[:rounds]:
        started = time.perf_counter()
        part.match(batch, np.zeros(batch.size, np.int64))
        times.append(time.perf_counter() - started)
    return float(np.median(times)) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="range")
    parser.add_argument("--subscriptions", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=40_960)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    workload = WORKLOADS[options.workload]
    build_part([])  # so that no kernel is compiled while the clock runs
    entries = [
        IndexEntry(n, n, 0, OPEN_END, form, "", "sql")
        for n, form in enumerate(workload.normal_forms(options.subscriptions, options.seed))
    ]
    warm = build_part(entries[:1000])
    events = workload.events(options.events, options.seed + 1)
    time_matching(warm, batches(events, 64)[0], 64)
    started, build_busy = time.perf_counter(), time.thread_time()
    part = build_part(entries)
    build_s = time.perf_counter() - started
    build_cpu_s = time.thread_time() - build_busy
    time_matching(part, batches(events, BATCH_EVENTS)[0], BATCH_EVENTS)
    elapsed_s, busy_s, matches = time_matching(part, events, BATCH_EVENTS)
    figures = {
        "workload": options.workload,
        "subscriptions": options.subscriptions,
        "events": options.events,
        "events_per_s": round(options.events / elapsed_s),
        "events_per_cpu_s": round(options.events / busy_s),
        "matches_per_s": round(matches / elapsed_s),
        "matches_per_event": round(matches / options.events, 3),
        "one_event_ms": round(small_batch_ms(part, events, 1), 3),
        "five_events_ms": round(small_batch_ms(part, events, 5), 3),
        "build_s": round(build_s, 3),
        "build_cpu_s": round(build_cpu_s, 3),
        "index_bytes": part.size_bytes,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "seed": options.seed,
    }
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:>18}  {value:,}" if not isinstance(value, str) else f"{name:>18}  {value}")


if __name__ == "__main__":
    main()
