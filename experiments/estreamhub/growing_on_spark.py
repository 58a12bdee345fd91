"""Figure 8, small, on a real Spark cluster: a service that grows and shrinks with its load.

    python experiments/estreamhub/growing_on_spark.py

starts a standalone cluster of three workers of a core each, and ``fieldfare serve --elastic 1..3`` with eight
matchers, all on this machine; stores 100,000 subscriptions that nothing narrows the search for, and publishes
at a rate that rises, stays and falls. Loads are what the service measures and goes by: processor time of the
tasks' Python processes. Its rules are the paper's, but that executors may go a minute after some were added
(``--elastic-calm 60``; as a rule ten), so that it fits eight minutes. Two cores do all of it, the publisher
and the cluster's own processes too, so the rate stays where the tasks have about one of them.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

import altair as alt
import numpy as np
from elastic_runs import COLOUR, RESULTS, as_data
from elastic_service import ElasticScene, Publisher, came_after_ms, elastic_scene, subscribe_sums

from fieldfare.runtimes.spark.elastic.record import ElasticLoads, ElasticRecord
from fieldfare_lab.feeding import Reader
from fieldfare_lab.spark_cluster import why_no_cluster

NAME = "figure_8_on_spark"
SUBSCRIPTIONS = 100_000
PEAK_PER_S = 30.0
LEAST_PER_S = 1.0
RISE_S, TOP_S, FALL_S, UNTIL_S, BIN_S = 90.0, 90.0, 40.0, 340.0, 10
CALM_S = 60
PAPER_HOSTS_MAX, PAPER_HOSTS_END = 15, 1


def rate(at_s: float) -> float:
    """Events a second."""
    times = np.cumsum([0.0, RISE_S, TOP_S, FALL_S])
    return float(np.interp(at_s, times, [LEAST_PER_S, PEAK_PER_S, PEAK_PER_S, LEAST_PER_S]))


@dataclass
class LoadsSeen(threading.Thread):
    """What the service says of its loads, second by second."""

    scene: ElasticScene
    loads: list[ElasticLoads] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self._enough = threading.Event()

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        while not self._enough.wait(0.25):
            loads = self.scene.loads
            if loads is not None and (not self.loads or loads.time_ms != self.loads[-1].time_ms):
                self.loads.append(loads)

    def stop(self) -> None:
        self._enough.set()
        self.join(5)


def measure() -> list[dict[str, Any]]:
    random = Random(8)
    with elastic_scene("1..3", FIELDFARE_ELASTIC_CALM=str(CALM_S)) as scene:
        subscribe_sums(scene.service.url, SUBSCRIPTIONS)
        scene.service.wait_until_indexed()
        scene.wait(scene.is_settled)
        publisher = Publisher(scene.service.url, lambda at_s: random.expovariate(rate(at_s)))
        reader, seen = Reader(scene.service.url, "all"), LoadsSeen(scene)
        for each in (seen, reader, publisher):
            each.start()
        time.sleep(UNTIL_S)
        publisher.stop()
        scene.wait(lambda: len(reader.came) >= len(publisher.sent))
        seen.stop()
        reader.stop()
        events, record = came_after_ms(publisher, reader.came), scene.record
    doubled = sum(len(times) > 1 for times in reader.came.values())
    print(f"{len(events)} events, {len(record.moves)} moves, {doubled} doubled", file=sys.stderr)
    for decision in record.decisions:
        at_s = decision.time_ms / 1000 - time.time() + time.monotonic() - publisher.started_s
        print(f"{at_s:6.1f} s: {decision.reason}, {len(decision.moves)} moves", file=sys.stderr)
    return over_time(events, seen.loads, record, publisher.started_s)


def over_time(
    events: list[tuple[float, float]], loads: list[ElasticLoads], record: ElasticRecord, started_s: float
) -> list[dict[str, Any]]:
    """Rate, hosts, their load and the delays in periods of ten seconds."""
    offset_s = time.time() - time.monotonic() + started_s
    sent_s, delay_ms = np.array(events).T
    rows = []
    for start in range(0, int(UNTIL_S), BIN_S):
        inside = delay_ms[(sent_s - started_s >= start) & (sent_s - started_s < start + BIN_S)]
        said = [each for each in loads if start <= each.time_ms / 1000 - offset_s < start + BIN_S]
        hosts = [host for each in said for host in each.hosts if host.is_warm]
        names = {host.host for host in hosts}
        means = [100 * float(np.mean([each.cpu for each in hosts if each.host == name])) for name in names]
        moves = [each for each in record.moves if start <= each.placed_ms / 1000 - offset_s < start + BIN_S]
        rows.append(
            {
                "time_s": start,
                "rate_per_s": round(len(inside) / BIN_S, 2),
                "hosts": max((sum(host.is_warm for host in each.hosts) for each in said), default=""),
                "cpu_min": round(min(means), 1) if means else "",
                "cpu_mean": round(sum(means) / len(means), 1) if means else "",
                "cpu_max": round(max(means), 1) if means else "",
                "delay_p50_ms": round(float(np.median(inside)), 1) if len(inside) else "",
                "delay_mean_ms": round(float(inside.mean()), 1) if len(inside) else "",
                "delay_max_ms": round(float(inside.max()), 1) if len(inside) else "",
                "moves": len(moves),
            }
        )
    return rows


def draw(rows: list[dict[str, Any]]) -> None:
    """Four pictures, one below the other, as Figure 8."""
    x = alt.X("time_s:Q", title=None, scale=alt.Scale(domain=[0, UNTIL_S], nice=False))
    base = alt.Chart(as_data(rows), width=560, height=100).encode(x=x)
    rates = base.mark_line().encode(y=alt.Y("rate_per_s:Q", title="events/s"))
    said = [
        {"time_s": RISE_S + 40, "hosts": 3, "words": f"the paper: {PAPER_HOSTS_MAX} (of 8 cores) at the top"},
        {"time_s": UNTIL_S - 8, "hosts": PAPER_HOSTS_END, "words": ""},
        {"time_s": 4, "hosts": 1, "words": ""},
    ]
    points = alt.Chart(as_data(said)).encode(x=x, y="hosts:Q")
    hosts = (
        base.mark_line(interpolate="step-after").encode(
            y=alt.Y("hosts:Q", title="hosts", scale=alt.Scale(domain=[0, 3.6]), axis=alt.Axis(tickCount=4))
        )
        + points.mark_point(shape="diamond", size=90, filled=True, color=COLOUR, opacity=1)
        + points.mark_text(color=COLOUR, align="left", dx=8, dy=-6).encode(text="words:N")
    )
    rules = alt.Chart(as_data([{"cpu": bound} for bound in (30, 50, 70)]))
    most = max(100, *(row["cpu_max"] for row in rows if row["cpu_max"] != ""))
    cpu = (
        base.mark_area(opacity=0.2).encode(
            y=alt.Y("cpu_min:Q", title="host CPU, %", scale=alt.Scale(domain=[0, most])), y2="cpu_max:Q"
        )
        + base.mark_line().encode(y="cpu_mean:Q")
        + rules.mark_rule(strokeDash=[4, 4], color="gray").encode(y="cpu:Q")
    )
    heard = base.properties(data=as_data([row for row in rows if row["delay_mean_ms"] != ""]))
    delays = heard.mark_line().encode(
        x=alt.X("time_s:Q", title="time, s", scale=alt.Scale(domain=[0, UNTIL_S], nice=False)),
        y=alt.Y("delay_mean_ms:Q", title="mean delay, ms"),
    )
    second = alt.Chart(as_data([{"ms": 1000, "words": "the paper: below a second, as a rule"}])).encode(
        y="ms:Q"
    )
    words = second.mark_text(color=COLOUR, align="left", dx=-275, dy=-6).encode(text="words:N")
    chart = alt.vconcat(rates, hosts, cpu, delays + second.mark_rule(color=COLOUR) + words)
    RESULTS.draw(NAME, chart.properties(title="Figure 8, small, on Spark: one to three executors of a core"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Figure 8, small, on a real Spark cluster.")
    parser.add_argument("--draw", action="store_true", help="only draw what was measured before")
    if not parser.parse_args().draw and (reason := why_no_cluster()) is not None:
        sys.exit(f"there can be no Spark cluster here: {reason}")
    draw(RESULTS.keep(NAME, measure))


if __name__ == "__main__":
    main()
