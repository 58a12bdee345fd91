"""Tables of events, split into requests of one Arrow stream each.

pyarrow is optional; it is imported when a table is published.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fieldfare.client.errors import ApiError, InvalidEvent
from fieldfare.model import RECORD_EVENTS_MAX

TABLE_MAX_BYTES = 4 << 20
"""Maximum bytes of one request's columns; larger ones are split. It is below the service's limit, to leave
room for their encoded form."""


class MissingPyarrow(ImportError):
    """pyarrow is not installed."""

    def __init__(self) -> None:
        super().__init__("tables of events need pyarrow: pip install 'fieldfare[arrow]'", name="pyarrow")


@dataclass(frozen=True, slots=True)
class TablePiece:
    """Rows of a table that are sent in one request: an Arrow stream of ``count`` events."""

    start: int
    count: int
    body: bytes


class TablePieces:
    """The requests for a table, in row order; iterate once.

    Parameters
    ----------
    events : pyarrow.Table, pyarrow.RecordBatch, or a data frame with the Arrow interface
        Each row is an event, each column an attribute. Missing columns ``specversion``, ``id`` and ``time``
        are filled in, as for a mapping.
    max_events : int
        Maximum rows per request.
    now : datetime
        The value of a missing column ``time``.

    Raises
    ------
    InvalidEvent
        ``events`` is not a table, or has no column ``source`` or ``type``.
    MissingPyarrow
        pyarrow is not installed.
    """

    def __init__(self, events: Any, max_events: int, now: datetime) -> None:
        if not 1 <= max_events <= RECORD_EVENTS_MAX:
            raise ValueError(f"max_events must be 1 to {RECORD_EVENTS_MAX:,}, not {max_events:,}")
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
        """Split a piece in two, to be yielded again, if the service found it too large; return whether so."""
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
    """Convert any object with the Arrow interface to a pyarrow.Table; InvalidEvent for other objects."""
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
        f"a table must be a pyarrow.Table, a RecordBatch or a data frame, not {type(events).__name__}"
    )


def with_end(table: Any, end: datetime | None) -> Any:
    """Return the table with ``end`` as the column ``expirytime``, unless it has one or ``end`` is None."""
    import pyarrow as pa

    if end is None or "expirytime" in table.column_names:
        return table
    return table.append_column("expirytime", pa.array([end] * table.num_rows, pa.timestamp("us", "UTC")))


def as_data(table: Any, type: str, source: str) -> Any:
    """Return a table of events, with the rows of a table as their ``data``."""
    import pyarrow as pa

    table = _without_dictionaries(table)
    rows = pa.chunked_array(
        [batch.to_struct_array() for batch in table.to_batches()], pa.struct(table.schema)
    )
    size = table.num_rows
    return pa.table({"type": [type] * size, "source": [source] * size, "data": rows})


def _without_dictionaries(table: Any) -> Any:
    """Replace dictionary columns by plain ones: each request would carry the complete dictionary."""
    import pyarrow as pa

    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            # Arrow cannot cast every dictionary: polars' Categorical and Enum have string views as values.
            kind = pa.large_string() if field.type.value_type == pa.string_view() else field.type.value_type
            chunks = [
                chunk.dictionary.cast(kind).take(chunk.indices) for chunk in table.column(number).chunks
            ]
            table = table.set_column(number, field.name, pa.chunked_array(chunks, kind))
    return table
