"""A subscription that begins in the past: how fast the log is matched for it, and how others are affected.

    python benchmarks/past.py --json

A service has a log of the demo's departures, several years of them in records of 500, and no new events.
A subscription is created with ``start=earliest``, and its messages are pulled at once. Prints one JSON
object:

past_events_per_s
    Events of the log per second, from the request that creates the subscription until all are matched.
    Goal on two cores: 300,000.
delivered_events_per_s
    The same, until the last of its messages was pulled and acked.
first_message_s
    Time from the request to the first message.
events, messages, years, expected
    The parameters; `messages` must be equal to `expected`, which Arrow has counted.

With ``--live`` also the latency of 200 single new events per second, from the publish call to the delivery,
while nothing else happens, and while such replays run one after another: alone_p50_ms, alone_p99_ms,
beside_p50_ms, beside_p99_ms, and beside_pasts, the number of replays.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fieldfare.cli.demo.flights import encode_departures, read_departures
from fieldfare.cli.demo.service import Service
from fieldfare.storage import open_event_log, open_match_log
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.folder import DataFolder
from fieldfare_lab.latency import measure_latencies_s

FILTER = "data.dest = 'BOS' AND data.dep_delay > 60"
RECORD_EVENTS = 500
RECORDS_BATCH_SIZE = 50
LOOK_S = 0.02
SUBSCRIPTIONS = "/v1/spaces/default/subscriptions"


def fill(folder: DataFolder, events: pa.LargeBinaryArray, years: int) -> None:
    """Fill a log with the events, a number of times; it is matched while there are no subscriptions."""
    folder.make()
    log = open_event_log(folder.log_url)
    for _ in range(years):
        records = []
        for start in range(0, len(events), RECORD_EVENTS):
            lines = events[start : start + RECORD_EVENTS].to_pylist()
            records.append(NewRecord("default", b"\n".join(lines) + b"\n", len(lines), appended_ms=1))
        for start in range(0, len(records), RECORDS_BATCH_SIZE):
            log.append(records[start : start + RECORDS_BATCH_SIZE])
    open_match_log(folder.matches_url).partition(0).fill(0, log.partitions[0].end())
    log.close()


def is_matched(http: httpx.Client, id: str) -> bool:
    replay: dict[str, Any] = http.get(f"{SUBSCRIPTIONS}/{id}").raise_for_status().json()["past"]
    return bool(replay["is_matched"])


def replay(url: str, expected: int) -> dict[str, float]:
    """Create a subscription that begins in the past, and read all messages; seconds since the request."""
    done: dict[str, float] = {}
    with httpx.Client(base_url=url, timeout=60) as http, httpx.Client(base_url=url, timeout=60) as other:
        begun_s = time.monotonic()

        def watch() -> None:
            while not is_matched(other, "past"):
                time.sleep(LOOK_S)
            done["matched_s"] = time.monotonic() - begun_s

        http.put(f"{SUBSCRIPTIONS}/past", json={"filter": FILTER, "start": "earliest"}).raise_for_status()
        watcher = threading.Thread(target=watch)
        watcher.start()
        messages = 0
        while messages < expected:
            pull = {"max": 1000, "wait_s": 30}
            some = http.post(f"{SUBSCRIPTIONS}/past/pull", json=pull).raise_for_status().json()["messages"]
            if not some:
                break
            done.setdefault("first_s", time.monotonic() - begun_s)
            messages += len(some)
            positions = {"positions": [each["position"] for each in some]}
            http.post(f"{SUBSCRIPTIONS}/past/ack", json=positions).raise_for_status()
        done["delivered_s"] = time.monotonic() - begun_s
        watcher.join()
        http.delete(f"{SUBSCRIPTIONS}/past").raise_for_status()
    return done | {"messages": messages}


def latencies_beside(url: str, events: pa.ChunkedArray) -> dict[str, float]:
    """Latency of new events, alone and while replays run one after another."""
    figures: dict[str, float] = {}

    def measure(name: str) -> None:
        p50_ms, p99_ms = np.quantile(measure_latencies_s(url, events) * 1000, (0.5, 0.99))
        figures.update({f"{name}_p50_ms": round(float(p50_ms), 1), f"{name}_p99_ms": round(float(p99_ms), 1)})

    measure("alone")
    stop, replays = threading.Event(), 0

    def keep_matching() -> None:
        nonlocal replays
        with httpx.Client(base_url=url, timeout=60) as http:
            while not stop.is_set():
                body = {"filter": FILTER, "start": "earliest"}
                http.put(f"{SUBSCRIPTIONS}/beside", json=body).raise_for_status()
                while not stop.wait(LOOK_S) and not is_matched(http, "beside"):
                    pass
                http.delete(f"{SUBSCRIPTIONS}/beside").raise_for_status()
                replays += 1

    beside = threading.Thread(target=keep_matching)
    beside.start()
    try:
        measure("beside")
    finally:
        stop.set()
        beside.join()
    return figures | {"beside_pasts": replays}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument(
        "--years", type=int, default=4, help="years of 336,776 departures each (default: %(default)s)"
    )
    parser.add_argument(
        "--live", action="store_true", help="also measure the latency of new events during replays"
    )
    options = parser.parse_args()
    departures = read_departures()
    chosen = pc.and_(pc.equal(departures["dest"], "BOS"), pc.greater(departures["dep_delay"], 60))
    expected = int(pc.sum(chosen).as_py()) * options.years
    events = encode_departures(departures)
    with tempfile.TemporaryDirectory(prefix="fieldfare-past-") as data:
        fill(DataFolder(Path(data)), events, options.years)
        with Service(Path(data)) as service:
            service.wait_until_ready()
            found = replay(service.url, expected)
            live = latencies_beside(service.url, pa.chunked_array([events])) if options.live else {}
    count = len(departures) * options.years
    figures = {
        "past_events_per_s": round(count / found["matched_s"]),
        "delivered_events_per_s": round(count / found["delivered_s"]),
        "first_message_s": round(found["first_s"], 2),
        "events": count,
        "years": options.years,
        "messages": found["messages"],
        "expected": expected,
        **live,
    }
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:24} {value}")
    return 0 if found["messages"] == expected else 1


if __name__ == "__main__":
    sys.exit(main())
