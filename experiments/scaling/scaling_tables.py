"""The tables of docs/scaling.md, from the CSVs: headers and rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
Table = tuple[list[str], list[list[object]]]
PARTITIONINGS = {"replicated": "replicated", "attribute_space": "attribute space", "hash": "hash"}
WORDS = {"cores": "", "memory": " (memory)"}
SHOWN = {"1000000", "100000000", "1000000000"}
SHOWN_RATES = {"100000", "1000000", "10000000"}


def _read(name: str) -> list[dict[str, str]]:
    with (HERE / "results" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def _number(text: str) -> str:
    return f"{int(text):,}"


def steps() -> Table:
    """The cost of an event on one core."""
    rows: list[list[object]] = []
    found: list[dict[str, Any]] = json.loads((HERE / "calibration.json").read_text())["steps"]
    for row in found:
        size = f"{row['subscriptions']:,}"
        times = [f"{row[name]:.2f}" for name in ("decode_us", "search_us", "order_us")]
        rows.append([row["workload"], size, *times, f"{row['index_bytes']:.0f}"])
    header = ["", "subscriptions", "decode, µs", "search, µs", "order, µs", "bytes a subscription"]
    return header, rows


def machines() -> Table:
    """Machines with 16 cores and 64 GB, by partitioning."""
    found: dict[tuple[str, str, str], list[object]] = {}
    for row in _read("pipelines"):
        if row["subscriptions"] not in SHOWN or row["events_per_s"] not in SHOWN_RATES:
            continue
        place = (row["workload"], _number(row["subscriptions"]), _number(row["events_per_s"]))
        words = row["machines"] + WORDS[row["bound"]] if row["machines"] else f"no: {row['bound']}"
        found.setdefault(place, []).append(words)
    rows: list[list[object]] = [[*place, *cells] for place, cells in found.items()]
    return ["", "subscriptions", "events/s", *PARTITIONINGS.values()], rows


def months() -> Table:
    """Dollars per month, for a billion subscriptions or the maximum possible."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    parts: list[str] = []
    for row in _read("months"):
        if row["subscriptions"] in ("1000000", "1000000000"):
            here = found.setdefault((_number(row["subscriptions"]), _number(row["events_per_s"])), {})
            if row["workload"] == "keys":
                here[row["part"]] = _number(row["dollars_a_month"])
                here["EventBridge's list"] = _number(row["eventbridge_dollars"])
                parts = list(dict.fromkeys([*parts, row["part"]]))
    names = [*parts, "EventBridge's list"]
    rows: list[list[object]] = [[*place, *(here[name] for name in names)] for place, here in found.items()]
    return ["subscriptions", "events/s", *names], rows


def delays() -> Table:
    """Milliseconds in the pipeline."""
    rows: list[list[object]] = []
    for row in _read("delays"):
        place = [row["workload"], _number(row["subscriptions"]), _number(row["events_per_s"])]
        kind = PARTITIONINGS[row["partitioning"]]
        rows.append(
            [*place, kind, *(row[name] for name in ("machines", "tasks_a_batch", "p50_ms", "p99_ms"))]
        )
    header = [
        "",
        "subscriptions",
        "events/s",
        "partitioning",
        "machines",
        "tasks a batch",
        "p50, ms",
        "p99, ms",
    ]
    return header, rows
