"""Tasks that share a partition: who takes which records, several at work, and when there are any."""

from __future__ import annotations

import itertools
import queue
import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "storage"))

from following_support import DEADLINE_S, Running, be_task_of, service_at, wait_for, wait_until_matched
from indexing import bring_index_up_to_date
from test_following import FakeContext
from test_match_loop import Service

from fieldfare.runtimes.process.wanted import request_index
from fieldfare.runtimes.spark import follower_hub, following, match_loop, range_jobs
from fieldfare.runtimes.spark.batches import MicroBatchSettings, is_behind
from fieldfare.runtimes.spark.follower_hub import FollowerHub, link_to
from fieldfare.runtimes.spark.following import (
    SHARED_FROM,
    FollowEnd,
    Follower,
    FollowerLane,
    TakenStripes,
)
from fieldfare.runtimes.spark.match_loop import MatchLoop
from fieldfare.runtimes.spark.range_jobs import CarryOut, TaskOrder
from fieldfare.runtimes.spark.range_task import RangeMatcher
from fieldfare.storage import open_match_log
from fieldfare.storage.event_log import Record

TASKS = 3
SHARED = FollowerLane((0,), 4 * DEADLINE_S, tasks=TASKS)


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return service_at(tmp_path)


def test_no_record_is_taken_twice_and_none_is_passed_over() -> None:
    """Tasks know different places and ends of the log; the twin is a set of the records that are taken."""
    chance = random.Random(5)
    for _ in range(200):
        stripes, places, taken = TakenStripes(), [0] * TASKS, set[int]()
        for _ in range(100):
            task = chance.randrange(TASKS)
            end = places[task] + chance.randint(1, 9)
            start = stripes.take(0, places[task], end)
            if start == places[task]:
                assert taken.isdisjoint(range(start, end))
                taken |= set(range(start, end))
                places[task] = end
            else:
                assert taken == set(range(start)), "it begins where nothing is taken"
                places[task] = start
        assert taken == set(range(max(places)))


def test_partitions_are_taken_from_separately() -> None:
    stripes = TakenStripes()
    assert stripes.take(0, 5, 9) == 5
    assert stripes.take(1, 2, 3) == 2
    assert stripes.take(0, 5, 10) == 9
    assert stripes.take(1, 4, 6) == 4, "the match log had the record before"


def test_tasks_that_share_a_partition_match_every_record_with_the_filters_of_its_moment(
    service: Service,
) -> None:
    taken = TakenStripes()
    runs = [Running(service, SHARED, taken) for _ in range(TASKS)]
    for _ in range(12):
        service.live_a_little(6)
        bring_index_up_to_date(service.folder)
        wait_until_matched(service, runs)
    for each in runs:
        each.end()
        assert each.is_behind is False
    service.check()


def test_a_task_matches_later_records_while_another_is_at_work_on_those_before(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    works, goes_on = threading.Event(), threading.Event()
    real = RangeMatcher.match

    def match(self: RangeMatcher, *arguments: Any) -> Any:
        if not works.is_set():
            works.set()
            assert goes_on.wait(DEADLINE_S)
        return real(self, *arguments)

    monkeypatch.setattr(RangeMatcher, "match", match)
    taken = TakenStripes()
    runs = [Running(service, SHARED, taken) for _ in range(2)]
    assert works.wait(DEADLINE_S)
    matched, begin = open_match_log(service.folder.matches_url).partition(0), len(service.records)
    service._publish()
    bring_index_up_to_date(service.folder)
    wait_for(lambda: matched.end(begin) == len(service.records))
    assert matched.end(service.log.start()) < begin
    goes_on.set()
    wait_until_matched(service, runs)
    for each in runs:
        each.end()
    service.check()


def test_a_task_that_stands_by_matches_what_a_lost_one_had_taken(service: Service) -> None:
    taken = TakenStripes()
    end = len(service.records)
    assert taken.take(0, 0, end) == 0  # a task that was killed then
    runs = [Running(service, SHARED, taken)]
    service._publish()
    bring_index_up_to_date(service.folder)
    matched = open_match_log(service.folder.matches_url).partition(0)
    wait_for(lambda: matched.end(end) == end + 1)
    assert matched.end(service.log.start()) == 0
    copy = FollowerLane((0,), 4 * DEADLINE_S, 4 * DEADLINE_S, TASKS)
    runs.append(Running(service, copy, taken))
    wait_until_matched(service, runs)
    for each in runs:
        each.end()
    service.check()


def test_a_task_matches_the_rest_of_its_stripe_when_retention_removed_the_first_records(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked for the rest, which it had taken itself, and went on behind it: no task matched these."""
    real, kept_from = RangeMatcher._read, 2

    def late(self: RangeMatcher, *arguments: Any) -> Iterator[Record]:
        if service.log.start() < kept_from:
            service.log.trim(kept_from)
        return real(self, *arguments)

    monkeypatch.setattr(RangeMatcher, "_read", late)
    assert len(service.records) > kept_from
    runs = [Running(service, SHARED, TakenStripes())]
    wait_for(lambda: service.log.start() == kept_from)
    end = len(service.records)
    service._publish()
    bring_index_up_to_date(service.folder)
    matched = open_match_log(service.folder.matches_url).partition(0)
    wait_for(lambda: matched.end(end) == end + 1)
    assert matched.end(kept_from) == end + 1
    runs[0].end()


def test_more_may_wait_for_several_tasks_before_they_are_behind(service: Service) -> None:
    partition = service.log.partitions[0]
    settings = MicroBatchSettings(split_bytes=1)  # a record at a time
    end = len(service.records)
    assert end > 6
    for tasks in (1, 2, 3):
        assert not is_behind(partition, end - 2 * tasks, settings, tasks=tasks)
        assert is_behind(partition, end - 2 * tasks - 1, settings, tasks=tasks)


def test_the_driver_says_who_may_take_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower_hub, "TAKEN_JOBS_MAX", 2)
    hub = FollowerHub("127.0.0.1", "127.0.0.1", 0, lambda _: None)
    first, second, other, third = (link_to(hub.address, name) for name in ("4.0", "4.1", "5.0", "6.0"))
    assert first.take(0, 3, 8) == 3
    assert second.take(0, 3, 9) == 8
    assert second.take(0, 8, 9) == 8
    assert other.take(0, 3, 8) == 3, "another job's tasks stand by, or take over"
    second.say("take 0 x 9")
    second.say("take 0")
    assert second.take(0, 1 << 60, 1 << 61) == 1 << 60
    assert second.goes_on()
    assert third.take(0, 3, 8) == 3
    assert len(hub._taken) == 2
    hub.end()
    assert first.take(0, 9, 10) == 9, "it matches them once more, and ends"
    wait_for(lambda: not first.goes_on())
    hub.close()
    assert link_to(hub.address).take(0, 3, 4) == 3


def test_a_task_ends_that_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that comes too late would be taken for one to the next question."""
    monkeypatch.setattr(follower_hub, "TAKE_S", 0.05)
    asked, goes_on = queue.Queue[int](), threading.Event()

    def hang(stamp: int) -> None:
        asked.put(stamp)
        assert goes_on.wait(DEADLINE_S)

    hub = FollowerHub("127.0.0.1", "127.0.0.1", 0, hang)
    link, other = link_to(hub.address, "4.0"), link_to(hub.address, "4.1")
    other.want_index(1)
    assert asked.get(timeout=DEADLINE_S) == 1
    assert link.take(0, 3, 8) == 3
    assert not link.goes_on()
    goes_on.set()
    hub.close()


class LoadedJobs:
    """Following jobs that run in this process, and report the load that a test wants."""

    batches_max = 1
    follow_s = 0.2
    overlaps = False
    """So jobs follow one after the other, and each knows the load of the one before."""

    def __init__(self, service: Service, lanes_max: int, loads: list[tuple[float, bool]]) -> None:
        self._service, self._loads = service, loads
        self.follower, self.lanes_max = self, lanes_max
        self.jobs: list[list[FollowerLane]] = []
        self.ends = 0

    def follow(self, lanes: list[FollowerLane]) -> FollowEnd:
        self.jobs.append(lanes)
        (load, is_slow), ends = self._loads[min(len(self.jobs), len(self._loads)) - 1], self.ends
        folder, taken = self._service.folder, TakenStripes()
        wanted = partial(request_index, folder.wanted)

        def run(each: FollowerLane) -> None:
            follower = Follower(RangeMatcher(folder), MicroBatchSettings(), wanted)
            follower.follow(each, lambda: ends == self.ends, taken.take)

        tasks = [threading.Thread(target=run, args=(each,), daemon=True) for each in lanes]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join()
        return FollowEnd(False, 1.0, load, is_slow)

    def end(self) -> None:
        self.ends += 1

    def close(self) -> None: ...


def test_tasks_share_a_partition_while_matching_takes_much_of_a_core_and_long_for_a_look(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(match_loop, "LOOK_S", 0.05)
    loads = [(0.9, False), (0.9, True), (1.5, False), (0.5, False), (0.1, True)]
    jobs: Any = LoadedJobs(service, 2, loads)
    context: Any = FakeContext()
    loop = MatchLoop(context, service.folder, MicroBatchSettings(), jobs)
    rounds = random.Random(3)
    while len(jobs.jobs) < 10 and loop.is_active:
        service.live_a_little(rounds.randint(1, 5))
        bring_index_up_to_date(service.folder)
        wait_until_matched(service, [])
    loop.stop()
    assert loop.exception() is None
    found = [[(each.tasks, each.tasks_max) for each in lanes] for lanes in jobs.jobs[:6]]
    alone, shared = [(1, 2)], [(2, 2)] * 2
    assert found == [alone, alone, shared, shared, shared, alone]
    service.check()


def test_a_task_stays_alone_where_there_is_a_core_for_each_partition_only(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(match_loop, "LOOK_S", 0.05)
    jobs: Any = LoadedJobs(service, 1, [(1.0, True)])
    context: Any = FakeContext()
    loop = MatchLoop(context, service.folder, MicroBatchSettings(), jobs)
    wait_for(lambda: len(jobs.jobs) > 2 or not loop.is_active)
    loop.stop()
    assert loop.exception() is None
    assert {(each.tasks, each.tasks_max) for lanes in jobs.jobs for each in lanes} == {(1, 1)}


@pytest.mark.parametrize("tasks_max", [1, 2])
def test_a_task_returns_when_looks_take_long_and_others_could_share_its_lane(
    service: Service, monkeypatch: pytest.MonkeyPatch, tasks_max: int
) -> None:
    """More did not wait than it soon matched, so it went on, with events half a second late."""
    monkeypatch.setattr(following, "LOAD_S", 0.3)
    real = RangeMatcher.match

    def match(self: RangeMatcher, *arguments: Any) -> Any:
        self.matching_s += 0.02
        return real(self, *arguments)

    monkeypatch.setattr(RangeMatcher, "match", match)
    lane = FollowerLane((0,), 4 * DEADLINE_S, tasks_max=tasks_max)
    wanted = partial(request_index, service.folder.wanted)
    looks = iter(range(40))

    def goes_on() -> bool:
        service._publish()
        return next(looks, None) is not None

    bring_index_up_to_date(service.folder)
    matcher, ticks = RangeMatcher(service.folder), itertools.count()
    # A clock on which nothing but matching takes long, however busy the machine is.
    clock = SimpleNamespace(
        monotonic=lambda: matcher.matching_s + next(ticks) / 1000, time_ns=time.time_ns, sleep=time.sleep
    )
    monkeypatch.setattr(following, "time", clock)
    found = Follower(matcher, MicroBatchSettings(), wanted).follow(lane, goes_on)
    assert (found.is_behind, found.is_slow) == (False, True)
    assert found.matching_s >= SHARED_FROM * 0.3
    assert (next(looks, None) is None) == (tasks_max == 1)


def test_a_load_is_high_if_looks_take_long_and_much_of_the_time() -> None:
    matcher: Any = SimpleNamespace(matching_s=5.0)
    for matching_s, looks, is_high in ((0.39, 1, False), (0.41, 41, True), (0.41, 42, False), (0.9, 1, True)):
        load = following._Load(matcher, 7.0)
        matcher.matching_s += matching_s
        load.looks = looks
        assert not load.becomes_high(7.9)
        assert load.becomes_high(8.0) is is_high
        assert load.is_high(8.0) is is_high
        assert not load.is_high(8.0 + 10 * matching_s)
    load = following._Load(matcher, 7.0)
    assert not load.becomes_high(9.0)
    matcher.matching_s += 0.5
    assert load.becomes_high(10.0), "the quiet time before is over"


def test_a_task_whose_looks_take_long_ends_those_of_the_other_partitions(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job waits for all of them: for half a minute no task matched that partition."""
    hub = FollowerHub("127.0.0.1", "127.0.0.1", 0, lambda _: None)
    lane = FollowerLane((0,), DEADLINE_S / 6, tasks_max=2)
    orders = [TaskOrder(lane=lane, driver=hub.address, name=f"1.{number}") for number in range(2)]
    be_task_of(orders, monkeypatch)
    work = CarryOut(service.folder, MicroBatchSettings())
    with ThreadPoolExecutor(1) as other:
        ends = other.submit(lambda: list(work(1, [])))
        wait_for(lambda: any(each.is_known for each in list(hub._connections.values())))
        slow = FollowEnd(is_behind=False, seconds=1.0, matching_s=0.9, is_slow=True)
        monkeypatch.setattr(range_jobs, "Follower", lambda *_: SimpleNamespace(follow=lambda *_: slow))
        assert [each.is_slow for each in work(0, [])] == [True]
        (ended,) = ends.result(DEADLINE_S)
    assert ended.seconds < lane.seconds
    hub.close()


def test_a_job_is_as_loaded_as_its_most_loaded_lane() -> None:
    """All lanes together had to take 0.4 of a core each, so a single one that needed more lost its tasks."""
    lanes = [FollowerLane((number,), 30.0, tasks=2) for number in (0, 0, 1, 1)]
    ended = [FollowEnd(is_behind=False, seconds=1.0, matching_s=part) for part in (0.5, 0.4, 0.0, 0.1)]
    assert FollowEnd.of_job(lanes, ended) == (False, 1.0, 0.9, False, True)
    others = [FollowEnd(is_behind=True), FollowEnd(False, 2.0, 0.0, is_slow=True, has_reached=False)]
    assert FollowEnd.of_job(lanes[1:3], others) == (True, 2.0, 0.0, True, False)


class OverlappingJobs:
    """Two jobs that overlap, then others: the first one's looks took long, and the second one stood by."""

    batches_max, lanes_max, overlaps, follow_s = 1, 2, True, 1.1

    def __init__(self) -> None:
        self.follower = self
        self.jobs: list[list[FollowerLane]] = []
        self.is_noted, self._ends = threading.Event(), threading.Event()

    def follow(self, lanes: list[FollowerLane]) -> FollowEnd:
        self.jobs.append(lanes)
        if len(self.jobs) == 1:
            wait_for(lambda: len(self.jobs) > 1)
            return FollowEnd(False, 1.0, 0.9, is_slow=True)
        if len(self.jobs) == 2:
            assert self.is_noted.wait(DEADLINE_S)
            return FollowEnd(False, 1.0, 0.1)
        assert self._ends.wait(DEADLINE_S)
        return FollowEnd(is_behind=False)

    def end(self) -> None:
        self._ends.set()

    def close(self) -> None: ...


def test_the_little_load_of_a_task_that_stood_by_ends_no_sharing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(match_loop, "LOOK_S", 0.05)
    jobs: Any = OverlappingJobs()
    context: Any = FakeContext()
    run = Running(service)
    wait_until_matched(service, [run])
    run.end()
    loop = MatchLoop(context, service.folder, MicroBatchSettings(split_bytes=1 << 20), jobs)
    wait_for(lambda: loop._shares_lanes or not loop.is_active)
    jobs.is_noted.set()
    wait_for(lambda: len(jobs.jobs) > 2 or not loop.is_active)
    loop.stop()
    assert loop.exception() is None
    assert [len(lanes) for lanes in jobs.jobs[:3]] == [1, 1, 2]
