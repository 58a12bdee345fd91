"""AP, the first operator of the pipeline: from records of the log to columns of events, space by space.

A batch of records is an Arrow batch, one row a record, in the order of the log::

    offset   int64         the record's offset
    space    string        whose events these are
    count    int32         how many events
    payload  large_binary  the events, one JSON object a line, every line ended by a newline

Payloads end in a newline, so that the values of the binary column, which lie one after the other in memory,
are one JSON-lines text; nothing is copied where a batch holds records of one space only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldfare.matching.columns import ColumnBatch
from fieldfare.matching.json_decoder import decode_json_lines
from fieldfare.model import Path

RECORDS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("space", pa.string(), nullable=False),
        pa.field("count", pa.int32(), nullable=False),
        pa.field("payload", pa.large_binary(), nullable=False),
    ]
)
"""What a batch of records looks like."""


@dataclass(frozen=True, slots=True)
class SpaceEvents:
    """The events of one space in a batch of records, in the order of the log.

    Attributes
    ----------
    space : str
    offsets : int64[n]
        The offset of each event's record.
    places : int64[n] or None
        Where each event stands among all events of the batch; None when the batch holds no others.
    payload : buffer
        The events, one JSON object a line.
    """

    space: str
    offsets: NDArray[np.int64]
    places: NDArray[np.int64] | None
    payload: Any

    @property
    def size(self) -> int:
        return len(self.offsets)

    def payload_of(self, chosen: NDArray[np.int64]) -> pa.Buffer:
        """The payload of only these events, in this order."""
        text = np.frombuffer(self.payload, np.uint8)
        bounds = np.concatenate((np.zeros(1, np.int64), np.flatnonzero(text == ord("\n")) + 1))
        lines = pa.Array.from_buffers(
            pa.large_binary(), self.size, [None, pa.py_buffer(bounds), pa.py_buffer(self.payload)]
        )
        return pa.py_buffer(_joined(lines.take(pa.array(chosen))))


def record_batch(records: Iterable[Any]) -> pa.RecordBatch:
    """Records (anything with offset, space, count and payload) as an Arrow batch of ``RECORDS``."""
    rows = list(records)
    return pa.record_batch(
        [
            pa.array([row.offset for row in rows], pa.int64()),
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
    """Take a batch of records apart into the events of each space, in the order they first appear."""
    if not events.num_rows:
        return
    offsets, counts = events.column("offset").to_numpy(), event_counts(events)
    payloads = events.column("payload")
    spaces = events.column("space").dictionary_encode()
    names: list[str] = spaces.dictionary.to_pylist()
    if len(names) == 1:
        yield SpaceEvents(names[0], np.repeat(offsets, counts), None, _joined(payloads))
        return
    space_of_record = spaces.indices.to_numpy()
    space_of_event = np.repeat(space_of_record, counts)
    for number, name in enumerate(names):
        chosen = np.flatnonzero(space_of_record == number)
        yield SpaceEvents(
            name,
            np.repeat(offsets[chosen], counts[chosen]),
            np.flatnonzero(space_of_event == number),
            _joined(payloads.take(pa.array(chosen))),
        )


def _joined(payloads: pa.Array) -> memoryview:
    """The bytes of all values of a large_binary array, one after the other, without a copy."""
    _, bounds, values = payloads.buffers()
    if values is None:
        return memoryview(b"")
    ends = np.frombuffer(bounds, np.int64)[payloads.offset : payloads.offset + len(payloads) + 1]
    return memoryview(values)[int(ends[0]) : int(ends[-1])]


def decode(events: SpaceEvents, paths: Sequence[Path]) -> ColumnBatch:
    """Read the attributes that some filter names out of the events' JSON; others are skipped."""
    return decode_json_lines(events.payload, events.size, paths)
