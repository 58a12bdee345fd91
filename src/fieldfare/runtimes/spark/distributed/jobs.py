"""The Spark jobs of a service with several matchers: a batch is shuffled twice (see `tasks`).

While the service keeps up, a task on this machine follows the log and searches all slices itself: matchers
would get their events by a shuffle, which has an end. On a cluster they are connected (see `following`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from fieldfare.runtimes.process.wanted import request_index
from fieldfare.runtimes.spark.batches import BATCHES_MAX, MicroBatchSettings
from fieldfare.runtimes.spark.cluster import slots_of, tasks_folder
from fieldfare.runtimes.spark.distributed.following import ConnectedJobs
from fieldfare.runtimes.spark.distributed.learning import Learner
from fieldfare.runtimes.spark.distributed.tasks import OpenSlices, PinnedTask, Spread, spread_ranges
from fieldfare.runtimes.spark.following import FollowJobs
from fieldfare.runtimes.spark.range_jobs import RangeJobs, hub_of
from fieldfare.runtimes.spark.range_task import RANGES_SQL, RecordRange
from fieldfare.runtimes.spark.warmup import index_opener
from fieldfare.storage.folder import DataFolder


class SpreadJobs:
    """Runs jobs on a service's log; see `match_loop.Jobs`.

    Parameters
    ----------
    learner : Learner, optional
        Learns from each batch.
    following : RangeJobs or ConnectedJobs, optional
        Their tasks follow the log; by default none does.
    """

    batches_max = BATCHES_MAX

    def __init__(
        self,
        context: SparkContext,
        folder: DataFolder,
        spread: Spread,
        learner: Learner | None = None,
        following: RangeJobs | ConnectedJobs | None = None,
    ) -> None:
        self._following = following
        self._session = SparkSession(context)
        self._folder = tasks_folder(context, replace(folder, root=folder.root.resolve()))
        self._spread = spread
        self._learner = learner
        self.open = index_opener(context, folder, spread.exits + 1, OpenSlices)

    @property
    def follower(self) -> FollowJobs | None:
        return None if self._following is None else self._following.follower

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
        if self._following is not None:
            self._following.close()


def connected_jobs(
    context: SparkContext, folder: DataFolder, batches: MicroBatchSettings, spread: Spread, learner: Learner
) -> ConnectedJobs | None:
    """Return the jobs of connected matchers on a cluster, in all of its slots; None if nothing can listen."""
    hub = hub_of(context.getConf(), partial(request_index, folder.wanted), None, on_cluster=True)
    if hub is None:
        return None

    def tasks() -> list[PinnedTask]:
        pieces = max(1, min(slots_of(context), spread.matchers))
        return [PinnedTask(tuple(range(first, spread.matchers, pieces))) for first in range(pieces)]

    def learn(
        manifest: int, _: object, summaries: Sequence[Mapping[str, Any]], started_s: float, ended_s: float
    ) -> None:
        if summaries:
            learner.learn(manifest, summaries, started_s, ended_s)

    return ConnectedJobs(context, folder, batches, spread, hub, tasks, learn)
