"""The Spark jobs of a service with one matcher: tasks that match ranges of the log, or follow it.

The jobs are plain RDDs without a shuffle, prepared once for each number of tasks; what a job's tasks do is a
property of the job. So a job takes Spark a few milliseconds, as nothing is analysed, planned or shipped.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
from pyspark import RDD, SparkConf, SparkContext, TaskContext

from fieldfare.runtimes.process.wanted import request_index
from fieldfare.runtimes.spark.batches import ONE_STAGE_BATCHES_MAX, MicroBatchSettings
from fieldfare.runtimes.spark.cluster import slots_of, tasks_folder
from fieldfare.runtimes.spark.follower_hub import DriverAddress, DriverLink, FollowerHub, Reach, link_to
from fieldfare.runtimes.spark.following import FollowEnd, Follower, FollowerLane, FollowJobs
from fieldfare.runtimes.spark.master import is_cluster
from fieldfare.runtimes.spark.placed_rows import job_property, placed_rows
from fieldfare.runtimes.spark.range_task import OpenIndex, RangeMatcher, RecordRange, matcher_of
from fieldfare.runtimes.spark.warmup import index_opener
from fieldfare.storage.folder import DataFolder

_log = logging.getLogger("fieldfare.pipeline")

LOOPBACK = "127.0.0.1"

PORT = "spark.fieldfare.followers.port"
"""The property with the driver's port for tasks that follow the log, on a cluster; 0 for any free one."""

ORDERS = "fieldfare.orders"
"""The property of a job that says what each of its tasks does: a `TaskOrder` for each, as JSON."""

FOLLOWING_WORKERS = 2
"""The Python workers of following tasks, which take turns. They stay alive, and batches use them, too."""

FOLLOW_S = 30.0
"""Seconds for which tasks follow the log."""
SAY_TOOK_S = 1.0
"""Interval in seconds at which a task that follows reports its CPU time, where the driver asks for it."""


class Place(NamedTuple):
    """Where tasks follow the log.

    Attributes
    ----------
    location
        A location in Spark's notation; None: anywhere.
    lanes_max
        Maximum tasks that follow at a time.
    overlaps
        Whether there are slots for the next tasks beside these.
    """

    location: str | None
    lanes_max: int
    overlaps: bool = True

    @classmethod
    def on_cluster(cls, location: str | None, slots: int) -> Place:
        """Return a place with a number of slots, of which tasks that follow use a third, but one at least.

        The next ones overlap with them, and Spark starts copies of tasks that run long.
        """
        return cls(location, max(1, slots // 3), slots > 1)


class TaskOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The work of one task: match ranges, one after the other, or follow a lane."""

    ranges: tuple[RecordRange, ...] = ()
    lane: FollowerLane | None = None
    driver: DriverAddress | None = None
    name: str = ""
    says_took: bool = False


@dataclass(frozen=True, slots=True)
class CarryOut:
    """The function of a task: yields a row of ``SUMMARY`` for each range, or how following ended."""

    folder: DataFolder
    settings: MicroBatchSettings

    def __call__(self, number: int, rows: Iterable[str]) -> Iterator[dict[str, Any] | FollowEnd]:
        for _ in rows:  # Spark ends a worker that has not read all rows of its task.
            pass
        order = msgspec.json.decode(job_property(ORDERS), type=tuple[TaskOrder, ...])[number]
        matcher = matcher_of(self.folder)
        for each in order.ranges:
            yield matcher.match(each)
        if order.lane is not None and order.driver is not None:
            with closing(link_to(order.driver, order.name)) as link:
                yield self._follow(
                    matcher, order, order.lane, link, is_copy=TaskContext.get().attemptNumber() > 0
                )

    def _follow(
        self, matcher: RangeMatcher, order: TaskOrder, lane: FollowerLane, link: DriverLink, *, is_copy: bool
    ) -> FollowEnd:
        if is_copy:  # Spark has started it while the first one still runs, or after that has failed
            lane = msgspec.structs.replace(lane, standby_s=lane.seconds)
        report = _LoadReport(link, matcher)
        goes_on = report.goes_on if order.says_took else link.goes_on
        end = Follower(matcher, self.settings, link.want_index).follow(lane, goes_on, link.take)
        if order.says_took:
            report.send()
        # The job waits for its other lanes, and Spark would kill copies of this task.
        is_too_slow = end.is_behind or (end.is_slow and lane.tasks < lane.tasks_max)
        say = link.say_behind if is_too_slow else link.say_over
        say()
        return end._replace(has_reached=end.is_behind or link.is_open)


class _LoadReport:
    """Reports the CPU time of matching to the driver, each second and at the end of a task.

    A look at the log has a fixed cost (reading, a file for its block) many times that of matching one event,
    and shared by all events of a look: a process that is busy with looks is not near its limit, and batches
    of the same events take a small share of its time. So only matching counts.
    """

    def __init__(self, link: DriverLink, matcher: RangeMatcher) -> None:
        self._link, self._matcher = link, matcher
        self._sent_s, self._counted_s = time.monotonic(), matcher.matching_s

    def goes_on(self) -> bool:
        """Report if that is due; return whether the driver has not ended this task."""
        if time.monotonic() - self._sent_s >= SAY_TOOK_S:
            self.send()
        return self._link.goes_on()

    def send(self) -> None:
        """Report the time since the last report."""
        now_s, cpu_s = time.monotonic(), self._matcher.matching_s
        self._link.say_took(cpu_s - self._counted_s, now_s - self._sent_s)
        self._sent_s, self._counted_s = now_s, cpu_s


def hub_of(
    config: SparkConf,
    want_index: Callable[[int], None],
    took: Callable[[float, float], None] | None,
    *,
    on_cluster: bool,
) -> FollowerHub | None:
    """Return the hub of a driver: on a cluster tasks reach it at the address at which they reach Spark's.

    None if nothing can listen there.
    """
    if not on_cluster:
        return FollowerHub(LOOPBACK, LOOPBACK, 0, want_index, took)
    host = config.get("spark.driver.host") or LOOPBACK
    port = config.get(PORT) or "0"
    if not port.isascii() or not port.isdigit() or int(port) >= 1 << 16:
        raise ValueError(f"{PORT} must be a port, from 0 (any that is free) to 65535, not {port!r}")
    try:
        bind = config.get("spark.driver.bindAddress") or host
        return FollowerHub(host, bind, int(port), want_index, took)
    except OSError as error:
        _log.warning("no task follows the log, as nothing can listen at %s:%s for it: %s", host, port, error)
        return None


class RangeJobs:
    """Runs jobs on a service's log, from any thread; see `match_loop.Jobs` and `following.FollowJobs`.

    Parameters
    ----------
    context : SparkContext
    folder : DataFolder
    settings : MicroBatchSettings
    place : callable, optional
        Returns where tasks that start now follow, None while none can; call `end` when it changes. By default
        they follow anywhere.
    took : callable, optional
        Called each second with the CPU time of matching of a following task, in seconds, and in how many.
    """

    batches_max = ONE_STAGE_BATCHES_MAX
    follow_s = FOLLOW_S

    def __init__(
        self,
        context: SparkContext,
        folder: DataFolder,
        settings: MicroBatchSettings,
        place: Callable[[], Place | None] | None = None,
        took: Callable[[float, float], None] | None = None,
    ) -> None:
        self._context = context
        self._place, self._says_took = place or self._anywhere, took is not None
        on_cluster = is_cluster(context.master)
        self._on_cluster, self._tasks = on_cluster, settings.tasks
        seen = tasks_folder(context, replace(folder, root=folder.root.resolve()))
        self._work = CarryOut(seen, settings)
        self._prepared: dict[tuple[int, str | None], RDD[Any]] = {}
        self._numbers = itertools.count()
        others = settings.tasks if on_cluster else max(0, settings.tasks - FOLLOWING_WORKERS)
        self.open = index_opener(context, folder, others, OpenIndex)
        want_index = partial(request_index, folder.wanted)
        self.hub = hub_of(context.getConf(), want_index, took, on_cluster=on_cluster)
        self._reach = Reach()

    @property
    def follower(self) -> FollowJobs | None:
        if self.hub is None or self._reach.rests or self._place() is None:
            return None
        return self

    @property
    def lanes_max(self) -> int:
        """Maximum lanes at a time, for the slots that there are now."""
        place = self._place()
        return 1 if place is None else place.lanes_max

    @property
    def overlaps(self) -> bool:
        place = self._place()
        return place is None or place.overlaps

    def _anywhere(self) -> Place:
        if self._on_cluster:
            return Place.on_cluster(None, slots_of(self._context))
        return Place(None, self._tasks)  # `starting` adds slots for tasks that follow

    def match(self, tasks: Sequence[Sequence[RecordRange]], manifest: int = 0) -> list[dict[str, Any]]:
        """Match ranges, those of each task one after the other; return rows of ``SUMMARY``."""
        return self._run([TaskOrder(tuple(ranges)) for ranges in tasks])

    def follow(self, lanes: Sequence[FollowerLane]) -> FollowEnd:
        """Follow the log, a task for each lane, until one is behind or all have ended."""
        assert self.hub is not None
        address, job = self.hub.address, next(self._numbers)
        place = self._place()  # after the address: if it changes from now on, `end` ends these tasks, too
        if place is None:
            return FollowEnd(is_behind=True)
        orders = [
            TaskOrder((), lane, address, f"{job}.{number}", self._says_took)
            for number, lane in enumerate(lanes)
        ]
        ended: list[FollowEnd] = self._run(orders, place.location)
        end = FollowEnd.of_job(lanes, ended)
        self._reach.count(address, is_reached=end.has_reached)
        return end._replace(is_behind=end.is_behind or self.follower is None)

    def end(self) -> None:
        """Make all tasks return that follow the log."""
        if self.hub is not None:
            self.hub.end()

    def close(self) -> None:
        """Close the connections of tasks that follow."""
        if self.hub is not None:
            self.hub.close()

    def _run(self, orders: Sequence[TaskOrder], location: str | None = None) -> list[Any]:
        tasks = len(orders)
        if (tasks, location) not in self._prepared:
            rows = placed_rows(self._context, [("", location)] * tasks)
            self._prepared[tasks, location] = rows.mapPartitionsWithIndex(self._work)
        self._context.setLocalProperty(ORDERS, msgspec.json.encode(orders).decode())
        found: list[Any] = self._prepared[tasks, location].collect()
        return found
