"""SQLite connections for one file: one writer, and one read-only connection per thread.

Connections are opened on first use, opened again in a forked process, and never pickled. SQLite's locks
coordinate processes, which wait for each other for at most `BUSY_TIMEOUT_S`.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from fieldfare.storage.checksums import checksum

BUSY_TIMEOUT_S = 30.0
"""Maximum wait for another process's lock on the file, in seconds; then the statement fails."""


def execute_when_free(connection: sqlite3.Connection, statement: str) -> None:
    """Execute a statement; retry for up to `BUSY_TIMEOUT_S` while another process has locked the file.

    For ``PRAGMA journal_mode``, which fails immediately where other statements wait for the lock. Without
    the retries, two processes that open a new file at the same time would conflict.
    """
    give_up = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute(statement).close()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
        time.sleep(0.005)


FREE_MIN_BYTES = 64 << 10
"""Free bytes below which a failed write counts as a full disk; the index of a WAL alone takes 32 KiB."""


def is_disk_full(error: object, path: Path) -> bool:
    """Return whether an error means that the disk of a file is full.

    SQLite reports only some of these cases as "disk full": if the index of a WAL cannot grow, it reports
    "disk I/O error".
    """
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    code = getattr(error, "sqlite_errorcode", None)
    if not isinstance(code, int):
        return False
    if code & 0xFF != sqlite3.SQLITE_IOERR or code in _READ_ERRORS:
        return code & 0xFF == sqlite3.SQLITE_FULL
    try:
        return _free_bytes(path) < FREE_MIN_BYTES
    except OSError:
        return False


def disk_full(path: Path) -> str:
    """Return the error message for a file that cannot be written because its disk is full."""
    try:
        left = f"{_free_bytes(path)} bytes are free in {path.parent}"
    except OSError:
        left = f"in {path.parent}"
    return f"{path} cannot be written, the disk is full: {left}. Free some space, then try again"


def _free_bytes(path: Path) -> int:
    disk = os.statvfs(path.parent)
    return disk.f_bavail * disk.f_frsize


def is_damage(error: Exception, path: Path) -> bool:
    """Return whether an error means that a file's content is corrupt, not that the file is unavailable.

    A failed read counts as corruption only if the start of the file can be read: otherwise the disk may
    have been detached.
    """
    code = getattr(error, "sqlite_errorcode", None)
    if not isinstance(code, int):
        return isinstance(error, MemoryError) or "Could not decode" in str(error)
    if code & 0xFF == sqlite3.SQLITE_IOERR:
        if code not in _READ_ERRORS:
            return False
        try:
            with closing(sqlite3.connect(_url(path, "ro"), uri=True)) as connection:
                connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error:
            return False
        return True
    return code & 0xFF in _DAMAGED


_READ_ERRORS = frozenset(
    (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS)
)
_DAMAGED = frozenset((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG))


def _url(path: Path, mode: str) -> str:
    return f"file:{quote(os.fsencode(path))}?mode={mode}"


class _Connection(sqlite3.Connection):
    """A connection that supports weak references and is closed when it is garbage-collected."""

    def __del__(self) -> None:
        with suppress(sqlite3.ProgrammingError):  # The connection was never opened.
            self.close()


class _OfThread(threading.local):
    reader: _Connection | None = None


class SqliteConnections:
    """The connections of one process to one SQLite file.

    Parameters
    ----------
    path
        The file.
    settings
        Statements that the writing connection executes once, when it is opened.
    """

    def __init__(self, path: Path, settings: tuple[str, ...]) -> None:
        self._path = path
        self._settings = settings
        self._open: weakref.WeakSet[_Connection] = weakref.WeakSet()
        self._start_anew()
        _all.add(self)

    def _start_anew(self) -> None:
        self._write_lock = threading.RLock()
        self._writer: _Connection | None = None
        self._in_transaction = False
        self._of_thread = _OfThread()

    def reader(self) -> sqlite3.Connection:
        """Return this thread's read-only connection."""
        local = self._of_thread
        if local.reader is None:
            local.reader = self._connect("ro")
        return local.reader

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the file's write lock in a transaction; commit it unless the block raises or rolls back."""
        with self._write_lock:
            if self._in_transaction:
                raise sqlite3.ProgrammingError("a transaction of this thread is open already")
            writer = self._open_writer()
            writer.execute("BEGIN IMMEDIATE")
            self._in_transaction = True
            try:
                yield writer
                if writer.in_transaction:
                    writer.execute("COMMIT")
            finally:
                self._in_transaction = False
                if writer.in_transaction:
                    writer.execute("ROLLBACK")

    def close(self) -> None:
        """Close the writer and release the readers of this process; connections are reopened when needed.

        A connection that another thread is reading with (on behalf of a cancelled task, for example) is
        closed when that read ends: SQLite crashes if a connection is closed while it is in use.
        """
        with self._write_lock:
            if self._writer is not None:
                # In a WAL, one corrupt frame makes all later frames unreadable: leave nothing in it.
                with suppress(sqlite3.Error):  # Other processes have the file open, or it is corrupt.
                    self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
                self._writer.close()
            self._start_anew()

    def leave_to_parent(self) -> None:
        """Drop the parent's connections in a forked process without using or closing them."""
        _inherited.extend(self._open)
        self._open.clear()
        self._start_anew()

    def _open_writer(self) -> sqlite3.Connection:
        if self._writer is None:
            writer = self._connect("rwc")
            for statement in self._settings:
                execute_when_free(writer, statement)
            self._writer = writer
        return self._writer

    def _connect(self, mode: str) -> _Connection:
        connection = sqlite3.connect(
            _url(self._path, mode),
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
        )
        connection.create_function("row_checksum", -1, checksum, deterministic=True)
        self._open.add(connection)
        return connection


_all: weakref.WeakSet[SqliteConnections] = weakref.WeakSet()
_inherited: list[sqlite3.Connection] = []


def _leave_all_to_parent() -> None:
    for connections in list(_all):
        connections.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_to_parent)
