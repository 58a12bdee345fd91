"""A self-tuning publisher compared with fixed settings, a plain loop and Kafka's producer.

    python benchmarks/publisher.py --json [--round-trips 0 20 140] [--kafka]

For each round-trip time (simulated by a small proxy on loopback) and each way to publish:

throughput
    Events passed one by one as fast as the program can: durable events per second.
latency
    Events of a Poisson process with a given rate: mean time from the moment when an event is due until it is
    durable, in ms.

All ways are measured once. Then auto and the two best fixed settings alternate. The ratio of a
row is the median over the turns, relative to the better of the two; above 1 is worse than the best fixed
setting. ``worst_ratio_to_best_static`` is that of the worst row. The spread of ``ratios`` shows the machine's
noise.

With ``--in-flight 2 3 5`` there is instead a row for each round-trip time, each measure and each of
`OVERLAPPED`: one request at a time alternates with each of these numbers of concurrent requests;
``ratios`` are relative to one at a time, above 1 is better.

With ``--kafka`` Kafka's producer is measured, too, if a broker can be started (`fieldfare_lab.kafka_broker`);
it runs with its own defaults. Its broker acknowledges before it has synced its log
to the disk, the gateway afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import mean, median
from typing import Any

from senders import EVENT, FieldfareSender, KafkaSender, PlainLoopSender, Sender

from fieldfare import BatchSettings
from fieldfare.client import AutoBatching, BatchPolicy
from fieldfare_lab.delayed_link import delayed
from fieldfare_lab.kafka_broker import KafkaBroker, find_free_port, why_no_broker

STATIC = {
    "1 event": BatchSettings(max_events=1, linger_ms=0),
    "10 events": BatchSettings(max_events=10, linger_ms=0),
    "100 events": BatchSettings(max_events=100, linger_ms=0),
    "1000 events": BatchSettings(max_events=1000, linger_ms=0),
    "10000 events": BatchSettings(max_events=10_000, linger_ms=0),
    "10000 events, 4 MiB": BatchSettings(max_events=10_000, max_bytes=4 << 20, linger_ms=0),
    "100 events, 5 ms": BatchSettings(max_events=100, linger_ms=5),
    "1000 events, 5 ms": BatchSettings(max_events=1000, linger_ms=5),
    "10000 events, 50 ms": BatchSettings(max_events=10_000, linger_ms=50),
}
OVERLAPPED: dict[str, Callable[[int], BatchPolicy]] = {
    "auto": lambda most: AutoBatching(max_in_flight=most),
    "100 events": lambda most: BatchSettings(max_events=100, linger_ms=0, max_in_flight=most),
}
AUTO, LOOP, LOOP_100, KAFKA = "auto", "plain loop", "plain loop, 100 events", "confluent-kafka"
THROUGHPUT = "throughput"
WAITING_MAX = 20_000
COLUMNS = ("round trip", "measure", AUTO, "best fixed", "worst fixed", "ratio", LOOP, LOOP_100, KAFKA)

Ways = dict[str, Callable[[], Sender]]


@contextmanager
def gateway() -> Iterator[int]:
    """Start a gateway on an empty data directory; return its port."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "fieldfare.gateway", "--data", data, "--port", "0"]
        settings = {name: value for name, value in os.environ.items() if not name.startswith("FIELDFARE_")}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=settings
        )
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split("ready on ")[1].split()[0]
            yield int(url.rsplit(":", 1)[1])
        finally:
            process.terminate()
            process.communicate(timeout=30)


def measure_throughput(sender: Sender, warm_s: float, seconds: float) -> float:
    """Durable events per second while events are passed as fast as possible."""
    start_s = time.perf_counter() + warm_s
    end_s = start_s + seconds
    before, since_s = 0, 0.0
    while (now_s := time.perf_counter()) < end_s:
        if not since_s and now_s >= start_s:
            before, since_s = sender.acknowledged(), now_s
        for _ in range(100):
            sender.send()
        if sender.waiting() > WAITING_MAX:
            time.sleep(0.002)
    return (sender.acknowledged() - before) / (time.perf_counter() - since_s)


def measure_latency_ms(sender: Sender, rate_per_s: float, warm_s: float, seconds: float) -> float:
    """Mean age at which events of a Poisson process become durable; others count with their age so far."""
    chance = random.Random(1)
    ages_s: dict[int, float] = {}
    dues_s: list[float] = []

    def finish(number: int) -> None:
        ages_s[number] = time.perf_counter() - dues_s[number]

    due_s = time.perf_counter()
    start_s = due_s + warm_s
    while (due_s := due_s + chance.expovariate(rate_per_s)) < start_s + seconds:
        time.sleep(max(0.0, due_s - time.perf_counter()))
        # Counted from the time it was due: a program that is delayed must not look fast.
        dues_s.append(due_s)
        sender.send(partial(finish, len(dues_s) - 1))
    sender.flush(min(seconds, 2.0))
    now_s = time.perf_counter()
    return 1000 * mean(ages_s.get(n, now_s - due) for n, due in enumerate(dues_s) if due >= start_s)


def measure(make: Callable[[], Sender], what: str, round_trip_ms: float, seconds: float) -> float:
    """One figure of one way to publish."""
    sender = make()
    warm_s = 0.5 + 5 * round_trip_ms / 1000
    try:
        if what == THROUGHPUT:
            return measure_throughput(sender, warm_s, seconds)
        return measure_latency_ms(sender, float(what), warm_s, seconds)
    finally:
        sender.close()


def compare(ways: Ways, what: str, round_trip_ms: float, seconds: float, turns: int) -> dict[str, Any]:
    """One row: every way once, then auto and the two best fixed settings alternately."""
    figures = {name: measure(make, what, round_trip_ms, seconds) for name, make in ways.items()}
    more_is_better = what == THROUGHPUT
    ranked = sorted(STATIC, key=lambda name: figures[name], reverse=more_is_better)
    runs: dict[str, list[float]] = {name: [] for name in (AUTO, *ranked[:2])}
    for turn in range(turns):
        order = sorted(runs, reverse=bool(turn % 2))
        for name in order:
            runs[name].append(measure(ways[name], what, round_trip_ms, seconds))
    ratios = {
        name: [
            one / auto if more_is_better else auto / one
            for one, auto in zip(runs[name], runs[AUTO], strict=True)
        ]
        for name in ranked[:2]
    }
    best = max(ratios, key=lambda name: median(ratios[name]))
    return {
        "round_trip_ms": round_trip_ms,
        "measure": "throughput_per_s" if more_is_better else f"latency_ms_at_{what}_per_s",
        "all": {name: round(value, 2) for name, value in figures.items()},
        "auto": round(median(runs[AUTO]), 2),
        "best_static": best,
        "best_static_figure": round(median(runs[best]), 2),
        "worst_static": ranked[-1],
        "worst_static_figure": round(figures[ranked[-1]], 2),
        "ratios": [round(ratio, 3) for ratio in ratios[best]],
        "ratio_to_best_static": round(median(ratios[best]), 3),
    }


def compare_in_flight(
    url: str, name: str, numbers: list[int], what: str, round_trip_ms: float, seconds: float, turns: int
) -> dict[str, Any]:
    """One row: one request at a time, and several, alternately."""
    runs: dict[int, list[float]] = {number: [] for number in (1, *numbers)}
    for turn in range(turns):
        for number in sorted(runs, reverse=bool(turn % 2)):
            make = partial(FieldfareSender, url, OVERLAPPED[name](number))
            runs[number].append(measure(make, what, round_trip_ms, seconds))
    is_more_better = what == THROUGHPUT
    ratios = {
        number: [
            new / old if is_more_better else old / new for new, old in zip(runs[number], runs[1], strict=True)
        ]
        for number in numbers
    }
    return {
        "round_trip_ms": round_trip_ms,
        "measure": "throughput_per_s" if is_more_better else f"latency_ms_at_{what}_per_s",
        "batch": name,
        "figures": {number: round(median(found), 2) for number, found in runs.items()},
        "ratios": {
            number: [round(value, 2) for value in (median(found), min(found), max(found))]
            for number, found in ratios.items()
        },
    }


def make_ways(url: str, kafka: str | None) -> Ways:
    """Every way to publish, by name."""
    ways: Ways = {name: partial(FieldfareSender, url, batch) for name, batch in STATIC.items()}
    ways[AUTO] = partial(FieldfareSender, url, None)
    ways[LOOP] = partial(PlainLoopSender, url, 1)
    ways[LOOP_100] = partial(PlainLoopSender, url, 100)
    if kafka is not None:
        ways[KAFKA] = partial(KafkaSender, kafka, "bench")
    return ways


def show(rows: list[dict[str, Any]]) -> str:
    """The rows as a table in Markdown."""

    def figure(value: float | None) -> str:
        if value is None:
            return "not measured"
        return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"

    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        spread = f"{min(row['ratios']):.2f} to {max(row['ratios']):.2f}"
        cells = [
            f"{row['round_trip_ms']:g} ms",
            row["measure"],
            figure(row["auto"]),
            f"{figure(row['best_static_figure'])} ({row['best_static']})",
            f"{figure(row['worst_static_figure'])} ({row['worst_static']})",
            f"{row['ratio_to_best_static']:.2f} ({spread})",
            *(figure(row["all"].get(name)) for name in (LOOP, LOOP_100, KAFKA)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per measurement")
    parser.add_argument("--turns", type=int, default=5, help="measurements of auto and the best settings")
    parser.add_argument("--round-trips", type=float, nargs="+", default=[0, 20, 140], metavar="MS")
    parser.add_argument(
        "--measures",
        nargs="+",
        default=[THROUGHPUT, "50", "2000"],
        help="measures: throughput, or an event rate per second",
    )
    parser.add_argument(
        "--in-flight", type=int, nargs="+", metavar="N", help="numbers of concurrent requests"
    )
    parser.add_argument("--kafka", action="store_true", help="also measure Kafka's producer")
    options = parser.parse_args()
    without_kafka = why_no_broker() if options.kafka else "--kafka is not given"
    if without_kafka:
        print(f"Kafka's producer is skipped: {without_kafka}", flush=True)
    rows: list[dict[str, Any]] = []
    with gateway() as port:
        for round_trip_ms in options.round_trips:
            with ExitStack() as stack:
                url = f"http://127.0.0.1:{stack.enter_context(delayed(port, round_trip_ms))}"
                if options.in_flight:
                    for what in options.measures:
                        for name in OVERLAPPED:
                            row = compare_in_flight(
                                url,
                                name,
                                options.in_flight,
                                what,
                                round_trip_ms,
                                options.seconds,
                                options.turns,
                            )
                            print(json.dumps(row), flush=True)
                    continue
                kafka = None
                if not without_kafka:
                    broker_port = find_free_port()
                    advertised_port = stack.enter_context(delayed(broker_port, round_trip_ms))
                    stack.enter_context(KafkaBroker(broker_port, advertised_port))
                    kafka = f"127.0.0.1:{advertised_port}"
                ways = make_ways(url, kafka)
                rows += [
                    compare(ways, what, round_trip_ms, options.seconds, options.turns)
                    for what in options.measures
                ]
    if options.in_flight:
        return
    print(show(rows))
    if options.json:
        figures = {
            "rows": rows,
            "event_bytes": len(json.dumps(EVENT)),
            "kafka_skipped": without_kafka,
            "worst_ratio_to_best_static": max(row["ratio_to_best_static"] for row in rows),
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
