"""Figure 9: latency with auto-tuning does not depend on the initial N. Figure 10: N at 35 requests/s."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import altair as alt
from support import DURATION_S, OURS, PAPER, as_data, keep, run_load, write_picture

from fieldfare.publishing.autotuned import AutotunedKnobs, AutotunedPublisher
from fieldfare.publishing.windowed import WindowedPublisher
from fieldfare_lab.simulation.publishing import poisson_times, simulate

FIRST = (1, 5, 10, 20, 50)
SHOWN_S = 60.0
LEVEL = f"{OURS} (it has no N to begin with)"
PAPERS_MEAN_N = 10
PAPERS_MEAN = 'the paper: "slightly less than 10"'
"""The caption of figure 10."""


def latencies() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for load_per_s in DURATION_S:
        for first in FIRST:
            machine = AutotunedPublisher(AutotunedKnobs(first_batch_messages=first))
            rows.append({"tuner": PAPER, "first_batch_messages": first, **run_load(machine, load_per_s)})
        # Our tuner has no initial N: one run, drawn as a constant.
        rows.append({"tuner": OURS, "first_batch_messages": "", **run_load(WindowedPublisher(), load_per_s)})
    return rows


def batch_sizes() -> list[dict[str, Any]]:
    run = simulate(AutotunedPublisher(), poisson_times(35.0, 300.0, 1), 300.0)
    sizes = [poll.setting.batch_messages for poll in run.polls]
    return [
        {"second": round(poll.now_s, 3), "batch_messages": size, "mean_so_far": round(total / number, 2)}
        for number, (poll, size, total) in enumerate(zip(run.polls, sizes, accumulate(sizes), strict=True), 1)
    ]


def draw_latencies(rows: list[dict[str, Any]]) -> Any:
    y = alt.Y("latency_mean_ms:Q", title="mean latency, ms", scale=alt.Scale(domain=[0, 700]))
    panels = []
    for load_per_s in DURATION_S:
        here = [row for row in rows if row["load_per_s"] == load_per_s]
        begun = [row for row in here if row["tuner"] == PAPER]
        lines = (
            alt.Chart(as_data(begun), title=f"{load_per_s:g} requests/s", width=270, height=170)
            .mark_line(point=True)
            .encode(
                x=alt.X("first_batch_messages:Q", title="N to begin with"),
                y=y,
                color=alt.Color("tuner:N", title=None, sort=[PAPER, LEVEL]),
            )
        )
        level = [{**row, "tuner": LEVEL} for row in here if row["tuner"] == OURS]
        panels.append(
            lines
            + alt.Chart(as_data(level))
            .mark_rule(strokeWidth=2)
            .encode(y=y, color=alt.Color("tuner:N", sort=[PAPER, LEVEL]))
        )
    return alt.vconcat(alt.hconcat(*panels[:2]), alt.hconcat(*panels[2:]))


def draw_sizes(sizes: list[dict[str, Any]]) -> Any:
    shown = [row for row in sizes if row["second"] <= SHOWN_S]
    domain = ["N", "its mean so far", PAPERS_MEAN]
    colours = alt.Color(
        "what:N", title=None, scale=alt.Scale(domain=domain, range=["steelblue", "black", "firebrick"])
    )
    x = alt.X("second:Q", title="time, s", scale=alt.Scale(domain=[0, SHOWN_S]))
    base = alt.Chart(as_data(shown), width=620, height=240, title="paper's tuner, 35 requests/s")
    steps = (
        base.transform_calculate(what="'N'")
        .mark_line(interpolate="step-after", opacity=0.5)
        .encode(x=x, y=alt.Y("batch_messages:Q", title="N"), color=colours)
    )
    average = (
        base.transform_calculate(what="'its mean so far'")
        .mark_line(strokeWidth=3)
        .encode(x=x, y="mean_so_far:Q", color=colours)
    )
    paper = (
        alt.Chart(as_data([{"mean": PAPERS_MEAN_N, "what": PAPERS_MEAN}]))
        .mark_rule(strokeDash=[6, 4], strokeWidth=2)
        .encode(y="mean:Q", color=colours)
    )
    return steps + average + paper


def main() -> None:
    rows = keep("first_batch_size", latencies)
    write_picture("first_batch_size", draw_latencies(rows))
    sizes = keep("batch_size_over_time", batch_sizes)
    write_picture("batch_size_over_time", draw_sizes(sizes))


if __name__ == "__main__":
    main()
