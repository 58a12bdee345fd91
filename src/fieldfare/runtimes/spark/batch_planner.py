"""Where batches end, and which manifest they are matched with: decided in the source's own process.

The source waits for the manifest, not the tasks: a task that waits holds a core and cannot be stopped, and
all tasks of a batch, which use one and the same, would look for it. It waits as it does for events: for a
moment, and then lets Spark ask again. So a query can be stopped while there is no indexer.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from fieldfare.runtimes.spark.batches import MicroBatchSettings, Offset
from fieldfare.runtimes.spark.suspects_file import SuspectsFile
from fieldfare.storage import open_event_log, open_index_store, open_match_log
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.event_log import only_partition
from fieldfare.storage.folder import DataFolder


class BatchPlanner:
    """Decides where batches end, and waits until the index covers them."""

    def __init__(self, folder: DataFolder, settings: MicroBatchSettings) -> None:
        self._settings = settings
        self._end_at: int | None = None
        self._log = open_event_log(folder.log_url)
        self.log = only_partition(self._log)
        self._store = open_index_store(folder.index_url)
        self._match_log = open_match_log(folder.matches_url).partition(0)
        self._suspects_file = SuspectsFile(folder.suspects)
        self._suspects, _ = self._suspects_file.load()

    def first(self) -> int:
        """Where a query begins: behind what is in the match log already.

        What is there is right, and matching it again could not be: the registry forgets what only records
        needed that were matched. Blocks further on, of a batch that was not finished, are written again.
        """
        return self._match_log.end(self.log.start())

    def next_end(self, start: Offset) -> Offset:
        """Where the next batch ends; `start` itself when no event came for a while, or no manifest did.

        Spark asks only when all batches before are committed, so nothing before `start` is needed again.
        """
        self._go_on_trying(start["offset"])
        if not self._wait_for_events(start["offset"]):
            return start
        end = self.log.bound(start["offset"], self._settings.max_bytes, self._settings.max_events)
        if self._end_at is not None:
            end = min(end, self._end_at)
        manifest = self._wait_for_index(self.log.last_stamp())
        if manifest is None:
            return start
        if self._suspects is not None:
            end = min(end, self._suspects.upto)
            self._suspects = replace(self._suspects, upto=end)
            self._suspects_file.save(self._suspects, trying=True)
        return {"offset": end, "manifest": manifest}

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
            if self.log.end() > start:
                return True
            time.sleep(self._settings.poll_ms / 1000)
        return False

    def _wait_for_index(self, stamp: int) -> int | None:
        """The newest manifest, which covers a stamp; None when there is none for a while."""
        until_s = time.monotonic() + self._settings.wait_ms / 1000
        while True:
            # One that cannot be read is the indexer's to mend.
            with suppress(IndexStoreError):
                newest = self._store.newest()
                if newest is not None and newest.revision >= stamp:
                    return newest.number
            if time.monotonic() >= until_s:
                break
            time.sleep(self._settings.poll_ms / 1000)
        if self._end_at is not None:
            raise RuntimeError(f"the index does not cover revision {stamp}: is there no indexer?")
        return None

    def stop_at_present_end(self) -> None:
        """Plan no batch beyond the log's end as it is now."""
        self._end_at = self.log.end()

    def ranges(self, start: int, end: int) -> list[tuple[int, int]]:
        """Split a batch into the ranges of its tasks, of about the same bytes each."""
        if start >= end:
            return []
        return self.log.split(start, end, self._settings.tasks, self._settings.split_bytes)

    def close(self) -> None:
        self._log.close()
