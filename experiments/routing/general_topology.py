"""100 brokers with cycles: latency by publishing rate, throughput, overhead, and destination lists.

Both overlays; the machines run once for each, and all cost models are applied to what they did.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import altair as alt
from overlay_runs import (
    CALIBRATION,
    COUNTED,
    DDBR_MEAN_MS,
    DDBR_RATE,
    FBR_MEAN_MS,
    FBR_NEXT_MS,
    FBR_NEXT_RATE,
    FBR_RATE,
    LISTS,
    OVERLAYS,
    OVERLOADED_MS,
    PROCESSES,
    PROTOCOLS,
    RESULTS,
    SEEDS,
    SET_UPS,
    as_data,
    calibrated_symbols,
    cost_of,
    general,
    has_quotes,
    publishers_of,
    run,
    workload_of,
)

from fieldfare_lab.simulation.routing.queueing import Counted, MatchingCost, calibrated, delays, highest_rate
from fieldfare_lab.simulation.routing.traces import Brokers, Step, Trace

RATES = (1_000, 2_000, 2_500, 5_000, 8_000, 11_000, 14_000)
SHOWN_MS = 3_200
"""Latencies beyond this are left out of the picture; the CSV has them."""
LIST_SHOWN = 8
"""Mean lists at which the histograms end; longer ones are in the last bar."""


def overhead(overlay: str, protocol: str, seed: int, brokers: Brokers) -> dict[str, Any]:
    """Return what one run cost for each event, and its lists."""
    events = len(brokers.trace.events)
    steps = [step for found in brokers.trace.events.values() for step in found]
    tables = [brokers.broker(name).state for name in brokers.topology.brokers]
    remote = [sum(group.subscriptions.stored() for group in state.groups.values()) for state in tables]
    return {
        "overlay": overlay,
        "protocol": protocol,
        "seed": seed,
        "copies_an_event": round(sum(step.sent for step in steps) / events, 2),
        "matching_brokers_an_event": round(sum(step.matchings > 0 for step in steps) / events, 2),
        **{
            f"{counted}_an_event": round(sum(getattr(step, counted) for step in steps) / events, 1)
            for counted in COUNTED
        },
        **busiest(steps, events),
        "remote_entries_a_broker": round(statistics.mean(remote), 1),
        "list_mean": round(sum(step.listed for step in steps) / max(1, sum(step.sent for step in steps)), 3),
    }


def busiest(steps: list[Step], events: int) -> dict[str, float]:
    """Return the entries that the broker with most of them holds, examines and compares for an event."""
    found = {}
    for counted in COUNTED:
        work: dict[str, int] = {}
        for step in steps:
            work[step.broker] = work.get(step.broker, 0) + getattr(step, counted)
        found[f"busiest_{counted}_an_event"] = round(max(work.values()) / events, 1)
    return found


def lists(overlay: str, protocol: str, seed: int, brokers: Brokers) -> list[dict[str, Any]]:
    """Return each broker's mean destination list."""
    found: dict[str, list[int]] = {}
    for steps in brokers.trace.events.values():
        for step in steps:
            if step.sent:
                sums = found.setdefault(step.broker, [0, 0])
                sums[0] += step.listed
                sums[1] += step.sent
    given = {"overlay": overlay, "protocol": protocol, "seed": seed}
    return [
        {**given, "broker": name, "list_mean": round(listed / sent, 3)}
        for name, (listed, sent) in sorted(found.items())
    ]


Found = tuple[Trace, dict[str, Any], list[dict[str, Any]]]


def run_of(arguments: tuple[str, str, int, int]) -> Found:
    """Run a protocol's machines on the overlay of a seed."""
    overlay, protocol, seed, symbols = arguments
    gc.disable()  # There are hardly any cycles, and the search for them takes a quarter of the time.
    topology = general(overlay, seed)
    brokers = run(topology, protocol, workload_of(seed, symbols), publishers_of(topology, seed), seed)
    costs = overhead(overlay, protocol, seed, brokers)
    print(costs, flush=True)
    return brokers.trace, costs, lists(overlay, protocol, seed, brokers)


def loaded(
    arguments: tuple[str, str, int, Trace, MatchingCost],
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a trace's latency at each rate, and its throughput."""
    overlay, protocol, seed, trace, cost = arguments
    given = {"overlay": overlay, "counted": cost.counted, "protocol": protocol, "seed": seed}
    rows = []
    for rate in RATES:
        found = delays(trace, rate, cost, seed)
        rows.append(
            {
                **given,
                "rate_per_min": rate,
                "mean_ms": round(1000 * found.mean_s, 1),
                "p99_ms": round(1000 * found.p99_s, 1),
                "busiest": round(found.busiest, 3),
            }
        )
        if 1000 * found.mean_s > OVERLOADED_MS:
            break
    throughput = highest_rate(trace, cost, FBR_MEAN_MS / 1000, seed)
    return rows, {**given, "throughput_per_min": round(throughput)}


def entry_us(traces: dict[tuple[str, str, int], Trace], overlay: str, counted: Counted) -> float:
    """Return the time of an entry, in microseconds, with which FBR's latency on an overlay is the paper's."""
    fbr = {seed: traces[overlay, "FBR", seed] for seed in SEEDS}
    return round(1e6 * calibrated(fbr, counted, FBR_RATE, FBR_MEAN_MS / 1000).entry_s, 2)


def measure() -> None:
    """Run all machines, calibrate, and write the CSVs."""
    keys = [(overlay, name, seed) for overlay in OVERLAYS for seed in SEEDS for name in PROTOCOLS]
    with ProcessPoolExecutor(PROCESSES) as pool:
        symbols = dict(zip(OVERLAYS, pool.map(calibrated_symbols, OVERLAYS), strict=True))
        print(symbols, flush=True)
        found = list(pool.map(run_of, [(*key, symbols[key[0]]) for key in keys]))
        traces = {key: trace for key, (trace, _, _) in zip(keys, found, strict=True)}
        set_numbers = {
            overlay: {
                "symbols": symbols[overlay],
                "entry_us": {counted: entry_us(traces, overlay, counted) for counted in COUNTED},
            }
            for overlay in OVERLAYS
        }
        CALIBRATION.write_text(json.dumps(set_numbers) + "\n")
        wanted = [
            (overlay, name, seed, trace, cost_of(overlay, counted))
            for counted in COUNTED
            for (overlay, name, seed), trace in traces.items()
        ]
        rates = list(pool.map(loaded, wanted))
    RESULTS.write("general_overhead", [costs for _, costs, _ in found])
    RESULTS.write("general_lists", [row for _, _, lengths in found for row in lengths])
    RESULTS.write("general_latency", [row for rows, _ in rates for row in rows])
    RESULTS.write("general_throughput", [row for _, row in rates])


def latency_chart(overlay: str, counted: Counted) -> Any:
    """Return the latency by publishing rate in one set-up, with the paper's points."""
    rows = [
        row
        for row in RESULTS.read("general_latency")
        if (row["overlay"], row["counted"]) == (overlay, counted)
    ]
    shown = [row for row in rows if row["mean_ms"] <= SHOWN_MS]
    medians = [
        {"protocol": name, "rate_per_min": rate, "mean_ms": statistics.median(found)}
        for name in PROTOCOLS
        for rate in RATES
        if (
            found := [
                row["mean_ms"] for row in rows if (row["protocol"], row["rate_per_min"]) == (name, rate)
            ]
        )
    ]
    paper = [
        {"rate_per_min": FBR_RATE, "mean_ms": FBR_MEAN_MS, "words": "FBR, the paper (calibrated)"},
        {"rate_per_min": FBR_NEXT_RATE, "mean_ms": FBR_NEXT_MS, "words": "FBR, the paper"},
        {"rate_per_min": DDBR_RATE, "mean_ms": DDBR_MEAN_MS, "words": "D-DBR, the paper"},
    ]
    x = alt.X("rate_per_min:Q", title="events published per minute", scale=alt.Scale(domain=[0, 16_000]))
    y = alt.Y("mean_ms:Q", title="mean latency, ms", scale=alt.Scale(domain=[0, SHOWN_MS]))
    color = alt.Color("protocol:N", title=None, sort=list(PROTOCOLS))
    base = alt.Chart(as_data(medians), width=420, height=240).encode(x=x, y=y, color=color)
    points = alt.Chart(as_data(paper)).encode(x=x, y=y)
    words = points.mark_text(color="black", align="left", dx=8, dy=-8).encode(text="words:N")
    ends = points.mark_text(color="black", align="right", dx=10, dy=-12).encode(text="words:N")
    return (
        base.mark_line(clip=True)
        + alt.Chart(as_data(shown)).mark_point(size=18).encode(x=x, y=y, color=color)
        + points.mark_point(color="black", shape="cross", size=80)
        + words.transform_filter(f"datum.rate_per_min < {DDBR_RATE}")
        + ends.transform_filter(f"datum.rate_per_min == {DDBR_RATE}")
    ).properties(title=f"{overlay}, entries {counted}")


def lists_chart(overlay: str, protocol: str) -> Any:
    """Return the histogram of the brokers' mean lists, with the paper's mean."""
    mean = LISTS[protocol]
    found = [
        {"list_mean": min(row["list_mean"], LIST_SHOWN - 0.01)}
        for row in RESULTS.read("general_lists")
        if (row["overlay"], row["protocol"]) == (overlay, protocol)
    ]
    point = alt.Chart(as_data([{"mean": mean, "words": f"the paper's mean: {mean}"}])).encode(x="mean:Q")
    bars = (
        alt.Chart(as_data(found), width=420, height=130)
        .mark_bar()
        .encode(
            x=alt.X(
                "list_mean:Q",
                bin=alt.Bin(step=0.5, extent=[1, LIST_SHOWN]),
                title="mean destination list of a broker (last bar: and longer)",
            ),
            y=alt.Y("count():Q", title=f"brokers ({len(SEEDS)} seeds)"),
        )
    )
    words = point.mark_text(color="red", align="left", dx=6).encode(y=alt.value(10), text="words:N")
    return (bars + point.mark_rule(color="red") + words).properties(title=f"{protocol}, {overlay}")


def draw() -> None:
    """Draw latency by rate, and the brokers' lists, with the paper's points."""
    charts = {set_up: latency_chart(*set_up) for set_up in SET_UPS}
    rows = [alt.hconcat(*(charts[overlay, counted] for counted in COUNTED)) for overlay in OVERLAYS]
    RESULTS.draw("general_latency", alt.vconcat(*rows))
    histograms = [alt.hconcat(*(lists_chart(overlay, name) for name in LISTS)) for overlay in OVERLAYS]
    RESULTS.draw("general_lists", alt.vconcat(*histograms))


def main() -> None:
    if "--draw" not in sys.argv:
        if not has_quotes():
            return
        measure()
    draw()


if __name__ == "__main__":
    main()
