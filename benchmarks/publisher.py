"""A self-tuning publisher compared with fixed settings, a plain loop and Kafka's producer.

    python benchmarks/publisher.py --json [--round-trips 0 20 140] [--kafka]

For each round-trip time (simulated by a small proxy on loopback) and each way to publish:

throughput
    Events passed one by one as fast as the program can: durable events per second.
latency
    Events of a Poisson process with a given rate: mean time from the moment when an event is due until it is
    durable, in ms.

The fixed settings are a full sweep: batch size, linger, and requests in flight (`SIZES`, `LINGERS_MS`,
`IN_FLIGHT`). All ways are measured once, for ``--sweep-seconds``. Then auto, the other tuners and the
``--finalists`` best fixed settings alternate, ``--turns`` times. ``best fixed`` is the finalist with the
best median. A ratio is relative to it, turn by turn; above 1 is worse than the best fixed setting. Shown
are the median over the turns, its quartiles, and the ratio of the medians. The best of several noisy figures
is somewhat too good, which is to the disadvantage of auto.
``worst_ratio_to_best_fixed`` is the median over the turns of the worst row.

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
from statistics import mean, median, quantiles
from typing import Any

from senders import EVENT, FieldfareSender, KafkaSender, PlainLoopSender, Sender

from fieldfare import BatchSettings
from fieldfare.client import AutoBatching, AutotunedBatching, BatchPolicy, WindowedBatching
from fieldfare_lab.delayed_link import delayed
from fieldfare_lab.kafka_broker import KafkaBroker, why_no_broker
from fieldfare_lab.ports import find_free_port

SIZES = (1, 10, 100, 1000, 10_000)
LINGERS_MS = (0.0, 5.0, 50.0)
IN_FLIGHT = (1, 2, 5, 10)
REQUEST_BYTES_MAX = 4 << 20
"""As auto: 10,000 of these events are 3 MB."""


def make_sweep() -> dict[str, BatchSettings]:
    """Every fixed setting; a batch of one event has no linger."""
    return {
        f"{size} events, {linger_ms:g} ms, {most} in flight": BatchSettings(
            size, REQUEST_BYTES_MAX, linger_ms, most
        )
        for size in SIZES
        for linger_ms in (LINGERS_MS if size > 1 else LINGERS_MS[:1])
        for most in IN_FLIGHT
    }


FIXED = make_sweep()
OVERLAPPED: dict[str, Callable[[int], BatchPolicy]] = {
    "auto": lambda most: AutoBatching(max_in_flight=most),
    "100 events": lambda most: BatchSettings(max_events=100, linger_ms=0, max_in_flight=most),
}
AUTO, LOOP, LOOP_100, KAFKA = "auto", "plain loop", "plain loop, 100 events", "confluent-kafka"
PAPER, WINDOWED = "paper's tuner", "windowed"
TUNERS = (AUTO, PAPER, WINDOWED)
THROUGHPUT = "throughput"
WAITING_MAX = 20_000
LAG_MAX_EVENTS = 10**12
"""Bound of the gateway on events that are not matched. Here nothing matches them, and with the default, five
million, a run of some minutes would end in turns whose requests are all refused."""
COLUMNS = (
    *("round trip", "measure", AUTO, "best fixed", "worst fixed", "ratio of auto", "of medians"),
    *(PAPER, WINDOWED, LOOP, LOOP_100, KAFKA),
)

Ways = dict[str, Callable[[], Sender]]


@contextmanager
def gateway() -> Iterator[int]:
    """Start a gateway on an empty data directory; return its port."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "fieldfare.gateway", "--data", data, "--port", "0"]
        settings = {name: value for name, value in os.environ.items() if not name.startswith("FIELDFARE_")}
        settings["FIELDFARE_LAG_MAX_EVENTS"] = str(LAG_MAX_EVENTS)
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
    acknowledged = sender.acknowledged() - before
    if not acknowledged:
        print(f"no event was acknowledged within {seconds:g} s: {sender.trouble()}", file=sys.stderr)
    return acknowledged / (time.perf_counter() - since_s)


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


def compare(
    ways: Ways, what: str, round_trip_ms: float, spans_s: tuple[float, float], finalists: int, turns: int
) -> dict[str, Any]:
    """One row: every way once, then the tuners and the best fixed settings alternately."""
    figures = {name: measure(make, what, round_trip_ms, spans_s[0]) for name, make in ways.items()}
    more_is_better = what == THROUGHPUT
    ranked = sorted(FIXED, key=lambda name: figures[name], reverse=more_is_better)
    names = (*TUNERS, *ranked[:finalists])
    runs: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns):
        # Each turn begins with another one: what comes first must not always be the same.
        for at in range(len(names)):
            name = names[(at + turn) % len(names)]
            runs[name].append(measure(ways[name], what, round_trip_ms, spans_s[1]))
    medians = {name: median(found) for name, found in runs.items()}
    best = (max if more_is_better else min)(ranked[:finalists], key=lambda name: medians[name])

    def ratio(fixed: float, tuner: float) -> float:
        if more_is_better:
            return fixed / max(tuner, 1.0)  # A turn in which nothing was acknowledged counts as one event/s.
        return tuner / fixed

    ratios = [ratio(one, auto) for one, auto in zip(runs[best], runs[AUTO], strict=True)]
    return {
        "round_trip_ms": round_trip_ms,
        "measure": "throughput_per_s" if more_is_better else f"latency_ms_at_{what}_per_s",
        "all": {name: round(value, 2) for name, value in figures.items()},
        "turns": {name: [round(value, 2) for value in found] for name, found in runs.items()},
        **{name: round(medians[name], 2) for name in TUNERS},
        "best_fixed": best,
        "best_fixed_figure": round(medians[best], 2),
        "worst_fixed": ranked[-1],
        "worst_fixed_figure": round(figures[ranked[-1]], 2),
        "ratios": [round(value, 3) for value in ratios],
        "ratio_to_best_fixed": round(median(ratios), 3),
        "ratio_of_medians": round(ratio(medians[best], medians[AUTO]), 3),
    }


def compare_in_flight(
    url: str, name: str, numbers: list[int], what: str, round_trip_ms: float, seconds: float, turns: int
) -> dict[str, Any]:
    """One row: one request at a time, and several, alternately."""
    runs: dict[int, list[float]] = {number: [] for number in (1, *numbers)}
    for turn in range(turns):
        for number in sorted(runs, reverse=bool(turn % 2)):
            make = partial(FieldfareSender, url, partial(OVERLAPPED[name], number))
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

    def make_sender(batch: BatchPolicy) -> Sender:
        return FieldfareSender(url, lambda: batch)

    ways: Ways = {name: partial(make_sender, batch) for name, batch in FIXED.items()}
    ways[AUTO] = partial(FieldfareSender, url, AutoBatching)
    ways[PAPER] = partial(FieldfareSender, url, AutotunedBatching)
    ways[WINDOWED] = partial(FieldfareSender, url, WindowedBatching)
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
        low, middle, high = quantiles(row["ratios"], n=4) if len(row["ratios"]) > 1 else row["ratios"] * 3
        cells = [
            f"{row['round_trip_ms']:g} ms",
            row["measure"],
            figure(row[AUTO]),
            f"{figure(row['best_fixed_figure'])} ({row['best_fixed']})",
            f"{figure(row['worst_fixed_figure'])} ({row['worst_fixed']})",
            f"{middle:.2f} ({low:.2f} to {high:.2f})",
            f"{row['ratio_of_medians']:.2f}",
            *(figure(row[name]) for name in (PAPER, WINDOWED)),
            *(figure(row["all"].get(name)) for name in (LOOP, LOOP_100, KAFKA)),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds per measurement in turn")
    parser.add_argument("--sweep-seconds", type=float, default=1.0, help="seconds per setting of the sweep")
    parser.add_argument("--turns", type=int, default=7, help="measurements of auto and the best settings")
    parser.add_argument("--finalists", type=int, default=4, help="fixed settings that are measured in turn")
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
                    compare(
                        ways,
                        what,
                        round_trip_ms,
                        (options.sweep_seconds, options.seconds),
                        options.finalists,
                        options.turns,
                    )
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
            "worst_ratio_to_best_fixed": max(row["ratio_to_best_fixed"] for row in rows),
        }
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
