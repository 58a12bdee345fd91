"""The event log: what a publish call appended, in order, durable before it is acknowledged.

One record is one publish batch, stored whole: its events as JSON lines, or as an Arrow stream with a row
for each (see ``arrow_events.stream``). Its *stamp* is the registry revision as of which it is matched.
Records have rising offsets from 0; an offset is never used twice, also when retention has removed all
records. They are contiguous but for holes, which `raise_end` makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

MAX_RECORD_EVENTS = 10_000
MAX_PAYLOAD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A publish batch to append.

    Parameters
    ----------
    space
        The space that the events belong to.
    payload
        The events, one UTF-8 JSON object a line, each line ended by a line feed; or one a row, as an Arrow
        stream. At most 64 MiB.
    count
        How many events the payload holds: 1 to 10,000.
    producer, sequence
        Who appends, and its own number for this batch (both or neither). A pair that the log has seen
        in this space before appends nothing, so a retry is harmless. A producer's sequences must increase.
    appended_ms
        The time of the append, in milliseconds since 1970.
    stamp
        The registry revision that was read after the batch had arrived; it is matched as of that.
    """

    space: str
    payload: bytes
    count: int
    producer: str | None = None
    sequence: int | None = None
    appended_ms: int = 0
    stamp: int = 0


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a record stands, and its stamp: its own, or the first one's when it is a repeat (`duplicate`).

    A repeat of what retention has removed may tell 0 as the stamp. One that `differs` has another payload
    than the first one, which cannot be meant; it is not appended.
    """

    offset: int
    count: int
    stamp: int
    duplicate: bool
    differs: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """A record of the log."""

    offset: int
    space: str
    count: int
    payload: bytes
    appended_ms: int
    stamp: int


@dataclass(frozen=True, slots=True)
class RecordSize:
    """What retention needs to know of a record."""

    offset: int
    size_bytes: int
    appended_ms: int


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much the log holds from some offset on."""

    records: int
    events: int
    bytes: int


class EventLog(Protocol):
    """An event log of one partition.

    One process appends; any number of processes read. A log can be pickled: the copy opens its own
    connection when it is first used, so tasks of other processes may be handed one.
    """

    @property
    def url(self) -> str:
        """The address that opens this log."""
        ...

    def append(self, records: Sequence[NewRecord]) -> list[Appended]:
        """Append records in one transaction; they are durable and visible on return.

        No records at all are as good a question whether the log can be written as any.

        A repeat of a (space, producer, sequence) gives the first one's place, with ``duplicate=True``, and
        appends nothing. Repeats are recognised among the last 1,000 sequences of a producer in a space, for
        as long as `forget_producers` has not dropped them.

        Raises
        ------
        ValueError
            A record breaks a limit; nothing was appended.
        EventLogError
            The log could not be written; nothing was appended.
        """
        ...

    def start(self) -> int:
        """The offset of the oldest record kept, or the end when none is."""
        ...

    def end(self) -> int:
        """The offset that the next record will get."""
        ...

    def read(self, start: int, end: int) -> Iterator[Record]:
        """The records with ``start <= offset < end`` in order; fewer where there is a hole or the log's end.

        Raises
        ------
        TrimmedError
            ``start`` lies before the oldest record kept.
        """
        ...

    def bound(self, start: int, max_bytes: int, max_events: int) -> int:
        """The greatest end so that the records from ``start`` to it stay within both bounds.

        At least one record is included when there is one, however large. No payload is read. A range never
        holds both records and a hole: a hole is a range of its own, with nothing in it.
        """
        ...

    def lowest_stamp(self, start: int) -> int | None:
        """The lowest stamp of the records from ``start`` on, or None when there are none; cheap."""
        ...

    def last_stamp(self) -> int:
        """The stamp of the last record ever appended, 0 before the first; cheap."""
        ...

    def backlog(self, start: int) -> Backlog:
        """How many records, events and payload bytes the log holds from ``start`` on; cheap."""
        ...

    def sizes(self, start: int) -> Iterator[RecordSize]:
        """Size and time of the records from ``start`` on, oldest first, without their payloads."""
        ...

    def size_bytes(self) -> int:
        """The bytes that all payloads kept take."""
        ...

    def trim(self, before: int) -> int:
        """Remove the records before an offset; returns how many those were."""
        ...

    def forget_producers(self, before: int) -> int:
        """Drop what is remembered of repeats of records before an offset; returns how many those were.

        One call looks at a bounded number, and the next goes on where it ended.
        """
        ...

    def observe(self, elapsed_ms: int, every_ms: int, keep_ms: int) -> None:
        """Let what the log holds grow older, by the time that a service has run on it.

        Parameters
        ----------
        elapsed_ms
            How long it has run since this was last called.
        every_ms
            Where the log ends is noted this often: `older_than` is exact to so much, to the safe side.
        keep_ms
            The greatest age that `older_than` will be asked for.
        """
        ...

    def older_than(self, age_ms: int) -> int:
        """The offset up to which everything is older than so much of the time that `observe` counts."""
        ...

    def raise_end(self, to: int) -> None:
        """Give no offset before this one to a record; what the log does not hold up to there is a hole."""
        ...

    def close(self) -> None:
        """Let go of this process's connections; the log opens them again when it is used again."""
        ...


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long the log is kept: a record goes when either bound is passed.

    Parameters
    ----------
    max_age_ms
        Records older than this go. Larger: subscribers may come back later, more disk. None: no bound. It is
        a time that the service has run, which nobody can set: a clock may jump by a week and back.
    max_bytes
        The oldest records go until the payloads kept take at most this. None: no bound.
    """

    max_age_ms: int | None = None
    max_bytes: int | None = None

    def trim_before(self, log: EventLog, keep_from: int) -> int | None:
        """The offset to trim a log before, or None when every record may stay.

        Parameters
        ----------
        log
            The log. Its oldest records are looked at, up to the first one that stays.
        keep_from
            Records from this offset on stay whatever the bounds say (the pipeline still needs them).
        """
        start, end = log.start(), log.end()
        before = start
        if self.max_age_ms is not None:
            before = max(before, min(log.older_than(self.max_age_ms), end))
        if self.max_bytes is not None:
            total_bytes = log.backlog(before).bytes
            for record in log.sizes(before):
                if total_bytes <= self.max_bytes or record.offset >= keep_from:
                    break
                total_bytes -= record.size_bytes
                before = record.offset + 1
        before = min(before, keep_from)
        return before if before > start else None
