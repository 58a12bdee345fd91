"""The bars of Figure 11."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
from systems import table


def bars(rows: Sequence[dict[str, Any]], field: str, name: str, title: str) -> alt.LayerChart:
    """Saturation rates against one property of the workload, each with its number on top."""
    base = alt.Chart(table(rows)).encode(
        x=alt.X(f"{field}:O", title=name, axis=alt.Axis(labelAngle=0)),
        y=alt.Y("messages_per_s:Q", title="saturation rate, messages/s", axis=alt.Axis(format="~s")),
    )
    numbers = base.mark_text(dy=-7).encode(text=alt.Text("messages_per_s:Q", format=",.0f"))
    return alt.layer(base.mark_bar(size=44), numbers).properties(width=320, height=240, title=title)
