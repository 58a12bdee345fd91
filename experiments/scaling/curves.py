"""From one machine to internet scale: ``python experiments/scaling/curves.py``.

Computes the requirements of a pipeline for 10,000 to ten million events per second and a million to a billion
subscriptions, by partitioning; its monthly cost, compared with the rest of the service and with a bus that is
paid per event; and the waiting time of an event. Computed from ``calibration.json``, from figures of other
benchmarks, and from list prices; nothing here was run at such a scale. Writes CSVs and pictures into
results/.
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from capacity import PARTITIONINGS, USED, Costs, Machine, Need, calibrated, need
from micro_batches import Overheads, Stage, delays_s

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
HOURS = 730
SUBSCRIPTIONS = [10**6, 10**7, 10**8, 10**9]
RATES = [10**4, 10**5, 10**6, 10**7]
MACHINE = Machine("m7g.4xlarge", 16, 64e9, 0.6528)
"""On demand in us-east-1, June 2026: 0.0816 dollars an hour for two cores and 8 GiB, in proportion."""
CORE_HOUR = MACHINE.dollars_per_hour / MACHINE.cores
BUS_DOLLARS = 1.0
"""A million events put on a custom bus of Amazon EventBridge, us-east-1, 2026; 300 rules a bus are free."""
BATCH_S = 0.025
"""Spark's own time for a batch: docs/decisions/match-loop.md."""
PUBLISHED_PER_S = 157_000
"""Events per second that one gateway with two cores accepts: ``benchmarks/service.py``, publishing alone."""
LOG_BYTES_PER_S = 72e6
"""Rate that a broker with two cores accepts: ``benchmarks/logs.py``, appends in groups."""
REPLICAS = 3
"""Of each partition of the log."""
DELIVERED_PER_S = 2_000
"""Messages per second that one gateway with two cores pushes to 5,000 streams with p99 below a second:
``benchmarks/service.py`` at 1,000 events/s, two deliveries each."""
DELIVERIES = 2
MACHINE_CORES = 2


def pipelines(kinds: dict[str, Costs]) -> list[dict[str, Any]]:
    """The requirements of each partitioning."""
    rows = []
    for kind, costs in kinds.items():
        for subscriptions in SUBSCRIPTIONS:
            for rate in RATES:
                for partitioning in PARTITIONINGS:
                    found = need(partitioning, costs, subscriptions, rate, MACHINE)
                    rows.append(pipeline_row(kind, subscriptions, rate, found))
    return rows


def pipeline_row(kind: str, subscriptions: int, rate: int, found: Need) -> dict[str, Any]:
    possible = found.is_possible
    return {
        "workload": kind,
        "subscriptions": subscriptions,
        "events_per_s": rate,
        "partitioning": found.partitioning,
        "machines": found.machines if possible else "",
        "core_us_an_event": round(found.event_us, 2) if possible else "",
        "bound": found.bound,
        "dollars_a_month": round(found.machines * MACHINE.dollars_per_hour * HOURS) if possible else "",
    }


def months(kinds: dict[str, Costs]) -> list[dict[str, Any]]:
    """The monthly cost, part by part; the pipeline with the cheapest partitioning."""
    rows = []
    for kind, costs in kinds.items():
        for subscriptions in SUBSCRIPTIONS:
            for rate in RATES:
                found = [need(name, costs, subscriptions, rate, MACHINE) for name in PARTITIONINGS]
                best = min(found, key=lambda each: each.machines)
                if not best.is_possible:
                    continue
                parts = {
                    "pipeline": best.machines * MACHINE.cores,
                    "event log": REPLICAS * cores(rate * costs.event_bytes, LOG_BYTES_PER_S),
                    "publishing": cores(rate, PUBLISHED_PER_S),
                    "delivering": cores(rate * DELIVERIES, DELIVERED_PER_S),
                }
                for part, count in parts.items():
                    rows.append(
                        {
                            "workload": kind,
                            "subscriptions": subscriptions,
                            "events_per_s": rate,
                            "partitioning": best.partitioning,
                            "part": part,
                            "cores": count,
                            "dollars_a_month": round(count * CORE_HOUR * HOURS),
                            "eventbridge_dollars": round(rate * 3600 * HOURS / 1e6 * BUS_DOLLARS),
                        }
                    )
    return rows


def cores(per_s: float, per_machine_s: float) -> int:
    """Return the cores, in machines with two, if they are as busy as the pipeline's."""
    return MACHINE_CORES * math.ceil(per_s / (per_machine_s * USED))


def delays(kinds: dict[str, Costs], overheads: Overheads) -> list[dict[str, Any]]:
    """The waiting time of an event in the pipeline, in simulated time, on the machines of `need`."""
    rows = []
    for kind, costs in kinds.items():
        for subscriptions, rate in zip(SUBSCRIPTIONS, RATES, strict=True):
            for partitioning in PARTITIONINGS:
                found = need(partitioning, costs, subscriptions, rate, MACHINE)
                if not found.is_possible:
                    continue
                stages = stages_of(found, costs)
                waited_ms = 1000 * delays_s(stages, rate, found.matchers, overheads)
                rows.append(
                    {
                        "workload": kind,
                        "subscriptions": subscriptions,
                        "events_per_s": rate,
                        "partitioning": partitioning,
                        "machines": found.machines,
                        "tasks_a_batch": sum(stage.tasks for stage in stages),
                        "p50_ms": round(float(np.percentile(waited_ms, 50))),
                        "p99_ms": round(float(np.percentile(waited_ms, 99))),
                    }
                )
    return rows


def stages_of(found: Need, costs: Costs) -> list[Stage]:
    """One fused stage; or access points, matchers and exit points, each with one task per slot."""
    if found.partitioning == "replicated":
        return [Stage(found.matchers, found.event_us)]
    matched_us = found.event_us - costs.base_us
    return [
        Stage(found.matchers, costs.base_us),
        Stage(found.matchers, matched_us * (1 - costs.order_share)),
        Stage(found.matchers, matched_us * costs.order_share),
    ]


def write(name: str, rows: list[dict[str, Any]]) -> None:
    with (RESULTS / f"{name}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def draw(pipelines: list[dict[str, Any]], months: list[dict[str, Any]]) -> None:
    """Cores by partitioning, and a month's costs by part."""
    possible = [row for row in pipelines if row["machines"] != ""]
    needed = (
        alt.Chart(alt.Data(values=possible), width=150, height=150)
        .mark_line(point=True)
        .encode(
            x=alt.X("events_per_s:Q", title="events/s", scale=alt.Scale(type="log"), axis=axis(RATES)),
            y=alt.Y("machines:Q", title="machines of 16 cores", scale=alt.Scale(type="log")),
            color=alt.Color("partitioning:N", title=None),
            column=alt.Column("subscriptions:Q", title="subscriptions", header=alt.Header(format="~s")),
            row=alt.Row("workload:N", title=None),
        )
    )
    save("machines", needed)
    here = [row for row in months if row["subscriptions"] == SUBSCRIPTIONS[-1]]
    bus = [{**row, "part": "EventBridge's list price"} for row in here if row["part"] == "pipeline"]
    values = here + [{**row, "dollars_a_month": row["eventbridge_dollars"]} for row in bus]
    costs = (
        alt.Chart(alt.Data(values=values), width=220, height=200)
        .mark_line(point=True)
        .encode(
            x=alt.X("events_per_s:Q", title="events/s", scale=alt.Scale(type="log"), axis=axis(RATES)),
            y=alt.Y(
                "dollars_a_month:Q",
                title="dollars a month",
                scale=alt.Scale(type="log"),
                axis=alt.Axis(format="~s"),
            ),
            color=alt.Color("part:N", title=None),
            column=alt.Column("workload:N", title="a billion subscriptions"),
        )
    )
    save("dollars", costs)


def axis(values: list[int]) -> alt.Axis:
    return alt.Axis(values=values, format="~s")


def save(name: str, chart: alt.Chart) -> None:
    chart.save(RESULTS / f"{name}.svg")
    chart.save(RESULTS / f"{name}.png", scale_factor=2)


def main() -> None:
    RESULTS.mkdir(exist_ok=True)
    kinds = calibrated()
    measured = json.loads((HERE / "calibration.json").read_text())["overheads"]
    tables = {
        "pipelines": pipelines(kinds),
        "months": months(kinds),
        "delays": delays(kinds, Overheads(BATCH_S, measured["launch_s"], measured["task_s"])),
    }
    for name, rows in tables.items():
        write(name, rows)
        print(f"{name}: {len(rows)} rows")
    draw(tables["pipelines"], tables["months"])


if __name__ == "__main__":
    main()
