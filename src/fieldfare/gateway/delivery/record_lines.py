"""The events of one record as JSON lines, in whichever format the log stores the record.

Lines are requested on the event loop where that is fast, otherwise on a thread: `is_ready` says which.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from fieldfare.arrow_events.json_text import json_lines
from fieldfare.arrow_events.stream import is_arrow, read_events
from fieldfare.gateway.delivery.expiry import ATTRIBUTE, MARK

WRITTEN_WHOLE_ROWS = 256
"""Maximum rows of an Arrow record that is written as JSON as a whole (one row would cost as much); of larger
records only the requested rows are written."""
SPLIT_AT_ONCE_BYTES = 256 << 10
"""Maximum bytes of a JSON record split on the event loop, which takes less time than handing it to a thread;
larger records go to a thread."""

ASKED_SINGLY_MAX = 8
"""Maximum partial writes of an Arrow record; the next one writes all remaining rows."""


class RecordLines(Protocol):
    """A record that is being delivered."""

    size_bytes: int
    """Bytes held in memory for the record."""
    expires: bool
    """Whether one of the requested lines may have an expiry time."""
    appended_ms: int
    """Time of the append, in milliseconds since 1970."""

    def is_ready(self, indexes: Sequence[int]) -> bool:
        """Whether these lines are available without significant work."""

    def lines(self, indexes: Sequence[int]) -> Sequence[bytes]:
        """Return the events at these indexes of the record, each as JSON without a line feed."""


def open_record(payload: bytes, appended_ms: int) -> RecordLines:
    """Return the lines of a record's payload, without decoding anything yet."""
    return (_ArrowLines if is_arrow(payload) else _JsonLines)(payload, appended_ms)


class _JsonLines:
    """Lines of a JSON record, split at the first request."""

    def __init__(self, payload: bytes, appended_ms: int) -> None:
        self.size_bytes = len(payload)
        self.appended_ms = appended_ms
        self.expires = False
        self._payload = payload
        self._lines: list[bytes] | None = None
        self._splitting = threading.Lock()

    def is_ready(self, indexes: Sequence[int]) -> bool:
        return self._lines is not None or self.size_bytes <= SPLIT_AT_ONCE_BYTES

    def lines(self, indexes: Sequence[int]) -> Sequence[bytes]:
        lines = self._lines
        if lines is None:
            with self._splitting:  # Many subscribers request a new record at once: it is split for all.
                lines = self._lines
                if lines is None:
                    self.expires = MARK in self._payload
                    lines = self._lines = self._payload.split(b"\n")
                    self._payload = b""
        return [lines[index] for index in indexes]


class _ArrowLines:
    """Lines of an Arrow record, written on request: few subscribers want all rows of a large record."""

    def __init__(self, payload: bytes, appended_ms: int) -> None:
        self.size_bytes = len(payload)
        self.appended_ms = appended_ms
        self.expires = False
        self._payload = payload
        self._events: pa.RecordBatch | None = None
        self._written: dict[int, bytes] = {}
        self._asked = 0
        self._writing = threading.Lock()

    def is_ready(self, indexes: Sequence[int]) -> bool:
        return all(index in self._written for index in indexes)

    def lines(self, indexes: Sequence[int]) -> Sequence[bytes]:
        if not self.is_ready(indexes):
            with self._writing:
                if wanted := [index for index in dict.fromkeys(indexes) if index not in self._written]:
                    self._write(wanted)
        return [self._written[index] for index in indexes]

    def _write(self, wanted: Sequence[int]) -> None:
        if self._events is None:
            self._events = read_events(self._payload)
            self.expires = ATTRIBUTE in self._events.schema.names
        size = self._events.num_rows
        self._asked += 1
        if size <= WRITTEN_WHOLE_ROWS or self._asked > ASKED_SINGLY_MAX or 2 * len(wanted) > size:
            wanted = [index for index in range(size) if index not in self._written]
        lines = json_lines(self._events.take(pa.array(wanted, pa.int64())))
        self._written.update(zip(wanted, lines, strict=True))
        self.size_bytes += sum(map(len, lines))


def all_lines(payload: bytes) -> list[bytes]:
    """Return every event of a payload as JSON without a line feed."""
    if is_arrow(payload):
        return json_lines(read_events(payload))
    return payload.splitlines()
