"""The heartbeat of the pipeline's driver: up to where everything is matched."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fieldfare.model import Offsets
from fieldfare.runtimes.process.heartbeat import Heartbeat, decode_beat, synced_path
from fieldfare.storage import EventReader, MatchLog, open_index_store
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.event_log import ends_of, starts_of
from fieldfare.storage.folder import DataFolder


class PipelineHeartbeat(Heartbeat):
    """The file ``run/pipeline.json``.

    The figures come from the log and the match log: what is reported as matched is there, and durable.

    Attributes
    ----------
    predecessor_died : bool
        Whether the previous pipeline ended without being stopped.
    told : Offsets or None
        Up to where the previous pipeline reported everything as matched, by partition, if known.
    matchers : int
        Number of matchers of the newest index, as of the last beat.
    work : mapping
        Further figures of the driver: what its loop does, and on how many cores and executors.
    """

    def __init__(self, folder: DataFolder, log: EventReader, match_log: MatchLog) -> None:
        # Retention and the registry's purge rely on what is reported as matched.
        super().__init__(folder.heartbeat, synced="matched")
        self._store = open_index_store(folder.index_url)
        self._log = log
        self._match_log = match_log
        self.matchers = 1
        self.work: Mapping[str, Any] = {}
        self._matched: Offsets = tuple(0 for _ in log.partitions)
        self._stamp = -1  # covers the records that have waited since the offset has not moved
        self._figures: dict[str, Any] = dict.fromkeys(("offset", "matched", "log_end", "indexed"))
        self.predecessor_died, self.told = self._read_predecessor()

    @property
    def offset(self) -> int:
        """Number of matched records, summed over all partitions, as of the last beat."""
        return sum(self._matched)

    def figures(self) -> Mapping[str, Any]:
        before = self.offset
        self._matched = tuple(
            self._match_log.partition(number).sync(max(before, start))
            for number, (before, start) in enumerate(zip(self._matched, starts_of(self._log), strict=True))
        )
        log_end = sum(ends_of(self._log))
        waits_as_before = before == self.offset < log_end
        if self._stamp < 0 or not waits_as_before:
            # Not at each beat: later records may need newer indexes, while subscriptions change.
            self._stamp = max(partition.last_stamp() for partition in self._log.partitions)
        # If the index cannot be read, the older figures remain: the indexer repairs it.
        with suppress(IndexStoreError):
            newest = self._store.newest()
            self._figures["indexed"] = newest is not None and newest.revision >= self._stamp
            self.matchers = newest.matchers if newest is not None else 1
        self._figures |= {"offset": self.offset, "matched": self._matched, "log_end": log_end}
        return {**self._figures, "matchers": self.matchers, **self.work}

    def _read_predecessor(self) -> tuple[bool, Offsets | None]:
        """Return whether the previous process ended unexpectedly, and its last `matched`."""
        was_there = False
        for path in (self._path, synced_path(self._path)):
            try:
                beat = decode_beat(path.read_bytes())
                matched = beat.get("matched") or [beat["offset"]]
                return was_there or bool(beat["state"] != "stopped"), tuple(map(int, matched))
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError, OverflowError):
                was_there = True  # and a power failure has damaged it
        return was_there, None
