"""Checksums of database rows; database pages have none.

CRC32C detects every change of up to 32 adjacent bits, and processors have an instruction for it. A row
without a checksum comes from an older format and counts as unchecked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from struct import Struct

from crc32c import crc32c

Value = bytes | str | int | None


def checksum(*values: Value) -> int:
    """Return the checksum of a row's values; a number and its decimal digits have the same checksum."""
    parts: list[bytes] = []
    for value in values:
        if value is None:
            parts.append(b"-")
            continue
        if not isinstance(value, bytes):
            value = b"%d" % value if isinstance(value, int) else value.encode()
        parts += (b"%d:" % len(value), value)
    return crc32c(b"".join(parts))


def repaired(expected: object, values: Sequence[Value]) -> list[Value] | None:
    """Return a row's values with the one flipped bit restored that makes them match their checksum.

    Parameters
    ----------
    expected
        The stored checksum; if the flipped bit is its own, the values are returned as they are.
    values
        The values as read. A text that is no longer UTF-8 is given as bytes.

    Returns
    -------
    list or None
        None if no flipped bit, or more than one, explains the difference.
    """
    if not isinstance(expected, int) or not all(
        isinstance(each, bytes | str | int | None) for each in values
    ):
        return None
    actual, found = checksum(*values), list[list[Value]]()
    if any(each == actual for each in _one_bit_away(expected)):
        found.append(list(values))
    for at, value in enumerate(values):
        row = list(values)
        for row[at] in _one_bit_away(value):
            if checksum(*row) == expected and row not in found:
                found.append(row.copy())
    return found[0] if len(found) == 1 else None


_INTEGER_BYTES = (1, 2, 3, 4, 6, 8)
"""Sizes in which SQLite stores an integer."""


def _one_bit_away(value: Value) -> Iterator[Value]:
    """Yield the values of which one bit differs as SQLite stores them."""
    if isinstance(value, int):
        yield from (int(value) ^ 1 << bit for bit in range(63))
        for size_bytes in _INTEGER_BYTES:
            sign = 1 << 8 * size_bytes - 1
            yield value + sign if value < 0 else value - sign
    elif value is not None:
        stored = bytearray(value if isinstance(value, bytes) else value.encode())
        for at in range(8 * len(stored)):
            stored[at // 8] ^= 1 << at % 8
            with suppress(UnicodeDecodeError):
                yield stored.decode()
            stored[at // 8] ^= 1 << at % 8


_HEAD = Struct("<qqqqqq")


def record_checksum(
    offset: int,
    space: str,
    count: int,
    appended_ms: int,
    events_end: int,
    bytes_end: int,
    stamp: int,
    payload_checksum: int,
    origin: str | None = None,
) -> int:
    """Return the checksum of an event log record, computed from its fields and its payload's checksum.

    The payload comes first, so that a caller can try other values of the fields without reading it again.
    """
    head = _HEAD.pack(offset, count, appended_ms, events_end, bytes_end, stamp)
    text = space if origin is None else f"{space}\0{origin}"
    return crc32c(head + text.encode(), payload_checksum)
