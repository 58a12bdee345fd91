"""Delayed records in one SQLite file.

``delayed`` has one row per record. Its `producer` and `turn` are the producer name and sequence with which
the record was taken; `checksum` covers the stored record (see `storage.checksums`; records of format 1 have
none), `head` all but the payload, which is not read before the record is due (records of formats 1 and 2 have
none: a start reads their payloads, one at a time). The index ``of_space`` holds all that a start reads.
``seen`` detects repeats by producer and sequence: a repeat has the same digest. Its `kept_ms` is no
earlier than the record's due time, so that a scan for old rows skips the records that are still delayed.
Each process takes records under a random producer name, so that a restored older copy of the file never
assigns to a record a sequence that another record had.
"""

from __future__ import annotations

import secrets
import sqlite3
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fieldfare.storage.checksums import checksum
from fieldfare.storage.corruption import note_corruption
from fieldfare.storage.delayed import TAKEN_MAX_RECORDS, DueRecord, StoredDelayed, Waiting
from fieldfare.storage.errors import DelayedError, FormatError
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.sqlite.connections import SqliteConnections
from fieldfare.storage.sqlite.rebuild import explained

FORMAT = 3
APPLICATION_ID = 0x6666444C
"""SQLite application ID of a file of delayed records ("ffDL")."""

_SETTINGS = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")

_OF_SPACE = "CREATE INDEX of_space ON delayed (space, due_ms, id, count, bytes, head)"
_SCHEMA = (
    """CREATE TABLE delayed (
        id INTEGER PRIMARY KEY AUTOINCREMENT, space TEXT NOT NULL, due_ms INTEGER NOT NULL,
        count INTEGER NOT NULL, bytes INTEGER NOT NULL, producer TEXT, turn INTEGER, head INTEGER,
        payload BLOB NOT NULL, checksum INTEGER)""",
    "CREATE INDEX due ON delayed (due_ms, id) WHERE producer IS NULL",
    "CREATE INDEX taken ON delayed (turn) WHERE producer IS NOT NULL",
    _OF_SPACE,
    """CREATE TABLE seen (
        space TEXT NOT NULL, producer TEXT NOT NULL, sequence INTEGER NOT NULL, id INTEGER NOT NULL,
        due_ms INTEGER NOT NULL, count INTEGER NOT NULL, kept_ms INTEGER NOT NULL, digest BLOB NOT NULL,
        PRIMARY KEY (space, producer, sequence)) WITHOUT ROWID""",
    "CREATE INDEX seen_at ON seen (kept_ms)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
_UPGRADES = {
    1: ("ALTER TABLE delayed ADD COLUMN checksum INTEGER",),
    2: ("ALTER TABLE delayed ADD COLUMN head INTEGER", "DROP INDEX of_space", _OF_SPACE),
}
"""Statements that upgrade a file of each older format to the next one."""

HEADS = "SELECT id, space, due_ms, count, bytes, head FROM delayed"
"""Query of all that a start reads; the index ``of_space`` answers it."""

_SEEN = "SELECT id, due_ms, count, digest FROM seen WHERE space = ? AND producer = ? AND sequence = ?"
_TAKEN = (
    "SELECT id, space, due_ms, payload, count, producer, turn, checksum FROM delayed"
    " WHERE producer IS NOT NULL ORDER BY turn"
)
_DUE = """SELECT id, bytes, space FROM delayed WHERE producer IS NULL AND due_ms <= ?
    ORDER BY due_ms, id LIMIT ?"""
_DUE_OF = """SELECT id, bytes, space FROM delayed WHERE space = ? AND due_ms <= ? AND producer IS NULL
    ORDER BY due_ms, id LIMIT ?"""
_SPACES_DUE = """WITH RECURSIVE each (space) AS (
        SELECT min(space) FROM delayed UNION ALL
        SELECT (SELECT min(space) FROM delayed WHERE space > each.space) FROM each WHERE space IS NOT NULL)
    SELECT space FROM each WHERE (SELECT min(due_ms) FROM delayed WHERE space = each.space) <= ?"""
_FORGET = """DELETE FROM seen WHERE (space, producer, sequence) IN (
    SELECT space, producer, sequence FROM seen WHERE kept_ms < ? AND id NOT IN (SELECT id FROM delayed)
    ORDER BY kept_ms LIMIT ?)"""


class SqliteDelayed:
    """Delayed records in a SQLite file: implements `DelayedRecords`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._connections = SqliteConnections(self.path, _SETTINGS)
        self._name = f"delayed {secrets.token_hex(16)}"
        self._turn = 0
        self._space = ""
        """The space of the record that was taken last."""
        with self._writing() as connection:
            if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
                for statement in _SCHEMA:
                    connection.execute(statement)
            kind = tuple(
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("application_id", "user_version")
            )
            if kind[0] != APPLICATION_ID or not 1 <= kind[1] <= FORMAT:
                raise FormatError(
                    f"{self.path} holds no delayed events of formats 1 to {FORMAT}, but format {kind[1]} of"
                    f" application {kind[0]:#x}: restore the file, or start the fieldfare that wrote it"
                )
            for statement in (each for format in range(kind[1], FORMAT) for each in _UPGRADES[format]):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            # Check at the start: a record whose due time is corrupt might never become due.
            for id, space in list(_changed_heads(connection)):
                self._drop(connection, id, space)

    def keep(self, records: Sequence[tuple[NewRecord, int]], now_ms: int) -> list[StoredDelayed]:
        for record, _ in records:
            record.check()
        with self._writing() as connection:
            return [_keep(connection, record, due_ms, now_ms) for record, due_ms in records]

    def take(self, now_ms: int, max_bytes: int) -> list[DueRecord]:
        with self._writing() as connection:
            rows = connection.execute(_TAKEN).fetchall()
            if not rows:
                left_bytes = max_bytes
                for id, size_bytes, space in self._due(connection, now_ms, max_bytes):
                    self._turn, self._space = self._turn + 1, space
                    connection.execute(
                        "UPDATE delayed SET producer = ?, turn = ? WHERE id = ?", (self._name, self._turn, id)
                    )
                    left_bytes -= size_bytes
                    if left_bytes <= 0:
                        break
                rows = connection.execute(_TAKEN).fetchall()
            return self._without_corrupt(connection, rows)

    def _without_corrupt(
        self, connection: sqlite3.Connection, rows: Iterable[tuple[Any, ...]]
    ) -> list[DueRecord]:
        """Return the taken records to append; drop corrupt ones and write a corruption note for each."""
        taken = []
        for id, space, due_ms, payload, count, producer, turn, expected in rows:
            record = NewRecord(space, payload, count, producer, turn)
            if _is_kept_one(record, due_ms, expected):
                taken.append(DueRecord(id, record))
            else:
                self._drop(connection, id, space)
        return taken

    def _drop(self, connection: sqlite3.Connection, id: int, space: object) -> None:
        note_corruption(
            self.path,
            f"record-{id}",
            f"the delayed events with id {id} of the space {space} have changed on the disk and are"
            " not published; publish them again if you have them",
        )
        connection.execute("DELETE FROM delayed WHERE id = ?", (id,))

    def _due(self, connection: sqlite3.Connection, now_ms: int, max_bytes: int) -> list[tuple[int, int, str]]:
        """Return the id, bytes and space of due records; round robin by space if they exceed one batch."""
        rows = connection.execute(_DUE, (now_ms, TAKEN_MAX_RECORDS)).fetchall()
        if len(rows) < TAKEN_MAX_RECORDS and sum(row[1] for row in rows) <= max_bytes:
            return rows
        spaces = [space for (space,) in connection.execute(_SPACES_DUE, (now_ms,))]
        first = bisect_right(spaces, self._space)
        spaces = [*spaces[first:], *spaces[:first]][:TAKEN_MAX_RECORDS]
        most = -(-TAKEN_MAX_RECORDS // len(spaces))
        found = [connection.execute(_DUE_OF, (space, now_ms, most)).fetchall() for space in spaces]
        in_turns = [row for turn in zip_longest(*found) for row in turn if row is not None]
        return in_turns[:TAKEN_MAX_RECORDS]

    def has_kept(self, space: str, producer: str, sequence: int) -> bool:
        with explained(self.path, DelayedError):
            row = self._connections.reader().execute(_SEEN, (space, producer, sequence)).fetchone()
        return row is not None

    def done(self, ids: Sequence[int]) -> None:
        with self._writing() as connection:
            connection.executemany("DELETE FROM delayed WHERE id = ?", [(id,) for id in ids])

    def next_due_ms(self) -> int | None:
        with explained(self.path, DelayedError):
            row = (
                self._connections.reader()
                .execute(
                    "SELECT min(due_ms) FROM (SELECT 0 AS due_ms FROM delayed WHERE producer IS NOT NULL"
                    " UNION ALL SELECT min(due_ms) FROM delayed WHERE producer IS NULL)"
                )
                .fetchone()
            )
        return None if row[0] is None else int(row[0])

    def waiting(self, space: str, after: tuple[int, int], limit: int) -> list[Waiting]:
        with explained(self.path, DelayedError):
            rows = self._connections.reader().execute(
                "SELECT id, due_ms, count, bytes FROM delayed WHERE space = ? AND (due_ms, id) > (?, ?)"
                " ORDER BY due_ms, id LIMIT ?",
                (space, *after, limit),
            )
            return [Waiting(*row) for row in rows]

    def cancel(self, space: str, id: int) -> Waiting | None:
        with self._writing() as connection:
            row = connection.execute(
                "DELETE FROM delayed WHERE id = ? AND space = ? AND producer IS NULL"
                " RETURNING id, due_ms, count, bytes",
                (id, space),
            ).fetchone()
        return None if row is None else Waiting(*row)

    def cancel_some(self, space: str, limit: int) -> list[Waiting]:
        with self._writing() as connection:
            rows = connection.execute(
                "DELETE FROM delayed WHERE id IN"
                " (SELECT id FROM delayed WHERE space = ? AND producer IS NULL LIMIT ?)"
                " RETURNING id, due_ms, count, bytes",
                (space, limit),
            ).fetchall()
        return [Waiting(*row) for row in rows]

    def ids(self, space: str) -> tuple[int, int] | None:
        with explained(self.path, DelayedError):
            low, high = (
                self._connections.reader()
                .execute("SELECT min(id), max(id) FROM delayed WHERE space = ?", (space,))
                .fetchone()
            )
        return None if low is None else (low, high)

    def held(self) -> dict[str, tuple[int, int]]:
        with explained(self.path, DelayedError):
            rows = self._connections.reader().execute(
                "SELECT space, count(*), sum(bytes) FROM delayed GROUP BY space"
            )
            return {space: (records, size_bytes) for space, records, size_bytes in rows}

    def forget(self, before_ms: int, limit: int) -> int:
        with self._writing() as connection:
            return connection.execute(_FORGET, (before_ms, limit)).rowcount

    def close(self) -> None:
        self._connections.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with explained(self.path, DelayedError), self._connections.writing() as connection:
            yield connection


def changed_rows(connection: sqlite3.Connection, where: str = "true") -> Iterator[tuple[int, str]]:
    """Yield the id and space of each corrupt record. Read all payloads, one at a time."""
    found = connection.execute(
        f"SELECT id, space, due_ms, payload, count, checksum FROM delayed WHERE {where}"
    )
    for id, space, due_ms, payload, count, expected in found:
        if not _is_kept_one(NewRecord(space, payload, count), due_ms, expected):
            yield id, space


def _changed_heads(connection: sqlite3.Connection) -> Iterator[tuple[int, str]]:
    """Yield the id and space of each record that is corrupt as far as is known without its payload.

    Records of older formats are checked as a whole.
    """
    has_older = False
    for id, *head, expected in connection.execute(HEADS):
        if expected is None:
            has_older = True
        elif not _is_same(head, expected):
            yield id, head[0]
    if has_older:
        yield from changed_rows(connection, "head IS NULL")


def _is_same(values: Sequence[Any], expected: object) -> bool:
    """Return whether the values of a row match its checksum; columns may hold values of other types."""
    try:
        return checksum(*values) == expected
    except (ValueError, TypeError, AttributeError):
        return False


def _is_kept_one(record: NewRecord, due_ms: int, expected: int | None) -> bool:
    """Return whether a record is valid and matches its checksum, if it has one."""
    try:
        record.check()
    except (ValueError, TypeError, AttributeError):
        return False
    return expected is None or _is_same((record.space, due_ms, record.count, record.payload), expected)


def _keep(connection: sqlite3.Connection, record: NewRecord, due_ms: int, now_ms: int) -> StoredDelayed:
    key = (record.space, record.producer, record.sequence)
    digest = blake2b(record.payload, digest_size=32).digest()
    if record.producer is not None:
        seen = connection.execute(_SEEN, key).fetchone()
        if seen is not None:
            id, first_due_ms, count, first_digest = seen
            return StoredDelayed(id, first_due_ms, count, duplicate=True, differs=first_digest != digest)
    head = (record.space, due_ms, record.count, len(record.payload))
    id = connection.execute(
        "INSERT INTO delayed (space, due_ms, count, bytes, head, payload, checksum)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            *(*head, checksum(*head)),
            *(record.payload, checksum(record.space, due_ms, record.count, record.payload)),
        ),
    ).lastrowid
    assert id is not None
    if record.producer is not None:
        connection.execute(
            "INSERT INTO seen VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*key, id, due_ms, record.count, max(now_ms, due_ms), digest),
        )
    return StoredDelayed(id, due_ms, record.count)
