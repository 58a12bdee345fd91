"""Figure 7: the saturation rate of the forwarding policies, 20 matchers; and of fieldfare's `Balanced`.

In addition, not in the paper: the response time of each policy well below saturation. There it is decisive
whether loads are extrapolated between reports; a queue that oscillates from report to report is still
bounded.
"""

from __future__ import annotations

from statistics import mean
from typing import Any

import altair as alt
import numpy as np
from paper_points import COLOUR, POLICY_RATES
from systems import (
    MATCHERS,
    PAPER,
    POLICIES,
    bluedove,
    draw,
    keep,
    read_csv,
    run_at,
    saturation,
    subscriptions,
    table,
    write_csv,
)
from workload_charts import rate_axis

from fieldfare.forwarding import Balanced, ForwardingPolicy
from fieldfare.partitioning import Partitioning
from fieldfare_lab.simulation.bluedove.model import ServiceModel
from fieldfare_lab.simulation.bluedove.system import PolicyFactory

SEEDS = (1, 2, 3)
"""Seeds with which each policy is run, because their results are close to each other."""

QUIET_PER_S = 80_000.0


def response_ms(partitioning: Partitioning, policy: PolicyFactory, competition_counts: bool) -> float:
    """The mean response time at `QUIET_PER_S`, over all seeds."""
    model = ServiceModel(PAPER, bundle_messages=50.0, competition_counts=competition_counts)
    placement = partitioning.place(subscriptions().extents)
    return 1000 * mean(
        float(
            np.nanmean(
                run_at(
                    QUIET_PER_S, 20.0, partitioning, policy, model, subscriptions(), placement, seed=seed
                ).response_s
            )
        )
        for seed in SEEDS
    )


def measure() -> list[dict[str, Any]]:
    """Saturation rates; response times go to a separate CSV."""
    space = bluedove(MATCHERS)
    holders = np.array([part.matcher for part in space.slices], np.int32)

    def balanced(rng: np.random.Generator) -> ForwardingPolicy:
        return Balanced(holders)

    rows = []
    quiet = []
    for policy, make in {**POLICIES, "balanced (ours)": balanced}.items():
        rate = mean(
            saturation(
                space, make, PAPER, messages=30_000, competition_counts=make is not balanced, seed=seed
            )
            for seed in SEEDS
        )
        rows.append({"policy": policy, "source": "fieldfare", "messages_per_s": round(rate)})
        print(rows[-1], flush=True)
        if rate > QUIET_PER_S:
            found_ms = response_ms(space, make, make is not balanced)
            quiet.append({"policy": policy, "response_ms": round(found_ms, 1)})
            print(quiet[-1], flush=True)
    rows += [
        {"policy": policy, "source": "paper", "messages_per_s": round(rate)}
        for policy, rate in POLICY_RATES.items()
    ]
    write_csv("figure_7_response", quiet)
    return rows


def main() -> None:
    rows = keep("figure_7", measure)
    quiet = read_csv("figure_7_response")
    chart = (
        alt.Chart(table(rows))
        .mark_bar()
        .encode(
            x=alt.X("policy:N", sort=[*POLICIES], title=None, axis=alt.Axis(labelAngle=0, labelLimit=160)),
            xOffset=alt.XOffset("source:N", sort=["fieldfare"]),
            y=rate_axis(),
            color=alt.Color(
                "source:N",
                title=None,
                scale=alt.Scale(domain=["fieldfare", "paper"], range=["#4c78a8", COLOUR]),
            ),
        )
        .properties(width=560, height=280, title="Figure 7: forwarding policies, 20 matchers")
    )
    base = alt.Chart(table(quiet)).encode(
        x=alt.X("policy:N", sort=None, title=None, axis=alt.Axis(labelAngle=-20)),
        y=alt.Y("response_ms:Q", title="response time, ms", scale=alt.Scale(domain=[0, 85])),
    )
    responses = alt.layer(
        base.mark_bar(color="#4c78a8"), base.mark_text(dy=-7).encode(text="response_ms:Q")
    ).properties(width=280, height=280, title=f"Response time at {QUIET_PER_S:,.0f} messages/s")
    draw("figure_7", alt.hconcat(chart, responses))


if __name__ == "__main__":
    main()
