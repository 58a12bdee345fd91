"""Encrypted filters from the log to the match log on Spark: E-StreamHub's workload (its section VI).

    python benchmarks/encrypted.py --json

There are four numbers of 1,000 steps. A subscription has a range on each, with 0.316 of the number's width,
so that 1 % match. The key, the vectors and the events are made by the client's code. Prints one JSON object:

filterings_per_s, notifications_per_s
    Pairs of an event and a subscription, and written matches, per second: Spark's tasks read the log, match
    and write blocks of the match log. Median of three runs of 20,000 events, after a warm-up run. Goals: 500
    and 5 million. (Paper: 42.2 and 0.42 million on 96 cores.)
p50_ms, p75_ms, p99_ms
    From the append until the block can be read, at half of that load or ``--events-per-s``, in
    records of 10 events, for 20 seconds, after 5 seconds in which the loop finds out that tasks have to share
    the log.
    Goal for p75: 150. (Paper: 247.)
wrong
    For a sample of events: missing and surplus matches, compared with the plain numbers. Goal: 0.
seal_filter_us, seal_event_us
    Time in which the client encrypts one filter, and one event, when it encrypts many.

With ``--matching-only`` it matches in this process, without Spark, and prints ``filterings_per_cpu_s``: pairs
per second of processor time, the best of eight rounds of 1,000 events. ``--scheme 1`` uses vectors of older
keys.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from fieldfare.cli.demo.display import make_display
from fieldfare.client.encryption import NumberAttribute, SpaceKey
from fieldfare.client.encryption.space_key import SCHEME, SEED_BYTES, Epoch
from fieldfare.client.records import NewSubscription
from fieldfare.filters.encrypted import compile_encrypted
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.partitioning import ONE_SLICE
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.match_loop import MatchLoop
from fieldfare.runtimes.spark.range_jobs import RangeJobs
from fieldfare.runtimes.spark.session import SparkSettings, service_session
from fieldfare.storage import open_event_log, open_index_store, open_match_log
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.folder import DataFolder
from fieldfare_lab.spark.batches import LogBatches
from fieldfare_lab.spark.fixed_index import write_space

NUMBERS, STEPS = 4, 1000
WIDTH = round(STEPS * 0.01 ** (1 / NUMBERS))
RUNS, RUN_EVENTS, RECORD_EVENTS = 3, 20_000, 100
PACED_RECORD_EVENTS, WARM_S, PACED_S = 10, 5.0, 20.0
SAMPLE = 1_000

Places = NDArray[np.int64]


class Workload:
    """A key, subscriptions and events, generated from a seed."""

    def __init__(self, subscriptions: int, seed: int, scheme: int = SCHEME) -> None:
        numbers = [NumberAttribute.of(f"data.a{n}", 0, STEPS, 1) for n in range(NUMBERS)]
        epoch = Epoch(1, bytes(SEED_BYTES), (STEPS,) * NUMBERS, scheme)
        self.key = SpaceKey.of(numbers, [], [epoch])
        self._random = np.random.default_rng(seed)
        self.lows: Places = self._random.integers(0, STEPS - WIDTH + 1, (subscriptions, NUMBERS))
        self.seal_filter_us = self.seal_event_us = 0.0

    def entries(self) -> list[IndexEntry]:
        filters = (
            NewSubscription(
                " AND ".join(f"data.a{n} BETWEEN {low} AND {low + WIDTH}" for n, low in enumerate(lows))
            )
            for lows in self.lows.tolist()
        )
        began_s = time.perf_counter()
        encrypted = [each.filter for each in self.key.seal_filters(filters)]
        self.seal_filter_us = (time.perf_counter() - began_s) / len(self.lows) * 1e6
        return [
            IndexEntry(number, number, 0, OPEN_END, compile_encrypted(text).compiled, text, "aspe")
            for number, text in enumerate(encrypted)
        ]

    def events(self, count: int) -> tuple[Places, list[bytes]]:
        places: Places = self._random.integers(0, STEPS + 1, (count, NUMBERS))
        lines = [
            json.dumps({"data": {f"a{n}": value for n, value in enumerate(each)}}).encode()
            for each in places.tolist()
        ]
        began_s = time.perf_counter()
        encrypted = self.key.seal_lines(lines)
        self.seal_event_us = (time.perf_counter() - began_s) / count * 1e6
        return places, encrypted

    def matched(self, place: Places) -> NDArray[np.int64]:
        """The subscriptions that an event matches."""
        inside = (self.lows <= place) & (place <= self.lows + WIDTH)
        return np.flatnonzero(inside.all(axis=1))


def matching(work: Workload) -> dict[str, Any]:
    """Match in this process, on one thread."""
    index = Index([build_part(work.entries())])
    places, lines = work.events(SAMPLE)
    text, stamps, best_s = b"\n".join(lines) + b"\n", np.full(len(lines), 1 << 40), float("inf")
    for _ in range(8):
        began_s = time.process_time()
        columns = decode_json_lines(memoryview(text), len(lines), list(index.paths))
        found = index.match(columns, stamps)
        best_s = min(best_s, time.process_time() - began_s)
    count = sum(
        len(np.setxor1d(numbers, work.matched(place)))
        for numbers, place in zip(found.lists(), places, strict=True)
    )
    return {"filterings_per_cpu_s": round(SAMPLE * len(work.lows) / best_s), "wrong": count}


def append(folder: DataFolder, lines: list[bytes], size: int) -> None:
    log = open_event_log(folder.log_url)
    for first in range(0, len(lines), size):
        some = lines[first : first + size]
        payload = b"\n".join(some) + b"\n"
        log.append([NewRecord("default", payload, len(some), appended_ms=time.time_ns() // 1_000_000)])
    log.close()


def throughput(session: SparkSession, folder: DataFolder, work: Workload) -> dict[str, Any]:
    """Repeated runs over the events in the log."""
    batches = LogBatches(session, folder, forwarding=None)
    drawn, filterings, notifications = [], [], []
    for run in range(RUNS + 1):
        places, lines = work.events(RUN_EVENTS)
        log = open_event_log(folder.log_url)
        start = log.partitions[0].end()
        log.close()
        append(folder, lines, RECORD_EVENTS)
        report = batches.match(start, start + RUN_EVENTS // RECORD_EVENTS)
        drawn.append((start, places))
        if run:
            filterings.append(RUN_EVENTS * len(work.lows) / report.seconds)
            notifications.append(report.matches / report.seconds)
    return {
        "filterings_per_s": round(median(filterings)),
        "notifications_per_s": round(median(notifications)),
        "wrong": wrong(folder, work, *drawn[-1]),
    }


def wrong(folder: DataFolder, work: Workload, start: int, places: Places) -> int:
    """Matches of a sample that differ from those of the plain numbers."""
    matches = open_match_log(folder.matches_url).partition(0)
    count, block = 0, None
    for event in range(0, RUN_EVENTS, RUN_EVENTS // SAMPLE):
        if block is None or start + event // RECORD_EVENTS >= block.end:
            block = matches.block_at(start + event // RECORD_EVENTS)
            assert block is not None
            indptr, numbers = block.by_event()
        before = int(block.counts[: start + event // RECORD_EVENTS - block.start].sum())
        at = before + event % RECORD_EVENTS
        found = numbers[indptr[at] : indptr[at + 1]]
        count += len(np.setxor1d(found, work.matched(places[event])))
    return count


def delays(
    session: SparkSession, folder: DataFolder, work: Workload, events_per_s: float
) -> dict[str, float]:
    """The driver's loop at a steady pace."""
    settings = MicroBatchSettings(tasks=2)
    loop = MatchLoop(
        session.sparkContext, folder, settings, RangeJobs(session.sparkContext, folder, settings)
    )
    _, lines = work.events(int(events_per_s * (WARM_S + PACED_S)))
    log = open_event_log(folder.log_url)
    matches = open_match_log(folder.matches_url).partition(0)
    append(folder, lines[:RECORD_EVENTS], RECORD_EVENTS)
    first = log.partitions[0].end()
    while matches.end() < first:  # the loop has started, and its workers have the index
        time.sleep(0.01)
    pieces = [lines[at : at + PACED_RECORD_EVENTS] for at in range(0, len(lines), PACED_RECORD_EVENTS)]
    sent, seen = np.zeros(len(pieces)), np.zeros(len(pieces))
    begin_s, done, next_piece = time.monotonic(), 0, 0
    while done < len(pieces):
        now_s = time.monotonic()
        due = int(min(len(pieces), max(0.0, now_s - begin_s) * events_per_s / PACED_RECORD_EVENTS))
        if next_piece < due:
            records = [
                NewRecord("default", b"\n".join(piece) + b"\n", len(piece), appended_ms=1)
                for piece in pieces[next_piece:due]
            ]
            sent[next_piece:due] = now_s
            log.append(records)
            next_piece = due
        end = matches.end(first + done) - first
        if end > done:
            seen[done:end] = time.monotonic()
            done = end
        time.sleep(0.002)
    loop.stop()
    measured = (seen - sent)[int(len(pieces) * WARM_S / (WARM_S + PACED_S)) :] * 1000
    p50_ms, p75_ms, p99_ms = np.quantile(measured, (0.5, 0.75, 0.99)).round(1).tolist()
    return {"p50_ms": p50_ms, "p75_ms": p75_ms, "p99_ms": p99_ms, "events_per_s": round(events_per_s)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else on stdout"
    )
    parser.add_argument(
        "--subscriptions", type=int, default=100_000, help="encrypted filters (default: %(default)s)"
    )
    parser.add_argument("--events-per-s", type=float, help="event rate at which the delay is measured")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--scheme", type=int, choices=(1, SCHEME), default=SCHEME, help="scheme of the key's vectors"
    )
    parser.add_argument("--matching-only", action="store_true", help="match in this process, without Spark")
    options = parser.parse_args()
    work = Workload(options.subscriptions, options.seed, options.scheme)
    figures = matching(work) if options.matching_only else through_spark(options, work)
    figures |= {
        "seal_filter_us": round(work.seal_filter_us),
        "seal_event_us": round(work.seal_event_us),
        "subscriptions": options.subscriptions,
        "scheme": options.scheme,
        "seed": options.seed,
    }
    if options.json:
        print(json.dumps(figures))
    else:
        make_display(sys.stdout).table("encrypted", [(name, str(value)) for name, value in figures.items()])
    return 1 if figures["wrong"] else 0


def through_spark(options: argparse.Namespace, work: Workload) -> dict[str, Any]:
    """Throughput and delay of Spark's tasks."""
    display = make_display(sys.stderr)
    with tempfile.TemporaryDirectory(prefix="fieldfare-encrypted-") as scratch:
        root = Path(scratch)
        folder = DataFolder(root / "data")
        folder.make()
        with display.step(f"{options.subscriptions:,} filters encrypted and indexed"):
            write_space(open_index_store(folder.index_url), "default", work.entries(), ONE_SLICE)
        session = service_session(SparkSettings(cores=2), root / "spark")
        try:
            with display.step("events matched from the log"):
                figures: dict[str, Any] = throughput(session, folder, work)
            rate = options.events_per_s or figures["filterings_per_s"] / options.subscriptions / 2
            with display.step(f"tasks that follow the log at {rate:,.0f} events a second"):
                figures |= delays(session, folder, work, rate)
        finally:
            session.stop()
    return figures


if __name__ == "__main__":
    sys.exit(main())
