"""Figure 9: latency with auto-tuning does not depend on the N that it begins with. Figure 10: N at 35
requests/s.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import altair as alt
from support import (
    DURATION_S,
    OURS,
    PAPER,
    as_data,
    run_load,
    write_picture,
    write_table,
)

from fieldfare.publishing import AutotunedKnobs, AutotunedPublisher, WindowedPublisher
from fieldfare.runtimes.simulation.publishing import poisson_times, simulate

FIRST = (1, 5, 10, 20, 50)
SHOWN_S = 60.0


def latencies() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for load_per_s in DURATION_S:
        ours = run_load(WindowedPublisher(), load_per_s)
        for first in FIRST:
            machine = AutotunedPublisher(AutotunedKnobs(first_batch_messages=first))
            rows.append({"tuner": PAPER, "first_batch_messages": first, **run_load(machine, load_per_s)})
            rows.append({"tuner": OURS, "first_batch_messages": first, **ours})
    return rows


def batch_sizes() -> list[dict[str, Any]]:
    run = simulate(AutotunedPublisher(), poisson_times(35.0, 300.0, 1), 300.0)
    sizes = [poll.setting.batch_messages for poll in run.polls]
    return [
        {"second": round(poll.now_s, 3), "batch_messages": size, "mean_so_far": round(total / number, 2)}
        for number, (poll, size, total) in enumerate(zip(run.polls, sizes, accumulate(sizes), strict=True), 1)
    ]


def main() -> None:
    rows = latencies()
    write_table("first_batch_size", rows)
    chart = (
        alt.Chart(as_data(rows), width=260, height=180)
        .mark_line(point=True)
        .encode(
            x=alt.X("first_batch_messages:Q", title="N to begin with (ours has none)"),
            y=alt.Y("latency_mean_ms:Q", title="mean latency, ms"),
            color=alt.Color("tuner:N", title=None, sort=[PAPER, OURS]),
            facet=alt.Facet("load_per_s:Q", columns=2, title="requests/s"),
        )
    )
    write_picture("first_batch_size", chart)
    sizes = batch_sizes()
    write_table("batch_size_over_time", sizes)
    shown = [row for row in sizes if row["second"] <= SHOWN_S]
    base = alt.Chart(as_data(shown), width=620, height=240, title="paper's tuner, 35 requests/s").encode(
        x=alt.X("second:Q", title="time, s")
    )
    steps = base.mark_line(interpolate="step-after", opacity=0.5).encode(
        y=alt.Y("batch_messages:Q", title="N")
    )
    average = base.mark_line(color="black", strokeWidth=3).encode(y="mean_so_far:Q")
    write_picture("batch_size_over_time", steps + average)


if __name__ == "__main__":
    main()
