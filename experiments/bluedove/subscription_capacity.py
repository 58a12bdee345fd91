"""Figure 6(b): how many subscriptions each system bears at 100,000 messages a second."""

from __future__ import annotations

import altair as alt
from systems import PAPER, SUBSCRIPTIONS, SYSTEMS, draw, run_at, subscriptions, table, write_csv

from fieldfare.runtimes.simulation.bluedove.model import ServiceModel, Trace
from fieldfare.runtimes.simulation.bluedove.saturation import saturation_rate
from fieldfare.runtimes.simulation.bluedove.workload import Boxes

RATE_PER_S = 100_000.0
DURATION_S = 30.0
BUNDLE = 200.0
PAPER_GAINS = {"P2P": 4.0, "full replication": 30.0}
"""BlueDove over the others with 20 matchers, section IV.C."""


def capacity(system: str, matchers: int) -> float:
    """The most subscriptions at which no queue goes on growing."""
    make, policy = SYSTEMS[system]
    space = make(matchers)
    model = ServiceModel(PAPER, bundle_messages=BUNDLE)
    most = subscriptions(2 * SUBSCRIPTIONS)

    def run(count: float) -> Trace:
        stored = Boxes(most.low[: int(count)], most.high[: int(count)])
        placement = space.place(stored.extents)
        return run_at(RATE_PER_S, DURATION_S, space, policy, model, stored, placement)

    return saturation_rate(run, matchers * (2000.0 if system == "BlueDove" else 250.0), 0.05)


def main() -> None:
    rows = []
    for system in SYSTEMS:
        for matchers in (5, 10, 15, 20):
            found = {
                "system": system,
                "matchers": matchers,
                "subscriptions": round(capacity(system, matchers)),
            }
            rows.append(found)
            print(found, flush=True)
    write_csv("figure_6b", rows)
    chart = (
        alt.Chart(table(rows))
        .mark_line(point=True)
        .encode(
            x=alt.X("matchers:Q", scale=alt.Scale(domain=[0, 20])),
            y=alt.Y("subscriptions:Q", axis=alt.Axis(format="~s")),
            color=alt.Color("system:N", title=None, sort=list(SYSTEMS)),
        )
        .properties(width=360, height=280, title="Figure 6(b): subscriptions at 100,000 messages/s")
    )
    draw("figure_6b", chart)


if __name__ == "__main__":
    main()
