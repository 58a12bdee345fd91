"""A watch on a SQLite file for changes by other processes; a check takes microseconds and reads no rows."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote


class SqliteWatch:
    """A watch for changes to one SQLite file; use it from one thread only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._version = -1

    def changed(self) -> bool:
        """Return whether another process may have committed since the last call; True at the first call.

        Data read after this call is at least as new as the answer. True also if the file cannot be read: the
        caller's own read then raises the error.
        """
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
        if self._connection is not None:
            self._connection.close()
        self._connection, self._version = None, -1
