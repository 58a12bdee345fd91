"""Matching a log, batch by batch, with the subscriptions spread over matchers: the driver's side.

Every batch is one Spark job. The tasks of M measure each slice that they search; their reports become the
loads by which the next batch is forwarded.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame, Row, SparkSession

from fieldfare.forwarding import LoadMeter, LoadTable
from fieldfare.matching.grouping import Matches
from fieldfare.partitioning import NO_SLICE
from fieldfare.pipeline.access_point import by_space, decode, record_batch
from fieldfare.runtimes.spark.partitioned.recutting import Recutting
from fieldfare.runtimes.spark.partitioned.sliced_index import SlicedIndex
from fieldfare.runtimes.spark.partitioned.tasks import (
    CONSIGNMENTS_SQL,
    REPORTS_SQL,
    Assignment,
    Dispatch,
    MatchConsignments,
    MatchFused,
    policy_of,
)
from fieldfare.runtimes.spark.range_task import grouped
from fieldfare.storage import open_event_log, open_match_log

SAMPLE_EVENTS = 4_096
"""So many events of a batch are looked at to see whether the load has drifted."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchReport:
    """What matching a range of the log took.

    Attributes
    ----------
    events, matches : int
    size_bytes, sent_bytes : int
        Written to the match logs; sent from AP to M.
    seconds : float
        From the start of the job to its end.
    busy_s : float64[matchers]
        How long each matcher worked.
    visits : int64[slices]
        How many events visited each slice.
    """

    events: int
    matches: int
    size_bytes: int
    sent_bytes: int
    seconds: float
    busy_s: NDArray[np.float64]
    visits: NDArray[np.int64]


class LogMatcher:
    """Matches ranges of a log on a Spark cluster; every machine must see the log, the slices and the folder.

    Parameters
    ----------
    session : SparkSession
    log_url, space : str
        The log, and the space whose events are matched.
    sliced : SlicedIndex
        The subscriptions.
    folder : str or Path
        Where the match logs are written, one for each matcher: ``matcher-0000`` and so on.
    forwarding : str
        One of ``tasks.POLICIES``.
    fused : bool
        Match where the log is read, in one task, instead of sending events to their matchers: the thing to do
        on one machine, where every worker can map all slices.
    seed : int
        Of the policy ``random``.
    recutting : Recutting, optional
        Whose slices `sliced` are: each batch is looked at, and when the load has drifted the attribute space
        is cut anew before the next.
    """

    def __init__(
        self,
        session: SparkSession,
        log_url: str,
        space: str,
        sliced: SlicedIndex,
        folder: str | Path,
        *,
        forwarding: str = "adaptive",
        fused: bool = False,
        seed: int = 0,
        recutting: Recutting | None = None,
    ) -> None:
        policy_of(forwarding, sliced, [seed])
        self._session = session
        self._log_url = log_url
        self._space = space
        self._sliced = sliced
        self._folder = str(Path(folder).absolute())
        self._forwarding = forwarding
        self._fused = fused
        self._seed = seed
        self._recutting = recutting
        self._meter = LoadMeter(time.monotonic())
        self.loads: LoadTable = sliced.loads()

    def match(self, start: int, end: int) -> BatchReport:
        """Match the records with ``start <= offset < end``, and learn from it."""
        started_s = time.monotonic()
        assignment = Assignment(
            self._log_url, self._space, self._sliced, self._forwarding, self.loads, started_s, self._seed
        )
        ranges = self._ranges(start, end)
        if self._fused:
            reports = ranges.mapInArrow(MatchFused(assignment, self._folder), REPORTS_SQL)
        else:
            sent = ranges.mapInArrow(Dispatch(assignment), CONSIGNMENTS_SQL)
            arrived = sent.repartitionById(self._sliced.matcher_count, "matcher")
            matching = MatchConsignments(self._space, self._sliced, self._folder)
            reports = arrived.mapInArrow(matching, REPORTS_SQL)
        rows = reports.collect()
        ended_s = time.monotonic()
        self._learn(rows, started_s, ended_s)
        report = self._report(rows, ended_s - started_s)
        if self._recutting is not None:
            self._recut(self._recutting, start, end)
        return report

    @property
    def sliced(self) -> SlicedIndex:
        """The slices that the next batch will be matched against."""
        return self._sliced

    def _recut(self, recutting: Recutting, start: int, end: int) -> None:
        log = open_event_log(self._log_url)
        try:
            records = next(grouped(log.partitions[0].read(start, end), SAMPLE_EVENTS), [])
            mine = [events for events in by_space(record_batch(records)) if events.space == self._space]
            new = recutting.observe(decode(mine[0], recutting.paths)) if mine else None
        finally:
            log.close()
        if new is not None:
            self._sliced = new
            self.loads = new.loads()
            self._meter = LoadMeter(time.monotonic())

    def _ranges(self, start: int, end: int) -> DataFrame:
        """The ranges of the tasks of AP, one a core, of about the same bytes each."""
        log = open_event_log(self._log_url)
        try:
            ranges = log.partitions[0].split(start, end, self._session.sparkContext.defaultParallelism, 0)
        finally:
            log.close()
        rows = self._session.sparkContext.parallelize(ranges, len(ranges))
        return rows.toDF("start long, end long")

    def _learn(self, rows: list[Row], started_s: float, ended_s: float) -> None:
        searched = [row for row in rows if row.slice != NO_SLICE]
        for row in searched:
            self._meter.arrived(row.slice, row.events, started_s)
        for row in searched:
            self._meter.matched(row.slice, row.events, row.seconds, ended_s)
        sizes = dict(enumerate(self._sliced.sizes))
        self.loads.take(self._meter.reports(sizes, ended_s))

    def _report(self, rows: list[Row], seconds: float) -> BatchReport:
        busy_s = np.zeros(self._sliced.matcher_count)
        visits = np.zeros(len(self._sliced.sizes), np.int64)
        for row in rows:
            busy_s[row.matcher] += row.seconds
            if row.slice != NO_SLICE:
                visits[row.slice] += row.events
        whole = [row for row in rows if row.slice == NO_SLICE]
        return BatchReport(
            sum(row.events for row in whole),
            sum(row.matches for row in whole),
            sum(row.bytes for row in whole),
            sum(row.sent for row in whole),
            seconds,
            busy_s,
            visits,
        )


def read_matches(folder: str | Path, start: int, end: int) -> Matches:
    """The matches of records, event by event, from the match logs of all matchers.

    Blocks must begin at `start` and end at `end`, as they do for a range that was matched at once.
    """
    paths = sorted(Path(folder).absolute().glob("matcher-*"))
    logs = [open_match_log(path.as_uri()).partition(0) for path in paths]
    indptr, numbers, at = [np.zeros(1, np.int64)], [np.zeros(0, np.uint32)], start
    while at < end:
        blocks = [block for log in logs if (block := log.block_at(at)) is not None]
        if not blocks:
            raise ValueError(f"{folder} has no matches of record {at}")
        if len({(block.start, block.end) for block in blocks}) > 1 or blocks[0].start != at:
            raise ValueError(f"{folder}: the matchers' blocks at record {at} are not of the same records")
        events, subscriptions = [], []
        for block in blocks:
            found = block.by_event()
            events.append(np.repeat(np.arange(block.events), np.diff(found[0])))
            subscriptions.append(found[1])
        event, subscription = np.concatenate(events), np.concatenate(subscriptions)
        order = np.lexsort((subscription, event))
        numbers.append(subscription[order])
        counts = np.bincount(event, minlength=blocks[0].events)
        indptr.append(indptr[-1][-1] + np.cumsum(counts))
        at = blocks[0].end
    return Matches(np.concatenate(indptr), np.concatenate(numbers))
