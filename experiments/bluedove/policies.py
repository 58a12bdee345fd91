"""Figure 7: the saturation rate of the forwarding policies, 20 matchers; and of ours, `Balanced`."""

from __future__ import annotations

from statistics import mean

import altair as alt
import numpy as np
from systems import MATCHERS, PAPER, POLICIES, bluedove, draw, saturation, table, write_csv

from fieldfare.forwarding import Balanced, ForwardingPolicy

SEEDS = (1, 2, 3)
"""Policies are near each other: each is run with these."""

PAPER_RATES = {
    "adaptive": 114_000,
    "response time": 114_000 / 1.1,
    "subscription amount": 114_000 / 1.2,
    "random": 114_000 / 3.5,
}
"""By the ratios of the paper's section IV.D."""


def main() -> None:
    space = bluedove(MATCHERS)
    holders = np.array([part.matcher for part in space.slices], np.int32)

    def balanced(rng: np.random.Generator) -> ForwardingPolicy:
        return Balanced(holders)

    rows = []
    for policy, make in {**POLICIES, "balanced (ours)": balanced}.items():
        rate = mean(
            saturation(
                space, make, PAPER, messages=30_000, competition_counts=make is not balanced, seed=seed
            )
            for seed in SEEDS
        )
        rows.append({"policy": policy, "source": "fieldfare", "messages_per_s": round(rate)})
        print(rows[-1], flush=True)
    rows += [
        {"policy": policy, "source": "paper", "messages_per_s": round(rate)}
        for policy, rate in PAPER_RATES.items()
    ]
    write_csv("figure_7", rows)
    chart = (
        alt.Chart(table(rows))
        .mark_bar()
        .encode(
            x=alt.X("policy:N", sort=[*POLICIES], title=None, axis=alt.Axis(labelAngle=0, labelLimit=160)),
            xOffset=alt.XOffset("source:N", sort=["paper"]),
            y=alt.Y("messages_per_s:Q", title="saturation rate, messages/s", axis=alt.Axis(format="~s")),
            color=alt.Color("source:N", title=None, sort=["paper"]),
        )
        .properties(width=560, height=280, title="Figure 7: forwarding policies, 20 matchers")
    )
    draw("figure_7", chart)


if __name__ == "__main__":
    main()
