"""The links of a broker in one SQLite file.

``outbox`` has a row per entry and neighbour: `number` is set at the first transmission; what is kept of an
acknowledged entry is in the tables of `storage.sqlite.kept`, and what brokers publish in that of
`storage.sqlite.advertisements`. ``inbox`` holds
entries for this broker until they are processed; ids are never used twice. ``peers`` has a row per neighbour,
``correspondents`` one per other broker, ``places`` the cursors of the forwarder, and ``own`` the identity.
Rows have a checksum (see `storage.checksums`). A corrupt entry is noted, and sent on as a `LOST` one, so that
the entries after it keep their numbers. A corrupt row of the other tables is an error: without it, entries
would be lost or doubled.
"""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from fieldfare.storage.checksums import checksum
from fieldfare.storage.corruption import note_corruption
from fieldfare.storage.errors import FormatError, StorageError
from fieldfare.storage.links import (
    KEPT_MAX_BYTES,
    Advertisement,
    Correspondent,
    Inbound,
    Kept,
    Outbox,
    Owed,
    Part,
)
from fieldfare.storage.sqlite import advertisements, kept
from fieldfare.storage.sqlite.connections import SqliteConnections
from fieldfare.storage.sqlite.rebuild import explained

FORMAT = 1
APPLICATION_ID = 0x66664C4B
"""SQLite application ID of a file of links ("ffLK")."""

LOST = b""
"""The content of an entry that was corrupt: nothing, and it has no destinations."""

_SETTINGS = ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")
_SCHEMA = (
    """CREATE TABLE own (
        identity TEXT NOT NULL, version INTEGER NOT NULL, rows BLOB NOT NULL, checksum INTEGER)""",
    """CREATE TABLE peers (name TEXT PRIMARY KEY, identity TEXT NOT NULL, watermark INTEGER NOT NULL,
        next_number INTEGER NOT NULL, checksum INTEGER) WITHOUT ROWID""",
    "CREATE TABLE correspondents (name TEXT PRIMARY KEY, state BLOB NOT NULL, floor INTEGER,"
    " through INTEGER, checksum INTEGER) WITHOUT ROWID",
    """CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, peer TEXT NOT NULL, number INTEGER,
        bytes INTEGER NOT NULL, entry BLOB NOT NULL, checksum INTEGER)""",
    "CREATE INDEX outbox_sent ON outbox (peer, number, bytes) WHERE number IS NOT NULL",
    "CREATE INDEX outbox_unsent ON outbox (peer, id, bytes) WHERE number IS NULL",
    """CREATE TABLE inbox (id INTEGER PRIMARY KEY AUTOINCREMENT, source TEXT NOT NULL, kind TEXT NOT NULL,
        sequence INTEGER NOT NULL, floor INTEGER, bytes INTEGER NOT NULL, entry BLOB NOT NULL,
        checksum INTEGER)""",
    "CREATE TABLE places (partition INTEGER PRIMARY KEY, offset INTEGER NOT NULL, checksum INTEGER)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
_ADD = "INSERT INTO outbox (peer, bytes, entry, checksum) VALUES (?1, length(?2), ?2, row_checksum(?2))"
_MOVE = """UPDATE outbox SET peer = ?1, bytes = length(?2), entry = ?2, checksum = row_checksum(?2)
    WHERE id = ?3 AND number IS NULL"""
"""An entry that goes another way keeps its id, and so its place before all later ones."""
_MARK = "UPDATE outbox SET entry = ?2, bytes = length(?2), checksum = row_checksum(?2) WHERE id = ?1"
_LAST_ID = "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'inbox'"
_SENT = """SELECT id, number, bytes, entry, checksum FROM outbox
    WHERE peer = ? AND number IS NOT NULL ORDER BY number LIMIT ?"""
_UNSENT = """SELECT id, NULL, bytes, entry, checksum FROM outbox
    WHERE peer = ? AND number IS NULL ORDER BY id LIMIT ?"""
_FILLS = """SELECT peer, sum(entries), sum(size), sum(sent) FROM (
    SELECT peer, count(*) AS entries, sum(bytes) AS size, count(*) AS sent FROM outbox
        WHERE number IS NOT NULL GROUP BY peer
    UNION ALL SELECT peer, count(*), sum(bytes), 0 FROM outbox WHERE number IS NULL GROUP BY peer
    ) GROUP BY peer"""
"""It reads the two indexes alone: the entries may be gigabytes."""
_PEER = "SELECT identity, watermark, next_number, checksum FROM peers WHERE name = ?"
_SET_PEER = "INSERT OR REPLACE INTO peers VALUES (?1, ?2, ?3, ?4, row_checksum(?1, ?2, ?3, ?4))"
_SET_CORRESPONDENT = """INSERT OR REPLACE INTO correspondents
    VALUES (?1, ?2, ?3, ?4, row_checksum(?1, ?2, ?3, ?4))"""
_state_encoder = msgspec.msgpack.Encoder()
_state_decoder = msgspec.msgpack.Decoder(Correspondent)


class LinkStore:
    """The state of a broker's links, in a SQLite file, which is created if it does not exist.

    The gateway's process changes it; others read it. Each method that changes something is one transaction,
    durable on return: a kill at any moment loses nothing and sends nothing twice.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).absolute()
        self._lock = threading.Lock()
        self._connections = SqliteConnections(self.path, _SETTINGS)
        with self._writing() as connection:
            if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0] == 0:
                for statement in _SCHEMA:
                    connection.execute(statement)
                drawn = secrets.token_hex(16)
                connection.execute("INSERT INTO sqlite_sequence VALUES ('inbox', 0)")
                connection.execute("INSERT INTO own VALUES (?1, 0, x'', row_checksum(?1, 0, x''))", (drawn,))
            kind = tuple(
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("application_id", "user_version")
            )
            if kind != (APPLICATION_ID, FORMAT):
                raise FormatError(
                    f"{self.path} holds no links of format {FORMAT}, but format {kind[1]} of application"
                    f" {kind[0]:#x}: restore the file, or start the fieldfare that wrote it"
                )
            for statement in (*kept.SCHEMA, advertisements.SCHEMA):
                connection.execute(statement)
            self.identity = str(self._own(connection)[0])
            """A text drawn at random when the file was created: two brokers of one name differ in it."""
            _, self._kept_bytes = kept.totals(connection)
            # A file that was restored must not use ids again that the log has seen since the copy.
            connection.execute(_LAST_ID, (time.time_ns() // 1_000,))

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever exchanged with another broker."""
        with self._reading() as connection:
            (count,) = connection.execute(
                "SELECT (SELECT count(*) FROM peers) + (SELECT count(*) FROM correspondents)"
            ).fetchone()
        return not count

    def row(self) -> tuple[int, bytes]:
        """Return the version of the broker's own row of the topology, and the encoded rows of others."""
        with self._reading() as connection:
            _, version, rows = self._own(connection)
        return version, rows

    def set_row(self, version: int, rows: bytes) -> None:
        """Store the version of the own row, and the encoded rows of others."""
        with self._writing() as connection:
            connection.execute(
                "UPDATE own SET version = ?1, rows = ?2, checksum = row_checksum(identity, ?1, ?2)",
                (version, rows),
            )

    def _own(self, connection: sqlite3.Connection) -> tuple[str, int, bytes]:
        row = connection.execute("SELECT identity, version, rows, checksum FROM own").fetchone()
        found: tuple[str, int, bytes] = self._checked(row)
        return found

    def _checked(self, row: Sequence[Any]) -> Any:
        """Return a row without its checksum; StorageError if it has changed on the disk."""
        *values, expected = row
        if checksum(*values) != expected:
            raise self._corrupt()
        return tuple(values)

    def _corrupt(self) -> StorageError:
        return StorageError(
            f"{self.path}: a row has changed on the disk, and the links cannot go on without it: restore"
            " the file from a backup, or give the broker another name and remove the file"
        )

    def meet(self, peer: str, identity: str) -> bool:
        """Return whether a neighbour has the identity that it had at first; store it if it is new."""
        with self._writing() as connection:
            row = connection.execute(_PEER, (peer,)).fetchone()
            if row is None:
                connection.execute(_SET_PEER, (peer, identity, 0, 1))
                return True
            known, watermark, next_number = self._peer(peer, row)
            if not known:
                connection.execute(_SET_PEER, (peer, identity, watermark, next_number))
        return known in ("", identity)

    def _peer(self, peer: str, row: Sequence[Any] | None) -> tuple[str, int, int]:
        if row is None:
            return "", 0, 1
        known: tuple[str, str, int, int] = self._checked((peer, *row))
        return known[1:]

    def watermark(self, peer: str) -> int:
        """Return the number of the last entry received from a neighbour."""
        with self._reading() as connection:
            return self._peer(peer, connection.execute(_PEER, (peer,)).fetchone())[1]

    def correspondents(self) -> dict[str, Correspondent]:
        """Return all other brokers with which something was exchanged, by name."""
        with self._reading() as connection:
            rows = connection.execute("SELECT name, state, floor, through, checksum FROM correspondents")
            found = [_state_decoder.decode(self._checked(row)[1]) for row in rows.fetchall()]
        return {each.name: each for each in found}

    def _set(self, connection: sqlite3.Connection, changed: Sequence[Correspondent]) -> None:
        for each in changed:
            has_filters = each.messages > 0 and not each.is_removed
            bounds = (each.floor, each.through) if has_filters else (None, None)
            connection.execute(_SET_CORRESPONDENT, (each.name, _state_encoder.encode(each), *bounds))

    def add(
        self,
        parts: Sequence[Part],
        changed: Sequence[Correspondent] = (),
        cursor: tuple[int, int] | None = None,
    ) -> None:
        """Add entries to outboxes; store correspondents, and a cursor (a partition and an offset)."""
        with self._writing() as connection:
            connection.executemany(_ADD, parts)
            self._set(connection, changed)
            if cursor is not None:
                connection.execute(
                    "INSERT OR REPLACE INTO places VALUES (?1, ?2, row_checksum(?1, ?2))", cursor
                )

    def cursor(self, partition: int) -> int | None:
        """Return the offset up to which records are forwarded; None before the first."""
        with self._reading() as connection:
            row = connection.execute(
                "SELECT partition, offset, checksum FROM places WHERE partition = ?", (partition,)
            ).fetchone()
        return None if row is None else int(self._checked(row)[1])

    def receive(self, peer: str, watermark: int, parts: Sequence[Part], mine: Sequence[Inbound]) -> None:
        """Move the watermark of a neighbour; store the entries in transit, and those for this broker."""
        with self._writing() as connection:
            identity, _, next_number = self._peer(peer, connection.execute(_PEER, (peer,)).fetchone())
            connection.execute(_SET_PEER, (peer, identity, watermark, next_number))
            connection.executemany(_ADD, parts)
            connection.executemany(
                "INSERT INTO inbox (source, kind, sequence, floor, bytes, entry, checksum)"
                " VALUES (?1, ?2, ?3, ?4, length(?5), ?5, row_checksum(?1, ?2, ?3, ?4, ?5))",
                [astuple(each)[1:] for each in mine],
            )

    def transmit(self, peer: str, count_max: int, bytes_max: int) -> tuple[int, list[bytes]]:
        """Return the first unacknowledged entries of an outbox, and the number of the first of them.

        Entries that were never transmitted get their numbers here. The bounds hold for all but one entry.
        """
        # In one transaction: an entry must not be given another way between its choice and its number.
        with self._writing() as connection:
            chosen: list[Any] = []
            size_bytes = 0
            # Row by row: all of them at once can be much more than a batch.
            for row in chain(
                connection.execute(_SENT, (peer, count_max)), connection.execute(_UNSENT, (peer, count_max))
            ):
                if len(chosen) >= count_max or (chosen and size_bytes + row[2] > bytes_max):
                    break
                chosen.append(row)
                size_bytes += row[2]
            identity, watermark, number = self._peer(peer, connection.execute(_PEER, (peer,)).fetchone())
            first = number if not chosen or chosen[0][1] is None else chosen[0][1]
            added = [row[0] for row in chosen if row[1] is None]
            if added:
                connection.executemany(
                    "UPDATE outbox SET number = ? WHERE id = ?",
                    [(number + place, id) for place, id in enumerate(added)],
                )
                connection.execute(_SET_PEER, (peer, identity, watermark, number + len(added)))
        return first, [self._entry(row[0], *row[3:]) for row in chosen]

    def _entry(self, id: int, entry: bytes, expected: int) -> bytes:
        if checksum(entry) == expected:
            return entry
        what = f"entry {id} of an outbox has changed on the disk and is not sent; publish its events again"
        note_corruption(self.path, f"outbox-{id}", what)
        return LOST

    def acknowledge(
        self, peer: str, number: int, owed_by: Callable[[bytes], Sequence[Owed]] | None = None
    ) -> int:
        """Remove the entries up to a number from an outbox.

        `owed_by` returns the destinations that confirm an entry. A copy is kept for those of them, other
        than the neighbour, that were heard of by `confirm`. Return the number of entries that were not kept
        because the copies have reached `KEPT_MAX_BYTES`.
        """
        with self._writing() as connection:
            size_bytes = left_out = 0
            if owed_by is not None:
                room_bytes = KEPT_MAX_BYTES - self._kept_bytes
                size_bytes, left_out = kept.keep(connection, peer, number, owed_by, room_bytes)
            connection.execute("DELETE FROM outbox WHERE peer = ? AND number <= ?", (peer, number))
        self._count_kept(size_bytes)
        return left_out

    def _count_kept(self, change_bytes: int) -> None:
        with self._lock:
            self._kept_bytes += change_bytes

    def confirm(self, receipts: Sequence[tuple[str, int, int]]) -> None:
        """Drop the copies of entries that brokers have.

        Each receipt is a broker, and the sequences up to which it has the entries with events and the
        messages with filters.
        """
        with self._writing() as connection:
            size_bytes = kept.confirm(connection, receipts)
        self._count_kept(-size_bytes)

    def receipts(self) -> Mapping[str, tuple[int, int]]:
        """Return the last receipt of each broker that confirms entries: see `confirm`."""
        with self._reading() as connection:
            return kept.receipts(connection)

    def kept_through(self) -> int:
        """Return the id of the last copy; 0 without copies."""
        with self._reading() as connection:
            return kept.last(connection)

    def kept(self, through: int, limit: int) -> list[Kept]:
        """Return the first copies up to an id."""
        with self._reading() as connection:
            return kept.page(connection, through, limit)

    def send_again(self, ways: Sequence[tuple[int, Sequence[Part]]]) -> None:
        """Put copies, by id, into outboxes; they are copies no longer, until they are acknowledged again."""
        with self._writing() as connection:
            connection.executemany(_ADD, [part for _, parts in ways for part in parts])
            size_bytes = kept.drop(connection, [id for id, _ in ways])
        self._count_kept(-size_bytes)

    def kept_totals(self) -> tuple[int, int]:
        """Return the number of copies, and their bytes."""
        with self._reading() as connection:
            return kept.totals(connection)

    def unsent(self, peers: Sequence[str], after: int, limit: int) -> list[tuple[int, str, bytes]]:
        """Return entries in these outboxes that were never transmitted, after an id: id, neighbour, entry."""
        marks = ", ".join("?" * len(peers))
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT id, peer, entry, checksum FROM outbox WHERE peer IN ({marks}) AND number IS NULL"
                " AND id > ? ORDER BY id LIMIT ?",
                (*peers, after, limit),
            ).fetchall()
        return [(id, peer, self._entry(id, entry, expected)) for id, peer, entry, expected in rows]

    def reroute(self, ways: Sequence[tuple[int, Sequence[Part]]]) -> None:
        """Replace entries, by id, by others; the first of these takes the entry's place in the order.

        An entry that was transmitted meanwhile is left as it is.
        """
        with self._writing() as connection:
            for id, parts in ways:
                if parts:
                    changed = connection.execute(_MOVE, (*parts[0], id))
                    connection.executemany(_ADD, parts[1:] if changed.rowcount else ())
                else:
                    connection.execute("DELETE FROM outbox WHERE id = ? AND number IS NULL", (id,))

    def forget(self, state: Correspondent, again: Callable[[bytes], bytes] | None = None) -> None:
        """Store the state of a removed broker; the entries of its outbox have no path from now on.

        Its state no longer holds `floor` and `published` back. `again` marks an entry that was sent to it:
        it may have passed it on.
        """
        with self._writing() as connection:
            for id, _, _, entry, expected in connection.execute(_SENT, (state.name, -1)).fetchall():
                if again is not None and checksum(entry) == expected:
                    connection.execute(_MARK, (id, again(entry)))
            connection.execute("UPDATE outbox SET peer = '', number = NULL WHERE peer = ?", (state.name,))
            size_bytes = kept.forget(connection, state.name)
            advertisements.forget(connection, state.name)
            self._set(connection, [state])
        self._count_kept(-size_bytes)

    def take_back(self, peer: str, again: Callable[[bytes], bytes]) -> None:
        """Let the entries for a broker that is no neighbour any more have no path from now on.

        Of those that were sent, a copy marked by `again` has; they keep their numbers, without content, in
        case the broker becomes a neighbour again.
        """
        with self._writing() as connection:
            for id, _, _, entry, expected in connection.execute(_SENT, (peer, -1)).fetchall():
                if entry != LOST and checksum(entry) == expected:
                    connection.execute(_ADD, ("", again(entry)))
                    connection.execute(_MARK, (id, LOST))
            connection.execute("UPDATE outbox SET peer = '' WHERE peer = ? AND number IS NULL", (peer,))

    def inbound(self, limit: int, after: int = 0) -> list[Inbound]:
        """Return entries for this broker that are not processed, after an id."""
        with self._reading() as connection:
            rows = connection.execute(
                "SELECT id, source, kind, sequence, floor, entry, checksum FROM inbox WHERE id > ?"
                " ORDER BY id LIMIT ?",
                (after, limit),
            ).fetchall()
        found = []
        for id, *values, expected in rows:
            each = Inbound(id, *values)
            if checksum(*values) != expected:
                what = f"entry {id} from another broker has changed on the disk and is not processed"
                note_corruption(self.path, f"inbox-{id}", what)
                each = replace(each, entry=LOST)
            found.append(each)
        return found

    def processed(self, ids: Sequence[int], changed: Sequence[Correspondent] = ()) -> None:
        """Remove entries for this broker, and store correspondents."""
        with self._writing() as connection:
            connection.executemany("DELETE FROM inbox WHERE id = ?", [(id,) for id in ids])
            self._set(connection, changed)

    def advertisements(self) -> list[Advertisement]:
        """Return the advertisements of this broker and of others, by broker, space and version."""
        with self._reading() as connection:
            found, is_corrupt = advertisements.read(connection)
        if is_corrupt:
            raise self._corrupt()
        return found

    def advertise(self, broker: str, stated: Mapping[str, Sequence[Advertisement]]) -> None:
        """Replace the advertisements of a broker in some spaces, in one transaction."""
        with self._writing() as connection:
            for space, rows in stated.items():
                advertisements.put(connection, broker, space, rows)

    def outboxes(self) -> Mapping[str, Outbox]:
        """Return the fill of each outbox that has entries, by neighbour."""
        with self._reading() as connection:
            rows = connection.execute(_FILLS).fetchall()
        return {peer: Outbox(*figures) for peer, *figures in rows}

    def inbound_bytes(self) -> int:
        """Return the bytes of the entries for this broker that are not processed yet."""
        return self._value("SELECT coalesce(sum(bytes), 0) FROM inbox") or 0

    def used_bytes(self) -> int:
        """Return the bytes of the file that are in use; unlike `outboxes`, it does not read all entries."""
        pages, free, page_bytes = (
            self._value(f"PRAGMA {name}") or 0 for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * page_bytes

    def floor(self) -> int | None:
        """Return the lowest stamp of records that other brokers may still send; None if there are none."""
        return self._value(
            "SELECT min(floor) FROM (SELECT floor FROM correspondents UNION ALL SELECT floor FROM inbox)"
        )

    def published(self) -> int | None:
        """Return the revision up to which all other brokers have been sent changes; None without brokers."""
        return self._value("SELECT min(through) FROM correspondents")

    def _value(self, query: str) -> int | None:
        with self._reading() as connection:
            found: int | None = connection.execute(query).fetchone()[0]
        return found

    def close(self) -> None:
        """Close this process's connections; they are opened again when needed."""
        self._connections.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with explained(self.path, StorageError):
            yield self._connections.reader()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with explained(self.path, StorageError), self._connections.writing() as connection:
            yield connection
