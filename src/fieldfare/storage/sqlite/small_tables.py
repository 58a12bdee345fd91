"""The log's small tables: its start, the offsets without a record, its age, the counted sizes.

Rows have a checksum (``row_checksum`` in SQL; the counted sizes have none), checked when the log is opened.
A corrupt value is computed again from the records, or replaced by a value that loses no data: records are
kept longer rather than removed.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from fieldfare.storage.corruption import note_corruption

_COVERED = {
    "holes": "start, end",
    "observed": "ran_ms, end",
    "ran": "ran_ms",
    "trimmed": "start, events_end, bytes_end",
}
"""Columns that each table's checksum covers; tables from which others are restored come first."""
_ONE_ROW = ("trimmed", "ran", "counted")
_FIRST = "SELECT offset, events_end - count, bytes_end - length(payload) FROM records ORDER BY offset LIMIT 1"
_LAST_KNOWN = """SELECT coalesce(max(end), 0) FROM (
    SELECT end FROM holes UNION ALL SELECT end FROM observed UNION ALL SELECT end FROM counted)"""


def set_checksum(table: str) -> str:
    """Return the SQL statement that sets the checksum of rows written without one."""
    return f"UPDATE {table} SET checksum = row_checksum({_COVERED[table]}) WHERE checksum IS NULL"


def wrong_tables(connection: sqlite3.Connection) -> list[str]:
    """Return the tables with a corrupt or missing row."""
    wrong = [
        table for table in _COVERED if connection.execute(f"SELECT 1 FROM {_wrong_in(table)}").fetchone()
    ]
    for table in _ONE_ROW:
        rows = connection.execute(f"SELECT * FROM {table} LIMIT 2").fetchall()
        if table not in wrong and (len(rows) != 1 or not all(_is_number(each) for each in rows[0])):
            wrong.append(table)
    return wrong


def mend_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Repair the tables that `wrong_tables` returns, in the caller's transaction; note each repair."""
    for table in wrong_tables(connection):
        if table in ("holes", "observed"):
            connection.execute(f"DELETE FROM {_wrong_in(table)}")
        else:
            connection.execute(f"DELETE FROM {table}")
        said = _MENDS[table](connection)
        if table in _COVERED:
            connection.execute(set_checksum(table))
        note_corruption(path, f"table-{table}", said)


def _wrong_in(table: str) -> str:
    columns = _COVERED[table]
    numbers = " AND ".join(f"typeof({name}) = 'integer'" for name in columns.split(", "))
    fits = f"({numbers} AND (checksum IS NULL OR checksum = row_checksum({columns})))"
    return f"{table} WHERE NOT {fits}"


def _is_number(value: object) -> bool:
    return value is None or isinstance(value, int)


def _mend_trimmed(connection: sqlite3.Connection) -> str:
    row = connection.execute(_FIRST).fetchone()
    if row is None or not all(isinstance(each, int) for each in row):
        row = (*connection.execute(_LAST_KNOWN).fetchone(), 0, 0)
    connection.execute("INSERT INTO trimmed (start, events_end, bytes_end) VALUES (?, ?, ?)", row)
    return (
        f"its first offset had changed on the disk and was restored from its records: {row[0]}; nothing is"
        " lost"
    )


def _mend_holes(_connection: sqlite3.Connection) -> str:
    return (
        "a row that named offsets without records has changed on the disk and was dropped; another note may"
        " report these offsets as unreadable records, but nothing is lost"
    )


def _mend_ran(connection: sqlite3.Connection) -> str:
    connection.execute(
        "INSERT INTO ran (ran_ms) SELECT coalesce(max(ran_ms), 0) FROM observed"
        " WHERE typeof(ran_ms) = 'integer'"
    )
    return "its total running time has changed on the disk; records are kept longer than configured"


def _mend_observed(_connection: sqlite3.Connection) -> str:
    return "the ages of some records have changed on the disk; these records are kept longer than configured"


def _mend_counted(connection: sqlite3.Connection) -> str:
    recount(connection)
    return (
        "the stored sizes of all spaces had changed on the disk; they are counted again, and nothing is lost"
    )


def recount(connection: sqlite3.Connection) -> None:
    """Reset the counted sizes of all spaces: they are counted again from the first record on."""
    connection.execute("DELETE FROM sizes")
    connection.execute("DELETE FROM counted")
    connection.execute("INSERT INTO counted SELECT start FROM trimmed")


_MENDS = {
    "trimmed": _mend_trimmed,
    "holes": _mend_holes,
    "ran": _mend_ran,
    "observed": _mend_observed,
    "counted": _mend_counted,
}
