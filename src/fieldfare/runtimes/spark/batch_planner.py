"""Where batches end, and what they are matched with: decided in the source's own process."""

from __future__ import annotations

import time
from dataclasses import replace

from fieldfare.runtimes.spark.batches import BatchSettings, Offset
from fieldfare.runtimes.spark.folder import DataFolder
from fieldfare.runtimes.spark.index_writer import IndexWriter
from fieldfare.runtimes.spark.suspects_file import SuspectsFile
from fieldfare.storage import open_event_log, open_index_store, open_match_log, open_registry
from fieldfare.storage.event_log import only_partition


class BatchPlanner:
    """Decides where batches end and brings the index up to date before each."""

    def __init__(self, folder: DataFolder, settings: BatchSettings) -> None:
        self._settings = settings
        self._end_at: int | None = None
        self._log = open_event_log(folder.log_url)
        self.log = only_partition(self._log)
        self._registry = open_registry(folder.registry_url)
        self._match_log = open_match_log(folder.matches_url).partition(0)
        self._suspects_file = SuspectsFile(folder.suspects)
        self._suspects, _ = self._suspects_file.load()
        self._synced = 0
        self._writer = IndexWriter(folder, self._registry, open_index_store(folder.index_url), self._floor)

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
        return self.log.split(start, end, self._settings.tasks, self._settings.split_bytes)

    def passed(self, end: Offset) -> None:
        """Spark has committed everything before this offset."""
        self._writer.passed(end["manifest"])

    def close(self) -> None:
        self._writer.close()
        self._registry.close()
        self._log.close()
