"""Shared by the balancing experiments: the paper's points, runs of the simulation, and their rows.

Three variants: *paper's rules*, with the paper's defaults; *ours*, with PRESS from the log and a
calibrated matching time; *no balancing*. All figures have one set of constants, in
``edge_engine.py``.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from results_folder import ResultsFolder, as_data  # noqa: E402

from fieldfare.balancing.load import Load, Metric, difference  # noqa: E402
from fieldfare_lab.simulation.balancing.setups import OURS, PAPER, SetUp  # noqa: E402
from fieldfare_lab.simulation.balancing.stock_market import QUOTES, Quotes, read_quotes  # noqa: E402
from fieldfare_lab.simulation.balancing.system import BalancedBrokers  # noqa: E402

__all__ = ["as_data"]

RESULTS = ResultsFolder(HERE / "results")
DATA = Path(os.environ.get("FIELDFARE_SHARED_DATA", HERE.parents[2] / "shared" / "data")) / QUOTES
SEEDS = (1, 2, 3)
FEW_SEEDS = SEEDS[:1]
"""Of the experiments with many or long runs."""
PROCESSES = len(os.sched_getaffinity(0))
EVERY_S = 20
"""Loads are sampled this often."""
PAPERS_RULES, UNBALANCED = "paper's rules", "no balancing"
VARIANTS = (PAPERS_RULES, "ours")

# The paper's points (sections 6.2 and 6.3); its figures are not in the text.
B1_EMPTY_S, LOCAL_CONVERGED_S, STEP_S, BALANCED_AGAIN_S = 1_400, 1_800, 3_000, 3_400
OVERHEAD_PERCENT, OVERHEAD_AFTER_PERCENT = 1.5, 0.2
ESTIMATION_PERCENT, BEST_SAMPLES = 91, 50
OVERLOAD_DELAYS = 750
CAPACITIES = {"B1": 1, "B2": 2, "B3": 4, "B4": 10}
GLOBAL_CONVERGED_S, GLOBAL_STEP_S, HOPS_THAT_HELP = 4_500, 8_000, 3


def has_quotes() -> bool:
    """Return whether the quotes are there; say so where they are not."""
    if not DATA.exists():
        print(f"Skipped: {DATA.name} is missing; FIELDFARE_SHARED_DATA names its folder.")
    return DATA.exists()


_quotes: list[Quotes] = []


def quotes() -> Quotes:
    """Return the quotes, read once."""
    if not _quotes:
        _quotes.append(read_quotes(DATA))
    return _quotes[0]


def variant_of(set_up: SetUp, variant: str) -> SetUp:
    """Return a set-up in a variant."""
    if variant == PAPERS_RULES:
        return replace(set_up, settings=PAPER)
    return replace(set_up, settings=OURS, is_balancing=variant != UNBALANCED, is_calibrated=True)


def run(set_up: SetUp, seed: int, given: Quotes | None = None) -> BalancedBrokers:
    """Run a set-up, and check that every event was delivered once; not if brokers still work off a queue."""
    brokers = set_up.build(given or quotes(), seed)
    brokers.run(set_up.until_s, drains_s=60.0 if set_up.is_balancing else 1.0)
    is_empty = not any(engine.waiting for engine in brokers.engines.values())
    if (is_empty and brokers.lost()) or brokers.doubled_or_foreign():
        raise AssertionError(f"{brokers.lost()} lost, {brokers.doubled_or_foreign()} doubled or foreign")
    return brokers


def load_rows(brokers: BalancedBrokers, every_s: int = 40) -> list[dict[str, Any]]:
    """Return the loads of the edge brokers over time."""
    return [
        {
            "at_s": round(at),
            "broker": name,
            "input_ratio": round(float(load.input_ratio), 4),
            "output_ratio": round(float(load.output_ratio), 4),
            "matching_ms": round(1000 * float(load.matching_s), 3),
            "subscriptions": load.subscriptions,
            "cpu": round(float(load.cpu), 3),
        }
        for at, name, load in brokers.records.loads
        if round(at) % every_s == 0
    ]


def delay_rows(brokers: BalancedBrokers) -> list[dict[str, Any]]:
    """Return the mean delivery delay of each 10 s."""
    return [
        {"at_s": 10 * at, "delay_ms": round(1000 * total / count, 2), "deliveries": int(count)}
        for at, (total, count) in sorted(brokers.records.delays.items())
        if count
    ]


def message_rows(brokers: BalancedBrokers, every_s: int = 20) -> list[dict[str, Any]]:
    """Return the messages of each span: control messages (PIE included) and events, counted per link."""
    control, events = Counter[int](), Counter[int]()
    for second, count in brokers.records.control.items():
        control[second // every_s] += count
    for second, count in brokers.records.events.items():
        events[second // every_s] += count
    return [
        {"at_s": every_s * at, "control": control[at], "events": events[at]}
        for at in sorted(events | control)
    ]


def estimation_rows(brokers: BalancedBrokers) -> list[dict[str, Any]]:
    """Return what was estimated and what was measured after each session."""
    return [
        {
            "at_s": round(each.at_s),
            "broker": each.broker,
            "role": each.role,
            "metric": each.metric,
            "before": round(each.before, 5),
            "estimated": round(each.estimated, 5),
            "measured": round(each.measured, 5),
        }
        for each in brokers.records.estimations
    ]


def overhead_percent(brokers: BalancedBrokers, from_s: float, to_s: float) -> float:
    """Return the share of control messages in all messages, in percent."""
    control = sum(n for at, n in brokers.records.control.items() if from_s <= at < to_s)
    events = sum(n for at, n in brokers.records.events.items() if from_s <= at < to_s)
    return 100 * control / max(1, control + events)


def differences(loads: Sequence[Load]) -> dict[str, float]:
    """Return the largest difference of each metric between brokers; the delay's as a share (equation 1)."""
    return {
        metric.value: max(float(difference(metric, one, other)) for one in loads for other in loads)
        for metric in Metric
    }


def spans(brokers: BalancedBrokers, names: Sequence[str], from_s: float, to_s: float) -> dict[str, float]:
    """Return the median over time of the differences between some brokers."""
    by_time: dict[float, list[Load]] = {}
    for at, name, load in brokers.records.loads:
        if name in names and from_s <= at <= to_s:
            by_time.setdefault(at, []).append(load)
    found = [differences(loads) for loads in by_time.values()]
    return {
        metric.value: round(statistics.median(each[metric.value] for each in found), 4) for metric in Metric
    }


def last_move_s(brokers: BalancedBrokers, from_s: float, to_s: float) -> float:
    """Return when the last subscriber moved in a span of time; its start if none did."""
    moved = [at for at, *_ in brokers.records.moves if from_s <= at < to_s]
    return max(moved, default=from_s)


def moves_max(brokers: BalancedBrokers, from_s: float, to_s: float) -> int:
    """Return how often the subscriber that moved most did so in a span of time."""
    counts = Counter(each for at, each, *_ in brokers.records.moves if from_s <= at < to_s)
    return max(counts.values(), default=0)


def accuracy(row: dict[str, Any]) -> float:
    """Return how right an estimation is, in percent: the smaller of the two values over the larger."""
    largest = max(row["estimated"], row["measured"])
    return 100.0 if largest <= 0 else 100 * min(row["estimated"], row["measured"]) / largest


def spread(values: Sequence[float], form: str = ".0f") -> str:
    """Return the median and, in brackets, the smallest and the largest where they differ."""
    shown = [f"{each:{form}}" if each < math.inf else "overloaded" for each in _three(values)]
    low, middle, high = shown
    return middle if low == high else f"{middle} ({low} to {high})"


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    return min(values), statistics.median(values), max(values)
