"""A record's payload as an Arrow IPC stream: a schema, one uncompressed record batch, the end mark.

A row is an event, a top-level column an attribute of events: ``id``, ``source``, ``specversion``, ``type``,
``data`` and so on. A null in a top-level column means that the event lacks the attribute. The stream begins
with the bytes FF FF FF FF, which distinguishes it from JSON.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

STREAM_START = b"\xff\xff\xff\xff"
_ALIGNMENT_BYTES = 8
_READ_ERRORS = (pa.ArrowException, OSError, ValueError, EOFError)


class ArrowPayloadError(ValueError):
    """The bytes are not an Arrow stream of events; the message says why."""


def is_arrow(payload: Any) -> bool:
    """Whether a payload (an object with the buffer protocol) is an Arrow stream rather than JSON lines."""
    return bytes(memoryview(payload)[:4]) == STREAM_START


def read_events(payload: Any, count: int | None = None) -> pa.RecordBatch:
    """Read the events of a payload, which must be ``count`` rows if given. Without a copy if the payload's
    address is a multiple of 8.

    Raises
    ------
    ArrowPayloadError
        The stream is corrupt, or does not contain exactly one record batch, or a batch of another number of
        rows.
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
        raise ArrowPayloadError(f"a corrupt Arrow stream: {error}") from None
    if len(batches) != 1:
        raise ArrowPayloadError(f"an Arrow stream of {len(batches)} batches; expected 1")
    if count is not None and batches[0].num_rows != count:
        raise ArrowPayloadError(f"an Arrow stream of {batches[0].num_rows} rows; expected {count}")
    return batches[0]


class AppendedReader:
    """A reader of payloads that the log has checked; a schema common to several payloads is parsed once."""

    def __init__(self) -> None:
        self._schemas: dict[bytes, pa.Schema] = {}

    def read(self, payload: memoryview, count: int) -> tuple[bytes, pa.RecordBatch]:
        """Return a payload's encoded schema, and its events. Raises the errors of `read_events`."""
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
            raise ArrowPayloadError(f"a corrupt Arrow stream: {error}") from None
        if events.num_rows != count:
            raise ArrowPayloadError(f"an Arrow stream of {events.num_rows} rows; expected {count}")
        return head, events


def write_events(events: pa.RecordBatch) -> memoryview:
    """Encode events as a payload. Its length is a multiple of 8, so that adjacent payloads stay aligned."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, events.schema) as writer:
        writer.write_batch(events)
    return memoryview(sink.getvalue())


def _aligned(buffer: pa.Buffer) -> pa.Buffer:
    """Return a copy at an aligned address."""
    sink = pa.BufferOutputStream()
    sink.write(buffer)
    return sink.getvalue()
