"""Records that wait for their time, in one SQLite file.

``delayed`` has a row a record; `producer` and `turn` are what it was taken with. ``seen`` remembers who sent
what: a repeat has the same digest. Its `kept_ms` is not before the record is due, so that who looks for
what is old does not meet all that waits. Each process takes records under a name of its own, made by chance,
so that an older copy of the file that is put back never gives to a record what another one had.
"""

from __future__ import annotations

import secrets
import sqlite3
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import zip_longest
from pathlib import Path

from fieldfare.storage.delayed import TAKEN_MAX_RECORDS, Kept, Taken, Waiting
from fieldfare.storage.errors import DelayedError, DiskFullError, FormatError
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.sqlite.connections import SqliteConnections, is_disk_full

FORMAT = 1
APPLICATION_ID = 0x6666444C
"""Marks the file as one of this kind ("ffDL")."""

_SETTINGS = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")

_SCHEMA = (
    """CREATE TABLE delayed (
        id INTEGER PRIMARY KEY AUTOINCREMENT, space TEXT NOT NULL, due_ms INTEGER NOT NULL,
        count INTEGER NOT NULL, bytes INTEGER NOT NULL, producer TEXT, turn INTEGER,
        payload BLOB NOT NULL)""",
    "CREATE INDEX due ON delayed (due_ms, id) WHERE producer IS NULL",
    "CREATE INDEX taken ON delayed (turn) WHERE producer IS NOT NULL",
    "CREATE INDEX of_space ON delayed (space, due_ms, id, count, bytes)",
    """CREATE TABLE seen (
        space TEXT NOT NULL, producer TEXT NOT NULL, sequence INTEGER NOT NULL, id INTEGER NOT NULL,
        due_ms INTEGER NOT NULL, count INTEGER NOT NULL, kept_ms INTEGER NOT NULL, digest BLOB NOT NULL,
        PRIMARY KEY (space, producer, sequence)) WITHOUT ROWID""",
    "CREATE INDEX seen_at ON seen (kept_ms)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
_SEEN = "SELECT id, due_ms, count, digest FROM seen WHERE space = ? AND producer = ? AND sequence = ?"
_TAKEN = (
    "SELECT id, space, payload, count, producer, turn FROM delayed WHERE producer IS NOT NULL ORDER BY turn"
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
    """See `DelayedRecords`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._connections = SqliteConnections(self.path, _SETTINGS)
        self._name = f"delayed {secrets.token_hex(16)}"
        self._turn = 0
        self._space = ""
        """Of which one was taken last."""
        with self._writing() as connection:
            if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
                for statement in _SCHEMA:
                    connection.execute(statement)
            kind = tuple(
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("application_id", "user_version")
            )
            if kind != (APPLICATION_ID, FORMAT):
                raise FormatError(f"{self.path} holds no delayed records of format {FORMAT}")

    def keep(self, records: Sequence[tuple[NewRecord, int]], now_ms: int) -> list[Kept]:
        for record, _ in records:
            record.check()
        with self._writing() as connection:
            return [_keep(connection, record, due_ms, now_ms) for record, due_ms in records]

    def take(self, now_ms: int, max_bytes: int) -> list[Taken]:
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
        return [
            Taken(id, NewRecord(space, payload, count, producer, turn))
            for id, space, payload, count, producer, turn in rows
        ]

    def _due(self, connection: sqlite3.Connection, now_ms: int, max_bytes: int) -> list[tuple[int, int, str]]:
        """What is due; where that is more than is taken together, each space's in its turn."""
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
        with self._explained():
            row = self._connections.reader().execute(_SEEN, (space, producer, sequence)).fetchone()
        return row is not None

    def done(self, ids: Sequence[int]) -> None:
        with self._writing() as connection:
            connection.executemany("DELETE FROM delayed WHERE id = ?", [(id,) for id in ids])

    def next_due_ms(self) -> int | None:
        with self._explained():
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
        with self._explained():
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

    def held(self) -> dict[str, tuple[int, int]]:
        with self._explained():
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
        with self._explained(), self._connections.writing() as connection:
            yield connection

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            kind = DiskFullError if is_disk_full(error) else DelayedError
            raise kind(f"{self.path}: {error}") from error


def _keep(connection: sqlite3.Connection, record: NewRecord, due_ms: int, now_ms: int) -> Kept:
    key = (record.space, record.producer, record.sequence)
    digest = blake2b(record.payload, digest_size=32).digest()
    if record.producer is not None:
        seen = connection.execute(_SEEN, key).fetchone()
        if seen is not None:
            id, first_due_ms, count, first_digest = seen
            return Kept(id, first_due_ms, count, duplicate=True, differs=first_digest != digest)
    id = connection.execute(
        "INSERT INTO delayed (space, due_ms, count, bytes, payload) VALUES (?, ?, ?, ?, ?)",
        (record.space, due_ms, record.count, len(record.payload), record.payload),
    ).lastrowid
    assert id is not None
    if record.producer is not None:
        connection.execute(
            "INSERT INTO seen VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*key, id, due_ms, record.count, max(now_ms, due_ms), digest),
        )
    return Kept(id, due_ms, record.count)
