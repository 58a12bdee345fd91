"""The newest events of a space, for help with filters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fieldfare.gateway.delivery.record_lines import all_lines
from fieldfare.storage.errors import TrimmedError
from fieldfare.storage.event_log import EventReader, Record, ends_of


@dataclass(frozen=True, slots=True)
class SampleSize:
    """Limits of a sample.

    Attributes
    ----------
    events
        Maximum events of the sample.
    size_bytes
        Maximum bytes of these; the first event is included in any case.
    read_bytes, read_records
        Maximum bytes and records read from the log; the sample ends there, so a space has fewer events in it
        if more records of other spaces are newer.
    """

    events: int
    size_bytes: int = 4 << 20
    read_bytes: int = 32 << 20
    read_records: int = 1_000


def newest_events(log: EventReader, space: str, size: SampleSize) -> list[dict[str, Any]]:
    """Return a space's newest events, newest first."""
    events: list[dict[str, Any]] = []
    sample_bytes = read_bytes = 0
    for record in _newest_records(log, size.read_records):
        read_bytes += len(record.payload)
        for line in reversed(all_lines(record.payload)) if record.space == space else ():
            sample_bytes += len(line)
            if len(events) >= size.events or (events and sample_bytes > size.size_bytes):
                return events
            events.append(json.loads(line))
        if len(events) >= size.events or read_bytes > size.read_bytes:
            break
    return events


def _newest_records(log: EventReader, most: int) -> Iterator[Record]:
    """Yield the newest records of all partitions in turn, each partition's newest first."""
    ends = ends_of(log)
    for back in range(1, most + 1):
        for partition, end in zip(log.partitions, ends, strict=True):
            with suppress(TrimmedError):
                if back <= end:
                    yield from partition.read(end - back, end - back + 1)
