"""What a task of the streaming query does: match ranges of the log and write their matches.

A range gives the same matches whenever and however often it is matched: which subscriptions count depends on
the stamps of the records, not on the manifest used. Where a block of very many matches ends may differ;
readers of the match log do not mind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldfare.matching.grouping import MatchLists, Pairs, group_by_subscription
from fieldfare.pipeline.access_point import record_batch
from fieldfare.pipeline.exit_point import merge_lists
from fieldfare.pipeline.match_batch import stream_matches
from fieldfare.pipeline.slices import Searched
from fieldfare.runtimes.spark.index_cache import IndexCache
from fieldfare.storage import MatchPartition, NewMatchBlock, open_event_log, open_match_log
from fieldfare.storage.event_log import Record
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.match_log import GIVEN_UP, MAX_BLOCK_EVENTS, MAX_BLOCK_RECORDS
from fieldfare.storage.match_runs import MatchRuns

BLOCK_EVENTS_MAX = 65_536
"""A block of the match log holds at most this many events: it counts them in 16 bits."""
BLOCK_SLOTS = 8_000_000
"""A block ends after the group of records whose matches bring it past so many slots (64 MB of memory; see
``matching.grouping``). How they are found depends on the index, so where a block ends may, too."""
GROUP_EVENTS = 8_192
"""Records are matched in groups of about so many events: enough to keep the kernel busy."""
HELD_SLOTS = 1 << 25
"""Slots of matches held in memory (256 MiB); a block that has more is gathered on disk. One window of events
may have as many again while it is searched."""
COUNTED_AT_ONCE = 1 << 20
"""Matches whose events are counted at a time."""
GIVEN_UP_NAMED = 1_000
"""So many subscriptions a block names that were given up for its events, at most."""

SpaceRun = tuple[str, int]
"""A space, and how many events one after the other are its."""

ERROR_CHARACTERS_MAX = 2_000
"""What of an error's text is passed on: it may quote an event."""

WORK = pa.struct(
    [
        pa.field("matcher", pa.int32()),
        pa.field("space", pa.string()),
        pa.field("slice", pa.int32()),
        pa.field("events", pa.int64()),
        pa.field("seconds", pa.float64()),
        pa.field("sent_bytes", pa.int64()),
        pa.field("cpu_s", pa.float64()),
        pa.field("executor", pa.string()),
    ]
)
"""What a matcher did for a block, and where: at one slice, or, of no slice, besides. Nothing where nothing
travels. Seconds are those that it took, `cpu_s` those of a processor."""
SUMMARY = pa.schema(
    [
        pa.field("partition", pa.int64()),
        pa.field("start", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("events", pa.int64()),
        pa.field("matches", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("seconds", pa.float64()),
        pa.field("work", pa.list_(WORK)),
    ]
)
"""The one row that a task gives back."""


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Records of a partition of the log to match, and a manifest that covers their stamps.

    `routing` says how events go to several matchers, see ``spread.loads``; nobody else looks at it.
    """

    partition: int
    start: int
    end: int
    manifest: int
    routing: str | None = None


class RecordsError(Exception):
    """Records could not be matched: it is they, or an index, and not a disk, that made it fail.

    The driver looks for its name in what Spark reports, see `recovery.is_the_records_fault`.
    """

    def __init__(self, partition: int, start: int, end: int, cause: BaseException) -> None:
        said = " ".join(f"{type(cause).__name__}: {cause}".split())
        named = f"records {start} to {end - 1} of partition {partition}"
        super().__init__(f"{named} cannot be matched: {said[:ERROR_CHARACTERS_MAX]}")


def match_records(
    partition: int, records: Sequence[Record], indexes: Mapping[str, Searched]
) -> Iterator[Pairs]:
    """What a group of records matches; RecordsError names the one that makes it fail, as far as it can."""
    try:
        yield from stream_matches(record_batch(records), indexes)
    except Exception as error:
        raise _blamed(partition, records, indexes, error) from error


def _blamed(
    partition: int, records: Sequence[Record], indexes: Mapping[str, Searched], error: Exception
) -> RecordsError:
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
    return RecordsError(partition, records[0].offset, records[-1].offset + 1, error)


class Indexes(Protocol):
    """Where the indexes of all spaces come from, see `IndexCache`."""

    def indexes(self, number: int, stamp: int) -> Mapping[str, Searched]: ...

    def check_unmatched(self, number: int, log: MatchPartition, start: int) -> None: ...


class BlockWriter(Protocol):
    """Where the blocks of a partition go: a `MatchPartition`, as a rule."""

    def write(self, block: NewMatchBlock) -> int: ...

    def fill(self, start: int, end: int) -> Sequence[object]: ...


class RangeMatcher:
    """Matches ranges of one service's log; a Python worker keeps one and so maps an index only once."""

    def __init__(self, folder: DataFolder, clock_ms: Callable[[], float] | None = None) -> None:
        self._log = open_event_log(folder.log_url)
        self._match_log = open_match_log(folder.matches_url)
        self._scratch = folder.scratch
        self._indexes: Indexes = IndexCache(folder.open_index())
        self._clock_ms = clock_ms or (lambda: time.time_ns() / 1e6)

    def _read(self, wanted: RecordRange) -> Iterator[Record]:
        """The records of a range that are to be matched."""
        return self._log.partitions[wanted.partition].read(wanted.start, wanted.end)

    def _writer(self, partition: int) -> BlockWriter:
        """Where the blocks of a partition are written."""
        return self._match_log.partition(partition)

    def open_index(self, manifest: int) -> None:
        """Map what a manifest names before a batch needs it."""
        self._indexes.indexes(manifest, 0)

    def match(self, wanted: RecordRange) -> dict[str, Any]:
        """Match a range and write its blocks; gives a row of ``SUMMARY``."""
        started_s = time.perf_counter()
        match_log = self._writer(wanted.partition)
        if self._log.partitions[wanted.partition].end() < wanted.end:
            raise RuntimeError(f"the log ends before record {wanted.end}, up to which a batch was to match")
        events = matches = size_bytes = 0
        block = Block(wanted.start, self._scratch)

        def finish(block: Block) -> None:
            nonlocal matches, size_bytes
            matched = self._match_log.partition(wanted.partition)
            self._indexes.check_unmatched(wanted.manifest, matched, block.start)
            written, block_bytes = block.write(match_log, self._clock_ms())
            matches += written
            size_bytes += block_bytes

        for records in grouped(self._read(wanted)):
            group_events = sum(record.count for record in records)
            behind = records[-1].offset + 1
            if block.events and (
                block.events + group_events > BLOCK_EVENTS_MAX or behind - block.start > MAX_BLOCK_RECORDS
            ):
                finish(block)
                block = Block(block.end, self._scratch)
            if behind - block.start > MAX_BLOCK_RECORDS:
                match_log.fill(block.start, records[0].offset)
                block = Block(records[0].offset, self._scratch)
            indexes = self._indexes.indexes(wanted.manifest, max(record.stamp for record in records))
            block.add(records, match_records(wanted.partition, records, indexes))
            events += group_events
            if block.slots >= BLOCK_SLOTS:
                finish(block)
                block = Block(block.end, self._scratch)
        if block.events:
            if wanted.end - block.start <= MAX_BLOCK_RECORDS:
                block.pass_over(wanted.end)
            finish(block)
        # No reader is to wait at a hole.
        match_log.fill(block.end, wanted.end)
        return {
            "partition": wanted.partition,
            "start": wanted.start,
            "end": wanted.end,
            "events": events,
            "matches": matches,
            "bytes": size_bytes,
            "seconds": time.perf_counter() - started_s,
            "work": [],
        }


class Block:
    """EP: a block of the match log that is being filled; in memory, and what is too much for it on disk.

    Attributes
    ----------
    start, end : int
        The range of its records.
    events : int
        How many these have.
    held : int
        Slots of matches in memory; a match in a list counts as one.
    slots : int
        How many there were in all.
    """

    def __init__(self, start: int, folder: Path) -> None:
        self.start = self.end = start
        self.events = self.held = self.slots = self.oldest_ms = 0
        self._counts: list[int] = []
        self._folder = folder
        self._found: list[Pairs] = []
        self._lists: list[MatchLists] = []
        self._runs: MatchRuns | None = None
        self._in_runs = 0
        self._given_up = _GivenUp()
        self._spaces: list[SpaceRun] = []
        self._by_event = np.zeros(MAX_BLOCK_EVENTS, np.int64)
        """How many matches each event has, of those that were counted."""

    def add(self, records: list[Record], found: Iterator[Pairs]) -> None:
        """Take in records and what their events match, counted from the first of them."""
        for pairs in found:
            if self.held and self.held + len(pairs.pairs) > HELD_SLOTS:
                self.put_away()
            self._given_up.add(pairs.given_up)
            self._found.append(pairs.behind(self.events))
            self._hold(len(pairs.pairs))
        self.add_records(
            records[-1].offset + 1,
            counts_from(self.end, records),
            min(record.appended_ms for record in records),
            space_runs(records),
        )

    def add_records(
        self, end: int, counts: Sequence[int], oldest_ms: int, spaces: Sequence[SpaceRun]
    ) -> None:
        """Take in records: how many events each offset up to `end` has, when the oldest was appended, and
        whose they are."""
        self.oldest_ms = min(self.oldest_ms, oldest_ms) if self.events else oldest_ms
        self.end = end
        self._counts += counts
        self._spaces += spaces
        self.events += sum(counts)

    def pass_over(self, end: int) -> None:
        """There are no more records before this offset: what lies between is a hole."""
        self._counts += [0] * (end - self.end)
        self.end = max(self.end, end)

    def add_lists(self, lists: MatchLists, given_up: NDArray[np.uint32]) -> None:
        """Take in what a matcher found; events are counted as in the block."""
        self._given_up.add(given_up)
        if len(lists.numbers):
            self._lists.append(lists)
            self._hold(len(lists.ordinals))

    def _hold(self, slots: int) -> None:
        self.held += slots
        self.slots += slots

    def put_away(self) -> None:
        """Write what is held to disk."""
        lists = self._take()
        if len(lists.numbers):
            if self._runs is None:
                self._runs = MatchRuns(self._folder)
            self._runs.add(lists)
            self._count(lists)  # The other records of the block may not be known yet.
            self._in_runs += len(lists.ordinals)

    def _take(self) -> MatchLists:
        """What is held, which is held no more."""
        found, lists = self._found, self._lists
        self._found, self._lists, self.held = [], [], 0
        return merge_lists([group_by_subscription(found), *lists]) if lists else group_by_subscription(found)

    def _count(self, lists: MatchLists) -> None:
        """Count the matches of each event, some at a time: counting takes four times their memory."""
        for first in range(0, len(lists.ordinals), COUNTED_AT_ONCE):
            found = np.bincount(lists.ordinals[first : first + COUNTED_AT_ONCE])
            self._by_event[: found.size] += found

    def _matches_by_space(self, matches: int) -> dict[str, int]:
        """How many of the matches are of each space."""
        numbers = {space: number for number, space in enumerate(dict(self._spaces))}
        if len(numbers) == 1:
            return dict.fromkeys(numbers, matches) if matches else {}
        of_runs = np.array([numbers[space] for space, _ in self._spaces], np.int64)
        of_events = np.repeat(of_runs, np.array([events for _, events in self._spaces], np.int64))
        totals = np.bincount(of_events, self._by_event[: self.events], minlength=len(numbers))
        return {space: int(total) for space, total in zip(numbers, totals, strict=True) if total}

    def write(self, log: BlockWriter, matched_ms: float) -> tuple[int, int]:
        """Write it to the match log, and be done; gives how many matches it has, and its size."""
        try:
            lists: MatchLists | MatchRuns
            if self._runs is None:
                lists = self._take()
                matches = len(lists.ordinals)
                if len({space for space, _ in self._spaces}) > 1:
                    self._count(lists)
            else:
                self.put_away()
                lists, matches = self._runs, self._in_runs
            extra = {
                "matched_ms": round(matched_ms, 3),
                "appended_ms": self.oldest_ms,
                "events": self.events,
                "matches": matches,
                **self._given_up.figures(),
            }
            counts = np.array(self._counts, np.int32)
            spaces = self._matches_by_space(matches)
            return matches, log.write(NewMatchBlock(self.start, self.end, counts, lists, extra, spaces))
        finally:
            self.close()

    def close(self) -> None:
        """Forget what is on disk."""
        if self._runs is not None:
            self._runs.close()


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


def counts_from(start: int, records: Sequence[Record]) -> list[int]:
    """How many events each offset from `start` on has: none in a hole."""
    counts: list[int] = []
    for record in records:
        counts += [0] * (record.offset - start - len(counts))
        counts.append(record.count)
    return counts


def space_runs(records: Sequence[Record]) -> list[SpaceRun]:
    """Whose events follow each other in records."""
    by_space = groupby(records, lambda record: record.space)
    return [(space, sum(record.count for record in run)) for space, run in by_space]


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
