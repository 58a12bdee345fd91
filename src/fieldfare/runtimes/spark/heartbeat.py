"""What the pipeline tells the gateway and the supervisor: a small file, written every second."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from contextlib import suppress
from typing import Any

from fieldfare.files import write_file
from fieldfare.model import Offsets
from fieldfare.pipeline.indexer import snapshot_revision
from fieldfare.runtimes.spark.folder import DataFolder
from fieldfare.storage import EventReader, MatchLog, open_index_store
from fieldfare.storage.errors import IndexStoreError, StorageError
from fieldfare.storage.event_log import ends_of, starts_of

HEARTBEAT_S = 1.0
SIZE_BYTES = 1024
"""A beat is filled up with spaces, so that the next one fits where it was."""
FULL = (errno.ENOSPC, errno.EDQUOT)

_log = logging.getLogger("fieldfare.pipeline")


class Heartbeat:
    """The file ``run/pipeline.json``; that it cannot be written, or a figure not be read, stops nothing.

    The figures are taken from log and match log: what is told as matched is there, and durable.

    Parameters
    ----------
    folder : DataFolder
    log : EventReader
    match_log : MatchLog

    Attributes
    ----------
    predecessor_died : bool
        Whether the pipeline before this one ended unasked.
    told_offset : int or None
        Up to where that one said that everything of the first partition was matched, if it is known.
    """

    def __init__(self, folder: DataFolder, log: EventReader, match_log: MatchLog) -> None:
        self._path = folder.heartbeat
        self._store = open_index_store(folder.index_url)
        self._log = log
        self._match_log = match_log
        self._due_s = 0.0
        self._problem = ""
        self._beat: dict[str, Any] = dict.fromkeys(
            ("offset", "matched", "log_end", "snapshot_revision", "newest_manifest", "error")
        )
        self._matched: Offsets = tuple(0 for _ in log.partitions)
        self._synced: Offsets | None = None
        self.predecessor_died, self.told_offset = self._read_predecessor()

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._due_s

    @property
    def offset(self) -> int:
        """How much is matched, over all partitions, as of the last beat: of one, up to where."""
        return sum(self._matched)

    def beat(self, state: str, *, error: str | None = None) -> None:
        """Write the file now.

        Parameters
        ----------
        state : str
            starting, running, recovering, stopping, stopped or failed.
        error : str, optional
            Why the query is not running.
        """
        self._due_s = time.monotonic() + HEARTBEAT_S
        try:
            self._take_figures()
            time_ms = int(time.time() * 1000)
            beat = {"pid": os.getpid(), "state": state, "time_ms": time_ms, **self._beat, "error": error}
            self._write(json.dumps(beat).encode())
        except (OSError, StorageError) as problem:
            self._report(f"the heartbeat could not be written: {problem}")
            # The last sign of life.
            with suppress(OSError):
                os.utime(self._path)
        else:
            self._problem = ""

    def _take_figures(self) -> None:
        # One that cannot be read leaves an older figure, which is as true.
        with suppress(IndexStoreError):
            newest = self._store.newest()
            if newest is not None:
                self._beat["newest_manifest"] = newest.number
                self._beat["snapshot_revision"] = snapshot_revision(newest)
        # Retention and the registry's purge believe this figure: no power failure may take it back.
        self._matched = tuple(
            self._match_log.partition(number).sync(max(before, start))
            for number, (before, start) in enumerate(zip(self._matched, starts_of(self._log), strict=True))
        )
        self._beat |= {"offset": self.offset, "matched": self._matched, "log_end": sum(ends_of(self._log))}

    def _write(self, text: bytes) -> None:
        text = text.ljust(SIZE_BYTES)
        try:
            if self._matched != self._synced:
                write_file(self._path, lambda file: file.write(text))
                self._synced = self._matched
                return
            # Nothing that others build on is new. What a power failure leaves of it is not believed.
            partial = self._path.with_suffix(".partial")
            partial.write_bytes(text)
            partial.replace(self._path)
        except OSError as problem:
            if problem.errno not in FULL or len(text) != SIZE_BYTES:
                raise
            self._write_in_place(text)

    def _write_in_place(self, text: bytes) -> None:
        """On a full disk: the file that is there has room for another beat, and a new one would have none."""
        with open(self._path, "r+b", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != SIZE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            file.write(text)
            os.fsync(file.fileno())
        self._synced = self._matched

    def _report(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            _log.error("%s", problem)

    def _read_predecessor(self) -> tuple[bool, int | None]:
        """Whether the process before this one ended unasked, and up to where it said that all was matched."""
        try:
            beat = json.loads(self._path.read_bytes())
            return bool(beat["state"] != "stopped"), (beat.get("matched") or [beat["offset"]])[0]
        except FileNotFoundError:
            return False, None
        except (OSError, ValueError, KeyError, TypeError):
            return True, None
