"""AP, the first operator of the pipeline: from records of the log to columns of events, space by space.

A batch of records is an Arrow batch with one row per record, in the order of the log::

    offset   int64         the record's offset
    stamp    int64         the registry revision against which the record is matched
    space    string        the space that owns the events
    count    int32         the number of events
    payload  large_binary  the events: one JSON object per line, each ended by a newline;
                           or an Arrow stream with one row per event (see ``arrow_events.stream``)
    local    bool          whether the record was published at this broker; without it, all were

JSON payloads end in a newline, so the values of the binary column, which are adjacent in memory, form one
JSON-lines text. Nothing is copied if all records of a batch are JSON and belong to one space. Arrow records
are not decoded: records with equal columns are concatenated, a single record is used in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldfare.arrow_events.stream import (
    AppendedReader,
    ArrowPayloadError,
    is_arrow,
    read_events,
    write_events,
)
from fieldfare.matching.events.arrow_decoder import columns_from_arrow
from fieldfare.matching.events.columns import KIND_MISSING, KIND_NULL, Column, ColumnBatch
from fieldfare.matching.events.json_decoder import DecodeError, decode_json_lines
from fieldfare.model import Path, is_forwarded

RECORDS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("stamp", pa.int64(), nullable=False),
        pa.field("space", pa.string(), nullable=False),
        pa.field("count", pa.int32(), nullable=False),
        pa.field("payload", pa.large_binary(), nullable=False),
    ]
)
"""The schema of a batch of records; `LOCAL` is added where a record came from another broker."""

LOCAL = pa.field("local", pa.bool_(), nullable=False)

DECODED_CELLS = 1 << 23
"""Maximum cells (events × attributes, 9 bytes each) decoded at a time; more are decoded in pieces."""


class RecordError(DecodeError):
    """A record's Arrow payload is corrupt; ``offset`` is the record's offset."""

    def __init__(self, offset: int, reason: str) -> None:
        ValueError.__init__(self, f"record {offset} cannot be read: {reason}")
        self.offset = offset
        self.line = 0
        self.byte = None


@dataclass(frozen=True)
class SpaceEvents:
    """Events of one space in a batch of records, in log order; either all JSON or all Arrow, and either all
    published at this broker or none.

    Attributes
    ----------
    stamps : int64[n]
        The stamp of each event's record.
    record_sizes : int64[n]
        The number of events in each event's record, including events that are not in this object.
    places : int64[n] or None
        The index of each event among all events of the batch; None when the batch contains no other events.
    payload : buffer or pa.Table
        The events: a buffer with one JSON object per line, or a table with one row per event and one chunk
        per record.
    is_local : bool
        Whether the events are matched for other brokers too: see `model.is_forwarded`.
    """

    space: str
    stamps: NDArray[np.int64]
    record_sizes: NDArray[np.int64]
    places: NDArray[np.int64] | None
    payload: Any
    is_local: bool = True

    @property
    def size(self) -> int:
        return len(self.stamps)

    def payload_of(self, chosen: NDArray[np.int64]) -> memoryview:
        """Return the payload of the chosen events, in that order and in the same format (JSON or Arrow).

        Parameters
        ----------
        chosen : int64[k]
            Indices into the n events. An index may occur more than once.
        """
        if isinstance(self.payload, pa.Table):
            return write_events(self._rows.take(pa.array(chosen, pa.int64())))
        return _joined(self._lines.take(pa.array(chosen, pa.int64())))

    def cut(self, most_events: int) -> Iterator[SpaceEvents]:
        """Yield the events in pieces of at most `most_events`, without copying."""
        if self.size <= most_events:
            yield self
            return
        places = np.arange(self.size) if self.places is None else self.places
        for start in range(0, self.size, most_events):
            end = min(start + most_events, self.size)
            payload = self.payload
            if isinstance(payload, pa.Table):
                payload = payload.slice(start, end - start)
            else:
                ends = self._line_bounds
                payload = memoryview(payload)[int(ends[start]) : int(ends[end])]
            stamps, sizes = self.stamps[start:end], self.record_sizes[start:end]
            yield SpaceEvents(self.space, stamps, sizes, places[start:end], payload, self.is_local)

    @cached_property
    def _line_bounds(self) -> NDArray[np.int64]:
        """The offset of each line of JSON, and the end of the last line: int64[n + 1]."""
        text = np.frombuffer(self.payload, np.uint8)
        bounds = np.zeros(self.size + 1, np.int64)
        ends = np.flatnonzero(text == ord("\n"))
        if len(ends) != self.size:
            raise DecodeError(min(len(ends), self.size))
        bounds[1:] = ends + 1
        return bounds

    @cached_property
    def _lines(self) -> pa.Array:
        buffers = [None, pa.py_buffer(self._line_bounds), pa.py_buffer(self.payload)]
        return pa.Array.from_buffers(pa.large_binary(), self.size, buffers)

    @cached_property
    def _rows(self) -> pa.RecordBatch:
        return _one_batch(self.payload)


def record_batch(records: Iterable[Any]) -> pa.RecordBatch:
    """Convert records to an Arrow batch of ``RECORDS``.

    They have an offset, stamp, space, count and payload; those of other brokers also have an origin.
    """
    rows = list(records)
    batch = pa.record_batch(
        [
            pa.array([row.offset for row in rows], pa.int64()),
            pa.array([row.stamp for row in rows], pa.int64()),
            pa.array([row.space for row in rows], pa.string()),
            pa.array([row.count for row in rows], pa.int32()),
            pa.array([row.payload for row in rows], pa.large_binary()),
        ],
        schema=RECORDS,
    )
    local = [is_forwarded(getattr(row, "origin", None)) for row in rows]
    return batch if all(local) else batch.append_column(LOCAL, pa.array(local, pa.bool_()))


def event_counts(events: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the number of events in each record of a batch: int64[records]."""
    counts: NDArray[np.int64] = events.column("count").to_numpy().astype(np.int64)
    return counts


def by_space(events: pa.RecordBatch) -> Iterator[SpaceEvents]:
    """Split a batch of records into the events of each space, in order of first appearance.

    The JSON records of a space are yielded together, and so are its Arrow records with equal columns; those
    of other brokers apart.

    Raises
    ------
    DecodeError
        An Arrow record is corrupt. JSON records are not checked here, but by `decode`.
    """
    if not events.num_rows:
        return
    stamps, counts = events.column("stamp").to_numpy(), event_counts(events)
    spaces = events.column("space").dictionary_encode()
    names: list[str] = spaces.dictionary.to_pylist()
    payloads = _values(events.column("payload"))
    arrow = np.array([is_arrow(payload) for payload in payloads])
    local = None if LOCAL.name not in events.schema.names else events.column(LOCAL.name).to_pylist()
    if len(names) == 1 and not arrow.any() and local is None:
        every, sizes = np.repeat(stamps, counts), np.repeat(counts, counts)
        yield SpaceEvents(names[0], every, sizes, None, _joined(events.column("payload")))
        return
    reader = AppendedReader()
    groups: dict[tuple[int, bytes, bool], list[int]] = {}
    tables: dict[int, pa.RecordBatch] = {}
    for place, number in enumerate(spaces.indices.to_pylist()):
        schema = b""
        if arrow[place]:
            try:
                schema, tables[place] = reader.read(payloads[place], int(counts[place]))
            except ArrowPayloadError as error:
                raise RecordError(events.column("offset")[place].as_py(), str(error)) from None
        groups.setdefault((number, schema, local is None or local[place]), []).append(place)
    starts = np.cumsum(counts) - counts
    for (number, schema, is_local), group in groups.items():
        chosen = np.array(group)
        alone = len(groups) == 1
        yield SpaceEvents(
            names[number],
            np.repeat(stamps[chosen], counts[chosen]),
            np.repeat(counts[chosen], counts[chosen]),
            None if alone else _ranges(starts[chosen], counts[chosen]),
            pa.Table.from_batches([tables[place] for place in group])
            if schema
            else _joined(events.column("payload").take(pa.array(chosen))),
            is_local,
        )


def events_of(
    space: str, stamps: NDArray[np.int64], record_sizes: NDArray[np.int64], payload: memoryview
) -> SpaceEvents:
    """Make events from a payload of `SpaceEvents.payload_of` and their records' stamps and sizes."""
    if not is_arrow(payload):
        return SpaceEvents(space, stamps, record_sizes, None, payload)
    return SpaceEvents(
        space, stamps, record_sizes, None, pa.Table.from_batches([read_events(payload, len(stamps))])
    )


def decoded(events: SpaceEvents, paths: Sequence[Path]) -> Iterator[tuple[SpaceEvents, ColumnBatch]]:
    """Yield all events with their columns, in pieces whose columns take at most about 80 MB.

    The number of attributes depends on the subscribers and the number of events on the publishers, so a
    matrix of all attributes and all events could exceed any amount of memory.
    """
    done = 0
    for some in events.cut(max(1, DECODED_CELLS // max(1, len(paths)))):
        try:
            columns = decode(some, paths)
        except DecodeError as error:
            if not done:
                raise
            raise DecodeError(done + error.line) from error
        yield some, columns
        done += some.size


def decode(events: SpaceEvents, paths: Sequence[Path]) -> ColumnBatch:
    """Decode the attributes at `paths` from the events; other JSON members are skipped.

    Arrow columns are used without decoding, except that a null in a top-level column means that the attribute
    is missing.
    """
    if not isinstance(events.payload, pa.Table):
        batch = decode_json_lines(events.payload, events.size, paths)
        return replace(batch, record_sizes=events.record_sizes)
    names = {path[0] for path in paths if path}
    wanted = [name for name in events.payload.column_names if name in names]
    batch = columns_from_arrow(_one_batch(events.payload.select(wanted)), paths)
    columns = {
        path: _without_nulls(column) if len(path) == 1 else column for path, column in batch.columns.items()
    }
    return replace(batch, columns=columns, record_sizes=events.record_sizes)


def _without_nulls(column: Column) -> Column:
    nulls = column.kinds == KIND_NULL
    return (
        Column(np.where(nulls, np.uint8(KIND_MISSING), column.kinds), column.words) if nulls.any() else column
    )


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return all rows of a table as one batch; copied only if they come from several records."""
    batches = table.to_batches()
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The indices ``start .. start + count`` of each record, concatenated."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())


def _values(payloads: pa.Array) -> list[memoryview]:
    """The bytes of each value of a large_binary array, without a copy."""
    data, ends = _bytes(payloads)
    return [data[start:end] for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


def _joined(payloads: pa.Array) -> memoryview:
    """The bytes of all values of a large_binary array, concatenated, without a copy."""
    data, ends = _bytes(payloads)
    return data[int(ends[0]) : int(ends[-1])]


def _bytes(payloads: pa.Array) -> tuple[memoryview, NDArray[np.int64]]:
    _, bounds, values = payloads.buffers()
    if values is None:
        return memoryview(b""), np.zeros(len(payloads) + 1, np.int64)
    ends = np.frombuffer(bounds, np.int64)[payloads.offset : payloads.offset + len(payloads) + 1]
    return memoryview(values), ends
