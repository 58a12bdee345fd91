"""The event log and match log in Kafka compared with those in files: appends, reading, a start, blocks.

    python benchmarks/logs.py [--json] [--seconds 5] [--turns 3]

A broker with one node on loopback stores the topics (`fieldfare_lab.kafka_broker`). It acknowledges before it
has synced, as replicated brokers do; SQLite acknowledges afterwards. The kinds of logs alternate, and each
figure is the median.

append_ms
    Appending single records of 1 KB, one after another: p50 and p99.
append_mb_per_s
    Appending groups of 4 MB in records of 100 KB.
read_records_per_s, read_mb_per_s
    Reading records of 1 KB and of 100 KB with a reader that has read before.
reader_mb
    Growth of a process that opens a log and reads 200 MB.
start_ms
    Opening a log that was not closed, up to its first append: the sequence numbers in it are read again.
block_write_ms, block_look_ms
    Writing blocks of 100 records with 1,000 matches, and finding the next block; p50.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from fieldfare.storage import EventLog, MatchLog, NewMatchBlock, open_event_log, open_match_log
from fieldfare.storage.event_log import NewRecord
from fieldfare_lab.kafka_broker import KafkaBroker, why_no_broker

SMALL, LARGE, GROUP = 1_000, 100_000, 40
STARTED_RECORDS = 5_000
READ = "--read"


def record(size_bytes: int, sequence: int | None = None) -> NewRecord:
    payload = b'"' + b"x" * (size_bytes - 3) + b'"\n'
    return NewRecord("bench", payload, 1, None if sequence is None else "p", sequence)


def grown_mb(url: str) -> float:
    """Growth of a separate process that reads a whole log."""
    done = subprocess.run([sys.executable, __file__, READ, url], stdout=subprocess.PIPE, check=True)
    return float(done.stdout)


def read_all(url: str) -> float:
    import fieldfare.storage.kafka.log
    import fieldfare.storage.sqlite.log  # noqa: F401 - what is loaded is no growth

    before = peak_mb()
    for partition in open_event_log(url).partitions:
        for _ in partition.read(partition.start(), partition.end()):
            pass
    return peak_mb() - before


def peak_mb() -> float:
    """Peak memory of this process; getrusage cannot be used, since it includes the parent's peak."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def timed_ms(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return (time.perf_counter() - begun) * 1e3


def appends(log: EventLog, seconds: float) -> dict[str, float]:
    log.append([record(SMALL)])
    times, end_s = [], time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        times.append(timed_ms(lambda: log.append([record(SMALL)])))
    cuts = quantiles(times, n=100)
    group = [record(LARGE)] * GROUP
    groups, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + seconds:
        log.append(group)
        groups += 1
    taken_s = time.perf_counter() - begun
    return {
        "append_p50_ms": cuts[49],
        "append_p99_ms": cuts[98],
        "append_mb_per_s": groups * GROUP * LARGE / taken_s / 1e6,
    }


def reading(log: EventLog, size_bytes: int, records: int) -> float:
    """Records per second, read in ranges as tasks do."""
    for _ in range(0, records, 1_000_000 // size_bytes):
        log.append([record(size_bytes)] * (1_000_000 // size_bytes))
    found, taken_s = 0, 0.0
    for partition in log.partitions:
        at, end = partition.start(), partition.end()
        list(partition.read(at, min(end, at + 1)))
        begun = time.perf_counter()
        while at < end:
            upto = min(end, at + 2_000)
            found += sum(1 for _ in partition.read(at, upto))
            at = upto
        taken_s += time.perf_counter() - begun
    return found / taken_s


def start_ms(make: Callable[[], EventLog]) -> float:
    log = make()
    for first in range(0, STARTED_RECORDS, 100):
        log.append([record(SMALL, number) for number in range(first, first + 100)])
    return timed_ms(lambda: open_event_log(log.url).append([record(SMALL, STARTED_RECORDS)]))


def blocks(log: MatchLog, seconds: float) -> dict[str, float]:
    chance = np.random.default_rng(1)
    partition, reader = log.partition(0), open_match_log(log.url).partition(0)
    counts = np.full(100, 10, np.int32)
    written, looked, at = [], [], 0
    partition.write(
        NewMatchBlock.by_event(0, 100, counts, np.arange(1_001), np.arange(1_000, dtype=np.uint32))
    )
    reader.block_at(0)  # Kernels are loaded now.
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        numbers = chance.integers(0, 1_000_000, 1_000).astype(np.uint32)
        block = NewMatchBlock.by_event(at, at + 100, counts, np.arange(1_001), numbers)
        written.append(timed_ms(lambda block=block: partition.write(block)))  # type: ignore[misc]
        looked.append(timed_ms(lambda at=at: reader.block_at(at)))  # type: ignore[misc]
        at += 100
    return {"block_write_ms": median(written), "block_look_ms": median(looked)}


@contextmanager
def kinds() -> Iterator[dict[str, tuple[Callable[[], EventLog], Callable[[], MatchLog]]]]:
    """For each kind, how to open a new event log and a new match log."""
    with tempfile.TemporaryDirectory(dir=".") as folder, KafkaBroker() as broker:
        numbers = iter(range(1 << 30))

        def topic(partitions: int) -> str:
            return f"kafka://{broker.address}/t{next(numbers)}?partitions={partitions}"

        root = Path(folder).absolute()
        yield {
            "files": (
                lambda: open_event_log(f"sqlite:///{root}/{next(numbers)}.db"),
                lambda: open_match_log((root / f"matches{next(numbers)}").as_uri()),
            ),
            "kafka": (lambda: open_event_log(topic(1)), lambda: open_match_log(topic(1))),
            "kafka, 3 partitions": (lambda: open_event_log(topic(3)), lambda: open_match_log(topic(3))),
        }


def measure(make_log: Callable[[], EventLog], make_matches: Callable[[], MatchLog], seconds: float) -> Any:
    large_log = make_log()
    small, large = reading(make_log(), SMALL, 50_000), reading(large_log, LARGE, 2_000)
    return {
        **appends(make_log(), seconds),
        "read_records_per_s": small,
        "read_mb_per_s": large * LARGE / 1e6,
        "reader_mb": grown_mb(large_log.url),
        "start_ms": start_ms(make_log),
        **blocks(make_matches(), seconds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    parser.add_argument("--seconds", type=float, default=5.0, help="seconds per measurement")
    parser.add_argument("--turns", type=int, default=3, help="measurements of each kind")
    options = parser.parse_args()
    if (reason := why_no_broker()) is not None:
        raise SystemExit(f"there is nothing to compare with: {reason}")
    found: dict[str, list[dict[str, float]]] = {}
    with kinds() as made:
        for _ in range(options.turns):
            for name, (make_log, make_matches) in made.items():
                found.setdefault(name, []).append(measure(make_log, make_matches, options.seconds))
    figures = {
        name: {figure: round(median(turn[figure] for turn in turns), 2) for figure in turns[0]}
        for name, turns in found.items()
    }
    for name, row in figures.items():
        print(name, *(f"{figure} {value:,}" for figure, value in row.items()), sep="\n    ")
    if options.json:
        print(json.dumps({"seconds": options.seconds, "turns": options.turns, **figures}))


if __name__ == "__main__":
    if sys.argv[1:2] == [READ]:
        print(read_all(sys.argv[2]))
    else:
        main()
