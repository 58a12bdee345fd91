"""Reading of untrusted Arrow streams: time and memory stay bounded whatever the bytes are.

Uncompressed buffers are used in place. Compressed buffers are unpacked by Arrow's reader, which trusts the
size that each of them declares; these sizes are therefore added up and checked first.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from fieldfare.arrow_events.errors import StreamRefused, TableTooLarge

_READ_ERRORS = (pa.ArrowException, OSError, EOFError, ValueError, struct.error, IndexError)
_FILE_START = b"ARROW1"


def read_stream(body: bytes, max_rows: int, max_bytes: int) -> list[pa.RecordBatch]:
    """Read the record batches of an IPC stream, fully validated: their offsets, lengths and UTF-8.

    Parameters
    ----------
    max_rows : int
        Maximum rows of all batches together.
    max_bytes : int
        Maximum bytes of the unpacked buffers.

    Raises
    ------
    StreamRefused
        The bytes are not such a stream.
    TableTooLarge
        A maximum is exceeded.
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
        raise StreamRefused(f"the body is not an Arrow IPC stream: {_first_line(error)}") from None
    return batches


def _read_names(field: pa.Field) -> None:
    """Raise UnicodeDecodeError for a name that is not UTF-8, which Arrow's reader does not check."""
    field.name  # noqa: B018
    kind = field.type
    if pa.types.is_nested(kind):
        for number in range(kind.num_fields):
            _read_names(kind.field(number))


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:200]


def _unpacked_bytes(body: bytes) -> int:
    """Return the unpacked size that all compressed buffers of a stream declare."""
    total = 0
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
        if message.type in ("record batch", "dictionary") and message.body is not None:
            total += _claimed_bytes(memoryview(message.metadata), memoryview(message.body))
    return total


def _claimed_bytes(metadata: memoryview, body: memoryview) -> int:
    """Return the sum of the sizes declared by the compressed buffers of one message.

    The metadata is a flatbuffer (Arrow's Message.fbs): a table of a RecordBatch, or of a DictionaryBatch
    around one, whose `compression` says that every buffer begins with its unpacked length as an int64, -1 for
    a buffer that is not compressed.
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
                raise ValueError("a buffer declares a negative size")
            total += max(claimed, 0)
    return total


_DICTIONARY = 2


def _field(metadata: memoryview, table: int, number: int) -> int:
    """Return the offset of a field of a flatbuffer's table; 0 if the field is absent."""
    (back,) = struct.unpack_from("<i", metadata, table)
    (size,) = struct.unpack_from("<H", metadata, table - back)
    slot = 4 + 2 * number
    offset: int = struct.unpack_from("<H", metadata, table - back + slot)[0] if slot < size else 0
    return table + offset if offset else 0


def _table(metadata: memoryview, table: int, number: int) -> int:
    """Return the offset of the table or vector that a field refers to."""
    place = _field(metadata, table, number)
    if not place:
        raise ValueError("a message has no content")
    offset: int = struct.unpack_from("<I", metadata, place)[0]
    return place + offset
