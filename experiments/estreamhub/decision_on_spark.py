"""Figure 5 on a real Spark cluster: a local decision, by loads that were measured.

    python experiments/estreamhub/decision_on_spark.py

starts a standalone cluster of three workers of a core each, and ``fieldfare serve --elastic 2..3`` with eight
matchers, all on this machine; stores 100,000 subscriptions that nothing narrows the search for, moves slices
by hand until one host has six and the other two, and publishes at a rate that rises until the enforcer
relieves the one. Drawn are the slices' loads of the 30 s before its decision, the same where it moved them,
and those of the 30 s after the last move: processor time of the tasks' Python processes. The rate goes on as
it was when it decided.
"""

from __future__ import annotations

import argparse
import sys
import time
from random import Random
from typing import Any

import altair as alt
import numpy as np
from elastic_runs import COLOUR, RESULTS, as_data
from elastic_service import Publisher, elastic_scene, subscribe_sums
from growing_on_spark import LoadsSeen

from fieldfare.runtimes.spark.elastic.record import ElasticLoads
from fieldfare_lab.feeding import Reader
from fieldfare_lab.spark_cluster import why_no_cluster

NAME = "figure_5_on_spark"
SUBSCRIPTIONS = 100_000
CROWDED = 6
LEAST_PER_S, MORE_PER_S2 = 12.0, 0.1
WINDOW_S, AFTER_S, WITHIN_S = 30.0, 35.0, 240.0
MOMENTS = ("before", "decided", "after")


def measure() -> list[dict[str, Any]]:
    random, held_per_s = Random(5), [0.0]

    def pause_s(at_s: float) -> float:
        return random.expovariate(held_per_s[0] or LEAST_PER_S + MORE_PER_S2 * at_s)

    with elastic_scene("2..3") as scene:
        subscribe_sums(scene.service.url, SUBSCRIPTIONS)
        scene.service.wait_until_indexed()
        scene.wait(scene.is_settled)
        configuration = scene.record.configuration
        assert configuration is not None
        crowded, other = configuration.hosts
        there = [name for name, place in configuration.places.items() if place.host == other]
        for name in there[: CROWDED - len(configuration.places) + len(there)]:
            scene.move(name, crowded)
        publisher = Publisher(scene.service.url, pause_s)
        reader, seen = Reader(scene.service.url, "all"), LoadsSeen(scene)
        for each in (seen, reader, publisher):
            each.start()
        decision = scene.wait(
            lambda: next((each for each in scene.record.decisions if each.reason != "by hand"), None),
            WITHIN_S,
        )
        held_per_s[0] = LEAST_PER_S + MORE_PER_S2 * (time.monotonic() - publisher.started_s)
        print(f"{decision.reason}: {decision.moves}", file=sys.stderr)
        scene.wait(scene.is_settled)
        time.sleep(AFTER_S)
        publisher.stop()
        scene.wait(lambda: len(reader.came) >= len(publisher.sent))
        seen.stop()
        reader.stop()
        print(f"{len(publisher.sent)} events, {len(reader.came)} came", file=sys.stderr)
    before = [each for each in seen.loads if each.time_ms <= decision.time_ms]
    rows = bars("before", before, WINDOW_S)
    after = bars("after", seen.loads, WINDOW_S)
    moved, at = {move.slice for move in decision.moves}, {row["slice"]: row["host"] for row in after}
    decided = [{**row, "moment": "decided", "host": at[row["slice"]]} for row in rows]
    found = [*rows, *decided, *after]
    return [{**row, "moved": "moved" if row["slice"] in moved else "stays"} for row in found]


def bars(moment: str, loads: list[ElasticLoads], window_s: float) -> list[dict[str, Any]]:
    """Each slice's mean load of the last seconds, where it was at their end."""
    said = [each for each in loads if each.time_ms > loads[-1].time_ms - 1000 * window_s]
    return [
        {
            "moment": moment,
            "host": each.host,
            "slice": each.slice,
            "cpu": round(
                100 * float(np.mean([s.cpu for one in said for s in one.slices if s.slice == each.slice])), 1
            ),
        }
        for each in loads[-1].slices
    ]


def draw(rows: list[dict[str, Any]]) -> None:
    """As Figure 5."""
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
    parser.add_argument("--draw", action="store_true", help="only draw what was measured before")
    if not parser.parse_args().draw and (reason := why_no_cluster()) is not None:
        sys.exit(f"there can be no Spark cluster here: {reason}")
    draw(RESULTS.keep(NAME, measure))


if __name__ == "__main__":
    main()
