"""Table II and figure 11: the load changes in steps; how N follows, and the effect on latency.

Table II's times have no unit; they are interpreted as milliseconds: 1,000 s in total.
"""

from __future__ import annotations

from statistics import mean
from typing import Any

import altair as alt
from client_tuner import ClientPublisher
from support import CLIENT, OURS, PAPER, TUNERS, as_data, summarise, write_picture, write_table

from fieldfare.publishing.autotuned import AutotunedPublisher
from fieldfare.publishing.machine import PublishingMachine
from fieldfare.publishing.windowed import WindowedPublisher
from fieldfare_lab.simulation.publishing import Run, profile_times, simulate

PROFILE = [(0, 100, 1.75), (100, 300, 55.0), (300, 500, 17.5), (500, 750, 35.0), (750, 1000, 17.5)]
AVERAGED_POLLS = 5
BIN_S = 5.0


def follow(name: str, run: Run) -> list[dict[str, Any]]:
    """N over time as in the paper, averaged over 5 samples, thinned to one point in a few seconds."""
    rows: list[dict[str, Any]] = []
    for at in range(0, len(run.polls) - AVERAGED_POLLS, AVERAGED_POLLS * 3):
        polls = run.polls[at : at + AVERAGED_POLLS]
        size = mean(poll.setting.batch_messages for poll in polls)
        rows.append({"tuner": name, "second": round(polls[0].now_s, 1), "batch_messages": round(size, 1)})
    return rows


def ages(name: str, run: Run) -> list[dict[str, Any]]:
    """Mean latency of the messages that arrived in each time bin."""
    bins: dict[int, list[float]] = {}
    for message in run.messages:
        if message.latency_s is not None:
            bins.setdefault(int(message.arrived_s / BIN_S), []).append(1000 * message.latency_s)
    return [
        {"tuner": name, "second": number * BIN_S, "latency_ms": round(mean(values), 1)}
        for number, values in sorted(bins.items())
    ]


def main() -> None:
    tuners: dict[str, PublishingMachine] = {
        PAPER: AutotunedPublisher(),
        OURS: WindowedPublisher(),
        CLIENT: ClientPublisher(),
    }
    runs = {
        name: simulate(tuner, profile_times(PROFILE, 1), PROFILE[-1][1]) for name, tuner in tuners.items()
    }
    table = [
        {"tuner": name, "start_s": start_s, "end_s": end_s, "load_per_s": rate}
        | summarise(run, start_s, end_s)
        for name, run in runs.items()
        for start_s, end_s, rate in PROFILE
    ]
    write_table("load_steps", table)
    sizes = follow(PAPER, runs[PAPER])
    write_table("load_steps_batch_size", sizes)
    late = [row for name, run in runs.items() for row in ages(name, run)]
    write_table("load_steps_latency", late)

    steps = [{"start": start, "end": end, "load": rate} for start, end, rate in PROFILE]
    x = alt.X("second:Q", title="time, s")
    size = (
        alt.Chart(as_data(sizes), width=640, height=200)
        .mark_line()
        .encode(
            x=x,
            y=alt.Y("batch_messages:Q", title="N; load in requests/s (red)", scale=alt.Scale(domain=[0, 60])),
        )
    )
    loads = (
        alt.Chart(as_data(steps))
        .mark_rule(color="red", strokeWidth=2)
        .encode(x="start:Q", x2="end:Q", y="load:Q")
    )
    age = (
        alt.Chart(as_data(late), width=640, height=200)
        .mark_line()
        .encode(
            x=x,
            y=alt.Y("latency_ms:Q", title="mean latency, ms", scale=alt.Scale(zero=False)),
            color=alt.Color("tuner:N", title=None, sort=TUNERS),
        )
    )
    write_picture("load_steps", (size + loads) & age)


if __name__ == "__main__":
    main()
