"""The event log in one SQLite file; its tables are in `schema`."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import Self

from crc32c import crc32c

from fieldfare.model import Offsets
from fieldfare.storage.bell import Listener, bell_of
from fieldfare.storage.checksums import record_checksum
from fieldfare.storage.errors import (
    CorruptLogError,
    DiskFullError,
    EventLogError,
    FormatError,
    TrimmedError,
)
from fieldfare.storage.event_log import (
    AGES_NOTED,
    FIRST,
    REMEMBERED_SEQUENCES,
    Appended,
    NewRecord,
    OutOfOrder,
    Record,
    RetentionPolicy,
)
from fieldfare.storage.sqlite import schema, small_tables
from fieldfare.storage.sqlite.connections import SqliteConnections, disk_full, is_damage, is_disk_full
from fieldfare.storage.sqlite.reading import STAMP_AT, RecordReader
from fieldfare.storage.sqlite.rebuild import note_structure

_FORGET_EVERY = 256
"""Appends of a producer between two removals of its surplus sequences."""

_COUNTED_PRODUCERS = 100_000
"""Maximum producers whose appends are counted; beyond it all counts restart, which only delays removals."""

_CHUNK_BYTES = 8 << 20
"""Maximum payload bytes read in one chunk; a single larger record is read alone."""

_PAGE_BYTES = 16_384
_CHECKPOINT_BYTES = 16 << 20
"""WAL bytes after which a commit copies the WAL into the file; that commit takes about 1 ms per MB longer."""

_TRIM_BYTES = 8 << 20
"""Maximum payload bytes removed in one transaction of a trim; appends wait for at most one transaction."""
_TRIM_EVENTS = 16_384
"""Maximum events removed in one transaction of a trim."""
_FORGET_ROWS = 10_000
"""Maximum remembered sequences that one call of `forget_producers` examines; the next call resumes there."""

_SETTINGS = (
    f"PRAGMA page_size = {_PAGE_BYTES}",
    "PRAGMA journal_mode = WAL",
    # A commit returns when the WAL is on disk, which makes the append durable.
    "PRAGMA synchronous = FULL",
    # Payload pages are copied from the WAL into the file; rare checkpoints keep append throughput high.
    f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_BYTES // _PAGE_BYTES}",
    f"PRAGMA journal_size_limit = {_CHECKPOINT_BYTES}",
)

_STAMP_LAST = "coalesce((SELECT stamp FROM stamps ORDER BY start DESC LIMIT 1), 0)"
_IS_REMOTE_LAST = "coalesce((SELECT is_remote FROM stamps ORDER BY start DESC LIMIT 1), 0)"
_ENDS = """max(end, (SELECT coalesce(max(end), 0) FROM holes)), events_end, bytes_end"""
_FROM_LAST = """FROM (
    SELECT * FROM (SELECT offset + 1 AS end, events_end, bytes_end FROM records ORDER BY offset DESC LIMIT 1)
    UNION ALL SELECT start, events_end, bytes_end FROM trimmed ORDER BY 1 DESC LIMIT 1)"""
_LAST = f"SELECT {_ENDS} {_FROM_LAST}"
_LAST_AND_STAMP = f"SELECT {_ENDS}, {_STAMP_LAST}, {_IS_REMOTE_LAST} {_FROM_LAST}"
_TOTALS_BEFORE = """SELECT events_end, bytes_end FROM (
    SELECT * FROM (SELECT offset + 1 AS end, events_end, bytes_end FROM records
        WHERE offset < ?1 ORDER BY offset DESC LIMIT 1)
    UNION ALL SELECT start, events_end, bytes_end FROM trimmed WHERE start <= ?1 ORDER BY 1 DESC LIMIT 1)"""
_TOTALS_BEHIND = "SELECT events_end, bytes_end FROM records WHERE offset = ? - 1"
_HOLE_FROM = "SELECT 1 FROM holes WHERE end > ? LIMIT 1"
_SIZES = "SELECT offset + 1, bytes_end FROM records WHERE offset >= ? AND offset < ? ORDER BY offset"
_FIRST_BEYOND = """SELECT offset + 1 FROM records WHERE offset >= ? AND offset < ? AND bytes_end >= ?
    ORDER BY offset LIMIT 1"""
# Where rows are sorted or grouped, SQLite reads and copies their payloads, if only for the length: so the
# lengths are made a table first.
_FITS_FROM = """WITH sized AS MATERIALIZED (
        SELECT offset, length(payload) AS bytes FROM records WHERE offset >= ?
    ) SELECT offset + 1 FROM (SELECT offset, sum(bytes) OVER (ORDER BY offset DESC) AS bytes FROM sized)
    WHERE bytes > ? ORDER BY offset DESC LIMIT 1"""
_FORGET = """DELETE FROM producers WHERE space = ?1 AND producer = ?2 AND sequence < (SELECT sequence
    FROM producers WHERE space = ?1 AND producer = ?2 ORDER BY sequence DESC LIMIT 1 OFFSET ?3)"""
_SEQUENCES_AFTER = """SELECT space, producer, sequence, offset FROM producers
    WHERE (space, producer, sequence) > (?, ?, ?) ORDER BY space, producer, sequence LIMIT ?"""
_APPENDED_FROM = "SELECT offset, appended_ms FROM records WHERE offset >= ? ORDER BY offset LIMIT 1"
_REPEAT = f"""SELECT offset, count, {STAMP_AT.format("offset")} FROM producers
    WHERE space = ? AND producer = ? AND sequence = ?"""
_NEWEST = "SELECT max(sequence) FROM producers WHERE space = ? AND producer = ?"
_LAST_STAMP = "SELECT coalesce(max(stamp), 0) FROM stamps"
# The run that holds the first record at or after an offset, and all later ones.
_LOWEST_STAMP = f"""SELECT min(stamp, coalesce((SELECT min(stamp) FROM stamps WHERE start > first), stamp))
    FROM (SELECT offset AS first, {STAMP_AT.format("offset")} AS stamp
        FROM records WHERE offset >= ? ORDER BY offset LIMIT 1)"""
_LOWEST_STAMP_OF_ANY = f"""SELECT
        min(stamp, coalesce((SELECT min(stamp) FROM stamps WHERE start > ?1), stamp))
    FROM (SELECT {STAMP_AT.format("?1")} AS stamp)"""
_FIRST_STAMPED = """SELECT min(start) FROM stamps WHERE stamp >= ?1 AND NOT is_remote
    AND start > coalesce((SELECT max(start) FROM stamps WHERE stamp < ?1 AND NOT is_remote), -1)"""
# See `_FITS_FROM`.
_SIZES_OF = """WITH sized AS MATERIALIZED (
        SELECT space, length(payload) AS bytes FROM records WHERE offset >= ? AND offset < ?
    ) SELECT space, sum(bytes) FROM sized GROUP BY space"""
_ADD_SIZE = """INSERT INTO sizes VALUES (?, ?)
    ON CONFLICT (space) DO UPDATE SET bytes = bytes + excluded.bytes"""
_INSERT = """INSERT INTO records (offset, space, count, appended_ms, events_end, bytes_end, checksum, origin,
    payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_FORGET_ONE = "DELETE FROM producers WHERE space = ? AND producer = ? AND sequence = ?"
_FIRST_KEY = ("", "", -1)
_NO_END = (1 << 63) - 1


class SqliteEventLog:
    """An `EventLog` with one partition in a SQLite file, which is created if it does not exist.

    The log object is its own only partition. It knows the size of every range, so the sizes and counts that
    `EventLog` permits to be estimates are exact here. Retention frees pages that later appends reuse; the
    file does not shrink.
    """

    number = 0
    look_every_s = 0.0

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._bell = bell_of(self.path)
        self._connections = SqliteConnections(self.path, _SETTINGS)
        self._reader = RecordReader(self.path, self._connections)
        self._appends_of: dict[tuple[str, str], int] = {}
        self._is_count_checked = False
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

    def listen(self, places: Mapping[int, int]) -> Listener:
        return self._bell.listen()

    def append(self, records: Sequence[NewRecord]) -> list[Appended | OutOfOrder]:
        for record in records:
            record.check()
        checksums = [crc32c(record.payload) for record in records]
        with self._writing() as connection:
            appended, rows = _place(connection, records, checksums)
            connection.executemany(_INSERT, rows)
            self._forget_surplus(connection, records)
        self._bell.ring()
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
                chunk, read_to = self._reader.read(start, chunk_end)
            if (not chunk or chunk[0].offset != start) and start < self.start():
                raise self._trimmed(start)
            if read_to == start:
                return
            yield from chunk
            start = read_to

    def first_since(self, time_ms: int) -> int:
        low, high = self.start(), self.end()
        while low < high:
            middle = (low + high) // 2
            try:
                with self._explained():
                    found = self._connections.reader().execute(_APPENDED_FROM, (middle,)).fetchone()
            except CorruptLogError:
                low = middle + 1  # The time of an unreadable record does not matter.
                continue
            if found is None or found[1] >= time_ms:
                high = middle
            else:
                low = found[0] + 1
        return low

    def bound(self, start: int, max_bytes: int, max_events: int) -> int:
        end = self.end()
        if start >= end:
            return start
        try:
            return self._bound(start, end, max_bytes, max_events)
        except CorruptLogError:
            return start + 1  # If the running totals are unreadable, read records one by one.

    def _bound(self, start: int, end: int, max_bytes: int, max_events: int) -> int:
        events, size_bytes = self._totals_before(start)
        with self._explained():
            hole = self._connections.reader().execute(_HOLE_FROM, (start,)).fetchone()
        # Without a later hole, every offset has a record just before it.
        totals = _TOTALS_BEHIND if hole is None else _TOTALS_BEFORE
        # Galloping search: a batch up to `low` fits (one record always does), one up to `high` does not.
        low, high, step = start + 1, end + 1, 2
        while low < high - 1:
            middle = min(start + step, high - 1) if step else (low + high) // 2
            events_end, bytes_end = self._row(totals, (middle,), _TOTALS_BEFORE)
            if events_end - events <= max_events and bytes_end - size_bytes <= max_bytes:
                low, step = middle, step * 2
            else:
                high, step = middle, 0
        return low

    def split(self, start: int, end: int, pieces: int, piece_bytes: int) -> list[tuple[int, int]]:
        try:
            with self._explained():
                sizes = self._connections.reader().execute(_SIZES, (start, end)).fetchall()
            before = self._totals_before(start)[1] if sizes else 0
        except CorruptLogError:
            return [(start, end)]
        total = sizes[-1][1] - before if sizes else 0
        if total <= piece_bytes or pieces == 1:
            return [(start, end)]
        # Each piece ends after the record at which the running total reaches the piece's share.
        wanted = [before - (-total * piece // pieces) for piece in range(1, pieces)]
        cuts = {sizes[bisect_left(sizes, share, key=itemgetter(1))][0] for share in wanted} - {sizes[-1][0]}
        return list(pairwise((start, *sorted(cuts), end)))

    def lowest_stamp(self, start: int) -> int | None:
        try:
            with self._explained():
                row = self._connections.reader().execute(_LOWEST_STAMP, (start,)).fetchone()
        except CorruptLogError:
            row = self._row(_LOWEST_STAMP_OF_ANY, (start,))
        return None if row is None else int(row[0])

    def first_stamped(self, stamp: int) -> int | None:
        with self._explained():
            row = self._connections.reader().execute(_FIRST_STAMPED, (stamp,)).fetchone()
        return None if row[0] is None else int(row[0])

    def last_stamp(self) -> int:
        return int(self._row(_LAST_STAMP)[0])

    def backlog_events(self, start: int) -> int:
        end, events_end, _ = self._row(_LAST)
        try:
            return events_end - self._totals_before(min(max(start, self.start()), end))[0]
        except CorruptLogError:
            return end - start  # as if each record had one event

    def size_bytes(self) -> int:
        return self._row(_LAST)[2] - self._totals_before(self.start())[1]

    def sizes(self) -> dict[str, int]:
        try:
            return self._counted()[0]
        except CorruptLogError:  # The sizes counted before the corrupt page are still valid.
            with self._explained():
                return dict(self._connections.reader().execute("SELECT space, bytes FROM sizes").fetchall())

    def _counted(self) -> tuple[dict[str, int], bool]:
        """Return the stored bytes by space, and whether they agree with the totals in ``records``."""
        with self._explained():
            reader = self._connections.reader()
            # One snapshot for the counted sizes and the records that are not counted yet.
            reader.execute("BEGIN")
            try:
                kept = dict(reader.execute("SELECT space, bytes FROM sizes").fetchall())
                counted = reader.execute("SELECT end FROM counted").fetchone()[0]
                later = reader.execute(_SIZES_OF, (counted, _NO_END)).fetchall()
                start = reader.execute("SELECT start FROM trimmed").fetchone()[0]
                before = reader.execute(_TOTALS_BEFORE, (start,)).fetchone()
                total = reader.execute(_LAST).fetchone()[2] - (before[1] if before else 0)
            finally:
                reader.execute("COMMIT")
        for space, size_bytes in later:
            kept[space] = kept.get(space, 0) + size_bytes
        return kept, total == sum(kept.values())

    def grow_older(self, elapsed_ms: int, policy: RetentionPolicy) -> None:
        ages_ms = [age_ms for age_ms in (policy.max_age_ms, policy.producers_ms) if age_ms is not None]
        if ages_ms:
            self.observe(elapsed_ms, every_ms=max(1, min(ages_ms) // AGES_NOTED), keep_ms=max(ages_ms))

    def retain(self, policy: RetentionPolicy, keep_from: Offsets) -> None:
        before, keep = self.start(), min(keep_from[0], self.end())
        if policy.max_age_ms is not None:
            before = max(before, self.older_than(policy.max_age_ms))
        if policy.max_bytes is not None and before < keep:
            with suppress(CorruptLogError):  # Without readable totals, remove nothing by size.
                before = self._beyond(before, keep, policy.max_bytes)
        self.trim(min(before, keep))
        if policy.producers_ms is not None:
            self.forget_producers(self.older_than(policy.producers_ms))

    def _beyond(self, before: int, keep: int, max_bytes: int) -> int:
        """Return the first offset from which records take at most `max_bytes`; at most `keep`."""
        with self._explained():
            reader = self._connections.reader()
            if not self._counted()[1]:
                # Do not remove everything because of a corrupt total.
                row = reader.execute(_FITS_FROM, (before, max_bytes)).fetchone()
                return before if row is None else min(row[0], keep)
            surplus = self._row(_LAST)[2] - max_bytes
            if self._totals_before(before)[1] >= surplus:
                return before
            row = reader.execute(_FIRST_BEYOND, (before, keep, surplus)).fetchone()
        return keep if row is None else int(row[0])

    def trim(self, before: int) -> int:
        """Remove the records before an offset; return their number."""
        self._count()
        start = self.start()
        before = min(before, self.end())
        removed = 0
        while start < before:
            step_end = min(before, self.bound(start, _TRIM_BYTES, _TRIM_EVENTS))
            totals = self._totals_before(step_end)
            sizes = self._sizes_of(start, step_end)
            with self._writing() as connection:
                connection.executemany(_ADD_SIZE, [(space, -size_bytes) for space, size_bytes in sizes])
                connection.execute("DELETE FROM sizes WHERE bytes <= 0")
                connection.execute("UPDATE counted SET end = max(end, ?)", (step_end,))
                connection.execute(
                    "UPDATE trimmed SET start = ?1, events_end = ?2, bytes_end = ?3,"
                    " checksum = row_checksum(?1, ?2, ?3)",
                    (step_end, *totals),
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
        """Count the records appended since the last call; reading them does not block appends."""
        if not self._is_count_checked:
            self._is_count_checked = True  # Only once: the total in a record may be permanently corrupt.
            with suppress(CorruptLogError):
                if not self._counted()[1]:
                    with self._writing() as connection:
                        small_tables.recount(connection)
        counted, end = self._row("SELECT end FROM counted")[0], self.end()
        if counted < end:
            sizes = self._sizes_of(counted, end)
            with self._writing() as connection:
                connection.executemany(_ADD_SIZE, sizes)
                connection.execute("UPDATE counted SET end = ?", (end,))

    def _sizes_of(self, start: int, end: int) -> list[tuple[str, int]]:
        try:
            with self._explained():
                return self._connections.reader().execute(_SIZES_OF, (start, end)).fetchall()
        except CorruptLogError:
            return []  # The sizes only serve quotas: a corrupt page must not block retention.

    def forget_producers(self, before: int) -> int:
        """Remove the remembered producer sequences of records before an offset; return their number.

        A removed sequence is no longer recognized as a repeat. One call examines at most `_FORGET_ROWS`
        sequences; the next call resumes where it ended.
        """
        with self._explained():
            rows = self._connections.reader().execute(_SEQUENCES_AFTER, (*self._forgotten_to, _FORGET_ROWS))
            looked_at = rows.fetchall()
        # Reading does not block appends, and each write removes only a few rows.
        self._forgotten_to = looked_at[-1][:3] if len(looked_at) == _FORGET_ROWS else _FIRST_KEY
        old = [row[:3] for row in looked_at if row[3] < before]
        if old:
            with self._writing() as connection:
                connection.executemany(_FORGET_ONE, old)
        return len(old)

    def observe(self, elapsed_ms: int, every_ms: int, keep_ms: int) -> None:
        """Add `elapsed_ms` to the time that a service has run on this log, which is what ages its records.

        The log's end is noted every `every_ms`; `older_than` is exact to that interval and never reports a
        younger record as older. Notes older than `keep_ms`, the greatest age ever asked for, are removed.
        """
        with self._writing() as connection:
            connection.execute(
                "UPDATE ran SET ran_ms = ran_ms + ?1, checksum = row_checksum(ran_ms + ?1)",
                (max(0, elapsed_ms),),
            )
            ran_ms = connection.execute("SELECT ran_ms FROM ran").fetchone()[0]
            last_ms = connection.execute("SELECT max(ran_ms) FROM observed").fetchone()[0]
            if last_ms is None or ran_ms - last_ms >= every_ms:
                connection.execute(
                    "INSERT OR REPLACE INTO observed VALUES (?1, ?2, row_checksum(?1, ?2))",
                    (ran_ms, _end(connection)),
                )
                # Of the notes older than `keep_ms`, the newest one is enough.
                connection.execute(
                    "DELETE FROM observed WHERE ran_ms <"
                    " (SELECT max(ran_ms) FROM observed WHERE ran_ms <= ?)",
                    (ran_ms - keep_ms,),
                )

    def older_than(self, age_ms: int) -> int:
        """Return the offset before which every record is older than `age_ms` of the time `observe` counts."""
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
        """Assign no offset before `to` to later records: skip the offsets between the log's end and `to`."""
        with self._writing() as connection:
            end = _end(connection)
            if to > end:
                connection.execute("INSERT INTO holes VALUES (?1, ?2, row_checksum(?1, ?2))", (end, to))

    def close(self) -> None:
        self._connections.close()

    def _prepare(self) -> None:
        """Create, upgrade or repair the tables if needed; FormatError for another kind of file."""
        if self.path.exists():
            reader = self._connections.reader()
            if schema.is_current(reader) and not small_tables.wrong_tables(reader):
                return
        with self._connections.writing() as connection:
            if not schema.prepare(connection, self.path.with_name("registry.db")):
                raise FormatError(
                    f"{self.path} is not an event log of formats 1 to {schema.FORMAT}: restore the file, or"
                    " start the fieldfare that wrote it"
                )
            small_tables.mend_tables(connection, self.path)

    def _row(
        self, statement: str, values: tuple[int, ...] = (), or_else: str | None = None
    ) -> tuple[int, ...]:
        """Return the row of a statement or, if it has none, of `or_else`; TrimmedError if neither has one."""
        with self._explained():
            reader = self._connections.reader()
            row: tuple[int, ...] | None = reader.execute(statement, values).fetchone()
            if row is None and or_else is not None:
                row = reader.execute(or_else, values).fetchone()
        if row is None:
            raise TrimmedError(f"{self.path} was trimmed by retention while it was read")
        return row

    def _totals_before(self, offset: int) -> tuple[int, int]:
        """Return the events and bytes ever appended before an offset between the log's start and end."""
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
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            with self._explained(), self._connections.writing() as connection:
                yield connection
        except CorruptLogError as error:
            note_structure(self.path, error.__cause__)
            raise

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if is_disk_full(error, self.path):
                raise DiskFullError(disk_full(self.path)) from error
            kind: type[EventLogError] = EventLogError
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                kind = FormatError
            elif is_damage(error, self.path):
                kind = CorruptLogError
            raise kind(f"{self.path}: {error}") from error


def _end(connection: sqlite3.Connection) -> int:
    row: tuple[int, int, int] = connection.execute(_LAST).fetchone()
    return row[0]


_Row = tuple[int, str, int, int, int, int, int, str | None, bytes]


def _place(
    connection: sqlite3.Connection, records: Sequence[NewRecord], checksums: Sequence[int]
) -> tuple[list[Appended | OutOfOrder], list[_Row]]:
    """Assign each record its offset (a repeat gets the first record's); return the results and new rows.

    Uses as few statements as possible: each statement releases the interpreter lock several times, and
    reacquiring the lock while another thread is busy takes longer than the statement itself.
    """
    end, events_end, bytes_end, *run = connection.execute(_LAST_AND_STAMP).fetchone()
    appended: list[Appended | OutOfOrder] = []
    rows: list[_Row] = []
    for record, of_payload in zip(records, checksums, strict=True):
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
        if run != [record.stamp, record.origin is not None]:
            run = [record.stamp, record.origin is not None]
            connection.execute("INSERT INTO stamps VALUES (?, ?, ?)", (end, *run))
        events_end += record.count
        bytes_end += len(record.payload)
        head = end, record.space, record.count, record.appended_ms, events_end, bytes_end
        checksum = record_checksum(*head, record.stamp, of_payload, record.origin)
        rows.append((*head, checksum, record.origin, record.payload))
        appended.append(Appended(end, record.count, record.stamp, duplicate=False))
        end += 1
    return appended, rows


def _is_same(connection: sqlite3.Connection, record: NewRecord, offset: int, rows: Sequence[_Row]) -> bool:
    """Return whether a record's payload equals an earlier one's, stored or in `rows`; true if removed."""
    if rows and offset >= rows[0][0]:
        return rows[offset - rows[0][0]][-1] == record.payload
    stored = connection.execute("SELECT payload FROM records WHERE offset = ?", (offset,)).fetchone()
    return stored is None or stored[0] == record.payload
