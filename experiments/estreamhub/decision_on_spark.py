"""Figure 5 on a real Spark cluster: a local decision, based on measured loads.

    python experiments/estreamhub/decision_on_spark.py --json

starts a standalone cluster of three workers, each with one task at a time and half a core, and ``fieldfare
serve --elastic 2..3`` with eight matchers, all on this machine. It stores 20,000 subscriptions that must be
computed for each event, moves slices until one host has six and the other two, and publishes at a
rate that rises until the enforcer decides, and is constant from then on. The figure shows the slices' loads
in the 30 s before the decision, the same loads at the places that it decided, and the loads of 30 s after the
last move: processor time of the tasks' Python processes, as a share of what a worker may use. Prints one JSON
object at the end:

reason, moves, new_hosts
    The decision.
hosts
    Each host's load in percent at the three moments, as the sum of its slices.
event_ms, rate_per_s
    Processor time per event, and events per second from the decision on.
events, lost, doubled
    Published events, and those of them that did not arrive, or arrived more than once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from contextlib import redirect_stdout
from typing import Any

import altair as alt
import numpy as np
from elastic_runs import COLOUR, RESULTS, as_data
from elastic_service import (
    EVENT_S,
    WORKER_PROCESSORS,
    Cost,
    LoadsSeen,
    Publisher,
    elastic_scene,
    why_no_loads,
)

from fieldfare.storage.elastic import Decision, ElasticLoads

NAME = "figure_5_on_spark"
CROWDED = 6
LEAST, MORE_PER_S = 0.35, 0.0025
"""Cores that the events use at first, and the increase per second."""
WINDOW_S, AFTER_S, WITHIN_S = 30.0, 35.0, 240.0
MOMENTS = ("before", "decided", "after")


class Rising:
    """A rate that rises until it is fixed."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self._random = np.random.default_rng(5)
        self._is_held = False
        self.now_per_s = 0.0

    def due(self, at_s: float) -> int:
        if not self._is_held:
            self.now_per_s = self._cost.rate_per_s(LEAST + MORE_PER_S * at_s)
        return int(self._random.poisson(EVENT_S * self.now_per_s))

    def hold(self) -> None:
        self._is_held = True


def measure() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The figure's rows, and the totals."""
    with elastic_scene("2..3", worker_processors=WORKER_PROCESSORS) as scene:
        (reader, cost), seen = scene.store_scores(), LoadsSeen(scene)
        rate = Rising(cost)
        configuration = scene.record.configuration
        assert configuration is not None
        crowded, other = configuration.hosts
        there = [name for name, place in configuration.places.items() if place.host == other]
        for name in there[: CROWDED - len(configuration.places) + len(there)]:
            scene.move(name, crowded)
        by_hand = len(scene.record.decisions)
        publisher = Publisher(scene.service.url, rate.due)
        seen.start()
        publisher.start()
        decision: Decision = scene.wait(lambda: next(iter(scene.record.decisions[by_hand:]), None), WITHIN_S)
        rate.hold()
        print(f"{decision.reason}: {decision.moves}")
        wanted = {move.slice for move in decision.moves}
        scene.wait(
            lambda: wanted <= {move.slice for move in scene.record.moves if move.asked_ms >= decision.time_ms}
        )
        scene.wait(scene.is_settled)
        time.sleep(AFTER_S)
        publisher.stop()
        scene.wait(lambda: publisher.sent.keys() <= reader.came.keys())
        seen.stop()
        reader.stop()
        more = scene.record.decisions[by_hand + 1 :]
    rows = moments(seen.loads, decision)
    loads: dict[str, dict[str, float]] = {moment: defaultdict(float) for moment in MOMENTS}
    for row in rows:
        loads[row["moment"]][row["host"]] += row["cpu"]
    came = [reader.came[place] for place in publisher.sent if place in reader.came]
    return rows, {
        "reason": decision.reason,
        "moves": {move.slice: move.to for move in decision.moves},
        "new_hosts": decision.new_hosts,
        "hosts": {
            moment: {host: round(cpu, 1) for host, cpu in its.items()} for moment, its in loads.items()
        },
        "decided_later": [each.reason for each in more],
        "event_ms": round(1000 * cost.event_s, 2),
        "rate_per_s": round(rate.now_per_s),
        "events": len(publisher.sent),
        "lost": len(publisher.sent) - len(came),
        "doubled": sum(len(each) > 1 for each in came),
    }


def moments(loads: list[ElasticLoads], decision: Decision) -> list[dict[str, Any]]:
    """Each slice's load before the decision, as decided, and after the moves."""
    before = bars("before", [each for each in loads if each.time_ms <= decision.time_ms])
    after = bars("after", loads)
    moved, at = {move.slice for move in decision.moves}, {row["slice"]: row["host"] for row in after}
    decided = [{**row, "moment": "decided", "host": at[row["slice"]]} for row in before]
    found = [*before, *decided, *after]
    return [{**row, "moved": "moved" if row["slice"] in moved else "stays"} for row in found]


def bars(moment: str, loads: list[ElasticLoads]) -> list[dict[str, Any]]:
    """Each slice's mean load over the last seconds, at its place at their end."""
    said = [each for each in loads if each.time_ms > loads[-1].time_ms - 1000 * WINDOW_S]
    shares: dict[str, list[float]] = defaultdict(list)
    for each in said:
        for slice_ in each.slices:
            shares[slice_.slice].append(100 * slice_.cpu)
    return [
        {
            "moment": moment,
            "host": each.host,
            "slice": each.slice,
            "cpu": round(float(np.mean(shares[each.slice])), 1),
        }
        for each in loads[-1].slices
    ]


def draw(rows: list[dict[str, Any]]) -> None:
    """Draw it as in Figure 5."""
    hosts = sorted({row["host"] for row in rows})
    shown = (
        alt.Chart(width=170, height=240)
        .mark_bar(stroke="white")
        .encode(
            x=alt.X("host:N", title=None, axis=alt.Axis(labelAngle=0), scale=alt.Scale(domain=hosts)),
            y=alt.Y("cpu:Q", title="CPU, %"),
            color=alt.Color("moved:N", title=None, sort=["stays", "moved"]),
            order="slice:N",
        )
    )
    words = shown.mark_text(color="black", baseline="top", dy=2).encode(
        y=alt.Y("cpu:Q", stack="zero"), text="slice:N", color=alt.value("black")
    )
    rules = [alt.Chart().mark_rule(color=COLOUR, strokeDash=[4, 4]).encode(y=alt.datum(y)) for y in (50, 80)]
    chart = alt.layer(shown, words, *rules, data=as_data(rows)).facet(
        column=alt.Column("moment:N", sort=list(MOMENTS), title=None)
    )
    title = "Figure 5 on Spark: a host above 80 % is relieved (red: the paper's target and bound)"
    RESULTS.draw(NAME, chart.properties(title=title))


def main() -> None:
    parser = argparse.ArgumentParser(description="Figure 5 on a real Spark cluster.")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")
    parser.add_argument("--draw", action="store_true", help="only draw the results of an earlier run")
    options = parser.parse_args()
    if options.draw:
        draw(RESULTS.read(NAME))
        return
    if (reason := why_no_loads()) is not None:
        sys.exit(f"it cannot be measured here: {reason}")
    with redirect_stdout(sys.stderr):
        rows, found = measure()
        RESULTS.write(NAME, rows)
        draw(rows)
    print(json.dumps(found, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
