"""A reader of one partition of the topic; sizes of unread ranges are estimated from nearby records.

While a tail brings the partition's records (see `hear`), its end is that of what was heard, and what it
brought is read from memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise

from fieldfare.storage.errors import FormatError, TrimmedError
from fieldfare.storage.event_log import Record
from fieldfare.storage.kafka.connections import KafkaConnections
from fieldfare.storage.kafka.heard import HeardRecords
from fieldfare.storage.kafka.pieces import AssembledRecord, Assembly
from fieldfare.storage.kafka.record_header import FORMAT, TORN_AFTER, RecordHeader
from fieldfare.storage.kafka.tail import Tail

ASK_EVERY_S = 1.0
"""Seconds after which the broker is asked for the end even though a tail hears: nothing depends on it."""

_SAMPLE_RECORDS = 32
"""Maximum records in a sample for estimates."""
_SAMPLE_FOR = 1_000
"""Distance from a sample, in offsets, beyond which a new sample is taken."""


class KafkaPartition:
    """One partition of the topic, for reading; sizes of unread ranges are estimated from nearby records."""

    def __init__(self, connections: KafkaConnections, number: int) -> None:
        self.number = number
        self._connections = connections
        self._sampled: tuple[int, float, float] | None = None
        """Offset of the last sample, and its bytes and events per offset."""
        self._last_stamp = 0, 0
        """An end of the partition, and the stamp of the last record before it."""
        self._heard: HeardRecords | None = None
        self._asked_end = 0
        """The end that the broker has given last."""
        self._ask_next_s = 0.0

    def start(self) -> int:
        return self.bounds()[0]

    def end(self) -> int:
        heard = self._hearing()
        if heard is None or time.monotonic() >= self._ask_next_s:
            self._asked_end = self._connections.end(self.number)
            self._ask_next_s = time.monotonic() + ASK_EVERY_S
        return self._asked_end if heard is None else max(heard.end(), self._asked_end)

    def hear(self, tail: Tail, start: int) -> None:
        """Take the records from an offset on from a tail, as long as it hears them."""
        self._heard, self._asked_end = HeardRecords(tail, self.number, start), 0

    def _hearing(self) -> HeardRecords | None:
        heard = self._heard
        if heard is not None and heard.tail.is_closed:
            heard = self._heard = None
        return heard if heard is not None and heard.tail.hears else None

    def read(self, start: int, end: int) -> Iterator[Record]:
        for whole in self._read(start, end):
            header = whole.header
            yield Record(
                whole.first,
                header.space,
                header.count,
                whole.payload or b"",
                header.appended_ms,
                header.stamp,
            )

    def read_headers(self, start: int, end: int) -> Iterator[tuple[int, RecordHeader, bytes]]:
        """Yield the offset, header and payload of each record in a range."""
        for whole in self._read(start, end):
            yield whole.first, whole.header, whole.payload or b""

    def _read(self, start: int, end: int) -> Iterator[AssembledRecord[RecordHeader]]:
        if start >= end:
            return
        heard = self._hearing()
        if heard is not None and heard.end() >= end and heard.holds(start):
            yield from map(self._checked, heard.read(start, end))
            return
        assembly = Assembly(RecordHeader)
        with self._connections.reading(self.number, start) as reader:
            for message in reader.messages(end):
                assembly.add(message)
                if assembly:
                    assembly.give_up_before(message.offset() - TORN_AFTER)
                for whole in assembly.in_order():
                    yield self._checked(whole)
            if not assembly:
                return
            # The last record continues after the range: its pieces were written together.
            high = reader.bounds()[1]
            for message in reader.messages(high):
                assembly.add(message, begin=False)
                assembly.give_up_before(message.offset() - TORN_AFTER)
                if not assembly:
                    break
            assembly.give_up_before(high)
        for whole in assembly.in_order():
            yield self._checked(whole)

    def _checked(self, whole: AssembledRecord[RecordHeader]) -> AssembledRecord[RecordHeader]:
        if whole.header.format > FORMAT:
            raise FormatError(
                f"{self._connections.address}, record {whole.first}: format {whole.header.format} is not"
                f" supported; the newest supported format is {FORMAT}"
            )
        return whole

    def first_since(self, time_ms: int) -> int:
        return self._first(lambda record: record.appended_ms >= time_ms)

    def bound(self, start: int, max_bytes: int, max_events: int) -> int:
        heard = self._hearing()
        if heard is not None and heard.end() > start and heard.holds(start):
            return heard.bound(start, max_bytes, max_events)
        low, high = self.bounds()
        if start < low:
            raise self._trimmed(low, high, start)
        if start >= high:
            return start
        mean_bytes, mean_events = self._means(start, high)
        fits = min(max_bytes / mean_bytes, max_events / mean_events)
        return min(high, start + max(1, int(min(fits, high))))

    def split(self, start: int, end: int, pieces: int, piece_bytes: int) -> list[tuple[int, int]]:
        if pieces == 1 or self._means(start, end)[0] * (end - start) <= piece_bytes:
            return [(start, end)]
        cuts = {start + (end - start) * piece // pieces for piece in range(pieces)} | {end}
        return list(pairwise(sorted(cuts)))

    def backlog_events(self, start: int) -> int:
        low, high = self.bounds()
        start = max(start, low)
        return max(1, int((high - start) * self._means(start, high)[1])) if start < high else 0

    def lowest_stamp(self, start: int) -> int | None:
        # Stamps never decrease, so the first record has the lowest one.
        low, high = self.bounds()
        first = next(self.read(max(start, low), high), None)
        return None if first is None else first.stamp

    def first_stamped(self, stamp: int) -> int | None:
        found = self._first(lambda record: record.stamp >= stamp)
        low, high = self.bounds()
        return None if next(self.read(max(found, low), high), None) is None else found

    def last_stamp(self) -> int:
        heard = self._hearing()
        if heard is not None and heard.stamp is not None and heard.end() >= self._asked_end:
            return heard.stamp
        low, high = self.bounds()
        if self._last_stamp[0] != high:
            back = 4
            stamp = self._last_stamp[1]
            while low < high:
                *_, last = (None, *self.read(max(low, high - back), high))
                if last is not None:
                    stamp = last.stamp
                    break
                if high - back <= low:
                    break
                back *= 4
            self._last_stamp = high, stamp
        return self._last_stamp[1]

    def size_bytes(self) -> int:
        """Return an estimate of the bytes of the stored payloads."""
        low, high = self.bounds()
        return int((high - low) * self._means(low, high)[0]) if low < high else 0

    def _first(self, is_behind: Callable[[Record], bool]) -> int:
        """Return the first offset from which `is_behind` holds for every record (binary search)."""
        low, high = self.bounds()
        end = high
        while low < high:
            middle = (low + high) // 2
            try:
                found = next(self.read(middle, end), None)
            except TrimmedError:
                # Retention has removed the records meanwhile.
                if (start := self.start()) <= middle:
                    raise
                low = start
                continue
            if found is None or is_behind(found):
                high = middle
            else:
                low = found.offset + 1
        return low

    def _means(self, start: int, end: int) -> tuple[float, float]:
        """Return the estimated mean bytes and events per offset from `start` on."""
        sampled = self._sampled
        if sampled is None or abs(start - sampled[0]) > _SAMPLE_FOR:
            size_bytes = events = offsets = 0
            for number, record in enumerate(self.read(start, end), 1):
                size_bytes, events = size_bytes + len(record.payload), events + record.count
                offsets = record.offset + 1 - start
                if number == _SAMPLE_RECORDS:
                    break
            if not offsets:
                return 1.0, 1.0
            sampled = start, max(1.0, size_bytes / offsets), max(0.01, events / offsets)
            if offsets >= _SAMPLE_RECORDS:  # A smaller sample does not predict later records.
                self._sampled = sampled
        return sampled[1:]

    def bounds(self) -> tuple[int, int]:
        """Return the partition's start and end, with one request."""
        return self._connections.bounds(self.number)

    def _trimmed(self, low: int, high: int, start: int) -> TrimmedError:
        return TrimmedError(
            f"{self._connections.address} holds the records from {low} to {high}, not {start}"
        )
