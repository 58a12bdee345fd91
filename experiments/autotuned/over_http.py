"""The paper's experiments over real HTTP: steps of the load, a slow subscriber, and the trace.

    python experiments/autotuned/over_http.py steps|slow|trace [--draw] [--data FOLDER] [--shared-machine]

The service is a real gateway in a process of its own (`fieldfare.testing`: matching without Spark), the
publishers are those of the client, with fixed settings, the paper's tuner, the windowed one and "auto". All
run side by side: each gets the same requests at the same times and has its own connections, through a proxy
that adds the round trip. So they meet the same noise of the machine. Latency is from the moment when a
request is due until its message has reached the subscriber, which is next to the service.

Differences from the paper:

* A batch is one HTTP request, and a worker thread is a request in flight, of which there are 5; the paper's
  workers transfer one message each. There is no data store with a fixed cost of a read.
* steps: table II's times are divided by 10, 100 s in all.
* slow: a gateway has no buffer that a slow subscriber could fill, so a proxy stands for the broker
  (`fieldfare_lab.slow_broker`): it has room for 50 messages, and answers a request when all of its messages
  have a place. The run lasts 60 s. The client has no receive buffer that drops requests: they wait in its
  queue, whose length is shown.
* trace: at the original speed only the busiest 120 s of its 2.4 hours; 50 times as fast all of it, 173 s.

The figures depend on the machine; `python experiments/autotuned` does not run this program. With
``--shared-machine`` the results of slow and trace say that other work ran meanwhile. Run
`python experiments/tables.py` afterwards: it writes the tables of docs/papers/autotuned-http.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.parse import urlsplit

import altair as alt
from http_support import WAYS, Record, Run, Way, fixed, running_service, subscribed, tuned
from load_steps import PROFILE
from lookup_service import BATCHES, DEFAULT_FOLDER, FILE, read_times
from support import PAPER, as_data, draw_boxes, keep, read_table, write_picture, write_table

from fieldfare_lab.delayed_link import delayed
from fieldfare_lab.simulation.publishing import poisson_times, profile_times
from fieldfare_lab.slow_broker import SlowBroker, Subscriber

ROUND_TRIP_MS = 140.0
SHORTER = 10
"""Table II's times are divided by this."""
STEPS = [(start_s / SHORTER, end_s / SHORTER, load) for start_s, end_s, load in PROFILE]
STEP_ROUND_TRIPS_MS = (140.0, 20.0, 0.0)
BIN_S = 1.0

SLOW_LOAD_PER_S = 17.5
SLOW_S = 60.0
VACATIONS_S = (0.5, 2.0, 5.0)
READ_S = 1 / 25
BUFFER_MESSAGES = 50

SPEEDS = (1, 50)
BUSIEST_S = 120.0
TRACE_WAYS = (
    *(fixed(size) for size in BATCHES),
    fixed(50, poll_s=1.0),
    *(tuned(first) for first in BATCHES),
    *(way for way in WAYS if way.name in ("windowed", "auto")),
)


def run_all(times_s: Sequence[float], ways: Sequence[Way], round_trip_ms: float) -> dict[str, Record]:
    """Publish with all settings side by side, to one service."""
    with ExitStack() as stack:
        url = stack.enter_context(running_service())
        port = urlsplit(url).port
        assert port is not None
        run = Run(ways)
        stack.enter_context(subscribed(url, run))
        address = f"http://127.0.0.1:{stack.enter_context(delayed(port, round_trip_ms))}"
        return run.publish(times_s, {way.name: address for way in ways})


def steps() -> None:
    """Table II and figure 11."""
    table: list[dict[str, Any]] = []
    sizes: list[dict[str, Any]] = []
    ages: list[dict[str, Any]] = []
    for round_trip_ms in STEP_ROUND_TRIPS_MS:
        times_s = list(profile_times(STEPS, 1))
        for name, record in run_all(times_s, WAYS, round_trip_ms).items():
            case = {"round_trip_ms": round_trip_ms, "setting": name}
            table += [
                {**case, "start_s": start_s, "end_s": end_s, "load_per_s": load}
                | record.summarise(start_s, end_s)
                for start_s, end_s, load in STEPS
            ]
            if name == PAPER:
                sizes += [
                    {**case, "second": round(found.second, 1), "batch_messages": found.batch_messages}
                    for found in record.samples
                    if 0 <= found.second < STEPS[-1][1]
                ]
            ages += [
                {
                    **case,
                    "second": second,
                    "latency_ms": record.summarise(second, second + BIN_S)["latency_mean_ms"],
                }
                for second in range(int(STEPS[-1][1]))
                if any(second <= due_s < second + BIN_S for due_s in record.due_s)
            ]
    write_table("http_steps", table)
    write_table("http_steps_batch_size", sizes)
    write_table("http_steps_latency", ages)
    draw_steps()


def draw_steps() -> None:
    """Figure 11, and the latency of all settings."""
    sizes = [row for row in read_table("http_steps_batch_size") if row["round_trip_ms"] == ROUND_TRIP_MS]
    ages = [row for row in read_table("http_steps_latency") if row["round_trip_ms"] == ROUND_TRIP_MS]
    loads = [{"start": start, "end": end, "load": load} for start, end, load in STEPS]
    x = alt.X("second:Q", title="time, s")
    line = alt.Chart(as_data(sizes), width=640, height=160, title="the paper's tuner").mark_line()
    rules = alt.Chart(as_data(loads)).mark_rule(color="red", strokeWidth=2)
    size = line.encode(x=x, y=alt.Y("batch_messages:Q", title="N; load in requests/s (red)"))
    load = rules.encode(x="start:Q", x2="end:Q", y="load:Q")
    names = [way.name for way in WAYS]
    late = (
        alt.Chart(as_data(ages), width=640, height=260)
        .mark_line()
        .encode(
            x=x,
            y=alt.Y("latency_ms:Q", title="mean latency, ms", scale=alt.Scale(type="log", nice=False)),
            color=alt.Color("setting:N", title=None, sort=names),
        )
    )
    write_picture("http_steps", (size + load) & late)


def slow(is_shared: bool) -> None:
    """Section V.B.3: a slow subscriber fills the broker's buffer."""
    rows = keep("http_slow_subscriber", lambda: measure_slow(is_shared))
    names = [way.name for way in WAYS]
    base = alt.Chart(as_data(rows)).encode(y=alt.Y("setting:N", title=None, sort=names))

    def panel(field: str, title: str) -> Any:
        return (
            base.mark_bar()
            .encode(
                x=alt.X(f"{field}:Q", title=title),
                color=alt.Color("setting:N", title=None, sort=names, legend=None),
            )
            .properties(width=190, height=150)
            .facet(column=alt.Column("vacation_s:O", title="mean pause between pulls, s"))
        )

    write_picture(
        "http_slow_subscriber",
        panel("delivered_per_s", "messages delivered per second")
        & panel("in_flight_mean", "events in flight, mean")
        & panel("latency_mean_ms", "mean latency, ms"),
    )


def measure_slow(is_shared: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    times_s = list(poisson_times(SLOW_LOAD_PER_S, SLOW_S, 1))
    for vacation_s in VACATIONS_S:
        with ExitStack() as stack:
            port = urlsplit(stack.enter_context(running_service())).port
            assert port is not None
            run = Run(WAYS)
            addresses: dict[str, str] = {}
            for way in WAYS:
                subscriber = Subscriber(READ_S, vacation_s)
                broker = SlowBroker(port, subscriber, BUFFER_MESSAGES, run.deliver)
                stack.callback(broker.close)
                link = stack.enter_context(delayed(broker.port, ROUND_TRIP_MS))
                addresses[way.name] = f"http://127.0.0.1:{link}"
            records = run.publish(times_s, addresses)
        rows += [
            {**summarise_slow(name, vacation_s, record), "shared_machine": is_shared}
            for name, record in records.items()
        ]
    return rows


def summarise_slow(name: str, vacation_s: float, record: Record) -> dict[str, Any]:
    samples = [sample for sample in record.samples if 0 <= sample.second < SLOW_S]
    delivered = sum(second < SLOW_S for second in record.delivered_s.values())
    per_request = [sample.in_flight for sample in samples]
    return {
        "vacation_s": vacation_s,
        "setting": name,
        **record.summarise(0.0, SLOW_S),
        "delivered_per_s": round(delivered / SLOW_S, 2),
        "in_flight_mean": round(mean(per_request), 1),
        "in_flight_most": max(per_request),
        "waiting_mean": round(mean(sample.waiting for sample in samples), 1),
        "waiting_most": max(sample.waiting for sample in samples),
        "repeated_requests": samples[-1].repeated,
    }


def trace(folder: Path, is_shared: bool) -> None:
    """Figures 12, 13, 14."""
    if "--draw" not in sys.argv and not (folder / FILE).exists():
        print(f"skipped: {FILE} is not there; name its folder with --data or FIELDFARE_SHARED_DATA")
        return

    def measure() -> list[dict[str, Any]]:
        times_s = read_times(folder / FILE)
        rows: list[dict[str, Any]] = []
        for speed in SPEEDS:
            shown = busiest(times_s) if speed == 1 else [moment_s / speed for moment_s in times_s]
            records = run_all(shown, TRACE_WAYS, ROUND_TRIP_MS)
            rows += [
                {"speed": speed, "tuner": way.tuner, "setting": way.name}
                | records[way.name].summarise(0.0, shown[-1] + 1)
                | {"shared_machine": is_shared}
                for way in TRACE_WAYS
            ]
            if speed == SPEEDS[-1]:
                write_table("http_trace_adaptation", adaptation(records[PAPER], shown))
        return rows

    rows = keep("http_trace", measure)
    order = [way.name for way in TRACE_WAYS]
    boxes = [
        draw_boxes(
            [row for row in rows if row["speed"] == speed],
            f"trace {speed} times as fast" if speed > 1 else "busiest 120 s of the trace as it was",
            sort=order,
            most_ms=200_000,
        )
        for speed in SPEEDS
    ]
    write_picture("http_trace", alt.vconcat(*boxes))
    adapted = (
        alt.Chart(as_data(read_table("http_trace_adaptation")), width=640, height=140)
        .mark_line()
        .encode(
            x=alt.X("second:Q", title="time, s (trace 50 times as fast)"),
            y=alt.Y("value:Q", title=None),
            row=alt.Row("what:N", title=None, sort="descending"),
        )
        .resolve_scale(y="independent")
    )
    write_picture("http_trace_adaptation", adapted)


def busiest(times_s: Sequence[float]) -> list[float]:
    """The part of the trace with the most requests in `BUSIEST_S`, from 0 on."""
    counts = [bisect_left(times_s, start_s + BUSIEST_S) - at for at, start_s in enumerate(times_s)]
    at = max(range(len(counts)), key=counts.__getitem__)
    return [moment_s - times_s[at] for moment_s in times_s[at : at + counts[at]]]


def adaptation(record: Record, times_s: Sequence[float]) -> list[dict[str, Any]]:
    """N of the paper's tuner, and the load, in each second."""
    rows: list[dict[str, Any]] = []
    for second in range(int(times_s[-1]) + 1):
        sizes = [found.batch_messages for found in record.samples if second <= found.second < second + 1]
        arrived = bisect_left(times_s, second + 1) - bisect_left(times_s, second)
        if sizes:
            rows.append({"second": second, "what": "N (paper's tuner)", "value": round(mean(sizes), 2)})
        rows.append({"second": second, "what": "requests per second", "value": arrived})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["steps", "slow", "trace"])
    parser.add_argument("--draw", action="store_true", help="only draw the stored results")
    folder = Path(os.environ.get("FIELDFARE_SHARED_DATA", DEFAULT_FOLDER))
    parser.add_argument("--data", type=Path, default=folder, help="folder with the trace")
    parser.add_argument("--shared-machine", action="store_true", help="other work runs meanwhile: say so")
    options = parser.parse_args()
    if options.what == "trace":
        trace(options.data, options.shared_machine)
    elif options.what == "slow":
        slow(options.shared_machine)
    elif options.draw:
        draw_steps()
    else:
        steps()


if __name__ == "__main__":
    main()
