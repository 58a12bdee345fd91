"""Has another process changed a SQLite file? Asked in microseconds, without reading anything of it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote


class SqliteWatch:
    """Looks at one file, from one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._version = -1

    def changed(self) -> bool:
        """Whether somebody may have committed something since the last time; true at first.

        What is read after this was asked is at least as new. A file that cannot be asked may have changed:
        whoever reads it learns what is wrong.
        """
        try:
            if self._connection is None:
                url = f"file:{quote(str(self._path))}?mode=ro"
                self._connection = sqlite3.connect(url, uri=True, isolation_level=None)
            version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return True
        before, self._version = self._version, version
        return bool(version != before)

    def close(self) -> None:
        """Let go of the file; it is opened again when needed."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._version = None, -1
