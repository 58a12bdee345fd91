"""Figure 6(a): saturation rate against matchers, for three systems, with the paper's search and fieldfare's.

``calibrate.py`` measures fieldfare's. ``--draw`` draws the picture from the existing CSV.
"""

from __future__ import annotations

from typing import Any

import altair as alt
from paper_points import COLOUR, GAINS, PAPER, RATES, marks
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
    """BlueDove's rate divided by that of each other system."""
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


X = alt.X("matchers:Q", scale=alt.Scale(domain=[0, 21]), axis=alt.Axis(values=[0, *MATCHERS]))


def rates_panel(rows: list[dict[str, Any]], search: str) -> alt.LayerChart:
    """Saturation rates of the three systems; with the paper's search also the paper's rates."""
    here = [row for row in rows if row["search"] == search]
    y = alt.Y("messages_per_s:Q", title="saturation rate, messages/s", axis=alt.Axis(format="~s"))
    colour = alt.Color("system:N", title=None, sort=list(SYSTEMS))
    layers: list[alt.Chart] = [alt.Chart(table(here)).mark_line(point=True).encode(x=X, y=y, color=colour)]
    if search == LINEAR:
        points = [
            {"system": name, "matchers": number, "messages_per_s": rate}
            for number, found in RATES.items()
            for name, rate in found.items()
        ]
        diamonds = alt.Chart(table(points)).mark_point(
            shape="diamond", size=120, filled=True, opacity=1, stroke=COLOUR, strokeWidth=2
        )
        layers.append(diamonds.encode(x=X, y=y, color=colour))
        search += f"; diamonds: {PAPER}"
    return alt.layer(*layers).properties(width=300, height=230, title=search)


def gains_panel(rows: list[dict[str, Any]]) -> alt.LayerChart:
    """BlueDove's saturation rate as a multiple of the others'."""
    scale = alt.Scale(type="log", domain=[2, 100])
    y = alt.Y("gain:Q", title="BlueDove's rate over the other's", scale=scale)
    colour = alt.Color("over:N", title=None, scale=alt.Scale(range=["#f58518", "#e45756"]))
    base = alt.Chart(table(gains(rows))).encode(x=X, y=y, color=colour)
    dash = alt.StrokeDash("search:N", title=None, sort=[LINEAR], legend=alt.Legend(labelLimit=260))
    points = [
        {"matchers": number, "gain": gain, "source": f"{PAPER}, over {name}"}
        for name, found in GAINS.items()
        for number, gain in found.items()
    ]
    shape = alt.Shape("source:N", title=None, scale=alt.Scale(range=["circle", "diamond"]))
    said = marks(points).encode(x=X, y=y, shape=shape)
    layers = alt.layer(base.mark_line().encode(strokeDash=dash), base.mark_circle(opacity=1), said)
    return layers.properties(width=300, height=230, title="gains")


def main() -> None:
    rows = keep("figure_6a", measure)
    upper = alt.hconcat(rates_panel(rows, LINEAR), rates_panel(rows, ENGINE))
    chart = alt.vconcat(upper, gains_panel(rows)).resolve_scale(color="independent")
    draw("figure_6a", chart.properties(title="Figure 6(a): 40,000 subscriptions"))


if __name__ == "__main__":
    main()
