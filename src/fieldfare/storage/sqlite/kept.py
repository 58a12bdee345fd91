"""Copies of this broker's own entries that a neighbour has, and their destinations have not confirmed.

``kept`` has a row per entry, under the id that it had in the outbox, and ``kept_for`` a row per entry and
destination that has not confirmed it. ``receipts`` has a row per broker that confirms entries: the entries
with events, and the messages with filters, that it has without a gap. The tables are in the file of the
links, and part of its transactions; an older version of the service leaves them alone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from fieldfare.storage.checksums import checksum
from fieldfare.storage.links import Kept, Owed

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS kept (id INTEGER PRIMARY KEY, bytes INTEGER NOT NULL,
        entry BLOB NOT NULL, checksum INTEGER)""",
    """CREATE TABLE IF NOT EXISTS kept_for (destination TEXT NOT NULL, kind TEXT NOT NULL,
        sequence INTEGER NOT NULL, entry INTEGER NOT NULL,
        PRIMARY KEY (destination, kind, sequence, entry)) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS kept_for_entry ON kept_for (entry)",
    """CREATE TABLE IF NOT EXISTS receipts (destination TEXT PRIMARY KEY, events INTEGER NOT NULL,
        messages INTEGER NOT NULL, checksum INTEGER) WITHOUT ROWID""",
)
_SET_RECEIPT = "INSERT OR REPLACE INTO receipts VALUES (?1, ?2, ?3, row_checksum(?1, ?2, ?3))"
_KEEP = "INSERT OR REPLACE INTO kept VALUES (?1, length(?2), ?2, ?3)"
_CONFIRMED = """SELECT entry FROM kept_for WHERE destination = ?1 AND kind = ?2 AND sequence <= ?3"""
_CONFIRM = "DELETE FROM kept_for WHERE destination = ?1 AND kind = ?2 AND sequence <= ?3"
_DROP = """DELETE FROM kept WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM kept_for WHERE entry = ?1)
    RETURNING bytes"""

EVENTS: Literal["events"] = "events"
INTEREST: Literal["interest"] = "interest"


def receipts(connection: sqlite3.Connection) -> dict[str, tuple[int, int]]:
    """Return the receipt of each broker that confirms entries; a corrupt one is left out, until the next."""
    rows = connection.execute("SELECT destination, events, messages, checksum FROM receipts")
    return {row[0]: (row[1], row[2]) for row in rows if checksum(*row[:3]) == row[3]}


def keep(
    connection: sqlite3.Connection,
    peer: str,
    number: int,
    owed_by: Callable[[bytes], Sequence[Owed]],
    room_bytes: int,
) -> tuple[int, int]:
    """Keep what a neighbour acknowledges and other brokers confirm.

    Return the bytes of the copies, and the number of entries for which there was no room. Messages with
    filters are kept in any case: without one of them, no later one would count.
    """
    known = receipts(connection)
    if not known:
        return 0, 0
    size_bytes = left_out = 0
    rows = connection.execute(
        "SELECT id, entry, checksum FROM outbox WHERE peer = ? AND number <= ? ORDER BY number",
        (peer, number),
    )
    for id, entry, expected in rows.fetchall():
        owed = owed_by(entry) if checksum(entry) == expected else ()
        owed = [each for each in owed if each.destination != peer and _is_open(each, known)]
        if not owed:
            continue
        if size_bytes + len(entry) > room_bytes and owed[0].kind == EVENTS:
            left_out += 1
            continue
        size_bytes += len(entry)
        connection.execute(_KEEP, (id, entry, expected))
        connection.executemany(
            "INSERT OR REPLACE INTO kept_for VALUES (?, ?, ?, ?)",
            [(each.destination, each.kind, each.sequence, id) for each in owed],
        )
    return size_bytes, left_out


def _is_open(owed: Owed, known: dict[str, tuple[int, int]]) -> bool:
    receipt = known.get(owed.destination)
    return receipt is not None and owed.sequence > receipt[owed.kind == INTEREST]


def confirm(connection: sqlite3.Connection, confirmed: Iterable[tuple[str, int, int]]) -> int:
    """Store receipts (broker, events, messages), drop what they confirm, and return the bytes of that."""
    size_bytes = 0
    for name, events, messages in confirmed:
        connection.execute(_SET_RECEIPT, (name, events, messages))
        for kind, sequence in ((EVENTS, events), (INTEREST, messages)):
            which = name, kind, sequence
            ids = connection.execute(_CONFIRMED, which).fetchall()
            connection.execute(_CONFIRM, which)
            size_bytes += _drop(connection, ids)
    return size_bytes


def _drop(connection: sqlite3.Connection, ids: Iterable[tuple[int]]) -> int:
    """Drop the copies that no broker has to confirm any more, and return their bytes."""
    return sum(row[0] for id in ids for row in connection.execute(_DROP, id).fetchall())


def forget(connection: sqlite3.Connection, name: str) -> int:
    """Drop the receipt of a broker, and what is kept for it alone; return the bytes of that."""
    ids = connection.execute("SELECT entry FROM kept_for WHERE destination = ?", (name,)).fetchall()
    connection.execute("DELETE FROM kept_for WHERE destination = ?", (name,))
    connection.execute("DELETE FROM receipts WHERE destination = ?", (name,))
    return _drop(connection, ids)


def last(connection: sqlite3.Connection) -> int:
    """Return the id of the last copy."""
    return int(connection.execute("SELECT coalesce(max(id), 0) FROM kept").fetchone()[0])


def page(connection: sqlite3.Connection, through: int, limit: int) -> list[Kept]:
    """Return the first copies up to an id, with the brokers that have not confirmed them."""
    rows = connection.execute(
        "SELECT id, entry, checksum FROM kept WHERE id <= ? ORDER BY id LIMIT ?", (through, limit)
    )
    found = []
    for id, entry, expected in rows.fetchall():
        names = connection.execute("SELECT destination FROM kept_for WHERE entry = ?", (id,))
        owed_to = frozenset(name for (name,) in names)
        found.append(Kept(id, entry if checksum(entry) == expected else b"", owed_to))
    return found


def drop(connection: sqlite3.Connection, ids: Sequence[int]) -> int:
    """Drop copies that are in the outboxes again, and return their bytes."""
    places = [(id,) for id in ids]
    connection.executemany("DELETE FROM kept_for WHERE entry = ?", places)
    return _drop(connection, places)


def totals(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of copies, and their bytes."""
    entries, size_bytes = connection.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM kept").fetchone()
    return entries, size_bytes
