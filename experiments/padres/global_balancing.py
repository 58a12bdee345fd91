"""Section 6.3: a chain of four clusters with two edge brokers each. Figures 8a to 8c.

``--draw`` draws from the CSVs that are there.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import altair as alt
from balancing_runs import (
    FEW_SEEDS,
    GLOBAL_CONVERGED_S,
    GLOBAL_STEP_S,
    PAPERS_RULES,
    PROCESSES,
    RESULTS,
    SEEDS,
    VARIANTS,
    as_data,
    estimation_rows,
    has_quotes,
    last_move_s,
    load_rows,
    overhead_percent,
    run,
    variant_of,
)

from fieldfare_lab.simulation.balancing.setups import GLOBAL, GLOBAL_SET_UP
from fieldfare_lab.simulation.balancing.system import BalancedBrokers

SHOWN_SEED = 1
METRICS = ("input_ratio", "output_ratio", "matching_ms")
Rows = list[dict[str, Any]]


def run_of(arguments: tuple[str, int]) -> dict[str, Rows]:
    """Run a variant with a seed."""
    variant, seed = arguments
    brokers = run(variant_of(GLOBAL_SET_UP, variant), seed)
    loads = load_rows(brokers, every_s=100)
    parts = {
        "loads": clusters(loads),
        "estimations": estimation_rows(brokers),
        "runs": [outcome(brokers, loads)],
    }
    found = {
        name: [{"variant": variant, "seed": seed, **row} for row in rows] for name, rows in parts.items()
    }
    print(found["runs"][0], flush=True)
    return found


def clusters(loads: Rows) -> Rows:
    """Return the mean load of each cluster's edge brokers over time."""
    by_cluster: dict[tuple[int, str], Rows] = {}
    for row in loads:
        by_cluster.setdefault((row["at_s"], f"{row['broker'][:-1]}x"), []).append(row)
    return [
        {
            "at_s": at,
            "cluster": cluster,
            **{field: round(statistics.mean(row[field] for row in rows), 4) for field in METRICS},
            "subscriptions": sum(row["subscriptions"] for row in rows),
        }
        for (at, cluster), rows in sorted(by_cluster.items())
    ]


def levels(loads: Rows, field: str, from_s: float, to_s: float) -> list[float]:
    """Return the median over time of each cluster's mean load, in the order of the chain."""
    rows = [row for row in clusters(loads) if from_s <= row["at_s"] <= to_s]
    return [
        statistics.median(row[field] for row in rows if row["cluster"] == f"{each.head[:-1]}x")
        for each in GLOBAL
    ]


def outcome(brokers: BalancedBrokers, loads: Rows) -> dict[str, Any]:
    """Return the figures of a run."""
    step_s, end_s = GLOBAL_SET_UP.step_s, GLOBAL_SET_UP.until_s
    found: dict[str, Any] = {
        "converged_s": round(last_move_s(brokers, 0, step_s)),
        "after_step_s": round(last_move_s(brokers, step_s, 1e9) - step_s),
        "moves": len(brokers.records.moves),
        **moves(brokers, 0, step_s),
        "moves_after_step": sum(at >= step_s for at, *_ in brokers.records.moves),
        "sessions": len(brokers.records.sessions),
        "overhead_percent": round(overhead_percent(brokers, 0, 2_000), 4),
        "overhead_after_percent": round(overhead_percent(brokers, 5_000, step_s), 4),
        "lost": brokers.lost(),
        "doubled": brokers.doubled_or_foreign(),
    }
    for field in METRICS[:2]:
        for word, span in (("", (5_000, step_s - 100)), ("after_", (end_s - 1_000, end_s))):
            values = levels(loads, field, *span)
            found[f"{word}{field}"] = " ".join(f"{value:.3f}" for value in values)
            found[f"{word}{field}_spread"] = round(max(values) - min(values), 4)
    return found


def moves(brokers: BalancedBrokers, from_s: float, to_s: float) -> dict[str, Any]:
    """Return how often subscribers moved, and how often more than the clusters on their way ask for."""
    counts, at = Counter[int](), dict[int, str]()
    for when, subscriber, _, to in brokers.records.moves:
        if from_s <= when < to_s:
            counts[subscriber] += 1
            at[subscriber] = to
    # From B11 to a broker of cluster n takes n - 1 moves, as sessions span one cluster-hop; to B12 one.
    needed = {each: max(1, int(name[1]) - 1) for each, name in at.items()}
    return {
        "moves_max": max(counts.values(), default=0),
        "moves_mean": round(statistics.mean(counts.values()), 3) if counts else 0.0,
        "moves_needed_mean": round(statistics.mean(needed.values()), 3) if needed else 0.0,
    }


def measure() -> None:
    """Run all variants, and write the CSVs."""
    wanted = [("ours", seed) for seed in SEEDS] + [(PAPERS_RULES, seed) for seed in FEW_SEEDS]
    with ProcessPoolExecutor(PROCESSES) as pool:
        found = list(pool.map(run_of, wanted))
    for part in ("loads", "estimations", "runs"):
        RESULTS.write(f"global_{part}", [row for each in found for row in each[part]])


def draw() -> None:
    """Draw Figures 8a to 8c."""
    titles = {
        "input_ratio": "8a: input utilisation",
        "output_ratio": "8b: output utilisation",
        "matching_ms": "8c: matching delay, ms",
    }
    points = alt.Chart(
        as_data(
            [
                {"at_s": GLOBAL_CONVERGED_S, "words": "paper: balanced"},
                {"at_s": GLOBAL_STEP_S, "words": "step"},
            ]
        )
    ).encode(x="at_s:Q")
    marks = points.mark_rule(color="red", strokeDash=[4, 3]) + points.mark_text(
        color="red", align="left", dx=3, angle=270, fontSize=9, baseline="bottom"
    ).encode(y=alt.value(130), text="words:N")
    rows = []
    for field, title in titles.items():
        charts = []
        for variant in VARIANTS:
            data = [
                row
                for row in RESULTS.read("global_loads")
                if (row["variant"], row["seed"]) == (variant, SHOWN_SEED)
                and row["at_s"] < GLOBAL_SET_UP.until_s
            ]
            base = alt.Chart(as_data(data), width=420, height=170, title=f"{title}, {variant}")
            chart = base.mark_line(strokeWidth=1.2).encode(
                x=alt.X("at_s:Q", title="s"),
                y=alt.Y(f"{field}:Q", title=None),
                color=alt.Color("cluster:N", title=None),
            )
            charts.append(chart + marks)
        rows.append(alt.hconcat(*charts))
    RESULTS.draw("figure_8abc", alt.vconcat(*rows))


def main() -> None:
    if "--draw" not in sys.argv:
        if not has_quotes():
            return
        measure()
    draw()


if __name__ == "__main__":
    main()
