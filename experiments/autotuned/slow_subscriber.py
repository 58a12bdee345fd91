"""Section V.B.3: a slow subscriber congests the broker. The paper leaves its figures out; these are ours.

A message takes the subscriber 40 ms (25 messages a second) and the pause between two pulls grows. The
broker's buffer of 50 messages then bounds what it takes; from about 2 s of pause on that is less than the
17.5 requests/s that come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import altair as alt
from support import OURS, PAPER, as_data, summarise, write_picture, write_table

from fieldfare.publishing import AutotunedPublisher, FixedPublisher, PublishingMachine, WindowedPublisher
from fieldfare.runtimes.simulation.publishing import SubscriberModel, SystemModel, poisson_times, simulate

LOAD_PER_S = 17.5
DURATION_S = 400.0
VACATIONS_S = (0.5, 1.0, 2.0, 5.0, 10.0)
SEEDS = (1, 2, 3)

CASES: list[tuple[str, bool, Callable[[], PublishingMachine]]] = [
    ("fixed N = 5", False, lambda: FixedPublisher(5, 0.050)),
    ("fixed N = 10", False, lambda: FixedPublisher(10, 0.050)),
    ("fixed N = 50", False, lambda: FixedPublisher(50, 0.050)),
    ("fixed N = 10, requests first", True, lambda: FixedPublisher(10, 0.050)),
    (PAPER, True, AutotunedPublisher),
    (OURS, True, WindowedPublisher),
]


def main() -> None:
    rows: list[dict[str, Any]] = []
    for vacation_s in VACATIONS_S:
        for name, receive_first, make in CASES:
            model = replace(
                SystemModel(receive_first=receive_first, broker_buffer=50),
                subscriber=SubscriberModel(read_s=1 / 25, vacation_s=vacation_s),
            )
            for seed in SEEDS:
                times = poisson_times(LOAD_PER_S, DURATION_S, seed)
                run = simulate(make(), times, DURATION_S, model=model, seed=seed)
                summary = summarise(run, 0.0, DURATION_S)
                share = run.dropped / len(run.messages)
                case = {"setting": name, "vacation_s": vacation_s, "seed": seed}
                rows.append({**case, **summary, "dropped_share": round(share, 4)})
    write_table("slow_subscriber", rows)
    names = [name for name, _, _ in CASES]

    def panel(field: str, title: str) -> Any:
        return (
            alt.Chart(as_data(rows), width=330, height=230)
            .mark_line(point=True)
            .encode(
                x=alt.X("vacation_s:Q", title="mean pause between pulls, s"),
                y=alt.Y(f"mean({field}):Q", title=title),
                color=alt.Color("setting:N", title=None, sort=names),
            )
        )

    write_picture(
        "slow_subscriber",
        panel("dropped_share", "requests dropped, share of all")
        | panel("delivered_per_s", "messages delivered per second"),
    )


if __name__ == "__main__":
    main()
