"""Figure 1: ticks per second of a day. New York replaces Frankfurt, whose trace is not available."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
from elastic_runs import COLOUR, MARKET_DAYS, RESULTS, as_data, ticks
from numpy.typing import NDArray

DAY = 3
MEAN_S = 180
PEAK = 1200.0
"""The top of the paper's axis, which its largest value nearly reaches."""


def measure(found: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Means over three minutes, the largest of which is scaled to the paper's peak."""
    means = found[:, DAY + 1].reshape(-1, MEAN_S).mean(1)
    scaled = means * (PEAK / means.max())
    first_s = int(found[0, 0])
    return [
        {"hour": round((first_s + i * MEAN_S) / 3600, 3), "ticks_per_s": round(float(value), 1)}
        for i, value in enumerate(scaled)
    ]


def main() -> None:
    found = ticks()
    if found is None:
        return
    rows = RESULTS.keep("figure_1", lambda: measure(found))
    line = (
        alt.Chart(as_data(rows), width=560, height=220)
        .mark_line()
        .encode(
            x=alt.X("hour:Q", title="hour of the day, New York", scale=alt.Scale(domain=[4, 20], nice=False)),
            y=alt.Y("ticks_per_s:Q", title="ticks/s, three-minute means"),
        )
    )
    said = [{"hour": 9.5, "words": "New York opens"}, {"hour": 16.0, "words": "closes"}]
    rules = alt.Chart(as_data(said)).encode(x="hour:Q")
    paper = [{"ticks_per_s": PEAK, "words": "the paper's peak, Frankfurt (opens 9:00, closes 17:30)"}]
    top = alt.Chart(as_data(paper)).encode(y="ticks_per_s:Q")
    chart = (
        line
        + rules.mark_rule(strokeDash=[4, 4], color="gray")
        + rules.mark_text(dy=-100, dx=4, align="left", color="gray").encode(text="words:N")
        + top.mark_rule(color=COLOUR)
        + top.mark_text(color=COLOUR, dy=-6, dx=-270, align="left").encode(text="words:N")
    )
    RESULTS.draw(
        "figure_1",
        chart.properties(
            title=f"Figure 1: ticks of {MARKET_DAYS[DAY]} 2013, scaled by the largest three-minute mean"
        ),
    )


if __name__ == "__main__":
    main()
