"""SQLite connections for one file: one that writes, and read-only ones, one a thread.

They are opened when first used, anew in a process made by fork, and never travel in a pickle. SQLite's own
locks keep processes apart; ``BUSY_TIMEOUT_S`` makes them wait for each other.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

BUSY_TIMEOUT_S = 30.0


def execute_when_free(connection: sqlite3.Connection, statement: str) -> None:
    """Run a statement again while another process keeps the file busy, up to BUSY_TIMEOUT_S.

    For ``PRAGMA journal_mode``, which fails at once where other statements wait: two processes that open
    a new file at the same time would trip over each other.
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


def is_disk_full(error: object) -> bool:
    """Whether an error of SQLite's says that there is no space left."""
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(code, int) and code & 0xFF == sqlite3.SQLITE_FULL


class _Connection(sqlite3.Connection):
    """A connection that can be referred to weakly, and is closed when nobody has it any more."""

    def __del__(self) -> None:
        with suppress(sqlite3.ProgrammingError):  # it was never opened
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
        Statements that the writing connection runs once when it is opened.
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
        """This thread's read-only connection."""
        local = self._of_thread
        if local.reader is None:
            local.reader = self._connect("ro")
        return local.reader

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that holds the file's write lock; committed unless the block raises or rolls back."""
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
        """Close all connections of this process; they are opened again when needed.

        What another thread is reading with by now, as who is cancelled while a thread reads for him leaves
        it, is closed when it has done so: SQLite crashes where one is closed under somebody's hands.
        """
        with self._write_lock:
            if self._writer is not None:
                self._writer.close()
            self._start_anew()

    def leave_to_parent(self) -> None:
        """In a process made by fork: never touch the parent's connections, not even to close them."""
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
            f"file:{quote(str(self._path))}?mode={mode}",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
            check_same_thread=False,
            factory=_Connection,
        )
        self._open.add(connection)
        return connection


_all: weakref.WeakSet[SqliteConnections] = weakref.WeakSet()
_inherited: list[sqlite3.Connection] = []


def _leave_all_to_parent() -> None:
    for connections in list(_all):
        connections.leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_all_to_parent)
