"""Lines of 3 to 10 brokers: throughput and latency by the number of subscriptions.

A table entry takes as long as on the hierarchy of 100 brokers.
"""

from __future__ import annotations

import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import altair as alt
from overlay_runs import (
    COUNTED,
    FBR_MEAN_MS,
    PROCESSES,
    PROTOCOLS,
    RESULTS,
    SEEDS,
    as_data,
    calibration,
    cost_of,
    has_quotes,
    publishers_of,
    run,
    workload_of,
)

from fieldfare_lab.simulation.routing.queueing import delays, highest_rate
from fieldfare_lab.simulation.routing.topologies import line

SIZES = (3, 4, 6, 8, 10)
SUBSCRIPTIONS = (100, 300, 1_000)
RATE = 1_000
EVENTS = 100
DURATION_S = 20.0
COLORS = {"D-DBR": "#f58518", "MERC": "#e45756"}
"""As in the picture of latencies."""


def runs_of(seed: int) -> list[dict[str, Any]]:
    """Run all lines of a seed; every second broker has a publisher."""
    rows = []
    for size in SIZES:
        topology = line(size)
        for subscriptions in SUBSCRIPTIONS:
            workload = workload_of(seed, calibration("hierarchy")["symbols"], subscriptions, EVENTS)
            for protocol in PROTOCOLS:
                trace = run(topology, protocol, workload, publishers_of(topology, seed), seed).trace
                for counted in COUNTED:
                    cost = cost_of("hierarchy", counted)
                    found = delays(trace, RATE, cost, seed, DURATION_S)
                    rate = highest_rate(trace, cost, FBR_MEAN_MS / 1000, seed, DURATION_S)
                    rows.append(
                        {
                            "counted": counted,
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


def chart(counted: str) -> Any:
    """Return the throughput over FBR's with one cost model, by the number of brokers and subscriptions."""
    rows = [row for row in RESULTS.read("linear") if row["counted"] == counted]
    base = {
        (row["seed"], row["brokers"], row["subscriptions"]): row["throughput_per_min"]
        for row in rows
        if row["protocol"] == "FBR"
    }
    found: dict[tuple[str, int, int], list[float]] = {}
    for row in rows:
        if row["protocol"] != "FBR":
            key = (row["protocol"], row["subscriptions"], row["brokers"])
            gain = row["throughput_per_min"] / base[row["seed"], row["brokers"], row["subscriptions"]]
            found.setdefault(key, []).append(gain)
    shown = [
        {"protocol": name, "subscriptions": f"{count:,}", "brokers": size, "gain": statistics.median(gains)}
        for (name, count, size), gains in found.items()
    ]
    base = alt.Chart(as_data(shown), width=380, height=260).encode(
        x=alt.X(
            "brokers:Q",
            title="brokers in the line",
            scale=alt.Scale(domain=[3, 10]),
            axis=alt.Axis(values=list(SIZES), format="d"),
        ),
        y=alt.Y("gain:Q", title="throughput over FBR's, times", scale=alt.Scale(domainMin=0)),
        color=alt.Color(
            "protocol:N", title=None, scale=alt.Scale(domain=list(COLORS), range=list(COLORS.values()))
        ),
    )
    dash = alt.StrokeDash(
        "subscriptions:N",
        title="subscriptions",
        sort=[f"{each:,}" for each in SUBSCRIPTIONS],
        legend=alt.Legend(symbolSize=600),
    )
    lines = base.mark_line().encode(strokeDash=dash) + base.mark_point(filled=True)
    level = alt.Chart(as_data([{"gain": 1}])).mark_rule(color="gray").encode(y="gain:Q")
    return (lines + level).properties(title=f"entries {counted}")


def draw() -> None:
    """Draw the throughput over FBR's with each cost model."""
    RESULTS.draw("linear", alt.hconcat(*(chart(counted) for counted in COUNTED)).resolve_scale(y="shared"))


def main() -> None:
    if "--draw" not in sys.argv:
        if not has_quotes():
            return
        RESULTS.write("linear", measure())
    draw()


if __name__ == "__main__":
    main()
