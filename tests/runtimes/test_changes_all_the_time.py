"""Matching goes on while subscriptions change all the time, so that no index covers the newest record."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "storage"))

from following_support import DEADLINE_S, service_at, wait_for
from indexing import bring_index_up_to_date
from test_following import FakeContext, StuckJobs
from test_match_loop import Service

from fieldfare.runtimes.spark import match_loop
from fieldfare.runtimes.spark.batch_planner import BatchPlanner
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.following import Follower, FollowerLane
from fieldfare.runtimes.spark.heartbeat import PipelineHeartbeat
from fieldfare.runtimes.spark.match_loop import MatchLoop
from fieldfare.runtimes.spark.range_task import RangeMatcher
from fieldfare.storage import open_event_log, open_match_log


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return service_at(tmp_path)


def change_and_publish(service: Service) -> None:
    """Change a subscription, and publish an event that needs an index of this change."""
    before = service.history.revision
    while service.history.revision == before:  # a change may delete what is not there
        service._change()
    service.stamp = service.history.revision
    service._publish()


def test_a_record_does_not_wait_for_the_index_of_later_ones(service: Service) -> None:
    waited = len(service.records)
    asked = list[int]()
    change_and_publish(service)

    def want_index(stamp: int) -> None:
        """Cover what is asked for; meanwhile other subscriptions change, and other events come."""
        asked.append(stamp)
        bring_index_up_to_date(service.folder)
        for _ in range(2):
            change_and_publish(service)

    matches = open_match_log(service.folder.matches_url).partition(0)
    follower = Follower(RangeMatcher(service.folder), MicroBatchSettings(), want_index)
    lane = FollowerLane((0,), DEADLINE_S)
    follower.follow(lane, lambda: len(asked) < 10 and matches.end() <= waited)
    assert matches.end() > waited, f"after {len(asked)} requests"
    bring_index_up_to_date(service.folder)
    follower.follow(lane, lambda: matches.end() < len(service.records))
    service.check()


def test_a_batch_does_not_wait_for_the_index_of_later_records(service: Service) -> None:
    """The index takes longer than one wait of the planner."""
    planner = BatchPlanner(service.folder, MicroBatchSettings(wait_ms=20))
    start: Any = {"ends": planner.first(), "manifest": 0}
    ends = [start]
    while len(ends) < 10 and ends[-1]["ends"] == start["ends"]:
        change_and_publish(service)
        ends.append(planner.next_end(start))
        bring_index_up_to_date(service.folder)  # covers all that was asked for
    planner.close()
    assert ends[-1]["ends"] > start["ends"]


def test_what_no_task_follows_is_matched_by_batches(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"STOPPED_S": 0.2, "BATCHES_AFTER_S": 0.5, "LOOK_S": 0.05}.items():
        monkeypatch.setattr(match_loop, name, value)
    jobs: Any = StuckJobs(service)
    context: Any = FakeContext()
    loop = MatchLoop(context, service.folder, MicroBatchSettings(split_bytes=1 << 20), jobs)
    wait_for(lambda: loop.activity.kind == "follows")

    def is_matched_after_a_change() -> bool:
        bring_index_up_to_date(service.folder)
        change_and_publish(service)
        return bool(jobs.batches)

    wait_for(is_matched_after_a_change)
    loop.stop()
    assert loop.exception() is None


def test_the_heartbeat_says_that_the_first_records_that_wait_are_indexed(service: Service) -> None:
    """So the supervisor notices that nothing is matched."""
    log, matches = open_event_log(service.folder.log_url), open_match_log(service.folder.matches_url)
    heartbeat = PipelineHeartbeat(service.folder, log, matches)
    change_and_publish(service)
    assert not heartbeat.figures()["indexed"]
    bring_index_up_to_date(service.folder)
    change_and_publish(service)
    assert heartbeat.figures()["indexed"]
