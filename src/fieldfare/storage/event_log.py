"""The event log: the published batches in order, durable before they are acknowledged.

One record is one publish batch, stored as a unit: its events as JSON lines, or as an Arrow stream with one
row per event (see ``arrow_events.stream``). Its *stamp* is the registry revision as of which it is matched.

A log has one or more *partitions*, numbered from 0; their number does not change while the log is open. In
each partition the records have increasing offsets from 0, and an offset is never used twice, even when all
records have been removed. There may be *holes*: offsets, anywhere, that no record has or will ever have.

The interface has three parts, so that each caller gets only what it needs: `EventWriter`, `EventReader` and
`EventRetention`. They promise only what a distributed log can provide: sums over unread records are
estimates, and a log decides itself how it finds the records to remove.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fieldfare.arrow_events.stream import is_arrow, read_events
from fieldfare.model import RECORD_EVENTS_MAX, Offsets
from fieldfare.storage.bell import Waiter

REMEMBERED_SEQUENCES = 1_000
"""Minimum number of a producer's latest sequences to remember; older repeats may be appended again."""
AGES_NOTED = 500
"""Resolution of retention by age: ages are exact to the maximum age divided by this number."""
PAYLOAD_BYTES_MAX = 64 << 20
"""Maximum payload bytes of a record; larger ones are refused."""

FIRST = -1
"""The value of `NewRecord.follows` for a producer's first record."""


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A publish batch to append.

    Parameters
    ----------
    space
        The space that the events belong to.
    payload
        The events as lines, each one UTF-8 JSON object ended by a line feed; or as an Arrow stream, one event
        per row. At most 64 MiB.
    count
        Number of events in the payload, 1 to 10,000.
    producer, sequence
        Name of the producer, and its number for this batch (both or neither). A pair that the log has seen
        in this space appends nothing, so a retry is harmless. A producer's sequences must increase.
    follows
        The sequence that this batch comes after, lower than its own, or `FIRST`: the batch is appended only
        if that is its producer's newest sequence in the space. So batches that are sent concurrently are in
        the log in order, or not at all. None appends the batch in any case.
    appended_ms
        Time of the append, in milliseconds since 1970.
    stamp
        The registry revision that was read after the batch arrived; the batch is matched as of it. At least
        the stamp of every record appended before, except those with an origin.
    origin
        Where the batch was published, as text, if another broker forwarded it. Its stamp may be lower than
        those of earlier records. Logs outside the data directory have no such records.
    """

    space: str
    payload: bytes
    count: int
    producer: str | None = None
    sequence: int | None = None
    appended_ms: int = 0
    stamp: int = 0
    follows: int | None = None
    origin: str | None = None

    def check(self) -> None:
        """Raise ValueError if the record exceeds a limit or is inconsistent."""
        if not 1 <= self.count <= RECORD_EVENTS_MAX:
            raise ValueError(f"a record has 1 to {RECORD_EVENTS_MAX} events, not {self.count}")
        if len(self.payload) > PAYLOAD_BYTES_MAX:
            raise ValueError(f"a record has at most {PAYLOAD_BYTES_MAX} bytes, not {len(self.payload)}")
        if is_arrow(self.payload):
            read_events(self.payload, self.count)
        elif not self.payload.endswith(b"\n") or self.payload.count(b"\n") != self.count:
            raise ValueError(f"the payload is not {self.count} lines, each ended by a line feed")
        if (self.producer is None) != (self.sequence is None):
            raise ValueError("a record needs both a producer and a sequence, or neither")
        if self.follows is not None and (self.sequence is None or not FIRST <= self.follows < self.sequence):
            raise ValueError(f"sequence {self.sequence} cannot follow {self.follows}")


@dataclass(frozen=True, slots=True)
class Appended:
    """The place and stamp of an appended record; of a repeat (`duplicate`), those of the first record.

    The stamp may be 0 if retention has removed the first record. `differs` marks a repeat whose payload is
    not that of the first record, which is an error of the producer; it is not appended.
    """

    offset: int
    count: int
    stamp: int
    duplicate: bool
    differs: bool = False
    partition: int = 0


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """The result for a record that was not appended because `follows` is not its producer's newest sequence.

    `newest` is the producer's newest sequence in the space; `FIRST` if none is known, because there was none
    or all were forgotten.
    """

    newest: int


@dataclass(frozen=True, slots=True)
class Record:
    """A stored record of the log; see `NewRecord`."""

    offset: int
    space: str
    count: int
    payload: bytes
    appended_ms: int
    stamp: int
    origin: str | None = None


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The retention policy of a log: a record is removed when it exceeds either bound.

    Parameters
    ----------
    max_age_ms
        Maximum age of a record in milliseconds; older ones are removed. Larger: subscribers may return later,
        but the log takes more disk. None: no bound. Age is time that the service has run, since a clock may
        jump by a week and back.
    max_bytes
        Maximum bytes of all stored payloads; beyond it, the oldest records are removed. None: no bound.
    producers_ms
        Minimum time for which a producer's last sequences are remembered, measured like `max_age_ms`. Larger:
        a producer that returns later may still safely retry a request. None: for ever.
    """

    max_age_ms: int | None = None
    max_bytes: int | None = None
    producers_ms: int | None = None


class EventWriter(Protocol):
    """The part of a log that appends records; used by one process."""

    def append(self, records: Sequence[NewRecord]) -> list[Appended | OutOfOrder]:
        """Append records, all that are in order or none; they are durable and visible on return.

        The log chooses each record's partition: a producer's records in a space are all in one partition. A
        call without records tests whether the log can be written.

        A repeat of a (space, producer, sequence) appends nothing and returns the first record's place, with
        ``duplicate=True``. Repeats are recognized among the last 1,000 sequences of a producer in a space,
        for the time `RetentionPolicy.producers_ms`.

        `NewRecord.follows` is compared with the producer's newest sequence, including the records before it
        in the same call. A repeat is recognized whatever it follows.

        Raises
        ------
        ValueError
            A record exceeds a limit; nothing was appended.
        EventLogError
            The log could not be written. Either nothing was appended or everything: a remote log may not
            know which. It finds out before the next append, so a repeat is still recognized.
        """

    def raise_ends(self, to: Offsets) -> None:
        """Assign no offset before `to`, an offset per partition, to later records; missing offsets are holes.

        Used after a restore of an older copy of the log, whose later offsets are already known elsewhere.

        Raises
        ------
        EventLogError
            This log does not support it, or could not be written.
        """


class LogPartition(Protocol):
    """One partition of a log, for reading."""

    @property
    def number(self) -> int:
        """The partition's number, from 0."""

    def start(self) -> int:
        """Return the offset from which records can be read: earlier ones were removed; it may be a hole."""

    def end(self) -> int:
        """Return the offset after the last readable record; the next record gets it, or a later one."""

    def read(self, start: int, end: int) -> Iterator[Record]:
        """Yield the records with ``start <= offset < end`` in order; holes and the log's end yield none.

        A log that stores records itself leaves out corrupt records and writes a note for each (see
        `storage.corruption`).

        Raises
        ------
        TrimmedError
            `start` is before the partition's start.
        """

    def first_since(self, time_ms: int) -> int:
        """Return the offset of the first record appended at a time, in milliseconds since 1970, or later.

        If a clock was set back, it is one of several offsets that fit.
        """

    def bound(self, start: int, max_bytes: int, max_events: int) -> int:
        """Return the end of a range from `start` with at most `max_bytes` and at most `max_events`.

        It may be an estimate, since the log does not read payloads for it. It is greater than `start` unless
        `start` is the log's end, so that a loop from bound to bound reaches the end; never after the end.

        Raises
        ------
        TrimmedError
            `start` is before the partition's start.
        """

    def split(self, start: int, end: int, pieces: int, piece_bytes: int) -> list[tuple[int, int]]:
        """Split a range into at most `pieces` consecutive ranges of about the same estimated size.

        Returns a single range if all of it takes at most `piece_bytes`.
        """

    def backlog_events(self, start: int) -> int:
        """Return an estimate of the number of events from `start` on; 0 only without later records; cheap."""

    def lowest_stamp(self, start: int) -> int | None:
        """Return a lower bound of the stamps from `start` on; None if there are no records; cheap.

        It is the highest bound that the log knows without reading all records.
        """

    def first_stamped(self, stamp: int) -> int | None:
        """Return the offset after the last record with a stamp lower than `stamp` (1 or more).

        None if no record follows it. If retention has removed it, any offset up to the partition's start.
        Records with an origin do not count here: one with a lower stamp may follow at any time.
        """

    def last_stamp(self) -> int:
        """Return the greatest stamp of the known records; 0 before the first record; cheap."""


class EventReader(Protocol):
    """The part of a log that reads records; used by any number of processes.

    It can be pickled: the copy opens its own connection on first use, so it can be passed to tasks in other
    processes.
    """

    look_every_s: float
    """Minimum seconds between a waiter's checks for new records: a check may be a request to a broker."""

    def listen(self, places: Mapping[int, int]) -> Waiter:
        """Return a waiter, which the caller closes, that is woken when records are appended.

        While it hears, this object's partitions may report only what was heard: an end may be some
        milliseconds old, and records from the given offset of their partition on may come from memory.

        Parameters
        ----------
        places : mapping of int to int
            The partitions that are waited for, and from which offset on.
        """

    @property
    def url(self) -> str:
        """The address that opens this log."""

    @property
    def partitions(self) -> Sequence[LogPartition]:
        """All partitions, by number."""

    def close(self) -> None:
        """Close this process's connections; they are opened again when needed."""


class EventRetention(Protocol):
    """The part of a log that applies retention; used by the process that appends."""

    def grow_older(self, elapsed_ms: int, policy: RetentionPolicy) -> None:
        """Add `elapsed_ms`, the time that a service has run since the last call, to the age of all records.

        The policy determines the resolution of ages and the greatest age that is ever asked for.
        """

    def retain(self, policy: RetentionPolicy, keep_from: Offsets) -> None:
        """Remove the records that exceed the policy, oldest first, but none from `keep_from` on.

        Partitions then start after the removed records. The process may be killed at any moment; the next
        call resumes. A log with its own retention (Kafka) removes no records here: its settings decide.
        """

    def sizes(self) -> Mapping[str, int]:
        """Return the payload bytes stored for each space; empty for a log with its own retention."""

    def size_bytes(self) -> int:
        """Return the approximate bytes of all stored payloads."""


class EventLog(EventWriter, EventReader, EventRetention, Protocol):
    """A complete event log: writer, reader and retention."""


def starts_of(log: EventReader) -> Offsets:
    """Return the start of each partition."""
    return tuple(partition.start() for partition in log.partitions)


def ends_of(log: EventReader) -> Offsets:
    """Return the end of each partition."""
    return tuple(partition.end() for partition in log.partitions)
