"""Figures 6g and 8d: the delivery delay with more edge brokers, and with more clusters in a chain.

``--draw`` draws from the CSVs that are there.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import altair as alt
from balancing_runs import (
    FEW_SEEDS,
    HOPS_THAT_HELP,
    PROCESSES,
    RESULTS,
    as_data,
    has_quotes,
    run,
    variant_of,
)

from fieldfare_lab.simulation.balancing.setups import GLOBAL_SET_UP, LOCAL_SET_UP, chain, star

EDGES = (1, 2, 4, 6)
CLUSTERS = (1, 2, 3, 4, 6)
MEASURED_S = 300
"""The delay is the mean over the last seconds of a run."""
Rows = list[dict[str, Any]]


def run_of(arguments: tuple[str, int, int]) -> dict[str, Any]:
    """Run a size with a seed."""
    figure, size, seed = arguments
    if figure == "6g":
        set_up = replace(LOCAL_SET_UP, clusters=star(size), step_s=1e9, until_s=1_900.0)
    else:
        set_up = replace(GLOBAL_SET_UP, clusters=chain(size), first_broker="B11", step_s=1e9, until_s=2_200.0)
    brokers = run(variant_of(set_up, "ours"), seed)
    sums = [
        entry
        for at, entry in brokers.records.delays.items()
        if set_up.until_s - MEASURED_S <= 10 * at < set_up.until_s
    ]
    delay_s = sum(total for total, _ in sums) / max(1.0, sum(count for _, count in sums))
    found = {"figure": figure, "size": size, "seed": seed, "delay_ms": round(1000 * delay_s, 2)}
    print(found, flush=True)
    return found


def measure() -> None:
    """Run all sizes, and write the CSV."""
    sizes = [("6g", size) for size in EDGES] + [("8d", size) for size in CLUSTERS]
    with ProcessPoolExecutor(PROCESSES) as pool:
        RESULTS.write(
            "scalability", list(pool.map(run_of, [(*each, seed) for each in sizes for seed in FEW_SEEDS]))
        )


def draw() -> None:
    """Draw both figures."""
    charts = []
    for figure, words in (("6g", "edge brokers in the cluster"), ("8d", "clusters in the chain")):
        rows = [row for row in RESULTS.read("scalability") if row["figure"] == figure]
        base = alt.Chart(as_data(rows), width=360, height=220, title=f"{figure}: delivery delay").encode(
            x=alt.X("size:O", title=words)
        )
        y = alt.Y("delay_ms:Q", title="ms", scale=alt.Scale(type="log"))
        chart = base.mark_point(size=24).encode(y=y) + base.mark_line().encode(
            y=alt.Y("median(delay_ms):Q", title="ms")
        )
        if figure == "8d":
            end = alt.Chart(as_data([{"size": HOPS_THAT_HELP + 1, "words": "paper: no gain"}])).encode(
                x="size:O"
            )
            chart = (
                chart
                + end.mark_rule(color="red", strokeDash=[4, 3])
                + end.mark_text(color="red", align="left", dx=4).encode(y=alt.value(12), text="words:N")
            )
        charts.append(chart)
    RESULTS.draw("figure_6g_8d", alt.hconcat(*charts))


def main() -> None:
    if "--draw" not in sys.argv:
        if not has_quotes():
            return
        measure()
    draw()


if __name__ == "__main__":
    main()
