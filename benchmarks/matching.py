"""How fast a part matches: ``python benchmarks/matching.py --workload range --subscriptions 100000 --json``.

One core. Timed are batches of at most 4,096 events given as columns; the ids of all matches are written.
Workloads of filters as people write them (see ``fieldfare.workloads.odd``) are also timed against a scan:
each filter evaluated for the whole batch, column by column.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from dataclasses import dataclass

import numpy as np

from fieldfare.filters import Filter, compile_filter
from fieldfare.filters.normal_form import path_order
from fieldfare.matching.build import IndexEntry
from fieldfare.matching.columns import Column, ColumnBatch
from fieldfare.matching.event_columns import columns_of_events
from fieldfare.matching.part import Part, build_part
from fieldfare.model import OPEN_END
from fieldfare.workloads.odd import TEXT_WORKLOADS
from fieldfare.workloads.synthetic import WORKLOADS

BATCH_EVENTS = 4096
SCANNED_FILTERS = 200
"""A scan is timed with about so many of the filters."""


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


def time_matching(part: Part, parts: list[ColumnBatch]) -> tuple[float, float, int]:
    """Seconds by the wall, seconds of the processor, and matches for all events, a batch at a time."""
    matches = 0
    started, busy = time.perf_counter(), time.thread_time()
    for batch in parts:
        matches += len(part.match(batch, np.zeros(batch.size, np.int64)).subscriptions)
    return time.perf_counter() - started, time.thread_time() - busy, matches


def small_batch_ms(part: Part, parts: list[ColumnBatch]) -> float:
    """The median time of one small batch."""
    times = []
    for batch in parts:
        started = time.perf_counter()
        part.match(batch, np.zeros(batch.size, np.int64))
        times.append(time.perf_counter() - started)
    return float(np.median(times)) * 1000


@dataclass(frozen=True)
class Work:
    """What is timed: subscriptions, events as one batch, and the filters if they are texts."""

    entries: list[IndexEntry]
    events: ColumnBatch
    filters: list[Filter]

    @classmethod
    def drawn(cls, name: str, subscriptions: int, events: int, seed: int) -> Work:
        """A workload by name."""
        if name in WORKLOADS:
            workload = WORKLOADS[name]
            forms = workload.normal_forms(subscriptions, seed)
            entries = [IndexEntry(n, n, 0, OPEN_END, form, "", "sql") for n, form in enumerate(forms)]
            return cls(entries, workload.events(events, seed + 1), [])
        filters = [compile_filter(text) for text in TEXT_WORKLOADS[name].filters(subscriptions, seed)]
        entries = [
            IndexEntry(n, n, 0, OPEN_END, filter.normal_form, filter.text, "sql")
            for n, filter in enumerate(filters)
        ]
        paths = sorted({path for filter in filters for path in filter.column_paths}, key=path_order)
        drawn = TEXT_WORKLOADS[name].events(events, seed + 1)
        return cls(entries, columns_of_events(drawn, paths), filters)


def scan_s(filters: list[Filter], parts: list[ColumnBatch]) -> float:
    """Seconds to evaluate every filter for every batch, estimated from some of the filters."""
    some = filters[:: max(1, len(filters) // SCANNED_FILTERS)]
    for filter in some:
        filter.matches_batch(parts[0])
    started = time.perf_counter()
    for filter in some:
        for batch in parts:
            filter.matches_batch(batch)
    return (time.perf_counter() - started) * len(filters) / len(some)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=sorted([*WORKLOADS, *TEXT_WORKLOADS]), default="range")
    parser.add_argument("--subscriptions", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=40_960)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    build_part([])  # so that no kernel is compiled while the clock runs
    work = Work.drawn(options.workload, options.subscriptions, options.events, options.seed)
    warm, parts = build_part(work.entries[:1000]), batches(work.events, BATCH_EVENTS)
    time_matching(warm, batches(parts[0], 64)[:1])
    started, build_busy = time.perf_counter(), time.thread_time()
    part = build_part(work.entries)
    build_s = time.perf_counter() - started
    build_cpu_s = time.thread_time() - build_busy
    time_matching(part, parts[:1])
    elapsed_s, busy_s, matches = time_matching(part, parts)
    figures = {
        "workload": options.workload,
        "subscriptions": options.subscriptions,
        "events": options.events,
        "events_per_s": round(options.events / elapsed_s),
        "events_per_cpu_s": round(options.events / busy_s),
        "matches_per_s": round(matches / elapsed_s),
        "matches_per_event": round(matches / options.events, 3),
        "one_event_ms": round(small_batch_ms(part, batches(parts[0], 1)[:50]), 3),
        "five_events_ms": round(small_batch_ms(part, batches(parts[0], 5)[:50]), 3),
        "build_s": round(build_s, 3),
        "build_cpu_s": round(build_cpu_s, 3),
        "index_bytes": part.size_bytes,
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "seed": options.seed,
    }
    if work.filters:
        scanned_s = scan_s(work.filters, parts[:1]) * len(parts)
        figures["scan_events_per_s"] = round(options.events / scanned_s, 3)
        figures["speed_over_scan"] = round(scanned_s / elapsed_s, 1)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:>18}  {value:,}" if not isinstance(value, str) else f"{name:>18}  {value}")


if __name__ == "__main__":
    main()
