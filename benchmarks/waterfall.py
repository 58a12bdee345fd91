"""Where the time goes between publishing and delivery, under a light load.

    python benchmarks/waterfall.py --json

starts the demo's service with 100,000 standing filters, publishes 200 single events per second with one
subscriber to all of them, and traces them (`GET /v1/trace`). It prints, for each step, quantiles of its
duration in milliseconds; ``client`` is the whole time as the clients see it, from the publish call to the
delivery, with both ways over loopback and the work of the clients. Each run is a line; the median of them
is drawn into docs/images/waterfall.svg.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from fieldfare.cli.demo.display import make_display
from fieldfare.cli.demo.scenario import Demo, DemoSettings
from fieldfare.cli.demo.service import ServicePlaces
from fieldfare.cli.trace import STEPS, summarize
from fieldfare.client import Client
from fieldfare_lab.latency import EVENTS_PER_S, MEASURED_S, WARM_S, measure_latencies_s

CONNECT_S = 2.0
"""Seconds that the subscriber takes to connect, about: the trace begins behind the warm-up."""
PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "waterfall.svg"


def traced(demo: Demo, events_per_s: int) -> dict[str, Any]:
    """One run: the steps' quantiles, and those of the whole time at the clients."""

    def trace() -> dict[str, Any]:
        time.sleep(WARM_S + CONNECT_S)
        with Client(demo.service.url) as client:
            return client.trace(MEASURED_S - 2 * CONNECT_S)

    with ThreadPoolExecutor(1) as threads:
        tracing = threads.submit(trace)
        latencies_ms = measure_latencies_s(demo.service.url, demo.events, events_per_s) * 1000
        records = tracing.result()["records"]
    quantiles = {
        f"p{share}_ms": round(float(np.quantile(latencies_ms, share / 100)), 3) for share in (50, 90, 99)
    }
    return {"records": len(records), "steps": summarize(records), "client": quantiles}


def drawn(runs: Sequence[dict[str, Any]]) -> alt.LayerChart:
    """Each step's median as a bar from its begin to its end, below those before it."""
    rows, begin_ms = [], 0.0
    for name, until in STEPS.items():
        steps = [step for run in runs for step in run["steps"] if step["step"] == name]
        length_ms = statistics.median(step["p50_ms"] for step in steps)
        said = f"{name}: {length_ms:.2f} ms"
        rows.append(
            {"step": name, "until": until, "begin": begin_ms, "end": begin_ms + length_ms, "said": said}
        )
        begin_ms += length_ms
    bars = alt.Chart(alt.InlineData(values=rows)).encode(
        y=alt.Y("step:N", sort=list(STEPS), title=None, axis=None),
        x=alt.X("begin:Q", title="milliseconds since the request (sum of the medians)"),
    )
    texts = bars.mark_text(align="left", dx=6).encode(x="end:Q", text="said:N")
    size = {"width": 520, "height": 26 * len(rows)}
    layers = alt.layer(bars.mark_bar(height=14, color="#2a78b8").encode(x2="end:Q"), texts)
    return layers.properties(**size).configure_view(stroke=None).configure(background="white")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object for each run")
    parser.add_argument("--alerts", type=int, default=100_000, help="standing filters (default: %(default)s)")
    parser.add_argument(
        "--runs", type=int, default=3, help="runs, one after the other (default: %(default)s)"
    )
    parser.add_argument("--rate", type=int, default=EVENTS_PER_S, help="events/s (default: %(default)s)")
    parser.add_argument(
        "--log", metavar="URL", help="address of the log, a new Kafka topic (default: SQLite)"
    )
    parser.add_argument("--out", type=Path, help="the picture (default: in docs/images, for default options)")
    options = parser.parse_args()
    is_default = options.log is None and options.rate == EVENTS_PER_S
    out = options.out or (PICTURE if is_default else None)
    log = None if options.log is None else f"{options.log}?partitions=1"
    display = make_display(sys.stderr)
    with Demo(DemoSettings(10_000, options.alerts, 1), display, ServicePlaces(log=log)) as demo:
        demo.prepare()
        demo.register()
        runs = []
        for number in range(options.runs):
            with display.step(f"{options.rate} events per second, run {number + 1}"):
                runs.append(traced(demo, options.rate))
            if options.json:
                print(json.dumps(runs[-1]), flush=True)
    if not options.json:
        for run in runs:
            rows = [(each["step"], f"{each['p50_ms']} {each['p99_ms']}") for each in run["steps"]]
            rows.append(("client", f"{run['client']['p50_ms']} {run['client']['p99_ms']}"))
            make_display(sys.stdout).table("p50 and p99 in ms", rows)
    if out is not None:
        drawn(runs).save(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
