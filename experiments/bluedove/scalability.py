"""Figure 6(a): saturation rate against matchers, for the three systems, by the paper's search and ours.

``calibrate.py`` has measured ours. ``--draw`` draws the picture from the CSV that is there.
"""

from __future__ import annotations

from typing import Any

import altair as alt
from paper_points import GAINS, PAPER, RATES, marks
from systems import PAPER as PAPER_SEARCH
from systems import SYSTEMS, draw, engine, keep, saturation, table

LINEAR, ENGINE = "linear search (the paper's matchers)", "fieldfare's engine"
MATCHERS = (5, 10, 15, 20)


def measure() -> list[dict[str, Any]]:
    rows = []
    for search, service in ((LINEAR, PAPER_SEARCH), (ENGINE, engine())):
        for name, (make, policy) in SYSTEMS.items():
            for matchers in MATCHERS:
                rate = saturation(make(matchers), policy, service)
                rows.append(
                    {"search": search, "system": name, "matchers": matchers, "messages_per_s": round(rate)}
                )
                print(rows[-1], flush=True)
    return rows


def gains(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """BlueDove's rate over each other system's."""
    rates = {(row["search"], row["system"], row["matchers"]): row["messages_per_s"] for row in rows}
    return [
        {
            "search": search,
            "over": f"over {name}",
            "matchers": matchers,
            "gain": round(rates[search, "BlueDove", matchers] / rates[search, name, matchers], 2),
        }
        for search in (LINEAR, ENGINE)
        for name in GAINS
        for matchers in MATCHERS
    ]


def main() -> None:
    rows = keep("figure_6a", measure)
    x = alt.X("matchers:Q", scale=alt.Scale(domain=[0, 21]), axis=alt.Axis(values=[0, *MATCHERS]))
    colour = alt.Color("system:N", title=None, sort=list(SYSTEMS))
    panels = []
    for search in (LINEAR, ENGINE):
        here = [row for row in rows if row["search"] == search]
        y = alt.Y("messages_per_s:Q", title="saturation rate, messages/s", axis=alt.Axis(format="~s"))
        panel = alt.Chart(table(here)).mark_line(point=True).encode(x=x, y=y, color=colour)
        if search == LINEAR:
            points = [
                {"system": name, "matchers": number, "messages_per_s": rate}
                for number, found in RATES.items()
                for name, rate in found.items()
            ]
            panel = alt.layer(panel, marks(points).encode(x=x, y=y))
        panels.append(panel.properties(width=230, height=230, title=search))
    y = alt.Y(
        "gain:Q", title="BlueDove's rate over the other's", scale=alt.Scale(type="log", domain=[2, 100])
    )
    ratio = (
        alt.Chart(table(gains(rows)))
        .mark_line(point=True)
        .encode(
            x=x,
            y=y,
            color=alt.Color("over:N", title=None, scale=alt.Scale(range=["#f58518", "#e45756"])),
            strokeDash=alt.StrokeDash("search:N", title=None, sort=[LINEAR]),
        )
    )
    points = [
        {"over": name, "matchers": number, "gain": gain, "source": f"{PAPER}, over {name}"}
        for name, found in GAINS.items()
        for number, gain in found.items()
    ]
    shape = alt.Shape(
        "source:N", title="diamonds left, and here:", scale=alt.Scale(range=["circle", "diamond"])
    )
    said = marks(points).encode(x=x, y=y, shape=shape)
    panels.append(alt.layer(ratio, said).properties(width=230, height=230, title="gains"))
    chart = alt.hconcat(*panels).resolve_scale(color="independent", y="independent")
    draw("figure_6a", chart.properties(title="Figure 6(a): 40,000 subscriptions"))


if __name__ == "__main__":
    main()
