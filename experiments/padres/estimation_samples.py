"""Figure 7b: how right the estimated input utilisation is with more samples.

The paper's rules with its sampling of coming publications, and with PRESS that reads as many from the log.
``--draw`` draws from the CSV that is there.
"""

from __future__ import annotations

import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import altair as alt
from balancing_runs import (
    BEST_SAMPLES,
    FEW_SEEDS,
    PAPERS_RULES,
    PROCESSES,
    RESULTS,
    as_data,
    estimation_rows,
    has_quotes,
    run,
    variant_of,
)

from fieldfare_lab.simulation.balancing.setups import LOCAL_SET_UP

SAMPLES = (1, 10, 50, 1_000)
UNTIL_S = 1_150.0
"""The end of a run: all have joined, and the sessions after that count, too."""


def run_of(arguments: tuple[bool, int, int]) -> list[dict[str, Any]]:
    """Run a number of samples with a seed; return the relative errors of input utilisation."""
    from_log, samples, seed = arguments
    set_up = variant_of(LOCAL_SET_UP, PAPERS_RULES)
    settings = replace(set_up.settings, samples=samples, from_log=from_log, sampling_s=60.0)
    brokers = run(replace(set_up, settings=settings, step_s=1e9, until_s=UNTIL_S), seed)
    rows = [
        {
            "from_log": from_log,
            "samples": samples,
            "seed": seed,
            "error_percent": round(100 * (row["estimated"] / row["measured"] - 1), 2),
        }
        for row in estimation_rows(brokers)
        if row["metric"] == "input" and row["broker"] != "B1" and row["measured"] > 0.02
    ]
    print(from_log, samples, seed, len(rows), flush=True)
    return rows


def measure() -> None:
    """Run all numbers of samples, and write the CSV."""
    wanted = [
        (from_log, samples, seed) for samples in SAMPLES for from_log in (False, True) for seed in FEW_SEEDS
    ]
    with ProcessPoolExecutor(PROCESSES) as pool:
        found = [row for rows in pool.map(run_of, wanted) for row in rows]
    RESULTS.write("estimation_samples", found)


def summary_rows() -> list[dict[str, Any]]:
    """Return mean and standard deviation of the errors for each number of samples."""
    found: dict[tuple[bool, int], list[float]] = {}
    for row in RESULTS.read("estimation_samples"):
        found.setdefault((row["from_log"], row["samples"]), []).append(row["error_percent"])
    return [
        {
            "sampling": "from the log" if from_log else "coming publications",
            "samples": samples,
            "mean": statistics.mean(errors),
            "deviation": statistics.stdev(errors),
            "low": statistics.mean(errors) - statistics.stdev(errors),
            "high": statistics.mean(errors) + statistics.stdev(errors),
            "sessions": len(errors),
        }
        for (from_log, samples), errors in sorted(found.items())
    ]


def draw() -> None:
    """Draw Figure 7b."""
    base = alt.Chart(
        as_data(summary_rows()), width=480, height=240, title="7b: error of the input utilisation"
    ).encode(
        x=alt.X("samples:Q", scale=alt.Scale(type="log"), title="publications sampled"),
        color=alt.Color("sampling:N", title=None),
    )
    best = alt.Chart(as_data([{"samples": BEST_SAMPLES, "words": "paper: best"}])).encode(x="samples:Q")
    chart = (
        base.mark_line(point=True).encode(y=alt.Y("mean:Q", title="mean error, % (bars: one deviation)"))
        + base.mark_rule().encode(y="low:Q", y2="high:Q")
        + best.mark_rule(color="red", strokeDash=[4, 3])
        + best.mark_text(color="red", align="left", dx=4).encode(y=alt.value(12), text="words:N")
    )
    RESULTS.draw("figure_7b", chart)


def main() -> None:
    if "--draw" not in sys.argv:
        if not has_quotes():
            return
        measure()
    draw()


if __name__ == "__main__":
    main()
