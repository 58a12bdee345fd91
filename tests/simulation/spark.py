"""The driver's process: its own loop, and in the place of Spark jobs of tasks, which need slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from fieldfare.runtimes.process.wanted import request_index
from fieldfare.runtimes.spark import heartbeat, match_loop, range_task, recovery, replay_planner, replay_task
from fieldfare.runtimes.spark.batches import BATCHES_MAX, MicroBatchSettings
from fieldfare.runtimes.spark.following import FollowEnd, Follower, FollowerLane, TakenStripes
from fieldfare.runtimes.spark.range_jobs import Place
from fieldfare.storage.errors import StorageError

from .steps import Event, Now, Process, Semaphore, Time, pause

if TYPE_CHECKING:
    from .machine import Machine

BATCHES = MicroBatchSettings(
    max_bytes=600, max_events=7, wait_ms=1_000, poll_ms=300, split_bytes=150, tasks=2
)
REPLAY_LOOK_S = 0.6
BEAT_S = 1.0
TASK_DIED = "Python worker exited unexpectedly"
SLOTS = (1, 2, 9, 9)
"""Numbers of tasks that run at a time, each as probable. With one slot no two jobs overlap; with nine, tasks
may share a partition."""
SLOW_MATCHES, SLOW_MATCH_S = 0.2, 4.0
"""The share of ranges that take long to match, and the maximum time in seconds."""


class TaskError(Exception):
    """A task has failed, as Spark tells it."""


class Task:
    """A fiber that waits for a slot, and then does one piece of a job.

    Attributes
    ----------
    error
        Why it has failed, if it has.
    """

    def __init__(self, machine: Machine, process: Process, group: str, work: Callable[[], Any]) -> None:
        self.group = group
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_over = self._has_slot = False
        self._over = Event()
        self._slots = machine.slots
        self._work = work
        self._fiber = process.spawn(self._run, "task")
        machine.tasks.append(self)

    def _run(self) -> None:
        self._slots.acquire()
        self._has_slot = True
        try:
            self.result = self._work()
        except Exception as error:
            self.error = error
        self._end()

    def die(self, reason: str = TASK_DIED) -> None:
        """Kill it; only between two steps."""
        if self.is_over:
            return
        steps = Now.steps
        self._fiber.throw()
        if self._fiber in steps.ready:
            steps.ready.remove(self._fiber)
        self.error = TaskError(reason)
        self._end()

    def _end(self) -> None:
        self.is_over = True
        if self._has_slot:
            self._slots.release()
        self._over.set()

    def join(self) -> None:
        self._over.wait()


class Context:
    """What the loop uses of a SparkContext: each thread has a group, to which its jobs belong."""

    def __init__(self, machine: Machine, process: Process) -> None:
        self._machine, self._process = machine, process
        self._groups: dict[Any, str] = {}

    def setJobGroup(self, group: str, description: str, interruptOnCancel: bool) -> None:
        self._groups[Now.steps.fiber] = group

    def cancelJobGroup(self, group: str) -> None:
        steps = Now.steps
        for task in self._machine.tasks:
            if task.group == group and not task.is_over:
                steps.at(steps.now_s, partial(task.die, "cancelled"))

    def run(self, works: Iterable[Callable[[], Any]]) -> list[Any]:
        """Run a job; return the results of its tasks, raise the error of the first that has failed."""
        group = self._groups.get(Now.steps.fiber, "")
        tasks = [Task(self._machine, self._process, group, work) for work in works]
        for task in tasks:
            task.join()
        self._machine.tasks = [task for task in self._machine.tasks if not task.is_over]
        for task in tasks:
            if task.error is not None:
                raise TaskError(f"{type(task.error).__name__}: {task.error}") from task.error
        return [task.result for task in tasks]


class Worker(range_task.RangeMatcher):
    """A Python worker's matcher; sometimes it is slow."""

    def __init__(self, folder: Any, random: Random) -> None:
        super().__init__(folder, lambda: 0.0)
        self._random = random

    def match(self, wanted: range_task.RecordRange, seen_ms: float | None = None) -> dict[str, Any]:
        if self._random.random() < SLOW_MATCHES:
            slow_s = self._random.random() * SLOW_MATCH_S
            Time.sleep(slow_s)
            self.matching_s += slow_s
        return super().match(wanted, seen_ms)


class SimulatedJobs:
    """Jobs for the loop, as `RangeJobs` runs them; see `match_loop.Jobs` and `following.FollowJobs`."""

    def __init__(self, context: Context, folder: Any, random: Random, slots: int) -> None:
        self._context, self._folder, self._random = context, folder, random
        self._place = Place.on_cluster(None, slots)
        self._follows = random.random() < 0.7  # where tasks do not reach the driver, none does
        self._idle: list[Worker] = []
        self._ends: list[Event] = []
        self._is_loaded = random.random() < 0.5  # then tasks share partitions, if there are slots
        self.batches_max = random.choice((1, BATCHES_MAX))
        self.follow_s = random.uniform(0.5, 10.0)
        self.lanes_max, self.overlaps = self._place.lanes_max, self._place.overlaps

    @property
    def follower(self) -> SimulatedJobs | None:
        return self if self._follows else None

    def match(self, tasks: Sequence[Sequence[range_task.RecordRange]], manifest: int) -> Sequence[object]:
        return self._context.run([partial(self._match, ranges) for ranges in tasks])

    def follow(self, lanes: Sequence[FollowerLane]) -> FollowEnd:
        end, taken = Event(), TakenStripes()
        self._ends.append(end)
        try:
            ended = self._context.run([partial(self._follow, lane, end, taken) for lane in lanes])
        finally:
            self._ends.remove(end)
        return FollowEnd.of_job(lanes, ended)

    def end(self) -> None:
        for each in self._ends:
            each.set()

    def open(self, manifest: int) -> None: ...

    def close(self) -> None:
        self.end()

    def _match(self, ranges: Sequence[range_task.RecordRange]) -> None:
        worker = self._worker()
        for each in ranges:
            worker.match(each)
        self._idle.append(worker)

    def _follow(self, lane: FollowerLane, end: Event, taken: TakenStripes) -> FollowEnd:
        worker = self._worker()
        follower = Follower(worker, BATCHES, partial(request_index, self._folder.wanted))
        found = follower.follow(lane, lambda: not end.is_set(), taken.take)
        if self._is_loaded:
            found = found._replace(matching_s=found.seconds, is_slow=True)
        if found.is_behind or (found.is_slow and lane.tasks < lane.tasks_max):
            end.set()  # the others are told to end
        self._idle.append(worker)
        return found

    def _worker(self) -> Worker:
        """Return a worker that no task uses; one whose task was killed is not used again."""
        return self._idle.pop() if self._idle else Worker(self._folder, self._random)


def run_driver(machine: Machine, process: Process) -> None:
    """The driver's process."""
    disk, random = machine.disk, machine.steps.random
    slots = random.choice(SLOTS)
    machine.slots, context = Semaphore(slots), Context(machine, process)
    log, matches = disk.open_event_log(""), disk.open_match_log("")
    recovers = recovery.Recovery(disk.folder, log, matches, BATCHES, lambda: 0)
    beat = heartbeat.PipelineHeartbeat(disk.folder, log, matches)
    recovers.start(predecessor_died=beat.predecessor_died, told=beat.told)
    beat.beat("starting")
    loops: list[Any] = []

    def start_loop() -> Any:
        jobs = SimulatedJobs(context, disk.folder, random, slots)
        loops[:] = [match_loop.MatchLoop(context, disk.folder, BATCHES, jobs)]  # type: ignore[arg-type]
        return loops[0]

    loop, matched = start_loop(), beat.offset
    process.spawn(partial(_run_replays, machine, context, loops), "pasts")
    while True:
        Time.sleep(BEAT_S)
        beat.beat("running")
        if not loop.is_active:
            error = loop.exception()
            if not isinstance(error, (TaskError, StorageError, OSError)):
                raise error
            pause_s = recovers.failed(str(error), str(error))
            if pause_s is None:
                raise error
            Time.sleep(pause_s)
            loop, matched = start_loop(), beat.offset
        elif beat.offset > matched:
            recovers.works()


def _run_replays(machine: Machine, context: Context, loops: Sequence[Any]) -> None:
    """What `runtimes.spark.replays` does: rounds of pieces for those that began in the past."""
    planner = replay_planner.ReplayPlanner(machine.disk.folder, Time.monotonic)
    while True:
        Time.sleep(REPLAY_LOOK_S)
        try:
            pieces = planner.next_round(2, 1 << 20)
            if pieces:
                with loops[0].room():
                    context.run([partial(_match_replay, machine, piece) for piece in pieces])
        except TaskError as error:
            if TASK_DIED not in str(error):
                raise
            planner.failed(pieces, str(error), str(error))
        except (StorageError, OSError):
            pause()


def _match_replay(machine: Machine, piece: replay_task.Piece) -> None:
    matcher = replay_task.ReplayMatcher(machine.disk.folder, piece.replay, lambda: 0.0)
    matcher.match(range_task.RecordRange(piece.partition, piece.start, piece.end, 0))
