"""Match a log, a Spark job for each batch: the tasks' reports determine how the next one is forwarded."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from fieldfare.forwarding import LoadTable, policy_of
from fieldfare.partitioning import NO_SLICE
from fieldfare.pipeline.manifest import Manifest
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.distributed.jobs import SpreadJobs
from fieldfare.runtimes.spark.distributed.learning import work_of
from fieldfare.runtimes.spark.distributed.loads import MeasuredLoads, Routing, encode_routing, routing_of
from fieldfare.runtimes.spark.distributed.tasks import Spread
from fieldfare.runtimes.spark.range_jobs import RangeJobs
from fieldfare.runtimes.spark.range_task import RecordRange
from fieldfare.storage import open_event_log, open_index_store
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.folder import DataFolder


@dataclass(frozen=True, slots=True, eq=False)
class BatchReport:
    """The costs of matching a range of the log.

    Attributes
    ----------
    events, matches : int
    size_bytes, sent_bytes : int
        Written to the match log; sent from AP to M.
    seconds : float
        From the start of the job to its end.
    busy_s : float64[matchers]
        Working seconds of each matcher; if nothing was sent, of all tasks together as one.
    visits : mapping from (space, slice) to int
        Number of events that visited each slice; empty if nothing was sent.
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
        The folder of the log, the index and the match log.
    forwarding : str, optional
        One of ``forwarding.POLICIES``: events are sent to the matchers that hold their slices. None: they are
        matched where the log is read, in one task, which is best on one machine, where every
        worker can map all slices.
    seed : int
        Seed of the policy `random`.

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
    ) -> None:
        if forwarding is not None:
            policy_of(forwarding, [0], np.random.default_rng(seed))
        self._session = session
        self._folder = folder
        self._store = open_index_store(folder.index_url)
        self._forwarding = forwarding
        self._seed = seed
        self.manifest = Manifest(-1, 0)
        self._measured = MeasuredLoads()
        folder.slices.unlink(missing_ok=True)  # of other batches in this folder
        self._range_jobs: RangeJobs | None = None

    @property
    def loads(self) -> dict[str, LoadTable]:
        """The known loads of the slices of each space."""
        return {name: each.table() for name, each in self._routing(0.0).spaces.items()}

    def match(self, start: int, end: int) -> BatchReport:
        """Match the records with ``start <= offset < end``, and learn from them."""
        self._take_newest()
        started_s = time.monotonic()
        rows = self._jobs().match(self._tasks(start, end, started_s), self.manifest.number)
        ended_s = time.monotonic()
        self._measured.learn(self.manifest, work_of(rows), started_s, ended_s)
        self._measured.save(self._folder.slices, self.manifest.number)
        return self._report(rows, ended_s - started_s)

    def _jobs(self) -> RangeJobs | SpreadJobs:
        tasks = self._session.sparkContext.defaultParallelism
        if self._forwarding is None:
            if self._range_jobs is None:
                settings = MicroBatchSettings(tasks=tasks)
                self._range_jobs = RangeJobs(self._session.sparkContext, self._folder, settings)
            return self._range_jobs
        spread = Spread(self._matchers, tasks, self._forwarding, self._seed)
        return SpreadJobs(self._session.sparkContext, self._folder, spread)

    def _routing(self, now_s: float) -> Routing:
        return routing_of(self.manifest, self._folder.slices, now_s)

    @property
    def _matchers(self) -> int:
        return self.manifest.matchers

    def _take_newest(self) -> None:
        newest = self._store.newest()
        if newest is None:
            raise IndexStoreError(f"{self._folder.index} has no index yet")
        self.manifest = newest

    def _tasks(self, start: int, end: int, now_s: float) -> list[list[RecordRange]]:
        """Return the ranges of the tasks that read the log, one per core, of about equal bytes."""
        log = open_event_log(self._folder.log_url)
        try:
            ranges = log.partitions[0].split(start, end, self._session.sparkContext.defaultParallelism, 0)
        finally:
            log.close()
        routing = encode_routing(self._routing(now_s))
        return [[RecordRange(0, first, last, self.manifest.number, routing)] for first, last in ranges]

    def _report(self, rows: Sequence[Mapping[str, Any]], seconds: float) -> BatchReport:
        work = work_of(rows)
        busy_s = np.zeros(self._matchers if self._forwarding is not None else 1)
        visits: dict[tuple[str, int], int] = {}
        for done in work:
            busy_s[done.matcher] += done.seconds
            if done.slice != NO_SLICE:
                slice_ = (done.space, done.slice)
                visits[slice_] = visits.get(slice_, 0) + done.events
        if self._forwarding is None:
            busy_s[0] = sum(row["seconds"] for row in rows)
        return BatchReport(
            sum(row["events"] for row in rows),
            sum(row["matches"] for row in rows),
            sum(row["bytes"] for row in rows),
            sum(done.sent_bytes for done in work),
            seconds,
            busy_s,
            visits,
        )
