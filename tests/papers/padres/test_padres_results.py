"""Cheung and Jacobsen 2006, section 6: the claims that hold, in the kept results of experiments/padres.

The claims that do not hold are in docs/papers/padres-figures.md.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "experiments" / "padres"))

from balancing_runs import (  # noqa: E402
    CAPACITIES,
    GLOBAL_CONVERGED_S,
    OVERHEAD_AFTER_PERCENT,
    OVERHEAD_PERCENT,
    PAPERS_RULES,
    RESULTS,
    SEEDS,
    UNBALANCED,
    VARIANTS,
)
from balancing_summary import claims, estimation_percent, runs, summary  # noqa: E402
from estimation_samples import summary_rows  # noqa: E402

VARIANT = pytest.mark.parametrize("variant", VARIANTS)


def test_the_local_runs_have_several_seeds() -> None:
    assert len(SEEDS) >= 3
    for variant in VARIANTS:
        assert [row["seed"] for row in runs("local", variant)] == list(SEEDS)
    assert [row["seed"] for row in runs("global", "ours")] == list(SEEDS)


@VARIANT
def test_no_event_was_lost_or_delivered_twice(variant: str) -> None:
    for name in ("local", "global"):
        assert [row["lost"] + row["doubled"] for row in runs(name, variant)] == [0] * len(runs(name, variant))


@VARIANT
def test_the_overhead_is_below_the_papers_with_pie_counted(variant: str) -> None:
    for row in runs("local", variant):
        assert 0 < row["overhead_percent"] < OVERHEAD_PERCENT
        assert 0 < row["overhead_after_percent"] < OVERHEAD_AFTER_PERCENT


@VARIANT
def test_stronger_brokers_have_more_subscribers(variant: str) -> None:
    """Figure 6e."""
    for seed in SEEDS:
        rows: dict[str, Any] = {
            row["broker"]: row["subscriptions"]
            for row in RESULTS.read("local_loads")
            if (row["variant"], row["seed"], row["at_s"]) == (variant, seed, 2_800)
        }
        counts = [rows[broker] for broker in CAPACITIES]
        assert counts == sorted(counts) and sum(counts) == 2_000


@VARIANT
def test_all_metrics_come_within_the_local_threshold(variant: str) -> None:
    """Figures 6a to 6c and, of the input, 6h: the largest difference between two brokers before the step."""
    for row in runs("local", variant):
        assert max(row["span_input"], row["span_output"], row["span_delay"]) <= 0.1


@VARIANT
def test_while_subscribers_join_b1s_load_is_underestimated(variant: str) -> None:
    """Figure 7a: 'load estimation does not account for the load imposed by newly incoming subscribers'."""
    points = [
        row["estimated"] < row["measured"]
        for row in RESULTS.read("local_estimations")
        if (row["variant"], row["broker"], row["role"], row["metric"])
        == (variant, "B1", "offloading", "input")
        and row["at_s"] < 1_000
    ]
    assert len(points) > 20 and statistics.mean(points) > 0.9


def test_without_balancing_the_delay_grows_by_more_than_the_papers_750() -> None:
    """Figure 6d: what an overload does."""
    rows = [row for row in RESULTS.read("local_delays") if row["variant"] == UNBALANCED]
    assert max(row["delay_ms"] for row in rows) > 750 * min(row["delay_ms"] for row in rows)


def test_global_balancing_converges_before_the_papers_in_the_median() -> None:
    assert statistics.median(row["converged_s"] for row in runs("global", "ours")) < GLOBAL_CONVERGED_S


def test_with_the_papers_rules_the_subscribers_follow_the_capacities() -> None:
    """Figure 6e: 1 : 2 : 4 : 10."""
    for broker, capacity in CAPACITIES.items():
        shares = [
            row["subscriptions"] * sum(CAPACITIES.values()) / 2_000
            for row in RESULTS.read("local_loads")
            if (row["variant"], row["broker"], row["at_s"]) == (PAPERS_RULES, broker, 2_800)
        ]
        assert statistics.median(shares) == pytest.approx(capacity, rel=0.15)


def test_fifty_samples_are_the_best() -> None:
    """Figure 7b: the error falls up to 50 samples; beyond, its mean grows, its deviation falls no more."""
    rows = [row for row in summary_rows() if row["sampling"] == "coming publications"]
    deviations = {row["samples"]: row["deviation"] for row in rows}
    means = {row["samples"]: abs(row["mean"]) for row in rows}
    assert deviations[1] > deviations[10] > deviations[50]
    assert deviations[1_000] > 0.95 * deviations[50]
    assert means[1] > means[10] > means[50] < means[1_000]


def test_more_than_three_clusters_gain_nothing() -> None:
    """Figure 8d."""
    found = delays("8d")
    assert found[1] > found[2] > found[3]
    assert min(found[4], found[6]) > 0.95 * found[3]


@VARIANT
def test_farther_clusters_end_with_less_load(variant: str) -> None:
    """Figure 8a."""
    for row in runs("global", variant):
        levels = [float(each) for each in row["input_ratio"].split()]
        assert levels[0] > levels[-1] > 0


def test_after_the_step_the_clusters_inputs_are_closer() -> None:
    """Figure 8a."""
    for row in runs("global", "ours"):
        assert row["after_input_ratio_spread"] < row["input_ratio_spread"]


def test_every_metric_is_estimated_as_well_as_the_papers_lowest() -> None:
    for metric in ("input", "output", "delay"):
        assert estimation_percent("ours", metric) >= 91


def delays(figure: str) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for row in RESULTS.read("scalability"):
        if row["figure"] == figure:
            found.setdefault(row["size"], []).append(row["delay_ms"])
    return {size: statistics.median(values) for size, values in found.items()}


def test_more_edge_brokers_mean_less_delay() -> None:
    """Figure 6g."""
    found = delays("6g")
    sizes = sorted(found)
    assert all(found[a] > found[b] for a, b in pairwise(sizes))


def test_the_summary_names_the_goals() -> None:
    found = summary()
    for variant in VARIANTS:
        assert set(found[variant]["claims"]) == {claim.text for claim in claims(variant)}
        assert 0 < found[variant]["estimation_percent"] <= 100


@pytest.mark.long
@pytest.mark.parametrize(
    "program", ["local_balancing", "global_balancing", "scalability", "estimation_samples", "disturbances"]
)
def test_without_the_quotes_a_balancing_program_says_so(program: str, tmp_path: Path) -> None:
    settings = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'lab'}",
        "FIELDFARE_SHARED_DATA": str(tmp_path),
    }
    path = ROOT / "experiments" / "padres" / f"{program}.py"
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=True, env=settings
    )
    assert done.stdout.startswith("Skipped: ")
