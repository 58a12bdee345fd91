"""The event log in one SQLite file.

``records`` holds a row a record. The payload is its last column, so whatever reads the columns before it
never touches the pages that the payload overflows to. ``events_end`` and ``bytes_end`` count all events
and payload bytes ever appended, this record's included: sums over any range are one subtraction, and
finding a batch's bound is a binary search. ``trimmed`` keeps the same counts for what retention took, so
offsets go on where they were when no record is left. ``producers`` remembers the sequences of producers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fieldfare.arrow_events.stream import is_arrow, read_events
from fieldfare.storage.errors import EventLogError, TrimmedError
from fieldfare.storage.event_log import (
    MAX_PAYLOAD_BYTES,
    MAX_RECORD_EVENTS,
    Appended,
    Backlog,
    NewRecord,
    Record,
    RecordSize,
)
from fieldfare.storage.sqlite_connections import SqliteConnections

FORMAT = 1
_APPLICATION_ID = 0x66664C47
"""Marks the file as an event log of this kind ("ffLG")."""

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

_SETTINGS = (
    f"PRAGMA page_size = {_PAGE_BYTES}",
    "PRAGMA journal_mode = WAL",
    # A commit returns when the WAL is on disk: that is what makes an append durable.
    "PRAGMA synchronous = FULL",
    # Payload pages go through the WAL into the file; doing so seldom keeps a fast stream of appends fast.
    f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_BYTES // _PAGE_BYTES}",
    f"PRAGMA journal_size_limit = {_CHECKPOINT_BYTES}",
)

_SCHEMA = (
    """CREATE TABLE records (
        offset INTEGER PRIMARY KEY, space TEXT NOT NULL, count INTEGER NOT NULL, appended_ms INTEGER NOT NULL,
        events_end INTEGER NOT NULL, bytes_end INTEGER NOT NULL, payload BLOB NOT NULL)""",
    "CREATE TABLE trimmed (start INTEGER NOT NULL, events_end INTEGER NOT NULL, bytes_end INTEGER NOT NULL)",
    """CREATE TABLE producers (
        producer TEXT NOT NULL, sequence INTEGER NOT NULL, offset INTEGER NOT NULL, count INTEGER NOT NULL,
        appended_ms INTEGER NOT NULL, PRIMARY KEY (producer, sequence)) WITHOUT ROWID""",
    "INSERT INTO trimmed VALUES (0, 0, 0)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)

_LAST = """SELECT * FROM (SELECT offset + 1, events_end, bytes_end FROM records ORDER BY offset DESC LIMIT 1)
    UNION ALL SELECT start, events_end, bytes_end FROM trimmed ORDER BY 1 DESC LIMIT 1"""
_REPEAT = "SELECT offset, count FROM producers WHERE producer = ? AND sequence = ?"
_FORGET = """DELETE FROM producers WHERE producer = ?1 AND sequence <
    (SELECT sequence FROM producers WHERE producer = ?1 ORDER BY sequence DESC LIMIT 1 OFFSET ?2)"""


class SqliteEventLog:
    """An `EventLog` in a SQLite file, which is created if it does not exist.

    Retention frees pages that later appends use again; the file does not shrink.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._connections = SqliteConnections(self.path, _SETTINGS)
        self._appends_of: dict[str, int] = {}
        with self._explained():
            self._prepare()

    def __reduce__(self) -> tuple[type[SqliteEventLog], tuple[str]]:
        return SqliteEventLog, (str(self.path),)

    def __repr__(self) -> str:
        return f"SqliteEventLog({str(self.path)!r})"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def append(self, records: Sequence[NewRecord]) -> list[Appended]:
        for record in records:
            _check(record)
        with self._explained(), self._connections.writing() as connection:
            appended, rows = _place(connection, records)
            connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            self._forget_surplus(connection, records)
        return appended

    @contextmanager
    def fence(self) -> Iterator[int]:
        with self._explained(), self._connections.writing() as connection:
            end: int = connection.execute(_LAST).fetchone()[0]
            yield end
            connection.execute("ROLLBACK")

    def start(self) -> int:
        return int(self._row("SELECT start FROM trimmed")[0])

    def end(self) -> int:
        return int(self._row(_LAST)[0])

    def read(self, start: int, end: int) -> Iterator[Record]:
        while start < end:
            chunk_end = min(end, self.bound(start, _CHUNK_BYTES, 1 << 62), start + _CHUNK_RECORDS)
            with self._explained():
                rows = self._connections.reader().execute(
                    "SELECT offset, space, count, payload, appended_ms FROM records"
                    " WHERE offset >= ? AND offset < ? ORDER BY offset",
                    (start, chunk_end),
                )
                # All rows at once: a statement left open would hold the WAL back while the caller works.
                chunk = [Record(*row) for row in rows]
            if not chunk:
                return
            if chunk[0].offset != start:
                raise self._trimmed(start)
            yield from chunk
            start = chunk_end

    def bound(self, start: int, max_bytes: int, max_events: int) -> int:
        end = self.end()
        if start >= end:
            return start
        events, size_bytes = self._totals_before(start)
        # Gallop, then halve: `low` records fit (one always does), `high` do not.
        low, high, step = start + 1, end + 1, 2
        while low < high - 1:
            middle = min(start + step, high - 1) if step else (low + high) // 2
            events_end, bytes_end = self._totals_before(middle)
            if events_end - events <= max_events and bytes_end - size_bytes <= max_bytes:
                low, step = middle, step * 2
            else:
                high, step = middle, 0
        return low

    def backlog(self, start: int) -> Backlog:
        end, events_end, bytes_end = self._row(_LAST)
        start = min(max(start, self.start()), end)
        events, size_bytes = self._totals_before(start)
        return Backlog(end - start, events_end - events, bytes_end - size_bytes)

    def sizes(self, start: int) -> Iterator[RecordSize]:
        start = max(start, self.start())
        before = self._totals_before(start)[1] if start < self.end() else 0
        while True:
            with self._explained():
                rows = (
                    self._connections.reader()
                    .execute(
                        "SELECT offset, bytes_end, appended_ms FROM records WHERE offset >= ?"
                        " ORDER BY offset LIMIT ?",
                        (start, _CHUNK_RECORDS),
                    )
                    .fetchall()
                )
            if not rows:
                return
            for offset, bytes_end, appended_ms in rows:
                yield RecordSize(offset, bytes_end - before, appended_ms)
                before, start = bytes_end, offset + 1

    def size_bytes(self) -> int:
        return self.backlog(self.start()).bytes

    def trim(self, before: int) -> int:
        first = start = self.start()
        before = min(before, self.end())
        while start < before:
            step_end = min(before, self.bound(start, _TRIM_BYTES, 1 << 62), start + _CHUNK_RECORDS)
            with self._explained(), self._connections.writing() as connection:
                connection.execute(
                    "UPDATE trimmed SET (start, events_end, bytes_end) ="
                    " (SELECT offset + 1, events_end, bytes_end FROM records WHERE offset = ?)",
                    (step_end - 1,),
                )
                connection.execute("DELETE FROM records WHERE offset < ?", (step_end,))
            start = step_end
        return start - first

    def forget_producers(self, before_ms: int) -> int:
        with self._explained(), self._connections.writing() as connection:
            return connection.execute("DELETE FROM producers WHERE appended_ms < ?", (before_ms,)).rowcount

    def close(self) -> None:
        self._connections.close()

    def _prepare(self) -> None:
        """Create the tables unless they are there; refuse a file that is something else."""
        if self.path.exists() and _kind(self._connections.reader()) == (_APPLICATION_ID, FORMAT):
            return
        with self._connections.writing() as connection:
            tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
            if tables == 0:
                for statement in _SCHEMA:
                    connection.execute(statement)
            elif _kind(connection) != (_APPLICATION_ID, FORMAT):
                raise EventLogError(f"{self.path} is not an event log of format {FORMAT}")

    def _row(self, statement: str, values: tuple[int, ...] = ()) -> tuple[int, ...]:
        with self._explained():
            row: tuple[int, ...] | None = self._connections.reader().execute(statement, values).fetchone()
        if row is None:
            raise EventLogError(f"{self.path} is not an event log")
        return row

    def _totals_before(self, offset: int) -> tuple[int, int]:
        """The events and bytes ever appended before an offset, which is in what is kept, or its end."""
        with self._explained():
            row: tuple[int, int] | None = (
                self._connections.reader()
                .execute(
                    "SELECT events_end, bytes_end FROM records WHERE offset = ?1 - 1"
                    " UNION ALL SELECT events_end, bytes_end FROM trimmed WHERE start = ?1",
                    (offset,),
                )
                .fetchone()
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
            appends = self._appends_of.get(record.producer, 0) + 1
            if appends >= _FORGET_EVERY:
                connection.execute(_FORGET, (record.producer, REMEMBERED_SEQUENCES - 1))
                appends = 0
            self._appends_of[record.producer] = appends
        if len(self._appends_of) > _COUNTED_PRODUCERS:
            self._appends_of.clear()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise EventLogError(f"{self.path}: {error}") from error


def _kind(connection: sqlite3.Connection) -> tuple[int, int]:
    """What the file says it is, and its format."""
    return (
        connection.execute("PRAGMA application_id").fetchone()[0],
        connection.execute("PRAGMA user_version").fetchone()[0],
    )


def _check(record: NewRecord) -> None:
    if not 1 <= record.count <= MAX_RECORD_EVENTS:
        raise ValueError(f"a record has 1 to {MAX_RECORD_EVENTS} events, not {record.count}")
    if len(record.payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a record has at most {MAX_PAYLOAD_BYTES} bytes, not {len(record.payload)}")
    if is_arrow(record.payload):
        read_events(record.payload, record.count)
    elif not record.payload.endswith(b"\n") or record.payload.count(b"\n") != record.count:
        raise ValueError(f"the payload is not {record.count} lines, each ended by a line feed")
    if (record.producer is None) != (record.sequence is None):
        raise ValueError("producer and sequence go together")


def _place(
    connection: sqlite3.Connection, records: Sequence[NewRecord]
) -> tuple[list[Appended], list[tuple[int, str, int, int, int, int, bytes]]]:
    """Give every record its place, repeats the first one's; returns the rows to insert too."""
    end, events_end, bytes_end = connection.execute(_LAST).fetchone()
    appended: list[Appended] = []
    rows = []
    for record in records:
        if record.producer is not None:
            repeat = connection.execute(_REPEAT, (record.producer, record.sequence)).fetchone()
            if repeat is not None:
                appended.append(Appended(repeat[0], repeat[1], duplicate=True))
                continue
            connection.execute(
                "INSERT INTO producers VALUES (?, ?, ?, ?, ?)",
                (record.producer, record.sequence, end, record.count, record.appended_ms),
            )
        events_end += record.count
        bytes_end += len(record.payload)
        rows.append(
            (end, record.space, record.count, record.appended_ms, events_end, bytes_end, record.payload)
        )
        appended.append(Appended(end, record.count, duplicate=False))
        end += 1
    return appended, rows
