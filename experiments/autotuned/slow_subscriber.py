"""Section V.B.3: a slow subscriber congests the broker. The paper omits its figures; these are ours.

The subscriber takes 40 ms per message (25 messages per second), and the pause between two pulls is increased.
The broker's buffer of 50 messages then limits the rate; with pauses from about 2 s it is less than the 17.5
requests/s that arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import altair as alt
from client_tuner import ClientPublisher
from support import CLIENT, OURS, PAPER, as_data, keep, summarise, write_picture

from fieldfare.publishing.autotuned import AutotunedPublisher
from fieldfare.publishing.machine import PublishingMachine
from fieldfare.publishing.windowed import WindowedPublisher
from fieldfare_lab.publishing import FixedPublisher
from fieldfare_lab.simulation.publishing import SubscriberModel, SystemModel, poisson_times, simulate

LOAD_PER_S = 17.5
DURATION_S = 400.0
VACATIONS_S = (0.5, 1.0, 2.0, 5.0, 10.0)
SEEDS = (1, 2, 3)
SHOWN_S = (2.0, 5.0, 10.0)
"""With shorter pauses almost no request is dropped."""

CASES: list[tuple[str, bool, Callable[[], PublishingMachine]]] = [
    ("fixed N = 5", False, lambda: FixedPublisher(5, 0.050)),
    ("fixed N = 10", False, lambda: FixedPublisher(10, 0.050)),
    ("fixed N = 50", False, lambda: FixedPublisher(50, 0.050)),
    ("fixed N = 10, receiving first", True, lambda: FixedPublisher(10, 0.050)),
    (PAPER, True, AutotunedPublisher),
    (OURS, True, WindowedPublisher),
    (CLIENT, True, ClientPublisher),
]


def measure() -> list[dict[str, Any]]:
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
    return rows


def draw(rows: list[dict[str, Any]]) -> Any:
    """A panel for each pause: most settings drop equally many, so lines would hide each other."""
    names = [name for name, _, _ in CASES]
    shown = [row for row in rows if row["vacation_s"] in SHOWN_S]
    base = alt.Chart(as_data(shown)).encode(y=alt.Y("setting:N", title=None, sort=names))

    def panel(field: str, title: str, form: str) -> Any:
        bars = base.mark_bar().encode(
            x=alt.X(f"mean({field}):Q", title=title, axis=alt.Axis(format=form)),
            color=alt.Color("setting:N", title=None, sort=names, legend=None),
        )
        spread = base.mark_rule().encode(x=f"min({field}):Q", x2=f"max({field}):Q")
        return (
            alt.layer(bars, spread)
            .properties(width=190, height=130)
            .facet(column=alt.Column("vacation_s:O", title="mean pause between pulls, s; lines: three seeds"))
        )

    return panel("dropped_share", "requests dropped, share of all", "%") & panel(
        "delivered_per_s", "messages delivered per second", "d"
    )


def main() -> None:
    write_picture("slow_subscriber", draw(keep("slow_subscriber", measure)))


if __name__ == "__main__":
    main()
