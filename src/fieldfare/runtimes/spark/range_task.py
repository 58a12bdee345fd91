"""What a task of the streaming query does: match one range of the log and write its matches.

A range gives the same matches whenever and however often it is matched: which subscriptions count depends on
the validity of their versions, not on the manifest used. Where a block of very many matches ends may differ;
readers of the match log do not mind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from fieldfare.matching.grouping import MatchLists
from fieldfare.pipeline.access_point import record_batch
from fieldfare.pipeline.exit_point import Found, concatenate
from fieldfare.pipeline.match_batch import find_matches
from fieldfare.runtimes.spark.folder import DataFolder
from fieldfare.runtimes.spark.index_cache import IndexCache
from fieldfare.storage import EventLog, IndexStore, MatchLog, NewMatchBlock, open_event_log
from fieldfare.storage.event_log import Record

BLOCK_EVENTS_MAX = 65_536
"""A block of the match log holds at most this many events: it counts them in 16 bits."""
BLOCK_MATCHES = 8_000_000
"""A block ends after the group of records that brings it past this many matches (64 MB of memory), counted
before matches found twice are dropped: that depends on the index, so where a block ends may, too."""
GROUP_EVENTS = 8_192
"""Records are matched in groups of about so many events: enough to keep the kernel busy, and few enough
that the matches of very broad filters fit into memory."""

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
    """Records of the log to match, and the manifest and registry revision to match them with."""

    start: int
    end: int
    revision: int
    manifest: int


class RangeMatcher:
    """Matches ranges of one service's log; a Python worker keeps one and so maps an index only once."""

    def __init__(self, folder: DataFolder, clock_ms: Callable[[], float] | None = None) -> None:
        self._log: EventLog = open_event_log(folder.log_url)
        self._match_log = MatchLog(folder.matches)
        self._indexes = IndexCache(IndexStore(folder.index))
        self._clock_ms = clock_ms or (lambda: time.time_ns() / 1e6)

    def open_index(self, manifest: int) -> None:
        """Map what a manifest names before a batch needs it."""
        self._indexes.indexes(manifest, 0)

    def match(self, wanted: RecordRange) -> dict[str, float]:
        """Match a range and write its blocks; gives a row of ``SUMMARY``."""
        started_s = time.perf_counter()
        indexes = self._indexes.indexes(wanted.manifest, wanted.revision)
        events = matches = size_bytes = 0
        block = _Block(wanted.start)

        def finish(block: _Block) -> None:
            nonlocal matches, size_bytes
            found = concatenate(block.found).by_subscription()
            matches += len(found.ordinals)
            size_bytes += self._write(block, found)

        for records in grouped(self._log.read(wanted.start, wanted.end)):
            group_events = sum(record.count for record in records)
            if block.events and block.events + group_events > BLOCK_EVENTS_MAX:
                finish(block)
                block = _Block(records[0].offset)
            block.add(records, find_matches(record_batch(records), indexes))
            events += group_events
            if block.most_matches >= BLOCK_MATCHES:
                finish(block)
                block = _Block(block.end)
        if block.events:
            finish(block)
        if block.end != wanted.end:
            raise RuntimeError(
                f"the log has no records {block.end} to {wanted.end}, which a batch was to match"
            )
        return {
            "start": wanted.start,
            "end": wanted.end,
            "events": events,
            "matches": matches,
            "bytes": size_bytes,
            "seconds": time.perf_counter() - started_s,
        }

    def _write(self, block: _Block, found: MatchLists) -> int:
        extra = {
            "matched_ms": round(self._clock_ms(), 3),
            "appended_ms": block.oldest_ms,
            "events": block.events,
            "matches": len(found.ordinals),
        }
        counts = np.array(block.counts, np.int32)
        return self._match_log.write(NewMatchBlock(block.start, block.end, counts, found, extra))


class _Block:
    """A block of the match log that is being filled."""

    def __init__(self, start: int) -> None:
        self.start = self.end = start
        self.counts: list[int] = []
        self.found: list[Found] = []
        self.events = self.most_matches = self.oldest_ms = 0

    def add(self, records: list[Record], found: Found) -> None:
        oldest_ms = min(record.appended_ms for record in records)
        self.oldest_ms = min(self.oldest_ms, oldest_ms) if self.events else oldest_ms
        self.end = records[-1].offset + 1
        self.counts += [record.count for record in records]
        self.found.append(found)
        self.events += found.size
        self.most_matches += found.most_matches


def grouped(records: Iterator[Record], most_events: int = GROUP_EVENTS) -> Iterator[list[Record]]:
    """Cut records into groups of at most so many events (a record with more is one of its own)."""
    group: list[Record] = []
    events = 0
    for record in records:
        if group and events + record.count > most_events:
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
