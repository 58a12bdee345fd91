"""The Spark jobs of an elastic service: the matchers' tasks have preferred locations.

A shuffle's readers cannot have them, so each matcher reads the log itself: see `pinned`. While all slices are
at one executor, because the load is low, a task there follows the log.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pyspark import SparkContext

from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.cluster import tasks_folder
from fieldfare.runtimes.spark.distributed.learning import Learner, work_of
from fieldfare.runtimes.spark.distributed.tasks import Spread
from fieldfare.runtimes.spark.elastic.control import ElasticControl
from fieldfare.runtimes.spark.elastic.pinned import PinnedMatching, PinnedTask
from fieldfare.runtimes.spark.following import FollowJobs
from fieldfare.runtimes.spark.range_jobs import Place, RangeJobs
from fieldfare.runtimes.spark.range_task import RecordRange
from fieldfare.storage.folder import DataFolder


class PinnedJobs:
    """Runs jobs on a service's log; see `match_loop.Jobs`. The control is started and closed with them.

    Hosts are added and released by what their matchers do in batches, one after the other, since the work of
    a batch is divided by its time; and by what tasks take that follow the log.
    """

    batches_max = 1

    def __init__(
        self,
        context: SparkContext,
        folder: DataFolder,
        batches: MicroBatchSettings,
        spread: Spread,
        control: ElasticControl,
        learner: Learner,
    ) -> None:
        self._context = context
        self._folder = tasks_folder(context, replace(folder, root=folder.root.resolve()))
        self._spread = spread
        self._control = control
        self._learner = learner
        self._tasks: list[PinnedTask] = []
        self._matching: PinnedMatching | None = None
        self._ranges = RangeJobs(context, folder, batches, self._place, control.followed)
        self.open = control.open_all
        control.start(self._ranges.end)

    def _place(self) -> Place | None:
        executor = self._control.only_executor()
        return None if executor is None else Place.on_cluster(executor.location, executor.cores)

    @property
    def follower(self) -> FollowJobs | None:
        return self._ranges.follower

    def match(self, tasks: Sequence[Sequence[RecordRange]], manifest: int) -> list[dict[str, Any]]:
        """Match ranges; each matcher reads all of them, and as many tasks write as `tasks`."""
        started_s = time.monotonic()
        placed = self._control.tasks()
        if self._matching is None or placed != self._tasks:
            self._tasks = placed
            self._matching = PinnedMatching(self._context, self._folder, self._spread, placed)
        summaries = self._matching.match([each for ranges in tasks for each in ranges], len(tasks))
        ended_s = time.monotonic()
        self._control.worked(manifest, placed, work_of(summaries), ended_s - started_s)
        self._learner.learn(manifest, summaries, started_s, ended_s)
        return summaries

    def close(self) -> None:
        """End the control, and the tasks that follow."""
        self._control.close()
        self._ranges.close()
