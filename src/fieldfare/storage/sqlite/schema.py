"""The tables of the event log's SQLite file, and how a file of an older format becomes one of today's.

``records`` holds a row a record. The payload is its last column, so whatever reads the columns before it
never touches the pages that the payload overflows to. ``events_end`` and ``bytes_end`` count all events
and payload bytes ever appended, this record's included: sums over any range are one subtraction, and
finding a batch's bound is a binary search. ``trimmed`` keeps the same counts for what retention took, so
offsets go on where they were when no record is left. ``holes`` are offsets that never had a record here.
``stamps`` holds a row wherever a record's stamp is not that of the record before: from ``start`` on records
have ``stamp``, those before the first row 0.
``producers`` remembers the sequences of producers. ``ran`` is how long a service has run on this log, and
``observed`` where the log ended after how much of that. ``sizes`` says how many payload bytes of each space
are kept before the offset in ``counted``: brought up to date now and then, so that no append pays for it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

from fieldfare.storage.errors import EventLogError, FormatError

FORMAT = 4
APPLICATION_ID = 0x66664C47
"""Marks the file as an event log of this kind ("ffLG")."""

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
    f"PRAGMA user_version = {FORMAT}",
)

_SCHEMA = (
    """CREATE TABLE records (
        offset INTEGER PRIMARY KEY, space TEXT NOT NULL, count INTEGER NOT NULL, appended_ms INTEGER NOT NULL,
        events_end INTEGER NOT NULL, bytes_end INTEGER NOT NULL, payload BLOB NOT NULL)""",
    "CREATE TABLE trimmed (start INTEGER NOT NULL, events_end INTEGER NOT NULL, bytes_end INTEGER NOT NULL)",
    "INSERT INTO trimmed VALUES (0, 0, 0)",
    _PRODUCERS,
    f"PRAGMA application_id = {APPLICATION_ID}",
    *_ADDED_BY_2,
    *_ADDED_BY_3,
    *_ADDED_BY_4,
)

_FROM_1 = (
    "ALTER TABLE producers RENAME TO producers_1",
    _PRODUCERS,
    # Whose record has gone, of that nobody knows the space any more: better it comes twice than not at all.
    """INSERT INTO producers SELECT records.space, producer, sequence, producers_1.offset, producers_1.count
        FROM producers_1 JOIN records ON records.offset = producers_1.offset""",
    "DROP TABLE producers_1",
    *_ADDED_BY_2,
)

_CHANGES_BY_OFFSET = """SELECT at, max(revision) FROM (
    SELECT valid_from AS at, revision FROM versions
    UNION ALL SELECT valid_to, closed_revision FROM versions WHERE closed_revision IS NOT NULL)
    WHERE at < ? GROUP BY at ORDER BY at"""


def is_current(connection: sqlite3.Connection) -> bool:
    """Whether the file is an event log of today's format."""
    return _kind(connection) == (APPLICATION_ID, FORMAT)


def prepare(connection: sqlite3.Connection, registry: Path) -> bool:
    """In a transaction: make the tables, or bring them up to date; False for a file of another kind.

    Parameters
    ----------
    connection
        The log.
    registry
        The registry beside it, if there is one: only it knows what records of an older log are stamped with.
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
        connection.executemany("INSERT INTO stamps VALUES (?, ?)", _stamps_of_before(connection, registry))
    _run(connection, _ADDED_BY_4)
    return True


def _run(connection: sqlite3.Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        connection.execute(statement)


def _stamps_of_before(connection: sqlite3.Connection, registry: Path) -> list[tuple[int, int]]:
    """The rows of ``stamps`` for records that were matched by their offsets: a version counted from the log's
    end at one change to the log's end at the next. The last change at or before a record's offset is the
    revision as of which it meets the same versions.
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
                # They rise together, but that a registry may have been put back from before.
                revision = max(revision, rows[-1][1])
                if at <= start:
                    rows.pop()
            rows.append((at, revision))
    except sqlite3.Error as error:
        kind = FormatError if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB else EventLogError
        raise kind(f"{registry}, which the log's older records need: {error}") from error
    finally:
        reading.close()
    return rows


def _kind(connection: sqlite3.Connection) -> tuple[int, int]:
    """What the file says it is, and its format."""
    return (
        connection.execute("PRAGMA application_id").fetchone()[0],
        connection.execute("PRAGMA user_version").fetchone()[0],
    )
