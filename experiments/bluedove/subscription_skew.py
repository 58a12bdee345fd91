"""Figure 11(b): the saturation rate with less and less skewed subscriptions, 20 matchers.

The paper does not say how it treats a range that extends beyond the axis. If it is moved inside (the workload
`bluedove`, as in all other figures) ranges pile up at the ends even if their centres are uniform. If it is
cut off, the fullest set has, at a standard deviation of 1000, about 1.2 times the average, as in the paper.
"""

from __future__ import annotations

from typing import Any

import altair as alt
from paper_points import DEVIATIONS
from systems import MATCHERS, POLICIES, bluedove, draw, keep, saturation, subscriptions, table
from workload_charts import rate_axis, said


def fullest(cut_off: bool, deviation: float) -> float:
    """The largest set of a matcher divided by the average set of its dimension."""
    space = bluedove(MATCHERS)
    stored = subscriptions(deviation=deviation, cut_off=cut_off)
    sizes = space.place(stored.extents).sizes[: 4 * MATCHERS].reshape(4, MATCHERS)
    return float((sizes.max(axis=1) / sizes.mean(axis=1)).max())


def measure() -> list[dict[str, Any]]:
    rows = []
    for ends, cut_off in (("moved inside", False), ("cut off", True)):
        for deviation in (250.0, 500.0, 750.0, 1000.0):
            stored = subscriptions(deviation=deviation, cut_off=cut_off)
            rate = saturation(bluedove(MATCHERS), POLICIES["adaptive"], stored=stored)
            rows.append(
                {
                    "ranges": ends,
                    "deviation": int(deviation),
                    "messages_per_s": round(rate),
                    "fullest_set": round(fullest(cut_off, deviation), 2),
                }
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    rows = keep("figure_11b", measure)
    base = alt.Chart(table(rows)).encode(
        x=alt.X("deviation:O", title="standard deviation of subscriptions", axis=alt.Axis(labelAngle=0)),
        xOffset=alt.XOffset("ranges:N", sort=None),
        y=rate_axis(),
    )
    bars = base.mark_bar().encode(color=alt.Color("ranges:N", title="ranges at the ends are", sort=None))
    numbers = base.mark_text(dy=10, color="white").encode(text=alt.Text("messages_per_s:Q", format=".3~s"))
    title = alt.TitleParams(
        "Figure 11(b): less and less skewed subscriptions (the paper: almost 40% less at 1000)", offset=12
    )
    chart = alt.layer(bars, numbers, said(DEVIATIONS, "deviation"))
    draw("figure_11b", chart.properties(width=480, height=260, title=title))


if __name__ == "__main__":
    main()
