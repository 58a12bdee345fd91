"""The tables of the event log's SQLite file, and the upgrade of a file of an older format.

``records`` has one row per record. The payload is its last column, so a statement that reads only other
columns never touches the payload's overflow pages. ``checksum`` (see `storage.checksums`) covers the complete
record. Records of format 4 and earlier have none, and in a file of such a format it is the last column.
``events_end`` and ``bytes_end`` count all events and payload bytes ever appended, including this record's: a
sum over any range is one subtraction, and finding a batch's end is a binary search.

`origin` is where a record was published that another broker has forwarded.

``trimmed`` holds these counts for the records that retention removed, so offsets continue even when no record
is left. ``holes`` lists the ranges of offsets that never had a record here. ``stamps`` has a row wherever a
record's stamp differs from that of the record before, or only one of both has an origin (`is_remote`):
records from ``start`` on have ``stamp``; records before the first row have stamp 0. ``producers`` remembers
the sequences of producers. ``ran`` is the time that a service has run on this log, and ``observed`` records
the log's end at points of that time. ``sizes`` has the payload bytes of each space that are stored before the
offset in ``counted``; it is updated occasionally, so that appends do not pay for it.
Rows of ``trimmed``, ``holes``, ``ran`` and ``observed`` have a checksum, too (see `small_tables`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from fieldfare.storage.errors import EventLogError, FormatError
from fieldfare.storage.sqlite.small_tables import set_checksum

FORMAT = 7
APPLICATION_ID = 0x66664C47
"""SQLite application ID of an event log ("ffLG")."""

_PRODUCERS = """CREATE TABLE producers (
    space TEXT NOT NULL, producer TEXT NOT NULL, sequence INTEGER NOT NULL, offset INTEGER NOT NULL,
    count INTEGER NOT NULL, PRIMARY KEY (space, producer, sequence)) WITHOUT ROWID"""

_ADDED_BY_2 = (
    "CREATE TABLE holes (start INTEGER PRIMARY KEY, end INTEGER NOT NULL)",
    "CREATE TABLE ran (ran_ms INTEGER NOT NULL)",
    "CREATE TABLE observed (ran_ms INTEGER PRIMARY KEY, end INTEGER NOT NULL)",
    "INSERT INTO ran VALUES (0)",
)

_ADDED_BY_3 = ("CREATE TABLE stamps (start INTEGER PRIMARY KEY, stamp INTEGER NOT NULL)",)

_ADDED_BY_4 = (
    "CREATE TABLE sizes (space TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE counted (end INTEGER NOT NULL)",
    "INSERT INTO counted SELECT start FROM trimmed",
)

_ADDED_BY_5 = ("ALTER TABLE records ADD COLUMN checksum INTEGER",)

_ADDED_BY_6 = (
    *(f"ALTER TABLE {name} ADD COLUMN checksum INTEGER" for name in ("trimmed", "holes", "ran", "observed")),
    *(set_checksum(name) for name in ("trimmed", "holes", "ran", "observed")),
)

_ADDED_BY_7 = (
    "ALTER TABLE stamps ADD COLUMN is_remote INTEGER NOT NULL DEFAULT 0",
    "CREATE INDEX stamps_by_stamp ON stamps (stamp)",
    f"PRAGMA user_version = {FORMAT}",
)
_ORIGIN = "ALTER TABLE records ADD COLUMN origin TEXT"

_SCHEMA = (
    """CREATE TABLE records (
        offset INTEGER PRIMARY KEY, space TEXT NOT NULL, count INTEGER NOT NULL, appended_ms INTEGER NOT NULL,
        events_end INTEGER NOT NULL, bytes_end INTEGER NOT NULL, checksum INTEGER, origin TEXT,
        payload BLOB NOT NULL)""",
    "CREATE TABLE trimmed (start INTEGER NOT NULL, events_end INTEGER NOT NULL, bytes_end INTEGER NOT NULL)",
    "INSERT INTO trimmed VALUES (0, 0, 0)",
    _PRODUCERS,
    f"PRAGMA application_id = {APPLICATION_ID}",
    *_ADDED_BY_2,
    *_ADDED_BY_3,
    *_ADDED_BY_4,
    *_ADDED_BY_6,
    *_ADDED_BY_7,
)

_FROM_1 = (
    "ALTER TABLE producers RENAME TO producers_1",
    _PRODUCERS,
    # The space of a sequence is unknown if its record was removed. Dropping the sequence may append a repeat
    # a second time, which is better than losing it.
    """INSERT INTO producers SELECT records.space, producer, sequence, producers_1.offset, producers_1.count
        FROM producers_1 JOIN records ON records.offset = producers_1.offset""",
    "DROP TABLE producers_1",
    *_ADDED_BY_2,
)

_CHANGES_BY_OFFSET = """SELECT at, max(revision) FROM (
    SELECT valid_from AS at, revision FROM versions
    UNION ALL SELECT valid_to, closed_revision FROM versions WHERE closed_revision IS NOT NULL)
    WHERE at < ? GROUP BY at ORDER BY at"""


def bounds(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the start and end offsets of a log of the current format."""
    (start,) = connection.execute("SELECT start FROM trimmed").fetchone()
    (after_records,) = connection.execute("SELECT max(offset) + 1 FROM records").fetchone()
    (after_holes,) = connection.execute("SELECT max(end) FROM holes").fetchone()
    return start, max(start, after_records or 0, after_holes or 0)


def is_current(connection: sqlite3.Connection) -> bool:
    """Return whether the file is an event log of the current format."""
    return _kind(connection) == (APPLICATION_ID, FORMAT)


def prepare(connection: sqlite3.Connection, registry: Path) -> bool:
    """Create or upgrade the tables, in the caller's transaction; return False for another kind of file.

    Parameters
    ----------
    connection
        The log.
    registry
        Path of the registry beside the log, which need not exist: only it has the stamps for the records of
        a log of format 2 or earlier.
    """
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
        _run(connection, _SCHEMA)
        return True
    application_id, format = _kind(connection)
    if application_id != APPLICATION_ID or not 1 <= format < FORMAT:
        return (application_id, format) == (APPLICATION_ID, FORMAT)
    if format == 1:
        _run(connection, _FROM_1)
    if format <= 2:
        _run(connection, _ADDED_BY_3)
        connection.executemany(
            "INSERT INTO stamps (start, stamp) VALUES (?, ?)", _stamps_of_before(connection, registry)
        )
    if format <= 3:
        _run(connection, _ADDED_BY_4)
    if format <= 4:
        _run(connection, _ADDED_BY_5)
    if format <= 5:
        _run(connection, _ADDED_BY_6)
    _run(connection, (_ORIGIN, *_ADDED_BY_7))
    return True


def _run(connection: sqlite3.Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        connection.execute(statement)


def _stamps_of_before(connection: sqlite3.Connection, registry: Path) -> list[tuple[int, int]]:
    """Return the rows of ``stamps`` for records that were matched by their offsets (format 2 and earlier).

    There, a version was valid from the log's end at one change to the log's end at the next. The revision of
    the last change at or before a record's offset selects the same versions for that record.
    """
    if not registry.exists():
        return []
    start, end = connection.execute(
        "SELECT (SELECT start FROM trimmed), (SELECT coalesce(max(offset) + 1, 0) FROM records)"
    ).fetchone()
    rows: list[tuple[int, int]] = []
    reading = sqlite3.connect(registry)
    try:
        if not reading.execute("SELECT 1 FROM sqlite_schema WHERE name = 'versions'").fetchone():
            return []
        for at, revision in reading.execute(_CHANGES_BY_OFFSET, (end,)):
            if rows:
                # Offsets and revisions rise together, unless an older registry was restored.
                revision = max(revision, rows[-1][1])
                if at <= start:
                    rows.pop()
            rows.append((at, revision))
    except sqlite3.Error as error:
        kind = FormatError if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB else EventLogError
        raise kind(f"{registry}, which is needed to upgrade the log, cannot be read: {error}") from error
    finally:
        reading.close()
    return rows


def _kind(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the file's application ID and format."""
    return (
        connection.execute("PRAGMA application_id").fetchone()[0],
        connection.execute("PRAGMA user_version").fetchone()[0],
    )
