"""The event log in one SQLite file; its tables are in `schema`."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Self

from fieldfare.model import Offsets
from fieldfare.storage.errors import DiskFullError, EventLogError, FormatError, TrimmedError
from fieldfare.storage.event_log import (
    FIRST,
    Appended,
    NewRecord,
    OutOfOrder,
    Record,
    RetentionPolicy,
)
from fieldfare.storage.sqlite import schema
from fieldfare.storage.sqlite.connections import SqliteConnections, is_disk_full

AGES_NOTED = 500
"""How exact retention is: to one part in so many of its time."""

REMEMBERED_SEQUENCES = 1_000
"""How many of its latest sequences are remembered for a producer, at least."""

_FORGET_EVERY = 256
"""After so many appends of a producer its surplus sequences are dropped."""

_COUNTED_PRODUCERS = 100_000
"""Beyond so many producers, counting their appends starts anew: that only delays the dropping."""

_CHUNK_BYTES = 8 << 20
_CHUNK_RECORDS = 1_024

_PAGE_BYTES = 16_384
_CHECKPOINT_BYTES = 16 << 20
"""How far the WAL grows before a commit copies it into the file, which takes that commit about 1 ms a MB."""

_TRIM_BYTES = 8 << 20
"""How much one transaction of a trim frees: appends wait for no more than this."""
_TRIM_EVENTS = 16_384
_FORGET_ROWS = 10_000
"""So many remembered sequences are looked at by one call that forgets."""

_SETTINGS = (
    f"PRAGMA page_size = {_PAGE_BYTES}",
    "PRAGMA journal_mode = WAL",
    # A commit returns when the WAL is on disk: that is what makes an append durable.
    "PRAGMA synchronous = FULL",
    # Payload pages go through the WAL into the file; doing so seldom keeps a fast stream of appends fast.
    f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_BYTES // _PAGE_BYTES}",
    f"PRAGMA journal_size_limit = {_CHECKPOINT_BYTES}",
)

_STAMP_LAST = "coalesce((SELECT stamp FROM stamps ORDER BY start DESC LIMIT 1), 0)"
_ENDS = """max(end, (SELECT coalesce(max(end), 0) FROM holes)), events_end, bytes_end"""
_FROM_LAST = """FROM (
    SELECT * FROM (SELECT offset + 1 AS end, events_end, bytes_end FROM records ORDER BY offset DESC LIMIT 1)
    UNION ALL SELECT start, events_end, bytes_end FROM trimmed ORDER BY 1 DESC LIMIT 1)"""
_LAST = f"SELECT {_ENDS} {_FROM_LAST}"
_LAST_AND_STAMP = f"SELECT {_ENDS}, {_STAMP_LAST} {_FROM_LAST}"
_TOTALS_BEFORE = """SELECT events_end, bytes_end FROM (
    SELECT * FROM (SELECT offset + 1 AS end, events_end, bytes_end FROM records
        WHERE offset < ?1 ORDER BY offset DESC LIMIT 1)
    UNION ALL SELECT start, events_end, bytes_end FROM trimmed WHERE start <= ?1 ORDER BY 1 DESC LIMIT 1)"""
_TOTALS_BEHIND = "SELECT events_end, bytes_end FROM records WHERE offset = ? - 1"
_HOLE_FROM = "SELECT 1 FROM holes WHERE end > ? LIMIT 1"
_SIZES = "SELECT offset + 1, bytes_end FROM records WHERE offset >= ? AND offset < ? ORDER BY offset"
_FIRST_BEYOND = """SELECT offset + 1 FROM records WHERE offset >= ? AND offset < ? AND bytes_end >= ?
    ORDER BY offset LIMIT 1"""
_FORGET = """DELETE FROM producers WHERE space = ?1 AND producer = ?2 AND sequence < (SELECT sequence
    FROM producers WHERE space = ?1 AND producer = ?2 ORDER BY sequence DESC LIMIT 1 OFFSET ?3)"""
_SEQUENCES_AFTER = """SELECT space, producer, sequence, offset FROM producers
    WHERE (space, producer, sequence) > (?, ?, ?) ORDER BY space, producer, sequence LIMIT ?"""
_STAMP_AT = "coalesce((SELECT stamp FROM stamps WHERE start <= {} ORDER BY start DESC LIMIT 1), 0)"
_APPENDED_FROM = "SELECT offset, appended_ms FROM records WHERE offset >= ? ORDER BY offset LIMIT 1"
_READ = f"""SELECT offset, space, count, payload, appended_ms, {_STAMP_AT.format("offset")}
    FROM records WHERE offset >= ? AND offset < ? ORDER BY offset LIMIT ?"""
_REPEAT = f"""SELECT offset, count, {_STAMP_AT.format("offset")} FROM producers
    WHERE space = ? AND producer = ? AND sequence = ?"""
_NEWEST = "SELECT max(sequence) FROM producers WHERE space = ? AND producer = ?"
_LAST_STAMP = f"SELECT {_STAMP_LAST}"
# The run that holds the first record at or after an offset, and all later ones.
_LOWEST_STAMP = f"""SELECT min(stamp, coalesce((SELECT min(stamp) FROM stamps WHERE start > first), stamp))
    FROM (SELECT offset AS first, {_STAMP_AT.format("offset")} AS stamp
        FROM records WHERE offset >= ? ORDER BY offset LIMIT 1)"""
_FIRST_STAMPED = """SELECT min(start) FROM stamps WHERE stamp >= ?1
    AND start > coalesce((SELECT max(start) FROM stamps WHERE stamp < ?1), -1)"""
_SIZES_OF = """SELECT space, sum(length(payload)) FROM records
    WHERE offset >= ? AND offset < ? GROUP BY space"""
_ADD_SIZE = """INSERT INTO sizes VALUES (?, ?)
    ON CONFLICT (space) DO UPDATE SET bytes = bytes + excluded.bytes"""
_FORGET_ONE = "DELETE FROM producers WHERE space = ? AND producer = ? AND sequence = ?"
_FIRST_KEY = ("", "", -1)
_NO_END = (1 << 63) - 1


class SqliteEventLog:
    """An `EventLog` in a SQLite file, which is created if it does not exist: itself its only partition.

    It knows the size of every range, so all that the contract lets a log estimate is exact here. Retention
    frees pages that later appends use again; the file does not shrink.
    """

    number = 0
    look_every_s = 0.0

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._connections = SqliteConnections(self.path, _SETTINGS)
        self._appends_of: dict[tuple[str, str], int] = {}
        self._forgotten_to: tuple[str, str, int] = _FIRST_KEY
        with self._explained():
            self._prepare()

    def __reduce__(self) -> tuple[type[SqliteEventLog], tuple[str]]:
        return SqliteEventLog, (str(self.path),)

    def __repr__(self) -> str:
        return f"SqliteEventLog({str(self.path)!r})"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    @property
    def partitions(self) -> tuple[Self]:
        return (self,)

    def append(self, records: Sequence[NewRecord]) -> list[Appended | OutOfOrder]:
        for record in records:
            record.check()
        with self._explained(), self._connections.writing() as connection:
            appended, rows = _place(connection, records)
            connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            self._forget_surplus(connection, records)
        return appended

    def start(self) -> int:
        return int(self._row("SELECT start FROM trimmed")[0])

    def end(self) -> int:
        with self._explained():
            return _end(self._connections.reader())

    def read(self, start: int, end: int) -> Iterator[Record]:
        while start < end:
            chunk_end = min(end, self.bound(start, _CHUNK_BYTES, 1 << 62))
            with self._explained():
                rows = self._connections.reader().execute(_READ, (start, chunk_end, _CHUNK_RECORDS))
                # All rows at once: a statement left open would hold the WAL back while the caller works.
                chunk = [Record(*row) for row in rows]
            if (not chunk or chunk[0].offset != start) and start < self.start():
                raise self._trimmed(start)
            if chunk_end == start:
                return
            yield from chunk
            start = chunk[-1].offset + 1 if len(chunk) == _CHUNK_RECORDS else chunk_end

    def first_since(self, time_ms: int) -> int:
        low, high = self.start(), self.end()
        while low < high:
            middle = (low + high) // 2
            with self._explained():
                found = self._connections.reader().execute(_APPENDED_FROM, (middle,)).fetchone()
            if found is None or found[1] >= time_ms:
                high = middle
            else:
                low = found[0] + 1
        return low

    def bound(self, start: int, max_bytes: int, max_events: int) -> int:
        end = self.end()
        if start >= end:
            return start
        events, size_bytes = self._totals_before(start)
        with self._explained():
            hole = self._connections.reader().execute(_HOLE_FROM, (start,)).fetchone()
        # Where there is no hole, there is a record just before.
        totals = _TOTALS_BEHIND if hole is None else _TOTALS_BEFORE
        # Gallop, then halve: what lies before `low` fits (one record always does), before `high` it does not.
        low, high, step = start + 1, end + 1, 2
        while low < high - 1:
            middle = min(start + step, high - 1) if step else (low + high) // 2
            events_end, bytes_end = self._row(totals, (middle,))
            if events_end - events <= max_events and bytes_end - size_bytes <= max_bytes:
                low, step = middle, step * 2
            else:
                high, step = middle, 0
        return low

    def split(self, start: int, end: int, pieces: int, piece_bytes: int) -> list[tuple[int, int]]:
        with self._explained():
            sizes = self._connections.reader().execute(_SIZES, (start, end)).fetchall()
        before = self._totals_before(start)[1] if sizes else 0
        total = sizes[-1][1] - before if sizes else 0
        if total <= piece_bytes or pieces == 1:
            return [(start, end)]
        # Each piece ends behind the record that brings all so far to its share.
        wanted = [before - (-total * piece // pieces) for piece in range(1, pieces)]
        cuts = {sizes[bisect_left(sizes, share, key=itemgetter(1))][0] for share in wanted} - {sizes[-1][0]}
        return list(pairwise((start, *sorted(cuts), end)))

    def lowest_stamp(self, start: int) -> int | None:
        with self._explained():
            row = self._connections.reader().execute(_LOWEST_STAMP, (start,)).fetchone()
        return None if row is None else int(row[0])

    def first_stamped(self, stamp: int) -> int | None:
        with self._explained():
            row = self._connections.reader().execute(_FIRST_STAMPED, (stamp,)).fetchone()
        return None if row[0] is None else int(row[0])

    def last_stamp(self) -> int:
        return int(self._row(_LAST_STAMP)[0])

    def backlog_events(self, start: int) -> int:
        end, events_end, _ = self._row(_LAST)
        return events_end - self._totals_before(min(max(start, self.start()), end))[0]

    def size_bytes(self) -> int:
        return self._row(_LAST)[2] - self._totals_before(self.start())[1]

    def sizes(self) -> dict[str, int]:
        with self._explained():
            reader = self._connections.reader()
            # Of one moment: what is counted and what is not yet.
            reader.execute("BEGIN")
            try:
                kept = dict(reader.execute("SELECT space, bytes FROM sizes").fetchall())
                counted = reader.execute("SELECT end FROM counted").fetchone()[0]
                later = reader.execute(_SIZES_OF, (counted, _NO_END)).fetchall()
            finally:
                reader.execute("COMMIT")
        for space, size_bytes in later:
            kept[space] = kept.get(space, 0) + size_bytes
        return kept

    def grow_older(self, elapsed_ms: int, policy: RetentionPolicy) -> None:
        ages_ms = [age_ms for age_ms in (policy.max_age_ms, policy.producers_ms) if age_ms is not None]
        if ages_ms:
            self.observe(elapsed_ms, every_ms=max(1, min(ages_ms) // AGES_NOTED), keep_ms=max(ages_ms))

    def retain(self, policy: RetentionPolicy, keep_from: Offsets) -> None:
        before, keep = self.start(), min(keep_from[0], self.end())
        if policy.max_age_ms is not None:
            before = max(before, self.older_than(policy.max_age_ms))
        if policy.max_bytes is not None and before < keep:
            surplus = self._row(_LAST)[2] - policy.max_bytes
            if self._totals_before(before)[1] < surplus:
                with self._explained():
                    row = (
                        self._connections.reader().execute(_FIRST_BEYOND, (before, keep, surplus)).fetchone()
                    )
                before = keep if row is None else row[0]
        self.trim(min(before, keep))
        if policy.producers_ms is not None:
            self.forget_producers(self.older_than(policy.producers_ms))

    def trim(self, before: int) -> int:
        """Remove the records before an offset; returns how many those were."""
        self._count()
        start = self.start()
        before = min(before, self.end())
        removed = 0
        while start < before:
            step_end = min(before, self.bound(start, _TRIM_BYTES, _TRIM_EVENTS))
            totals = self._totals_before(step_end)
            sizes = self._sizes_of(start, step_end)
            with self._explained(), self._connections.writing() as connection:
                connection.executemany(_ADD_SIZE, [(space, -size_bytes) for space, size_bytes in sizes])
                connection.execute("DELETE FROM sizes WHERE bytes <= 0")
                connection.execute("UPDATE counted SET end = max(end, ?)", (step_end,))
                connection.execute(
                    "UPDATE trimmed SET start = ?, events_end = ?, bytes_end = ?", (step_end, *totals)
                )
                connection.execute("DELETE FROM holes WHERE end <= ?", (step_end,))
                connection.execute(
                    "DELETE FROM stamps WHERE start < (SELECT max(start) FROM stamps WHERE start <= ?)",
                    (step_end,),
                )
                removed += connection.execute("DELETE FROM records WHERE offset < ?", (step_end,)).rowcount
            start = step_end
        return removed

    def _count(self) -> None:
        """Count the records that came since this was done last; reading them keeps no append waiting."""
        counted, end = self._row("SELECT end FROM counted")[0], self.end()
        if counted < end:
            sizes = self._sizes_of(counted, end)
            with self._explained(), self._connections.writing() as connection:
                connection.executemany(_ADD_SIZE, sizes)
                connection.execute("UPDATE counted SET end = ?", (end,))

    def _sizes_of(self, start: int, end: int) -> list[tuple[str, int]]:
        with self._explained():
            return self._connections.reader().execute(_SIZES_OF, (start, end)).fetchall()

    def forget_producers(self, before: int) -> int:
        """Drop what is remembered of repeats of records before an offset; returns how many those were.

        One call looks at a bounded number, and the next goes on where it ended.
        """
        with self._explained():
            rows = self._connections.reader().execute(_SEQUENCES_AFTER, (*self._forgotten_to, _FORGET_ROWS))
            looked_at = rows.fetchall()
        # Reading keeps no append waiting, and few rows go at once.
        self._forgotten_to = looked_at[-1][:3] if len(looked_at) == _FORGET_ROWS else _FIRST_KEY
        old = [row[:3] for row in looked_at if row[3] < before]
        if old:
            with self._explained(), self._connections.writing() as connection:
                connection.executemany(_FORGET_ONE, old)
        return len(old)

    def observe(self, elapsed_ms: int, every_ms: int, keep_ms: int) -> None:
        """Let what the log holds grow older by so much of the time that a service has run on it.

        Where the log ends is noted every so often: `older_than` is exact to that, to the safe side. It will
        be asked for no greater age than ``keep_ms``.
        """
        with self._explained(), self._connections.writing() as connection:
            connection.execute("UPDATE ran SET ran_ms = ran_ms + ?", (max(0, elapsed_ms),))
            ran_ms = connection.execute("SELECT ran_ms FROM ran").fetchone()[0]
            last_ms = connection.execute("SELECT max(ran_ms) FROM observed").fetchone()[0]
            if last_ms is None or ran_ms - last_ms >= every_ms:
                connection.execute(
                    "INSERT OR REPLACE INTO observed VALUES (?, ?)", (ran_ms, _end(connection))
                )
                # The newest of those that are older than anyone asks for answers for all before it.
                connection.execute(
                    "DELETE FROM observed WHERE ran_ms <"
                    " (SELECT max(ran_ms) FROM observed WHERE ran_ms <= ?)",
                    (ran_ms - keep_ms,),
                )

    def older_than(self, age_ms: int) -> int:
        """The offset up to which everything is older than so much of the time that `observe` counts."""
        with self._explained():
            row = (
                self._connections.reader()
                .execute(
                    "SELECT observed.end FROM observed, ran WHERE observed.ran_ms <= ran.ran_ms - ?"
                    " ORDER BY observed.ran_ms DESC LIMIT 1",
                    (age_ms,),
                )
                .fetchone()
            )
        return 0 if row is None else int(row[0])

    def raise_ends(self, to: Offsets) -> None:
        self.raise_end(to[0])

    def raise_end(self, to: int) -> None:
        """Give no offset before this one to a record."""
        with self._explained(), self._connections.writing() as connection:
            end = _end(connection)
            if to > end:
                connection.execute("INSERT INTO holes VALUES (?, ?)", (end, to))

    def close(self) -> None:
        self._connections.close()

    def _prepare(self) -> None:
        """Create or upgrade the tables unless they are as they should be; refuse another kind of file."""
        if self.path.exists() and schema.is_current(self._connections.reader()):
            return
        with self._connections.writing() as connection:
            if not schema.prepare(connection, self.path.with_name("registry.db")):
                raise FormatError(f"{self.path} is not an event log of format {schema.FORMAT}")

    def _row(self, statement: str, values: tuple[int, ...] = ()) -> tuple[int, ...]:
        with self._explained():
            row: tuple[int, ...] | None = self._connections.reader().execute(statement, values).fetchone()
        if row is None:
            raise TrimmedError(f"{self.path} was trimmed meanwhile")
        return row

    def _totals_before(self, offset: int) -> tuple[int, int]:
        """The events and bytes ever appended before an offset, which is in what is kept, or its end."""
        with self._explained():
            row: tuple[int, int] | None = (
                self._connections.reader().execute(_TOTALS_BEFORE, (offset,)).fetchone()
            )
        if row is None:
            raise self._trimmed(offset)
        return row

    def _trimmed(self, offset: int) -> EventLogError:
        start, end = self.start(), self.end()
        text = f"{self.path} holds the records from {start} to {end}, not {offset}"
        return TrimmedError(text) if offset < start else EventLogError(text)

    def _forget_surplus(self, connection: sqlite3.Connection, records: Sequence[NewRecord]) -> None:
        for record in records:
            if record.producer is None:
                continue
            producer = (record.space, record.producer)
            appends = self._appends_of.get(producer, 0) + 1
            if appends >= _FORGET_EVERY:
                connection.execute(_FORGET, (*producer, REMEMBERED_SEQUENCES - 1))
                appends = 0
            self._appends_of[producer] = appends
        if len(self._appends_of) > _COUNTED_PRODUCERS:
            self._appends_of.clear()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            kind: type[EventLogError] = DiskFullError if is_disk_full(error) else EventLogError
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                kind = FormatError
            raise kind(f"{self.path}: {error}") from error


def _end(connection: sqlite3.Connection) -> int:
    row: tuple[int, int, int] = connection.execute(_LAST).fetchone()
    return row[0]


_Row = tuple[int, str, int, int, int, int, bytes]


def _place(
    connection: sqlite3.Connection, records: Sequence[NewRecord]
) -> tuple[list[Appended | OutOfOrder], list[_Row]]:
    """Give every record its place, repeats the first one's; returns the rows to insert too.

    With as few statements as can be: each lets go of the interpreter several times, and to get it back where
    another thread is busy takes longer than what the statement does.
    """
    end, events_end, bytes_end, stamp = connection.execute(_LAST_AND_STAMP).fetchone()
    appended: list[Appended | OutOfOrder] = []
    rows: list[_Row] = []
    for record in records:
        if record.producer is not None:
            key = (record.space, record.producer, record.sequence)
            newest = connection.execute(_NEWEST, key[:2]).fetchone()[0]
            newest = FIRST if newest is None else newest
            is_new = record.sequence is not None and record.sequence > newest
            repeat = None if is_new else connection.execute(_REPEAT, key).fetchone()
            if repeat is not None:
                offset, count, first_stamp = repeat
                differs = not _is_same(connection, record, offset, rows)
                appended.append(Appended(offset, count, first_stamp, duplicate=True, differs=differs))
                continue
            if record.follows is not None and newest != record.follows:
                appended.append(OutOfOrder(newest))
                continue
            connection.execute("INSERT INTO producers VALUES (?, ?, ?, ?, ?)", (*key, end, record.count))
        if record.stamp != stamp:
            stamp = record.stamp
            connection.execute("INSERT INTO stamps VALUES (?, ?)", (end, stamp))
        events_end += record.count
        bytes_end += len(record.payload)
        rows.append(
            (end, record.space, record.count, record.appended_ms, events_end, bytes_end, record.payload)
        )
        appended.append(Appended(end, record.count, stamp, duplicate=False))
        end += 1
    return appended, rows


def _is_same(connection: sqlite3.Connection, record: NewRecord, offset: int, rows: Sequence[_Row]) -> bool:
    """Whether a record has the payload of an earlier one, stored or on its way; true when that has gone."""
    if rows and offset >= rows[0][0]:
        return rows[offset - rows[0][0]][-1] == record.payload
    stored = connection.execute("SELECT payload FROM records WHERE offset = ?", (offset,)).fetchone()
    return stored is None or stored[0] == record.payload
