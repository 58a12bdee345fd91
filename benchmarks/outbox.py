"""Cost of a publisher's outbox: events per second with and without one, with the real client and gateway.

    python benchmarks/outbox.py

Publishers with and without an outbox alternate; the figures are medians. ``publish`` passes events one
by one and ends when all are durable in the service's log.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from publisher import gateway
from senders import EVENT

from fieldfare import Client
from fieldfare.client import Publisher


def measure(publisher: Publisher, events: int) -> dict[str, float]:
    """Events per second of each verb."""
    publisher.publish_many([EVENT] * 200)  # Warm up the connection and the code.
    figures = {}
    started_s = time.perf_counter()
    for _ in range(events):
        publisher.publish(EVENT)
    publisher.flush()
    figures["publish"] = events / (time.perf_counter() - started_s)
    started_s = time.perf_counter()
    publisher.publish_many([EVENT] * events)
    figures["publish_many"] = events / (time.perf_counter() - started_s)
    if publisher.outbox is not None:
        started_s = time.perf_counter()
        publisher.store([EVENT] * events)
        figures["store, until it returns"] = events / (time.perf_counter() - started_s)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    runs: dict[str, list[float]] = defaultdict(list)
    with gateway() as port, tempfile.TemporaryDirectory() as folder:
        for turn in range(options.turns):
            for name, outbox in (("without", None), ("with", Path(folder) / f"outbox-{turn}")):
                with (
                    Client(f"http://127.0.0.1:{port}") as client,
                    client.publisher(outbox=outbox) as publisher,
                ):
                    for verb, events_per_s in measure(publisher, options.events).items():
                        runs[f"{verb}, {name} outbox"].append(events_per_s)
    print(json.dumps({name: round(median(figures)) for name, figures in runs.items()}, indent=2))


if __name__ == "__main__":
    main()
