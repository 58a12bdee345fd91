"""Where batches end, and what they are matched with: decided in the source's own process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from fieldfare.runtimes.spark.batches import BatchSettings, Offset
from fieldfare.runtimes.spark.folder import DataFolder
from fieldfare.runtimes.spark.index_writer import IndexWriter
from fieldfare.runtimes.spark.suspects_file import SuspectsFile
from fieldfare.storage import EventLog, IndexStore, MatchLog, open_event_log, open_registry


class BatchPlanner:
    """Decides where batches end and brings the index up to date before each."""

    def __init__(self, folder: DataFolder, settings: BatchSettings) -> None:
        self._settings = settings
        self._end_at: int | None = None
        self.log: EventLog = open_event_log(folder.log_url)
        self._registry = open_registry(folder.registry_url)
        self._match_log = MatchLog(folder.matches)
        self._suspects_file = SuspectsFile(folder.suspects)
        self._suspects, _ = self._suspects_file.load()
        self._synced = 0
        self._writer = IndexWriter(folder, self._registry, IndexStore(folder.index), self._floor)

    def first(self) -> int:
        """Where a query begins: behind what is in the match log already.

        What is there is right, and matching it again could not be: the registry forgets what only records
        needed that were matched. Blocks further on, of a batch that was not finished, are written again.
        """
        return self._match_log.end(self.log.start())

    def next_end(self, start: Offset) -> Offset:
        """Where the next batch ends; `start` itself when no event came for a while.

        Spark asks only when all batches before are committed, so nothing before `start` is needed again.
        """
        self.passed(start)
        self._go_on_trying(start["offset"])
        if not self._wait_for_events(start["offset"]):
            return start
        end = self.log.bound(start["offset"], self._settings.max_bytes, self._settings.max_events)
        if self._end_at is not None:
            end = min(end, self._end_at)
        # Whatever a record of the batch is stamped with, the registry had it before the record was there.
        manifest = self._writer.catch_up(self._registry.revision())
        if self._suspects is not None:
            end = min(end, self._suspects.upto)
            self._suspects = replace(self._suspects, upto=end)
            self._suspects_file.save(self._suspects, trying=True)
        return {"offset": end, "manifest": manifest.number}

    def _floor(self) -> int:
        """The lowest stamp of the records whose matches are not on disk for good, and of those to come."""
        self._synced = self._match_log.sync(max(self._synced, self.log.start()))
        waiting = self.log.lowest_stamp(self._synced)
        return self.log.last_stamp() if waiting is None else waiting

    def _go_on_trying(self, start: int) -> None:
        """Everything before `start` is matched: try the next of the records that may make it fail."""
        if self._suspects is not None:
            self._suspects = self._suspects.passed(start)
            if self._suspects is None:
                self._suspects_file.save(None)

    def _wait_for_events(self, start: int) -> bool:
        if self._end_at is not None:
            return start < self._end_at
        if self.log.end() > start:
            return True
        until_s = time.monotonic() + self._settings.wait_ms / 1000
        while time.monotonic() < until_s:
            # The index is kept up to date while there is time, so that a batch need not wait for it.
            self._writer.work_ahead()
            if self.log.end() > start:
                return True
            time.sleep(self._settings.poll_ms / 1000)
        return False

    def stop_at_present_end(self) -> None:
        """Plan no batch beyond the log's end as it is now."""
        self._end_at = self.log.end()

    def ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Split a batch into the ranges of its tasks, of about the same bytes each."""
        if start >= end:
            return []
        sizes: list[int] = []
        for record in self.log.sizes(start):
            if record.offset >= end:
                break
            sizes.append(record.size_bytes)
        if not sizes:
            # A hole of the log, which is a range of its own: what a task writes are blocks of records, and
            # readers would wait at the gap. Killed before or within this, the next query begins at it.
            self._match_log.fill(start, end)
            return [(end, end)]
        return split_evenly(start, sizes, self._settings.tasks, self._settings.split_bytes)

    def passed(self, end: Offset) -> None:
        """Spark has committed everything before this offset."""
        self._writer.passed(end["manifest"])

    def close(self) -> None:
        self._writer.close()
        self._registry.close()
        self.log.close()


def split_evenly(start: int, sizes: Sequence[int], tasks: int, split_bytes: int) -> list[tuple[int, int]]:
    """Cut records, given by their sizes, into at most `tasks` ranges of about equal bytes.

    Examples
    --------
    >>> split_evenly(10, [5, 5, 5, 5], tasks=2, split_bytes=8)
    [(10, 12), (12, 14)]
    """
    total = sum(sizes)
    if total <= split_bytes or tasks == 1:
        return [(start, start + len(sizes))]
    ranges: list[tuple[int, int]] = []
    first, done = start, 0
    for place, size in enumerate(sizes, start + 1):
        done += size
        if done * tasks >= total * (len(ranges) + 1):
            ranges.append((first, place))
            first = place
    return ranges
