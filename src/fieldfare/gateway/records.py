"""The bytes of events that are being delivered: the newest records, and those read back for the slow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

from fieldfare.gateway.delivery import INDEX_BITS, INDEX_MASK
from fieldfare.storage.errors import TrimmedError
from fieldfare.storage.event_log import EventLog

READ_AHEAD_BYTES = 1 << 20


class RecordCache:
    """The least recently used records' payloads, split into lines when first needed.

    Parameters
    ----------
    log
        Where a record is read that is not held.
    max_bytes
        Payload bytes held.
    """

    def __init__(self, log: EventLog, max_bytes: int) -> None:
        self._log = log
        self._max_bytes = max_bytes
        self._held: OrderedDict[int, bytes | list[bytes]] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._size_bytes = 0

    def put(self, offset: int, payload: bytes) -> None:
        """Hold a record that was just appended: live subscribers will want it in a moment."""
        if offset in self._held:
            return
        self._held[offset] = payload
        self._sizes[offset] = len(payload)
        self._size_bytes += len(payload)
        while self._size_bytes > self._max_bytes and len(self._held) > 1:
            oldest, _ = self._held.popitem(last=False)
            self._size_bytes -= self._sizes.pop(oldest)

    def lines(self, offset: int) -> list[bytes] | None:
        """The events of a record, one JSON line each; None when retention has removed it."""
        held = self._held.get(offset)
        if held is None:
            try:
                for record in self._log.read(offset, self._log.bound(offset, READ_AHEAD_BYTES, 1 << 62)):
                    self.put(record.offset, record.payload)
                    if record.offset == offset:
                        held = record.payload
            except TrimmedError:
                return None
            if held is None:
                return None
        else:
            self._held.move_to_end(offset)
        if isinstance(held, bytes):
            held = held.split(b"\n")
            held.pop()
            if offset in self._held:
                self._held[offset] = held
        return held

    def compose(
        self,
        keys: Iterable[int],
        write: Callable[[list[bytes], int, int, bytes], None],
        parts: list[bytes],
    ) -> list[int]:
        """Write each message's three parts to a list; returns the keys whose events are gone."""
        gone: list[int] = []
        offset = -1
        lines: list[bytes] | None = None
        for key in keys:
            if key >> INDEX_BITS != offset:
                offset = key >> INDEX_BITS
                lines = self.lines(offset)
            if lines is None:
                gone.append(key)
            else:
                index = key & INDEX_MASK
                write(parts, offset, index, lines[index])
        return gone


def write_sse(parts: list[bytes], offset: int, index: int, line: bytes) -> None:
    """One message as a server-sent event."""
    parts += (b"id: 0-%d-%d\ndata: " % (offset, index), line, b"\n\n")


def write_pulled(parts: list[bytes], offset: int, index: int, line: bytes) -> None:
    """One message as an element of a pull's answer."""
    start = b',{"position":"0-%d-%d","event":' if parts else b'{"position":"0-%d-%d","event":'
    parts += (start % (offset, index), line, b"}")
