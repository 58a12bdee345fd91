"""Figure 6: the most publications a second of 2 to 12 hosts, and delays at half of that.

No enforcer. Sixty slices of each operator, so that they can be shared evenly by any of the paper's numbers of
hosts (it does not say how many it used here): half of the hosts match, a quarter each are access and exit
points.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
from elastic_runs import COLOUR, RESULTS, as_data

from fieldfare_lab.simulation.estreamhub.cluster import ElasticCluster
from fieldfare_lab.simulation.estreamhub.engine import CostModel, arrivals

SLICES = 60
HOSTS = (2, 4, 6, 8, 10, 12)
PAPER_PER_S = {hosts: 422 * hosts / 12 for hosts in HOSTS}
"""422 at 12 hosts, "perfectly linear"."""
PAPER_MS = {"delay_min_ms": 55, "delay_p75_ms": 247}
"""Of 12 hosts, section VI.C."""
COST = CostModel(access_points=SLICES, matchers=SLICES, exit_points=SLICES)


def places(hosts: int) -> list[list[str]]:
    """The paper's placement: halves of hosts for access and exit points, whole hosts for matchers."""
    halves = hosts // 2
    each = SLICES // halves
    names = [f"{operator}:{i + 1}" for operator in ("AP", "EP") for i in range(SLICES)]
    shared = [names[i * 2 * each : (i + 1) * 2 * each] for i in range(halves)]
    matching = [[f"M:{i + 1}" for i in range(SLICES) if i % halves == host] for host in range(halves)]
    return shared + matching


def run(hosts: int, per_s: float, until_s: float) -> tuple[ElasticCluster, float]:
    """A run at one rate; and how many publications a second were done in its second half."""
    rng = np.random.default_rng([1, hosts])
    cluster = ElasticCluster(COST, 1.0 + arrivals([(0, per_s), (until_s, per_s)], rng), places=places(hosts))
    cluster.run(until_s)
    finished_s = cluster.engine.arrived_s + cluster.engine.delay_s
    late = (finished_s > until_s / 2) & (finished_s <= until_s)
    return cluster, float(late.sum()) / (until_s / 2)


def measure() -> list[dict[str, Any]]:
    rows = []
    for hosts in HOSTS:
        _, most_per_s = run(hosts, 1.3 * PAPER_PER_S[hosts], 30.0)
        cluster, _ = run(hosts, most_per_s / 2, 60.0)
        delay_ms = 1000 * cluster.engine.delay_s[~np.isnan(cluster.engine.delay_s)]
        shares = zip(
            ("min", "p25", "p50", "p75", "max"), np.percentile(delay_ms, [0, 25, 50, 75, 100]), strict=True
        )
        delays = {f"delay_{name}_ms": round(float(value), 1) for name, value in shares}
        rows.append({"hosts": hosts, "publications_per_s": round(most_per_s, 1), **delays})
    return rows


def main() -> None:
    rows = RESULTS.keep("figure_6", measure)
    x = alt.X("hosts:Q", scale=alt.Scale(domain=[0, 13]), axis=alt.Axis(values=list(HOSTS)))
    base = alt.Chart(as_data(rows), width=380, height=180).encode(x=x)
    paper = [
        {"hosts": hosts, "publications_per_s": rate, "source": "the paper"}
        for hosts, rate in PAPER_PER_S.items()
    ]
    diamonds = {"shape": "diamond", "size": 80, "filled": True, "color": COLOUR, "opacity": 1}
    upper = base.mark_line(point=True).encode(
        y=alt.Y("publications_per_s:Q", title="most publications/s")
    ) + alt.Chart(as_data(paper)).mark_point(**diamonds).encode(x=x, y="publications_per_s:Q")
    box = base.mark_bar(size=18, opacity=0.6).encode(
        y=alt.Y("delay_p25_ms:Q", title="delay at half of it, ms"), y2="delay_p75_ms:Q"
    )
    whiskers = base.mark_rule().encode(y="delay_min_ms:Q", y2="delay_max_ms:Q")
    said = [
        {"hosts": 12, "ms": ms, "words": name}
        for name, ms in zip(("least", "75th"), PAPER_MS.values(), strict=True)
    ]
    points = alt.Chart(as_data(said)).encode(x=x, y="ms:Q")
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
