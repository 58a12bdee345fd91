"""AP, M and EP in tasks of their own, for slices that several matchers hold.

    ranges ─▶ Dispatch (AP) ─▶ consignments ─by matcher─▶ MatchConsignments (M) ─▶ findings
                                       findings ─by range─▶ WriteBlocks (EP) ─▶ a summary row a block

A consignment is what one matcher receives of a block of the log, in one row: whole buffers, so that the Java
processes in between move bytes and not events. A matcher's matches go to the task that writes the block, by
subscription: two bytes per match. So the match log holds one block for each range of records, as if one task
had matched it, and its readers do not see the number of matchers.

AP itself matches a space of a single slice, and sends the matches on in the same way: any worker can have all
of that space, and sending its events to one matcher would make that the busiest.

When an AP task runs again it sends the same events to the same matchers, some of which may have processed the
first ones. So it uses the cut and the loads in its range. If the present manifest has another cut of a space,
the batch fails, and the next attempt is planned with that manifest.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import RDD, TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from fieldfare.forwarding import policy_of
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.files import IndexFileError
from fieldfare.matching.grouping import group_by_subscription
from fieldfare.matching.pairs import NONE_GIVEN_UP, MatchLists, Pairs
from fieldfare.partitioning import NO_SLICE
from fieldfare.pipeline.access_point import SpaceEvents, by_space, decoded, events_of, record_batch
from fieldfare.pipeline.dispatch import Consignment, Forwarding
from fieldfare.pipeline.matcher import visits
from fieldfare.pipeline.slices import Slices
from fieldfare.runtimes.spark.distributed.loads import Routing, SpaceRouting, decode_routing
from fieldfare.runtimes.spark.index_cache import IndexCache
from fieldfare.runtimes.spark.placed_rows import placed_rows
from fieldfare.runtimes.spark.processors import processors_here
from fieldfare.runtimes.spark.range_task import (
    HELD_SLOTS,
    SUMMARY,
    WORK,
    Block,
    RecordRange,
    RecordsError,
    SpaceRun,
    counts_from,
    grouped,
    match_records,
    space_runs,
    summary,
)
from fieldfare.runtimes.spark.spent_time import SpentTime
from fieldfare.storage import MatchLog, open_event_log, open_match_log
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.event_log import Record
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.match_log import BLOCK_EVENTS_MAX

NO_MATCHER = -1
"""Number of the matcher in EP's rows of work."""

FINDING_MATCHES = 1 << 22
"""Approximate maximum matches in one finding (8 MB); one window of events may exceed it."""

_BLOCK = ("partition", "start", "end")
"""Columns that identify a block of the match log."""
_LISTS = ("numbers", "starts", "ordinals", "given_up", "spent")
_CONSIGNED = ("counts", "spaces", "stamps", "sizes", "events", "slices", "bounds", "positions", "payload")
_PASSED_ON = ("counts", "spaces", *_LISTS)
_CONSIGNMENTS = pa.schema(
    [
        pa.field("matcher", pa.int32()),
        pa.field("exit", pa.int32()),
        *(pa.field(name, pa.int64()) for name in _BLOCK),
        *(pa.field(name, pa.int64()) for name in ("oldest_ms", "manifest", "cut")),
        pa.field("space", pa.string()),
        *(pa.field(name, pa.binary()) for name in (*_CONSIGNED, *_LISTS)),
    ]
)
"""Columns of consignments.

A row without a space is the block itself, with the number of events of each record, their spaces (JSON), and
AP's own matches; M passes it on.
"""
FINDINGS = pa.schema(
    [
        pa.field("exit", pa.int32()),
        *(pa.field(name, pa.int64()) for name in (*_BLOCK, "oldest_ms")),
        *(pa.field(name, pa.binary()) for name in _PASSED_ON),
        pa.field("work", pa.list_(WORK)),
    ]
)


@dataclass(frozen=True, slots=True)
class Spread:
    """How a service's events are distributed; equal for all its tasks.

    Attributes
    ----------
    matchers, exits : int
        Number of tasks of M and of EP.
    forwarding : str
        One of ``forwarding.POLICIES``.
    seed : int
        Seed of the policy `random`.
    """

    matchers: int
    exits: int
    forwarding: str = "adaptive"
    seed: int = 0

    def __post_init__(self) -> None:
        policy_of(self.forwarding, [0], np.random.default_rng(0))

    def by(self, routing: SpaceRouting, now_s: float) -> Forwarding:
        """Return how the events of a space are forwarded in a batch."""
        return Forwarding(self.forwarding, routing.table(), now_s, self.seed)


def spread_ranges(ranges: DataFrame, folder: DataFolder, spread: Spread) -> DataFrame:
    """Match ranges of a log at several matchers; return a row of ``SUMMARY`` for each block."""
    sent = ranges.mapInArrow(Dispatch(folder, spread), from_arrow_schema(_CONSIGNMENTS))
    arrived = sent.repartitionById(spread.matchers, "matcher")
    found = arrived.mapInArrow(MatchConsignments(folder), from_arrow_schema(FINDINGS))
    return found.repartitionById(spread.exits, "exit").mapInArrow(
        WriteBlocks(folder), from_arrow_schema(SUMMARY)
    )


class _Opened:
    """A service's logs and index in this process; a slice is mapped when it is first searched.

    It stays open from task to task: a client of Kafka takes a large part of a second to connect.
    """

    def __init__(self, folder: DataFolder) -> None:
        self.log, self.matches = open_event_log(folder.log_url), open_match_log(folder.matches_url)
        self.cache = IndexCache(folder.open_index(), every_slice=False)

    def check_unmatched(self, manifest: int, block: Mapping[str, Any]) -> None:
        """Raise IndexStoreError if a block is already matched and its versions may have been removed."""
        if not self.cache.has_opened(manifest):
            matched = self.matches.partition(block["partition"])
            self.cache.check_unmatched(manifest, matched, block["start"])


_services: dict[Path, _Opened] = {}


def _opened(folder: DataFolder) -> _Opened:
    """Return the logs and the index of a service, opened in this process."""
    opened = _services.get(folder.root)
    if opened is None:
        opened = _services[folder.root] = _Opened(folder)
    return opened


@dataclass(frozen=True, slots=True)
class OpenSlices:
    """Like ``range_task.OpenIndex``, but maps all slices: any worker may be any matcher."""

    folder: DataFolder
    manifest: int

    def __call__(self, rows: Iterator[int]) -> Iterator[int]:
        _opened(self.folder).cache.open_slices(self.manifest, lambda slices: range(len(slices.holders)))
        yield from rows


class Opened(NamedTuple):
    """The executor on which a task mapped slices, and the number of CPUs that it may use."""

    executor: str
    processors: float


def open_matchers(folder: DataFolder, manifest: int, matchers: frozenset[int], count: int) -> Opened:
    """Fetch and map here all slices of some matchers, out of `count` matchers; of manifest 0, none."""

    def held(slices: Slices) -> list[int]:
        held_here = [number for number, holder in enumerate(slices.holders) if holder % count in matchers]
        return held_here if len(slices.holders) > 1 else [0]

    if manifest:
        _opened(folder).cache.open_slices(manifest, held)
    return Opened(executor_here(), processors_here())


class PinnedTask(msgspec.Struct, frozen=True):
    """The matchers for which one task works.

    `location` is where it should run, in Spark's notation; None: anywhere.
    """

    matchers: tuple[int, ...]
    location: str | None = None


def place_tasks(context: Any, tasks: Sequence[PinnedTask]) -> RDD[str]:
    """Return a row for each task, each in a partition of its own with the task's preferred location."""
    return placed_rows(context, [(msgspec.json.encode(task).decode(), task.location) for task in tasks])


def pinned_tasks(rows: Iterable[str]) -> Iterator[PinnedTask]:
    """Read the rows of `place_tasks`."""
    for text in rows:
        yield msgspec.json.decode(text, type=PinnedTask)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """AP: takes ranges of the log; yields their blocks and a consignment for each matcher.

    Attributes
    ----------
    only : frozenset of int, optional
        Yield what these matchers receive, in one consignment, and those of the blocks that are assigned to
        them. Tasks with disjoint sets that contain every matcher yield everything together.
    """

    folder: DataFolder
    spread: Spread
    only: frozenset[int] | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened = _opened(self.folder)
        for batch in batches:
            for row in batch.to_pylist():
                wanted = RecordRange(**row)
                partition = opened.log.partitions[wanted.partition]
                match_log = opened.matches.partition(wanted.partition)
                at = wanted.start
                if partition.end() < wanted.end:
                    raise RuntimeError(f"the log ends before record {wanted.end}, the end of the batch")
                routing = decode_routing(wanted.routing)
                for records in grouped(partition.read(wanted.start, wanted.end), lambda: BLOCK_EVENTS_MAX):
                    if self._is_home(wanted.start):
                        match_log.fill(at, records[0].offset)
                    at = records[-1].offset + 1
                    yield from self._block(wanted, routing, records)
                if self._is_home(wanted.start):
                    match_log.fill(at, wanted.end)  # no reader may wait at a hole

    def _is_home(self, start: int) -> bool:
        """Return whether this task does what is done once per block, independent of matchers."""
        return self.only is None or start % self.spread.matchers in self.only

    def _receiver(self, matcher: int) -> int | None:
        """Return the task number that receives a matcher's events; None if it is none of `only`."""
        number = matcher % self.spread.matchers
        if self.only is None:
            return number
        return min(self.only) if number in self.only else None

    def _exit(self, start: int) -> int:
        """Return the number of the task that writes a block; equal for all tasks that send to it."""
        context = TaskContext.get() if self.only is None else None
        return (context.partitionId() if context is not None else start) % self.spread.exits

    def _block(
        self, wanted: RecordRange, routing: Routing, records: list[Record]
    ) -> Iterator[pa.RecordBatch]:
        start, end = records[0].offset, records[-1].offset + 1
        row: dict[str, Any] = {"exit": self._exit(start), "manifest": wanted.manifest}
        row |= {"partition": wanted.partition, "start": start, "end": end}
        block = {**row, "matcher": start % self.spread.matchers}
        if self._is_home(start):
            counts = np.array(counts_from(start, records), np.int32)
            oldest_ms = min(record.appended_ms for record in records)
            spaces = msgspec.json.encode(space_runs(records))
            yield _row(_CONSIGNMENTS, **block, oldest_ms=oldest_ms, counts=counts, spaces=spaces)
        opened, stamp = _opened(self.folder), max(each.stamp for each in records)
        cache = opened.cache
        slices_of = cache.indexes(wanted.manifest, stamp)
        present = {record.space for record in records}
        for space in present & (slices_of.keys() | routing.spaces.keys()):
            _check_cut(space, slices_of.get(space), routing.spaces.get(space))
        here: dict[str, Slices] = {}
        for name in present & slices_of.keys() - routing.spaces.keys() if self._is_home(start) else ():
            # Opened early: a file that was removed with an old manifest must not be blamed on a record.
            slices = cache.slices(wanted.manifest, stamp, name, [0], slices_of[name].cut)
            if slices is not None:
                here[name] = slices
        if self._is_home(start):
            opened.check_unmatched(wanted.manifest, row)  # a newer index may lack the records' spaces
        if here:
            found = _Finding(_CONSIGNMENTS, block)
            spent = SpentTime()
            yield from found.gather(_matched_here(wanted.partition, records, here, spent))
            yield found.send(spent=msgspec.json.encode(spent.by_space))
        if not present & routing.spaces.keys():
            return
        try:
            for events in by_space(record_batch(records)):
                routed = routing.spaces.get(events.space)
                if routed is not None:
                    forwarding = self.spread.by(routed, routing.now_s)
                    for consigned in self._consign(events, slices_of[events.space], forwarding, start):
                        yield _row(_CONSIGNMENTS, **row, space=events.space, **consigned)
        except Exception as error:
            raise RecordsError(wanted.partition, start, end, error) from error

    def _consign(
        self, events: SpaceEvents, slices: Slices, forwarding: Forwarding, start: int
    ) -> Iterator[dict[str, Any]]:
        paths = slices.partitioning.paths
        # Without paths the routing does not depend on the events' content, so they are not decoded.
        pieces = decoded(events, paths) if paths else [(events, ColumnBatch(events.size, {}))]
        for some, columns in pieces:
            places = np.arange(some.size) if some.places is None else some.places
            for part in slices.dispatch(columns, forwarding, start, self._receiver):
                yield {
                    "matcher": part.matcher,
                    "cut": slices.cut,
                    "stamps": some.stamps[part.events],
                    "sizes": some.record_sizes[part.events],
                    "events": places[part.events].astype(np.uint16),
                    "slices": np.array(part.slices, np.int32),
                    "bounds": np.cumsum([0, *map(len, part.positions)]).astype(np.int64),
                    "positions": np.concatenate(part.positions).astype(np.uint16),
                    "payload": some.payload_of(part.events),
                }


def _check_cut(space: str, slices: Slices | None, routed: SpaceRouting | None) -> None:
    """Raise IndexStoreError if a space's cut is not the one with which the batch was planned."""
    is_cut = slices is not None and len(slices.holders) > 1
    if is_cut != (routed is not None) or (slices and routed and slices.cut != routed.cut):
        raise IndexStoreError(f"space {space} was partitioned again while a batch was planned")


def _matched_here(
    partition: int, records: list[Record], indexes: Mapping[str, Slices], spent: SpentTime
) -> Iterator[Pairs]:
    """Yield the matches in spaces of a single slice; events are counted as in the block."""
    done = 0
    for group in grouped(iter(records)):
        for pairs in match_records(partition, group, indexes, spent):
            yield pairs.behind(done)
        done += sum(record.count for record in group)


def _row(schema: pa.Schema, **values: Any) -> pa.RecordBatch:
    """Return a row without copying buffers; missing columns are null."""
    arrays = []
    for field_ in schema:
        value = values.get(field_.name)
        if value is not None and pa.types.is_binary(field_.type):
            data = pa.py_buffer(value)
            bounds = pa.py_buffer(np.array([0, data.size], np.int32))
            arrays.append(pa.Array.from_buffers(field_.type, 1, [None, bounds, data]))
        else:
            arrays.append(pa.array([value], field_.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(row: dict[str, Any], name: str, kind: Any) -> NDArray[Any]:
    # A copy is aligned, as kernels require, and does not keep the other rows of its batch in memory.
    return np.frombuffer(row[name].as_buffer(), kind).copy()


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for place in range(batch.num_rows):
            yield {name: batch.column(name)[place] for name in batch.schema.names}


@dataclass(frozen=True, slots=True)
class MatchConsignments:
    """M: takes consignments, yields their matches."""

    folder: DataFolder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # The sender of the rows may run in this process: then its CPU time is counted here, too.
        processor = Processor()
        for row in _rows(batches):
            block = {name: row[name].as_py() for name in ("exit", *_BLOCK)}
            if row["space"].is_valid:
                try:
                    yield from self._match(row, block, processor)
                except (OSError, IndexStoreError, IndexFileError):
                    raise  # a slice's file is unreadable, or the cut is another one
                except Exception as error:
                    number, start, end = (block[name] for name in _BLOCK)
                    raise RecordsError(number, start, end, error) from error
            else:
                passed_on = {name: row[name].as_buffer() for name in _PASSED_ON if row[name].is_valid}
                yield _row(FINDINGS, **block, **passed_on, oldest_ms=row["oldest_ms"].as_py())

    def _match(
        self, row: dict[str, Any], block: dict[str, Any], processor: Processor
    ) -> Iterator[pa.RecordBatch]:
        started_s, searched_s, besides_cpu_s = time.perf_counter(), 0.0, 0.0
        matcher, space = row["matcher"].as_py(), row["space"].as_py()
        consignment, events = _received(row)
        opened, manifest = _opened(self.folder), row["manifest"].as_py()
        slices = opened.cache.slices(
            manifest,
            int(events.stamps.max()),
            space,
            consignment.slices,
            row["cut"].as_py(),
        )
        opened.check_unmatched(manifest, block)
        found, work = _Finding(FINDINGS, block), []
        holders = slices.holders if slices is not None else ()
        for visit in visits(events, slices, consignment) if slices is not None else ():
            visited_s = time.perf_counter()
            besides_cpu_s += processor.taken_s()
            yield from found.gather(visit.find())
            seconds, cpu_s = time.perf_counter() - visited_s, processor.taken_s()
            searched_s += seconds
            holder = holders[visit.slice]
            work.append(_work(holder, space, visit.slice, visit.size, seconds, 0, cpu_s))
        lists = found.lists()
        besides_s = time.perf_counter() - started_s - searched_s
        sent = sum(
            row[name].as_buffer().size for name in ("stamps", "sizes", "events", "positions", "payload")
        )
        besides_cpu_s += processor.taken_s()
        work.append(_work(matcher, space, NO_SLICE, events.size, besides_s, sent, besides_cpu_s))
        spent_ms = {space: 1000 * sum(each["cpu_s"] for each in work)}
        yield found.send(lists, work=work, spent=msgspec.json.encode(spent_ms))


def _received(row: dict[str, Any]) -> tuple[Consignment, SpaceEvents]:
    """Return the consignment and the events in a row that AP sent."""
    slices, bounds = _array(row, "slices", np.int32).tolist(), _array(row, "bounds", np.int64).tolist()
    positions = _array(row, "positions", np.uint16).astype(np.int64)
    places = _array(row, "events", np.uint16).astype(np.int64)
    parts = [positions[bounds[i] : bounds[i + 1]] for i in range(len(slices))]
    consignment = Consignment(row["matcher"].as_py(), places, slices, parts)
    stamps, sizes = _array(row, "stamps", np.int64), _array(row, "sizes", np.int64)
    payload = memoryview(row["payload"].as_buffer())
    return consignment, events_of(row["space"].as_py(), stamps, sizes, payload)


class Processor:
    """The CPU time of this process, with all its threads."""

    def __init__(self) -> None:
        self._last_s = time.process_time()

    def taken_s(self) -> float:
        """Return the CPU seconds since the last call."""
        last_s, self._last_s = self._last_s, time.process_time()
        return self._last_s - last_s


def executor_here() -> str:
    """Return the id of this task's executor; on a standalone cluster executors' folders are named by ids."""
    return os.environ.get("SPARK_EXECUTOR_ID") or Path.cwd().name


def _work(
    matcher: int, space: str, number: int, events: int, seconds: float, sent_bytes: int, cpu_s: float
) -> dict[str, Any]:
    values = (matcher, space, number, events, seconds, sent_bytes, cpu_s, executor_here())
    return dict(zip((field_.name for field_ in WORK), values, strict=True))


class _Finding:
    """Matches of a block, until they are sent in a row that contains `block`."""

    def __init__(self, schema: pa.Schema, block: dict[str, Any]) -> None:
        self._schema = schema
        self._block = block
        self._found: list[Pairs] = []
        self._held = 0

    def gather(self, found: Iterable[Pairs]) -> Iterator[pa.RecordBatch]:
        """Add matches; yield rows when there are too many to hold."""
        for pairs in found:
            if self._held and self._held + len(pairs.pairs) > FINDING_MATCHES:
                yield self.send()
            self._found.append(pairs)
            self._held += len(pairs.pairs)

    def lists(self) -> MatchLists:
        """Return the held matches by subscription."""
        return group_by_subscription(self._found)

    def send(self, lists: MatchLists | None = None, **more: Any) -> pa.RecordBatch:
        """Return a row with the matches, and hold none afterwards."""
        lists = lists or self.lists()
        given_up = np.concatenate([NONE_GIVEN_UP, *(pairs.given_up for pairs in self._found)])
        self._found, self._held = [], 0
        return _row(self._schema, **self._block, **lists._asdict(), given_up=given_up, **more)


@dataclass(frozen=True, slots=True)
class WriteBlocks:
    """EP: takes matchers' findings; writes each block when all its findings have arrived."""

    folder: DataFolder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in write_blocks(batches, _opened(self.folder).matches, self.folder.scratch):
            yield pa.RecordBatch.from_pylist([row], schema=SUMMARY)


def write_blocks(
    findings: Iterable[pa.RecordBatch], log: MatchLog, scratch: Path, seen_ms: float | None = None
) -> Iterator[dict[str, Any]]:
    """Write each block when all findings have arrived; yield a row of ``SUMMARY`` for each.

    Parameters
    ----------
    findings
        Rows of ``FINDINGS``.
    scratch : Path
        Folder for matches that are too many to hold.
    seen_ms : float, optional
        When a task first saw the records, in milliseconds since 1970.
    """
    processor = Processor()
    blocks: dict[tuple[int, int], Block] = {}
    work: dict[tuple[int, int], list[dict[str, Any]]] = {}
    held = 0
    try:
        for row in _rows(findings):
            place = row["partition"].as_py(), row["start"].as_py()
            block = blocks.get(place) or blocks.setdefault(place, Block(place[1], scratch))
            work.setdefault(place, []).extend(row["work"].as_py() or [])
            if row["counts"].is_valid:
                counts = _array(row, "counts", np.int32).tolist()
                spaces = msgspec.json.decode(row["spaces"].as_buffer(), type=list[SpaceRun])
                block.add_records(row["end"].as_py(), counts, row["oldest_ms"].as_py(), spaces)
            if row["spent"].is_valid:
                block.spent.add_all(msgspec.json.decode(row["spent"].as_buffer(), type=dict[str, float]))
            if row["numbers"].is_valid:
                before = block.held
                block.add_lists(_lists(row), _array(row, "given_up", np.uint32))
                held += block.held - before
                while held > HELD_SLOTS:
                    largest = max(blocks.values(), key=lambda block: block.held)
                    held -= largest.held
                    largest.spill_to_disk()
        for place in sorted(blocks):
            started_s = time.perf_counter()
            block, (number, start) = blocks[place], place
            matches, size_bytes = block.write(log.partition(number), time.time_ns() / 1e6, seen_ms)
            seconds = time.perf_counter() - started_s
            written = _work(NO_MATCHER, "", NO_SLICE, block.events, seconds, 0, processor.taken_s())
            records = (number, start, block.end)
            yield summary(records, block.events, matches, size_bytes, seconds, [*work[place], written])
            blocks[place] = Block(start, scratch)  # release the written matches
    finally:
        for block in blocks.values():
            block.close()


def _lists(row: dict[str, Any]) -> MatchLists:
    return MatchLists(
        _array(row, "numbers", np.uint32), _array(row, "starts", np.int64), _array(row, "ordinals", np.uint16)
    )
