"""Figure 9: response time while the rate grows, and a matcher is added whenever the service saturates.

Five matchers at first, as in the paper. The paper's rates in this figure (500 messages per second and 500
more every five minutes) do not fit the saturation rates of its Figure 6; here the rate begins below the
saturation of five matchers, and grows by about 6% of it every minute.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import altair as alt
import numpy as np
import simpy
from paper_points import COLOUR, RELIEF_S
from systems import PAPER, POLICIES, bluedove, draw, keep, subscriptions, table

from fieldfare_lab.simulation.bluedove.members import ElasticService, MembersModel, simulate_members
from fieldfare_lab.simulation.bluedove.model import ServiceModel, arrivals
from fieldfare_lab.simulation.bluedove.system import Process, new_trace
from fieldfare_lab.simulation.bluedove.workload import points

MATCHERS = 5
STEP_S = 60.0
RATES_PER_S = [12_000.0 + 900 * step for step in range(14)]
UNTIL_S = STEP_S * len(RATES_PER_S)
MODEL = ServiceModel(PAPER, bundle_messages=50.0)
SATURATED_S = 0.5
"""The response time, in seconds, that counts as saturation."""
PAUSE_S = 40.0
"""Time between two additions of matchers: longer than subscriptions that were given away are kept."""
BIN_S = 1.0


def scale(service: ElasticService, joins_s: list[float]) -> Process:
    """Add a matcher whenever messages of the last seconds took too long."""
    environment, trace = service.environment, service.trace
    while environment.now < UNTIL_S - PAUSE_S:
        yield environment.timeout(1.0)
        now = environment.now
        first, last = np.searchsorted(trace.arrived_s, [now - 10, now])
        age_s = np.where(np.isnan(trace.response_s), now - trace.arrived_s, trace.response_s)[first:last]
        is_settled = not joins_s or now - joins_s[-1] > PAUSE_S
        if len(age_s) and age_s.mean() > SATURATED_S and is_settled:
            joins_s.append(now)
            service.join()


def relief_s(rows: list[dict[str, float]], join_s: float, share: float) -> float | None:
    """Time after a join until the response time, over five seconds, is below a share of that at the join."""
    times = np.array([row["time_s"] for row in rows])
    smooth = np.convolve([row["response_s"] for row in rows], np.full(5, 0.2), "same")
    before = smooth[np.searchsorted(times, join_s)]
    fallen = times[(times > join_s) & (smooth < share * before)]
    return float(fallen[0]) - join_s if len(fallen) else None


def measure() -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    arrived_s = arrivals([(STEP_S, rate) for rate in RATES_PER_S], MODEL, rng)
    trace = new_trace(points(len(arrived_s), rng), arrived_s, MODEL)
    joins_s: list[float] = []

    def make(environment: simpy.Environment) -> ElasticService:
        service = ElasticService(
            environment,
            bluedove(MATCHERS),
            subscriptions(),
            MODEL,
            MembersModel(),
            trace,
            POLICIES["adaptive"],
            1,
        )
        environment.process(scale(service, joins_s))
        return service

    simulate_members(make, [], UNTIL_S + 60)
    rows = []
    for start_s in np.arange(0.0, UNTIL_S, BIN_S):
        inside = (trace.arrived_s >= start_s) & (trace.arrived_s < start_s + BIN_S)
        rows.append(
            {
                "time_s": float(start_s),
                "rate_per_s": RATES_PER_S[int(start_s // STEP_S)],
                "response_s": round(float(np.nanmean(trace.response_s[inside])), 4),
                "joins": int(np.searchsorted(joins_s, start_s, side="right")),
            }
        )
    return rows


def main() -> None:
    rows = keep("figure_9", measure)
    joins_s = [after["time_s"] for before, after in pairwise(rows) if after["joins"] > before["joins"]]
    for moment_s in joins_s:
        fallen = [relief_s(rows, moment_s, share) for share in (0.9, 0.5)]
        print(f"a matcher added at {moment_s}: a tenth less, half after {fallen} s (paper: less after 5 s)")
    base = alt.Chart(table(rows)).encode(
        x=alt.X("time_s:Q", title="time, s", scale=alt.Scale(domain=[0, UNTIL_S], nice=False))
    )
    added = alt.Chart(table([{"time_s": moment_s} for moment_s in joins_s])).mark_rule(
        strokeDash=[4, 4], color="gray"
    )
    response = base.mark_line().encode(y=alt.Y("response_s:Q", title="response time, s"))
    rate = base.mark_line(color="darkorange").encode(
        y=alt.Y("rate_per_s:Q", title="messages/s", axis=alt.Axis(format="~s"))
    )
    said = (
        alt.Chart(table([{"from_s": at_s, "to_s": at_s + RELIEF_S} for at_s in joins_s]))
        .transform_calculate(source="'the paper: falling after 5 s, on average'")
        .mark_rect(color=COLOUR, opacity=0.45)
        .encode(
            x=alt.X("from_s:Q", scale=alt.Scale(domain=[0, UNTIL_S], nice=False)),
            x2="to_s:Q",
            fill=alt.Fill(
                "source:N", title=None, scale=alt.Scale(range=[COLOUR]), legend=alt.Legend(labelLimit=260)
            ),
        )
    )
    upper = alt.layer(
        said, response, added.encode(x=alt.X("time_s:Q", scale=alt.Scale(domain=[0, UNTIL_S], nice=False)))
    ).properties(width=560, height=200)
    chart = alt.vconcat(upper, rate.properties(width=560, height=80))
    draw("figure_9", chart.properties(title="Figure 9: matchers are added as the rate grows"))


if __name__ == "__main__":
    main()
