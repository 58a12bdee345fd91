"""What a process tells the gateway and the supervisor: a small file, written every second."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fieldfare.files import write_file
from fieldfare.storage.errors import StorageError

HEARTBEAT_S = 1.0
SIZE_BYTES = 1024
"""A beat is filled up with spaces, so that the next one fits where it was."""
FULL = (errno.ENOSPC, errno.EDQUOT)

_log = logging.getLogger("fieldfare.heartbeat")


def read_beat(path: Path) -> dict[str, Any]:
    """What a process said last; nothing when it said nothing, or that cannot be read."""
    try:
        return decode_beat(path.read_bytes())
    except OSError:
        return {}


def decode_beat(text: bytes) -> dict[str, Any]:
    """What a heartbeat says; nothing when it is none, or torn."""
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError):
        return {}


class Heartbeat:
    """A file in ``run/``; that it cannot be written, or a figure not be read, stops nothing.

    Parameters
    ----------
    path : Path
    synced : str
        The name of a figure that others build on: no power failure may take a new value of it back.
    """

    def __init__(self, path: Path, synced: str = "") -> None:
        self._path = path
        self._synced_name = synced
        self._synced: object = None
        self._due_s = 0.0
        self._problem = ""
        self._said: tuple[str, str | None] = ("starting", None)

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._due_s

    def figures(self) -> Mapping[str, Any]:
        """What the file says besides; StorageError or OSError when that cannot be known now."""
        return {}

    def beat(self, state: str, *, error: str | None = None) -> None:
        """Write the file now.

        Parameters
        ----------
        state : str
            starting, running, recovering, stopping, stopped or failed.
        error : str, optional
            Why it does not do its work.
        """
        self._due_s = time.monotonic() + HEARTBEAT_S
        self._said = state, error
        try:
            figures = self.figures()
            time_ms = int(time.time() * 1000)
            beat = {"pid": os.getpid(), "state": state, "time_ms": time_ms, **figures, "error": error}
            self._write(json.dumps(beat).encode(), figures.get(self._synced_name))
        except (OSError, StorageError) as problem:
            self._report(f"the heartbeat could not be written: {problem}")
            # The last sign of life.
            with suppress(OSError):
                os.utime(self._path)
        else:
            self._problem = ""

    def alive(self) -> None:
        """Say the same again if it is time; for work that takes long, to be called as often as one likes."""
        if self.due:
            state, error = self._said
            self.beat(state, error=error)

    def _write(self, text: bytes, to_sync: object) -> None:
        text = text.ljust(SIZE_BYTES)
        try:
            if to_sync != self._synced:
                write_file(self._path, lambda file: file.write(text))
                self._synced = to_sync
                return
            # Nothing that others build on is new. What a power failure leaves of it is not believed.
            partial = self._path.with_suffix(".partial")
            partial.write_bytes(text)
            partial.replace(self._path)
        except OSError as problem:
            if problem.errno not in FULL or len(text) != SIZE_BYTES:
                raise
            self._write_in_place(text)
            self._synced = to_sync

    def _write_in_place(self, text: bytes) -> None:
        """On a full disk: the file that is there has room for another beat, and a new one would have none."""
        with open(self._path, "r+b", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != SIZE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            file.write(text)
            os.fsync(file.fileno())

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _log.error("%s", problem)
