"""AP, M and EP in tasks of their own, for slices that several matchers hold.

    ranges ─▶ Dispatch (AP) ─▶ consignments ─by matcher─▶ MatchConsignments (M) ─▶ findings
                                       findings ─by range─▶ WriteBlocks (EP) ─▶ a summary row a block

A consignment is what one matcher gets of a block of the log, in one row: whole buffers, so that the Java
processes in between move bytes and not events. What a matcher finds goes to the task that writes the block,
by subscription: two bytes a match. So the match log holds one block for each range of records, as if one task
had matched it, and nobody who reads it knows how many matchers there were.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema

from fieldfare.forwarding import LoadTable
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.files import IndexFileError
from fieldfare.matching.grouping import NONE_GIVEN_UP, MatchLists, Pairs, group_by_subscription
from fieldfare.partitioning import NO_SLICE
from fieldfare.pipeline.access_point import SpaceEvents, by_space, decoded, events_of, record_batch
from fieldfare.pipeline.dispatch import Consignment, Forwarding
from fieldfare.pipeline.matcher import visits
from fieldfare.pipeline.slices import Slices
from fieldfare.runtimes.spark.index_cache import IndexCache
from fieldfare.runtimes.spark.range_task import (
    BLOCK_EVENTS_MAX,
    HELD_SLOTS,
    SUMMARY,
    WORK,
    Block,
    RecordRange,
    RecordsError,
    counts_from,
    grouped,
)
from fieldfare.storage import open_event_log, open_match_log
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.event_log import Record
from fieldfare.storage.folder import DataFolder

FINDING_MATCHES = 1 << 22
"""A matcher sends its matches on when it has about so many: 8 MB. One window of events may have more."""

_BLOCK = ("partition", "start", "end")
"""Which block of the match log something is of."""
_CONSIGNMENTS = pa.schema(
    [
        pa.field("matcher", pa.int32()),
        pa.field("exit", pa.int32()),
        *(pa.field(name, pa.int64()) for name in _BLOCK),
        *(pa.field(name, pa.int64()) for name in ("oldest_ms", "manifest", "cut")),
        pa.field("space", pa.string()),
        *(
            pa.field(name, pa.binary())
            for name in ("counts", "stamps", "sizes", "events", "slices", "bounds", "positions", "payload")
        ),
    ]
)
"""Of no space: the block itself, with the number of events of each record. M passes it on."""
_FINDINGS = pa.schema(
    [
        pa.field("exit", pa.int32()),
        *(pa.field(name, pa.int64()) for name in (*_BLOCK, "oldest_ms")),
        *(pa.field(name, pa.binary()) for name in ("counts", "numbers", "starts", "ordinals", "given_up")),
        pa.field("work", pa.list_(WORK)),
    ]
)


@dataclass(frozen=True, slots=True)
class Spread:
    """How the events of a query are spread: the same for all its tasks.

    Attributes
    ----------
    matchers, exits : int
        How many tasks M and EP have.
    forwarding : str
        One of ``forwarding.POLICIES``.
    loads : mapping from space to LoadTable
        What was last reported of each slice.
    now_s : float
        On the clock of the reports.
    seed : int
        Of the policy `random`.
    """

    matchers: int
    exits: int
    forwarding: str = "adaptive"
    loads: Mapping[str, LoadTable] = field(default_factory=dict)
    now_s: float = 0.0
    seed: int = 0

    def of(self, space: str) -> Forwarding:
        """The same for one space."""
        return Forwarding(self.forwarding, self.loads.get(space), self.now_s, self.seed)


def spread_ranges(ranges: DataFrame, folder: DataFolder, spread: Spread) -> DataFrame:
    """Match ranges of a log at several matchers: a row of ``SUMMARY`` for each block."""
    sent = ranges.mapInArrow(Dispatch(folder, spread), from_arrow_schema(_CONSIGNMENTS))
    arrived = sent.repartitionById(spread.matchers, "matcher")
    found = arrived.mapInArrow(MatchConsignments(folder), from_arrow_schema(_FINDINGS))
    return found.repartitionById(spread.exits, "exit").mapInArrow(
        WriteBlocks(folder), from_arrow_schema(SUMMARY)
    )


_caches: dict[Path, IndexCache] = {}


def _cache_of(folder: DataFolder) -> IndexCache:
    """This process's indexes of a service; a slice is mapped when it is first searched here."""
    cache = _caches.get(folder.root)
    if cache is None:
        cache = _caches[folder.root] = IndexCache(folder.open_index(), every_slice=False)
    return cache


@dataclass(frozen=True, slots=True)
class Dispatch:
    """AP: ranges of the log in; the blocks that they make and a consignment for each matcher out."""

    folder: DataFolder
    spread: Spread

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        exit_number = context.partitionId() if context is not None else 0
        log = open_event_log(self.folder.log_url)
        matches = open_match_log(self.folder.matches_url)
        try:
            for batch in batches:
                for row in batch.to_pylist():
                    wanted = RecordRange(**row)
                    partition = log.partitions[wanted.partition]
                    match_log = matches.partition(wanted.partition)
                    at = wanted.start
                    if partition.end() < wanted.end:
                        raise RuntimeError(f"the log ends before record {wanted.end}, which is to be matched")
                    for records in grouped(partition.read(wanted.start, wanted.end), BLOCK_EVENTS_MAX):
                        match_log.fill(at, records[0].offset)
                        at = records[-1].offset + 1
                        yield from self._block(wanted, records, exit_number)
                    match_log.fill(at, wanted.end)  # no reader is to wait at a hole
        finally:
            log.close()

    def _block(
        self, wanted: RecordRange, records: list[Record], exit_number: int
    ) -> Iterator[pa.RecordBatch]:
        manifest = wanted.manifest
        start, end = records[0].offset, records[-1].offset + 1
        row: dict[str, Any] = {"exit": exit_number, "manifest": manifest}
        row |= {"partition": wanted.partition, "start": start, "end": end}
        counts = np.array(counts_from(start, records), np.int32)
        oldest_ms = min(record.appended_ms for record in records)
        yield _row(
            _CONSIGNMENTS, **row, matcher=start % self.spread.matchers, oldest_ms=oldest_ms, counts=counts
        )
        slices_of = _cache_of(self.folder).indexes(manifest, max(record.stamp for record in records))
        try:
            for events in by_space(record_batch(records)):
                slices = slices_of.get(events.space)
                if slices is not None:
                    for consigned in self._consign(events, slices, start):
                        yield _row(_CONSIGNMENTS, **row, space=events.space, **consigned)
        except Exception as error:
            raise RecordsError(wanted.partition, start, end, error) from error

    def _consign(self, events: SpaceEvents, slices: Slices, start: int) -> Iterator[dict[str, Any]]:
        paths = slices.partitioning.paths
        # Where events go whatever is in them, nobody here looks.
        pieces = decoded(events, paths) if paths else [(events, ColumnBatch(events.size, {}))]
        for some, columns in pieces:
            places = np.arange(some.size) if some.places is None else some.places
            for part in slices.dispatch(columns, self.spread.of(events.space), start):
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


def _row(schema: pa.Schema, **values: Any) -> pa.RecordBatch:
    """A row, in which buffers are not copied; what is not given is null."""
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
    # A copy is aligned, as kernels want it, and does not keep the other rows of its batch in memory.
    return np.frombuffer(row[name].as_buffer(), kind).copy()


def _rows(batches: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        for place in range(batch.num_rows):
            yield {name: batch.column(name)[place] for name in batch.schema.names}


@dataclass(frozen=True, slots=True)
class MatchConsignments:
    """M: consignments in, and what they match out."""

    folder: DataFolder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for row in _rows(batches):
            block = {name: row[name].as_py() for name in ("exit", *_BLOCK)}
            if row["space"].is_valid:
                try:
                    yield from self._match(row, block)
                except (OSError, IndexStoreError, IndexFileError):
                    raise  # a slice's file, or another cut
                except Exception as error:
                    number, start, end = (block[name] for name in _BLOCK)
                    raise RecordsError(number, start, end, error) from error
            else:
                counts = row["counts"].as_buffer()
                yield _row(_FINDINGS, **block, counts=counts, oldest_ms=row["oldest_ms"].as_py())

    def _match(self, row: dict[str, Any], block: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        started_s, searched_s = time.perf_counter(), 0.0
        matcher, space = row["matcher"].as_py(), row["space"].as_py()
        consignment, events = _received(row)
        slices = _cache_of(self.folder).slices(
            row["manifest"].as_py(),
            int(events.stamps.max()),
            space,
            consignment.slices,
            row["cut"].as_py(),
        )
        found, work = _Finding(block), []
        for visit in visits(events, slices, consignment) if slices is not None else ():
            visited_s = time.perf_counter()
            for pairs in visit.find():
                if found.held + len(pairs.pairs) > FINDING_MATCHES and found.held:
                    yield found.send([])
                found.add(pairs)
            seconds = time.perf_counter() - visited_s
            searched_s += seconds
            work.append(_work(matcher, space, visit.slice, visit.size, seconds, 0))
        lists = found.lists()
        besides_s = time.perf_counter() - started_s - searched_s
        sent = sum(
            row[name].as_buffer().size for name in ("stamps", "sizes", "events", "positions", "payload")
        )
        work.append(_work(matcher, space, NO_SLICE, events.size, besides_s, sent))
        yield found.send(work, lists)


def _received(row: dict[str, Any]) -> tuple[Consignment, SpaceEvents]:
    """What AP sent in a row."""
    slices, bounds = _array(row, "slices", np.int32).tolist(), _array(row, "bounds", np.int64).tolist()
    positions = _array(row, "positions", np.uint16).astype(np.int64)
    places = _array(row, "events", np.uint16).astype(np.int64)
    parts = [positions[bounds[i] : bounds[i + 1]] for i in range(len(slices))]
    consignment = Consignment(row["matcher"].as_py(), places, slices, parts)
    stamps, sizes = _array(row, "stamps", np.int64), _array(row, "sizes", np.int64)
    payload = memoryview(row["payload"].as_buffer())
    return consignment, events_of(row["space"].as_py(), stamps, sizes, payload)


def _work(
    matcher: int, space: str, number: int, events: int, seconds: float, sent_bytes: int
) -> dict[str, Any]:
    values = (matcher, space, number, events, seconds, sent_bytes)
    return dict(zip((field_.name for field_ in WORK), values, strict=True))


class _Finding:
    """What a matcher found of a block, until it is sent on."""

    def __init__(self, block: dict[str, Any]) -> None:
        self._block = block
        self._found: list[Pairs] = []
        self.held = 0

    def add(self, pairs: Pairs) -> None:
        self._found.append(pairs)
        self.held += len(pairs.pairs)

    def lists(self) -> MatchLists:
        """It by subscription."""
        return group_by_subscription(self._found)

    def send(self, work: list[dict[str, Any]], lists: MatchLists | None = None) -> pa.RecordBatch:
        """The row that says it, and what it was work."""
        lists = lists or self.lists()
        given_up = np.concatenate([NONE_GIVEN_UP, *(pairs.given_up for pairs in self._found)])
        self._found, self.held = [], 0
        return _row(_FINDINGS, **self._block, **lists._asdict(), given_up=given_up, work=work)


@dataclass(frozen=True, slots=True)
class WriteBlocks:
    """EP: what matchers found in; each block is written when everything of it is there."""

    folder: DataFolder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        log = open_match_log(self.folder.matches_url)
        scratch = self.folder.scratch
        blocks: dict[tuple[int, int], Block] = {}
        work: dict[tuple[int, int], list[dict[str, Any]]] = {}
        held = 0
        try:
            for row in _rows(batches):
                place = row["partition"].as_py(), row["start"].as_py()
                block = blocks.get(place) or blocks.setdefault(place, Block(place[1], scratch))
                work.setdefault(place, []).extend(row["work"].as_py() or [])
                if row["counts"].is_valid:
                    counts = _array(row, "counts", np.int32).tolist()
                    block.add_records(row["end"].as_py(), counts, row["oldest_ms"].as_py())
                if row["numbers"].is_valid:
                    before = block.held
                    block.add_lists(_lists(row), _array(row, "given_up", np.uint32))
                    held += block.held - before
                    while held > HELD_SLOTS:
                        largest = max(blocks.values(), key=lambda block: block.held)
                        held -= largest.held
                        largest.put_away()
            for place in sorted(blocks):
                started_s = time.perf_counter()
                block, (number, start) = blocks[place], place
                matches, size_bytes = block.write(log.partition(number), time.time_ns() / 1e6)
                yield pa.RecordBatch.from_pylist(
                    [
                        {
                            "partition": number,
                            "start": start,
                            "end": block.end,
                            "events": block.events,
                            "matches": matches,
                            "bytes": size_bytes,
                            "seconds": time.perf_counter() - started_s,
                            "work": work[place],
                        }
                    ],
                    schema=SUMMARY,
                )
                blocks[place] = Block(start, scratch)  # what was held is in the log now
        finally:
            for block in blocks.values():
                block.close()


def _lists(row: dict[str, Any]) -> MatchLists:
    return MatchLists(
        _array(row, "numbers", np.uint32), _array(row, "starts", np.int64), _array(row, "ordinals", np.uint16)
    )
