"""The driver's loop: Spark jobs that keep a service's log matched.

    keeps up      following tasks, and after some time the next ones (see `following`): a task for each
                  lane of partitions, or several while matching takes long
    is behind     batches, two at a time: as many tasks as there are cores match ranges of the log

While no task can follow (see `range_jobs`) there are only batches. The match log alone says how far the
log is matched: each time that the loop turns to batches it begins where the match log ends.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyspark import SparkContext

from fieldfare.model import Offsets
from fieldfare.runtimes.process.heartbeat import read_beat
from fieldfare.runtimes.spark.batch_planner import BatchPlanner
from fieldfare.runtimes.spark.batches import BATCHES_MAX, MicroBatchSettings, Offset
from fieldfare.runtimes.spark.following import (
    LOAD_MIN_S,
    SHARED_FROM,
    FollowEnd,
    FollowerLane,
    FollowJobs,
)
from fieldfare.runtimes.spark.range_task import RecordRange
from fieldfare.storage.event_log import ends_of
from fieldfare.storage.folder import DataFolder

GROUP = "fieldfare-matching"
OVERLAP_S = 1.0
"""Seconds before its end at which the next following task is started."""
STOPPED_S = 5.0
"""Seconds without a match, while records wait, after which the next following task is started: the present
one may hang."""
BATCHES_AFTER_S = 12.0
"""Seconds without a match, while records wait, after which batches take the place of following tasks: there
may be no room for the next ones."""
LATE_S = 30.0
"""Seconds after its end at which a following task is cancelled."""
LOOK_S = 0.5
END_WAIT_S = 10.0
FOLLOWING_JOBS_MAX = 4
"""Maximum following jobs at a time: two that overlap, and others that hang."""


@dataclass(frozen=True, slots=True)
class Activity:
    """The work of the loop at a moment.

    Attributes
    ----------
    kind
        ``waits`` for events or for the index, ``follows`` the log, or ``matches`` a batch.
    tasks
        Number of tasks that do it.
    records
        Number of records of the batch.
    """

    kind: str = "waits"
    tasks: int = 0
    records: int = 0


class Jobs(Protocol):
    """The Spark jobs of a service, for one way to hold its index."""

    batches_max: int
    """Number of batches that may be matched at the same time, at most `BATCHES_MAX`."""

    def match(self, tasks: Sequence[Sequence[RecordRange]], manifest: int) -> Sequence[object]:
        """Match the ranges of a batch, planned for this manifest, those of each task one after the other.

        Called from any thread.
        """
        ...

    @property
    def follower(self) -> FollowJobs | None:
        """The jobs that follow the log; None while no task can."""
        ...

    def open(self, manifest: int) -> None:
        """Keep the Python workers alive, with a manifest's index mapped; 0 for no manifest."""
        ...

    def close(self) -> None: ...


class MatchLoop:
    """Matches a service's log in a thread, from its creation until `stop` or a failure.

    Parameters
    ----------
    context : SparkContext
    folder : DataFolder
    settings : MicroBatchSettings
    jobs : Jobs
        Closed with the loop.
    until_end : bool
        Stop when everything that is in the log now is matched, instead of waiting for more.

    Attributes
    ----------
    is_ready : bool
        Whether the loop knows where to begin, so that events are matched as they come.
    activity : Activity
        The present activity.
    """

    def __init__(
        self,
        context: SparkContext,
        folder: DataFolder,
        settings: MicroBatchSettings,
        jobs: Jobs,
        *,
        until_end: bool = False,
    ) -> None:
        self.jobs = jobs
        self.is_ready = False
        self.activity = Activity()
        self._context = context
        self._heartbeat = folder.heartbeat
        self._settings = settings
        self._until_end = until_end
        self._planner = BatchPlanner(folder, settings)
        self._error: BaseException | None = None
        self._started = 0
        self._makes_room = self._shares_lanes = False
        self._batches = ThreadPoolExecutor(BATCHES_MAX, thread_name_prefix="fieldfare-batch")
        self._stop, self._woken = threading.Event(), threading.Event()
        self._followers = ThreadPoolExecutor(FOLLOWING_JOBS_MAX, thread_name_prefix="fieldfare-follower")
        self._thread = threading.Thread(target=self._run, name="fieldfare-matching", daemon=True)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        return self._thread.is_alive() and self._error is None

    def exception(self) -> BaseException | None:
        """Return why the loop has ended, if it failed."""
        return self._error

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the loop has ended; return whether it has. Raise what made it fail."""
        self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Stop; a batch under way is cancelled, and waited for at most `END_WAIT_S` seconds."""
        self._stop.set()
        self._woken.set()
        self._context.cancelJobGroup(GROUP)
        self._thread.join(END_WAIT_S)
        self.jobs.close()

    @contextmanager
    def room(self) -> Iterator[None]:
        """Let no task follow meanwhile if they use all slots: a job of others would wait until they end."""
        follower = self.jobs.follower
        if follower is None or follower.overlaps:
            yield
            return
        self._makes_room = True
        self._woken.set()
        try:
            yield
        finally:
            self._makes_room = False
            self._woken.set()

    def _run(self) -> None:
        try:
            with ExitStack() as closing:  # before the error is seen: the next loop may need the same port
                closing.callback(self.jobs.close)
                closing.callback(self._planner.close)
                for pool in (self._followers, self._batches):
                    closing.callback(pool.shutdown, wait=False)
                if self._until_end:
                    self._planner.stop_at_present_end()
                needs_batch = False
                while (follower := self._match_batches(needs_batch=needs_batch)) is not None:
                    self._keep_followed(follower)
                    needs_batch = True
        except BaseException as error:
            if not self._stop.is_set():
                self._error = error

    def _match_batches(self, *, needs_batch: bool) -> FollowJobs | None:
        """Match batches until little waits and tasks can follow; return their jobs, None if the loop ends.

        If those were behind or stuck, what waits is matched by a batch, however little it is: they know how
        long it takes.
        """
        follower: FollowJobs | None = None
        start: Offset = {"ends": self._planner.first(), "manifest": 0}
        under_way: deque[Future[None]] = deque()
        self.is_ready = True
        try:
            while not self._stop.is_set():
                most = 1 if self._planner.has_suspects else self.jobs.batches_max
                while under_way and (len(under_way) >= most or under_way[0].done()):
                    under_way.popleft().result()
                follower = None if self._until_end or needs_batch else self.jobs.follower
                if follower is not None and not self._planner.is_behind(start["ends"]):
                    break
                follower = None
                needs_batch = False
                if not under_way:
                    self.activity = Activity()
                end = self._planner.next_end(start)
                if end["ends"] != start["ends"]:
                    under_way.append(self._start_batch(start, end))
                    start = end
                elif self._until_end:
                    break
            while under_way:
                under_way.popleft().result()
            return follower
        finally:
            if under_way:  # one before them has failed: they will be matched again
                self._context.cancelJobGroup(GROUP)
                wait(under_way, END_WAIT_S)

    def _start_batch(self, start: Offset, end: Offset) -> Future[None]:
        manifest, routing = end["manifest"], self._planner.routing(end["manifest"])
        pieces = self._planner.tasks(start["ends"], end["ends"])
        tasks = [[RecordRange(*each, manifest, routing) for each in ranges] for ranges in pieces]
        self.activity = Activity("matches", len(tasks), sum(end["ends"]) - sum(start["ends"]))

        def run() -> None:
            self._context.setJobGroup(GROUP, "a batch", interruptOnCancel=False)
            self.jobs.match(tasks, manifest)

        return self._batches.submit(run)

    def _keep_followed(self, follower: FollowJobs) -> None:
        """Keep the log followed until a task is behind; raise what makes one fail.

        Or until nothing was matched for `BATCHES_AFTER_S`, though records wait; or until there has to be room
        for a job of others: batches wait for slots, and are then matched beside it.
        """
        running: list[_Following] = []
        progress = _Progress(self._planner, self._heartbeat)
        try:
            while not self._stop.is_set():
                self._woken.clear()
                ended = [each for each in running if each.future.done()]
                running = [each for each in running if each not in ended]
                are_behind = [self._end_of(follower, each) for each in ended]
                if any(are_behind) or (self._makes_room and not running):
                    return
                if self._makes_room:  # at each look: tasks that were just starting may have missed it
                    follower.end()
                now_s = time.monotonic()
                for each in running:
                    each.cancel_if_late(self._context, now_s)
                next_s = max((each.ends_s for each in running), default=now_s) - OVERLAP_S
                stopped_s = progress.stopped_s(now_s)
                if stopped_s > BATCHES_AFTER_S:
                    return
                # Tasks that share lanes use a slot and a process for each core.
                is_due = now_s >= next_s and not self._shares_lanes
                is_hung = len(running) == 1 and stopped_s > STOPPED_S
                # Where they do not overlap, the next ones would wait for slots longer each time, and be
                # cancelled for it; or both would match all records until the first one's time is over.
                if not running or (follower.overlaps and (is_due or is_hung)):
                    standby_s = OVERLAP_S + 0.5 if running else 0.0
                    running.append(self._start_following(follower, now_s, standby_s))
                self._woken.wait(LOOK_S)
        finally:
            self._end_following(follower, running)

    def _start_following(self, follower: FollowJobs, now_s: float, standby_s: float) -> _Following:
        partitions, each_max = len(self._planner.log.partitions), self._tasks_of_lane(follower)
        self._shares_lanes = self._shares_lanes and each_max > 1  # there may be fewer slots than before
        lanes, each = min(partitions, follower.lanes_max), each_max if self._shares_lanes else 1
        tasks = [
            FollowerLane(tuple(range(first, partitions, lanes)), follower.follow_s, standby_s, each, each_max)
            for first in range(lanes)
            for _ in range(each)
        ]
        self.activity = Activity("follows", len(tasks))
        self._started += 1
        group = f"{GROUP}-{self._started}"

        def run() -> FollowEnd:
            self._context.setJobGroup(group, "following", interruptOnCancel=False)
            return follower.follow(tasks)

        future = self._followers.submit(run)
        future.add_done_callback(lambda _: self._woken.set())
        return _Following(future, group, now_s + follower.follow_s, shares_lanes=self._shares_lanes)

    def _tasks_of_lane(self, follower: FollowJobs) -> int:
        """Return how many tasks there can be for each lane."""
        return max(1, follower.lanes_max // len(self._planner.log.partitions))

    def _end_of(self, follower: FollowJobs, job: _Following) -> bool:
        """Note the load of a job that has ended; return whether its tasks were behind.

        Of two jobs that overlap, the second one's load says little: its tasks stood by.
        """
        end = job.result()
        if not job.shares_lanes:
            self._shares_lanes |= end.is_slow and self._tasks_of_lane(follower) > 1
        elif end.seconds >= LOAD_MIN_S:
            self._shares_lanes = end.matching_s >= SHARED_FROM * end.seconds
        return end.is_behind

    def _end_following(self, follower: FollowJobs, running: Sequence[_Following]) -> None:
        """End the tasks that follow the log, by force those that do not soon."""
        follower.end()
        futures = [each.future for each in running]
        if wait(futures, END_WAIT_S / 2).not_done:
            for each in running:
                self._context.cancelJobGroup(each.group)
            wait(futures, END_WAIT_S / 2)


class _Following:
    """A job whose tasks follow the log, each alone, or several that share a lane."""

    def __init__(self, future: Future[FollowEnd], group: str, ends_s: float, *, shares_lanes: bool) -> None:
        self.future = future
        self.group = group
        self.ends_s = ends_s
        self.shares_lanes = shares_lanes
        self._is_cancelled = False

    def cancel_if_late(self, context: SparkContext, now_s: float) -> None:
        """Cancel the job if its time was over long ago: a process of it hangs."""
        if not self._is_cancelled and now_s > self.ends_s + LATE_S:
            self._is_cancelled = True
            context.cancelJobGroup(self.group)

    def result(self) -> FollowEnd:
        """Return how the job ended; raise what made it fail, unless it was cancelled."""
        try:
            return self.future.result()
        except Exception:
            if not self._is_cancelled:
                raise
            return FollowEnd(is_behind=False)


class _Progress:
    """Notices that records of a partition wait and are not matched.

    It looks from the end of the durable matches on, as the heartbeat reports it: a block that could not be
    synced was removed, and leaves a hole in front of later ones.
    """

    def __init__(self, planner: BatchPlanner, heartbeat: Path) -> None:
        self._planner = planner
        self._heartbeat = heartbeat
        self._tips: Offsets = planner.first()
        self._since_s = [time.monotonic()] * len(self._tips)
        self._stamps: list[int | None] = [None] * len(self._tips)
        """The last stamp of each partition when a record was first seen to wait at its tip."""

    def stopped_s(self, now_s: float) -> float:
        """Return for how many seconds a partition was not matched, though the index covers what waits."""
        tips = self._planner.tips(self._durable() or self._tips)
        ends = ends_of(self._planner.log)
        covered = self._planner.covered() if any(map(int.__lt__, tips, ends)) else -1
        for number, (before, tip, end) in enumerate(zip(self._tips, tips, ends, strict=True)):
            if tip != before or tip >= end:
                self._stamps[number] = None
            if tip < end and self._stamps[number] is None:
                # Later records may need a newer index each time that this looks.
                self._stamps[number] = self._planner.log.partitions[number].last_stamp()
            stamp = self._stamps[number]
            if tip != before or stamp is None or stamp > covered:
                self._since_s[number] = now_s
        self._tips = tips
        return now_s - min(self._since_s)

    def _durable(self) -> Offsets | None:
        """Return the end of the durable matches of each partition; None if the heartbeat does not say it."""
        said = read_beat(self._heartbeat).get("matched")
        if not isinstance(said, list) or len(said) != len(self._tips):
            return None
        return tuple(said) if all(isinstance(end, int) for end in said) else None
