"""Figure 7: delays while two access points, two matchers and an exit point move, one after another."""

from __future__ import annotations

from typing import Any

import altair as alt
import numpy as np
from elastic_runs import COLOUR, RESULTS, SEEDS, as_data
from migration_times import PUBLICATIONS_PER_S, large_slices, places

from fieldfare_lab.simulation.estreamhub.cluster import ElasticCluster
from fieldfare_lab.simulation.estreamhub.engine import arrivals

FIRST_S, LAST_S = 100, 200
MOVES = {
    110: ("AP:1", "host8"),
    122: ("AP:2", "host7"),
    138: ("M:1", "host4"),
    156: ("M:2", "host5"),
    178: ("EP:1", "host1"),
}
STEADY_MS, MS_MAX = 500, 2000
"""The paper's figures: the steady state, and a bound on the largest delays."""


def measure(seed: int) -> list[dict[str, Any]]:
    """Delays in each second."""
    arrived_s = 1.0 + arrivals(
        [(0, PUBLICATIONS_PER_S), (LAST_S, PUBLICATIONS_PER_S)], np.random.default_rng(seed)
    )
    cluster = ElasticCluster(large_slices(12_500), arrived_s, places=places())
    for at_s, (name, to) in MOVES.items():
        cluster.run(at_s)
        cluster.move(name, to)
    cluster.run(LAST_S + 5)
    rows = []
    for second in range(FIRST_S, LAST_S):
        delay_ms = 1000 * cluster.engine.delay_s[(arrived_s >= second) & (arrived_s < second + 1)]
        values = zip(
            ("min", "mean", "deviation", "max"),
            (delay_ms.min(), delay_ms.mean(), delay_ms.std(), delay_ms.max()),
            strict=True,
        )
        delays = {f"delay_{name}_ms": round(float(value), 1) for name, value in values}
        rows.append({"seed": seed, "time_s": second, **delays, "moved": MOVES.get(second, ("",))[0]})
    return rows


def main() -> None:
    found = RESULTS.keep("figure_7", lambda: [row for seed in SEEDS for row in measure(seed)])
    rows = [row for row in found if row["seed"] == SEEDS[0]]
    x = alt.X("time_s:Q", title="time, s", scale=alt.Scale(domain=[FIRST_S, LAST_S], nice=False))
    base = alt.Chart(as_data(rows), width=560, height=240).encode(x=x)
    y = alt.Y("delay_min_ms:Q", title="delay, ms: least, mean, most", scale=alt.Scale(domain=[0, 600]))
    moves = alt.Chart(as_data([row for row in rows if row["moved"]])).encode(x=x)
    said = [{"ms": STEADY_MS, "words": f"the paper, at rest; during moves less than {MS_MAX} ms"}]
    steady = alt.Chart(as_data(said)).encode(y="ms:Q")
    chart = (
        base.mark_area(opacity=0.25).encode(y=y, y2="delay_max_ms:Q")
        + base.mark_line().encode(y="delay_mean_ms:Q")
        + moves.mark_rule(strokeDash=[4, 4], color="gray")
        + moves.mark_text(dy=-112, dx=3, align="left", color="gray").encode(text="moved:N")
        + steady.mark_rule(color=COLOUR)
        + steady.mark_text(color=COLOUR, dy=-6, dx=-270, align="left").encode(text="words:N")
    )
    RESULTS.draw(
        "figure_7", chart.properties(title="Figure 7: delays while slices move (100 publications/s)")
    )


if __name__ == "__main__":
    main()
