"""Following the log with slices at several matchers: their tasks stay connected, and the driver follows.

A shuffle has an end, so tasks that follow cannot use it. Instead, a job has a task for the matchers of each
place, which waits for ranges. The driver looks at the log (see `following.Follower`), and sends each range to
all tasks; they read it and match their part, and the driver writes the block. These are AP, M and EP as in a
batch (see `tasks`), without a job for each range. If a task is lost or too slow, batches take over.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from pyspark import RDD, SparkContext

from fieldfare.matching.files import IndexFileError
from fieldfare.partitioning import NO_SLICE
from fieldfare.runtimes.process.wanted import request_index
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.cluster import tasks_folder
from fieldfare.runtimes.spark.distributed.connections import (
    ANSWER_S,
    Content,
    MatcherConnections,
    MatchersLostError,
    serve,
)
from fieldfare.runtimes.spark.distributed.loads import planned_routing
from fieldfare.runtimes.spark.distributed.tasks import (
    FINDINGS,
    Dispatch,
    MatchConsignments,
    Opened,
    PinnedTask,
    Spread,
    open_matchers,
    write_blocks,
)
from fieldfare.runtimes.spark.follower_hub import CONNECT_S, DriverAddress, FollowerHub, Reach, link_to
from fieldfare.runtimes.spark.following import FollowEnd, Follower, FollowerLane, FollowJobs
from fieldfare.runtimes.spark.placed_rows import job_property, placed_rows
from fieldfare.runtimes.spark.range_task import RANGES, GroupSize, RecordRange
from fieldfare.storage import IndexSource, MatchPartition, open_event_log, open_index_store, open_match_log
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.folder import DataFolder

_log = logging.getLogger("fieldfare.pipeline")

CALL = "fieldfare.call"
"""The property of a job with its tasks' `MatcherCall`, as JSON."""
REPORT_S = 1.0
"""Interval at which the work of the matchers is reported, in seconds."""
ASSIGN_S = 0.1
"""Interval, in seconds, at which connected tasks learn that their matchers have changed."""
CONNECTED_S = 1.0
"""Seconds in which tasks have to be connected while records wait: there may be no slots for them."""
OPENED_S = ANSWER_S + 5.0
"""Maximum seconds for which `ConnectedJobs.open` waits; then a job of its own maps the slices."""
FOLLOW_S = 300.0
"""Seconds for which matchers stay connected. The next job's tasks start when these have ended; nothing is
matched meanwhile. Unlike those of `range_jobs`, tasks that cannot be told to end do not follow."""
FOLLOWING_MAX = 4
"""Maximum jobs at a time: one, and others that hang."""

Summaries = Sequence[Mapping[str, Any]]
"""Rows of ``SUMMARY``."""
Report = Callable[[int, Sequence[PinnedTask], Summaries, float, float], None]
"""Takes the work of matchers: the manifest's number, the tasks, their work on slices, its start and end."""


class MatcherCall(msgspec.Struct, frozen=True):
    """Where the tasks of a job connect, the name of the job, and the maximum seconds until they end."""

    driver: DriverAddress
    job: str
    seconds: float


class MatchOrder(msgspec.Struct, frozen=True):
    """An order to a task: match ranges for some matchers; without ranges, map their slices of a manifest."""

    matchers: tuple[int, ...]
    ranges: tuple[RecordRange, ...] = ()
    manifest: int = 0


@dataclass(frozen=True, slots=True)
class ServeMatchers:
    """The function of a task: serves matchers until it is ended; yields whether it was connected."""

    folder: DataFolder
    spread: Spread

    def __call__(self, number: int, rows: Iterable[str]) -> Iterator[bool]:
        for _ in rows:  # Spark ends a worker that has not read all rows of its task.
            pass
        call = msgspec.json.decode(job_property(CALL), type=MatcherCall)
        with closing(link_to(call.driver, f"{call.job}.{number}")) as link:
            connection = link.serve()
            if connection is not None:
                serve(connection, call.seconds, self.carry_out)
            yield connection is not None

    def carry_out(self, content: bytearray) -> Iterator[Content]:
        """Yield the parts of an answer to a `MatchOrder`: rows of ``FINDINGS``; one `Opened`, if it was."""
        order = msgspec.json.decode(content, type=MatchOrder)
        matchers = frozenset(order.matchers)
        if not order.ranges:
            # A range that needs the index will report the error.
            with suppress(IndexStoreError, IndexFileError, OSError):
                opened = open_matchers(self.folder, order.manifest, matchers, self.spread.matchers)
                yield msgspec.msgpack.encode(opened)
            return
        batch = pa.RecordBatch.from_pylist([asdict(each) for each in order.ranges], RANGES)
        read = Dispatch(self.folder, self.spread, matchers)
        for found in MatchConsignments(self.folder)(read(iter([batch]))):
            yield found.serialize()


class _Opening(NamedTuple):
    """A request to map slices of some matchers at a location; its result is None if that was not done."""

    location: str
    matchers: tuple[int, ...]
    manifest: int
    result: Future[list[Opened] | None]


class _ConnectedTasks:
    """The tasks of a job, and the matchers that each of them has now.

    Attributes
    ----------
    matchers : mapping
        The matchers of each task, by the task's name. Results do not depend on where slices are mapped.
    """

    def __init__(self, job: str, tasks: Sequence[PinnedTask]) -> None:
        self.tasks = tasks
        self._names: dict[str | None, list[str]] = {}
        names = [f"{job}.{number}" for number in range(len(tasks))]
        for name, task in zip(names, tasks, strict=True):
            self._names.setdefault(task.location, []).append(name)
        self.connections = MatcherConnections(names)
        self.matchers = dict(zip(names, (task.matchers for task in tasks), strict=True))
        self._assigned_s = time.monotonic()
        self._openings: SimpleQueue[_Opening] = SimpleQueue()

    def assign_if_due(self, tasks: Callable[[], Sequence[PinnedTask]]) -> bool:
        """Like `assign`, unless that was just done."""
        now_s = time.monotonic()
        if now_s - self._assigned_s < ASSIGN_S:
            return True
        self._assigned_s = now_s
        return self.assign(tasks())

    def assign(self, tasks: Sequence[PinnedTask]) -> bool:
        """Change the tasks' matchers; return False if there would have to be more tasks at a location.

        Or if there are none, while matchers cannot be connected. A task that is left without matchers gets no
        orders.
        """
        if tasks and _by_location(tasks) == _by_location(self.tasks):
            return True  # another division within a place would only map slices in other processes
        free = {location: iter(names) for location, names in self._names.items()}
        named = {next(free.get(task.location, iter(())), ""): task.matchers for task in tasks}
        if not named or "" in named:
            return False
        self.tasks, self.matchers = tasks, named
        return True

    def match(self, wanted: RecordRange) -> Iterator[pa.RecordBatch]:
        """Let the tasks match a range; yield rows of ``FINDINGS``."""
        orders = {name: MatchOrder(matchers, (wanted,)) for name, matchers in self.matchers.items()}
        for part in self._ask(orders):
            yield pa.ipc.read_record_batch(pa.py_buffer(part), FINDINGS)

    def open(self, manifest: int) -> None:
        """Let the tasks map the slices of their matchers."""
        for _ in self._ask({name: MatchOrder(each, (), manifest) for name, each in self.matchers.items()}):
            pass

    def request_opening(self, opening: _Opening) -> bool:
        """Let `carry_out_openings` map slices; return False if no task is at the location."""
        if opening.location not in self._names or not self.connections.is_open:
            return False
        self._openings.put(opening)
        if not self.connections.is_open:  # closed meanwhile: nothing carries it out
            self._drop_openings()
        return True

    def carry_out_openings(self) -> None:
        """Map the slices that were requested. Tasks do not match meanwhile."""
        while not self._openings.empty():
            try:
                opening = self._openings.get_nowait()
            except Empty:  # another thread has dropped it
                return
            try:
                order = MatchOrder(opening.matchers, manifest=opening.manifest)
                parts = self._ask(dict.fromkeys(self._names[opening.location], order))
                opening.result.set_result([msgspec.msgpack.decode(part, type=Opened) for part in parts])
            finally:
                if not opening.result.done():
                    opening.result.set_result(None)

    def _ask(self, orders: Mapping[str, MatchOrder]) -> Iterator[bytearray]:
        return self.connections.ask({name: msgspec.json.encode(order) for name, order in orders.items()})

    def close(self) -> None:
        """End the tasks."""
        self.connections.close()
        self._drop_openings()

    def _drop_openings(self) -> None:
        with suppress(Empty):
            while True:  # several threads may do this
                self._openings.get_nowait().result.set_result(None)


def _by_location(tasks: Iterable[PinnedTask]) -> dict[str | None, set[int]]:
    found: dict[str | None, set[int]] = {}
    for task in tasks:
        found.setdefault(task.location, set()).update(task.matchers)
    return found


class _NewestManifest:
    """The manifest with which the driver lets its matchers match."""

    def __init__(self, store: IndexSource, tasks: _ConnectedTasks) -> None:
        self._store, self._tasks = store, tasks
        self._number = self._revision = -1

    def covering(self, stamp: int) -> int | None:
        """Return the number of a manifest that covers a stamp; None if there is none yet."""
        if self._revision < stamp:
            newest = self._store.newest()
            if newest is None or newest.revision < stamp:
                return None
            self._number, self._revision = newest.number, newest.revision
        return self._number

    def open_newest(self) -> None:
        """Let the matchers map the newest manifest, if it is not the one that is used."""
        newest = self._store.newest()
        if newest is not None and newest.number != self._number:
            self._number, self._revision = newest.number, newest.revision
            self._tasks.open(newest.number)


class ConnectedMatcher:
    """Matches ranges at the connected tasks, and writes their blocks; see `following.FollowMatcher`.

    Attributes
    ----------
    matching_s : float
        CPU time of searching slices so far, in seconds, of all tasks.
    """

    def __init__(self, folder: DataFolder, tasks: _ConnectedTasks) -> None:
        self.log = open_event_log(folder.log_url)
        self._matches = open_match_log(folder.matches_url)
        self._store = open_index_store(folder.index_url)
        self._folder, self._tasks = folder, tasks
        self.opened = _NewestManifest(self._store, tasks)
        self._size = GroupSize()
        self.matching_s = 0.0
        self.manifest = 0
        self._summaries: list[dict[str, Any]] = []

    @property
    def events_per_s(self) -> int:
        """Number of events that are matched in a second, as far as the last ranges show."""
        return self._size.per_s

    def matched(self, partition: int) -> MatchPartition:
        """Return a partition of the match log."""
        return self._matches.partition(partition)

    def match(self, wanted: RecordRange, seen_ms: float | None = None) -> None:
        """Match a range and write its blocks.

        Raises
        ------
        MatchersLostError
            A task was lost, or could not match the range; some of its blocks may be written.
        """
        started_s = time.monotonic()
        routing = planned_routing(self._store, self._folder.slices, wanted.manifest)
        found = self._tasks.match(replace(wanted, routing=routing))
        events, self.manifest = 0, wanted.manifest
        for row in write_blocks(found, self._matches, self._folder.scratch, seen_ms):
            events += row["events"]
            # As for other tasks that follow, only searching counts as load: see `range_jobs._LoadReport`.
            row["work"] = [each for each in row["work"] if each["slice"] != NO_SLICE]
            self.matching_s += sum(each["cpu_s"] for each in row["work"])
            self._summaries.append(row)
        self._size.took(events, 1000 * (time.monotonic() - started_s))

    def taken_summaries(self) -> list[dict[str, Any]]:
        """Return the summaries of the blocks since the last call."""
        taken, self._summaries = self._summaries, []
        return taken

    def close(self) -> None:
        self.log.close()


class ConnectedJobs:
    """The jobs of connected matchers, from any thread; see `following.FollowJobs`.

    Parameters
    ----------
    context : SparkContext
    folder : DataFolder
    settings : MicroBatchSettings
    spread : Spread
    hub : FollowerHub
        Tasks reach the driver through it.
    tasks : callable
        Returns the tasks that should be connected now, which together have all matchers; none while none can.
    report : callable
        Called each second with the work of the matchers.
    """

    lanes_max = 1
    overlaps = False
    follow_s = FOLLOW_S

    def __init__(
        self,
        context: SparkContext,
        folder: DataFolder,
        settings: MicroBatchSettings,
        spread: Spread,
        hub: FollowerHub,
        tasks: Callable[[], Sequence[PinnedTask]],
        report: Report,
    ) -> None:
        self._context, self._folder, self._settings, self._hub = context, folder, settings, hub
        self._serve = ServeMatchers(
            tasks_folder(context, replace(folder, root=folder.root.resolve())), spread
        )
        self._tasks, self._report = tasks, report
        self._want_index = partial(request_index, folder.wanted)
        self._numbers = itertools.count()
        self._reach = Reach()
        self._present: list[_ConnectedTasks] = []
        self._prepared: tuple[tuple[str | None, ...], RDD[bool]] | None = None
        self._followers = ThreadPoolExecutor(FOLLOWING_MAX, thread_name_prefix="fieldfare-matchers")

    @property
    def follower(self) -> FollowJobs | None:
        """These jobs; None while matchers cannot be connected."""
        return self if not self._reach.rests and self._tasks() else None

    def follow(self, lanes: Sequence[FollowerLane]) -> FollowEnd:
        """Follow all partitions of the log, until the matchers are behind or lost, or the time is over."""
        tasks, address = tuple(self._tasks()), self._hub.address
        if not tasks:
            return FollowEnd(is_behind=True)
        lane, job = lanes[0], f"matchers-{next(self._numbers)}"
        connected = _ConnectedTasks(job, tasks)
        self._present.append(connected)
        following: Future[FollowEnd] | None = None
        try:
            with self._hub.receiving(connected.connections.add):
                following = self._followers.submit(self._follow, lane, connected)
                reached = self._run(tasks, MatcherCall(address, job, lane.seconds + CONNECT_S + ANSWER_S))
        finally:
            connected.close()
            self._present.remove(connected)
            if following is not None:
                wait([following])
            connected.connections.release()
        end = following.result()
        self._reach.count(address, is_reached=all(reached))
        return end._replace(is_behind=end.is_behind or self.follower is None)

    def _run(self, tasks: tuple[PinnedTask, ...], call: MatcherCall) -> list[bool]:
        """Run the job until its tasks are ended, or their time is over; return whether each was connected.

        Tasks that wait for slots are connected later, and end at once.
        """
        locations, prepared = tuple(task.location for task in tasks), self._prepared
        if prepared is None or prepared[0] != locations:
            rows = placed_rows(self._context, [("", location) for location in locations])
            prepared = self._prepared = locations, rows.mapPartitionsWithIndex(self._serve)
        self._context.setLocalProperty(CALL, msgspec.json.encode(call).decode())
        reached: list[bool] = prepared[1].collect()
        return reached

    def _follow(self, lane: FollowerLane, connected: _ConnectedTasks) -> FollowEnd:
        try:
            with closing(ConnectedMatcher(self._folder, connected)) as matcher:
                if not _are_connected(connected.connections, matcher):
                    return FollowEnd(is_behind=True)
                reports = _Reports(matcher, connected, self._report)

                def goes_on() -> bool:
                    reports.send_if_due()
                    connected.carry_out_openings()
                    return connected.connections.is_open and connected.assign_if_due(self._tasks)

                try:
                    return Follower(matcher, self._settings, self._want_index).follow(lane, goes_on)
                except MatchersLostError as lost:
                    _log.debug("batches take over from the connected matchers: %s", lost)
                    return FollowEnd(is_behind=True)
                finally:
                    reports.send()
        finally:
            connected.close()

    def open(self, location: str, matchers: tuple[int, ...], manifest: int) -> list[Opened] | None:
        """Map slices of matchers at the connected tasks of a location; None if that was not done there."""
        opening = _Opening(location, matchers, manifest, Future())
        for connected in list(self._present):
            if connected.request_opening(opening):
                with suppress(TimeoutError):
                    return opening.result.result(OPENED_S)
                return None
        for connected in list(self._present):
            if connected.connections.has_copies:  # one may have the only slot at the location, for minutes
                connected.connections.close()
        return None

    def end(self) -> None:
        """End the tasks of all jobs; does not wait."""
        for each in list(self._present):
            each.connections.close()

    def close(self) -> None:
        """End the tasks, and the threads and the hub."""
        self.end()
        self._followers.shutdown(wait=False)
        self._hub.close()


def _are_connected(connections: MatcherConnections, matcher: ConnectedMatcher) -> bool:
    """Wait until all tasks are connected; return whether they are. Close the connections if records wait."""
    until_s = time.monotonic() + CONNECT_S
    while not connections.wait(CONNECTED_S):
        if not connections.is_open or time.monotonic() > until_s:
            return False
        partitions = matcher.log.partitions
        if any(matcher.matched(each.number).end(each.start()) < each.end() for each in partitions):
            connections.close()
    return True


class _Reports:
    """Reports the work of connected matchers each second, and at their end."""

    def __init__(self, matcher: ConnectedMatcher, connected: _ConnectedTasks, report: Report) -> None:
        self._matcher, self._connected, self._report = matcher, connected, report
        self._since_s = time.monotonic()

    def send_if_due(self) -> None:
        """Report if it is due."""
        if time.monotonic() - self._since_s >= REPORT_S:
            self.send()

    def send(self) -> None:
        """Report the work since the last report."""
        since_s, self._since_s = self._since_s, time.monotonic()
        done = self._matcher.taken_summaries()
        self._report(self._matcher.manifest, self._connected.tasks, done, since_s, self._since_s)
