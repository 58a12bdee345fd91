"""The bytes of events that are being delivered: the newest records, and those read back for the slow."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import msgspec

from fieldfare.arrow_events.stream import ArrowPayloadError
from fieldfare.delivery.keys import INDEX_BITS, INDEX_MASK, OFFSET_BITS, OFFSET_MASK
from fieldfare.gateway.delivery.expiry import is_over
from fieldfare.gateway.delivery.names import name_of
from fieldfare.gateway.delivery.record_lines import RecordLines, open_record
from fieldfare.gateway.slots import SharedThreads
from fieldfare.storage.errors import EventLogError, TrimmedError
from fieldfare.storage.event_log import EventReader

READ_AHEAD_BYTES = 1 << 20

PIECE_BYTES = 256 << 10
"""About so much is composed in one step."""

PARTS = 3
"""What one message takes in the list that its text is written to."""

READERS = 2
"""Threads that read for one space at a time."""

NAMED_RECORDS = 50
"""Of so many records ordering keys are read before others have their turn: each may have to be read first."""

_Lines = tuple[Sequence[bytes], bool, int]
"""Lines, whether one of them may be of use until some time only, and when they were appended."""

Write = Callable[[list[bytes], int, int, int, bytes], None]


class RecordCache:
    """The least recently used records, made into JSON lines as far as they are needed.

    What takes long, reading the log and making lines of a large record, is done on threads.

    Parameters
    ----------
    log
        Where a record is read that is not held.
    max_bytes
        Bytes held, of payloads and of the lines of Arrow records.
    """

    def __init__(self, log: EventReader, max_bytes: int) -> None:
        self._log = log
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[int, RecordLines] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._size_bytes = 0
        self._being_read: dict[int, threading.Event] = {}
        """Set when it has been read."""
        self._readers = SharedThreads(READERS, "fieldfare-records")

    def close(self) -> None:
        self._readers.close()

    def put(self, place: int, payload: bytes, appended_ms: int) -> None:
        """Hold a record that was just appended: live subscribers will want it in a moment."""
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
    ) -> tuple[int, list[int], list[int]]:
        """Write the first messages of some keys to a list, three parts each.

        Parameters
        ----------
        space
            Whose they are, and in whose turn is read what is not held.
        keys
            Where their events stand.
        counts
            Which attempts they are, those that are not the first.
        write
            Writes one message.
        parts
            Where to.
        max_age_s
            The time of what was appended longer ago is over, too.

        Returns
        -------
        done, gone, over
            How many of the keys are dealt with, at least one; of these, those whose events retention took,
            and those whose time is over. The others are written.

        Raises
        ------
        EventLogError
            A record is broken.
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
                    break  # what is there need not wait for a thread
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
                write(parts, place, index, counts.get(place << INDEX_BITS | index, 1) if counts else 1, line)
                done += 1
                size_bytes += len(line)
                if size_bytes >= PIECE_BYTES:
                    return done, gone, over
        return done, gone, over

    async def names(self, space: str, keys: Sequence[int], path: str) -> list[int | None]:
        """Numbers that stand for what some events have at a path; None where that is nothing.

        Of an event that is gone, or cannot be read, it is None too: who writes it will say so.
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
        """Some events of a record, one JSON line each; None when retention has removed it.

        Raises
        ------
        EventLogError
            The record is broken.
        """
        found = self._find_lines(place, indexes)
        return None if found is None else found[0]

    def _find_lines(self, place: int, indexes: Sequence[int]) -> _Lines | None:
        record = self._find_or_read(place)
        return None if record is None else self._lines_of(place, record, indexes)

    def _find_or_read(self, place: int) -> RecordLines | None:
        """Many who wait for a record want the same one: it is read once."""
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
        """How large a record is that is held; 0 for one that is not."""
        return self._sizes.get(place, 0)

    def _lines_held(self, place: int, indexes: Sequence[int]) -> _Lines | None:
        """The same, if no long work is needed for it."""
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
        """A record from the log, and with it those that follow."""
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
            # What could not be read may be a later one, for which nobody has asked.
            if found is None and not isinstance(error, TrimmedError):
                raise
        return found

    def _put(self, place: int, payload: bytes, appended_ms: int) -> None:
        if place in self._held:
            return
        self._held[place] = record = open_record(payload, appended_ms)
        self._weigh(place, record.size_bytes)

    def _weigh(self, place: int, size_bytes: int) -> None:
        """A record that is held has become so large: the oldest make room."""
        self._size_bytes += size_bytes - self._sizes.get(place, 0)
        self._sizes[place] = size_bytes
        while self._size_bytes > self._max_bytes and len(self._held) > 1:
            oldest, _ = self._held.popitem(last=False)
            self._size_bytes -= self._sizes.pop(oldest)


def write_sse(parts: list[bytes], place: int, index: int, attempt: int, line: bytes) -> None:
    """One message as a server-sent event; an attempt that is not the first is a field of its own."""
    start = b"id: %d-%d-%d\ndata: " % (place >> OFFSET_BITS, place & OFFSET_MASK, index)
    parts += (start if attempt == 1 else b"attempt: %d\n" % attempt + start, line, b"\n\n")


def write_pulled(parts: list[bytes], place: int, index: int, attempt: int, line: bytes) -> None:
    """One message as an element of a pull's answer, after another one."""
    position = (place >> OFFSET_BITS, place & OFFSET_MASK, index)
    parts += (b',{"position":"%d-%d-%d","attempt":%d,"event":' % (*position, attempt), line, b"}")


POSITION, ATTEMPT = "fieldfareposition", "fieldfareattempt"
"""The extension attributes that say of an event where it stands, and which time it is given."""

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def write_event(parts: list[bytes], place: int, index: int, attempt: int, line: bytes) -> None:
    """One message as an event with two attributes more, whatever it says of them itself."""
    if b"fieldfare" in line or b"\\u" in line:
        members = _members.decode(line)
        members.pop(POSITION, None)
        members.pop(ATTEMPT, None)
        line = msgspec.json.encode(members)
    position = (place >> OFFSET_BITS, place & OFFSET_MASK, index)
    head = b'{"fieldfareposition":"%d-%d-%d","fieldfareattempt":%d,' % (*position, attempt)
    parts += (head, line[line.index(b"{") + 1 :], b"")
