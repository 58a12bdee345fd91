"""Matching a log, a Spark job for each batch: what the tasks report decides how the next is forwarded."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame, Row, SparkSession

from fieldfare.forwarding import LoadMeter, LoadTable, policy_of
from fieldfare.partitioning import NO_SLICE
from fieldfare.pipeline.access_point import by_space, decode, record_batch
from fieldfare.pipeline.manifest import Manifest
from fieldfare.runtimes.spark.query import matched_ranges
from fieldfare.runtimes.spark.range_task import grouped
from fieldfare.runtimes.spark.source import RANGES_SQL
from fieldfare.runtimes.spark.spread.tasks import Spread
from fieldfare.storage import open_event_log, open_index_store
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.folder import DataFolder
from fieldfare_lab.spark.recutting import Recutting

SAMPLE_EVENTS = 4_096
"""So many events of a batch are looked at to see whether the load has drifted."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchReport:
    """What matching a range of the log took.

    Attributes
    ----------
    events, matches : int
    size_bytes, sent_bytes : int
        Written to the match log; sent from AP to M.
    seconds : float
        From the start of the job to its end.
    busy_s : float64[matchers]
        How long each matcher worked; where nothing was sent, all tasks together as one.
    visits : mapping from (space, slice) to int
        How many events visited each slice; empty where nothing was sent.
    """

    events: int
    matches: int
    size_bytes: int
    sent_bytes: int
    seconds: float
    busy_s: NDArray[np.float64]
    visits: dict[tuple[str, int], int]


class LogBatches:
    """Matches ranges of a log of one partition with its newest manifest; every machine must see the folder.

    Parameters
    ----------
    session : SparkSession
    folder : DataFolder
        Of the log, the index and the match log.
    forwarding : str, optional
        One of ``forwarding.POLICIES``: events are sent to the matchers that hold their slices. None: they are
        matched where the log is read, in one task, which is the thing to do on one machine, where every
        worker can map all slices.
    seed : int
        Of the policy `random`.
    recutting : Recutting, optional
        Whose manifests these are: each batch is looked at, and when the load has drifted its space is cut
        anew before the next.

    Raises
    ------
    IndexStoreError
        There is no manifest.
    ValueError
        No policy has this name.
    """

    def __init__(
        self,
        session: SparkSession,
        folder: DataFolder,
        *,
        forwarding: str | None = "adaptive",
        seed: int = 0,
        recutting: Recutting | None = None,
    ) -> None:
        if forwarding is not None:
            policy_of(forwarding, [0], np.random.default_rng(seed))
        self._session = session
        self._folder = folder
        self._store = open_index_store(folder.index_url)
        self._forwarding = forwarding
        self._seed = seed
        self._recutting = recutting
        self.manifest = Manifest(-1, 0)
        self.loads: dict[str, LoadTable] = {}
        self._meters: dict[str, LoadMeter] = {}

    def match(self, start: int, end: int) -> BatchReport:
        """Match the records with ``start <= offset < end``, and learn from it."""
        self._take_newest()
        started_s = time.monotonic()
        ranges = self._ranges(start, end)
        spread = None
        if self._forwarding is not None:
            exits = self._session.sparkContext.defaultParallelism
            spread = Spread(self._matchers, exits, self._forwarding, self.loads, started_s, self._seed)
        rows = matched_ranges(ranges, self._folder, spread).collect()
        ended_s = time.monotonic()
        work = [done for row in rows for done in row.work]
        self._learn([done for done in work if done.slice != NO_SLICE], started_s, ended_s)
        report = self._report(rows, work, ended_s - started_s)
        if self._recutting is not None:
            self._recut(self._recutting, start, end)
        return report

    @property
    def _matchers(self) -> int:
        return 1 + max(
            (s.matcher for space in self.manifest.spaces.values() for s in space.slices), default=0
        )

    def _take_newest(self) -> None:
        newest = self._store.newest()
        if newest is None:
            raise IndexStoreError(f"{self._folder.index} has no index yet")
        if newest.number == self.manifest.number:
            return
        for name, space in newest.spaces.items():
            before = self.manifest.spaces.get(name)
            if before is None or before.partitioning != space.partitioning:
                self.loads[name] = LoadTable.of_sizes([part.size for part in space.slices])
                self._meters[name] = LoadMeter(time.monotonic())
        self.manifest = newest

    def _recut(self, recutting: Recutting, start: int, end: int) -> None:
        log = open_event_log(self._folder.log_url)
        try:
            records = next(grouped(log.partitions[0].read(start, end), SAMPLE_EVENTS), [])
            mine = [events for events in by_space(record_batch(records)) if events.space == recutting.space]
            if mine:
                recutting.observe(decode(mine[0], recutting.paths))
        finally:
            log.close()

    def _ranges(self, start: int, end: int) -> DataFrame:
        """The ranges of the tasks that read the log, one a core, of about the same bytes each."""
        log = open_event_log(self._folder.log_url)
        try:
            ranges = log.partitions[0].split(start, end, self._session.sparkContext.defaultParallelism, 0)
        finally:
            log.close()
        rows = [(0, first, last, self.manifest.number) for first, last in ranges]
        return self._session.sparkContext.parallelize(rows, len(rows)).toDF(RANGES_SQL)

    def _learn(self, work: list[Row], started_s: float, ended_s: float) -> None:
        for done in work:
            self._meters[done.space].arrived(done.slice, done.events, started_s)
        for done in work:
            self._meters[done.space].matched(done.slice, done.events, done.seconds, ended_s)
        for name, space in self.manifest.spaces.items():
            sizes = {number: part.size for number, part in enumerate(space.slices)}
            self.loads[name].take(self._meters[name].reports(sizes, ended_s))

    def _report(self, rows: list[Row], work: list[Row], seconds: float) -> BatchReport:
        busy_s = np.zeros(self._matchers if self._forwarding is not None else 1)
        visits: dict[tuple[str, int], int] = {}
        for done in work:
            busy_s[done.matcher] += done.seconds
            if done.slice != NO_SLICE:
                slice_ = (done.space, done.slice)
                visits[slice_] = visits.get(slice_, 0) + done.events
        if self._forwarding is None:
            busy_s[0] = sum(row.seconds for row in rows)
        return BatchReport(
            sum(row.events for row in rows),
            sum(row.matches for row in rows),
            sum(row.bytes for row in rows),
            sum(done.sent_bytes for done in work),
            seconds,
            busy_s,
            visits,
        )
