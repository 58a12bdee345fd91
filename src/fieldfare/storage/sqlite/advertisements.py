"""Advertisements: what this broker says that it publishes, by space, and what the others have said.

``advertisements`` has a row per broker, space and version; the broker of this one's own is empty. The table
is in the file of the links; an older version of the service leaves it alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from fieldfare.storage.checksums import checksum
from fieldfare.storage.links import Advertisement

SCHEMA = """CREATE TABLE IF NOT EXISTS advertisements (broker TEXT NOT NULL, space TEXT NOT NULL,
    version INTEGER NOT NULL, filter TEXT, dialect TEXT NOT NULL, checksum INTEGER,
    PRIMARY KEY (broker, space, version)) WITHOUT ROWID"""
_PUT = """INSERT OR REPLACE INTO advertisements
    VALUES (?1, ?2, ?3, ?4, ?5, row_checksum(?1, ?2, ?3, ?4, ?5))"""


def read(connection: sqlite3.Connection) -> tuple[list[Advertisement], bool]:
    """Return all advertisements by broker, space and version, and whether a row is corrupt."""
    rows = connection.execute(
        "SELECT broker, space, version, filter, dialect, checksum FROM advertisements"
        " ORDER BY broker, space, version"
    ).fetchall()
    whole = [Advertisement(*row[:5]) for row in rows if checksum(*row[:5]) == row[5]]
    return whole, len(whole) < len(rows)


def put(connection: sqlite3.Connection, broker: str, space: str, rows: Iterable[Advertisement]) -> None:
    """Replace the advertisements of a broker in a space."""
    connection.execute("DELETE FROM advertisements WHERE broker = ? AND space = ?", (broker, space))
    connection.executemany(
        _PUT, [(each.broker, each.space, each.version, each.filter, each.dialect) for each in rows]
    )


def forget(connection: sqlite3.Connection, broker: str) -> None:
    """Delete what a broker has said."""
    connection.execute("DELETE FROM advertisements WHERE broker = ?", (broker,))
