"""A watch on a SQLite file for changes by other processes; a check takes microseconds and reads no rows."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from fieldfare.storage.bell import Listener, bell_of

UNHEARD_S = 0.01
"""Seconds to wait at most where commits are not heard."""


class SqliteWatch:
    """A watch for changes to one SQLite file; use it from one thread only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._version = -1
        self._listener: Listener | None = None

    def wait(self, timeout_s: float) -> None:
        """Wait until a process has committed since the last call of `changed`, or for at most a time.

        The first call, which begins to listen, does not wait.
        """
        if self._listener is None:
            self._listener = bell_of(self._path).listen()
            return
        self._listener.wait(timeout_s if self._listener.hears else min(timeout_s, UNHEARD_S))

    def changed(self) -> bool:
        """Return whether another process may have committed since the last call; True at the first call.

        Data read after this call is at least as new as the answer. True also if the file cannot be read: the
        caller's own read then raises the error.
        """
        if self._listener is not None:
            self._listener.clear()
        try:
            if self._connection is None:
                url = f"file:{quote(os.fsencode(self._path))}?mode=ro"
                self._connection = sqlite3.connect(url, uri=True, isolation_level=None)
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return True
        before, self._version = self._version, version
        return bool(version != before)

    def close(self) -> None:
        """Close the file; it is opened again when needed."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._connection is not None:
            self._connection.close()
        self._connection, self._version = None, -1
