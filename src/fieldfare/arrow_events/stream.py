"""A record's payload as one Arrow IPC stream: a schema, one uncompressed record batch, the end mark.

A row is an event, a top-level column an attribute of events: ``id``, ``source``, ``specversion``, ``type``,
``data`` and so on. A null in a top-level column says that the event has no such attribute. The stream begins
with the bytes FF FF FF FF, which no JSON text does: so the two forms of payload are told apart.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

STREAM_START = b"\xff\xff\xff\xff"
_ALIGNMENT_BYTES = 8
_READ_ERRORS = (pa.ArrowException, OSError, ValueError, EOFError)


class ArrowPayloadError(ValueError):
    """Bytes that are not one Arrow stream of events; the text says why."""


def is_arrow(payload: Any) -> bool:
    """Whether a payload (anything with the buffer protocol) is an Arrow stream, not JSON lines."""
    return bytes(memoryview(payload)[:4]) == STREAM_START


def read_events(payload: Any, count: int | None = None) -> pa.RecordBatch:
    """The events of a payload, ``count`` rows if that is known. They stay where they are, if that is a
    multiple of 8.

    Raises
    ------
    ArrowPayloadError
        The stream is broken, or does not hold one record batch, or one of another number of rows.
    """
    buffer = pa.py_buffer(payload)
    if buffer.address % _ALIGNMENT_BYTES:
        buffer = _aligned(buffer)
    try:
        with pa.ipc.open_stream(buffer) as reader:
            batches = list(reader)
        if len(batches) == 1:
            batches[0].validate()
    except _READ_ERRORS as error:
        raise ArrowPayloadError(f"a broken Arrow stream: {error}") from None
    if len(batches) != 1:
        raise ArrowPayloadError(f"an Arrow stream of {len(batches)} batches where one is due")
    if count is not None and batches[0].num_rows != count:
        raise ArrowPayloadError(f"an Arrow stream of {batches[0].num_rows} rows where {count} are due")
    return batches[0]


class AppendedReader:
    """Reads payloads that the log has checked; a schema that many of them have is read once."""

    def __init__(self) -> None:
        self._schemas: dict[bytes, pa.Schema] = {}

    def read(self, payload: memoryview, count: int) -> tuple[bytes, pa.RecordBatch]:
        """A payload's schema as it is written there, and its events; `read_events` tells the errors."""
        head_bytes = 8 + int.from_bytes(payload[4:8], "little")
        head = bytes(payload[:head_bytes])
        schema = self._schemas.get(head)
        if schema is None:
            events = read_events(payload, count)
            self._schemas[head] = events.schema
            return head, events
        buffer = pa.py_buffer(payload)
        if buffer.address % _ALIGNMENT_BYTES:
            buffer = _aligned(buffer)
        try:
            events = pa.ipc.read_record_batch(buffer.slice(head_bytes), schema)
            events.validate()
        except _READ_ERRORS as error:
            raise ArrowPayloadError(f"a broken Arrow stream: {error}") from None
        if events.num_rows != count:
            raise ArrowPayloadError(f"an Arrow stream of {events.num_rows} rows where {count} are due")
        return head, events


def write_events(events: pa.RecordBatch) -> memoryview:
    """Events as a payload. Its length is a multiple of 8, so that payloads in a row stay aligned."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, events.schema) as writer:
        writer.write_batch(events)
    return memoryview(sink.getvalue())


def _aligned(buffer: pa.Buffer) -> pa.Buffer:
    """A copy where readers of numbers may look at it."""
    sink = pa.BufferOutputStream()
    sink.write(buffer)
    return sink.getvalue()
