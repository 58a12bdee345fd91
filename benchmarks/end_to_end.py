"""The whole service, end to end: throughput as in the demo, then latency under a light load.

    python benchmarks/end_to_end.py --json

prints one JSON object:

throughput_events_per_s
    One year of departures is published over HTTP as fast as the service accepts it, with 100,000 standing
    filters: events per second from the first publish call to the last match. Service, Spark, publisher and
    40 connected subscribers share the machine. Goal on two cores: 50,000.
cpu_us_per_event
    Processor time that the year took, in microseconds an event, by what the processes do: from the connection
    of the subscribers to the last delivery. Java, driver and workers are Spark's.
latency_p50_ms, latency_p99_ms
    Afterwards, 200 single events per second through the client for 20 seconds, with one subscriber: from the
    publish call to the delivery at the client. Goals: 10 and 40.
latency_2000_p50_ms, latency_2000_p99_ms
    The same with 2,000 events per second. Goals: 20 and 80.
idle_cpu_percent, idle_memory_bytes
    Before that, with ten subscribers connected and nothing published: processor time of the service over 30
    seconds, in percent of one core, and its memory at their end. Goals: 2 and 1 GB.
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
import time
from typing import Any

import numpy as np

from fieldfare.cli.demo.display import make_display
from fieldfare.cli.demo.followers import Followers
from fieldfare.cli.demo.scenario import Demo, DemoSettings
from fieldfare.cli.demo.service import ServicePlaces
from fieldfare_lab.latency import measure_latencies_s
from fieldfare_lab.processes import of_the_service, processor_s, resident_bytes

IDLE_SUBSCRIBERS = 10
SETTLED_S, IDLE_S = 10.0, 30.0


def replayed(demo: Demo) -> dict[str, Any]:
    """Replay the events; return the throughput and where the processor time went."""
    before_s: dict[str, float] = {}
    done = demo.replay(lambda: before_s.update(processor_s()))
    spent_s = processor_s()
    events = len(done.positions)
    return {
        "throughput_events_per_s": round(done.events_per_s),
        "cpu_us_per_event": {
            role: round((used - before_s.get(role, 0.0)) / events * 1e6, 2) for role, used in spent_s.items()
        },
        "events": events,
        "matches": done.matches,
    }


def latencies(demo: Demo, events_per_s: int, name: str) -> dict[str, float]:
    """Return quantiles of the time from the publish call to the delivery, in milliseconds."""
    latencies_ms = measure_latencies_s(demo.service.url, demo.events, events_per_s) * 1000
    p50_ms, p99_ms = np.quantile(latencies_ms, (0.5, 0.99))
    return {f"{name}_p50_ms": round(float(p50_ms), 1), f"{name}_p99_ms": round(float(p99_ms), 1)}


def idle(demo: Demo) -> dict[str, float]:
    """Return what the service uses while nothing is published."""
    ids = [alert.id for alert in demo.followed[:IDLE_SUBSCRIBERS]]
    with Followers(demo.service.url, ids, demo.access):
        demo.service.wait_until_connected(len(ids))
        time.sleep(SETTLED_S)
        before_s, began_s = of_the_service(processor_s()), time.monotonic()
        time.sleep(IDLE_S)
        used_s, took_s = of_the_service(processor_s()) - before_s, time.monotonic() - began_s
        memory = of_the_service(resident_bytes())
    return {"idle_cpu_percent": round(100 * used_s / took_s, 2), "idle_memory_bytes": round(memory)}


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
        with display.step("nothing published"):
            figures = idle(demo)
        figures |= replayed(demo)
        differences, _ = demo.check()
        for events_per_s, name in ((200, "latency"), (2000, "latency_2000")):
            with display.step(f"{events_per_s} events per second, one by one"):
                figures |= latencies(demo, events_per_s, name)
    for difference in differences:
        display.say(str(difference))
    figures |= {
        "subscriptions": settings.alerts,
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
