"""The tables of docs/papers/autotuned-http.md, from the CSVs of `over_http`; see `experiments/tables.py`."""

from __future__ import annotations

from typing import Any

from support import read_table

SHARED = "Other work ran on the machine during this run: the figures are preliminary.\n"

Table = tuple[list[str], list[list[object]]]


def steps() -> Table:
    """Mean time until an event is durable, in ms, in each step of the load."""
    rows: dict[tuple[float, str], list[dict[str, Any]]] = {}
    for row in read_table("http_steps"):
        rows.setdefault((row["round_trip_ms"], row["setting"]), []).append(row)
    loads = [f"{row['load_per_s']:g}/s" for row in next(iter(rows.values()))]
    body: list[list[object]] = [
        [
            f"{round_trip_ms:g} ms",
            setting,
            *(f"{row['acknowledged_mean_ms']:,.0f}" for row in found),
            f"{sum(row['requests'] for row in found):,}",
        ]
        for (round_trip_ms, setting), found in rows.items()
    ]
    return ["round trip", "setting", *loads, "requests"], body


def slow() -> Table:
    """The slow subscriber: deliveries, events in flight and in the queue, and latency."""
    rows: list[list[object]] = [
        [
            f"{row['vacation_s']:g} s",
            row["setting"],
            f"{row['delivered_per_s']:.1f}",
            f"{row['in_flight_mean']:.0f} ({row['in_flight_most']})",
            f"{row['waiting_mean']:.0f} ({row['waiting_most']})",
            f"{row['latency_mean_ms']:,.0f}",
            row["requests"],
        ]
        for row in read_table("http_slow_subscriber")
    ]
    header = ["mean pause", "setting", "delivered/s", "events in flight: mean (maximum)"]
    return [*header, "events in the queue: mean (maximum)", "mean latency, ms", "requests"], rows


def trace() -> Table:
    """The trace: latency, and time until an event is durable."""
    rows: list[list[object]] = [
        [
            f"{row['speed']} x",
            row["setting"],
            *(f"{row[f'latency_{name}_ms']:,.0f}" for name in ("mean", "p50", "p95")),
            f"{row['acknowledged_mean_ms']:,.0f}",
            f"{row['delivered']:,} of {row['messages']:,}",
            f"{row['requests']:,}",
        ]
        for row in read_table("http_trace")
    ]
    header = ["speed", "setting", "mean latency, ms", "p50", "p95", "until durable, ms"]
    return [*header, "delivered", "requests"], rows


def note(name: str) -> str:
    """A sentence below the table of a run that shared the machine with other work; else nothing."""
    return f"\n{SHARED}" if any(row["shared_machine"] for row in read_table(name)) else ""
