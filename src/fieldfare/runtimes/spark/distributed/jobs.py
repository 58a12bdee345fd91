"""The Spark jobs of a service with several matchers: a batch is shuffled twice (see `tasks`).

While the service keeps up, a task that follows the log searches all slices itself: matchers would get their
events by a shuffle, which has an end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from fieldfare.runtimes.spark.batches import BATCHES_MAX
from fieldfare.runtimes.spark.cluster import tasks_folder
from fieldfare.runtimes.spark.distributed.learning import Learner
from fieldfare.runtimes.spark.distributed.tasks import OpenSlices, Spread, spread_ranges
from fieldfare.runtimes.spark.following import FollowJobs
from fieldfare.runtimes.spark.range_jobs import RangeJobs
from fieldfare.runtimes.spark.range_task import RANGES_SQL, RecordRange
from fieldfare.runtimes.spark.warmup import index_opener
from fieldfare.storage.folder import DataFolder


class SpreadJobs:
    """Runs jobs on a service's log; see `match_loop.Jobs`.

    Parameters
    ----------
    learner : Learner, optional
        Learns from each batch.
    ranges : RangeJobs, optional
        Its tasks follow the log; by default none does.
    """

    batches_max = BATCHES_MAX

    def __init__(
        self,
        context: SparkContext,
        folder: DataFolder,
        spread: Spread,
        learner: Learner | None = None,
        ranges: RangeJobs | None = None,
    ) -> None:
        self._ranges = ranges
        self._session = SparkSession(context)
        self._folder = tasks_folder(context, replace(folder, root=folder.root.resolve()))
        self._spread = spread
        self._learner = learner
        self.open = index_opener(context, folder, spread.exits + 1, OpenSlices)

    @property
    def follower(self) -> FollowJobs | None:
        return None if self._ranges is None else self._ranges.follower

    def match(self, tasks: Sequence[Sequence[RecordRange]], manifest: int) -> list[dict[str, Any]]:
        """Match ranges, those of each task one after the other; return rows of ``SUMMARY``."""
        started_s = time.monotonic()
        rows = [astuple(each) for ranges in tasks for each in ranges]
        numbered = self._session.sparkContext.parallelize(rows, len(tasks))
        ranges = self._session.createDataFrame(numbered, RANGES_SQL)
        found = spread_ranges(ranges, self._folder, self._spread).collect()
        summaries = [row.asDict(recursive=True) for row in found]
        if self._learner is not None:
            self._learner.learn(manifest, summaries, started_s, time.monotonic())
        return summaries

    def close(self) -> None:
        """Close what the tasks that follow need."""
        if self._ranges is not None:
            self._ranges.close()
