"""Two ways of reading an event log in Kafka in tasks, with timing, for benchmarks/spark_readers.py.

It is a separate module so that a Python worker keeps its connections from one task to the next.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from fieldfare.storage import EventLog, open_event_log
from fieldfare.storage.kafka.record_header import RecordHeader

Batches = Iterator[pa.RecordBatch]


class Note:
    """Log what a task has read, as a line of a file: time, number of events and bytes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.events = self.size_bytes = 0

    def add(self, size_bytes: int, events: int) -> None:
        self.events += events
        self.size_bytes += size_bytes

    def write(self) -> None:
        if self.events:
            line = json.dumps([time.time(), self.events, self.size_bytes]) + "\n"
            with self._path.open("a") as file:
                file.write(line)


class ReadRows:
    """A task of Spark's connector: rows of value and header."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, batches: Batches) -> Batches:
        note = Note(self._path)
        for batch in batches:
            sizes = pc.binary_length(batch.column("value")).to_pylist()
            for size_bytes, header in zip(sizes, batch.column("header").to_pylist(), strict=True):
                note.add(size_bytes, msgspec.json.decode(header, type=RecordHeader).count)
        note.write()
        yield from ()


class ReadRanges:
    """A task of fieldfare's reader: ranges of the log, read with this worker's open log."""

    def __init__(self, path: Path, url: str) -> None:
        self._path, self._url = path, url

    def __call__(self, batches: Batches) -> Batches:
        partitions, note = _log(self._url).partitions, Note(self._path)
        for batch in batches:
            for row in batch.to_pylist():
                for record in partitions[row["partition"]].read(row["start"], row["end"]):
                    note.add(len(record.payload), record.count)
        note.write()
        yield from ()


@cache
def _log(url: str) -> EventLog:
    return open_event_log(url)
