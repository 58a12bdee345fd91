"""Figure 10: response time and lost messages while matchers crash, one after another, 20 at first.

In the paper one crashes every five minutes; here every two, because after a minute the system is stable
again. There are two runs: with dispatchers that rely on their table alone, as in the paper, and with
dispatchers that notice failed connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import numpy as np
import simpy
from paper_points import COLOUR, LOSS_S, LOST_SHARE
from systems import MATCHERS, PAPER, POLICIES, bluedove, draw, keep, subscriptions, table

from fieldfare_lab.simulation.bluedove.members import ElasticService, MembersModel, simulate_members
from fieldfare_lab.simulation.bluedove.model import ServiceModel, Trace, arrivals
from fieldfare_lab.simulation.bluedove.system import new_trace
from fieldfare_lab.simulation.bluedove.workload import points

RATE_PER_S = 60_000.0
UNTIL_S = 500.0
CRASHES_S = {60.0: 3, 180.0: 11, 300.0: 7, 420.0: 16}
MODEL = ServiceModel(PAPER, bundle_messages=200.0)
BIN_S = 2.0


def run(connections_fail: bool) -> Trace:
    """One system, whose matchers crash."""
    rng = np.random.default_rng(1)
    arrived_s = arrivals([(UNTIL_S, RATE_PER_S)], MODEL, rng)
    trace = new_trace(points(len(arrived_s), rng), arrived_s, MODEL)
    members = MembersModel(connections_fail=connections_fail)

    def make(environment: simpy.Environment) -> ElasticService:
        return ElasticService(
            environment, bluedove(MATCHERS), subscriptions(), MODEL, members, trace, POLICIES["adaptive"], 1
        )

    def crash(number: int) -> Callable[[ElasticService], None]:
        return lambda service: service.crash(number)

    events = [(moment_s, crash(number)) for moment_s, number in CRASHES_S.items()]
    return simulate_members(make, events, UNTIL_S + 10).trace


def binned(trace: Trace, name: str) -> list[dict[str, Any]]:
    """Response time and the share of lost messages, by the time of arrival."""
    rows = []
    for start_s in np.arange(0.0, UNTIL_S, BIN_S):
        inside = (trace.arrived_s >= start_s) & (trace.arrived_s < start_s + BIN_S)
        response_s = trace.response_s[inside]
        rows.append(
            {
                "dispatchers": name,
                "time_s": float(start_s),
                "response_ms": round(float(np.nanmean(response_s)) * 1000, 2),
                "lost_share": round(float(np.isnan(response_s).mean()), 4),
            }
        )
    return rows


def losses_s(trace: Trace) -> list[float]:
    """The time for which messages were lost after each crash."""
    lost_s = trace.arrived_s[np.isnan(trace.delivered_s)]
    ends = [*list(CRASHES_S)[1:], UNTIL_S]
    return [
        float(np.max(lost_s[(lost_s > start_s - 5) & (lost_s < end_s - 5)], initial=start_s)) - start_s
        for start_s, end_s in zip(CRASHES_S, ends, strict=True)
    ]


def measure() -> list[dict[str, Any]]:
    rows = []
    for name, connections_fail in (
        ("rely on their tables (paper)", False),
        ("notice failed connections", True),
    ):
        trace = run(connections_fail)
        found = losses_s(trace)
        print(
            f"{name}: losses end after {np.round(found, 1)}, {np.mean(found):.1f} s on average (paper 17.5)"
        )
        rows += binned(trace, name)
    return rows


def main() -> None:
    rows = keep("figure_10", measure)
    base = alt.Chart(table(rows)).encode(
        x=alt.X("time_s:Q", title="time, s"),
        color=alt.Color("dispatchers:N", sort=None, title="dispatchers", legend=alt.Legend(labelLimit=300)),
    )
    crashes = alt.Chart(table([{"time_s": moment_s} for moment_s in CRASHES_S])).mark_rule(
        strokeDash=[4, 4], color="gray"
    )
    crashes = crashes.encode(x="time_s:Q")
    response = base.mark_line().encode(y=alt.Y("response_ms:Q", title="response time, ms"))
    lost = base.mark_line().encode(y=alt.Y("lost_share:Q", title="lost", axis=alt.Axis(format="%")))
    said = (
        alt.Chart(table([{"from_s": at_s, "to_s": at_s + LOSS_S, "share": LOST_SHARE} for at_s in CRASHES_S]))
        .transform_calculate(source="'the paper: around 5%, 17.5 s on average'")
        .mark_rule(color=COLOUR, strokeWidth=3)
        .encode(
            x="from_s:Q",
            x2="to_s:Q",
            y="share:Q",
            strokeDash=alt.StrokeDash(
                "source:N", title=None, scale=alt.Scale(range=[[1, 0]]), legend=alt.Legend(labelLimit=300)
            ),
        )
    )
    panels = [
        alt.layer(*layers, crashes).properties(width=560, height=160)
        for layers in ((response,), (lost, said))
    ]
    draw("figure_10", alt.vconcat(*panels).properties(title="Figure 10: four of 20 matchers crash"))


if __name__ == "__main__":
    main()
