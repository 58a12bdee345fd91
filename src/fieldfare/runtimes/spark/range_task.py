"""What a task of the streaming query does: match one range of the log and write its matches.

A range gives the same matches whenever and however often it is matched: which subscriptions count depends on
the stamps of the records, not on the manifest used. Where a block of very many matches ends may differ;
readers of the match log do not mind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldfare.matching.grouping import MatchLists, Pairs, group_by_subscription
from fieldfare.matching.index import Index
from fieldfare.pipeline.access_point import record_batch
from fieldfare.pipeline.match_batch import stream_matches
from fieldfare.runtimes.spark.folder import DataFolder
from fieldfare.runtimes.spark.index_cache import IndexCache
from fieldfare.storage import NewMatchBlock, open_event_log, open_index_store, open_match_log
from fieldfare.storage.event_log import Record, only_partition
from fieldfare.storage.match_log import GIVEN_UP, MAX_BLOCK_RECORDS
from fieldfare.storage.match_runs import MatchRuns

BLOCK_EVENTS_MAX = 65_536
"""A block of the match log holds at most this many events: it counts them in 16 bits."""
BLOCK_MATCHES = 8_000_000
"""A block ends after the group of records that brings it past this many matches (64 MB of memory), counted
before matches found twice are dropped: that depends on the index, so where a block ends may, too."""
GROUP_EVENTS = 8_192
"""Records are matched in groups of about so many events: enough to keep the kernel busy."""
HELD_MATCHES = 1 << 25
"""Matches held in memory (256 MiB); a block that has more is gathered on disk. One window of events may have
as many again while it is searched."""
GIVEN_UP_NAMED = 1_000
"""So many subscriptions a block names that were given up for its events, at most."""

ERROR_CHARACTERS_MAX = 2_000
"""What of an error's text is passed on: it may quote an event."""

SUMMARY = pa.schema(
    [
        pa.field("start", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("events", pa.int64()),
        pa.field("matches", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("seconds", pa.float64()),
    ]
)
"""The one row that a task gives back."""


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Records of the log to match, and a manifest that covers their stamps."""

    start: int
    end: int
    manifest: int


class RecordsError(Exception):
    """Records could not be matched: it is they, or an index, and not a disk, that made it fail.

    The driver looks for its name in what Spark reports, see `recovery.is_the_records_fault`.
    """

    def __init__(self, start: int, end: int, cause: BaseException) -> None:
        said = " ".join(f"{type(cause).__name__}: {cause}".split())
        super().__init__(f"records {start} to {end - 1} cannot be matched: {said[:ERROR_CHARACTERS_MAX]}")


def _match(records: Sequence[Record], indexes: Mapping[str, Index]) -> Iterator[Pairs]:
    """What a group of records matches; RecordsError names the one that makes it fail, as far as it can."""
    try:
        yield from stream_matches(record_batch(records), indexes)
    except Exception as error:
        raise _blamed(records, indexes, error) from error


def _blamed(records: Sequence[Record], indexes: Mapping[str, Index], error: Exception) -> RecordsError:
    """The error that names the records at fault: of a group that fails the half that does, and so on."""
    while len(records) > 1:
        half = len(records) // 2
        for part in (records[:half], records[half:]):
            try:
                for _ in stream_matches(record_batch(part), indexes):
                    pass
            except Exception as narrower:
                records, error = part, narrower
                break
        else:
            break  # Each half can be matched: together they are too much.
    return RecordsError(records[0].offset, records[-1].offset + 1, error)


class RangeMatcher:
    """Matches ranges of one service's log; a Python worker keeps one and so maps an index only once."""

    def __init__(self, folder: DataFolder, clock_ms: Callable[[], float] | None = None) -> None:
        self._log = only_partition(open_event_log(folder.log_url))
        self._match_log = open_match_log(folder.matches_url).partition(0)
        self._scratch = folder.matches
        self._indexes = IndexCache(open_index_store(folder.index_url))
        self._clock_ms = clock_ms or (lambda: time.time_ns() / 1e6)

    def open_index(self, manifest: int) -> None:
        """Map what a manifest names before a batch needs it."""
        self._indexes.indexes(manifest, 0)

    def match(self, wanted: RecordRange) -> dict[str, float]:
        """Match a range and write its blocks; gives a row of ``SUMMARY``."""
        started_s = time.perf_counter()
        if self._log.end() < wanted.end:
            raise RuntimeError(f"the log ends before record {wanted.end}, up to which a batch was to match")
        events = matches = size_bytes = 0
        block = _Block(wanted.start, self._scratch)

        def finish(block: _Block) -> None:
            nonlocal matches, size_bytes
            with block:
                written, block_bytes = self._write(block)
            matches += written
            size_bytes += block_bytes

        for records in grouped(self._log.read(wanted.start, wanted.end)):
            group_events = sum(record.count for record in records)
            behind = records[-1].offset + 1
            if block.events and (
                block.events + group_events > BLOCK_EVENTS_MAX or behind - block.start > MAX_BLOCK_RECORDS
            ):
                finish(block)
                block = _Block(block.end, self._scratch)
            if behind - block.start > MAX_BLOCK_RECORDS:
                self._match_log.fill(block.start, records[0].offset)
                block = _Block(records[0].offset, self._scratch)
            indexes = self._indexes.indexes(wanted.manifest, max(record.stamp for record in records))
            block.add(records, _match(records, indexes))
            events += group_events
            if block.most_matches >= BLOCK_MATCHES:
                finish(block)
                block = _Block(block.end, self._scratch)
        if block.events:
            if wanted.end - block.start <= MAX_BLOCK_RECORDS:
                block.pass_over(wanted.end)
            finish(block)
        # No reader is to wait at a hole.
        self._match_log.fill(block.end, wanted.end)
        return {
            "start": wanted.start,
            "end": wanted.end,
            "events": events,
            "matches": matches,
            "bytes": size_bytes,
            "seconds": time.perf_counter() - started_s,
        }

    def _write(self, block: _Block) -> tuple[int, int]:
        """Write a block; gives how many matches it has, and its size."""
        lists, matches = block.lists()
        extra = {
            "matched_ms": round(self._clock_ms(), 3),
            "appended_ms": block.oldest_ms,
            "events": block.events,
            "matches": matches,
            **block.given_up.figures(),
        }
        counts = np.array(block.counts, np.int32)
        new = NewMatchBlock(block.start, block.end, counts, lists, extra)
        return matches, self._match_log.write(new)


class _Block:
    """A block of the match log that is being filled: in memory, and what is too much for it on disk."""

    def __init__(self, start: int, folder: Path) -> None:
        self.start = self.end = start
        self.counts: list[int] = []
        self.events = self.most_matches = self.oldest_ms = 0
        self._folder = folder
        self._found: list[Pairs] = []
        self._held = 0
        self._runs: MatchRuns | None = None
        self._in_runs = 0
        self.given_up = _GivenUp()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._runs is not None:
            self._runs.close()

    def add(self, records: list[Record], found: Iterator[Pairs]) -> None:
        """Take in records and what their events match, counted from the first of them."""
        oldest_ms = min(record.appended_ms for record in records)
        self.oldest_ms = min(self.oldest_ms, oldest_ms) if self.events else oldest_ms
        for record in records:
            self.pass_over(record.offset)
            self.counts.append(record.count)
            self.end = record.offset + 1
        for pairs in found:
            if self._held and self._held + len(pairs.pairs) > HELD_MATCHES:
                self._put_away()
            self.given_up.add(pairs.given_up)
            self._found.append(pairs.behind(self.events))
            self._held += len(pairs.pairs)
            self.most_matches += len(pairs.pairs)
        self.events += sum(record.count for record in records)

    def pass_over(self, offset: int) -> None:
        """There are no more records before this one: what lies between is a hole."""
        if offset > self.end:
            self.counts += [0] * (offset - self.end)
            self.end = offset

    def _put_away(self) -> None:
        lists = group_by_subscription(self._found)
        self._found, self._held = [], 0
        if len(lists.numbers):
            if self._runs is None:
                self._runs = MatchRuns(self._folder)
            self._runs.add(lists)
            self._in_runs += len(lists.ordinals)

    def lists(self) -> tuple[MatchLists | MatchRuns, int]:
        """The matches by subscription, and how many they are."""
        if self._runs is None:
            lists = group_by_subscription(self._found)
            return lists, len(lists.ordinals)
        self._put_away()
        return self._runs, self._in_runs


class _GivenUp:
    """For how many events each subscription was given up because they were too much work."""

    def __init__(self) -> None:
        self._numbers = np.zeros(0, np.uint32)
        self._counts = np.zeros(0, np.int64)

    def add(self, numbers: NDArray[np.uint32]) -> None:
        if len(numbers):
            both = np.concatenate([self._numbers, numbers])
            counts = np.concatenate([self._counts, np.ones(len(numbers), np.int64)])
            self._numbers, places = np.unique(both, return_inverse=True)
            self._counts = np.bincount(places, counts).astype(np.int64)

    def figures(self) -> dict[str, int]:
        """What a block says of it: how often in all, and the subscriptions of most, by number."""
        if not len(self._numbers):
            return {}
        most = np.argsort(-self._counts, kind="stable")[:GIVEN_UP_NAMED]
        named = zip(self._numbers[most].tolist(), self._counts[most].tolist(), strict=True)
        return {GIVEN_UP: int(self._counts.sum()), **{f"{GIVEN_UP} {n}": count for n, count in named}}


def grouped(records: Iterator[Record], most_events: int = GROUP_EVENTS) -> Iterator[list[Record]]:
    """Cut records into groups of at most so many events (a record with more is one of its own)."""
    group: list[Record] = []
    events = 0
    for record in records:
        if group and (
            events + record.count > most_events or record.offset - group[0].offset >= MAX_BLOCK_RECORDS
        ):
            yield group
            group, events = [], 0
        group.append(record)
        events += record.count
    if group:
        yield group


_matchers: dict[Path, RangeMatcher] = {}


def matcher_of(folder: DataFolder) -> RangeMatcher:
    """This process's matcher for a service's log."""
    matcher = _matchers.get(folder.root)
    if matcher is None:
        matcher = _matchers[folder.root] = RangeMatcher(folder)
    return matcher


@dataclass(frozen=True, slots=True)
class MatchRanges:
    """The function that ``mapInArrow`` runs: ranges of the log in, a summary row for each out."""

    folder: DataFolder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        matcher = matcher_of(self.folder)
        for batch in batches:
            for row in batch.to_pylist():
                yield pa.RecordBatch.from_pylist([matcher.match(RecordRange(**row))], schema=SUMMARY)


@dataclass(frozen=True, slots=True)
class OpenIndex:
    """For ``mapInArrow``: gives rows back as they are, once this worker has the index mapped."""

    folder: DataFolder
    manifest: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        matcher_of(self.folder).open_index(self.manifest)
        yield from batches
