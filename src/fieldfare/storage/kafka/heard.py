"""The records of a partition that a tail has brought, held in memory until they are read for good."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from fieldfare.storage.kafka.pieces import AssembledRecord, Assembly
from fieldfare.storage.kafka.record_header import TORN_AFTER, RecordHeader
from fieldfare.storage.kafka.tail import MESSAGE_BYTES, Tail

HELD_BYTES_MAX = 4 << 20
"""Maximum bytes of held records; the oldest beyond it are dropped, and read from the broker if needed."""


class HeardRecords:
    """The records of one partition from an offset on, as far as they have been heard.

    Parameters
    ----------
    tail
        The tail that brings them.
    number
        Number of the partition.
    start
        The offset at which the tail began.

    Attributes
    ----------
    stamp : int or None
        The stamp of the last record, the greatest one; None before the first record.
    """

    def __init__(self, tail: Tail, number: int, start: int) -> None:
        self.tail = tail
        self.stamp: int | None = None
        self._number = number
        self._from = self._end = start
        self._assembly = Assembly(RecordHeader)
        self._held: deque[AssembledRecord[RecordHeader]] = deque()
        self._bytes = 0

    def end(self) -> int:
        """Return the offset up to which all records are held, or were dropped."""
        messages, heard, is_end = self.tail.take(self._number)
        for message in messages:
            self._assembly.add(message)
            if self._assembly:
                self._assembly.give_up_before(message.offset() - TORN_AFTER)
            self._hold()
        if is_end:  # The pieces of a record become visible together.
            self._assembly.give_up_before(heard)
            self._hold()
        begun = self._assembly.first()
        self._end = heard if begun is None else begun
        return self._end

    def holds(self, start: int) -> bool:
        """Return whether a record at an offset would be held, with all behind it that have been heard."""
        return self._from <= start < self._end

    def read(self, start: int, end: int) -> Iterator[AssembledRecord[RecordHeader]]:
        """Yield the records of a range, and drop those before it."""
        while self._held and self._held[0].first < start:
            self._bytes -= _size_bytes(self._held.popleft())
        self._from = max(self._from, start)
        for whole in list(self._held):
            if whole.first >= end:
                break
            yield whole

    def bound(self, start: int, max_bytes: int, max_events: int) -> int:
        """Return the end of a range within both limits, as `LogPartition.bound` does."""
        size_bytes = events = 0
        for whole in self._held:
            if whole.first < start:
                continue
            size_bytes += _size_bytes(whole)
            events += whole.header.count
            if (size_bytes > max_bytes or events > max_events) and events > whole.header.count:
                return whole.first
        return self._end

    def _hold(self) -> None:
        """Hold the records that are complete, and drop the oldest that are too much."""
        for whole in self._assembly.in_order():
            self._held.append(whole)
            self._bytes += _size_bytes(whole)
            self.stamp = whole.header.stamp
        while self._bytes > HELD_BYTES_MAX:
            dropped = self._held.popleft()
            self._bytes -= _size_bytes(dropped)
            self._from = max(self._from, dropped.last + 1)


def _size_bytes(whole: AssembledRecord[RecordHeader]) -> int:
    return sum(map(len, whole.parts)) + MESSAGE_BYTES
