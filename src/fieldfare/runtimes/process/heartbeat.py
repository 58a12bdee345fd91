"""Heartbeats: small files, written every second, by which processes report to gateway and supervisor."""

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

from fieldfare.files import link_file, write_file
from fieldfare.storage.errors import StorageError

HEARTBEAT_S = 1.0
SIZE_BYTES = 1024
"""Size of a heartbeat, padded with spaces, so that the next one fits in its place on a full disk."""
FULL = (errno.ENOSPC, errno.EDQUOT)

_log = logging.getLogger("fieldfare.heartbeat")


def read_beat(path: Path) -> dict[str, Any]:
    """Return a process's last heartbeat; empty if there is none or it cannot be read."""
    try:
        return decode_beat(path.read_bytes())
    except OSError:
        return {}


def synced_path(path: Path) -> Path:
    """Return a second name of the last beat that was synced, see `Heartbeat`."""
    return path.with_suffix(".synced")


def decode_beat(text: bytes) -> dict[str, Any]:
    """Decode a heartbeat; empty if it is invalid or torn."""
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return {}


class Heartbeat:
    """A heartbeat file in ``run/``; a failure to write it, or to read a figure, is only logged.

    Parameters
    ----------
    synced : str
        Name of a figure that others rely on: a new value of it survives power failures.
    """

    def __init__(self, path: Path, synced: str = "") -> None:
        self._path = path
        self._synced_name = synced
        self._synced: object = None
        self._due_s = 0.0
        self._problem = ""
        self._said: tuple[str, str | None] = ("starting", None)
        self._started_ms = int(time.time() * 1000)

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._due_s

    def figures(self) -> Mapping[str, Any]:
        """Return the additional figures; StorageError or OSError if they are unavailable now."""
        return {}

    def beat(self, state: str, *, error: str | None = None) -> None:
        """Write the file now.

        Parameters
        ----------
        state : str
            starting, running, recovering, stopping, stopped or failed.
        error : str, optional
            The reason why it does not work.
        """
        self._due_s = time.monotonic() + HEARTBEAT_S
        self._said = state, error
        try:
            figures = self.figures()
            time_ms = int(time.time() * 1000)
            own = {"pid": os.getpid(), "state": state, "time_ms": time_ms, "started_ms": self._started_ms}
            beat = {**own, **figures, "error": error}
            self._write(json.dumps(beat).encode(), figures.get(self._synced_name))
        except (OSError, StorageError) as problem:
            self._report(f"the heartbeat could not be written: {problem}")
            # At least a sign of life.
            with suppress(OSError):
                os.utime(self._path)
        else:
            self._problem = ""

    def alive(self) -> None:
        """Repeat the last beat if one is due; to be called often during long work."""
        if self.due:
            self.repeat()

    def repeat(self) -> None:
        """Repeat the last beat, with the figures as they are now."""
        state, error = self._said
        self.beat(state, error=error)

    def _write(self, text: bytes, to_sync: object) -> None:
        text = text.ljust(SIZE_BYTES)
        try:
            if to_sync != self._synced:
                write_file(self._path, lambda file: file.write(text))
                self._synced = to_sync
                if self._synced_name:
                    self._keep(text)
                return
            # No figure that others rely on is new. A power failure may damage this file, not the synced one.
            partial = self._path.with_suffix(".partial")
            partial.write_bytes(text)
            partial.replace(self._path)
        except OSError as problem:
            if problem.errno not in FULL or len(text) != SIZE_BYTES:
                raise
            self._write_in_place(text)
            self._synced = to_sync

    def _keep(self, text: bytes) -> None:
        """Give the file a second name, which no beat that is not synced replaces."""
        try:
            link_file(self._path, synced_path(self._path))
        except OSError:  # The file system has no links, or the disk is full.
            with suppress(OSError):
                write_file(synced_path(self._path), lambda file: file.write(text))

    def _write_in_place(self, text: bytes) -> None:
        """Overwrite the file on a full disk: it has room for another beat, and a new file would have none."""
        with open(self._path, "r+b", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != SIZE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            file.write(text)
            os.fsync(file.fileno())

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _log.error("%s", problem)
