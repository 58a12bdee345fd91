"""SQLite connections for one file: one that writes, and read-only ones, one a thread.

They are opened when first used, again in a process that inherited them by fork, and never travel in a
pickle. SQLite's own locks keep processes apart; ``busy_timeout`` makes them wait for each other.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

BUSY_TIMEOUT_S = 30.0

_inherited: list[sqlite3.Connection] = []
"""Connections of a parent process. Closing one here would meddle with files the parent still uses."""


class _Connection(sqlite3.Connection):
    """A connection that can be referred to weakly."""


class _OfThread(threading.local):
    reader: _Connection | None = None
    process: int = 0


class SqliteConnections:
    """The connections of one process to one SQLite file.

    Parameters
    ----------
    path
        The file.
    settings
        Statements that a writing connection runs once when it is opened.
    """

    def __init__(self, path: Path, settings: tuple[str, ...]) -> None:
        self._path = path
        self._settings = settings
        self._write_lock = threading.RLock()
        self._writer: _Connection | None = None
        self._writer_process = 0
        self._in_transaction = False
        self._of_thread = _OfThread()
        self._open: weakref.WeakSet[_Connection] = weakref.WeakSet()

    def reader(self) -> sqlite3.Connection:
        """This thread's read-only connection."""
        local = self._of_thread
        if local.reader is None or local.process != os.getpid():
            if local.reader is not None:
                _inherited.append(local.reader)
            local.reader = self._connect("ro")
            local.process = os.getpid()
        return local.reader

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that holds the file's write lock; committed unless the block raises."""
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
        """Close all connections of this process; they are opened again when needed."""
        with self._write_lock:
            if self._writer_process == os.getpid():
                for connection in list(self._open):
                    connection.close()
            self._writer = None
            self._of_thread = _OfThread()
            self._open = weakref.WeakSet()

    def _open_writer(self) -> sqlite3.Connection:
        if self._writer is None or self._writer_process != os.getpid():
            if self._writer is not None:
                _inherited.append(self._writer)
            self._writer = self._connect("rwc")
            self._writer_process = os.getpid()
            for statement in self._settings:
                self._writer.execute(statement).close()
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
