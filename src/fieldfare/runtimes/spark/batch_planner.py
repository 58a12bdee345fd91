"""Decide where batches end and which manifest they are matched with.

The driver waits for the manifest, not the tasks: a waiting task occupies a core and cannot be stopped, and
all tasks of a batch, which use the same manifest, would search for it. Like the wait for events, this wait is
short, so that the loop can be stopped while no indexer runs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from fieldfare.model import Offsets
from fieldfare.runtimes.process.wanted import request_index
from fieldfare.runtimes.spark.batches import MicroBatchSettings, Offset, ends_of_batch, is_behind
from fieldfare.runtimes.spark.distributed.loads import planned_routing
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
        self._awaited: tuple[Offsets, int] | None = None
        """The ends of the batch that waits for an index, and a stamp that covers its records."""
        self.log = open_event_log(folder.log_url)
        self._store = open_index_store(folder.index_url)
        self._measured = folder.slices
        self._wanted = folder.wanted
        self._match_log = open_match_log(folder.matches_url)
        self._suspects_file = SuspectsFile(folder.suspects)
        self._suspects, _ = self._suspects_file.load()

    def first(self) -> Offsets:
        """Return where batches begin: at the end of what the match log already holds.

        Those blocks are correct, and could not be matched again: the registry removes versions that only
        matched records needed. Blocks further on, of a batch that was not finished, are written again.
        """
        return self.tips((0,) * len(self.log.partitions))

    def tips(self, tips: Offsets) -> Offsets:
        """Return where the match log ends, given where it ended before."""
        return tuple(
            self._match_log.partition(each.number).end(max(tip, each.start()))
            for each, tip in zip(self.log.partitions, tips, strict=True)
        )

    def covered(self) -> int:
        """Return the revision that the newest index covers; -1 if there is none, or none can be read."""
        with suppress(IndexStoreError):
            newest = self._store.newest()
            return -1 if newest is None else newest.revision
        return -1

    def next_end(self, start: Offset) -> Offset:
        """Return where the next batch ends; `start` itself if no event, or no manifest, came within the wait.

        Everything before `start` is matched, or will be; while there are suspects, it is matched.
        """
        starts: Offsets = tuple(start["ends"])
        self._skip_matched_suspects(starts)
        now = self._wait_for_events(starts)
        if now is None:
            return start
        ends = ends_of_batch(self.log, starts, self._settings, now)
        if self._end_at is not None:
            ends = tuple(map(min, ends, self._end_at))
        if self._awaited is None:  # else while subscriptions change, each call would need a newer index
            self._awaited = ends, max(each.last_stamp() for each in self.log.partitions)
        reached, stamp = self._awaited
        manifest = self._wait_for_index(stamp)
        if manifest is None:
            return start
        self._awaited = None
        ends = tuple(max(first, min(each)) for first, *each in zip(starts, ends, reached, strict=True))
        return {"ends": self._tried(starts, ends) if self._suspects else ends, "manifest": manifest}

    @property
    def has_suspects(self) -> bool:
        """Whether the next batch has records under suspicion, and must be matched alone."""
        return bool(self._suspects)

    def is_behind(self, starts: Offsets) -> bool:
        """Return whether much waits from these offsets on, or some records are under suspicion."""
        return self.has_suspects or any(
            is_behind(partition, start, self._settings)
            for partition, start in zip(self.log.partitions, starts, strict=True)
        )

    def _skip_matched_suspects(self, starts: Offsets) -> None:
        """Move past suspects that `starts` shows to be matched; the next one is tried then."""
        if self._suspects:
            passed = (each.passed(starts[each.partition]) for each in self._suspects)
            ends = ends_of(self.log)
            self._suspects = tuple(each for each in passed if each and ends[each.partition] > each.start)
            if not self._suspects:
                self._suspects_file.save(())

    def _tried(self, starts: Offsets, ends: Offsets) -> Offsets:
        """Reduce a batch to the records of the first suspect, so that a failure is caused by them alone."""
        first, *others = self._suspects
        upto = min(ends[first.partition], first.upto)
        self._suspects = (replace(first, upto=upto), *others)
        self._suspects_file.save(self._suspects, trying=True)
        return (*starts[: first.partition], upto, *starts[first.partition + 1 :])

    def _wait_for_events(self, starts: Offsets) -> Offsets | None:
        """Return the log's end once it has records to match; None if none came within the wait."""
        until_s = time.monotonic() + self._settings.wait_ms / 1000
        while True:
            ends = ends_of(self.log) if self._end_at is None else self._end_at
            if any(map(int.__lt__, starts, ends)):
                return ends
            if self._end_at is not None or time.monotonic() >= until_s:
                return None
            time.sleep(max(self._settings.poll_ms / 1000, self.log.look_every_s))

    def _wait_for_index(self, stamp: int) -> int | None:
        """Return the newest manifest's number once it covers a stamp; None if that takes too long."""
        until_s = time.monotonic() + self._settings.wait_ms / 1000
        is_asked_for = False
        while True:
            # The indexer replaces an index that cannot be read.
            with suppress(IndexStoreError):
                newest = self._store.newest()
                if newest is not None and newest.revision >= stamp:
                    return newest.number
            if not is_asked_for:
                request_index(self._wanted, stamp)
                is_asked_for = True
            if time.monotonic() >= until_s:
                break
            time.sleep(self._settings.poll_ms / 1000)
        if self._end_at is not None:
            raise RuntimeError(f"the index does not cover revision {stamp}: is the indexer running?")
        return None

    def stop_at_present_end(self) -> None:
        """Plan no batch beyond the log's present end."""
        self._end_at = ends_of(self.log)

    def tasks(self, starts: Sequence[int], ends: Sequence[int]) -> list[list[tuple[int, int, int]]]:
        """Split a batch into ranges (partition, start, end), and return the ranges of each of its tasks.

        Ranges of a partition have about the same number of bytes. Partitions that have records share the
        tasks.
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
        """Return how a batch's events are routed to several matchers, encoded; None with one matcher."""
        if self._settings.matchers == 1:
            return None
        return planned_routing(self._store, self._measured, number)

    def close(self) -> None:
        self.log.close()
