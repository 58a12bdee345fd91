"""100 brokers with cycles: latency by publishing rate, throughput, overhead, and destination lists.

With ``--chain``, clusters are nearly a chain; the calibration of the other topology is used.
"""

from __future__ import annotations

import json
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import altair as alt
from overlay_runs import (
    CALIBRATION,
    CHAIN,
    DDBR_MEAN_MS,
    DDBR_RATE,
    FBR_MEAN_MS,
    FBR_NEXT_MS,
    FBR_NEXT_RATE,
    FBR_RATE,
    LISTS,
    PROTOCOLS,
    RESULTS,
    SEEDS,
    as_data,
    calibrated_symbols,
    calibration,
    general,
    has_quotes,
    publishers_of,
    run,
    workload_of,
)

from fieldfare_lab.simulation.routing.queueing import calibrated_entry_s, delays, highest_rate
from fieldfare_lab.simulation.routing.traces import Brokers, Trace

RATES = (1_000, 2_000, 2_500, 5_000, 8_000, 11_000, 14_000, 17_000)
PROCESSES = 3
SHOWN_MS = 4_000
"""Latencies beyond this are left out of the picture; the CSV has them."""


def overhead(protocol: str, seed: int, brokers: Brokers) -> dict[str, Any]:
    """Return what one run cost for each event, and its lists."""
    events = len(brokers.trace.events)
    steps = [step for found in brokers.trace.events.values() for step in found]
    matching = [step for step in steps if step.matchings]
    tables = [brokers.broker(name).state for name in brokers.topology.brokers]
    remote = [sum(group.subscriptions.stored() for group in state.groups.values()) for state in tables]
    return {
        "protocol": protocol,
        "seed": seed,
        "copies_an_event": round(sum(step.sent for step in steps) / events, 2),
        "brokers_an_event": round(len(steps) / events, 2),
        "matching_brokers_an_event": round(len(matching) / events, 2),
        "examined_an_event": round(sum(step.examined for step in steps) / events, 1),
        "remote_entries_a_broker": round(statistics.mean(remote), 1),
        "list_mean": round(sum(step.listed for step in steps) / max(1, sum(step.sent for step in steps)), 3),
    }


def lists(protocol: str, seed: int, brokers: Brokers) -> list[dict[str, Any]]:
    """Return each broker's mean destination list."""
    found: dict[str, list[int]] = {}
    for steps in brokers.trace.events.values():
        for step in steps:
            if step.sent:
                sums = found.setdefault(step.broker, [0, 0])
                sums[0] += step.listed
                sums[1] += step.sent
    return [
        {"protocol": protocol, "seed": seed, "broker": name, "list_mean": round(listed / sent, 3)}
        for name, (listed, sent) in sorted(found.items())
    ]


Found = tuple[dict[str, Trace], list[dict[str, Any]], list[dict[str, Any]]]


def runs_of(arguments: tuple[int, int]) -> Found:
    """Run all protocols' machines on the topology of a seed."""
    seed, symbols = arguments
    topology = general(seed)
    names, workload = publishers_of(topology, seed), workload_of(seed, symbols)
    traces, costs, lengths = {}, [], []
    for protocol in PROTOCOLS:
        brokers = run(topology, protocol, workload, names, seed)
        traces[protocol] = brokers.trace
        costs.append(overhead(protocol, seed, brokers))
        lengths += lists(protocol, seed, brokers)
        print(costs[-1], flush=True)
    return traces, costs, lengths


def loaded(arguments: tuple[str, int, Trace, float]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a trace's latency at each rate, and its throughput."""
    protocol, seed, trace, entry_s = arguments
    rows = []
    for rate in RATES:
        found = delays(trace, rate, entry_s, seed)
        rows.append(
            {
                "protocol": protocol,
                "seed": seed,
                "rate_per_min": rate,
                "mean_ms": round(1000 * found.mean_s, 1),
                "p99_ms": round(1000 * found.p99_s, 1),
                "busiest": round(found.busiest, 3),
            }
        )
    rate = highest_rate(trace, entry_s, FBR_MEAN_MS / 1000, seed)
    return rows, {"protocol": protocol, "seed": seed, "throughput_per_min": round(rate)}


def measure() -> None:
    """Run all machines, calibrate, and write the CSVs."""
    symbols = calibration()["symbols"] if CHAIN else calibrated_symbols()
    with ProcessPoolExecutor(PROCESSES) as pool:
        found = list(pool.map(runs_of, [(seed, symbols) for seed in SEEDS]))
        if not CHAIN:
            fbr = [traces["FBR"] for traces, _, _ in found]
            entry_us = round(1e6 * calibrated_entry_s(fbr, FBR_RATE, FBR_MEAN_MS / 1000), 2)
            CALIBRATION.write_text(json.dumps({"symbols": symbols, "entry_us": entry_us}) + "\n")
        entry_s = calibration()["entry_us"] / 1e6
        wanted = [
            (protocol, seed, traces[protocol], entry_s)
            for seed, (traces, _, _) in zip(SEEDS, found, strict=True)
            for protocol in PROTOCOLS
        ]
        rates = list(pool.map(loaded, wanted))
    shape = "_chain" if CHAIN else ""
    RESULTS.write(f"general_overhead{shape}", [row for _, costs, _ in found for row in costs])
    RESULTS.write(f"general_lists{shape}", [row for _, _, lengths in found for row in lengths])
    RESULTS.write(f"general_latency{shape}", [row for rows, _ in rates for row in rows])
    RESULTS.write(f"general_throughput{shape}", [row for _, row in rates])


def draw() -> None:
    """Draw latency by rate, and the brokers' lists, with the paper's points."""
    rows = [row for row in RESULTS.read("general_latency") if row["mean_ms"] <= SHOWN_MS]
    paper = [
        {"rate_per_min": FBR_RATE, "mean_ms": FBR_MEAN_MS, "words": "FBR, the paper (calibrated)"},
        {"rate_per_min": FBR_NEXT_RATE, "mean_ms": FBR_NEXT_MS, "words": "FBR, the paper"},
        {"rate_per_min": DDBR_RATE, "mean_ms": DDBR_MEAN_MS, "words": "D-DBR, the paper"},
    ]
    x = alt.X("rate_per_min:Q", title="events published per minute")
    y = alt.Y("mean_ms:Q", title="mean latency, ms")
    base = alt.Chart(as_data(rows), width=560, height=280).encode(
        x=x, color=alt.Color("protocol:N", title=None)
    )
    points = alt.Chart(as_data(paper)).encode(x=x, y=y)
    chart = (
        base.mark_line().encode(y=alt.Y("median(mean_ms):Q", title="mean latency, ms"))
        + base.mark_point(size=18).encode(y=y)
        + points.mark_point(color="black", shape="cross", size=80)
        + points.mark_text(color="black", align="left", dx=8, dy=-6).encode(text="words:N")
    )
    title = "100 brokers with cycles (lines: median of the seeds)"
    RESULTS.draw("general_latency", chart.properties(title=title))
    found = [row for row in RESULTS.read("general_lists") if row["protocol"] in LISTS]
    means = [
        {"protocol": name, "mean": mean, "words": f"the paper's mean: {mean}"} for name, mean in LISTS.items()
    ]
    charts = [
        (
            alt.Chart(
                as_data([row for row in found if row["protocol"] == name]), width=560, height=120, title=name
            )
            .mark_bar()
            .encode(
                x=alt.X("list_mean:Q", bin=alt.Bin(step=0.25), title="a broker's mean destination list"),
                y=alt.Y("count():Q", title="brokers"),
            )
            + alt.Chart(as_data([row for row in means if row["protocol"] == name]))
            .mark_rule(color="red")
            .encode(x="mean:Q")
            + alt.Chart(as_data([row for row in means if row["protocol"] == name]))
            .mark_text(color="red", align="left", dx=4, dy=-40)
            .encode(x="mean:Q", text="words:N")
        )
        for name in LISTS
    ]
    RESULTS.draw("general_lists", alt.vconcat(*charts).resolve_scale(x="shared"))


def main() -> None:
    if "--draw" not in sys.argv and has_quotes():
        measure()
    if not CHAIN:
        draw()


if __name__ == "__main__":
    main()
