"""The match loop with jobs on Spark: tasks that follow the log, batches, and both in turns."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "storage"))

from following_support import DEADLINE_S, service_at, wait_for, wait_until_matched
from indexing import bring_index_up_to_date
from pyspark.sql import SparkSession
from test_match_loop import Service

from fieldfare.runtimes.spark import match_loop
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.follower_hub import UNREACHED_REST_S
from fieldfare.runtimes.spark.following import TakenStripes
from fieldfare.runtimes.spark.match_loop import MatchLoop
from fieldfare.runtimes.spark.range_jobs import Place, RangeJobs
from fieldfare.runtimes.spark.range_task import RecordRange
from fieldfare.storage import open_index_store


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return service_at(tmp_path)


@pytest.fixture
def loop(session: SparkSession, service: Service) -> Iterator[MatchLoop]:
    settings = MicroBatchSettings(tasks=2, split_bytes=2_000)
    jobs = RangeJobs(session.sparkContext, service.folder, settings)
    jobs.follow_s = 1.5
    loop = MatchLoop(session.sparkContext, service.folder, settings, jobs)
    yield loop
    loop.stop()
    assert not loop.is_active


@pytest.mark.spark
def test_the_loop_follows_matches_batches_and_follows_again(loop: MatchLoop, service: Service) -> None:
    """One following task after the other, a backlog, and following tasks again."""
    until_s = time.monotonic() + 5
    while time.monotonic() < until_s:
        service.live_a_little(4)
        bring_index_up_to_date(service.folder)
        wait_until_matched(service, [])
        assert loop.is_active, loop.exception()
    for _ in range(2):
        service.live_a_little(200)
        bring_index_up_to_date(service.folder)
        wait_until_matched(service, [])
    service.check()


@pytest.mark.spark
def test_several_tasks_share_the_log_and_a_backlog_is_matched_by_batches_between(
    session: SparkSession, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(match_loop, "SHARED_FROM", 0.0)  # they go on sharing it
    settings = MicroBatchSettings(tasks=2, split_bytes=2_000)
    jobs = RangeJobs(session.sparkContext, service.folder, settings)
    jobs.follow_s = 1.5
    taken: list[tuple[int, int, int]] = []
    real = TakenStripes.take

    def take(self: TakenStripes, *stripe: int) -> int:
        taken.append(stripe)  # type: ignore[arg-type]
        return real(self, *stripe)

    monkeypatch.setattr(TakenStripes, "take", take)
    loop = MatchLoop(session.sparkContext, service.folder, settings, jobs)
    wait_for(lambda: loop.activity.kind == "follows" or not loop.is_active)
    loop._shares_lanes = True
    wait_for(lambda: loop.activity == match_loop.Activity("follows", 2) or not loop.is_active)
    for events in (4, 4, 200, 4, 4):
        service.live_a_little(events)
        bring_index_up_to_date(service.folder)
        wait_until_matched(service, [])
        assert loop.is_active, loop.exception()
    loop.stop()
    assert loop.exception() is None
    assert taken, "the driver was asked who may take records"
    service.check()


@pytest.mark.spark
def test_where_tasks_do_not_reach_the_driver_there_are_soon_only_batches(
    session: SparkSession, service: Service, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall is between them: the tasks follow all the same, but cannot be told to end."""
    for name, value in {"OVERLAP_S": 0.2, "LOOK_S": 0.05}.items():
        monkeypatch.setattr(match_loop, name, value)
    settings = MicroBatchSettings(tasks=2, split_bytes=2_000)
    jobs = RangeJobs(session.sparkContext, service.folder, settings)
    jobs.follow_s = 1.0
    assert jobs.hub is not None
    jobs.hub.close()
    loop = MatchLoop(session.sparkContext, service.folder, settings, jobs)
    until_s = time.monotonic() + DEADLINE_S
    while jobs.follower is not None:
        service.live_a_little(5)
        bring_index_up_to_date(service.folder)
        wait_until_matched(service, [])
        assert loop.is_active, loop.exception()
        assert time.monotonic() < until_s
    wait_for(lambda: loop.activity.kind != "follows")
    service.live_a_little(20)
    bring_index_up_to_date(service.folder)
    wait_until_matched(service, [])
    assert loop.activity.kind != "follows"
    assert 0 < jobs._reach._rests_until_s - time.monotonic() <= UNREACHED_REST_S
    jobs._reach._rests_until_s = 0.0  # the rest is over
    wait_for(lambda: loop.activity.kind == "follows")
    loop.stop()
    assert "did not reach this machine" in caplog.text
    service.check()


@pytest.mark.spark
def test_tasks_run_in_the_same_processes_one_after_the_other(session: SparkSession, service: Service) -> None:
    """Each task left a row unread. So Spark ended its process, and the next task opened the index again."""
    settings = MicroBatchSettings(tasks=2)
    jobs = RangeJobs(session.sparkContext, service.folder, settings)
    manifest = open_index_store(service.folder.index_url).newest()
    assert manifest is not None
    work = jobs._work

    def with_process(number: int, rows: Iterable[str]) -> Iterator[Any]:
        yield from work(number, rows)
        yield os.getpid()

    jobs._work = with_process  # type: ignore[assignment]
    found = [jobs.match([[RecordRange(0, 0, 1, manifest.number)]])[-1] for _ in range(10)]
    jobs.close()
    assert len(set(found)) < len(found) / 2, found  # earlier tests may have left some processes


@pytest.mark.spark
def test_a_task_follows_while_one_executor_has_all_slices(session: SparkSession, service: Service) -> None:
    """Slices move away from it and back: batches in between; and its processor time is counted."""
    home = Place("executor_localhost_driver", 1)
    at: list[Place | None] = [home]
    took: list[tuple[float, float]] = []
    jobs = RangeJobs(
        session.sparkContext,
        service.folder,
        MicroBatchSettings(tasks=2, split_bytes=2_000),
        lambda: at[0],
        lambda *given: took.append(given),
    )
    loop = MatchLoop(session.sparkContext, service.folder, MicroBatchSettings(tasks=2), jobs)
    for place in (home, None, home, None):
        at[0] = place
        jobs.end()
        kinds = ("follows",) if place is not None else ("waits", "matches")
        wait_for(lambda kinds=kinds: loop.activity.kind in kinds or not loop.is_active)
        service.live_a_little(10)
        bring_index_up_to_date(service.folder)
        wait_until_matched(service, [])
        assert loop.is_active, loop.exception()
        assert loop.activity.kind in kinds
        if place is not None:
            before = len(took)
            wait_for(lambda before=before: len(took) > before)
    loop.stop()
    assert loop.exception() is None
    assert all(0 <= cpu_s <= 2 * seconds for cpu_s, seconds in took if seconds > 0.1)
    service.check()
