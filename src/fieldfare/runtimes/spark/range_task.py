"""Matching of ranges of the log: what a service's tasks do, whether for a batch or following the log.

A range gives the same matches whenever and however often it is matched: which subscriptions are valid depends
on the stamps of the records, not on the manifest used. The end of a block with very many matches may differ;
readers of the match log accept that.
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

from fieldfare.matching.grouping import group_by_subscription
from fieldfare.matching.pairs import MatchLists, Pairs
from fieldfare.pipeline.access_point import record_batch
from fieldfare.pipeline.exit_point import merge_lists
from fieldfare.pipeline.match_batch import stream_by_space, stream_matches
from fieldfare.pipeline.slices import Searched
from fieldfare.runtimes.spark.index_cache import IndexCache
from fieldfare.runtimes.spark.spent_time import SpentTime
from fieldfare.storage import MatchPartition, NewMatchBlock, open_event_log, open_match_log
from fieldfare.storage.event_log import Record
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.match_log import BLOCK_EVENTS_MAX, BLOCK_RECORDS_MAX, GIVEN_UP
from fieldfare.storage.match_runs import MatchRuns

BLOCK_SLOTS = 8_000_000
"""Maximum slots in a block (64 MB of memory); it ends after the group of records that exceeds this.

See ``matching.grouping``. How matches are found depends on the index, so the end of a block may, too.
"""
GROUP_EVENTS = 8_192
"""Maximum events in a group of records that are matched together: enough to keep the kernel busy."""
GROUP_MS = 250.0
"""Target CPU time for matching a group, in milliseconds; after a slower group the next ones are smaller."""
BLOCK_MS_MAX = 1_000.0
SHARED_BLOCK_MS_MAX = 250.0
"""Maximum CPU time of matching, in milliseconds, before a block ends, in a range with several spaces.

`BLOCK_MS_MAX` is the bound in a range of one space. When the block ends its matches are delivered and its
time is charged, however long the rest of the range takes.
"""
HELD_SLOTS = 1 << 25
"""Maximum slots of matches held in memory (256 MiB); a block with more is gathered on disk.

One window of events may use this amount once more while it is searched.
"""
COUNTED_BATCH_SIZE = 1 << 20
"""Number of matches whose events are counted at a time."""
GIVEN_UP_NAMED = 1_000
"""Maximum given-up subscriptions that a block names; further ones are only counted."""

SpaceRun = tuple[str, int]
"""A space, and the number of consecutive events that belong to it."""

ERROR_CHARACTERS_MAX = 2_000
"""Maximum characters of an error's text that are passed on; the text may quote an event."""

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
"""The work of a matcher for a block: on one slice, or (without a slice) other work.

Absent with one matcher. `seconds` is elapsed time, `cpu_s` CPU time.
"""
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
"""The row that a task returns for each range."""

_NUMBERS = ("partition", "start", "end", "manifest")
RANGES = pa.schema([*(pa.field(name, pa.int64()) for name in _NUMBERS), pa.field("routing", pa.string())])
"""Columns of `RecordRange`."""
RANGES_SQL = ", ".join([*(f"{name} long" for name in _NUMBERS), "routing string"])


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Records of a partition of the log to match, and a manifest that covers their stamps.

    `routing` says how events go to several matchers, see ``distributed.loads``; it is unused with one
    matcher.
    """

    partition: int
    start: int
    end: int
    manifest: int
    routing: str | None = None


class RecordsError(Exception):
    """Records could not be matched, because of themselves or of an index, and not because of a disk.

    The driver searches Spark's report for this class's name, see `recovery.is_the_records_fault`.
    """

    def __init__(self, partition: int, start: int, end: int, cause: BaseException) -> None:
        said = " ".join(f"{type(cause).__name__}: {cause}".split())
        named = f"records {start} to {end - 1} of partition {partition}"
        super().__init__(f"{named} cannot be matched: {said[:ERROR_CHARACTERS_MAX]}")


def match_records(
    partition: int, records: Sequence[Record], indexes: Mapping[str, Searched], spent: SpentTime
) -> Iterator[Pairs]:
    """Yield the matches of a group of records, and add the CPU time to `spent` by space.

    Errors become a RecordsError that names the failing record, as far as it can be found.
    """
    try:
        for space, found in stream_by_space(record_batch(records), indexes):
            yield from spent.measured(space, found)
    except Exception as error:
        raise _blamed(partition, records, indexes, error) from error


def _blamed(
    partition: int, records: Sequence[Record], indexes: Mapping[str, Searched], error: Exception
) -> RecordsError:
    """Return an error that names the records at fault, found by halving a group that fails."""
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
            break  # Each half can be matched alone: together they are too much.
    return RecordsError(partition, records[0].offset, records[-1].offset + 1, error)


class Indexes(Protocol):
    """The source of the indexes of all spaces, see `IndexCache`."""

    def indexes(self, number: int, stamp: int) -> Mapping[str, Searched]: ...

    def check_unmatched(self, number: int, log: MatchPartition, start: int) -> None: ...


class BlockWriter(Protocol):
    """The destination of a partition's blocks: usually a `MatchPartition`."""

    def write(self, block: NewMatchBlock, *, synced: bool = True) -> int: ...

    def fill(self, start: int, end: int) -> Sequence[object]: ...


class RangeMatcher:
    """Matches ranges of one service's log; a Python worker keeps one, and so maps an index only once.

    Attributes
    ----------
    matching_s : float
        CPU time of matching so far, in seconds.
    """

    _syncs_blocks = False

    def __init__(self, folder: DataFolder, clock_ms: Callable[[], float] | None = None) -> None:
        self.log = open_event_log(folder.log_url)
        self._match_log = open_match_log(folder.matches_url)
        self._scratch = folder.scratch
        self.opened = IndexCache(folder.open_index())
        self._indexes: Indexes = self.opened
        self._clock_ms = clock_ms or (lambda: time.time_ns() / 1e6)
        self._size = GroupSize()
        self.matching_s = 0.0

    @property
    def events_per_s(self) -> int:
        """Number of events that are matched in a second of CPU time, as far as the last groups show."""
        return self._size.per_s

    def _read(self, wanted: RecordRange) -> Iterator[Record]:
        """Read the records of a range that are to be matched."""
        return self.log.partitions[wanted.partition].read(wanted.start, wanted.end)

    def _writer(self, partition: int) -> BlockWriter:
        """Return the writer for a partition's blocks."""
        return self._match_log.partition(partition)

    def matched(self, partition: int) -> MatchPartition:
        """Return a partition of the match log."""
        return self._match_log.partition(partition)

    def open_index(self, manifest: int) -> None:
        """Map a manifest's index before a batch needs it."""
        self._indexes.indexes(manifest, 0)

    def match(self, wanted: RecordRange, seen_ms: float | None = None) -> dict[str, Any]:
        """Match a range and write its blocks; return a row of ``SUMMARY``.

        Parameters
        ----------
        seen_ms : float, optional
            When the task first saw the records, in milliseconds since 1970. Default: now.
        """
        started_s = time.perf_counter()
        seen_ms = self._clock_ms() if seen_ms is None else seen_ms
        match_log = self._writer(wanted.partition)
        if self.log.partitions[wanted.partition].end() < wanted.end:
            raise RuntimeError(f"the log ends before record {wanted.end}, the end of the batch")
        events = matches = size_bytes = 0
        block, spaces = Block(wanted.start, self._scratch), set[str]()

        def finish(block: Block) -> None:
            nonlocal matches, size_bytes
            matched = self._match_log.partition(wanted.partition)
            self._indexes.check_unmatched(wanted.manifest, matched, block.start)
            written, block_bytes = block.write(
                match_log, self._clock_ms(), seen_ms, synced=self._syncs_blocks
            )
            matches += written
            size_bytes += block_bytes

        for records in grouped(self._read(wanted), lambda: self._size.events):
            group_events = sum(record.count for record in records)
            behind = records[-1].offset + 1
            if block.events and (
                block.events + group_events > BLOCK_EVENTS_MAX or behind - block.start > BLOCK_RECORDS_MAX
            ):
                finish(block)
                block = Block(block.end, self._scratch)
            if behind - block.start > BLOCK_RECORDS_MAX:
                match_log.fill(block.start, records[0].offset)
                block = Block(records[0].offset, self._scratch)
            indexes = self._indexes.indexes(wanted.manifest, max(record.stamp for record in records))
            before_ms = block.spent.total_ms
            block.add(records, match_records(wanted.partition, records, indexes, block.spent))
            spent_ms = block.spent.total_ms - before_ms
            self.matching_s += spent_ms / 1000
            self._size.took(group_events, spent_ms)
            events += group_events
            spaces.update(record.space for record in records)
            most_ms = BLOCK_MS_MAX if len(spaces) == 1 else SHARED_BLOCK_MS_MAX
            if block.slots >= BLOCK_SLOTS or block.spent.total_ms >= most_ms:
                finish(block)
                block = Block(block.end, self._scratch)
        if block.events:
            if wanted.end - block.start <= BLOCK_RECORDS_MAX:
                block.pass_over(wanted.end)
            finish(block)
        # No reader may wait at a hole.
        match_log.fill(block.end, wanted.end)
        seconds = time.perf_counter() - started_s
        return summary((wanted.partition, wanted.start, wanted.end), events, matches, size_bytes, seconds)


def summary(
    block: tuple[int, int, int],
    events: int,
    matches: int,
    size_bytes: int,
    seconds: float,
    work: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return a row of ``SUMMARY`` for a range: its partition, start and end."""
    partition, start, end = block
    return {
        "partition": partition,
        "start": start,
        "end": end,
        "events": events,
        "matches": matches,
        "bytes": size_bytes,
        "seconds": seconds,
        "work": list(work),
    }


class Block:
    """The exit point: a block of the match log being filled, in memory and, beyond `HELD_SLOTS`, on disk.

    Attributes
    ----------
    start, end : int
        The range of its records.
    events : int
        Number of events in these records.
    held : int
        Slots of matches in memory; a match in a list counts as one.
    slots : int
        Number of slots added in total.
    spent : SpentTime
        CPU time of matching, by space.
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
        self._given_up = _OverLimit()
        self.spent = SpentTime()
        self._spaces: list[SpaceRun] = []
        self._by_event = np.zeros(BLOCK_EVENTS_MAX, np.int64)
        """Number of matches of each event, of the matches counted so far."""

    def add(self, records: list[Record], found: Iterator[Pairs]) -> None:
        """Add records and the matches of their events, which are counted from the first of these records."""
        for pairs in found:
            if self.held and self.held + len(pairs.pairs) > HELD_SLOTS:
                self.spill_to_disk()
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
        """Add records: events of each offset up to `end`, the oldest append time, and the spaces."""
        self.oldest_ms = min(self.oldest_ms, oldest_ms) if self.events else oldest_ms
        self.end = end
        self._counts += counts
        self._spaces += spaces
        self.events += sum(counts)

    def pass_over(self, end: int) -> None:
        """Extend the block to an offset; the offsets up to there are a hole."""
        self._counts += [0] * (end - self.end)
        self.end = max(self.end, end)

    def add_lists(self, lists: MatchLists, given_up: NDArray[np.uint32]) -> None:
        """Add a matcher's matches; events are numbered as in the block."""
        self._given_up.add(given_up)
        if len(lists.numbers):
            self._lists.append(lists)
            self._hold(len(lists.ordinals))

    def _hold(self, slots: int) -> None:
        self.held += slots
        self.slots += slots

    def spill_to_disk(self) -> None:
        """Move the matches in memory to disk."""
        lists = self._take()
        if len(lists.numbers):
            if self._runs is None:
                self._runs = MatchRuns(self._folder)
            self._runs.add(lists)
            self._count(lists)  # The other records of the block may not be known yet.
            self._in_runs += len(lists.ordinals)

    def _take(self) -> MatchLists:
        """Remove and return the matches in memory."""
        found, lists = self._found, self._lists
        self._found, self._lists, self.held = [], [], 0
        return merge_lists([group_by_subscription(found), *lists]) if lists else group_by_subscription(found)

    def _count(self, lists: MatchLists) -> None:
        """Count the matches of each event, in batches: counting takes four times their memory."""
        for first in range(0, len(lists.ordinals), COUNTED_BATCH_SIZE):
            found = np.bincount(lists.ordinals[first : first + COUNTED_BATCH_SIZE])
            self._by_event[: found.size] += found

    def _matches_by_space(self, matches: int) -> dict[str, int]:
        """Return the number of matches in each space."""
        numbers = {space: number for number, space in enumerate(dict(self._spaces))}
        if len(numbers) == 1:
            return dict.fromkeys(numbers, matches) if matches else {}
        of_runs = np.array([numbers[space] for space, _ in self._spaces], np.int64)
        of_events = np.repeat(of_runs, np.array([events for _, events in self._spaces], np.int64))
        totals = np.bincount(of_events, self._by_event[: self.events], minlength=len(numbers))
        return {space: int(total) for space, total in zip(numbers, totals, strict=True) if total}

    def write(
        self, log: BlockWriter, matched_ms: float, seen_ms: float | None = None, *, synced: bool = False
    ) -> tuple[int, int]:
        """Write the block to the match log and close it; return its matches and its size in bytes.

        `seen_ms` and `matched_ms` say when a task first saw its records, if known, and had their matches.

        The driver syncs the match log before it reports a block's records as matched (see `heartbeat`).
        """
        try:
            lists: MatchLists | MatchRuns
            if self._runs is None:
                lists = self._take()
                matches = len(lists.ordinals)
                if len({space for space, _ in self._spaces}) > 1:
                    self._count(lists)
            else:
                self.spill_to_disk()
                lists, matches = self._runs, self._in_runs
            extra = {
                "matched_ms": round(matched_ms, 3),
                **({} if seen_ms is None else {"seen_ms": round(seen_ms, 3)}),
                "appended_ms": self.oldest_ms,
                "events": self.events,
                "matches": matches,
                **self._given_up.figures(),
                **self.spent.figures(),
            }
            counts = np.array(self._counts, np.int32)
            spaces = self._matches_by_space(matches)
            block = NewMatchBlock(self.start, self.end, counts, lists, extra, spaces)
            return matches, log.write(block, synced=synced)
        finally:
            self.close()

    def close(self) -> None:
        """Remove the data on disk."""
        if self._runs is not None:
            self._runs.close()


class _OverLimit:
    """Number of events for which each subscription was given up because they were too much work."""

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
        """Return a block's figures: the total, and counts of the most affected subscriptions."""
        if not len(self._numbers):
            return {}
        most = np.argsort(-self._counts, kind="stable")[:GIVEN_UP_NAMED]
        named = zip(self._numbers[most].tolist(), self._counts[most].tolist(), strict=True)
        return {GIVEN_UP: int(self._counts.sum()), **{f"{GIVEN_UP} {n}": count for n, count in named}}


def counts_from(start: int, records: Sequence[Record]) -> list[int]:
    """Return the number of events of each offset from `start` on; 0 in a hole."""
    counts: list[int] = []
    for record in records:
        counts += [0] * (record.offset - start - len(counts))
        counts.append(record.count)
    return counts


def space_runs(records: Sequence[Record]) -> list[SpaceRun]:
    """Return the runs of consecutive events of one space."""
    by_space = groupby(records, lambda record: record.space)
    return [(space, sum(record.count for record in run)) for space, run in by_space]


def grouped(
    records: Iterator[Record], most_events: Callable[[], int] = lambda: GROUP_EVENTS
) -> Iterator[list[Record]]:
    """Cut records into groups of at most `most_events()` events; a larger record is a group of its own."""
    group: list[Record] = []
    events = 0
    for record in records:
        if group and (
            events + record.count > most_events() or record.offset - group[0].offset >= BLOCK_RECORDS_MAX
        ):
            yield group
            group, events = [], 0
        group.append(record)
        events += record.count
    if group:
        yield group


class GroupSize:
    """Number of events that are matched together: reduced while matching takes long."""

    def __init__(self) -> None:
        self.events = GROUP_EVENTS

    @property
    def per_s(self) -> int:
        """Number of events that are matched in a second, as far as the last groups show."""
        return int(self.events * 1000 / GROUP_MS)

    def took(self, events: int, spent_ms: float) -> None:
        """Adapt the size to a group of `events` events that took `spent_ms` of CPU time."""
        if spent_ms > GROUP_MS:
            self.events = max(1, int(events * GROUP_MS / spent_ms))
        else:
            self.events = min(GROUP_EVENTS, 2 * self.events)


_matchers: dict[Path, RangeMatcher] = {}


def matcher_of(folder: DataFolder) -> RangeMatcher:
    """Return this process's matcher for a service's log."""
    matcher = _matchers.get(folder.root)
    if matcher is None:
        matcher = _matchers[folder.root] = RangeMatcher(folder)
    return matcher


@dataclass(frozen=True, slots=True)
class OpenIndex:
    """A function for ``mapPartitions``: yields its rows unchanged, after mapping the index in this worker."""

    folder: DataFolder
    manifest: int

    def __call__(self, rows: Iterator[int]) -> Iterator[int]:
        matcher_of(self.folder).open_index(self.manifest)
        yield from rows
