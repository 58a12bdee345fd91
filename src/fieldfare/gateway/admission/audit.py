"""The audit log: one line of JSON per request that changes more than events and acks.

A thread writes it after the response, without fsync: a crash may lose the last lines.
"""

from __future__ import annotations

import logging
import os
import queue
from contextlib import suppress
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from typing import Annotated, Any

import msgspec

FILE_MAX_BYTES = 16 << 20
FILES_KEPT = 10
"""Number of files kept, the oldest is deleted: ``audit.log``, the one before it ``audit.log.1`` and so on."""


READ_MAX_BYTES = 1 << 20
"""Maximum bytes read for a list of the last changes; older ones are left out."""


class ChangeDocument(msgspec.Struct, omit_defaults=True):
    """A change: a line of the audit log."""

    time_ms: Annotated[int, "Time of the change, in milliseconds since 1970."]
    key: Annotated[str, "Id of the caller's key; empty if none is required, or the service made the change."]
    method: Annotated[str, "Method of the request."]
    path: Annotated[str, "Path of the request."]
    status: Annotated[int, "Status of the response."]
    made: Annotated[str | None, "Path of what was created."] = None
    because: Annotated[str | None, "Why the service made the change by itself."] = None
    request: Annotated[str | None, "Id of the request."] = None


_line_decoder = msgspec.json.Decoder(ChangeDocument)


class Audit:
    """Writes the audit log of one gateway.

    Parameters
    ----------
    path : Path
        The file; created at the first entry.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._to_thread = QueueHandler(self._lines)
        self._thread: QueueListener | None = None

    def start(self) -> None:
        """Start the writing thread."""
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
        request: str = "",
    ) -> None:
        """Log a request that was answered.

        Parameters
        ----------
        time_ms : int
            Milliseconds since 1970.
        by : str
            The key's id; empty if the service requires no key.
        method, path, status
            The request, and the status of its response.
        made : str or None
            The created resource, as in the response's Location.
        because : str or None
            The reason, if the service itself made the change without a request.
        request
            The request's id.
        """
        line = ChangeDocument(time_ms, by, method, path, status, made, because, request or None)
        text = msgspec.json.encode(line).decode()
        self._to_thread.emit(logging.makeLogRecord({"msg": text, "levelno": logging.INFO}))

    def newest(self, limit: int) -> list[ChangeDocument]:
        """Read the last lines of the file, at most `READ_MAX_BYTES`, newest first; call this on a thread."""
        try:
            with self._path.open("rb") as file:
                size_bytes = file.seek(0, os.SEEK_END)
                file.seek(max(0, size_bytes - READ_MAX_BYTES))
                lines = file.read(READ_MAX_BYTES).split(b"\n")
        except FileNotFoundError:
            return []
        found: list[ChangeDocument] = []
        for line in reversed(lines):
            with suppress(msgspec.DecodeError, UnicodeDecodeError):  # the first line may be cut off
                found.append(_line_decoder.decode(line))
            if len(found) == limit:
                break
        return found

    def reopen(self) -> None:
        """Reopen the file by its name, after the old one was renamed."""
        for handler in self._thread.handlers if self._thread is not None else ():
            handler.close()  # it reopens its file at the next write

    def close(self) -> None:
        """Write the remaining lines and stop."""
        if self._thread is not None:
            self._thread.stop()
            for handler in self._thread.handlers:
                handler.close()
            self._thread = None
