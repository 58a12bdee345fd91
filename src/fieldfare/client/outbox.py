"""A publisher's events on disk: they outlive the program that published them.

The file is an SQLite database that one publisher has open at a time::

    events    id, line                                  all events that have not been answered, in order
    batches   producer, sequence, first, last           which of them were put into a request together
    refused   id, line, reason, refused_ms              events that the service will not take
    bound_to  url, space                                where the events belong

What survives what:

* An event is written when `add` returns. It survives the end of the program, however it ends.
* `sync` returns when all that was written before is on the disk itself, and survives a power failure. Callers
  that wait at the same time share one wait for the disk (group commit).
* A batch's boundaries, producer and sequence are written, and synced, before its first attempt. So a request
  whose answer was lost is repeated as exactly the same request, by whoever opens the outbox next, and the
  service recognises it. The producer's id is a new one for each opening: a sequence cannot come twice for
  different events, even where an older copy of the file was put back.

SQLite commits into its write-ahead log without waiting for the disk (synchronous=NORMAL); the log is then
synced through a descriptor of its own, outside all locks.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldfare.client.encoding import decode_event
from fieldfare.client.errors import OutboxError, OutboxFull, OutboxInUse

FORMAT = 1
APPLICATION_ID = 0x66_66_4F_42
"""Tells an outbox from other SQLite files."""

DEFAULT_MAX_BYTES = 1 << 30
"""Events, in bytes, that an outbox takes."""

OTHER_WAIT_S = 1.0
"""How long opening waits for the publisher that has the outbox open now: it may be about to close it."""

LOG_PAGES = 4000
"""Pages of 4 KiB after which SQLite copies its write-ahead log into the file."""

_ADD = "INSERT INTO events VALUES (?, ?)"

_TABLES = (
    "CREATE TABLE events (id INTEGER PRIMARY KEY, line BLOB NOT NULL)",
    """CREATE TABLE batches (
        producer TEXT NOT NULL, sequence INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
        size_bytes INTEGER NOT NULL, cut_ms INTEGER NOT NULL, PRIMARY KEY (producer, sequence))""",
    """CREATE TABLE refused (
        id INTEGER PRIMARY KEY AUTOINCREMENT, line BLOB NOT NULL, reason TEXT NOT NULL,
        refused_ms INTEGER NOT NULL)""",
    "CREATE TABLE bound_to (url TEXT NOT NULL, space TEXT NOT NULL)",
    f"PRAGMA user_version = {FORMAT}",
    f"PRAGMA application_id = {APPLICATION_ID}",
)


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    """Where a publisher keeps its events on disk.

    Attributes
    ----------
    path : str or Path
        The file; it is made where there is none. SQLite puts a second one beside it, PATH-wal, that belongs
        to it.
    max_bytes : int
        Events in bytes, those that were refused with them; beyond it publishing waits. The file is larger, by
        some 30 bytes an event and 16 MiB.
    """

    path: str | Path
    max_bytes: int = DEFAULT_MAX_BYTES

    def __post_init__(self) -> None:
        if self.max_bytes < 1:
            raise ValueError(f"max_bytes is at least 1, not {self.max_bytes}")


@dataclass(frozen=True, slots=True)
class OutboxStats:
    """What is in an outbox: events that wait or are under way, and those that were refused."""

    path: Path
    waiting_events: int
    waiting_bytes: int
    refused_events: int
    refused_bytes: int


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """An event that the service will not take, and why."""

    id: int
    raw: bytes
    reason: str
    refused_ms: int

    @property
    def event(self) -> dict[str, Any]:
        """The event, decoded anew at each call; ValueError where it is not even JSON."""
        return decode_event(self.raw)


@dataclass(frozen=True, slots=True)
class CutBatch:
    """Events of a request that may have been sent."""

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


class Outbox:
    """An open outbox. Safe to use from several threads.

    Publishers open theirs by themselves (``client.publisher(outbox=...)``). A program opens one itself to
    look into it while no publisher has it open.

    Parameters
    ----------
    settings : str, Path or OutboxSettings
        The file.
    url, space : str, optional
        Where the events go. An outbox belongs to the first url and space that it was opened for.

    Raises
    ------
    OutboxInUse
        It is open elsewhere.
    OutboxError
        It belongs to another url or space, is not an outbox, is broken or cannot be written.
    """

    def __init__(
        self, settings: str | Path | OutboxSettings, url: str | None = None, space: str | None = None
    ) -> None:
        if not isinstance(settings, OutboxSettings):
            settings = OutboxSettings(settings)
        self.path = Path(settings.path).absolute()
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
                self.path, OTHER_WAIT_S, isolation_level=None, check_same_thread=False
            )
        try:
            with self._translated():
                self._prepare(url, space)
                self._load()
                self._log_file = os.open(f"{self.path}-wal", os.O_RDWR)
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
        """Events that are in no batch yet."""
        return self._next_id - self._next_uncut

    @property
    def waiting_bytes(self) -> int:
        """Bytes of those."""
        return self._uncut_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes that may be added; what was refused takes room too."""
        return self.max_bytes - self._size_bytes - self._refused_bytes

    @property
    def is_full_of_refused(self) -> bool:
        """Whether sending alone cannot make room."""
        return self._refused_bytes >= self.max_bytes

    def add(self, lines: Sequence[bytes], size_bytes: int) -> None:
        """Write events behind the others.

        Raises
        ------
        OutboxFull
            There is no room; nothing was written.
        """
        if self.room_bytes <= 0:
            raise OutboxFull(self.path, self._describe_full())
        rows = list(enumerate(lines, self._next_id))
        if len(rows) == 1:  # Most calls publish one event; a statement alone is a transaction by itself.
            with self._lock, self._translated():
                self._check_process()
                self._connection.execute(_ADD, rows[0])
                self._commits += 1
        else:
            with self._transaction():
                self._connection.executemany(_ADD, rows)
        self._next_id += len(rows)
        self._size_bytes += size_bytes
        self._uncut_bytes += size_bytes

    def sync(self) -> None:
        """Wait until all that was written before this call is on the disk itself."""
        wanted = self._commits
        with self._sync_lock:
            if self._synced_commits >= wanted:
                return  # Somebody else's wait, that began later than our writing, was ours too.
            reached = self._commits
            with self._translated():
                if self._log_file is None:
                    raise sqlite3.ProgrammingError("it is closed")
                os.fsync(self._log_file)
            self._synced_commits = reached

    def cut(self, max_events: int, max_bytes: int, producer: str, sequence: int) -> tuple[list[bytes], int]:
        """Make a batch of the next events: at least one, at most so many. To be synced before it is sent."""
        lines: list[bytes] = []
        size_bytes = 0
        with self._transaction():
            rows = self._connection.execute(
                "SELECT line FROM events WHERE id >= ? ORDER BY id LIMIT ?", (self._next_uncut, max_events)
            )
            for (line,) in rows:
                if lines and size_bytes + len(line) > max_bytes:
                    break
                lines.append(line)
                size_bytes += len(line)
            rows.close()
            cut = _Cut(self._next_uncut, self._next_uncut + len(lines) - 1, size_bytes)
            self._connection.execute(
                "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)",
                (producer, sequence, cut.first, cut.last, size_bytes, _now_ms()),
            )
        self._cuts[producer, sequence] = cut
        self._next_uncut = cut.last + 1
        self._uncut_bytes -= size_bytes
        return lines, size_bytes

    def split(
        self, producer: str, sequence: int, first_count: int, first_bytes: int, first_sequence: int
    ) -> None:
        """Make two batches of one that the service has not taken: its first events, under a sequence of their
        own, and the others."""
        cut = self._cuts[producer, sequence]
        middle = cut.first + first_count
        first = _Cut(cut.first, middle - 1, first_bytes)
        second = _Cut(middle, cut.last, cut.size_bytes - first_bytes)
        with self._transaction():
            self._connection.execute(
                "UPDATE batches SET first = ?, size_bytes = ? WHERE producer = ? AND sequence = ?",
                (second.first, second.size_bytes, producer, sequence),
            )
            self._connection.execute(
                "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?)",
                (producer, first_sequence, first.first, first.last, first.size_bytes, _now_ms()),
            )
        self._cuts[producer, first_sequence] = first
        self._cuts[producer, sequence] = second

    def unanswered(self) -> list[CutBatch]:
        """The batches that may have been sent before the outbox was opened, in their order."""
        with self._lock, self._translated():
            batches = self._connection.execute(
                "SELECT producer, sequence, first, last, size_bytes, cut_ms FROM batches ORDER BY first"
            ).fetchall()
            return [
                CutBatch(producer, sequence, self._read_lines(first, last), size_bytes, cut_ms)
                for producer, sequence, first, last, size_bytes, cut_ms in batches
            ]

    def answered(self, producer: str, sequence: int, reasons: Mapping[int, str]) -> None:
        """The service has answered a batch: its events go, those with a reason (by index) to the refused."""
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
        """The service refuses a whole batch for good: its events go to the refused."""
        count = self._cuts[producer, sequence].count
        self.answered(producer, sequence, dict.fromkeys(range(count), reason))

    def refused(self) -> list[RefusedEvent]:
        """The events that the service will not take, oldest first. They stay until `forget_refused`."""
        with self._lock, self._translated():
            rows = self._connection.execute("SELECT id, line, reason, refused_ms FROM refused ORDER BY id")
            return [RefusedEvent(*row) for row in rows]

    def forget_refused(self, events: Sequence[RefusedEvent]) -> None:
        """Remove refused events for good."""
        with self._transaction():
            self._connection.executemany("DELETE FROM refused WHERE id = ?", [(each.id,) for each in events])
            self._count_refused()

    def stats(self) -> OutboxStats:
        """What is in it now."""
        waiting = self.waiting_events + sum(cut.count for cut in list(self._cuts.values()))
        return OutboxStats(self.path, waiting, self._size_bytes, self._refused_events, self._refused_bytes)

    def close(self) -> None:
        """Let another publisher have it. May be called twice."""
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
            raise OutboxError(self.path, "is an SQLite file of something else")
        if not is_new and found[1] != FORMAT:
            raise OutboxError(self.path, f"has format {found[1]}; this version of fieldfare knows {FORMAT}")
        execute("PRAGMA journal_mode = WAL")
        execute("BEGIN EXCLUSIVE")
        if is_new:
            for statement in _TABLES:
                execute(statement)
        else:
            (health,) = execute("PRAGMA quick_check(1)").fetchone()
            if health != "ok":
                raise OutboxError(self.path, f"is broken: {health}\n{_BROKEN_HINT}")
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
                "hint: an outbox holds the events of one space; give each space a file of its own",
            )

    def _load(self) -> None:
        execute = self._connection.execute
        rows = execute("SELECT producer, sequence, first, last, size_bytes FROM batches").fetchall()
        self._cuts = {(row[0], row[1]): _Cut(row[2], row[3], row[4]) for row in rows}
        cut_until = max((cut.last for cut in self._cuts.values()), default=0)
        most, count, size_bytes = execute(
            "SELECT max(id), count(*), coalesce(sum(length(line)), 0) FROM events"
        ).fetchone()
        self._next_id = max(most or 0, cut_until) + 1
        # Batches that overtook others are gone, so the uncut events need not follow the last batch directly.
        (first,) = execute("SELECT min(id) FROM events WHERE id > ?", (cut_until,)).fetchone()
        self._next_uncut = first or self._next_id
        self._size_bytes = size_bytes
        cut_events = sum(cut.count for cut in self._cuts.values())
        self._uncut_bytes = size_bytes - sum(cut.size_bytes for cut in self._cuts.values())
        if count != cut_events + self.waiting_events:
            raise OutboxError(self.path, f"is broken: events are missing\n{_BROKEN_HINT}")
        self._count_refused()

    def _count_refused(self) -> None:
        self._refused_events, self._refused_bytes = self._connection.execute(
            "SELECT count(*), coalesce(sum(length(line)), 0) FROM refused"
        ).fetchone()

    def _read_lines(self, first: int, last: int) -> list[bytes]:
        rows = self._connection.execute(
            "SELECT line FROM events WHERE id BETWEEN ? AND ? ORDER BY id", (first, last)
        )
        return [line for (line,) in rows]

    def _sync_folder(self) -> None:
        """The file's name, too, must be on the disk. Not every system lets one open a folder."""
        try:
            folder = os.open(self.path.parent, os.O_RDONLY)
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
                "hint: look at them with refused(), and remove them with forget_refused()"
            )
        return f"is full: {self._size_bytes:,} bytes of events wait in it, {self.max_bytes:,} may"

    def _check_process(self) -> None:
        if os.getpid() != self._process_id:
            raise OutboxError(self.path, "was opened by the process that this one was forked from")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, self._translated():
            self._check_process()
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
                    self.path, "is open in another publisher\nhint: one publisher at a time can have it open"
                ) from error
            if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
                raise OutboxError(self.path, f"is broken: {error}\n{_BROKEN_HINT}") from error
            raise OutboxError(self.path, f"cannot be used: {error}") from error


_BROKEN_HINT = "hint: move it away to start with an empty one; sqlite3's .recover reads what can be saved"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
