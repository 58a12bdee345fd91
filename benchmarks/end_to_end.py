"""The whole service, end to end: throughput as in the demo, then latency under a light load.

    python benchmarks/end_to_end.py --json

prints one JSON object:

throughput_events_per_s
    One year of departures is published over HTTP as fast as the service accepts it, with 100,000 standing
    filters: events per second from the first publish call to the last match. Service, Spark, publisher and
    40 connected subscribers share the machine. Goal on two cores: 50,000.
latency_p50_ms, latency_p99_ms
    Afterwards, 200 single events per second through the client for 20 seconds, with one subscriber: from the
    publish call to the delivery at the client. Goals: 100 and 250.
peak_rss_bytes
    The maximum, over the run, of the total memory of all processes: service, Java, Spark's Python workers,
    publisher, subscribers, and the naive evaluators. Pages that processes share count once. Goal: 4 GB.
matches, events, subscriptions, seed, equal
    The parameters and results; `equal` says whether the naive evaluator found the same matches and
    deliveries.
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np

from fieldfare.cli.demo.display import make_display
from fieldfare.cli.demo.scenario import Demo, DemoSettings
from fieldfare.cli.demo.service import ServicePlaces
from fieldfare_lab.latency import measure_latencies_s


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else on stdout"
    )
    parser.add_argument("--events", type=int, help="number of departures to replay (default: all 336,776)")
    parser.add_argument("--alerts", type=int, default=100_000, help="standing filters (default: %(default)s)")
    parser.add_argument(
        "--subscribers", type=int, default=40, help="connected subscribers (default: %(default)s)"
    )
    parser.add_argument(
        "--log", metavar="URL", help="address of the event log, a new Kafka topic (default: SQLite)"
    )
    options = parser.parse_args()
    log = None if options.log is None else f"{options.log}?partitions=1"
    settings = DemoSettings(options.events, options.alerts, options.subscribers)
    display = make_display(sys.stderr)
    with Demo(settings, display, ServicePlaces(log=log)) as demo:
        demo.prepare()
        demo.register()
        replayed = demo.replay()
        differences, _ = demo.check()
        with display.step("200 events per second, one by one"):
            latencies_ms = measure_latencies_s(demo.service.url, demo.events) * 1000
    for difference in differences:
        display.say(str(difference))
    p50_ms, p99_ms = np.quantile(latencies_ms, (0.5, 0.99))
    figures = {
        "throughput_events_per_s": round(replayed.events_per_s),
        "latency_p50_ms": round(float(p50_ms), 1),
        "latency_p99_ms": round(float(p99_ms), 1),
        "subscriptions": settings.alerts,
        "events": len(replayed.positions),
        "matches": replayed.matches,
        "peak_rss_bytes": demo.memory.peak_bytes,
        "seed": settings.seed,
        "equal": not differences,
    }
    if options.json:
        print(json.dumps(figures))
    else:
        make_display(sys.stdout).table("end to end", [(name, str(value)) for name, value in figures.items()])
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
