"""A follower in a thread, and waiting until it has matched what a service's log holds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from pyspark import TaskContext

sys.path.insert(0, str(Path(__file__).parents[1] / "storage"))

from indexing import bring_index_up_to_date
from test_match_loop import Service

from fieldfare.runtimes.process.wanted import request_index
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.following import Follower, FollowerLane, TakenStripes
from fieldfare.runtimes.spark.range_jobs import ORDERS, TaskOrder
from fieldfare.runtimes.spark.range_task import RangeMatcher
from fieldfare.storage import open_match_log

DEADLINE_S = 180.0
LANE = FollowerLane((0,), 4 * DEADLINE_S)


class Running:
    """A follower in a thread."""

    def __init__(
        self, service: Service, lane: FollowerLane = LANE, taken: TakenStripes | None = None
    ) -> None:
        self._ends = threading.Event()
        self.matcher = RangeMatcher(service.folder)
        self.is_behind: bool | None = None
        self.error: BaseException | None = None
        wanted = partial(request_index, service.folder.wanted)
        follower = Follower(self.matcher, MicroBatchSettings(split_bytes=2_000), wanted)

        def run() -> None:
            try:
                take = None if taken is None else taken.take
                self.is_behind = follower.follow(lane, lambda: not self._ends.is_set(), take).is_behind
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ends.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    def wait(self) -> bool | None:
        """Return whether it was behind when it ended by itself."""
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return self.is_behind


def be_task_of(orders: Sequence[TaskOrder], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be a task of a job with these orders."""
    properties = {ORDERS: msgspec.json.encode(orders).decode()}
    context = SimpleNamespace(getLocalProperty=properties.get, attemptNumber=lambda: 0)
    monkeypatch.setattr(TaskContext, "_taskContext", context)


def wait_for(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def wait_until_matched(service: Service, runs: list[Running]) -> None:
    matches, until_s = open_match_log(service.folder.matches_url), time.monotonic() + DEADLINE_S
    while matches.partition(0).end(service.log.start()) < len(service.records):
        assert time.monotonic() < until_s
        for each in runs:
            if each.error is not None:
                raise each.error
        time.sleep(0.001)


def service_at(folder: Path) -> Service:
    """Return a service with some records, and an index that covers them."""
    made = Service(folder, seed=3)
    made.live_a_little(20)
    bring_index_up_to_date(made.folder)
    return made
