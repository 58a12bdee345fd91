"""The tables of the event log's SQLite file, and how a file of an older format becomes one of today's.

``records`` holds a row a record. The payload is its last column, so whatever reads the columns before it
never touches the pages that the payload overflows to. ``events_end`` and ``bytes_end`` count all events
and payload bytes ever appended, this record's included: sums over any range are one subtraction, and
finding a batch's bound is a binary search. ``trimmed`` keeps the same counts for what retention took, so
offsets go on where they were when no record is left. ``holes`` are offsets that never had a record here.
``producers`` remembers the sequences of producers. ``ran`` is how long a service has run on this log, and
``observed`` where the log ended after how much of that.
"""

from __future__ import annotations

import sqlite3

FORMAT = 2
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


def is_current(connection: sqlite3.Connection) -> bool:
    """Whether the file is an event log of today's format."""
    return _kind(connection) == (APPLICATION_ID, FORMAT)


def prepare(connection: sqlite3.Connection) -> bool:
    """In a transaction: make the tables, or bring them up to date; False for a file of another kind."""
    if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
        statements: tuple[str, ...] = _SCHEMA
    elif _kind(connection) == (APPLICATION_ID, 1):
        statements = _FROM_1
    else:
        return is_current(connection)
    for statement in statements:
        connection.execute(statement)
    return True


def _kind(connection: sqlite3.Connection) -> tuple[int, int]:
    """What the file says it is, and its format."""
    return (
        connection.execute("PRAGMA application_id").fetchone()[0],
        connection.execute("PRAGMA user_version").fetchone()[0],
    )
