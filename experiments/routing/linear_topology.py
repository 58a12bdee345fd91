"""Lines of 3 to 10 brokers: throughput and latency by the number of subscriptions."""

from __future__ import annotations

import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import altair as alt
from overlay_runs import (
    FBR_MEAN_MS,
    PROTOCOLS,
    RESULTS,
    SEEDS,
    as_data,
    calibration,
    has_quotes,
    publishers_of,
    run,
    workload_of,
)

from fieldfare_lab.simulation.routing.queueing import delays, highest_rate
from fieldfare_lab.simulation.routing.topologies import line

SIZES = (3, 4, 5, 6, 7, 8, 9, 10)
SUBSCRIPTIONS = (100, 300, 1_000)
RATE = 1_000
EVENTS = 100
PROCESSES = 3


def runs_of(seed: int) -> list[dict[str, Any]]:
    """Run all lines of a seed; every second broker has a publisher."""
    given = calibration()
    entry_s = given["entry_us"] / 1e6
    rows = []
    for size in SIZES:
        topology = line(size)
        for subscriptions in SUBSCRIPTIONS:
            workload = workload_of(seed, given["symbols"], subscriptions, EVENTS)
            for protocol in PROTOCOLS:
                trace = run(topology, protocol, workload, publishers_of(topology, seed), seed).trace
                found = delays(trace, RATE, entry_s, seed)
                rate = highest_rate(trace, entry_s, FBR_MEAN_MS / 1000, seed)
                rows.append(
                    {
                        "protocol": protocol,
                        "seed": seed,
                        "brokers": size,
                        "subscriptions": subscriptions,
                        "mean_ms": round(1000 * found.mean_s, 1),
                        "busiest": round(found.busiest, 3),
                        "throughput_per_min": round(rate),
                    }
                )
        print(rows[-1], flush=True)
    return rows


def measure() -> list[dict[str, Any]]:
    with ProcessPoolExecutor(PROCESSES) as pool:
        return [row for rows in pool.map(runs_of, SEEDS) for row in rows]


def draw() -> None:
    """Draw the throughput over FBR's, by the number of brokers and subscriptions."""
    rows = RESULTS.read("linear")
    found: dict[tuple[str, int, int], list[float]] = {}
    base = {
        (row["seed"], row["brokers"], row["subscriptions"]): row["throughput_per_min"]
        for row in rows
        if row["protocol"] == "FBR"
    }
    for row in rows:
        if row["protocol"] != "FBR":
            key = (row["protocol"], row["brokers"], row["subscriptions"])
            gain = row["throughput_per_min"] / base[row["seed"], row["brokers"], row["subscriptions"]]
            found.setdefault(key, []).append(gain)
    shown = [
        {
            "line": f"{protocol}, {subscriptions:,} subscriptions",
            "brokers": size,
            "gain": statistics.median(gains),
        }
        for (protocol, size, subscriptions), gains in found.items()
    ]
    chart = (
        alt.Chart(as_data(shown), width=560, height=280)
        .mark_line(point=True)
        .encode(
            x=alt.X("brokers:Q", title="brokers in the line", scale=alt.Scale(domain=[3, 10])),
            y=alt.Y("gain:Q", title="throughput over FBR's"),
            color=alt.Color("line:N", title=None),
        )
    )
    RESULTS.draw("linear", chart.properties(title="Lines of brokers"))


def main() -> None:
    if "--draw" not in sys.argv and has_quotes():
        RESULTS.write("linear", measure())
    draw()


if __name__ == "__main__":
    main()
