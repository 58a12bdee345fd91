"""The bytes of events in delivery: the newest records, and older ones read back for slow subscribers."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Annotated

import msgspec

from fieldfare.arrow_events.stream import ArrowPayloadError
from fieldfare.delivery.keys import INDEX_BITS, INDEX_MASK, OFFSET_BITS, OFFSET_MASK
from fieldfare.gateway.delivery.expiry import is_over
from fieldfare.gateway.delivery.names import name_of
from fieldfare.gateway.delivery.record_lines import RecordLines, open_record
from fieldfare.gateway.fair_limiter import FairExecutor
from fieldfare.gateway.member_types import EventJson, PositionText
from fieldfare.storage.errors import EventLogError, TrimmedError
from fieldfare.storage.event_log import EventReader

READ_AHEAD_BYTES = 1 << 20

PIECE_BYTES = 256 << 10
"""Bytes of events composed in one step; the step ends with the event that reaches it."""

PARTS = 3
"""Elements that one message adds to the list that it is written to."""

NAMED_RECORDS = 50
"""Maximum records whose ordering keys are read in one task of a thread, as each may have to be read from the
log; the next records wait in the fair queue again."""

_Lines = tuple[Sequence[bytes], bool, int]
"""Lines, whether one of them may have an expiry time, and when they were appended (milliseconds since
1970)."""

Write = Callable[[list[bytes], int, int, int, bytes], None]


class RecordCache:
    """A cache of the most recently used records, converted to JSON lines on request.

    The slow work, reading the log and converting large records, runs on threads.

    Parameters
    ----------
    log
        The log from which records are read that are not in the cache.
    max_bytes
        Maximum bytes held: payloads and the lines of Arrow records. Beyond it the least recently used records
        are dropped, but one record always stays.
    readers
        The threads that read the log.
    """

    def __init__(self, log: EventReader, max_bytes: int, readers: FairExecutor) -> None:
        self._log = log
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[int, RecordLines] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._size_bytes = 0
        self._being_read: dict[int, threading.Event] = {}
        """Records being read from the log; the event is set after the read."""
        self._readers = readers

    def put(self, place: int, payload: bytes, appended_ms: int) -> None:
        """Cache a record that was just appended: live subscribers will soon want it."""
        with self._lock:
            self._put(place, payload, appended_ms)

    async def compose(
        self,
        space: str,
        keys: Sequence[int],
        counts: Mapping[int, int],
        write: Write,
        parts: list[bytes],
        max_age_s: float | None = None,
        fits: Callable[[int, int], bool] | None = None,
    ) -> tuple[int, list[int], list[int]]:
        """Write the messages of the first keys to a list, three parts each.

        Parameters
        ----------
        space, keys
            The space that the log is read for, in its turn, and the keys of the messages.
        counts
            The attempt number of each message that is not in its first attempt.
        write, parts
            The function that writes one message, and the list that it writes to.
        max_age_s
            Maximum age of an event in seconds; older ones count as expired.
        fits
            Whether a key's message, of a size in bytes, may be written. The first that may not ends the call.

        Returns
        -------
        done, gone, over
            The number of keys processed, at least one unless its message does not fit; of these, the keys
            whose events retention removed, and the keys whose events have expired. The others are written.

        Raises
        ------
        EventLogError
            A record is corrupt.
        """
        done, size_bytes = 0, 0
        oldest_ms = -math.inf if max_age_s is None else 1000 * (time.time() - max_age_s)
        gone: list[int] = []
        over: list[int] = []
        for place, group in groupby(keys, lambda key: key >> INDEX_BITS):
            indexes = [key & INDEX_MASK for key in group]
            found = self._lines_held(place, indexes)
            if found is None:
                if size_bytes:
                    break  # what is written so far need not wait for a thread
                found = await self._readers.run(space, self._find_lines, place, indexes)
            if found is None:
                gone += (place << INDEX_BITS | index for index in indexes)
                done += len(indexes)
                continue
            lines, expires, appended_ms = found
            if appended_ms < oldest_ms:
                over += (place << INDEX_BITS | index for index in indexes)
                done += len(indexes)
                continue
            now_s = time.time() if expires else 0.0
            for index, line in zip(indexes, lines, strict=True):
                if expires and is_over(line, now_s):
                    over.append(place << INDEX_BITS | index)
                    done += 1
                    continue
                if fits is not None and not fits(place << INDEX_BITS | index, len(line)):
                    return done, gone, over
                write(parts, place, index, counts.get(place << INDEX_BITS | index, 1) if counts else 1, line)
                done += 1
                size_bytes += len(line)
                if size_bytes >= PIECE_BYTES:
                    return done, gone, over
        return done, gone, over

    async def names(self, space: str, keys: Sequence[int], path: str) -> list[int | None]:
        """Return the numbers of some events' ordering keys, their values at a path; None for no value.

        An event that is removed or unreadable has None too: composing its message reports that.
        """
        records = [list(group) for _, group in groupby(keys, lambda key: key >> INDEX_BITS)]
        found: list[int | None] = []
        for start in range(0, len(records), NAMED_RECORDS):
            some = [key for record in records[start : start + NAMED_RECORDS] for key in record]
            found += await self._readers.run(space, self._names, some, path)
        return found

    def _names(self, keys: Sequence[int], path: str) -> list[int | None]:
        name = name_of(path)
        found: list[int | None] = []
        for place, group in groupby(keys, lambda key: key >> INDEX_BITS):
            indexes = [key & INDEX_MASK for key in group]
            try:
                lines = self.lines(place, indexes)
            except EventLogError:
                lines = None
            found += [None] * len(indexes) if lines is None else map(name, lines)
        return found

    def lines(self, place: int, indexes: Sequence[int]) -> Sequence[bytes] | None:
        """Return some events of a record, one JSON line each; None when retention has removed the record.

        Raises
        ------
        EventLogError
            The record is corrupt.
        """
        found = self._find_lines(place, indexes)
        return None if found is None else found[0]

    def _find_lines(self, place: int, indexes: Sequence[int]) -> _Lines | None:
        record = self._find_or_read(place)
        return None if record is None else self._lines_of(place, record, indexes)

    def _find_or_read(self, place: int) -> RecordLines | None:
        """Return a record, reading it once for all threads that wait for it."""
        while (record := self._find(place)) is None:
            with self._lock:
                read = self._being_read.setdefault(place, mine := threading.Event())
            if read is mine:
                try:
                    return self._read(place)
                finally:
                    with self._lock:
                        del self._being_read[place]
                    read.set()
            read.wait()
        return record

    def size_bytes(self, place: int) -> int:
        """Return the bytes that a cached record takes; 0 for one that is not cached."""
        return self._sizes.get(place, 0)

    def _lines_held(self, place: int, indexes: Sequence[int]) -> _Lines | None:
        """Return some lines of a cached record; None if that would take significant work."""
        record = self._find(place)
        if record is None or not record.is_ready(indexes):
            return None
        return self._lines_of(place, record, indexes)

    def _lines_of(self, place: int, record: RecordLines, indexes: Sequence[int]) -> _Lines:
        try:
            lines = record.lines(indexes)
        except ArrowPayloadError as error:
            raise EventLogError(f"record {place & OFFSET_MASK} cannot be read: {error}") from None
        if record.size_bytes != self._sizes.get(place):
            with self._lock:
                if self._held.get(place) is record:
                    self._weigh(place, record.size_bytes)
        return lines, record.expires, record.appended_ms

    def _find(self, place: int) -> RecordLines | None:
        with self._lock:
            record = self._held.get(place)
            if record is not None:
                self._held.move_to_end(place)
            return record

    def _read(self, place: int) -> RecordLines | None:
        """Read a record from the log, and cache it with the records that follow it."""
        found: RecordLines | None = None
        try:
            offset = place & OFFSET_MASK
            log = self._log.partitions[place >> OFFSET_BITS]
            for record in log.read(offset, log.bound(offset, READ_AHEAD_BYTES, 1 << 62)):
                with self._lock:
                    self._put(place - offset + record.offset, record.payload, record.appended_ms)
                    if record.offset == offset:
                        found = self._held.get(place) or open_record(record.payload, record.appended_ms)
        except EventLogError as error:
            # The unreadable record may be a later one, which was not requested.
            if found is None and not isinstance(error, TrimmedError):
                raise
        return found

    def _put(self, place: int, payload: bytes, appended_ms: int) -> None:
        if place in self._held:
            return
        self._held[place] = record = open_record(payload, appended_ms)
        self._weigh(place, record.size_bytes)

    def _weigh(self, place: int, size_bytes: int) -> None:
        """Account for the new size of a cached record, and evict the oldest records over the limit."""
        self._size_bytes += size_bytes - self._sizes.get(place, 0)
        self._sizes[place] = size_bytes
        while self._size_bytes > self._max_bytes and len(self._held) > 1:
            oldest, _ = self._held.popitem(last=False)
            self._size_bytes -= self._sizes.pop(oldest)


def write_sse(parts: list[bytes], place: int, index: int, attempt: int, line: bytes) -> None:
    """Write one message as a server-sent event, with an ``attempt`` field unless it is the first attempt."""
    start = b"id: %d-%d-%d\ndata: " % (place >> OFFSET_BITS, place & OFFSET_MASK, index)
    parts += (start if attempt == 1 else b"attempt: %d\n" % attempt + start, line, b"\n\n")


class MessageDocument(msgspec.Struct):
    """A message of a pull's response, as `write_pulled` writes it."""

    position: PositionText
    attempt: Annotated[int, msgspec.Meta(ge=1), "Number of this delivery of the message, from 1."]
    event: Annotated[EventJson, "The event of the message."]


class PulledDocument(msgspec.Struct):
    messages: Annotated[list[MessageDocument], "The messages."]


def write_pulled(parts: list[bytes], place: int, index: int, attempt: int, line: bytes) -> None:
    """Write one message as an element of a pull's response, with the comma that precedes it."""
    position = (place >> OFFSET_BITS, place & OFFSET_MASK, index)
    parts += (b',{"position":"%d-%d-%d","attempt":%d,"event":' % (*position, attempt), line, b"}")


POSITION, ATTEMPT = "fieldfareposition", "fieldfareattempt"
"""Extension attributes of a delivered event: its position and the number of the attempt."""

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def write_event(parts: list[bytes], place: int, index: int, attempt: int, line: bytes) -> None:
    """Write one message as an event with position and attempt attributes, replacing any that it has."""
    if b"fieldfare" in line or b"\\u" in line:
        members = _members.decode(line)
        members.pop(POSITION, None)
        members.pop(ATTEMPT, None)
        line = msgspec.json.encode(members)
    position = (place >> OFFSET_BITS, place & OFFSET_MASK, index)
    head = b'{"fieldfareposition":"%d-%d-%d","fieldfareattempt":%d,' % (*position, attempt)
    parts += (head, line[line.index(b"{") + 1 :], b"")
