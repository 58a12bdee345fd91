"""Figure 5: the enforcer's decision for two hosts at 73 and 74 %."""

from __future__ import annotations

from typing import Any

import altair as alt
from elastic_runs import COLOUR, RESULTS, as_data

from fieldfare.elasticity.enforcer import ClusterLoad, ElasticityPolicy, decide
from fieldfare.elasticity.rules import SliceLoad

CPU = {
    "host1": {"AP:1": 12, "AP:2": 11, "M:1": 25, "M:2": 25},
    "host2": {"M:3": 26, "M:4": 23, "EP:1": 13, "EP:2": 12},
}
STATE_BYTES = {"AP": 10_000, "EP": 100_000, "M": 6_250_000}
"""Not in the paper's figure, except for the order: access points have least, matchers most."""


def load() -> ClusterLoad:
    """Figure 5, on the left."""
    slices = {
        name: SliceLoad(name, host, cpu / 100, STATE_BYTES[name.partition(":")[0]])
        for host, slices in CPU.items()
        for name, cpu in slices.items()
    }
    return ClusterLoad(slices, tuple(CPU))


def measure() -> list[dict[str, Any]]:
    before = load()
    asked = decide(before, ElasticityPolicy())
    assert asked is not None
    places = {
        move.slice: f"host{len(CPU) + 1 + move.to}" if isinstance(move.to, int) else move.to
        for move in asked.moves
    }
    rows = []
    for name, each in before.slices.items():
        for moment, host in (("before", each.host), ("after", places.get(name, each.host))):
            rows.append(
                {
                    "moment": moment,
                    "host": host,
                    "slice": name,
                    "operator": name.partition(":")[0],
                    "cpu": round(100 * each.cpu),
                }
            )
    return rows


def main() -> None:
    rows = RESULTS.keep("figure_5", measure)
    bars = (
        alt.Chart(width=200, height=240)
        .mark_bar(stroke="white")
        .encode(
            x=alt.X(
                "host:N",
                title=None,
                axis=alt.Axis(labelAngle=0),
                scale=alt.Scale(domain=["host1", "host2", "host3"]),
            ),
            y=alt.Y("cpu:Q", title="CPU, %", scale=alt.Scale(domain=[0, 80])),
            color=alt.Color("operator:N", sort=["AP", "M", "EP"]),
            order="slice:N",
        )
    )
    words = bars.mark_text(color="black", baseline="top", dy=3).encode(
        y=alt.Y("cpu:Q", stack="zero"), text="slice:N", color=alt.value("black")
    )
    target = alt.Chart().mark_rule(color=COLOUR, strokeDash=[4, 4]).encode(y=alt.datum(50))
    chart = alt.layer(bars, words, target, data=as_data(rows)).facet(
        column=alt.Column("moment:N", sort=["before", "after"], title=None)
    )
    RESULTS.draw(
        "figure_5",
        chart.properties(
            title="Figure 5: AP:1, AP:2, EP:1, EP:2 go to a third host, as in the paper (red: target)"
        ),
    )


if __name__ == "__main__":
    main()
