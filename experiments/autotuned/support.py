"""Common parts of the programs in this folder: loads, summaries, tables and pictures."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

import altair as alt

sys.path.append(str(Path(__file__).resolve().parents[1]))

from results_folder import ResultsFolder, as_data

from fieldfare.publishing.machine import PublishingMachine
from fieldfare_lab.simulation.publishing import Run, SystemModel, poisson_times, simulate

RESULTS = Path(__file__).parent / "results"
FOLDER = ResultsFolder(RESULTS)
keep, read_table, write_table, write_picture = FOLDER.keep, FOLDER.read, FOLDER.write, FOLDER.draw

DURATION_S = {1.75: 600.0, 17.5: 200.0, 35.0: 200.0, 55.0: 200.0}
"""The paper's loads, in requests per second, and the simulated time of each."""

WARM_UP_S = 20.0

PAPER, OURS, CLIENT, FIXED = "paper's tuner", "our tuner", "client's tuner", "fixed"
TICKS_MS = (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
TUNERS = [PAPER, OURS, CLIENT]


def run_load(
    machine: PublishingMachine, load_per_s: float, *, model: SystemModel | None = None, seed: int = 1
) -> dict[str, float]:
    """One of the paper's loads."""
    duration_s = DURATION_S[load_per_s]
    times = poisson_times(load_per_s, duration_s, seed)
    run = simulate(machine, times, duration_s, model=model, seed=seed)
    return {"load_per_s": load_per_s, **summarise(run, WARM_UP_S, duration_s)}


def summarise(run: Run, start_s: float, end_s: float) -> dict[str, float]:
    """Latency (ms) of the messages of a span, and the numbers delivered and lost in it."""
    latencies_ms = [1000 * latency_s for latency_s in run.latencies_s(start_s, end_s)]
    arrived = sum(start_s <= message.arrived_s < end_s for message in run.messages)
    cuts = quantiles(latencies_ms, n=20) if len(latencies_ms) > 1 else [float("nan")] * 19
    return {
        "latency_mean_ms": round(mean(latencies_ms), 1) if latencies_ms else float("nan"),
        **{f"latency_p{5 * number}_ms": round(cuts[number - 1], 1) for number in (1, 5, 10, 15, 19)},
        "arrived_per_s": round(arrived / (end_s - start_s), 3),
        "delivered_per_s": round(run.delivered(start_s, end_s) / (end_s - start_s), 3),
        "left_messages": run.left_messages,
        "dropped_requests": run.dropped,
    }


def draw_boxes(rows: Sequence[Mapping[str, Any]], title: str, *, sort: Sequence[str], most_ms: float) -> Any:
    """Boxes of latency (5th, 25th, 50th, 75th, 95th percentile), one row per ``setting``, on a log scale."""
    scale = alt.Scale(type="log", domain=[100, most_ms])
    base = alt.Chart(as_data(rows), title=title, width=480, height=26 * len(sort)).encode(
        y=alt.Y("setting:N", sort=list(sort), title=None, axis=alt.Axis(labelLimit=240)),
        color=alt.Color("tuner:N", title=None, sort=[FIXED, *TUNERS]),
    )
    whisker = base.mark_rule().encode(
        x=alt.X(
            "latency_p5_ms:Q",
            scale=scale,
            title="end-to-end latency, ms",
            axis=alt.Axis(values=[value for value in TICKS_MS if value <= most_ms]),
        ),
        x2="latency_p95_ms:Q",
    )
    box = base.mark_bar(size=14, opacity=0.6).encode(
        x=alt.X("latency_p25_ms:Q", scale=scale), x2="latency_p75_ms:Q"
    )
    median = base.mark_tick(thickness=2, size=14, color="black").encode(
        x=alt.X("latency_p50_ms:Q", scale=scale)
    )
    return whisker + box + median
