"""Figure 6(b): the maximum number of subscriptions of each system at 100,000 messages per second."""

from __future__ import annotations

from typing import Any

import altair as alt
from paper_points import CAPACITY_GAINS, marks
from systems import PAPER, SUBSCRIPTIONS, SYSTEMS, draw, keep, run_at, subscriptions, table

from fieldfare_lab.simulation.bluedove.model import ServiceModel, Trace
from fieldfare_lab.simulation.bluedove.saturation import saturation_rate
from fieldfare_lab.simulation.bluedove.workload import Boxes

RATE_PER_S = 100_000.0
DURATION_S = 30.0
BUNDLE = 200.0


def capacity(system: str, matchers: int) -> float:
    """The maximum number of subscriptions at which no queue grows continually."""
    make, policy = SYSTEMS[system]
    space = make(matchers)
    model = ServiceModel(PAPER, bundle_messages=BUNDLE)
    most = subscriptions(2 * SUBSCRIPTIONS)

    def run(count: float) -> Trace:
        stored = Boxes(most.low[: int(count)], most.high[: int(count)])
        placement = space.place(stored.extents)
        return run_at(RATE_PER_S, DURATION_S, space, policy, model, stored, placement)

    return saturation_rate(run, matchers * (2000.0 if system == "BlueDove" else 250.0), 0.05)


def measure() -> list[dict[str, Any]]:
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
    return rows


def main() -> None:
    rows = keep("figure_6b", measure)
    found = {(row["system"], row["matchers"]): row["subscriptions"] for row in rows}
    x = alt.X("matchers:Q", scale=alt.Scale(domain=[0, 21]), axis=alt.Axis(values=[0, 5, 10, 15, 20]))
    lines = (
        alt.Chart(table(rows))
        .mark_line(point=True)
        .encode(
            x=x,
            y=alt.Y("subscriptions:Q", axis=alt.Axis(format="~s")),
            color=alt.Color("system:N", title=None, sort=list(SYSTEMS)),
        )
        .properties(width=280, height=230, title="subscriptions at 100,000 messages/s")
    )
    gains = [
        {"over": f"over {name}", "matchers": number, "gain": found["BlueDove", number] / found[name, number]}
        for name in CAPACITY_GAINS
        for number in (5, 10, 15, 20)
    ]
    y = alt.Y("gain:Q", title="BlueDove's over the other's", scale=alt.Scale(type="log", domain=[2, 100]))
    ratio = (
        alt.Chart(table(gains))
        .mark_line(point=True)
        .encode(
            x=x, y=y, color=alt.Color("over:N", title=None, scale=alt.Scale(range=["#f58518", "#e45756"]))
        )
    )
    said = [
        {"matchers": number, "gain": gain, "source": f"the paper, over {name}"}
        for name, points in CAPACITY_GAINS.items()
        for number, gain in points.items()
    ]
    shape = alt.Shape("source:N", title=None, scale=alt.Scale(range=["circle", "diamond"]))
    right = alt.layer(ratio, marks(said).encode(x=x, y=y, shape=shape))
    chart = alt.hconcat(lines, right.properties(width=230, height=230, title="gains"))
    draw("figure_6b", chart.resolve_scale(color="independent").properties(title="Figure 6(b)"))


if __name__ == "__main__":
    main()
