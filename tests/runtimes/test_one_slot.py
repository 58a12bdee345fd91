"""Following where Spark runs one task at a time: an executor of one core that has all slices."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "storage"))

from following_support import DEADLINE_S, service_at, wait_for, wait_until_matched
from indexing import bring_index_up_to_date
from test_following import FakeContext
from test_match_loop import Service

from fieldfare.runtimes.spark import match_loop, replays
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.following import FollowEnd, FollowerLane
from fieldfare.runtimes.spark.match_loop import MatchLoop
from fieldfare.runtimes.spark.range_jobs import Place
from fieldfare.runtimes.spark.range_task import RangeMatcher, RecordRange
from fieldfare.runtimes.spark.replays import ReplayRunner
from fieldfare.storage.folder import DataFolder


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return service_at(tmp_path)


class VirtualSlot:
    """Jobs whose task has the only slot for its time, on a clock that goes on with each turn of the loop.

    The clock stands still until each job that was started has the slot or waits for it, and the loop can see
    the end of each job whose time is over.
    """

    batches_max = lanes_max = 1
    follow_s = 30.0

    def __init__(self, *, overlaps: bool = False) -> None:
        self.follower, self.overlaps = self, overlaps
        self.folder = DataFolder(Path())
        self.now_s = 0.0
        self.jobs: list[match_loop._Following] = []
        self.started = self.ends = self.ended = 0
        self.running: list[float] = []
        self._changed = threading.Condition()

    def monotonic(self) -> float:
        """Let a second pass, and the jobs end whose time is over."""
        until_s = time.monotonic() + DEADLINE_S
        with self._changed:
            self.now_s += 1.0
            self._changed.notify_all()
            while not self._is_quiet():
                assert time.monotonic() < until_s
                self._changed.wait(0.001)
            return self.now_s

    def _is_quiet(self) -> bool:
        done = sum(job.future.done() for job in self.jobs)
        is_used = len(self.running) == min(1, self.started - self.ended)
        return (
            (self.started, self.ended) == (len(self.jobs), done)
            and is_used
            and all(self.now_s < end_s for end_s in self.running)
        )

    def follow(self, lanes: list[FollowerLane]) -> FollowEnd:
        with self._changed:
            number, ends = self.started, self.ends
            self.started += 1
            self._changed.wait_for(lambda: not self.running and self.ended == number)
            self.running.append(self.now_s + lanes[0].seconds)
            self._changed.wait_for(lambda: self.now_s >= self.running[0] or self.ends > ends)
            self.running.clear()
            self.ended += 1
            self._changed.notify_all()
        return FollowEnd(is_behind=False)

    def end(self) -> None:
        with self._changed:
            self.ends += 1
            self._changed.notify_all()

    def match(self, tasks: Sequence[Sequence[RecordRange]], manifest: int) -> list[object]:
        matcher = RangeMatcher(self.folder)
        return [matcher.match(each) for ranges in tasks for each in ranges]

    def close(self) -> None: ...


def begun(service: Service, jobs: VirtualSlot, monkeypatch: pytest.MonkeyPatch) -> tuple[MatchLoop, Any]:
    jobs.folder = service.folder
    monkeypatch.setattr(match_loop, "LOOK_S", 0.0)
    monkeypatch.setattr(match_loop, "time", SimpleNamespace(monotonic=jobs.monotonic))
    real = match_loop.MatchLoop._start_following

    def start(*arguments: Any) -> match_loop._Following:
        jobs.jobs.append(real(*arguments))
        return jobs.jobs[-1]

    monkeypatch.setattr(match_loop.MatchLoop, "_start_following", start)
    monkeypatch.setattr(match_loop._Progress, "stopped_s", lambda *_: 0.0)
    context: Any = FakeContext()
    loop = MatchLoop(context, service.folder, MicroBatchSettings(split_bytes=1 << 20), jobs)  # type: ignore[arg-type]
    return loop, context


def test_followers_take_turns_in_one_slot_and_none_is_cancelled(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was started a second before it had room: soon half a minute, and was cancelled for being late.

    With it its process and the index that this had opened were gone, every half minute.
    """
    monkeypatch.setattr(match_loop, "LATE_S", 4.0)
    jobs = VirtualSlot()
    loop, context = begun(service, jobs, monkeypatch)
    wait_for(lambda: jobs.ended >= 12 or not context.cancelled.empty() or not loop.is_active)
    assert loop.is_active, loop.exception()
    assert context.cancelled.empty()
    loop.stop()


@pytest.mark.parametrize(
    ("slots", "lanes_max", "overlaps"), [(0, 1, False), (1, 1, False), (2, 1, True), (6, 2, True)]
)
def test_a_place_says_whether_there_are_slots_for_the_next_tasks(
    slots: int, lanes_max: int, overlaps: bool
) -> None:
    assert Place.on_cluster("executor_HOST_4", slots) == ("executor_HOST_4", lanes_max, overlaps)


@pytest.mark.parametrize("overlaps", [False, True])
def test_no_task_follows_while_another_job_needs_the_only_slot(
    service: Service, monkeypatch: pytest.MonkeyPatch, overlaps: bool
) -> None:
    """A replay's round waited for half a minute each time. Batches match what comes meanwhile."""
    jobs = VirtualSlot(overlaps=overlaps)
    jobs.follow_s = 1e9
    loop, _ = begun(service, jobs, monkeypatch)
    wait_for(lambda: jobs.started == 1 and len(jobs.running) == 1)
    with loop.room():
        if overlaps:
            assert jobs.ends == 0
        else:
            wait_for(lambda: not jobs.running)
            for _ in range(2):
                wait_until_matched(service, [])
                service.live_a_little(5)
                bring_index_up_to_date(service.folder)
            assert jobs.started == 1
    if not overlaps:
        wait_for(lambda: jobs.started == 2 and len(jobs.running) == 1)
    assert loop.is_active, loop.exception()
    loop.stop()


def test_tasks_that_were_not_ended_are_told_again_while_another_job_needs_the_slot(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that begins at that moment is not known yet to what ends the others."""
    jobs = VirtualSlot()
    jobs.follow_s = 1e9
    loop, _ = begun(service, jobs, monkeypatch)
    wait_for(lambda: len(jobs.running) == 1)
    end, missed = jobs.end, list[bool]()
    monkeypatch.setattr(jobs, "end", lambda: end() if missed else missed.append(True))
    with loop.room():
        wait_for(lambda: not jobs.running)
    assert missed
    loop.stop()
    assert loop.exception() is None


def test_a_replays_round_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    @contextmanager
    def room() -> Any:
        steps.append("room")
        yield
        steps.append("end")

    monkeypatch.setattr(replays, "match_pieces", lambda *_: steps.append("match"))
    made = service_at(tmp_path)
    runner = ReplayRunner(None, made.folder, 1, room)  # type: ignore[arg-type]
    rounds = [[], ["a piece"]]
    monkeypatch.setattr(runner._planner, "next_round", lambda *_: rounds.pop(0))
    monkeypatch.setattr(runner, "_give_way", lambda _: None)
    runner._round()
    assert steps == [], "there is nothing to match"
    runner._round()
    assert steps == ["room", "match", "end"]
    runner._planner.close()
