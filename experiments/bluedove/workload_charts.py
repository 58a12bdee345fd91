"""The bars of Figure 11."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
from paper_points import PAPER, marks
from systems import table

PER_S_MAX = 130_000
"""Upper end of the axis: above the highest bar and its number."""


def rate_axis() -> alt.Y:
    """The axis of messages per second, with space above the bars."""
    return alt.Y(
        "messages_per_s:Q",
        title="saturation rate, messages/s",
        axis=alt.Axis(format="~s"),
        scale=alt.Scale(domain=[0, PER_S_MAX]),
    )


def said(points: Mapping[int, float], field: str) -> alt.Chart:
    """The paper's points, named in the legend."""
    rows = [{field: x, "messages_per_s": rate, "source": PAPER} for x, rate in points.items()]
    shape = alt.Shape("source:N", title=None, scale=alt.Scale(range=["diamond"]))
    return marks(rows).encode(x=f"{field}:O", y=rate_axis(), shape=shape)


def bars(
    rows: Sequence[dict[str, Any]], points: Mapping[int, float], field: str, name: str, title: str
) -> alt.LayerChart:
    """Saturation rates against one property of the workload, each with its number in the bar."""
    base = alt.Chart(table(rows)).encode(
        x=alt.X(f"{field}:O", title=name, axis=alt.Axis(labelAngle=0)),
        y=rate_axis(),
    )
    numbers = base.mark_text(dy=10, color="white").encode(text=alt.Text("messages_per_s:Q", format=",.0f"))
    layers = alt.layer(base.mark_bar(size=54), numbers, said(points, field))
    return layers.properties(width=340, height=240, title=alt.TitleParams(title, offset=12))
