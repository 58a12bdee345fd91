"""Figure 6: the highest rate of publications with 2 to 12 hosts, and delays at half of that rate.

There is no enforcer. Half of the hosts match; a quarter each are access and exit points. Two numbers of
slices are used. The paper's (8 access points, 16 matchers, 8 exit points, section VI.A) cannot be distributed
evenly over all its numbers of hosts, so the host with the most slices limits the rate; 60 slices of each kind
can. With 60 the rate is proportional to the hosts by construction: hosts do not slow each other down in this
model.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np
from elastic_runs import COLOUR, RESULTS, SEEDS, as_data

from fieldfare_lab.simulation.estreamhub.cluster import ElasticCluster
from fieldfare_lab.simulation.estreamhub.engine import CostModel, arrivals

SLICES = {"the paper's 8, 16 and 8 slices": (8, 16, 8), "60 slices of each": (60, 60, 60)}
HOSTS = (2, 4, 6, 8, 10, 12)
PAPER_PER_S = {hosts: 422 * hosts / 12 for hosts in HOSTS}
"""The paper: 422 at 12 hosts, "perfectly linear"."""
PAPER_MS = {"delay_min_ms": 55, "delay_p75_ms": 247}
"""The paper's delays with 12 hosts, section VI.C."""


def places(hosts: int, slices: tuple[int, int, int]) -> list[list[str]]:
    """The paper's placement: halves of hosts for access and exit points, whole hosts for matchers."""
    halves = hosts // 2
    names = {
        operator: [f"{operator}:{i + 1}" for i in range(count)]
        for operator, count in zip(("AP", "M", "EP"), slices, strict=True)
    }
    ends = names["AP"] + names["EP"]
    cuts = [len(ends) * i // halves for i in range(halves + 1)]
    shared = [ends[first:last] for first, last in pairwise(cuts)]
    return shared + [names["M"][host::halves] for host in range(halves)]


def run(
    hosts: int, slices: tuple[int, int, int], per_s: float, until_s: float, seed: int = SEEDS[0]
) -> tuple[ElasticCluster, float]:
    """Run at one rate; also return the finished publications per second in the second half."""
    rng = np.random.default_rng([seed, hosts])
    arrived_s = 1.0 + arrivals([(0, per_s), (until_s, per_s)], rng)
    cluster = ElasticCluster(CostModel(100_000, *slices), arrived_s, places=places(hosts, slices))
    cluster.run(until_s)
    finished_s = cluster.engine.arrived_s + cluster.engine.delay_s
    late = (finished_s > until_s / 2) & (finished_s <= until_s)
    return cluster, float(late.sum()) / (until_s / 2)


def measure() -> list[dict[str, Any]]:
    rows = []
    for name, slices in SLICES.items():
        for hosts in HOSTS:
            for seed in SEEDS:
                _, highest_per_s = run(hosts, slices, 1.3 * PAPER_PER_S[hosts], 30.0, seed)
                cluster, _ = run(hosts, slices, highest_per_s / 2, 60.0, seed)
                delay_ms = 1000 * cluster.engine.delay_s[~np.isnan(cluster.engine.delay_s)]
                shares = zip(
                    ("min", "p25", "p50", "p75", "max"),
                    np.percentile(delay_ms, [0, 25, 50, 75, 100]),
                    strict=True,
                )
                delays = {f"delay_{share}_ms": round(float(value), 1) for share, value in shares}
                row = {"slices": name, "hosts": hosts, "seed": seed}
                rows.append(row | {"publications_per_s": round(highest_per_s, 1), **delays})
    return rows


def main() -> None:
    rows = RESULTS.keep("figure_6", measure)
    x = alt.X("hosts:Q", scale=alt.Scale(domain=[0, 13]), axis=alt.Axis(values=list(HOSTS)))
    colour = alt.Color("slices:N", title=None, sort=None, scale=alt.Scale(scheme="category10"))
    base = alt.Chart(as_data(rows), width=380, height=180).encode(x=x, color=colour)
    paper = [{"hosts": hosts, "publications_per_s": rate} for hosts, rate in PAPER_PER_S.items()]
    diamonds = {"shape": "diamond", "size": 80, "filled": True, "color": COLOUR, "opacity": 1}
    upper = base.mark_line(point=True).encode(
        y=alt.Y("median(publications_per_s):Q", title="highest rate, publications/s")
    ) + alt.Chart(as_data(paper)).mark_point(**diamonds).encode(x=x, y="publications_per_s:Q")
    aside = alt.XOffset("slices:N", sort=None)
    boxes = alt.Chart(
        as_data([row | {"host_count": str(row["hosts"])} for row in rows if row["seed"] == SEEDS[0]]),
        width=380,
        height=180,
    ).encode(
        x=alt.X("host_count:O", title="hosts", sort=None, axis=alt.Axis(labelAngle=0)),
        xOffset=aside,
        color=colour,
    )
    whiskers = boxes.mark_rule().encode(y="delay_min_ms:Q", y2="delay_max_ms:Q")
    box = boxes.mark_bar(size=12, opacity=0.6).encode(
        y=alt.Y("delay_p25_ms:Q", title="delay at half of it, ms"), y2="delay_p75_ms:Q"
    )
    said = [
        {"host_count": "12", "ms": ms, "words": name}
        for name, ms in zip(("least", "75th"), PAPER_MS.values(), strict=True)
    ]
    points = alt.Chart(as_data(said)).encode(x=alt.X("host_count:O", sort=None), y="ms:Q")
    lower = (
        whiskers
        + box
        + points.mark_point(**diamonds)
        + points.mark_text(color=COLOUR, dx=8, align="left").encode(text="words:N")
    )
    RESULTS.draw(
        "figure_6",
        alt.vconcat(upper, lower).properties(
            title="Figure 6: static, 100,000 subscriptions (red: the paper)"
        ),
    )


if __name__ == "__main__":
    main()
