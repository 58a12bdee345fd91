"""Tasks that follow the log: each alone, two that overlap, one that hung, and jobs of them on Spark."""

from __future__ import annotations

import json
import queue
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "storage"))

from following_support import (
    DEADLINE_S,
    LANE,
    Running,
    be_task_of,
    service_at,
    wait_for,
    wait_until_matched,
)
from indexing import bring_index_up_to_date
from pipeline_support import SPACES
from test_match_loop import Service

from fieldfare.filters import compile_filter
from fieldfare.planning.cuts import CutSettings
from fieldfare.runtimes.process.wanted import request_index, requested_revision
from fieldfare.runtimes.spark import following, match_loop, range_jobs
from fieldfare.runtimes.spark.batch_planner import BatchPlanner
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.follower_hub import FollowerHub
from fieldfare.runtimes.spark.following import FollowEnd, Follower, FollowerLane
from fieldfare.runtimes.spark.match_loop import MatchLoop
from fieldfare.runtimes.spark.range_jobs import CarryOut, TaskOrder
from fieldfare.runtimes.spark.range_task import RangeMatcher
from fieldfare.storage import open_index_store, open_match_log
from fieldfare.storage.event_log import NewRecord, ends_of
from fieldfare.storage.match_log import SPENT_MS
from fieldfare.storage.registry import Put


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return service_at(tmp_path)


def test_records_meet_the_filters_of_their_moment_while_these_change(service: Service) -> None:
    run = Running(service)
    for _ in range(12):
        service.live_a_little(6)
        bring_index_up_to_date(service.folder)
        wait_until_matched(service, [run])
    run.end()
    assert run.is_behind is False
    service.check()


@pytest.mark.parametrize(
    "cuts", [("replicated", "hash:3"), ("attribute_space:2", "hash:2"), ("single_attribute:3", "hash:3")]
)
def test_all_slices_of_a_space_are_searched_also_while_it_is_cut_again(
    service: Service, cuts: tuple[str, str]
) -> None:
    run = Running(service)
    for matchers in (None, *cuts):
        named = [f"{space}={matchers}" for space in SPACES[:2]] if matchers else []
        settings = CutSettings.parsed("auto", 1, named, 1 << 40)
        for _ in range(4):
            service.live_a_little(6)
            bring_index_up_to_date(service.folder, settings)
            wait_until_matched(service, [run])
    run.end()
    newest = open_index_store(service.folder.index_url).newest()
    assert newest is not None and newest.matchers > 1
    service.check()


def test_a_record_waits_for_an_index_that_covers_it_and_the_index_is_requested(service: Service) -> None:
    run = Running(service)
    wait_until_matched(service, [run])
    while service.stamp == 0 or requested_revision(service.folder.wanted) < service.stamp:
        service.live_a_little(4)
        time.sleep(0.05)
        assert run.error is None
    matched = open_match_log(service.folder.matches_url).partition(0).end()
    assert matched < len(service.records)
    bring_index_up_to_date(service.folder)
    wait_until_matched(service, [run])
    run.end()
    service.check()


def test_a_block_says_when_its_first_record_was_seen_and_when_it_was_matched(service: Service) -> None:
    run = Running(service)
    wait_until_matched(service, [run])
    began_ms = time.time_ns() / 1e6
    seen_from = len(service.records)
    service._publish()
    wait_until_matched(service, [run])
    run.end()
    block = open_match_log(service.folder.matches_url).partition(0).block_at(seen_from)
    assert block is not None
    figures = [float(block.extra[name]) for name in ("seen_ms", "matched_ms")]
    assert figures == sorted(figures)
    assert began_ms <= figures[0] + 0.001
    assert figures[1] <= time.time_ns() / 1e6


def test_records_that_arrive_during_a_look_wait_for_an_index_that_covers_them(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look took them along with the manifest of the records before, and matching failed."""
    real = following.followed_to
    arrivals: list[int] = []

    def arrive(*arguments: Any) -> int:
        if len(arrivals) < 5:
            service._change()
            service.stamp = service.history.revision
            service._publish()
            arrivals.append(len(service.records))
        return real(*arguments)

    monkeypatch.setattr(following, "followed_to", arrive)
    run = Running(service)
    until_s = time.monotonic() + DEADLINE_S
    while len(arrivals) < 5:
        assert time.monotonic() < until_s
        assert run.error is None
        bring_index_up_to_date(service.folder)
        time.sleep(0.01)
    bring_index_up_to_date(service.folder)
    wait_until_matched(service, [run])
    run.end()
    service.check()


def test_a_task_that_stands_by_takes_over_when_the_other_one_is_gone(service: Service) -> None:
    first = Running(service)
    wait_until_matched(service, [first])
    second = Running(service, FollowerLane((0,), 4 * DEADLINE_S, standby_s=4 * DEADLINE_S))
    for _ in range(4):
        service.live_a_little(5)
        bring_index_up_to_date(service.folder)
        wait_until_matched(service, [first, second])
    first.end()
    for _ in range(4):
        service.live_a_little(5)
        bring_index_up_to_date(service.folder)
        wait_until_matched(service, [second])
    second.end()
    service.check()


def test_a_task_with_slow_filters_is_behind_when_seconds_of_work_wait(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It matched 8,192 events at a time; told to end, it was killed after 5 s, with its open index.

    And up to twice as many waited, for a minute, though batches have all cores.
    """
    monkeypatch.setattr("fieldfare.runtimes.spark.range_task.GroupSize.took", lambda *_: None)
    matcher = RangeMatcher(service.folder)
    matcher._size.events = 1  # in a quarter of a second
    service.live_a_little(20)
    bring_index_up_to_date(service.folder)
    counts = [len(events) for _, _, events in service.records]
    assert sum(counts) > 20
    matched = matcher.matched(0)
    for _ in range(2):
        before = matched.end()
        follower = Follower(matcher, MicroBatchSettings(), lambda _: None)
        assert follower.follow(LANE, partial(_goes_on, count())).is_behind, "it ends by itself"
        assert 1 <= sum(counts[before : matched.end()]) <= 4, "in a second"
    assert sum(counts[matched.end() :]) > 4


def _goes_on(looks: Iterator[int]) -> bool:
    return next(looks) < 20


def test_a_task_returns_when_much_waits(service: Service) -> None:
    run = Running(service)
    wait_until_matched(service, [run])
    line = b'{"data":{"text":"' + b"x" * 500 + b'"}}\n'
    records = [NewRecord("default", line, 1, appended_ms=1, stamp=service.stamp) for _ in range(100)]
    service.log.append(records)
    assert run.wait() is True


def test_a_task_that_is_behind_ends_those_of_the_other_partitions(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job waits for all of them: with one partition behind, the others would follow for seconds."""
    hub = FollowerHub("127.0.0.1", "127.0.0.1", 0, lambda stamp: None)
    order = TaskOrder(lane=LANE, driver=hub.address)
    be_task_of([order, order], monkeypatch)
    keeps_up = CarryOut(service.folder, MicroBatchSettings())
    with ThreadPoolExecutor(1) as other:
        ends = other.submit(lambda: list(keeps_up(1, [])))
        wait_for(lambda: any(each.is_known for each in list(hub._connections.values())))
        line = b'{"data":{"text":"' + b"x" * 500 + b'"}}\n'
        stamp = service.registry.revision() + 1  # no index covers it, so the other task matches none of them
        records = [NewRecord("default", line, 1, appended_ms=1, stamp=stamp) for _ in range(100)]
        service.log.append(records)
        behind = CarryOut(service.folder, MicroBatchSettings(split_bytes=2_000))
        assert [each.is_behind for each in behind(0, [])] == [True]
        assert [each.is_behind for each in ends.result(DEADLINE_S)] == [False]
    (late,) = keeps_up(1, [])
    assert (late.is_behind, late.has_reached) == (False, True), "it was started before, and comes late"
    hub.close()
    monkeypatch.setattr(
        range_jobs, "Follower", lambda *_: SimpleNamespace(follow=lambda *_: FollowEnd(is_behind=False))
    )
    assert [each.has_reached for each in keeps_up(1, [])] == [False]


@pytest.mark.parametrize("every_s", [0.0, 4 * DEADLINE_S])
def test_the_load_of_a_task_is_the_time_of_matching(
    service: Service, monkeypatch: pytest.MonkeyPatch, every_s: float
) -> None:
    """The process's time was reported: mostly looks at the log. Hosts were added and released for ever.

    And a task that ended within a second reported nothing.
    """
    monkeypatch.setattr(range_jobs, "SAY_TOOK_S", every_s)
    took: list[float] = []
    hub = FollowerHub("127.0.0.1", "127.0.0.1", 0, lambda _: None, lambda cpu_s, _: took.append(cpu_s))
    order = TaskOrder(lane=FollowerLane((0,), 0.2), driver=hub.address, says_took=True)
    be_task_of([order], monkeypatch)
    ended: list[FollowEnd] = []
    for _ in range(2):  # the second task reports nothing of the first one again
        service.live_a_little(10)
        bring_index_up_to_date(service.folder)
        ended += CarryOut(service.folder, MicroBatchSettings())(0, [])
    wait_for(lambda: not hub._connections)
    hub.close()
    matched, spent_ms, at = open_match_log(service.folder.matches_url).partition(0), 0.0, 0
    while (block := matched.block_at(at)) is not None:
        at = block.end
        spent_ms += sum(float(each) for name, each in block.extra.items() if name.startswith(SPENT_MS))
    assert spent_ms > 0
    assert sum(took) == pytest.approx(spent_ms / 1000, abs=1e-4)
    assert sum(each.matching_s for each in ended) == pytest.approx(spent_ms / 1000, abs=1e-4)
    assert not any(each.is_behind for each in ended)
    assert all(0.2 <= each.seconds < DEADLINE_S for each in ended)


def test_a_task_ends_when_its_time_is_over(service: Service) -> None:
    assert Running(service, FollowerLane((0,), 0.05)).wait() is False


def test_a_task_that_hung_writes_nothing_that_was_matched_meanwhile(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others matched its records, the filters changed, and the old ones were forgotten; then it went on."""
    hangs, goes_on = threading.Event(), threading.Event()
    real = following._Followed.skip_matched
    late: list[Any] = []

    def hang(self: Any) -> bool:
        if threading.current_thread() in late and not goes_on.is_set():
            hangs.set()
            assert goes_on.wait(DEADLINE_S)
        return real(self)

    monkeypatch.setattr(following._Followed, "skip_matched", hang)
    real_end = RangeMatcher.matched

    def note(self: RangeMatcher, partition: int) -> Any:
        late.append(threading.current_thread())
        return real_end(self, partition)

    with monkeypatch.context() as patched:
        patched.setattr(RangeMatcher, "matched", note)
        hung = Running(service)
        assert hangs.wait(DEADLINE_S)
    other = Running(service)
    service.live_a_little(10)
    bring_index_up_to_date(service.folder)
    wait_until_matched(service, [other])
    other.end()
    nothing = compile_filter("data.none < 0").compiled
    for space, id in list(service.numbers):
        service.registry.apply([Put(space, id, "data.none < 0", "sql", nothing)], ends_of(service.log), 0)
    service.registry.purge(service.registry.revision())
    shutil.rmtree(service.folder.index)
    bring_index_up_to_date(service.folder)
    before = {path: path.read_bytes() for path in service.folder.matches.rglob("*.arrow")}
    goes_on.set()
    hung.end()
    assert {path: path.read_bytes() for path in service.folder.matches.rglob("*.arrow")} == before
    service.check()


def test_a_task_that_hung_takes_no_other_index_for_the_one_that_it_opened(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index was lost, and built again until it had a manifest of the same number."""
    hangs, goes_on = threading.Event(), threading.Event()
    late: list[Any] = []
    real = following.is_behind

    def hang(*arguments: Any) -> bool:
        if threading.current_thread() in late and not goes_on.is_set():
            hangs.set()
            assert goes_on.wait(DEADLINE_S)
        return real(*arguments)

    monkeypatch.setattr(following, "is_behind", hang)
    hung = Running(service)
    wait_until_matched(service, [hung])
    number = hung.matcher.opened.covering(0)
    late.append(hung._thread)
    service._change()
    service.stamp = service.registry.revision()
    service._publish()
    assert hangs.wait(DEADLINE_S)
    other = Running(service)
    bring_index_up_to_date(service.folder)
    wait_until_matched(service, [other])
    other.end()
    nothing = compile_filter("data.none < 0").compiled
    for space, id in list(service.numbers):
        service.registry.apply([Put(space, id, "data.none < 0", "sql", nothing)], ends_of(service.log), 0)
    service.registry.purge(service.registry.revision())
    shutil.rmtree(service.folder.index)
    while bring_index_up_to_date(service.folder).number < number:
        service.registry.apply([Put("default", "new", "data.none < 0", "sql", nothing)], (0,), 0)
    goes_on.set()
    hung.end()
    service.check()


@pytest.mark.parametrize(
    ("owner", "place"), [(following, "is_behind"), (following._Followed, "skip_matched")]
)
def test_a_task_that_hung_goes_on_behind_what_retention_removed(
    service: Service, owner: Any, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others matched its records, and they are removed: its failure stopped matching for a while."""
    hangs, goes_on = threading.Event(), threading.Event()
    real = getattr(owner, place)

    def hang(*arguments: Any) -> Any:
        if not hangs.is_set():
            hangs.set()
            assert goes_on.wait(DEADLINE_S)
        return real(*arguments)

    monkeypatch.setattr(owner, place, hang)
    hung = Running(service)
    assert hangs.wait(DEADLINE_S)
    other = Running(service)
    service.live_a_little(10)
    bring_index_up_to_date(service.folder)
    wait_until_matched(service, [other])
    kept_from = len(service.records) - 1
    service.log.trim(kept_from)
    open_match_log(service.folder.matches_url).partition(0).trim(kept_from)
    oldest = min(path.name for path in service.folder.matches.rglob("*.arrow"))
    other.end()
    goes_on.set()
    service._publish()
    wait_until_matched(service, [hung])
    hung.end()
    assert min(path.name for path in service.folder.matches.rglob("*.arrow")) == oldest


class FakeContext:
    """What the loop asks of Spark's context."""

    def __init__(self) -> None:
        self.cancelled = queue.Queue[str]()

    def setJobGroup(self, *arguments: object, **named: object) -> None: ...

    def cancelJobGroup(self, group: str) -> None:
        self.cancelled.put(group)


class HangingJobs:
    """Jobs that run in this process; the first one hangs until it is cancelled."""

    batches_max = 1

    def __init__(self, service: Service, settings: MicroBatchSettings, context: FakeContext) -> None:
        self._service, self._settings, self._context = service, settings, context
        self.follower = self
        self.lanes_max, self.overlaps, self.follow_s = 1, True, 2.0
        self.calls = self.ends = 0

    def follow(self, lanes: list[FollowerLane]) -> FollowEnd:
        self.calls += 1
        if self.calls == 1:
            group = self._context.cancelled.get(timeout=DEADLINE_S)
            raise RuntimeError(f"{group} was cancelled")
        folder, ends = self._service.folder, self.ends
        follower = Follower(RangeMatcher(folder), self._settings, partial(request_index, folder.wanted))
        return follower.follow(lanes[0], lambda: ends == self.ends)

    def end(self) -> None:
        self.ends += 1

    def close(self) -> None: ...


def test_when_a_task_hangs_the_next_one_is_started_and_the_hung_one_cancelled(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"STOPPED_S": 0.2, "LATE_S": 0.2, "LOOK_S": 0.05}.items():
        monkeypatch.setattr(match_loop, name, value)
    settings = MicroBatchSettings(split_bytes=1 << 20)
    context: Any = FakeContext()
    jobs: Any = HangingJobs(service, settings, context)
    loop = MatchLoop(context, service.folder, settings, jobs)
    wait_until_matched(service, [])
    assert jobs.calls == 2
    assert loop.activity == match_loop.Activity("follows", 1)
    # The first is cancelled, and others go on.
    wait_for(lambda: (jobs.calls >= 4 and not context.cancelled.qsize()) or not loop.is_active)
    assert loop.is_active, loop.exception()
    service.live_a_little(10)
    bring_index_up_to_date(service.folder)
    wait_until_matched(service, [])
    loop.stop()
    service.check()


def test_the_loop_goes_on_when_its_tasks_have_lost_the_driver(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection was reset: the tasks end, and others follow."""
    monkeypatch.setattr(match_loop, "LOOK_S", 0.05)
    settings = MicroBatchSettings(split_bytes=1 << 20)
    context: Any = FakeContext()
    jobs: Any = HangingJobs(service, settings, context)
    jobs.calls = 1
    loop = MatchLoop(context, service.folder, settings, jobs)
    for _ in range(3):
        wait_until_matched(service, [])
        jobs.end()
        service.live_a_little(5)
        bring_index_up_to_date(service.folder)
    wait_until_matched(service, [])
    loop.stop()
    assert loop.exception() is None
    service.check()


class StuckJobs:
    """Following jobs that never get a slot; batches run in this process."""

    batches_max = 1
    lanes_max, overlaps, follow_s = 1, True, 30.0

    def __init__(self, service: Service) -> None:
        self._service = service
        self._ends = threading.Event()
        self.follower = self
        self.batches = 0

    def follow(self, lanes: list[FollowerLane]) -> FollowEnd:
        assert self._ends.wait(DEADLINE_S)
        return FollowEnd(is_behind=False)

    def end(self) -> None:
        self._ends.set()
        self._ends = threading.Event()

    def match(self, tasks: Any, _manifest: int) -> None:
        self.batches += 1
        matcher = RangeMatcher(self._service.folder)
        for each in (each for ranges in tasks for each in ranges):
            matcher.match(each)

    def close(self) -> None: ...


def match_a_little(service: Service, jobs: Any) -> None:
    """Run a loop while a few events come, three times."""
    context: Any = FakeContext()
    loop = MatchLoop(context, service.folder, MicroBatchSettings(split_bytes=1 << 20), jobs)
    for _ in range(3):
        service.live_a_little(5)
        bring_index_up_to_date(service.folder)
        wait_until_matched(service, [])
    loop.stop()
    assert loop.exception() is None


def test_what_no_task_follows_is_matched_by_batches_however_little_it_is(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors were lost, or the machine is so busy that no task gets to work."""
    for name, value in {"STOPPED_S": 0.1, "BATCHES_AFTER_S": 0.3, "LOOK_S": 0.05}.items():
        monkeypatch.setattr(match_loop, name, value)
    jobs: Any = StuckJobs(service)
    match_a_little(service, jobs)
    assert jobs.batches >= 1
    service.check()


def test_jobs_that_do_not_overlap_are_alone_also_after_a_pause(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would match each record until the time of the first one is over, if there are slots."""
    looks = list[float]()

    def stopped_s(*_: object) -> float:
        looks.append(match_loop.STOPPED_S + 1 if len(looks) == 2 else 0.0)
        return looks[-1]

    monkeypatch.setattr(match_loop, "LOOK_S", 0.01)
    monkeypatch.setattr(match_loop._Progress, "stopped_s", stopped_s)
    jobs, context, started = StuckJobs(service), FakeContext(), list[object]()
    jobs.overlaps = False
    follow = jobs.follow
    jobs.follow = lambda lanes: started.append(lanes) or follow(lanes)  # type: ignore[method-assign, func-returns-value]
    loop = MatchLoop(context, service.folder, MicroBatchSettings(), jobs)  # type: ignore[arg-type]
    wait_for(lambda: len(looks) > 10)
    loop.stop()
    assert len(started) == 1


def test_a_batch_matches_the_little_for_which_a_task_is_behind(service: Service) -> None:
    """The task knows how slow the filters are, the driver counts bytes: it would start the next task."""
    jobs: Any = StuckJobs(service)
    jobs.follow = lambda _: FollowEnd(is_behind=True)
    match_a_little(service, jobs)
    service.check()


def test_a_hole_is_matched_though_later_records_are(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that cannot be synced is removed, see `FileMatchLog.sync`; later ones are there already."""
    for name in ("STOPPED_S", "BATCHES_AFTER_S"):
        monkeypatch.setattr(match_loop, name, 4 * DEADLINE_S)
    monkeypatch.setattr(match_loop, "LOOK_S", 0.05)
    real, seen = BatchPlanner.tips, [0]

    def tips(self: BatchPlanner, before: Any) -> Any:
        found = real(self, before)
        seen[0] = found[0]
        return found

    monkeypatch.setattr(BatchPlanner, "tips", tips)
    settings = MicroBatchSettings(split_bytes=1 << 20)
    context: Any = FakeContext()
    jobs: Any = HangingJobs(service, settings, context)
    jobs.calls, jobs.follow_s = 1, 4 * DEADLINE_S
    loop = MatchLoop(context, service.folder, settings, jobs)
    wait_until_matched(service, [])
    matches = open_match_log(service.folder.matches_url).partition(0)
    service._publish()
    wait_until_matched(service, [])
    block = matches.block_at(len(service.records) - 1)
    assert block is not None
    service._publish()
    wait_until_matched(service, [])
    wait_for(lambda: seen[0] >= len(service.records))  # the loop has looked behind it
    service.folder.heartbeat.write_text(json.dumps({"matched": [block.start]}))
    Path(block.path).unlink()  # type: ignore[attr-defined]
    # Only now: on a busy machine, the next task would have been started before.
    monkeypatch.setattr(match_loop, "STOPPED_S", 0.2)
    wait_for(
        lambda: (
            open_match_log(service.folder.matches_url).partition(0).end() >= len(service.records)
            or not loop.is_active
        )
    )
    assert loop.is_active, loop.exception()
    loop.stop()
    service.check()
