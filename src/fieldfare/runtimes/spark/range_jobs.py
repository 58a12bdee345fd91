"""The Spark jobs of a service with one matcher: tasks that match ranges of the log, or follow it.

The jobs are plain RDDs without a shuffle, prepared once for each number of tasks; what a job's tasks do is a
property of the job. So a job takes Spark a few milliseconds, as nothing is analysed, planned or shipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from pyspark import RDD, SparkContext, TaskContext

from fieldfare.runtimes.spark.batches import BATCHES_MAX, MicroBatchSettings
from fieldfare.runtimes.spark.cluster import tasks_folder
from fieldfare.runtimes.spark.following import Follower, FollowerLane
from fieldfare.runtimes.spark.master import is_cluster
from fieldfare.runtimes.spark.range_task import OpenIndex, RecordRange, matcher_of
from fieldfare.runtimes.spark.warmup import index_opener
from fieldfare.storage.folder import DataFolder

ORDERS = "fieldfare.orders"
"""The property of a job that says what each of its tasks does: a `TaskOrder` for each, as JSON."""

FOLLOWING_WORKERS = 2
"""The Python workers of following tasks, which take turns. They stay alive, and batches use them, too."""


class TaskOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The work of one task: match ranges, one after the other, or follow a lane."""

    ranges: tuple[RecordRange, ...] = ()
    lane: FollowerLane | None = None


@dataclass(frozen=True, slots=True)
class CarryOut:
    """The function of a task: yields a row of ``SUMMARY`` for each range, or whether a lane is behind."""

    folder: DataFolder
    settings: MicroBatchSettings

    def __call__(self, number: int, _rows: Iterable[int]) -> Iterator[dict[str, Any] | bool]:
        context = TaskContext.get()
        orders = context.getLocalProperty(ORDERS) if context is not None else None
        if orders is None:
            raise RuntimeError(f"the job does not say what its tasks do: the property {ORDERS} is not set")
        order = msgspec.json.decode(orders, type=tuple[TaskOrder, ...])[number]
        matcher = matcher_of(self.folder)
        for each in order.ranges:
            yield matcher.match(each)
        if order.lane is not None:
            following = self.folder.following
            follower = Follower(self.folder, matcher, self.settings)
            is_behind = follower.follow(order.lane, lambda: os.path.exists(following))
            if is_behind:
                following.unlink(missing_ok=True)  # The job waits for its other lanes, which end with this.
            yield is_behind


class RangeJobs:
    """Runs jobs on a service's log, from any thread; see `match_loop.Jobs`.

    On a cluster no task follows the log: following needs room beside that for batches, and the driver tells
    its tasks through the data directory when to end.
    """

    batches_max = BATCHES_MAX

    def __init__(self, context: SparkContext, folder: DataFolder, settings: MicroBatchSettings) -> None:
        self._context = context
        self.follow = None if is_cluster(self._context.master) else self._follow
        seen = tasks_folder(context, replace(folder, root=folder.root.resolve()))
        self._work = CarryOut(seen, settings)
        self._prepared: dict[int, RDD[Any]] = {}
        others = settings.tasks if self.follow is None else max(0, settings.tasks - FOLLOWING_WORKERS)
        self.open = index_opener(context, folder, others, OpenIndex)

    def match(self, tasks: Sequence[Sequence[RecordRange]], manifest: int = 0) -> list[dict[str, Any]]:
        """Match ranges, those of each task one after the other; return rows of ``SUMMARY``."""
        return self._run([TaskOrder(tuple(ranges)) for ranges in tasks])

    def _follow(self, lanes: Sequence[FollowerLane]) -> bool:
        """Follow the log, a task for each lane; return whether one of them is behind."""
        return any(self._run([TaskOrder(lane=lane) for lane in lanes]))

    def close(self) -> None:
        """Nothing is kept open."""

    def _run(self, orders: Sequence[TaskOrder]) -> list[Any]:
        tasks = len(orders)
        if tasks not in self._prepared:
            rows = self._context.parallelize(range(tasks), tasks)
            self._prepared[tasks] = rows.mapPartitionsWithIndex(self._work)
        self._context.setLocalProperty(ORDERS, msgspec.json.encode(orders).decode())
        found: list[Any] = self._prepared[tasks].collect()
        return found
