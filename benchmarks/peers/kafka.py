"""Kafka without filters under the loads of ``benchmarks/end_to_end.py``, in turns with it.

    python benchmarks/peers/kafka.py --json [--turns 2] [--alone]

A broker with one node on loopback, one topic with one partition, and one reader in a process of its own,
which gets every event: Kafka has no filters, so readers filter for themselves. The producer is idempotent,
with acks=all. The broker acknowledges before it has synced; fieldfare syncs first. In each turn Kafka runs
first, then end_to_end.py in a process of its own (``--alone``: only Kafka). Prints one JSON object with the
medians of both systems, and their ratio, fieldfare's figure divided by Kafka's:

throughput_events_per_s
    A year of departures, as fast as the producer can, from the first publish call to the last arrival at the
    reader; fieldfare: from the first publish call to the last match of 100,000 filters.
latency_p50_ms, latency_p99_ms, latency_2000_p50_ms, latency_2000_p99_ms
    200 and 2,000 single events per second for 20 seconds, from the producer's call to the reader.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.cli.demo.flights import encode_departures, read_departures
from fieldfare_lab.kafka_broker import KafkaBroker, why_no_broker
from fieldfare_lab.latency import MEASURED_S, WARM_S
from fieldfare_lab.reporting import reporting_process

RATES = ((200, "latency"), (2000, "latency_2000"))
ARRIVAL_S = 60.0
END_TO_END = Path(__file__).resolve().parent.parent / "end_to_end.py"


def read_topic(address: str, topic: str, count: int, pipe: Connection) -> None:
    """Read events from a topic's start on, and send when each arrived, in seconds of the monotonic clock."""
    from confluent_kafka import Consumer, TopicPartition  # Not a dependency: `why_no_broker` has checked it.

    consumer = Consumer({"bootstrap.servers": address, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    pipe.send("ready")
    arrived_s: list[float] = []
    until_s = time.monotonic() + ARRIVAL_S
    while len(arrived_s) < count and time.monotonic() < until_s:
        messages = consumer.consume(1_000, 0.001)
        if messages:
            until_s = time.monotonic() + ARRIVAL_S
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            arrived_s.append(time.monotonic())
    consumer.close()
    pipe.send(np.array(arrived_s))


def published(address: str, topic: str, events: Sequence[bytes], every_s: float) -> NDArray[np.float64]:
    """Publish events at a steady pace, or without pauses; return when each was given to the producer."""
    from confluent_kafka import Producer

    linger_ms = 0 if every_s else 5  # Kafka's defaults before and since version 4
    settings = {
        "bootstrap.servers": address,
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": linger_ms,
    }
    producer = Producer(settings, logger=None)
    sent_s = []
    began_s = time.monotonic()
    for number, event in enumerate(events):
        while (wait_s := began_s + number * every_s - time.monotonic()) > 0:
            producer.poll(wait_s)
        sent_s.append(time.monotonic())
        while True:
            try:
                producer.produce(topic, event)
                break
            except BufferError:  # The producer's queue is full.
                producer.poll(0.01)
    if producer.flush(ARRIVAL_S):
        raise RuntimeError("the broker did not take all events")
    return np.array(sent_s)


def run_once(
    broker: KafkaBroker, events: Sequence[bytes], every_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return when each event was published, and when it arrived."""
    topic = uuid.uuid4().hex
    published(broker.address, topic, events[:1], 0.0)  # It creates the topic.
    with reporting_process(read_topic, broker.address, topic, len(events) + 1) as arrivals:
        sent_s = published(broker.address, topic, events, every_s)
        arrived_s: NDArray[np.float64] = arrivals.recv()
    if len(arrived_s) != len(events) + 1:
        raise RuntimeError(f"{len(events) + 1} events were published, {len(arrived_s)} have arrived")
    return sent_s, arrived_s[1:]


def measured(events: Sequence[bytes]) -> dict[str, float]:
    """Return Kafka's figures."""
    with KafkaBroker() as broker:
        sent_s, arrived_s = run_once(broker, events, 0.0)
        figures = {"throughput_events_per_s": len(events) / (arrived_s[-1] - sent_s[0])}
        for rate, name in RATES:
            chosen = [events[i % len(events)] for i in range((WARM_S + MEASURED_S) * rate)]
            sent_s, arrived_s = run_once(broker, chosen, 1 / rate)
            p50_s, p99_s = np.quantile((arrived_s - sent_s)[WARM_S * rate :], (0.5, 0.99))
            figures |= {f"{name}_p50_ms": 1000 * p50_s, f"{name}_p99_ms": 1000 * p99_s}
    return figures


def end_to_end(limit: int | None) -> dict[str, Any]:
    """Return the figures of fieldfare."""
    more = [] if limit is None else ["--events", str(limit)]
    command = [sys.executable, str(END_TO_END), "--json", *more]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else on stdout"
    )
    parser.add_argument("--turns", type=int, default=2, help="runs of each system (default: %(default)s)")
    parser.add_argument("--events", type=int, help="number of departures (default: all 336,776)")
    parser.add_argument("--alone", action="store_true", help="without fieldfare")
    options = parser.parse_args()
    if (reason := why_no_broker()) is not None:
        print(f"there can be no Kafka broker here: {reason}", file=sys.stderr)
        return 1
    events: list[bytes] = encode_departures(read_departures(limit=options.events)).to_pylist()
    systems: dict[str, list[dict[str, Any]]] = {"kafka": [], "fieldfare": []}
    for _ in range(options.turns):
        systems["kafka"].append(measured(events))
        if not options.alone:
            systems["fieldfare"].append(end_to_end(options.events))
        print(json.dumps({name: runs[-1] for name, runs in systems.items() if runs}), file=sys.stderr)
    medians = {
        system: {name: round(statistics.median(run[name] for run in runs), 1) for name in systems["kafka"][0]}
        for system, runs in systems.items()
        if runs
    }
    figures: dict[str, Any] = {"turns": options.turns, **medians}
    if not options.alone:
        both = medians["fieldfare"], medians["kafka"]
        figures["ratio"] = {name: round(both[0][name] / both[1][name], 3) for name in both[1]}
    print(json.dumps(figures) if options.json else json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
