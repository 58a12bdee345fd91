"""AP, the first operator of the pipeline: from records of the log to columns of events, space by space.

A batch of records is an Arrow batch, one row a record, in the order of the log::

    offset   int64         the record's offset
    stamp    int64         the registry revision that it is matched as of
    space    string        whose events these are
    count    int32         how many events
    payload  large_binary  the events: one JSON object a line, every line ended by a newline;
                           or an Arrow stream, a row an event (see ``arrow_events.stream``)

Payloads of JSON end in a newline, so that the values of the binary column, which lie one after the other in
memory, are one JSON-lines text; nothing is copied where a batch holds JSON records of one space only. Arrow
records are not decoded at all: several whose columns are the same are put together, a single one stays where
it is.
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
from fieldfare.model import Path

RECORDS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("stamp", pa.int64(), nullable=False),
        pa.field("space", pa.string(), nullable=False),
        pa.field("count", pa.int32(), nullable=False),
        pa.field("payload", pa.large_binary(), nullable=False),
    ]
)
"""What a batch of records looks like."""

DECODED_CELLS = 1 << 23
"""Cells (events times attributes) decoded at once, at most, of nine bytes each."""


class RecordError(DecodeError):
    """A record's Arrow payload cannot be read; ``offset`` is the record's."""

    def __init__(self, offset: int, reason: str) -> None:
        ValueError.__init__(self, f"record {offset} cannot be read: {reason}")
        self.offset = offset
        self.line = 0
        self.byte = None


@dataclass(frozen=True)
class SpaceEvents:
    """Events of one space in a batch of records, in the order of the log, all of them JSON or all Arrow.

    Attributes
    ----------
    space : str
    stamps : int64[n]
        The stamp of each event's record.
    record_sizes : int64[n]
        How many events each event's record has, whether they are all here or not.
    places : int64[n] or None
        Where each event stands among all events of the batch; None when the batch holds no others.
    payload : buffer or pa.Table
        The events, one JSON object a line; or one a row, with a chunk for each record.
    """

    space: str
    stamps: NDArray[np.int64]
    record_sizes: NDArray[np.int64]
    places: NDArray[np.int64] | None
    payload: Any

    @property
    def size(self) -> int:
        return len(self.stamps)

    def payload_of(self, chosen: NDArray[np.int64]) -> memoryview:
        """The payload of these events only, in this order and in the same form.

        Parameters
        ----------
        chosen : int64[k]
            Which of the n events, by their place among them. A place may come more than once.
        """
        if isinstance(self.payload, pa.Table):
            return write_events(self._rows.take(pa.array(chosen, pa.int64())))
        return _joined(self._lines.take(pa.array(chosen, pa.int64())))

    def cut(self, most_events: int) -> Iterator[SpaceEvents]:
        """The same events, at most so many at a time; nothing is copied."""
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
            yield SpaceEvents(self.space, stamps, sizes, places[start:end], payload)

    @cached_property
    def _line_bounds(self) -> NDArray[np.int64]:
        """Where each line of JSON begins, and where the last one ends: int64[n + 1]."""
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
    """Records (anything with offset, stamp, space, count and payload) as an Arrow batch of ``RECORDS``."""
    rows = list(records)
    return pa.record_batch(
        [
            pa.array([row.offset for row in rows], pa.int64()),
            pa.array([row.stamp for row in rows], pa.int64()),
            pa.array([row.space for row in rows], pa.string()),
            pa.array([row.count for row in rows], pa.int32()),
            pa.array([row.payload for row in rows], pa.large_binary()),
        ],
        schema=RECORDS,
    )


def event_counts(events: pa.RecordBatch) -> NDArray[np.int64]:
    """How many events each record of a batch has: int64[records]."""
    counts: NDArray[np.int64] = events.column("count").to_numpy().astype(np.int64)
    return counts


def by_space(events: pa.RecordBatch) -> Iterator[SpaceEvents]:
    """Take a batch of records apart into the events of each space, in the order they first appear.

    The JSON records of a space come together, and so do its Arrow records whose columns are the same.

    Raises
    ------
    DecodeError
        An Arrow record is broken; JSON is looked at by `decode`.
    """
    if not events.num_rows:
        return
    stamps, counts = events.column("stamp").to_numpy(), event_counts(events)
    spaces = events.column("space").dictionary_encode()
    names: list[str] = spaces.dictionary.to_pylist()
    payloads = _values(events.column("payload"))
    arrow = np.array([is_arrow(payload) for payload in payloads])
    if len(names) == 1 and not arrow.any():
        every, sizes = np.repeat(stamps, counts), np.repeat(counts, counts)
        yield SpaceEvents(names[0], every, sizes, None, _joined(events.column("payload")))
        return
    reader = AppendedReader()
    groups: dict[tuple[int, bytes], list[int]] = {}
    tables: dict[int, pa.RecordBatch] = {}
    for place, number in enumerate(spaces.indices.to_pylist()):
        schema = b""
        if arrow[place]:
            try:
                schema, tables[place] = reader.read(payloads[place], int(counts[place]))
            except ArrowPayloadError as error:
                raise RecordError(events.column("offset")[place].as_py(), str(error)) from None
        groups.setdefault((number, schema), []).append(place)
    starts = np.cumsum(counts) - counts
    for (number, schema), group in groups.items():
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
        )


def events_of(
    space: str, stamps: NDArray[np.int64], record_sizes: NDArray[np.int64], payload: memoryview
) -> SpaceEvents:
    """Events whose payload `SpaceEvents.payload_of` made, and the stamps and sizes of their records."""
    if not is_arrow(payload):
        return SpaceEvents(space, stamps, record_sizes, None, payload)
    return SpaceEvents(
        space, stamps, record_sizes, None, pa.Table.from_batches([read_events(payload, len(stamps))])
    )


def decoded(events: SpaceEvents, paths: Sequence[Path]) -> Iterator[tuple[SpaceEvents, ColumnBatch]]:
    """All events as columns, so many at a time that these take at most about 80 MB.

    How many attributes there are the subscribers decide, and how many events the publishers: a column for
    each attribute and a cell for each event would take as much memory as they like.
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
    """The attributes that some filter names, read out of the events' JSON; others are skipped.

    Arrow's columns are taken as they are, but that a null at the top says that there is no such attribute.
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
    """All rows of a table; copied only if they come from several records."""
    batches = table.to_batches()
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places ``start .. start + count`` of each record, one after the other."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())


def _values(payloads: pa.Array) -> list[memoryview]:
    """The bytes of each value of a large_binary array, without a copy."""
    whole, ends = _bytes(payloads)
    return [whole[start:end] for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


def _joined(payloads: pa.Array) -> memoryview:
    """The bytes of all values of a large_binary array, one after the other, without a copy."""
    whole, ends = _bytes(payloads)
    return whole[int(ends[0]) : int(ends[-1])]


def _bytes(payloads: pa.Array) -> tuple[memoryview, NDArray[np.int64]]:
    _, bounds, values = payloads.buffers()
    if values is None:
        return memoryview(b""), np.zeros(len(payloads) + 1, np.int64)
    ends = np.frombuffer(bounds, np.int64)[payloads.offset : payloads.offset + len(payloads) + 1]
    return memoryview(values), ends
