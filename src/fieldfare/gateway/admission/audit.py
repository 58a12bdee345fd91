"""The record of who changed what: a line of JSON for each request that changes more than events and acks.

It is written by a thread, after the answer, and not synced: what a crash takes of it are the last lines.
"""

from __future__ import annotations

import logging
import queue
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Any

import msgspec

FILE_MAX_BYTES = 16 << 20
FILES_KEPT = 10
"""The newest is ``audit.log``, the one before ``audit.log.1``."""


class Audit:
    """Writes the record of one gateway.

    Parameters
    ----------
    path : Path
        Where to; made when there is something to write.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._to_thread = QueueHandler(self._lines)
        self._thread: QueueListener | None = None

    def start(self) -> None:
        """Begin to write."""
        file = RotatingFileHandler(
            self._path, maxBytes=FILE_MAX_BYTES, backupCount=FILES_KEPT - 1, encoding="utf-8", delay=True
        )
        self._thread = QueueListener(self._lines, file)
        self._thread.start()

    def note(
        self,
        time_ms: int,
        by: str,
        method: str,
        path: str,
        status: int,
        made: str | None,
        because: str | None = None,
    ) -> None:
        """Note that a request was answered.

        Parameters
        ----------
        time_ms : int
            Since 1970.
        by : str
            The id of the key; empty where nobody needs one.
        method, path, status
            What was asked, and how it was answered.
        made : str or None
            What was made, as the answer's Location names it.
        because : str or None
            Why, where nobody has asked for it but the service itself.
        """
        line: dict[str, Any] = {
            "time_ms": time_ms,
            "key": by,
            "method": method,
            "path": path,
            "status": status,
        }
        if made is not None:
            line["made"] = made
        if because is not None:
            line["because"] = because
        text = msgspec.json.encode(line).decode()
        self._to_thread.emit(logging.makeLogRecord({"msg": text, "levelno": logging.INFO}))

    def close(self) -> None:
        """Write what is left."""
        if self._thread is not None:
            self._thread.stop()
            for handler in self._thread.handlers:
                handler.close()
            self._thread = None
