"""The bytes of events that are being delivered: the newest records, and those read back for the slow."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from fieldfare.arrow_events.stream import ArrowPayloadError
from fieldfare.gateway.delivery import INDEX_BITS, INDEX_MASK
from fieldfare.gateway.record_lines import RecordLines, open_record
from fieldfare.storage.errors import EventLogError, TrimmedError
from fieldfare.storage.event_log import EventLog

READ_AHEAD_BYTES = 1 << 20


class RecordCache:
    """The least recently used records, made into JSON lines as far as they are needed.

    Parameters
    ----------
    log
        Where a record is read that is not held.
    max_bytes
        Bytes held, of payloads and of the lines of Arrow records.
    """

    def __init__(self, log: EventLog, max_bytes: int) -> None:
        self._log = log
        self._max_bytes = max_bytes
        self._held: OrderedDict[int, RecordLines] = OrderedDict()
        self._size_bytes = 0

    def put(self, offset: int, payload: bytes) -> None:
        """Hold a record that was just appended: live subscribers will want it in a moment."""
        if offset in self._held:
            return
        self._held[offset] = record = open_record(payload)
        self._size_bytes += record.size_bytes
        self._shrink()

    def lines(self, offset: int, indexes: Sequence[int]) -> Sequence[bytes] | None:
        """Some events of a record, one JSON line each; None when retention has removed it.

        Raises
        ------
        EventLogError
            The record is broken.
        """
        record = self._held.get(offset)
        if record is None:
            record = self._read(offset)
            if record is None:
                return None
        elif offset in self._held:
            self._held.move_to_end(offset)
        before_bytes = record.size_bytes
        try:
            lines = record.lines(indexes)
        except ArrowPayloadError as error:
            raise EventLogError(f"record {offset} cannot be read: {error}") from None
        if offset in self._held:
            self._size_bytes += record.size_bytes - before_bytes
            self._shrink()
        return lines

    def _read(self, offset: int) -> RecordLines | None:
        """A record from the log, and with it those that follow."""
        found: RecordLines | None = None
        try:
            for record in self._log.read(offset, self._log.bound(offset, READ_AHEAD_BYTES, 1 << 62)):
                self.put(record.offset, record.payload)
                if record.offset == offset:
                    found = self._held.get(offset) or open_record(record.payload)
        except TrimmedError:
            return None
        return found

    def _shrink(self) -> None:
        while self._size_bytes > self._max_bytes and len(self._held) > 1:
            _, oldest = self._held.popitem(last=False)
            self._size_bytes -= oldest.size_bytes

    def compose(
        self,
        keys: Iterable[int],
        write: Callable[[list[bytes], int, int, bytes], None],
        parts: list[bytes],
    ) -> list[int]:
        """Write each message's three parts to a list; returns the keys whose events are gone."""
        gone: list[int] = []
        for offset, group in groupby(keys, lambda key: key >> INDEX_BITS):
            of_record = list(group)
            indexes = [key & INDEX_MASK for key in of_record]
            lines = self.lines(offset, indexes)
            if lines is None:
                gone += of_record
            else:
                for index, line in zip(indexes, lines, strict=True):
                    write(parts, offset, index, line)
        return gone


def write_sse(parts: list[bytes], offset: int, index: int, line: bytes) -> None:
    """One message as a server-sent event."""
    parts += (b"id: 0-%d-%d\ndata: " % (offset, index), line, b"\n\n")


def write_pulled(parts: list[bytes], offset: int, index: int, line: bytes) -> None:
    """One message as an element of a pull's answer."""
    start = b',{"position":"0-%d-%d","event":' if parts else b'{"position":"0-%d-%d","event":'
    parts += (start % (offset, index), line, b"}")
