"""The number of polls after a step of the load until latency is that of the steady state (not in the paper).

Many runs of each step of table II, averaged by the number of polls between the step and a message's arrival.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from itertools import chain
from statistics import mean
from typing import Any

import altair as alt
from client_tuner import ClientPublisher
from support import CLIENT, OURS, PAPER, TUNERS, as_data, write_picture, write_table

from fieldfare.publishing.autotuned import AutotunedPublisher
from fieldfare.publishing.machine import PublishingMachine
from fieldfare.publishing.windowed import WindowedPublisher
from fieldfare_lab.simulation.publishing import profile_times, simulate

STEPS = [(1.75, 55.0), (55.0, 17.5), (17.5, 35.0), (35.0, 17.5)]
RUNS = 60
STEP_S, STEADY_S, END_S = 10.0, 20.0, 35.0
SHOWN_POLLS = 40
WINDOW_POLLS = 5
TOLERANCE = 0.05


def respond(make: Callable[[], PublishingMachine], before: float, after: float) -> list[float]:
    """Latency by polls since the step, relative to the steady state, averaged over a few polls."""
    by_poll: list[list[float]] = [[] for _ in range(SHOWN_POLLS + WINDOW_POLLS)]
    steady: list[float] = []
    for seed in range(RUNS):
        times = profile_times([(0, STEP_S, before), (STEP_S, END_S, after)], seed)
        run = simulate(make(), times, END_S + 3, seed=seed)
        polls = [poll.now_s for poll in run.polls if poll.now_s >= STEP_S]
        steady += run.latencies_s(STEADY_S, END_S)
        for message in run.messages:
            if message.latency_s is not None and STEP_S <= message.arrived_s < END_S:
                number = bisect(polls, message.arrived_s)
                if number < len(by_poll):
                    by_poll[number].append(message.latency_s)
    level = mean(steady)
    return [
        mean(chain.from_iterable(by_poll[at : at + WINDOW_POLLS])) / level if any(by_poll[at:]) else 1.0
        for at in range(SHOWN_POLLS)
    ]


def settled_after(curve: list[float]) -> int | None:
    """The first number of polls from which the curve stays within the tolerance; None: later than shown."""
    outside = [at for at, value in enumerate(curve) if abs(value - 1) > TOLERANCE]
    if not outside:
        return 0
    return outside[-1] + 1 if outside[-1] + 1 < len(curve) else None


def main() -> None:
    makers: dict[str, Callable[[], PublishingMachine]] = {
        PAPER: AutotunedPublisher,
        OURS: WindowedPublisher,
        CLIENT: ClientPublisher,
    }
    curves: list[dict[str, Any]] = []
    table: list[dict[str, Any]] = []
    for before, after in STEPS:
        for name, make in makers.items():
            curve = respond(make, before, after)
            step = f"{before:g} to {after:g} requests/s"
            curves += [
                {"step": step, "tuner": name, "polls": at, "relative_latency": round(value, 3)}
                for at, value in enumerate(curve)
            ]
            settled = settled_after(curve)
            table.append(
                {
                    "step": step,
                    "tuner": name,
                    "settled_after_polls": settled if settled is not None else f"over {SHOWN_POLLS}",
                    "worst_relative_latency": round(max(curve), 2),
                }
            )
    write_table("step_response", table)
    write_table("step_response_curves", curves)
    chart = (
        alt.Chart(as_data(curves), width=300, height=170)
        .mark_line()
        .encode(
            x=alt.X("polls:Q", title="polls since the step"),
            y=alt.Y("relative_latency:Q", title="latency / steady latency", scale=alt.Scale(zero=False)),
            color=alt.Color("tuner:N", title=None, sort=TUNERS),
            facet=alt.Facet(
                "step:N", columns=2, title=None, sort=[f"{b:g} to {a:g} requests/s" for b, a in STEPS]
            ),
        )
    )
    write_picture("step_response", chart)


if __name__ == "__main__":
    main()
