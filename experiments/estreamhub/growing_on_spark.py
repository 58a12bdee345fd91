"""Figure 8, small, on a real Spark cluster: a service that grows and shrinks automatically with its load.

    python experiments/estreamhub/growing_on_spark.py --json

starts a standalone cluster of three workers, each with one task at a time and half a core, and ``fieldfare
serve --elastic 1..3`` with eight matchers, all on this machine. It stores 20,000 subscriptions that must be
computed for each event, and publishes at a rate that rises within five minutes (``--rise SECONDS``), stays
and falls. The highest rate is the one that uses 0.8 of a core, computed from the load at two rates just
before. Loads are those that the service measures and uses: processor time of the tasks' Python processes, as
a share of what a worker may use. The rules are the paper's, except that executors may be released one minute
after some were added (``--elastic-calm 60``; the default is ten minutes), so that the run fits into eight
minutes. Prints one JSON object at the end:

event_ms, top_per_s
    Processor time per event, and events per second at the top.
events, lost, doubled
    Published events, and those of them that did not arrive, or arrived more than once.
hosts_max, hosts_end
    Maximum number of warm executors, and their number at the end.
moves, decisions
    Slices that moved; and all decisions, with their times and reasons.
warm_s
    Time from each decision to add executors until they were warm.
delay_p50_ms, delay_mean_ms, delay_p99_ms, delay_max_ms
    From sending an event to receiving it.

Scaled down: three hosts of half a core represent the paper's fifteen hosts of eight cores. The paper's
caption says 20,000 subscriptions, its text 100,000; one event in a hundred matches each, as in the paper. An
executor is started when it is requested, while the paper's hosts were already running.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import redirect_stdout
from itertools import accumulate
from typing import Any

import altair as alt
import numpy as np
from elastic_runs import COLOUR, RESULTS, as_data
from elastic_service import (
    EVENT_S,
    SCORES,
    WORKER_PROCESSORS,
    WORKERS,
    LoadsSeen,
    Publisher,
    came_after_ms,
    elastic_scene,
    why_no_loads,
)

from fieldfare.storage.elastic import ElasticLoads, ElasticRecord

NAME = "figure_8_on_spark"
RISE_S = 300.0
SECONDS = (10.0, RISE_S, 40.0, 10.0, 80.0)
PROCESSORS = (0.0, 0.2, 0.8, 0.8, 0.0, 0.0)
"""Rises fast to a load that one host handles easily, then slowly, because executors need half a minute."""
LEAST_PER_S = 2.0
BIN_S = 5
CALM_S = 60
PAPER_HOSTS_MAX, PAPER_HOSTS_END = 15, 1


def times_s(rise_s: float) -> list[float]:
    """The times at which each of `PROCESSORS` is reached."""
    return [0.0, *accumulate(rise_s if seconds == RISE_S else seconds for seconds in SECONDS)]


def measure(rise_s: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The figure's rows, and the totals."""
    random = np.random.default_rng(8)
    calm = {"FIELDFARE_ELASTIC_CALM": str(CALM_S)}
    with elastic_scene(f"1..{WORKERS}", worker_processors=WORKER_PROCESSORS, **calm) as scene:
        (reader, cost), seen = scene.store_scores(), LoadsSeen(scene)
        before, times = len(scene.record.moves), times_s(rise_s)

        def due(at_s: float) -> int:
            rate_per_s = max(LEAST_PER_S, cost.rate_per_s(float(np.interp(at_s, times, PROCESSORS))))
            return int(random.poisson(EVENT_S * rate_per_s))

        publisher = Publisher(scene.service.url, due)
        seen.start()
        publisher.start()
        time.sleep(times[-1])
        publisher.stop()
        scene.wait(lambda: publisher.sent.keys() <= reader.came.keys())
        seen.stop()
        reader.stop()
        record = scene.record
    del record.moves[:before]
    events = came_after_ms(publisher, reader.came)
    # The service's records have the time of day.
    offset_s = time.time() - time.monotonic() + publisher.started_s
    found = {"event_ms": round(1000 * cost.event_s, 2), "top_per_s": round(cost.rate_per_s(max(PROCESSORS)))}
    found |= summary(publisher, reader.came, seen.loads, record, offset_s)
    return over_time(events, seen.loads, record, publisher.started_s, offset_s), found | {"rise_s": rise_s}


def summary(
    publisher: Publisher,
    came: dict[str, list[tuple[int, float]]],
    loads: list[ElasticLoads],
    record: ElasticRecord,
    offset_s: float,
) -> dict[str, Any]:
    """The results; see the program's description."""
    delay_ms = np.array([each for _, each in came_after_ms(publisher, came)])
    decisions = [each for each in record.decisions if each.time_ms / 1000 > offset_s]
    hosts = [(each.time_ms / 1000, sum(host.is_warm for host in each.hosts)) for each in loads]
    warm_s = []
    for decision in decisions:
        if decision.new_hosts:
            at_s = decision.time_ms / 1000
            there = next(count for said_s, count in reversed(hosts) if said_s <= at_s)
            warm = (
                said_s for said_s, count in hosts if said_s > at_s and count >= there + decision.new_hosts
            )
            warm_s += [round(said_s - at_s, 1) for said_s in [next(warm, None)] if said_s is not None]
    percentiles = zip(("p50", "p99"), np.percentile(delay_ms, (50, 99)), strict=True)
    return {
        "subscriptions": SCORES,
        "worker_processors": WORKER_PROCESSORS,
        "events": len(publisher.sent),
        "lost": len(publisher.sent.keys() - came.keys()),
        "doubled": sum(len(came[place]) > 1 for place in publisher.sent if place in came),
        "hosts_max": max(count for _, count in hosts),
        "hosts_end": hosts[-1][1],
        "moves": len(record.moves),
        "decisions": [
            {
                "time_s": round(each.time_ms / 1000 - offset_s, 1),
                "reason": each.reason,
                "moves": len(each.moves),
                "new_hosts": each.new_hosts,
                "released": len(each.released),
            }
            for each in decisions
        ],
        "warm_s": warm_s,
        **{f"delay_{name}_ms": round(float(value), 1) for name, value in percentiles},
        "delay_mean_ms": round(float(delay_ms.mean()), 1),
        "delay_max_ms": round(float(delay_ms.max()), 1),
    }


def over_time(
    events: list[tuple[float, float]],
    loads: list[ElasticLoads],
    record: ElasticRecord,
    started_s: float,
    offset_s: float,
) -> list[dict[str, Any]]:
    """Rate, hosts, their loads and the delays in periods of some seconds."""
    sent_s, delay_ms = np.array(events).T
    rows = []
    for start in range(0, int(sent_s[-1] - started_s) + 1, BIN_S):
        inside = delay_ms[(sent_s - started_s >= start) & (sent_s - started_s < start + BIN_S)]
        said = [each for each in loads if start <= each.time_ms / 1000 - offset_s < start + BIN_S]
        hosts = [host for each in said for host in each.hosts if host.is_warm]
        names = {host.host for host in hosts}
        means = [100 * float(np.mean([each.cpu for each in hosts if each.host == name])) for name in names]
        moves = [each for each in record.moves if start <= each.placed_ms / 1000 - offset_s < start + BIN_S]
        shares = {"min": min, "mean": np.mean, "max": max}
        rows.append(
            {
                "time_s": start,
                "rate_per_s": round(len(inside) / BIN_S, 2),
                "hosts": max((sum(host.is_warm for host in each.hosts) for each in said), default=""),
                **{f"cpu_{name}": round(float(of(means)), 1) if means else "" for name, of in shares.items()},
                "delay_p50_ms": round(float(np.median(inside)), 1) if len(inside) else "",
                "delay_mean_ms": round(float(inside.mean()), 1) if len(inside) else "",
                "delay_max_ms": round(float(inside.max()), 1) if len(inside) else "",
                "moves": len(moves),
            }
        )
    return rows


def draw(rows: list[dict[str, Any]]) -> None:
    """Four pictures, one below another, as in Figure 8."""
    end_s = rows[-1]["time_s"] + BIN_S
    scale = alt.Scale(domain=[0, end_s], nice=False)
    axis = alt.Axis(values=list(range(0, end_s, 60)))
    x = alt.X("time_s:Q", title=None, scale=scale, axis=axis)
    base = alt.Chart(as_data(rows), width=560, height=100).encode(x=x)
    rates = base.mark_line().encode(y=alt.Y("rate_per_s:Q", title="events/s"))
    paper = f"the paper: from 1 host of 8 cores to {PAPER_HOSTS_MAX}, and back to {PAPER_HOSTS_END}"
    said = alt.Chart(as_data([{"time_s": 4, "hosts": WORKERS, "words": paper}])).encode(x=x, y="hosts:Q")
    there = alt.Y("hosts:Q", title="hosts", scale=alt.Scale(domain=[0, 3.8]), axis=alt.Axis(tickCount=4))
    hosts = base.mark_line(interpolate="step-after").encode(y=there) + said.mark_text(
        color=COLOUR, align="left", dy=-10
    ).encode(text="words:N")
    rules = alt.Chart(as_data([{"cpu": bound} for bound in (30, 50, 70)]))
    measured = base.properties(data=as_data([row for row in rows if row["cpu_max"] != ""]))
    cpu = (
        measured.mark_area(opacity=0.2).encode(y=alt.Y("cpu_min:Q", title="host CPU, %"), y2="cpu_max:Q")
        + measured.mark_line().encode(y="cpu_mean:Q")
        + rules.mark_rule(strokeDash=[4, 4], color="gray").encode(y="cpu:Q")
    )
    heard = base.properties(data=as_data([row for row in rows if row["delay_mean_ms"] != ""]))
    delays = heard.mark_line().encode(
        x=alt.X("time_s:Q", title="time, s", scale=scale, axis=axis),
        y=alt.Y("delay_mean_ms:Q", title="mean delay, ms"),
    )
    second = alt.Chart(
        as_data([{"ms": 1000, "time_s": 138, "words": "the paper: below a second, as a rule"}])
    )
    words = second.mark_text(color=COLOUR, align="left", dy=-8).encode(x=x, y="ms:Q", text="words:N")
    chart = alt.vconcat(rates, hosts, cpu, delays + second.mark_rule(color=COLOUR).encode(y="ms:Q") + words)
    title = "Figure 8, small, on Spark: one to three executors of half a core"
    RESULTS.draw(NAME, chart.properties(title=title))


def main() -> None:
    parser = argparse.ArgumentParser(description="Figure 8, small, on a real Spark cluster.")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")
    parser.add_argument(
        "--rise", type=float, default=RISE_S, help="seconds to the top (default: %(default)g)"
    )
    parser.add_argument("--draw", action="store_true", help="only draw the results of an earlier run")
    options = parser.parse_args()
    if options.draw:
        draw(RESULTS.read(NAME))
        return
    if (reason := why_no_loads()) is not None:
        sys.exit(f"it cannot be measured here: {reason}")
    with redirect_stdout(sys.stderr):
        rows, found = measure(options.rise)
        RESULTS.write(NAME, rows)
        RESULTS.write(f"{NAME}_decisions", found["decisions"])
        draw(rows)
    print(json.dumps(found, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
