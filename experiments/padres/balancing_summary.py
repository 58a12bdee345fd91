"""The results beside the paper's points and this project's goals: one JSON object."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import Any

from balancing_runs import (
    BALANCED_AGAIN_S,
    ESTIMATION_PERCENT,
    GLOBAL_CONVERGED_S,
    LOCAL_CONVERGED_S,
    OVERHEAD_AFTER_PERCENT,
    OVERHEAD_PERCENT,
    RESULTS,
    STEP_S,
    VARIANTS,
    accuracy,
)

from fieldfare.balancing.load import Metric
from fieldfare_lab.simulation.balancing.setups import LOCAL_SET_UP

JOINED_S = LOCAL_SET_UP.joins_s[1] + 60
"""Estimations of earlier sessions stand apart: subscribers still joined (Figure 7a)."""


def runs(name: str, variant: str) -> list[dict[str, Any]]:
    """Return the runs of a variant, in the order of the seeds."""
    return [row for row in RESULTS.read(f"{name}_runs") if row["variant"] == variant]


def estimation_percent(variant: str, metric: str, names: tuple[str, ...] = ("local", "global")) -> float:
    """Return the mean accuracy of the estimations of a metric, without those that stand apart."""
    found = [
        accuracy(row)
        for name in names
        for row in RESULTS.read(f"{name}_estimations")
        if row["variant"] == variant
        and row["metric"] == metric
        and (name == "global" or row["at_s"] > JOINED_S)
    ]
    return statistics.mean(found)


@dataclass(frozen=True, slots=True)
class Claim:
    """A figure with the paper's value, this project's goal, the values of the seeds, and whether it holds.

    Attributes
    ----------
    holds
        Whether every seed meets the goal.
    """

    text: str
    paper: str
    goal: str
    values: tuple[float, ...]
    form: str
    holds: bool


def claims(variant: str) -> list[Claim]:
    """Return the claims in the order of the page."""
    return [*_local(variant), *_global(variant), *_estimation(variant)]


def _at_most(
    text: str, paper: str, bound: float, values: list[float], form: str = ",.0f", unit: str = ""
) -> Claim:
    goal = f"at most {bound:g}{unit}"
    return Claim(text, paper, goal, tuple(values), form, max(values) <= bound)


def _local(variant: str) -> list[Claim]:
    found = runs("local", variant)

    def values(field: str) -> list[float]:
        return [row[field] for row in found]

    return [
        _at_most(
            "local: the last move before the step, s", f"{LOCAL_CONVERGED_S:,}", 1_400, values("converged_s")
        ),
        _at_most(
            "after the step: the last move, s", f"{BALANCED_AGAIN_S - STEP_S}", 200, values("after_step_s")
        ),
        _at_most("largest difference of input utilisation then", "0.1", 0.1, values("span_input"), ".3f"),
        _at_most("of output utilisation", "0.1", 0.1, values("span_output"), ".3f"),
        _at_most("of matching delay (equation 1)", "0.1", 0.1, values("span_delay"), ".3f"),
        _at_most(
            "overhead from 1,000 to 2,000 s, %", f"{OVERHEAD_PERCENT}", 0.5, values("overhead_percent"), ".3f"
        ),
        _at_most(
            "overhead when balanced, %",
            f"{OVERHEAD_AFTER_PERCENT}",
            0.05,
            values("overhead_after_percent"),
            ".4f",
        ),
        _at_most("most moves of a subscriber, all joined, to the step", "-", 1, values("moves_max_still")),
        _at_most("and after the step", "-", 1, values("moves_max_after_step")),
        _at_most("events lost or delivered twice", "best effort", 0, _sums(found)),
    ]


def _sums(found: list[dict[str, Any]]) -> list[float]:
    return [row["lost"] + row["doubled"] for row in found]


def _global(variant: str) -> list[Claim]:
    found = runs("global", variant)
    nearest = [_first_last(row["input_ratio"]) for row in found]
    before = [row["input_ratio_spread"] for row in found]
    after = [row["after_input_ratio_spread"] for row in found]
    return [
        _at_most(
            "global: the last move before the step, s",
            f"{GLOBAL_CONVERGED_S:,}",
            2_250,
            [row["converged_s"] for row in found],
        ),
        Claim(
            "input utilisation of B1x less that of B4x",
            "farther clusters have less",
            "over 0",
            tuple(nearest),
            ".3f",
            min(nearest) > 0,
        ),
        Claim(
            "spread of the clusters' input after the step, less before",
            "closer",
            "below 0",
            tuple(b - a for a, b in zip(before, after, strict=True)),
            "+.3f",
            all(b < a for a, b in zip(before, after, strict=True)),
        ),
        _at_most(
            "moves of a subscriber over those on its way",
            "-",
            1.0,
            [row["moves_mean"] / row["moves_needed_mean"] for row in found],
            ".2f",
        ),
        _at_most("global: events lost or delivered twice", "best effort", 0, _sums(found)),
    ]


def _first_last(levels: str) -> float:
    values = [float(each) for each in levels.split()]
    return values[0] - values[-1]


def _estimation(variant: str) -> list[Claim]:
    found = []
    for metric in Metric:
        value = estimation_percent(variant, metric.value)
        paper = f"{ESTIMATION_PERCENT} (its lowest)" if metric is Metric.INPUT else "more"
        found.append(
            Claim(f"estimated right, {metric.value}, %", paper, "at least 97", (value,), ".1f", value >= 97)
        )
    return found


def summary() -> dict[str, Any]:
    """Return the figures of section 6, as found here."""
    found: dict[str, Any] = {}
    for variant in VARIANTS:
        lowest = min(estimation_percent(variant, metric.value) for metric in Metric)
        found[variant] = {
            "estimation_percent": round(lowest, 2),
            "claims": {
                claim.text: {
                    "paper": claim.paper,
                    "goal": claim.goal,
                    "values": [round(each, 4) for each in claim.values],
                    "holds": claim.holds,
                }
                for claim in claims(variant)
            },
        }
    return found


if __name__ == "__main__":
    print(json.dumps(summary(), indent=2))
