"""The outbox: a publisher's events on disk, which survive the end of the program.

The file is an SQLite database that one publisher has open at a time::

    events    id, line, checksum                        all events without an answer, in order
    batches   producer, sequence, first, last, checksum the events that were put into one request
    refused   id, line, reason, refused_ms              events that the service has refused
    bound_to  url, space                                the service and space that the events belong to

Durability:

* When `add` returns, an event is written: it survives the end of the program, also a crash or a kill.
* When `sync` returns, all earlier writes are synced to disk and survive a power failure. Callers that wait at
  the same time share one sync (group commit).
* A batch's boundaries, producer and sequence are written and synced before its first attempt. If its answer
  is lost, the next publisher that opens the outbox repeats exactly the same request, and the service detects
  the duplicate. Each opening uses a new producer id, so that a sequence is never used for different events,
  even if an older copy of the file was restored.

A disk may give back other bytes than were written, which SQLite does not notice. Each event has a checksum
(CRC-32): opening moves an event that does not match it to the refused ones, so that it is never published in
another form. Within a batch that may have been sent no event can be left out; the outbox is refused then, and
also if the batch itself does not match its checksum, as its request would be another one.

SQLite commits into its write-ahead log without waiting for the disk (synchronous=NORMAL); the log is then
synced through a descriptor of its own, outside all locks.

A process made by fork must not close the connection: SQLite believes there that it still has the file alone,
and removes the write-ahead log that the parent goes on writing.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sqlite3
import threading
import time
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldfare.client.encoding import decode_event
from fieldfare.client.errors import OutboxError, OutboxFull, OutboxInUse

logger = logging.getLogger("fieldfare.client")

FORMAT = 3
"""Format 1 has no checksums, format 2 none of batches; both are upgraded, without checking what has none."""
APPLICATION_ID = 0x66_66_4F_42
"""SQLite application id, which distinguishes an outbox from other SQLite files."""

DEFAULT_MAX_BYTES = 1 << 30
"""Default maximum of the events in an outbox, in bytes; at the bound, publishing waits."""

OTHER_WAIT_S = 1.0
"""How long opening waits for another publisher to close the outbox, in seconds; then OutboxInUse."""

LOG_PAGES = 4000
"""Size of the write-ahead log, in pages of 4 KiB, at which SQLite copies it into the database file."""

_ADD = "INSERT INTO events VALUES (?, ?, ?)"
_ADD_BATCH = "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?)"

_TABLES = (
    "CREATE TABLE events (id INTEGER PRIMARY KEY, line BLOB NOT NULL, checksum INTEGER)",
    """CREATE TABLE batches (
        producer TEXT NOT NULL, sequence INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
        size_bytes INTEGER NOT NULL, cut_ms INTEGER NOT NULL, checksum INTEGER,
        PRIMARY KEY (producer, sequence))""",
    """CREATE TABLE refused (
        id INTEGER PRIMARY KEY AUTOINCREMENT, line BLOB NOT NULL, reason TEXT NOT NULL,
        refused_ms INTEGER NOT NULL)""",
    "CREATE TABLE bound_to (url TEXT NOT NULL, space TEXT NOT NULL)",
    f"PRAGMA user_version = {FORMAT}",
    f"PRAGMA application_id = {APPLICATION_ID}",
)


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    """Settings of an outbox: its file and its maximum size.

    Attributes
    ----------
    path : str or Path
        The file; created if it does not exist. SQLite keeps a second file beside it, PATH-wal, which belongs
        to it.
    max_bytes : int
        Maximum bytes of events, including refused ones; at the bound, publishing waits. The file is larger,
        by about 30 bytes per event and 16 MiB.
    """

    path: str | Path
    max_bytes: int = DEFAULT_MAX_BYTES

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise ValueError(f"max_bytes must be at least 1, not {self.max_bytes}")


@dataclass(frozen=True, slots=True)
class OutboxStats:
    """The content of an outbox: events that wait or are in flight, and events that were refused."""

    path: Path
    waiting_events: int
    waiting_bytes: int
    refused_events: int
    refused_bytes: int


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """An event that the service refused, with the reason; ``refused_ms`` is in milliseconds since 1970."""

    id: int
    raw: bytes
    reason: str
    refused_ms: int

    @property
    def event(self) -> dict[str, Any]:
        """The event, decoded at each access; ValueError if it is not JSON."""
        return decode_event(self.raw)


@dataclass(frozen=True, slots=True)
class CutBatch:
    """A batch of events that may have been sent."""

    producer: str
    sequence: int
    lines: list[bytes]
    size_bytes: int
    cut_ms: int


@dataclass(frozen=True, slots=True)
class _Cut:
    first: int
    last: int
    size_bytes: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def checksum(self, producer: str, sequence: int) -> int:
        return zlib.crc32(repr((producer, sequence, self.first, self.last, self.size_bytes)).encode())


class Outbox:
    """An open outbox. Safe to use from several threads.

    A publisher opens its outbox itself (``client.publisher(outbox=...)``). A program can open one to inspect
    it while no publisher has it open.

    Parameters
    ----------
    settings : str, Path or OutboxSettings
        The file.
    url, space : str, optional
        The service and space that the events belong to. The first opening binds an outbox to them.

    Raises
    ------
    OutboxInUse
        Another publisher has the file open.
    OutboxError
        The file belongs to another url or space, is not an outbox, is corrupt, or cannot be written.
    """

    def __init__(
        self, settings: str | Path | OutboxSettings, url: str | None = None, space: str | None = None
    ) -> None:
        if not isinstance(settings, OutboxSettings):
            settings = OutboxSettings(settings)
        self.path = Path(settings.path).absolute()
        # SQLite keeps the write-ahead log beside the file that a link leads to.
        self._file = Path(os.path.realpath(self.path))
        self.max_bytes = settings.max_bytes
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._process_id = os.getpid()
        self._commits = self._synced_commits = 0
        self._log_file: int | None = None
        self._cuts: dict[tuple[str, int], _Cut] = {}
        self._next_id = self._next_uncut = 1
        self._size_bytes = self._uncut_bytes = 0
        self._refused_events = self._refused_bytes = 0
        self._is_open = True
        with self._translated():
            self._connection = sqlite3.connect(
                self._file, timeout=OTHER_WAIT_S, isolation_level=None, check_same_thread=False
            )
        _all.add(self)
        try:
            with self._translated():
                self._prepare(url, space)
                self._load()
                self._log_file = os.open(f"{self._file}-wal", os.O_RDWR)
            self._sync_folder()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Outbox:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def waiting_events(self) -> int:
        """Number of events that are not in a batch yet."""
        return self._next_id - self._next_uncut

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the events that are not in a batch yet."""
        return self._uncut_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes that may be added; refused events take room too."""
        return self.max_bytes - self._size_bytes - self._refused_bytes

    @property
    def is_full_of_refused(self) -> bool:
        """Whether refused events alone fill the outbox, so that sending cannot make room."""
        return self._refused_bytes >= self.max_bytes

    def add(self, lines: Sequence[bytes], size_bytes: int) -> None:
        """Append events.

        Raises
        ------
        OutboxFull
            The outbox is full; nothing was written.
        """
        if self.room_bytes <= 0:
            raise OutboxFull(self.path, self._describe_full())
        rows = [(id, line, zlib.crc32(line)) for id, line in enumerate(lines, self._next_id)]
        if len(rows) == 1:  # Most calls publish one event; a statement alone is a transaction by itself.
            self._check_process()
            with self._lock, self._translated():
                self._connection.execute(_ADD, rows[0])
                self._commits += 1
        else:
            with self._transaction():
                self._connection.executemany(_ADD, rows)
        self._next_id += len(rows)
        self._size_bytes += size_bytes
        self._uncut_bytes += size_bytes

    def sync(self) -> None:
        """Wait until everything written before this call is synced to disk."""
        wanted = self._commits
        with self._sync_lock:
            if self._synced_commits >= wanted:
                return  # Another caller's sync, which began after our write, included it.
            reached = self._commits
            with self._translated():
                if self._log_file is None:
                    raise sqlite3.ProgrammingError("it is closed")
                os.fsync(self._log_file)
            self._synced_commits = reached

    def cut(self, max_events: int, max_bytes: int, producer: str, sequence: int) -> tuple[list[bytes], int]:
        """Make a batch of the next events: at least one, within the two limits. Sync it before sending.

        Return its lines and their size in bytes.
        """
        lines: list[bytes] = []
        size_bytes = 0
        with self._transaction():
            rows = self._connection.execute(
                "SELECT id, line, checksum FROM events WHERE id >= ? ORDER BY id LIMIT ?",
                (self._next_uncut, max_events),
            )
            for id, line, checksum in rows:
                self._check_line(id, line, checksum)
                if lines and size_bytes + len(line) > max_bytes:
                    break
                lines.append(line)
                size_bytes += len(line)
            rows.close()
            cut = _Cut(self._next_uncut, self._next_uncut + len(lines) - 1, size_bytes)
            self._add_batch(producer, sequence, cut)
        self._cuts[producer, sequence] = cut
        self._next_uncut = cut.last + 1
        self._uncut_bytes -= size_bytes
        return lines, size_bytes

    def split(
        self, producer: str, sequence: int, first_count: int, first_bytes: int, first_sequence: int
    ) -> None:
        """Split a batch that the service has not taken: its first events get ``first_sequence``."""
        cut = self._cuts[producer, sequence]
        middle = cut.first + first_count
        first = _Cut(cut.first, middle - 1, first_bytes)
        second = _Cut(middle, cut.last, cut.size_bytes - first_bytes)
        with self._transaction():
            self._connection.execute(
                "UPDATE batches SET first = ?, size_bytes = ?, checksum = ?"
                " WHERE producer = ? AND sequence = ?",
                (second.first, second.size_bytes, second.checksum(producer, sequence), producer, sequence),
            )
            self._add_batch(producer, first_sequence, first)
        self._cuts[producer, first_sequence] = first
        self._cuts[producer, sequence] = second

    def unanswered(self) -> list[CutBatch]:
        """The batches that may have been sent before the outbox was opened, in their order."""
        self._check_process()
        with self._lock, self._translated():
            batches = self._connection.execute(
                "SELECT producer, sequence, first, last, size_bytes, cut_ms FROM batches ORDER BY first"
            ).fetchall()
            return [
                CutBatch(producer, sequence, self._read_lines(first, last), size_bytes, cut_ms)
                for producer, sequence, first, last, size_bytes, cut_ms in batches
            ]

    def answered(self, producer: str, sequence: int, reasons: Mapping[int, str]) -> None:
        """Remove an answered batch; its events with a reason (by index) move to the refused ones."""
        cut = self._cuts[producer, sequence]
        refused_bytes = 0
        with self._transaction():
            for index, reason in sorted(reasons.items()):
                (line,) = self._read_lines(cut.first + index, cut.first + index)
                refused_bytes += len(line)
                self._connection.execute(
                    "INSERT INTO refused (line, reason, refused_ms) VALUES (?, ?, ?)",
                    (line, reason, _now_ms()),
                )
            self._connection.execute("DELETE FROM events WHERE id BETWEEN ? AND ?", (cut.first, cut.last))
            self._connection.execute(
                "DELETE FROM batches WHERE producer = ? AND sequence = ?", (producer, sequence)
            )
        del self._cuts[producer, sequence]
        self._size_bytes -= cut.size_bytes
        self._refused_bytes += refused_bytes
        self._refused_events += len(reasons)

    def set_aside(self, producer: str, sequence: int, reason: str) -> None:
        """Move all events of a batch that the service has finally refused to the refused ones."""
        count = self._cuts[producer, sequence].count
        self.answered(producer, sequence, dict.fromkeys(range(count), reason))

    def refused(self) -> list[RefusedEvent]:
        """The events that the service will not take, oldest first. They stay until `forget_refused`."""
        self._check_process()
        with self._lock, self._translated():
            rows = self._connection.execute("SELECT id, line, reason, refused_ms FROM refused ORDER BY id")
            return [RefusedEvent(*row) for row in rows]

    def forget_refused(self, events: Sequence[RefusedEvent]) -> None:
        """Delete refused events."""
        with self._transaction():
            self._connection.executemany("DELETE FROM refused WHERE id = ?", [(each.id,) for each in events])
            self._count_refused()

    def stats(self) -> OutboxStats:
        """Return the current content of the outbox as numbers."""
        waiting = self.waiting_events + sum(cut.count for cut in list(self._cuts.values()))
        return OutboxStats(self.path, waiting, self._size_bytes, self._refused_events, self._refused_bytes)

    def close(self) -> None:
        """Let another publisher have it. May be called twice; after a fork only the parent's call counts."""
        if os.getpid() != self._process_id:
            return  # a thread of the parent may have held the locks
        with self._sync_lock, self._lock:
            if not self._is_open:
                return
            self._is_open = False
            self._connection.close()
            if self._log_file is not None:
                os.close(self._log_file)
                self._log_file = None

    def _prepare(self, url: str | None, space: str | None) -> None:
        execute = self._connection.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute("PRAGMA synchronous = NORMAL")
        execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        execute("BEGIN EXCLUSIVE")
        is_new = not execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        found = execute("PRAGMA application_id").fetchone()[0], execute("PRAGMA user_version").fetchone()[0]
        execute("COMMIT")
        if not is_new and found[0] != APPLICATION_ID:
            raise OutboxError(self.path, "is an SQLite file of another program\nhint: use another file")
        if not is_new and not 1 <= found[1] <= FORMAT:
            raise OutboxError(
                self.path,
                f"has format {found[1]}; this version of fieldfare reads formats 1 to {FORMAT} only",
            )
        execute("PRAGMA journal_mode = WAL")
        execute("BEGIN EXCLUSIVE")
        if is_new:
            for statement in _TABLES:
                execute(statement)
        else:
            (health,) = execute("PRAGMA quick_check(1)").fetchone()
            if health != "ok":
                raise OutboxError(self.path, f"is corrupt: {health}\n{_BROKEN_HINT}")
            for table in ("events", "batches")[found[1] - 1 :]:
                execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER")
            execute(f"PRAGMA user_version = {FORMAT}")
        self._bind(url, space)
        execute("COMMIT")

    def _bind(self, url: str | None, space: str | None) -> None:
        if url is None or space is None:
            return
        bound = self._connection.execute("SELECT url, space FROM bound_to").fetchone()
        if bound is None:
            self._connection.execute("INSERT INTO bound_to VALUES (?, ?)", (url, space))
        elif bound != (url, space):
            raise OutboxError(
                self.path,
                f"belongs to the space {bound[1]!r} at {bound[0]}, not to {space!r} at {url}\n"
                "hint: an outbox holds the events of one space; use a separate file for each space",
            )

    def _load(self) -> None:
        execute = self._connection.execute
        rows = execute("SELECT producer, sequence, first, last, size_bytes, checksum FROM batches").fetchall()
        self._cuts = {(row[0], row[1]): _Cut(row[2], row[3], row[4]) for row in rows}
        for producer, sequence, *_, checksum in rows:
            if checksum not in (None, self._cuts[producer, sequence].checksum(producer, sequence)):
                raise OutboxError(self.path, f"is corrupt: a request has changed on the disk\n{_BROKEN_HINT}")
        cut_until = max((cut.last for cut in self._cuts.values()), default=0)
        self._set_changed_aside(cut_until)
        most, count, size_bytes = execute(
            "SELECT max(id), count(*), coalesce(sum(length(line)), 0) FROM events"
        ).fetchone()
        self._next_id = max(most or 0, cut_until) + 1
        # Batches that overtook others are removed, so there may be a gap between the last batch and the rest.
        (first,) = execute("SELECT min(id) FROM events WHERE id > ?", (cut_until,)).fetchone()
        self._next_uncut = first or self._next_id
        self._size_bytes = size_bytes
        cut_events = sum(cut.count for cut in self._cuts.values())
        self._uncut_bytes = size_bytes - sum(cut.size_bytes for cut in self._cuts.values())
        if count != cut_events + self.waiting_events:
            raise OutboxError(self.path, f"is corrupt: events are missing\n{_BROKEN_HINT}")
        self._count_refused()

    def _set_changed_aside(self, cut_until: int) -> None:
        """Move events that are in no batch and do not match their checksums to the refused ones."""
        rows = self._connection.execute("SELECT id, line, checksum FROM events WHERE id > ?", (cut_until,))
        changed = [(id, line) for id, line, checksum in rows if not _is_intact(line, checksum)]
        if not changed:
            return
        logger.warning("events in the outbox %s have changed on the disk: %d", self.path, len(changed))
        with self._transaction():
            for id, line in reversed(changed):
                self._connection.execute(
                    "INSERT INTO refused (line, reason, refused_ms) VALUES (?, ?, ?)",
                    (_as_bytes(line), "the event has changed on the disk", _now_ms()),
                )
                self._connection.execute("DELETE FROM events WHERE id = ?", (id,))
                # Waiting events have consecutive ids.
                self._connection.execute("UPDATE events SET id = id - 1 WHERE id > ?", (id,))

    def _count_refused(self) -> None:
        self._refused_events, self._refused_bytes = self._connection.execute(
            "SELECT count(*), coalesce(sum(length(line)), 0) FROM refused"
        ).fetchone()

    def _read_lines(self, first: int, last: int) -> list[bytes]:
        lines = []
        for id, line, checksum in self._connection.execute(
            "SELECT id, line, checksum FROM events WHERE id BETWEEN ? AND ? ORDER BY id", (first, last)
        ):
            self._check_line(id, line, checksum)
            lines.append(line)
        if len(lines) != last - first + 1:
            raise OutboxError(self.path, f"is corrupt: events {first} to {last} are missing\n{_BROKEN_HINT}")
        return lines

    def _add_batch(self, producer: str, sequence: int, cut: _Cut) -> None:
        checksum = cut.checksum(producer, sequence)
        row = (producer, sequence, cut.first, cut.last, cut.size_bytes, _now_ms(), checksum)
        self._connection.execute(_ADD_BATCH, row)

    def _check_line(self, id: int, line: bytes, checksum: int | None) -> None:
        if not _is_intact(line, checksum):
            raise OutboxError(self.path, f"is corrupt: event {id} has changed on the disk\n{_BROKEN_HINT}")

    def _sync_folder(self) -> None:
        """Make the file's name durable. Some systems do not allow opening a folder."""
        try:
            folder = os.open(self._file.parent, os.O_RDONLY)
        except OSError:
            return
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _describe_full(self) -> str:
        if self.is_full_of_refused:
            return (
                f"is full of {self._refused_events:,} events that the service refused\n"
                "hint: read them with refused(), and remove them with forget_refused()"
            )
        return f"is full: it holds {self._size_bytes:,} bytes of events, and max_bytes is {self.max_bytes:,}"

    def _check_process(self) -> None:
        if os.getpid() != self._process_id:
            raise OutboxError(
                self.path, "was opened before this process was forked\nhint: open another outbox here"
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._check_process()
        with self._lock, self._translated():
            self._connection.execute("BEGIN")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
            self._commits += 1

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutboxError(self.path, f"cannot be used: {error}") from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise OutboxInUse(
                    self.path, "is open in another publisher\nhint: only one publisher can open it at a time"
                ) from error
            if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise OutboxError(self.path, f"is corrupt: {error}\n{_BROKEN_HINT}") from error
            raise OutboxError(self.path, f"cannot be used: {error}") from error


_BROKEN_HINT = (
    "hint: move it away to start with an empty one; .recover in sqlite3 may save some of its events"
)


_all: weakref.WeakSet[Outbox] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    """In a process made by fork: keep connections open to its very end, where Python would close them."""
    for outbox in list(_all):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(outbox._connection))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_to_parent)


def _is_intact(line: object, checksum: int | None) -> bool:
    return isinstance(line, bytes) and (checksum is None or zlib.crc32(line) == checksum)


def _as_bytes(line: object) -> bytes:
    return line if isinstance(line, bytes) else str(line).encode()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
