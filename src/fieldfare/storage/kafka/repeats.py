"""A table of the appended sequences of each producer and their offsets, so that a repeat appends nothing.

    records ──▶ a table of this process ──periodically──▶ TOPIC.producers, compacted: a message per producer
                       ▲                                        │
                       └── the records appended since ◀── read at the start, with the ends it is as of

The table may exceed memory, so it is a private SQLite database, which SQLite moves to disk when it is large
and deletes when the process ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b

import msgspec

from fieldfare.storage.event_log import AGES_NOTED, FIRST, REMEMBERED_SEQUENCES, Appended
from fieldfare.storage.kafka.address import KafkaAddress

TABLE = ".producers"
"""Suffix that turns the log's topic name into that of the table's topic."""
TABLE_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
OWNER = b"owner "
"""Key prefix of the messages that name the log's owner: see `storage.kafka.owner`."""


_SCHEMA = """
CREATE TABLE sequences (space TEXT, producer TEXT, sequence INTEGER, partition INTEGER, offset INTEGER,
    count INTEGER, stamp INTEGER, digest BLOB, PRIMARY KEY (space, producer, sequence)) WITHOUT ROWID;
CREATE INDEX by_place ON sequences (partition, offset);
CREATE TABLE changed (space TEXT, producer TEXT, PRIMARY KEY (space, producer)) WITHOUT ROWID;
"""
_FIND = """SELECT offset, count, stamp, partition, digest FROM sequences
    WHERE space = ? AND producer = ? AND sequence = ?"""
_NEWEST = "SELECT max(sequence) FROM sequences WHERE space = ? AND producer = ?"
_FORGET = "DELETE FROM sequences WHERE space = ? AND producer = ?"
_OF_PRODUCER = """SELECT sequence, partition, offset, count, stamp, digest FROM sequences
    WHERE space = ? AND producer = ? ORDER BY sequence"""
_SURPLUS = """DELETE FROM sequences WHERE space = ?1 AND producer = ?2 AND sequence < (SELECT sequence
    FROM sequences WHERE space = ?1 AND producer = ?2 ORDER BY sequence DESC LIMIT 1 OFFSET ?3)"""


class AsOf(msgspec.Struct):
    """The state of the log that a table reflects: the log's ends, its last stamp, and noted ages."""

    ends: list[int]
    stamp: int = 0
    ran_ms: int = 0
    noted: list[tuple[int, list[int]]] = []
    """Times that a service had run, in milliseconds, each with the log's ends at that time."""


_Row = tuple[int, int, int, int, int, bytes]


def table_of(address: KafkaAddress) -> KafkaAddress:
    """Return the address of the topic that holds the producer table of a log."""
    return replace(address, topic=f"{address.topic}{TABLE}", partitions=1)


def digest_of(payload: bytes) -> bytes:
    """Return an 8-byte digest of a payload, used to tell whether a repeat has the same payload."""
    return blake2b(payload, digest_size=8).digest()


class Repeats:
    """The table of appended producer sequences."""

    def __init__(self, partitions: int) -> None:
        self._table = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._table.execute("PRAGMA journal_mode = OFF")
        self._table.executescript(_SCHEMA)
        self.as_of = AsOf([0] * partitions)

    def find(self, space: str, producer: str, sequence: int, digest: bytes) -> Appended | None:
        """Return the place of an appended sequence, marked as a duplicate; None if it is not in the table."""
        row = self._table.execute(_FIND, (space, producer, sequence)).fetchone()
        if row is None:
            return None
        offset, count, stamp, partition, first = row
        return Appended(offset, count, stamp, duplicate=True, differs=first != digest, partition=partition)

    def newest(self, space: str, producer: str) -> int:
        """Return a producer's newest known sequence; `FIRST` if none is known."""
        (newest,) = self._table.execute(_NEWEST, (space, producer)).fetchone()
        return FIRST if newest is None else int(newest)

    def add(self, space: str, producer: str, sequence: int, place: Appended, digest: bytes) -> None:
        """Add an appended sequence."""
        row = (space, producer, sequence, place.partition, place.offset, place.count, place.stamp, digest)
        self._table.execute("INSERT OR REPLACE INTO sequences VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        self._table.execute("INSERT OR IGNORE INTO changed VALUES (?, ?)", (space, producer))

    def advance(self, partition: int, end: int, stamp: int) -> None:
        """Record that the table covers a partition up to `end`, and stamps up to `stamp`."""
        self.as_of.ends[partition] = max(self.as_of.ends[partition], end)
        self.as_of.stamp = max(self.as_of.stamp, stamp)

    def grow_older(self, elapsed_ms: int, keep_ms: int) -> None:
        """Add `elapsed_ms` to the age of all sequences; `keep_ms` is the greatest age ever asked for."""
        known = self.as_of
        known.ran_ms += max(0, elapsed_ms)
        every_ms = max(1, keep_ms // AGES_NOTED)
        if not known.noted or known.ran_ms - known.noted[-1][0] >= every_ms:
            known.noted.append((known.ran_ms, list(known.ends)))
            old = [at_ms for at_ms, _ in known.noted if at_ms <= known.ran_ms - keep_ms]
            known.noted = known.noted[max(0, len(old) - 1) :]

    def forget(self, age_ms: int) -> None:
        """Remove the sequences older than `age_ms`."""
        known = self.as_of
        old = [ends for at_ms, ends in known.noted if at_ms <= known.ran_ms - age_ms]
        for partition, end in enumerate(old[-1] if old else ()):
            where = "WHERE partition = ? AND offset < ?"
            self._table.execute(
                f"INSERT OR IGNORE INTO changed SELECT DISTINCT space, producer FROM sequences {where}",
                (partition, end),
            )
            self._table.execute(f"DELETE FROM sequences {where}", (partition, end))

    def changed(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the key and value of a message per producer changed since `saved`, then one for `as_of`."""
        for space, producer in self._table.execute("SELECT space, producer FROM changed").fetchall():
            self._table.execute(_SURPLUS, (space, producer, REMEMBERED_SEQUENCES - 1))
            rows = self._table.execute(_OF_PRODUCER, (space, producer)).fetchall()
            yield msgspec.json.encode((space, producer)), msgspec.msgpack.encode(rows) if rows else None
        yield b"", msgspec.msgpack.encode(self.as_of)

    def saved(self) -> None:
        """Mark everything that `changed` yielded as durably written."""
        self._table.execute("DELETE FROM changed")

    def load(self, messages: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Load saved messages, in order: the last message of each producer counts."""
        known: bytes | None = None
        for key, value in messages:
            if key.startswith(OWNER):
                continue
            if not key:
                known = value
                continue
            space, producer = msgspec.json.decode(key, type=tuple[str, str])
            rows: list[_Row] = [] if value is None else msgspec.msgpack.decode(value, type=list[_Row])
            self._table.execute(_FORGET, (space, producer))
            self._table.executemany(
                "INSERT OR REPLACE INTO sequences VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [(space, producer, *row) for row in rows],
            )
        as_of = None if known is None else msgspec.msgpack.decode(known, type=AsOf)
        if as_of is None or len(as_of.ends) != len(self.as_of.ends):
            # The topic's number of partitions has changed: build the table again from the records.
            self._table.execute("DELETE FROM sequences")
        else:
            self.as_of = as_of

    def close(self) -> None:
        self._table.close()
