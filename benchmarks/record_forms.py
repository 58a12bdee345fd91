"""Matching speed of records in JSON and in Arrow: ``python benchmarks/record_forms.py --json``.

Uses one core. Complete CloudEvents, 8,192 per batch, go through ``match_batch`` in records of several sizes,
in both forms alternately; a figure is the best of the turns, in processor time. Two steps are also timed
alone: reading the attributes (access point), and the gateway's check of a request, JSON lines or an Arrow
stream.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from fieldfare.arrow_events.stream import write_events
from fieldfare.filters.values import ABSENT
from fieldfare.gateway.publishing.arrow_bodies import decode_arrow
from fieldfare.gateway.publishing.events import Limits, decode_lines_fast
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.pipeline.access_point import RECORDS, by_space, decode
from fieldfare.pipeline.match_batch import find_matches
from fieldfare_lab.workloads.synthetic import WORKLOADS

BATCH_EVENTS = 8_192


def cloud_events(columns: ColumnBatch) -> list[dict[str, Any]]:
    """The events of a workload, as complete CloudEvents."""
    events: list[dict[str, Any]] = [
        {
            "specversion": "1.0",
            "id": f"{number:032x}",
            "source": "/benchmark",
            "type": "drawn",
            "time": datetime(2024, 1, 1, 0, number // 60 % 60, number % 60, tzinfo=UTC).isoformat(),
            "data": {},
        }
        for number in range(columns.size)
    ]
    for path in columns.columns:
        for event, value in zip(events, columns.values(path), strict=True):
            if value is not ABSENT:
                event["data"][path[1]] = value
    return events


def records(payloads: list[bytes], size: int) -> pa.RecordBatch:
    count = len(payloads)
    arrays = [list(range(count)), [0] * count, ["default"] * count, [size] * count, payloads]
    return pa.record_batch(
        [pa.array(values, field.type) for values, field in zip(arrays, RECORDS, strict=True)], RECORDS
    )


def best_s(turns: int, *works: Callable[[], Any]) -> list[float]:
    """The minimum processor time of each piece of work; the pieces alternate."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(turns):
        for number, work in enumerate(works):
            started = time.thread_time()
            work()
            times[number].append(time.thread_time() - started)
    return [min(each) for each in times]


def figure(events: list[dict[str, Any]], index: Index, size: int, turns: int) -> dict[str, int]:
    """The figures for records of one size."""
    limits = Limits()
    pieces = [events[start : start + size] for start in range(0, BATCH_EVENTS, size)]
    texts = [[json.dumps(event, separators=(",", ":")) for event in piece] for piece in pieces]
    lines = [("\n".join(text) + "\n").encode() for text in texts]
    tables = [bytes(write_events(pa.RecordBatch.from_pylist(piece))) for piece in pieces]
    in_json, in_arrow = records(lines, size), records(tables, size)
    indexes = {"default": index}
    matched = [find_matches(form, indexes).by_event() for form in (in_json, in_arrow)]
    assert (matched[0].subscriptions == matched[1].subscriptions).all()
    works: dict[str, Callable[[], Any]] = {
        "match_json": lambda: find_matches(in_json, indexes),
        "match_arrow": lambda: find_matches(in_arrow, indexes),
        "read_json": lambda: [decode(part, index.paths) for part in by_space(in_json)],
        "read_arrow": lambda: [decode(part, index.paths) for part in by_space(in_arrow)],
        "take_json": lambda: [decode_lines_fast(each, limits) for each in lines],
        "take_arrow": lambda: [decode_arrow(each, limits, 64 << 20) for each in tables],
    }
    seconds = best_s(turns, *works.values())
    rates = {f"{name}_events_per_s": round(BATCH_EVENTS / s) for name, s in zip(works, seconds, strict=True)}
    sizes = {"json_bytes": sum(map(len, lines)), "arrow_bytes": sum(map(len, tables))}
    return {"record_events": size, "matches": len(matched[0].subscriptions)} | rates | sizes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), default="bluedove")
    parser.add_argument("--subscriptions", type=int, default=40_000)
    parser.add_argument("--records", type=int, nargs="+", default=[64, 1_024, 8_192], metavar="EVENTS")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    pa.set_cpu_count(1)
    workload = WORKLOADS[options.workload]
    entries = [
        IndexEntry(number, number, 0, OPEN_END, form, "", "sql")
        for number, form in enumerate(workload.normal_forms(options.subscriptions, 1))
    ]
    index = Index((build_part(entries),))
    events = cloud_events(workload.events(BATCH_EVENTS, 2))
    figures = [figure(events, index, size, options.turns) for size in options.records]
    if options.json:
        head = {"workload": options.workload, "subscriptions": options.subscriptions}
        print(json.dumps(head | {"figures": figures}))
        return
    for each in figures:
        print(" ".join(f"{name}={value:,}" for name, value in each.items()))


if __name__ == "__main__":
    main()
