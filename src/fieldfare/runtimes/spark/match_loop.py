"""The driver's loop: Spark jobs that keep a service's log matched.

    keeps up      a following task, and every `FOLLOW_S` seconds the next one (see `following`)
    is behind     one batch after the other: as many tasks as there are cores match ranges of the log

Where slices lie at several matchers there are only batches. What is matched is read from the match log, and
nothing else remembers it: each time that the loop turns to batches it begins where the match log ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from pyspark import SparkContext

from fieldfare.runtimes.spark.batch_planner import BatchPlanner
from fieldfare.runtimes.spark.batches import MicroBatchSettings, Offset
from fieldfare.runtimes.spark.following import FollowerLane
from fieldfare.runtimes.spark.range_task import RecordRange
from fieldfare.storage.folder import DataFolder

GROUP = "fieldfare-matching"
FOLLOW_S = 30.0
"""Seconds for which a task follows the log."""
OVERLAP_S = 1.0
"""Seconds before its end at which the next following task is started."""
END_WAIT_S = 10.0


class Jobs(Protocol):
    """The Spark jobs of a service, for one way to hold its index."""

    can_follow: bool

    def match(self, tasks: Sequence[Sequence[RecordRange]], manifest: int) -> Sequence[object]:
        """Match the ranges of a batch, planned for this manifest, those of each task one after the other."""
        ...

    def follow(self, lanes: Sequence[FollowerLane]) -> bool:
        """Follow the log, a task for each lane; return whether one of them is behind."""
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
        self._context = context
        self._following = folder.following
        self._settings = settings
        self._until_end = until_end
        self._planner = BatchPlanner(folder, settings)
        self._error: BaseException | None = None
        self._stop, self._woken = threading.Event(), threading.Event()
        self._followers = ThreadPoolExecutor(2, thread_name_prefix="fieldfare-follower")
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
        self._following.unlink(missing_ok=True)
        self._context.cancelJobGroup(GROUP)
        self._thread.join(END_WAIT_S)
        self.jobs.close()

    def _run(self) -> None:
        try:
            self._context.setJobGroup(GROUP, "a batch", interruptOnCancel=False)
            follows = self.jobs.can_follow and not self._until_end
            if self._until_end:
                self._planner.stop_at_present_end()
            while not self._stop.is_set():
                self._match_batches(follows)
                if not follows:
                    break
                self._follow()
        except BaseException as error:
            if not self._stop.is_set():
                self._error = error
        finally:
            self._followers.shutdown(wait=False)
            self._planner.close()
            self.jobs.close()

    def _match_batches(self, follows: bool) -> None:
        """Match batches until the loop stops; where tasks can follow, until little waits."""
        start: Offset = {"ends": self._planner.first(), "manifest": 0}
        self.is_ready = True
        while not self._stop.is_set():
            if follows and not self._planner.is_behind(start["ends"]):
                return
            end = self._planner.next_end(start)
            if end["ends"] == start["ends"]:
                if self._until_end:
                    return
                continue
            manifest, routing = end["manifest"], self._planner.routing(end["manifest"])
            pieces = self._planner.tasks(start["ends"], end["ends"])
            tasks = [[RecordRange(*each, manifest, routing) for each in ranges] for ranges in pieces]
            self.jobs.match(tasks, manifest)
            start = end

    def _follow(self) -> None:
        """Keep the log followed until a task is behind; raise what makes one fail."""
        running: list[Future[bool]] = []
        next_s = 0.0
        self._following.touch()
        try:
            while not self._stop.is_set():
                self._woken.clear()
                ended = [each for each in running if each.done()]
                running = [each for each in running if each not in ended]
                are_behind = [each.result() for each in ended]
                if any(are_behind):
                    return
                now_s = time.monotonic()
                if not running or now_s >= next_s:
                    running.append(self._start_following(OVERLAP_S + 0.5 if running else 0.0))
                    next_s = now_s + FOLLOW_S - OVERLAP_S
                self._woken.wait(max(0.0, next_s - now_s))
        finally:
            self._following.unlink(missing_ok=True)
            if wait(running, END_WAIT_S).not_done:
                self._context.cancelJobGroup(GROUP)
                wait(running, END_WAIT_S)

    def _start_following(self, standby_s: float) -> Future[bool]:
        partitions = len(self._planner.log.partitions)
        tasks = min(partitions, self._settings.tasks)
        lanes = [
            FollowerLane(tuple(range(first, partitions, tasks)), FOLLOW_S, standby_s)
            for first in range(tasks)
        ]

        def run() -> bool:
            self._context.setJobGroup(GROUP, "following", interruptOnCancel=False)
            return self.jobs.follow(lanes)

        found = self._followers.submit(run)
        found.add_done_callback(lambda _: self._woken.set())
        return found
