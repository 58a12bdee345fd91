"""The event log: what a publish call appended, in order, durable before it is acknowledged.

One record is one publish batch, stored whole: its events as JSON lines, or as an Arrow stream with a row
for each (see ``arrow_events.stream``). Its *stamp* is the registry revision as of which it is matched.

A log has one or more *partitions*, numbered from 0; how many does not change while it is open. In each the
records have rising offsets from 0, and an offset is never used twice, also when all records have been
removed. There may be *holes*: offsets, anywhere, that no record has or will ever have.

The contract has three faces, so that nobody holds more than he needs: `EventWriter`, `EventReader` and
`EventRetention`. They promise what a log on many machines can keep: sums over what was not read are figures
to go by, and how retention finds what to remove is its own affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fieldfare.arrow_events.stream import is_arrow, read_events
from fieldfare.model import Offsets

MAX_RECORD_EVENTS = 10_000
MAX_PAYLOAD_BYTES = 64 << 20

FIRST = -1
"""What a producer's first record follows."""


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
    follows
        The sequence that this batch comes after, lower than its own, or `FIRST`: it is appended only while
        that is its producer's newest in the space. So batches that are sent at the same time are in the log
        in their order, or not at all. None: it is appended whatever came before.
    appended_ms
        The time of the append, in milliseconds since 1970.
    stamp
        The registry revision that was read after the batch had arrived; it is matched as of that. No lower
        than the stamp of any record that was appended before.
    """

    space: str
    payload: bytes
    count: int
    producer: str | None = None
    sequence: int | None = None
    appended_ms: int = 0
    stamp: int = 0
    follows: int | None = None

    def check(self) -> None:
        """ValueError when it breaks a limit."""
        if not 1 <= self.count <= MAX_RECORD_EVENTS:
            raise ValueError(f"a record has 1 to {MAX_RECORD_EVENTS} events, not {self.count}")
        if len(self.payload) > MAX_PAYLOAD_BYTES:
            raise ValueError(f"a record has at most {MAX_PAYLOAD_BYTES} bytes, not {len(self.payload)}")
        if is_arrow(self.payload):
            read_events(self.payload, self.count)
        elif not self.payload.endswith(b"\n") or self.payload.count(b"\n") != self.count:
            raise ValueError(f"the payload is not {self.count} lines, each ended by a line feed")
        if (self.producer is None) != (self.sequence is None):
            raise ValueError("producer and sequence go together")
        if self.follows is not None and (self.sequence is None or not FIRST <= self.follows < self.sequence):
            raise ValueError(f"sequence {self.sequence} cannot follow {self.follows}")


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
    partition: int = 0


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """A record that was not appended, for its producer's newest in the space is not the one that it follows.

    `newest` is that sequence, `FIRST` where none is known: none came, or all were forgotten.
    """

    newest: int


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
class RetentionPolicy:
    """How long the log is kept: a record goes when either bound is passed.

    Parameters
    ----------
    max_age_ms
        Records older than this go. Larger: subscribers may come back later, more disk. None: no bound. It is
        a time that the service has run, which nobody can set: a clock may jump by a week and back.
    max_bytes
        The oldest records go until the payloads kept take at most this. None: no bound.
    producers_ms
        So long a producer's last sequences are remembered at least, in the same time. Larger: who comes back
        later may still repeat a request without harm. None: for ever.
    """

    max_age_ms: int | None = None
    max_bytes: int | None = None
    producers_ms: int | None = None


class EventWriter(Protocol):
    """What a log is to those who append to it. One process appends."""

    def append(self, records: Sequence[NewRecord]) -> list[Appended | OutOfOrder]:
        """Append records, all that are in order or none; they are durable and visible on return.

        The log chooses each one's partition: a producer's records of a space are all in one. No records at
        all are as good a question whether the log can be written as any.

        A repeat of a (space, producer, sequence) gives the first one's place, with ``duplicate=True``, and
        appends nothing. Repeats are recognised among the last 1,000 sequences of a producer in a space, for
        as long as `RetentionPolicy.producers_ms` says.

        One that ``follows`` another is held against its producer's newest, those before it in the same call
        included. A repeat is one whatever it follows.

        Raises
        ------
        ValueError
            A record breaks a limit; nothing was appended.
        EventLogError
            The log could not be written. Nothing was appended, or all of it: a log on other machines may
            not know. It finds out before it appends anything else, so a repeat is still recognised.
        """
        ...

    def raise_ends(self, to: Offsets) -> None:
        """Give no offset before these to a record; what the log does not hold up to there is a hole.

        For a log that is a copy from before, whose offsets others know already.

        Raises
        ------
        EventLogError
            It cannot be done with this log, or it could not be written.
        """
        ...


class LogPartition(Protocol):
    """One partition of a log, to be read."""

    @property
    def number(self) -> int:
        """Which one it is."""
        ...

    def start(self) -> int:
        """From where on records may be read: none before it is kept, and a hole may lie at it."""
        ...

    def end(self) -> int:
        """The offset behind the last record that can be read; the next one gets it, or a later one."""
        ...

    def read(self, start: int, end: int) -> Iterator[Record]:
        """The records with ``start <= offset < end`` in order; fewer where there are holes or the log ends.

        Raises
        ------
        TrimmedError
            ``start`` lies before what is kept.
        """
        ...

    def first_since(self, time_ms: int) -> int:
        """An offset that all records from it on were appended at this time or later, and none before it.

        As far as clocks go forward: where one was set back it is one of those that would do.
        """
        ...

    def bound(self, start: int, max_bytes: int, max_events: int) -> int:
        """Where to end a range from ``start`` on so that it holds no more than either bound.

        As far as the log knows without reading payloads: it may be an estimate. Behind ``start`` wherever
        the end is, so that who goes on from bound to bound gets there; never behind the end.

        Raises
        ------
        TrimmedError
            ``start`` lies before what is kept.
        """
        ...

    def split(self, start: int, end: int, pieces: int, piece_bytes: int) -> list[tuple[int, int]]:
        """Cut a range into at most so many of about the same size, as far as the log knows it.

        One when all of it takes no more than ``piece_bytes``. The first begins at ``start``, each of the
        others where the one before it ends, and the last ends at ``end``.
        """
        ...

    def backlog_events(self, start: int) -> int:
        """About how many events there are from ``start`` on: 0 at the end, more before any; cheap."""
        ...

    def lowest_stamp(self, start: int) -> int | None:
        """No record from ``start`` on has a lower stamp; None when there are none; cheap.

        The lowest that there is, or lower: as high as the log knows without reading them.
        """
        ...

    def first_stamped(self, stamp: int) -> int | None:
        """Behind the last record with a stamp lower than this, 1 or more; None while that is the last of all.

        Where retention has taken it, anywhere before what is kept.
        """
        ...

    def last_stamp(self) -> int:
        """The stamp of the last record that is known of, 0 before the first; cheap."""
        ...


class EventReader(Protocol):
    """What a log is to those who read it: any number of processes.

    It can be pickled: the copy opens its own connection when it is first used, so tasks of other processes
    may be handed one.
    """

    look_every_s: float
    """Who waits for more looks no more often where it ends: a look may be a request that others pay for."""

    @property
    def url(self) -> str:
        """The address that opens this log."""
        ...

    @property
    def partitions(self) -> Sequence[LogPartition]:
        """All partitions, by number."""
        ...

    def close(self) -> None:
        """Let go of this process's connections; the log opens them again when it is used again."""
        ...


class EventRetention(Protocol):
    """What a log is to those who look after it: the process that appends."""

    def grow_older(self, elapsed_ms: int, policy: RetentionPolicy) -> None:
        """Let what the log holds grow older, by the time that a service has run on it since the last call.

        The policy says how exact ages need be, and how far back they are asked for.
        """
        ...

    def retain(self, policy: RetentionPolicy, keep_from: Offsets) -> None:
        """Remove what the policy does not keep: oldest first, and nothing from ``keep_from`` on.

        Whatever is removed, partitions then start behind it. It can be killed at any moment, and the next
        call goes on. A log that others keep in bounds removes nothing here, whatever they spare.
        """
        ...

    def sizes(self) -> Mapping[str, int]:
        """The bytes that the payloads kept of each space take; a log that others keep in bounds says none."""
        ...

    def size_bytes(self) -> int:
        """The bytes that all payloads kept take, about."""
        ...


class EventLog(EventWriter, EventReader, EventRetention, Protocol):
    """An event log with all its faces."""


def starts_of(log: EventReader) -> Offsets:
    """Where each partition starts."""
    return tuple(partition.start() for partition in log.partitions)


def ends_of(log: EventReader) -> Offsets:
    """Where each partition ends."""
    return tuple(partition.end() for partition in log.partitions)
