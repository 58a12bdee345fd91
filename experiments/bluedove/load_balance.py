"""Figure 8: how busy each matcher is just below saturation, BlueDove against P2P, 20 matchers."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
from numpy.typing import NDArray
from paper_points import LOAD_DEVIATION
from systems import MATCHERS, PAPER, SYSTEMS, draw, keep, run_at, saturation, subscriptions, table

from fieldfare_lab.simulation.bluedove.model import ServiceModel

CASES = (("BlueDove", 0.95), ("P2P", 0.95), ("BlueDove", 0.7))
"""Systems, and the share of their saturation rates at which they are observed (paper: "slightly below")."""
DURATION_S = 60.0
BUNDLE = 50.0


def busy_shares(system: str, rate_per_s: float) -> NDArray[np.float64]:
    """The share of time for which each matcher is busy, the busiest first."""
    make, policy = SYSTEMS[system]
    space = make(MATCHERS)
    placement = space.place(subscriptions().extents)
    model = ServiceModel(PAPER, bundle_messages=BUNDLE)
    trace = run_at(rate_per_s, DURATION_S, space, policy, model, subscriptions(), placement)
    return np.sort([trace.busy_s[matcher] / DURATION_S for matcher in range(MATCHERS)])[::-1]


def measure() -> list[dict[str, Any]]:
    rows = []
    rates = {
        name: saturation(make(MATCHERS), policy)
        for name, (make, policy) in SYSTEMS.items()
        if name in LOAD_DEVIATION
    }
    for system, share in CASES:
        busy = busy_shares(system, share * rates[system])
        deviation = busy.std() / busy.mean()
        name = f"{system} at {share:.0%} of saturation: {deviation:.2f} (paper: {LOAD_DEVIATION[system]})"
        print(name, flush=True)
        rows += [
            {"system": name, "rank": i + 1, "busy_share": round(found, 4)}
            for i, found in enumerate(busy.tolist())
        ]
    return rows


def main() -> None:
    rows = keep("figure_8", measure)
    chart = (
        alt.Chart(table(rows))
        .mark_bar()
        .encode(
            x=alt.X("rank:O", title="matchers, the busiest first", axis=alt.Axis(labelAngle=0)),
            y=alt.Y("busy_share:Q", title="share of time busy", axis=alt.Axis(format="%")),
        )
        .properties(width=260, height=220)
        .facet(
            column=alt.Column(
                "system:N", title="standard deviation of the busy time over its mean", sort=None
            )
        )
        .properties(title="Figure 8: load of the matchers below saturation")
    )
    draw("figure_8", chart)


if __name__ == "__main__":
    main()
