"""The Spark jobs of an elastic service: the matchers' tasks have preferred locations.

A shuffle's readers cannot have them, so each matcher reads the log itself: see `pinned`. While the service
keeps up, a task follows the log if one executor has all slices; if several have them, their matchers are
connected (see `distributed.following`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark import SparkContext

from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.cluster import tasks_folder
from fieldfare.runtimes.spark.distributed.following import ConnectedJobs
from fieldfare.runtimes.spark.distributed.learning import Learner, work_of
from fieldfare.runtimes.spark.distributed.tasks import Opened, PinnedTask, Spread
from fieldfare.runtimes.spark.elastic.control import ElasticControl
from fieldfare.runtimes.spark.elastic.executors import Executor
from fieldfare.runtimes.spark.elastic.pinned import PinnedMatching
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
        self._connected: ConnectedJobs | None = None
        if self._ranges.hub is not None:
            self._connected = ConnectedJobs(
                context, folder, batches, spread, self._ranges.hub, self._connectable, self._count
            )
        self.open = control.open_all
        control.start(self._ranges.end, self._open)

    def _place(self) -> Place | None:
        executor = self._control.only_executor()
        return None if executor is None else Place.on_cluster(executor.location, executor.cores)

    def _connectable(self) -> list[PinnedTask]:
        """Return the tasks of matchers that should be connected."""
        tasks = [] if self._control.only_executor() is not None else self._control.tasks()
        return [] if any(task.location is None for task in tasks) else tasks

    def _open(self, executor: Executor, matchers: tuple[int, ...], manifest: int) -> list[Opened] | None:
        """Let connected tasks map slices: they have the executor's slots."""
        return (
            None if self._connected is None else self._connected.open(executor.location, matchers, manifest)
        )

    @property
    def follower(self) -> FollowJobs | None:
        connected = None if self._connected is None else self._connected.follower
        return self._ranges.follower or connected

    def match(self, tasks: Sequence[Sequence[RecordRange]], manifest: int) -> list[dict[str, Any]]:
        """Match ranges; each matcher reads all of them, and as many tasks write as `tasks`."""
        started_s = time.monotonic()
        placed = self._control.tasks()
        if self._matching is None or placed != self._tasks:
            self._tasks = placed
            self._matching = PinnedMatching(self._context, self._folder, self._spread, placed)
        summaries = self._matching.match([each for ranges in tasks for each in ranges], len(tasks))
        self._count(manifest, placed, summaries, started_s, time.monotonic())
        return summaries

    def _count(
        self,
        manifest: int,
        placed: Sequence[PinnedTask],
        summaries: Sequence[Mapping[str, Any]],
        started_s: float,
        ended_s: float,
    ) -> None:
        self._control.worked(manifest, placed, work_of(summaries), ended_s - started_s)
        if summaries:
            self._learner.learn(manifest, summaries, started_s, ended_s)

    def close(self) -> None:
        """End the control, and the tasks that follow."""
        self._control.close()
        if self._connected is not None:
            self._connected.close()
        self._ranges.close()
