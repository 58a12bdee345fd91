"""The events of one record as JSON lines, whatever form the record has in the log.

A record is asked by the event loop, and by a thread for what takes long: `is_ready` says which.
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
"""An Arrow record of so few rows is written as JSON at once: to write one row costs as much."""
SPLIT_AT_ONCE_BYTES = 256 << 10
"""A JSON record of so few bytes is split in less time than a thread takes to be asked."""

ASKED_SINGLY_MOST = 8
"""After so many times that a part of a record was written, what is left of it is."""


class RecordLines(Protocol):
    """A record that is being delivered."""

    size_bytes: int
    """What is held of it."""
    expires: bool
    """Whether one of the lines that were asked for may be of use until some time only."""
    appended_ms: int
    """When it was appended, in milliseconds since 1970."""

    def is_ready(self, indexes: Sequence[int]) -> bool:
        """Whether these lines are there without work to speak of."""
        ...

    def lines(self, indexes: Sequence[int]) -> Sequence[bytes]:
        """The events at some places of the record, each as JSON without a line feed."""
        ...


def open_record(payload: bytes, appended_ms: int) -> RecordLines:
    """The lines of a record's payload; nothing is decoded yet."""
    return (_ArrowLines if is_arrow(payload) else _JsonLines)(payload, appended_ms)


class _JsonLines:
    """Split when first needed."""

    def __init__(self, payload: bytes, appended_ms: int) -> None:
        self.size_bytes = len(payload)
        self.appended_ms = appended_ms
        self.expires = False
        self._payload = payload
        self._lines: list[bytes] | None = None

    def is_ready(self, indexes: Sequence[int]) -> bool:
        return self._lines is not None or self.size_bytes <= SPLIT_AT_ONCE_BYTES

    def lines(self, indexes: Sequence[int]) -> Sequence[bytes]:
        payload = self._payload  # first: another thread lets go of it when the lines are there
        lines = self._lines
        if lines is None:
            self.expires = MARK in payload
            lines = self._lines = payload.split(b"\n")
            self._payload = b""
        return [lines[index] for index in indexes]


class _ArrowLines:
    """Rows become lines when they are needed: few subscribers want all of a large record."""

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
        if size <= WRITTEN_WHOLE_ROWS or self._asked > ASKED_SINGLY_MOST or 2 * len(wanted) > size:
            wanted = [index for index in range(size) if index not in self._written]
        lines = json_lines(self._events.take(pa.array(wanted, pa.int64())))
        self._written.update(zip(wanted, lines, strict=True))
        self.size_bytes += sum(map(len, lines))


def all_lines(payload: bytes) -> list[bytes]:
    """Every event of a payload as JSON without a line feed."""
    if is_arrow(payload):
        return json_lines(read_events(payload))
    return payload.splitlines()
