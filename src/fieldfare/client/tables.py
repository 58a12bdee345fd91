"""Tables of events on their way out: cut into requests, each one Arrow stream.

pyarrow is not among the things that the client needs; it is imported when a table comes.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fieldfare.client.batching import MAX_RECORD_EVENTS
from fieldfare.client.errors import ApiError, InvalidEvent

TABLE_MAX_BYTES = 4 << 20
"""Bytes of one request's columns: below the service's bound, with room for what it makes of them."""


class MissingPyarrow(ImportError):
    """pyarrow is not installed."""

    def __init__(self) -> None:
        super().__init__("tables of events need pyarrow: pip install 'fieldfare[arrow]'", name="pyarrow")


@dataclass(frozen=True, slots=True)
class TablePiece:
    """Rows of a table that travel in one request: an Arrow stream of ``count`` events."""

    start: int
    count: int
    body: bytes


class TablePieces:
    """The requests that a table makes, in the order of its rows; iterate once.

    Parameters
    ----------
    events : pyarrow.Table, pyarrow.RecordBatch, or a data frame that speaks Arrow
        A row is an event, a column an attribute of events. Missing columns ``specversion``, ``id`` and
        ``time`` are filled in, as for a mapping.
    max_events : int
        Rows of one request.
    now : datetime
        What is filled in as ``time``.

    Raises
    ------
    InvalidEvent
        It is no table, or has no column ``source`` or ``type``.
    MissingPyarrow
    """

    def __init__(self, events: Any, max_events: int, now: datetime) -> None:
        if not 1 <= max_events <= MAX_RECORD_EVENTS:
            raise ValueError(f"max_events is from 1 to {MAX_RECORD_EVENTS:,}, not {max_events:,}")
        self._table = _without_dictionaries(as_table(events))
        self._max_events = max_events
        self._now = now
        self._id_start = uuid.uuid4().hex
        for name in ("source", "type"):
            if name not in self._table.column_names:
                known = ", ".join(self._table.column_names[:6]) or "none at all"
                raise InvalidEvent(
                    f"a table of events needs a column {name!r}: columns are the attributes of CloudEvents, "
                    f"source, type and data among them; this one has {known}"
                )
        self.size: int = self._table.num_rows
        self._ranges: deque[tuple[int, int]] = deque()

    def __iter__(self) -> Iterator[TablePiece]:
        at = 0
        while self._ranges or at < self.size:
            if not self._ranges:
                count = min(self._max_events, self.size - at)
                self._ranges.append((at, count))
                at += count
            start, count = self._ranges.popleft()
            rows = self._table.slice(start, count)
            if rows.nbytes > TABLE_MAX_BYTES and count > 1:
                self._halve(start, count)
            else:
                yield TablePiece(start, count, self._encode(rows, start))

    def cut_smaller(self, piece: TablePiece, error: Exception) -> bool:
        """Give the rows of a piece again, in two, if the service found it too large; whether it did."""
        if isinstance(error, ApiError) and error.status == 413 and piece.count > 1:
            self._halve(piece.start, piece.count)
            return True
        return False

    def _halve(self, start: int, count: int) -> None:
        half = count // 2
        self._ranges.extendleft([(start + half, count - half), (start, half)])

    def _encode(self, rows: Any, start: int) -> bytes:
        import pyarrow as pa

        size = rows.num_rows
        if "specversion" not in rows.column_names:
            rows = rows.append_column("specversion", pa.array(["1.0"] * size, pa.string()))
        if "id" not in rows.column_names:
            ids = [f"{self._id_start}-{number}" for number in range(start, start + size)]
            rows = rows.append_column("id", pa.array(ids, pa.string()))
        if "time" not in rows.column_names:
            times = pa.array([self._now] * size, pa.timestamp("us", "UTC"))
            rows = rows.append_column("time", times)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        body: bytes = sink.getvalue().to_pybytes()
        return body


def as_table(events: Any) -> Any:
    """Anything that speaks Arrow as a pyarrow.Table; InvalidEvent for what does not."""
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingPyarrow from None
    if isinstance(events, pa.Table):
        return events
    if isinstance(events, pa.RecordBatch):
        return pa.Table.from_batches([events])
    if hasattr(events, "__arrow_c_stream__"):
        return pa.table(events)
    raise InvalidEvent(
        f"a table of events is a pyarrow.Table, a RecordBatch or a data frame, not {type(events).__name__}"
    )


def with_end(table: Any, end: datetime | None) -> Any:
    """A table of events that are of use until then, where it says nothing of that itself."""
    import pyarrow as pa

    if end is None or "expirytime" in table.column_names:
        return table
    return table.append_column("expirytime", pa.array([end] * table.num_rows, pa.timestamp("us", "UTC")))


def as_data(table: Any, type: str, source: str) -> Any:
    """A table of events whose data are the rows of a table."""
    import pyarrow as pa

    table = _without_dictionaries(table)
    rows = pa.chunked_array(
        [batch.to_struct_array() for batch in table.to_batches()], pa.struct(table.schema)
    )
    size = table.num_rows
    return pa.table({"type": [type] * size, "source": [source] * size, "data": rows})


def _without_dictionaries(table: Any) -> Any:
    """Every request would carry the whole dictionary, however few of its rows look into it."""
    import pyarrow as pa

    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            # Arrow has no cast for each: polars' Categorical and Enum have views as their values.
            kind = pa.large_string() if field.type.value_type == pa.string_view() else field.type.value_type
            chunks = [
                chunk.dictionary.cast(kind).take(chunk.indices) for chunk in table.column(number).chunks
            ]
            table = table.set_column(number, field.name, pa.chunked_array(chunks, kind))
    return table
