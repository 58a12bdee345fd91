"""Figure 8: how busy each matcher is just below saturation, BlueDove against P2P, 20 matchers."""

from __future__ import annotations

import altair as alt
import numpy as np
from systems import MATCHERS, PAPER, SYSTEMS, draw, run_at, saturation, subscriptions, table, write_csv

from fieldfare.runtimes.simulation.bluedove.model import ServiceModel

BELOW_SATURATION = 0.95
DURATION_S = 60.0
BUNDLE = 50.0
PAPER_DEVIATION = {"BlueDove": 0.14, "P2P": 0.82}
"""Standard deviation over mean, section IV.D."""


def main() -> None:
    rows = []
    deviations = {}
    for name in PAPER_DEVIATION:
        make, policy = SYSTEMS[name]
        space = make(MATCHERS)
        rate = BELOW_SATURATION * saturation(space, policy)
        placement = space.place(subscriptions().extents)
        model = ServiceModel(PAPER, bundle_messages=BUNDLE)
        trace = run_at(rate, DURATION_S, space, policy, model, subscriptions(), placement)
        busy = np.array([trace.busy_s[matcher] / DURATION_S for matcher in range(MATCHERS)])
        deviations[name] = float(busy.std() / busy.mean())
        print(f"{name}: {deviations[name]:.2f} (the paper: {PAPER_DEVIATION[name]})", flush=True)
        rows += [
            {"system": f"{name}: {deviations[name]:.2f} (paper {PAPER_DEVIATION[name]})", "rank": i + 1,
             "busy_share": round(share, 4)}
            for i, share in enumerate(sorted(busy.tolist(), reverse=True))
        ]  # fmt: skip
    write_csv("figure_8", rows)
    chart = (
        alt.Chart(table(rows))
        .mark_bar()
        .encode(
            x=alt.X("rank:O", title="matchers, the busiest first", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("busy_share:Q", title="share of time busy", axis=alt.Axis(format="%")),
        )
        .properties(width=320, height=220)
        .facet(column=alt.Column("system:N", title="standard deviation over mean"))
        .properties(title="Figure 8: load of the matchers at 95% of saturation")
    )
    draw("figure_8", chart)


if __name__ == "__main__":
    main()
