"""Figure 5: response time over time, below and above saturation, 20 matchers."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
from systems import MATCHERS, PAPER, POLICIES, bluedove, draw, keep, run_at, subscriptions, table

from fieldfare_lab.simulation.bluedove.model import ServiceModel

RATES_PER_S = (100_000.0, 150_000.0)
DURATION_S = 100.0
BUNDLE = 100.0


def measure() -> list[dict[str, Any]]:
    space = bluedove(MATCHERS)
    placement = space.place(subscriptions().extents)
    model = ServiceModel(PAPER, bundle_messages=BUNDLE)
    rows = []
    for rate in RATES_PER_S:
        trace = run_at(rate, DURATION_S, space, POLICIES["adaptive"], model, subscriptions(), placement)
        for start_s in range(int(DURATION_S)):
            # A message that still waits has waited at least until the end.
            inside = (trace.arrived_s >= start_s) & (trace.arrived_s < start_s + 1)
            waited_s = np.where(np.isnan(trace.response_s), DURATION_S - trace.arrived_s, trace.response_s)[
                inside
            ]
            is_known = bool((~np.isnan(trace.response_s[inside])).all())
            rows.append(
                {
                    "messages_per_s": f"{rate:,.0f}",
                    "time_s": start_s,
                    "response_s": round(float(waited_s.mean()), 4),
                    "all_delivered": is_known,
                }
            )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    rows = keep("figure_5", measure)
    known = [row for row in rows if row["all_delivered"]]
    chart = (
        alt.Chart(table(known))
        .mark_line()
        .encode(
            x=alt.X("time_s:Q", title="time of arrival, s"),
            y=alt.Y("response_s:Q", title="response time, s"),
            color=alt.Color("messages_per_s:N", title="messages/s"),
        )
        .properties(width=440, height=260, title="Figure 5: below and above saturation, 20 matchers")
    )
    draw("figure_5", chart)


if __name__ == "__main__":
    main()
