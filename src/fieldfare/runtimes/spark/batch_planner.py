"""Where batches end, and which manifest they are matched with: decided in the source's own process.

The source waits for the manifest, not the tasks: a task that waits holds a core and cannot be stopped, and
all tasks of a batch, which use one and the same, would look for it. It waits as it does for events: for a
moment, and then lets Spark ask again. So a query can be stopped while there is no indexer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from fieldfare.model import Offsets
from fieldfare.pipeline.manifest import Manifest
from fieldfare.runtimes.process.wanted import want
from fieldfare.runtimes.spark.batches import MicroBatchSettings, Offset, ends_of_batch
from fieldfare.runtimes.spark.spread.loads import encode_routing, routing_of
from fieldfare.runtimes.spark.suspects_file import SuspectsFile
from fieldfare.storage import open_event_log, open_index_store, open_match_log
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.event_log import ends_of
from fieldfare.storage.folder import DataFolder


class BatchPlanner:
    """Decides where batches end, and waits until the index covers them."""

    def __init__(self, folder: DataFolder, settings: MicroBatchSettings) -> None:
        self._settings = settings
        self._end_at: Offsets | None = None
        self.log = open_event_log(folder.log_url)
        self._store = open_index_store(folder.index_url)
        self._measured = folder.slices
        self._wanted = folder.wanted
        self._match_log = open_match_log(folder.matches_url)
        self._suspects_file = SuspectsFile(folder.suspects)
        self._suspects, _ = self._suspects_file.load()

    def first(self) -> Offsets:
        """Where a query begins: behind what is in the match log already.

        What is there is right, and matching it again could not be: the registry forgets what only records
        needed that were matched. Blocks further on, of a batch that was not finished, are written again.
        """
        return tuple(self._match_log.partition(each.number).end(each.start()) for each in self.log.partitions)

    def next_end(self, start: Offset) -> Offset:
        """Where the next batch ends; `start` itself when no event came for a while, or no manifest did.

        Spark asks only when all batches before are committed, so nothing before `start` is needed again.
        """
        starts: Offsets = tuple(start["ends"])
        self._go_on_trying(starts)
        now = self._wait_for_events(starts)
        if now is None:
            return start
        ends = ends_of_batch(self.log, starts, self._settings, now)
        if self._end_at is not None:
            ends = tuple(map(min, ends, self._end_at))
        manifest = self._wait_for_index(max(each.last_stamp() for each in self.log.partitions))
        if manifest is None:
            return start
        return {"ends": self._tried(starts, ends) if self._suspects else ends, "manifest": manifest}

    def _go_on_trying(self, starts: Offsets) -> None:
        """Everything before `starts` is matched: try the next of the records that may make it fail."""
        if self._suspects:
            passed = (each.passed(starts[each.partition]) for each in self._suspects)
            ends = ends_of(self.log)
            self._suspects = tuple(each for each in passed if each and ends[each.partition] > each.start)
            if not self._suspects:
                self._suspects_file.save(())

    def _tried(self, starts: Offsets, ends: Offsets) -> Offsets:
        """Of a batch what is tried of the first suspects, and nothing else: what fails then is they."""
        first, *others = self._suspects
        upto = min(ends[first.partition], first.upto)
        self._suspects = (replace(first, upto=upto), *others)
        self._suspects_file.save(self._suspects, trying=True)
        return (*starts[: first.partition], upto, *starts[first.partition + 1 :])

    def _wait_for_events(self, starts: Offsets) -> Offsets | None:
        """Where the log ends, once it has records to match; None when none came for a while."""
        until_s = time.monotonic() + self._settings.wait_ms / 1000
        while True:
            ends = ends_of(self.log) if self._end_at is None else self._end_at
            if any(map(int.__lt__, starts, ends)):
                return ends
            if self._end_at is not None or time.monotonic() >= until_s:
                return None
            time.sleep(max(self._settings.poll_ms / 1000, self.log.look_every_s))

    def _wait_for_index(self, stamp: int) -> int | None:
        """The newest manifest, which covers a stamp; None when there is none for a while."""
        until_s = time.monotonic() + self._settings.wait_ms / 1000
        is_asked_for = False
        while True:
            # One that cannot be read is the indexer's to mend.
            with suppress(IndexStoreError):
                newest = self._store.newest()
                if newest is not None and newest.revision >= stamp:
                    return newest.number
            if not is_asked_for:
                want(self._wanted, stamp)
                is_asked_for = True
            if time.monotonic() >= until_s:
                break
            time.sleep(self._settings.poll_ms / 1000)
        if self._end_at is not None:
            raise RuntimeError(f"the index does not cover revision {stamp}: is there no indexer?")
        return None

    def stop_at_present_end(self) -> None:
        """Plan no batch beyond the log's end as it is now."""
        self._end_at = ends_of(self.log)

    def tasks(self, starts: Sequence[int], ends: Sequence[int]) -> list[list[tuple[int, int, int]]]:
        """Split a batch into ranges (partition, start, end), and say which each of its tasks matches.

        A partition's ranges are of about the same bytes. Partitions that have records share the tasks.
        """
        full = [each for each in self.log.partitions if starts[each.number] < ends[each.number]]
        pieces = max(1, self._settings.tasks // max(1, len(full)))
        ranges = [
            (each.number, first, last)
            for each in full
            for first, last in each.split(
                starts[each.number], ends[each.number], pieces, self._settings.split_bytes
            )
        ]
        tasks = min(len(ranges), self._settings.tasks)
        return [ranges[number::tasks] for number in range(tasks)]

    def routing(self, number: int) -> str | None:
        """How the events of a batch go to several matchers, by the manifest of a number; None with one."""
        if self._settings.matchers == 1:
            return None
        try:
            manifest: Manifest | None = self._store.manifest(number)
        except IndexStoreError:
            manifest = self._store.newest()  # as the tasks will find
        if manifest is None:
            return None
        return encode_routing(routing_of(manifest, self._measured, time.monotonic()))

    def close(self) -> None:
        self.log.close()
