"""Reading an Arrow stream that somebody sent: whatever its bytes are, time and memory stay bounded.

Uncompressed buffers are looked at where they are. Compressed ones are unpacked by the reader, which believes
the size that each of them claims; so these claims are added up before it gets to see them.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from fieldfare.arrow_events.errors import StreamRefused, TableTooLarge

_READ_ERRORS = (pa.ArrowException, OSError, EOFError, ValueError, struct.error, IndexError)
_FILE_START = b"ARROW1"


def read_stream(body: bytes, max_rows: int, max_bytes: int) -> list[pa.RecordBatch]:
    """The record batches of an IPC stream, checked in full: their offsets, lengths and UTF-8.

    Parameters
    ----------
    body : bytes
    max_rows : int
        How many rows all batches may have together.
    max_bytes : int
        How many bytes the buffers may take when they are unpacked.

    Raises
    ------
    StreamRefused
        The bytes are no such stream.
    TableTooLarge
        They hold more than they may.
    """
    if body.startswith(_FILE_START):
        raise StreamRefused(
            "this is Arrow's file format; events come in its stream format",
            hint="Write it with pyarrow.ipc.new_stream rather than new_file.",
        )
    try:
        unpacked_bytes = _unpacked_bytes(body)
        if unpacked_bytes > max_bytes:
            raise TableTooLarge(f"the buffers take {unpacked_bytes} bytes when unpacked", max_bytes=max_bytes)
        rows = 0
        batches = []
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            for field in reader.schema:
                _read_names(field)
            for batch in reader:
                rows += batch.num_rows
                batches.append(batch)
        if rows > max_rows:
            raise TableTooLarge(f"the stream has {rows} rows", max_events=max_rows)
        for batch in batches:
            batch.validate(full=True)
    except (StreamRefused, TableTooLarge):
        raise
    except _READ_ERRORS as error:
        raise StreamRefused(f"the body is no Arrow IPC stream: {_first_line(error)}") from None
    return batches


def _read_names(field: pa.Field) -> None:
    """UnicodeDecodeError for a name that is not UTF-8: the reader lets that pass."""
    field.name  # noqa: B018
    kind = field.type
    if pa.types.is_nested(kind):
        for number in range(kind.num_fields):
            _read_names(kind.field(number))


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:200]


def _unpacked_bytes(body: bytes) -> int:
    """What all compressed buffers of a stream claim to take when unpacked."""
    total = 0
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
        if message.type in ("record batch", "dictionary") and message.body is not None:
            total += _claimed_bytes(memoryview(message.metadata), memoryview(message.body))
    return total


def _claimed_bytes(metadata: memoryview, body: memoryview) -> int:
    """The sizes that stand before the compressed buffers of one message.

    The metadata is a flatbuffer (Arrow's Message.fbs): a table of a RecordBatch, or of a DictionaryBatch
    around one, whose `compression` says that every buffer begins with its unpacked length as an int64, -1
    for a buffer that is not packed.
    """
    message = struct.unpack_from("<I", metadata, 0)[0]
    (kind,) = struct.unpack_from("<B", metadata, _field(metadata, message, 1))
    batch = _table(metadata, message, 2)
    if kind == _DICTIONARY:
        batch = _table(metadata, batch, 1)
    if not _field(metadata, batch, 3):
        return 0
    buffers = _table(metadata, batch, 2)
    (count,) = struct.unpack_from("<I", metadata, buffers)
    total = 0
    for number in range(count):
        start, size = struct.unpack_from("<qq", metadata, buffers + 4 + 16 * number)
        if size >= 8:
            (claimed,) = struct.unpack_from("<q", body, start)
            if claimed < -1:
                raise ValueError("a buffer of a negative size")
            total += max(claimed, 0)
    return total


_DICTIONARY = 2


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table is; 0 if it is not there."""
    (back,) = struct.unpack_from("<i", metadata, table)
    (size,) = struct.unpack_from("<H", metadata, table - back)
    slot = 4 + 2 * number
    offset: int = struct.unpack_from("<H", metadata, table - back + slot)[0] if slot < size else 0
    return table + offset if offset else 0


def _table(metadata: memoryview, table: int, number: int) -> int:
    """Where the table or vector is that a field refers to."""
    place = _field(metadata, table, number)
    if not place:
        raise ValueError("a message without its content")
    offset: int = struct.unpack_from("<I", metadata, place)[0]
    return place + offset
