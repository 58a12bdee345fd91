"""Append a record to the log, and make it known to the parts of the gateway that follow the log's growth."""

from __future__ import annotations

from dataclasses import dataclass

from fieldfare.delivery.keys import place_of
from fieldfare.gateway.delivery.records import RecordCache
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.tracing import Marks, Tracer
from fieldfare.gateway.writer import Writer
from fieldfare.storage.event_log import Appended, NewRecord


@dataclass(frozen=True, slots=True)
class Appender:
    """Appends records of requests, and delayed ones whose time has come.

    Parameters
    ----------
    writer
        Appends to the log.
    records
        Receives the payloads, which are delivered soon.
    metrics, tracer
        Count the events, and trace them.
    """

    writer: Writer
    records: RecordCache
    metrics: Metrics
    tracer: Tracer

    async def append(
        self, record: NewRecord, *, is_due: bool = False, marks: Marks | None = None
    ) -> Appended:
        """Append a record as `Writer.append` does; durable on return. ``marks`` are those of its request."""
        if is_due:
            marks = self.tracer.received()
        place = await self.writer.append(record, is_due=is_due)
        if not place.duplicate:
            if marks is not None:
                self.tracer.appended(marks, record, place)
            self.metrics.appended(record.count, len(record.payload))
            key = place_of(place.partition, place.offset)
            self.records.put(key, record.payload, record.appended_ms)
        return place
