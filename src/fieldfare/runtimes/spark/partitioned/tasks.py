"""What the tasks do that match a log with the subscriptions spread over matchers.

    ranges ─▶ Dispatch (AP) ─▶ consignments, shuffled by matcher ─▶ MatchConsignments (M) ─▶ reports
    ranges ─▶ MatchFused (AP and M in one task) ───────────────────────────────────────────▶ reports

A consignment is what one matcher gets of a block of the log, in one row: whole buffers, so that the Java
processes in between move bytes and not events. A matcher writes what it finds to a match log of its own, in
blocks that count the same events as everybody else's. These are organised by subscription, so there is
nothing to merge: no two matchers meet the same subscription with the same event.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldfare.forwarding import (
    Adaptive,
    Balanced,
    ForwardingPolicy,
    LoadTable,
    Random,
    ResponseTime,
    SubscriptionCount,
)
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.grouping import Pairs
from fieldfare.partitioning import NO_SLICE
from fieldfare.pipeline.access_point import SpaceEvents, by_space, decode, events_of, record_batch
from fieldfare.pipeline.dispatch import Consignment, dispatch
from fieldfare.pipeline.exit_point import Found
from fieldfare.runtimes.spark.partitioned.sliced_index import SlicedIndex, holders_of
from fieldfare.runtimes.spark.range_task import grouped
from fieldfare.storage import MatchPartition, NewMatchBlock, open_event_log, open_match_log
from fieldfare.storage.event_log import Record

POLICIES = ("adaptive", "response_time", "subscription_count", "random", "balanced")
BLOCK_EVENTS_MAX = 65_536
BLOCK_EVENTS_MIN = 4_096
BLOCK_WORK = BLOCK_EVENTS_MAX * 40_000
"""Events times subscriptions of a block, between these bounds: its matches are held in memory together."""
_NO_EVENTS = ColumnBatch(0, {})
_NOWHERE = np.zeros(0, np.int64)

CONSIGNMENTS_SQL = (
    "matcher int, start long, end long, counts binary, stamps binary, events binary,"
    " slices binary, bounds binary, positions binary, payload binary"
)
_CONSIGNMENTS = pa.schema(
    [
        pa.field("matcher", pa.int32()),
        pa.field("start", pa.int64()),
        pa.field("end", pa.int64()),
        *(
            pa.field(name, pa.binary())
            for name in ("counts", "stamps", "events", "slices", "bounds", "positions", "payload")
        ),
    ]
)
REPORTS_SQL = "matcher int, slice int, events long, matches long, bytes long, seconds double, sent long"
_REPORTS = pa.schema(
    [
        pa.field("matcher", pa.int32()),
        pa.field("slice", pa.int32()),
        *(pa.field(name, pa.int64()) for name in ("events", "matches", "bytes")),
        pa.field("seconds", pa.float64()),
        pa.field("sent", pa.int64()),
    ]
)
"""A row for each slice that was searched, and one without a slice for all else that a block cost: decoding,
dispatching, sorting, writing. `sent` is the bytes of the consignment."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a task of AP must know: the same for all tasks of a batch.

    Attributes
    ----------
    log_url, space : the log, and whose events are matched
    sliced : the index
    policy : one of ``POLICIES``
    loads : what was last reported of each slice
    now_s : on the clock of the reports
    seed : of the policy `random`
    """

    log_url: str
    space: str
    sliced: SlicedIndex
    policy: str
    loads: LoadTable
    now_s: float
    seed: int


def policy_of(name: str, sliced: SlicedIndex, seed: list[int]) -> ForwardingPolicy:
    """A forwarding policy by its name; ValueError if there is none."""
    match name:
        case "adaptive":
            return Adaptive()
        case "response_time":
            return ResponseTime()
        case "subscription_count":
            return SubscriptionCount()
        case "random":
            return Random(np.random.default_rng(seed))
        case "balanced":
            return Balanced(holders_of(sliced.partitioning))
    raise ValueError(f"no forwarding policy is called {name!r}: there are {', '.join(POLICIES)}")


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Records of the log that are matched together, and their events of the space, if there are any."""

    start: int
    end: int
    counts: NDArray[np.int32]
    events: SpaceEvents | None

    @property
    def places(self) -> NDArray[np.int64]:
        """Where each event of the space stands among all of the block."""
        if self.events is None:
            return np.zeros(0, np.int64)
        return np.arange(self.events.size) if self.events.places is None else self.events.places


def _blocks(assignment: Assignment, batches: Iterable[pa.RecordBatch]) -> Iterator[_Block]:
    """The blocks of the ranges that a task was given."""
    subscriptions = max(1, max(assignment.sliced.sizes))
    most_events = min(BLOCK_EVENTS_MAX, max(BLOCK_EVENTS_MIN, BLOCK_WORK // subscriptions))
    log = open_event_log(assignment.log_url)
    try:
        for batch in batches:
            for row in batch.to_pylist():
                for records in grouped(log.partitions[0].read(row["start"], row["end"]), most_events):
                    yield from _blocks_of(records, assignment.space)
    finally:
        log.close()


def _blocks_of(records: list[Record], space: str) -> Iterator[_Block]:
    """One block, or as many as it takes for the events of the space to be of one form in each."""
    mine = [events for events in by_space(record_batch(records)) if events.space == space]
    if len(mine) > 1:
        half = len(records) // 2
        yield from _blocks_of(records[:half], space)
        yield from _blocks_of(records[half:], space)
        return
    counts = np.array([record.count for record in records], np.int32)
    yield _Block(records[0].offset, records[-1].offset + 1, counts, mine[0] if mine else None)


def _divided(job: Assignment, block: _Block, columns: ColumnBatch) -> list[Consignment]:
    policy = policy_of(job.policy, job.sliced, [job.seed, block.start])
    return dispatch(columns, job.sliced.partitioning, policy, job.loads, job.now_s)


@dataclass(frozen=True, slots=True)
class Dispatch:
    """AP: ranges of the log in, a consignment for each matcher and block out."""

    assignment: Assignment

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        job = self.assignment
        for block in _blocks(job, batches):
            columns = _NO_EVENTS
            if block.events is not None:
                columns = decode(block.events, job.sliced.partitioning.paths)
            for part in _divided(job, block, columns):
                bounds = np.cumsum([0, *map(len, part.positions)]).astype(np.int64)
                positions = np.concatenate([_NOWHERE, *part.positions])
                yield _row(
                    _CONSIGNMENTS,
                    matcher=part.matcher,
                    start=block.start,
                    end=block.end,
                    counts=block.counts,
                    stamps=block.events.stamps[part.events] if block.events is not None else _NOWHERE,
                    events=block.places[part.events].astype(np.uint16),
                    slices=np.array(part.slices, np.int32),
                    bounds=bounds,
                    positions=positions.astype(np.uint16),
                    payload=block.events.payload_of(part.events) if block.events is not None else b"",
                )


def _row(schema: pa.Schema, **values: Any) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        value = values[field.name]
        if pa.types.is_binary(field.type):
            data = pa.py_buffer(value)
            bounds = pa.py_buffer(np.array([0, data.size], np.int32))
            arrays.append(pa.Array.from_buffers(field.type, 1, [None, bounds, data]))
        else:
            arrays.append(pa.array([value], field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Reporter:
    """Gathers the rows of ``_REPORTS`` of one matcher, and sees to the time that nothing else explains."""

    def __init__(self, matcher: int) -> None:
        self.matcher = matcher
        self.rows: list[dict[str, Any]] = []
        self._started_s = time.perf_counter()
        self._searched_s = 0.0

    def searched(self, number: int, events: int, matches: int, seconds: float) -> None:
        self._searched_s += seconds
        self._add(number, events, matches, 0, seconds, 0)

    def finish(self, events: int, matches: int, size_bytes: int, sent: int = 0) -> pa.RecordBatch:
        seconds = time.perf_counter() - self._started_s - self._searched_s
        self._add(NO_SLICE, events, matches, size_bytes, seconds, sent)
        return pa.RecordBatch.from_pylist(self.rows, schema=_REPORTS)

    def _add(self, *values: Any) -> None:
        self.rows.append(dict(zip(_REPORTS.names, (self.matcher, *values), strict=True)))


def search(
    sliced: SlicedIndex,
    columns: ColumnBatch,
    stamps: NDArray[np.int64],
    visits: Iterable[tuple[int, NDArray[np.int64]]],
    reporter: _Reporter,
) -> list[Pairs]:
    """Match events against the slices that they visit; events are counted as in `columns`."""
    found: list[Pairs] = []
    for number, positions in visits:
        started_s = time.perf_counter()
        if len(positions) == columns.size:
            pairs = sliced.index_of(number).collect(columns, stamps)
        else:
            taken = sliced.index_of(number).collect(columns.take(positions), stamps[positions])
            pairs = [part.moved(positions) for part in taken]
        found += pairs
        seconds = time.perf_counter() - started_s
        reporter.searched(number, len(positions), sum(len(part.pairs) for part in pairs), seconds)
    return found


@dataclass(frozen=True, slots=True)
class MatchConsignments:
    """M: consignments in; what they match is written, and reports go out."""

    space: str
    sliced: SlicedIndex
    folder: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for place in range(batch.num_rows):
                yield self._match({name: batch.column(name)[place] for name in batch.schema.names})

    def _match(self, row: dict[str, Any]) -> pa.RecordBatch:
        matcher, start, end = (row[name].as_py() for name in ("matcher", "start", "end"))
        reporter = _Reporter(matcher)
        kinds = {"counts": np.int32, "events": np.uint16, "slices": np.int32}
        kinds |= {"stamps": np.int64, "bounds": np.int64}
        arrays = {name: np.frombuffer(row[name].as_buffer(), kind) for name, kind in kinds.items()}
        places = arrays["events"].astype(np.int64)
        found: list[Pairs] = []
        if len(places):
            counts = arrays["counts"].astype(np.int64)
            stamps, sizes = arrays["stamps"], np.repeat(counts, counts)[places]
            events = events_of(self.space, stamps, sizes, memoryview(row["payload"].as_buffer()))
            numbers, bounds = arrays["slices"].tolist(), arrays["bounds"].tolist()
            positions = np.frombuffer(row["positions"].as_buffer(), np.uint16).astype(np.int64)
            visits = [(number, positions[bounds[i] : bounds[i + 1]]) for i, number in enumerate(numbers)]
            columns = decode(events, self.sliced.paths_of(numbers))
            found = search(self.sliced, columns, stamps, visits, reporter)
        found = [part.moved(places) for part in found]
        lists = Found(len(places), found).by_subscription()
        log = _match_log(self.folder, matcher)
        size_bytes = log.write(NewMatchBlock(start, end, arrays["counts"], lists))
        return reporter.finish(len(places), len(lists.ordinals), size_bytes, _size(row))


def _match_log(folder: str, matcher: int) -> MatchPartition:
    return open_match_log((Path(folder) / f"matcher-{matcher:04d}").as_uri()).partition(0)


def _size(row: dict[str, Any]) -> int:
    names = ("counts", "stamps", "events", "slices", "bounds", "positions", "payload")
    return sum(row[name].as_buffer().size for name in names)


@dataclass(frozen=True, slots=True)
class MatchFused:
    """AP and M in one task, where every worker can map all slices: nothing is shuffled."""

    assignment: Assignment
    folder: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        job = self.assignment
        log = _match_log(self.folder, 0)
        paths = job.sliced.paths_of(range(len(job.sliced.sizes)))
        for block in _blocks(job, batches):
            reporter = _Reporter(0)
            found: list[Pairs] = []
            if block.events is not None:
                columns = decode(block.events, paths)
                visits = [
                    (number, part.events[positions])
                    for part in _divided(job, block, columns)
                    for number, positions in zip(part.slices, part.positions, strict=True)
                ]
                found = search(job.sliced, columns, block.events.stamps, visits, reporter)
                if block.events.places is not None:
                    found = [part.moved(block.events.places) for part in found]
            size = int(block.counts.sum())
            lists = Found(size, found).by_subscription()
            written = log.write(NewMatchBlock(block.start, block.end, block.counts, lists))
            yield reporter.finish(size, len(lists.ordinals), written)
