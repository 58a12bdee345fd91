"""Matching speed of a part: ``python benchmarks/matching.py --workload range --subscriptions 100000 --json``.

Uses one thread by default. Measures batches of 4,096 events given as columns; the ids of all
matches are written.
Workloads of filters as people write them (see ``fieldfare_lab.workloads.odd``) are also compared with a scan:
each filter is evaluated for the whole batch, column by column. ``first_events_per_s`` is the rate for the
first events, during which each filter that must be evaluated is compiled, when it has its first candidate.

``build_peak_rss_bytes`` is the peak memory of the process when the part was built, including the data that it
was built from (columns are released once they are read) and 0.25 GB of program; ``peak_rss_bytes`` is the
peak at the end.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path as FilePath
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import fieldfare.matching.windows as windows
from fieldfare.filters import Filter, NormalForm, compile_filter, encode_normal_form
from fieldfare.filters.normal_form import path_order
from fieldfare.filters.values import ABSENT
from fieldfare.matching.evaluation.batches import BatchFilter
from fieldfare.matching.events.columns import Column, ColumnBatch
from fieldfare.matching.events.event_columns import columns_of_events
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END, Path
from fieldfare_lab.workloads.columns import Columns, columns_of, range_columns, text_of
from fieldfare_lab.workloads.odd import TEXT_WORKLOADS
from fieldfare_lab.workloads.predicate_columns import build_part_from_columns
from fieldfare_lab.workloads.synthetic import WORKLOADS

BATCH_EVENTS = 4096
SMALL_BATCHES = 200
"""Number of small batches that are matched; the last fifty are timed."""
SCANNED_FILTERS = 200
"""Approximate number of filters with which a scan is timed."""


def batches(events: ColumnBatch, size: int) -> list[ColumnBatch]:
    """Split the events into batches of a size."""
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


def time_matching(part: Part, parts: list[ColumnBatch], threads: int = 1) -> tuple[float, float, int]:
    """Return wall seconds, processor seconds and the matches of all events, matched batch by batch.

    Threads share the part, and each takes the next batch; the kernels release the interpreter's lock.
    """

    def match(batch: ColumnBatch) -> int:
        return len(Index((part,)).match(batch, np.zeros(batch.size, np.int64)).subscriptions)

    started, busy = time.perf_counter(), time.process_time()
    if threads == 1:
        matches = sum(map(match, parts))
    else:
        with ThreadPoolExecutor(threads) as pool:
            matches = sum(pool.map(match, parts))
    return time.perf_counter() - started, time.process_time() - busy, matches


def excluding_attribute(part: Part) -> Path | None:
    """The attribute of most zones of tiles, or if there are none, the attribute in most keys."""
    tiles, access = part.filters.groups.tiles, part.filters.groups.access
    attributes = tiles.zones[:, 0] if len(tiles.zones) else access.attribute
    return part.filters.indexed_paths[int(np.bincount(attributes).argmax())] if len(attributes) else None


def in_order_of(events: ColumnBatch, path: Path | None) -> ColumnBatch:
    """The events of a batch, sorted by an attribute: by the number, if it has whole numbers."""
    if path is None or path not in events.columns:
        return events
    order = np.argsort(events.columns[path].words, kind="stable")
    columns = {
        path: Column(column.kinds[order], column.words[order]) for path, column in events.columns.items()
    }
    return ColumnBatch(events.size, columns, events.text, events.exact)


def open_ms(part: Part) -> float:
    """The median time to open the part's file."""
    with TemporaryDirectory() as folder:
        part.save(f"{folder}/part")
        times = []
        for _ in range(15):
            started = time.perf_counter()
            Part.open(f"{folder}/part")
            times.append(time.perf_counter() - started)
    return float(np.median(times[-50:])) * 1000


def as_json_lines(events: ColumnBatch) -> bytes:
    """The events as they would be published."""
    lines = []
    columns = {path: events.values(path) for path in events.columns}
    for e in range(events.size):
        event: dict[str, Any] = {}
        for path, values in columns.items():
            if values[e] is not ABSENT:
                place = event
                for step in path[:-1]:
                    place = place.setdefault(str(step), {})
                place[str(path[-1])] = values[e]
        lines.append(json.dumps(event, separators=(",", ":")) + "\n")
    return "".join(lines).encode()


def time_from_json(part: Part, parts: list[ColumnBatch]) -> float:
    """Processor seconds to decode all events from JSON and match them, batch by batch."""
    payloads = [as_json_lines(batch) for batch in parts]
    decode_json_lines(payloads[0], parts[0].size, part.paths)
    busy = time.thread_time()
    for payload, batch in zip(payloads, parts, strict=True):
        columns = decode_json_lines(payload, batch.size, part.paths)
        Index((part,)).match(columns, np.zeros(batch.size, np.int64))
    return time.thread_time() - busy


def small_batch_ms(part: Part, parts: list[ColumnBatch]) -> float:
    """The median time of one small batch, once earlier ones have made the index prepare for them."""
    times = []
    for batch in parts[:SMALL_BATCHES]:
        started = time.perf_counter()
        Index((part,)).match(batch, np.zeros(batch.size, np.int64))
        times.append(time.perf_counter() - started)
    return float(np.median(times)) * 1000


def entry(number: int, form: NormalForm | bytes, text: str = "") -> IndexEntry:
    return IndexEntry(number, number, 0, OPEN_END, form, text, "sql")


def built_from_columns(columns: Columns) -> Callable[[], Part]:
    """Return a function that builds a part, once: it owns the columns, and frees each once it is read."""
    paths, predicates, count = columns
    given = [list(predicates)]
    predicates.clear()
    return lambda: build_part_from_columns(paths, given.pop(), np.arange(count, dtype=np.uint32))


def built_from(source: str, name: str, count: int, seed: int) -> Callable[[], Part]:
    """Return a function that builds a part from a workload's subscriptions in some form."""
    if source == "columns" and name == "range":
        return built_from_columns(range_columns(count, seed))
    drawn = WORKLOADS[name].normal_forms(count, seed)
    if source == "columns":
        return built_from_columns(columns_of(drawn))
    if source == "text":
        texts = list(map(text_of, drawn))
        return lambda: build_part(
            entry(n, compile_filter(text).compiled, text) for n, text in enumerate(texts)
        )
    if source == "encoded":
        encoded = list(map(encode_normal_form, drawn))
        return lambda: build_part(entry(n, form) for n, form in enumerate(encoded))
    forms = list(drawn)
    return lambda: build_part(entry(n, form) for n, form in enumerate(forms))


@dataclass(frozen=True)
class Work:
    """The work to time: building a part, matching a batch of events, and sample filters of some workloads."""

    build: Callable[[], Part]
    events: ColumnBatch
    scanned: list[Filter]

    @classmethod
    def drawn(cls, source: str, name: str, subscriptions: int, events: int, seed: int) -> Work:
        """A workload by name, with its subscriptions in some form."""
        if name in WORKLOADS:
            built = built_from(source, name, subscriptions, seed)
            return cls(built, WORKLOADS[name].events(events, seed + 1), [])
        texts, step = (
            TEXT_WORKLOADS[name].filters(subscriptions, seed),
            max(1, subscriptions // SCANNED_FILTERS),
        )
        forms, paths, scanned = [], set[Path](), []
        for n, text in enumerate(texts):
            filter = compile_filter(text)
            forms.append(filter.compiled)
            paths |= filter.column_paths
            if n % step == 0:
                scanned.append(filter)

        def built() -> Part:
            again = (compile_filter(text).compiled for text in texts) if source == "text" else forms
            return build_part(entry(n, form, texts[n]) for n, form in enumerate(again))

        drawn = TEXT_WORKLOADS[name].events(events, seed + 1)
        return cls(built, columns_of_events(drawn, sorted(paths, key=path_order)), scanned)


def scan_s(some: list[Filter], count: int, parts: list[ColumnBatch]) -> float:
    """Seconds to evaluate a number of filters for every batch, estimated from some of them."""
    by_columns = [BatchFilter(filter) for filter in some]
    for each in by_columns:
        each.matches(parts[0])
    started = time.perf_counter()
    for each in by_columns:
        for batch in parts:
            each.matches(batch)
    return (time.perf_counter() - started) * count / len(some)


def peak_rss_bytes() -> int:
    """Peak resident memory of this process so far, including mapped files."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", choices=sorted([*WORKLOADS, *TEXT_WORKLOADS]), default="range")
    parser.add_argument("--subscriptions", type=int, default=100_000)
    parser.add_argument(
        "--from",
        dest="source",
        choices=["normal_forms", "encoded", "text", "columns"],
        default="normal_forms",
        help="form of the subscriptions from which the part is built; building is timed too",
    )
    parser.add_argument("--events", type=int, default=40_960)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--threads", type=int, default=1, help="threads that match different batches with one part"
    )
    parser.add_argument("--batch", type=int, default=BATCH_EVENTS, help="events per batch")
    parser.add_argument(
        "--sort",
        action="store_true",
        help="sort each batch by the attribute that excludes most; sorting is not timed",
    )
    parser.add_argument(
        "--part",
        type=FilePath,
        metavar="FILE",
        help="use the part in this file; if the file does not exist, write it",
    )
    parser.add_argument(
        "--parse", action="store_true", help="also measure with events as JSON lines, which are decoded first"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    build_part([])  # so that no kernel is compiled during the measurement
    warm = Work.drawn(options.source, options.workload, 1000, 64, options.seed).build()
    count = 0 if options.part is not None and options.part.exists() else options.subscriptions
    work = Work.drawn(options.source, options.workload, count, options.events, options.seed)
    windows.WINDOW_EVENTS = max(windows.WINDOW_EVENTS, options.batch)
    parts = batches(work.events, options.batch)
    time_matching(warm, batches(parts[0], 64)[:1])
    started, build_busy = time.perf_counter(), time.thread_time()
    saved = options.part is not None and options.part.exists()
    part = Part.open(options.part) if saved else work.build()
    build_s = time.perf_counter() - started
    build_cpu_s = time.thread_time() - build_busy
    build_peak_rss = peak_rss_bytes()
    if options.part is not None and not saved:
        part.save(options.part)
    if options.sort:
        parts = [in_order_of(batch, excluding_attribute(part)) for batch in parts]
    time_matching(part, parts[: options.threads], options.threads)
    first_s = time_matching(part, parts, options.threads)[0] if work.scanned else 0.0
    elapsed_s, busy_s, matches = time_matching(part, parts, options.threads)
    figures = {
        "workload": options.workload,
        "subscriptions": options.subscriptions,
        "from": options.source,
        "events": options.events,
        "batch": options.batch,
        "threads": options.threads,
        "sorted": options.sort,
        "events_per_s": round(options.events / elapsed_s),
        "events_per_cpu_s": round(options.events / busy_s),
        "matches_per_s": round(matches / elapsed_s),
        "matches_per_event": round(matches / options.events, 3),
        "one_event_ms": round(small_batch_ms(part, batches(parts[0], 1)), 3),
        "five_events_ms": round(small_batch_ms(part, batches(parts[0], 5)), 3),
        "build_s": None if saved else round(build_s, 3),
        "build_cpu_s": None if saved else round(build_cpu_s, 3),
        "open_ms": round(open_ms(part), 3),
        "index_bytes": part.size_bytes,
        "build_peak_rss_bytes": None if saved else build_peak_rss,
        "peak_rss_bytes": peak_rss_bytes(),
        "seed": options.seed,
    }
    if options.parse:
        figures["json_events_per_cpu_s"] = round(options.events / time_from_json(part, parts))
    if work.scanned:
        scanned_s = scan_s(work.scanned, options.subscriptions, parts[:1]) * len(parts)
        figures["first_events_per_s"] = round(options.events / first_s)
        figures["scan_events_per_s"] = round(options.events / scanned_s, 3)
        figures["speed_over_scan"] = round(scanned_s / elapsed_s, 1)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:>18}  {value:,}" if isinstance(value, int | float) else f"{name:>18}  {value}")


if __name__ == "__main__":
    main()
