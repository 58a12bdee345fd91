"""Two batches of the driver's loop are matched at a time, and a failure is that of the first one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from indexing import bring_index_up_to_date
from test_following import DEADLINE_S, FakeContext
from test_match_loop import Service

from fieldfare.pipeline.suspects import Suspects
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.match_loop import MatchLoop
from fieldfare.runtimes.spark.range_task import RangeMatcher, RecordRange
from fieldfare.runtimes.spark.suspects_file import SuspectsFile

SETTINGS = MicroBatchSettings(max_events=12, split_bytes=100, tasks=1)


class Jobs:
    """Matches batches in this process; each number of `held` waits until a later batch has been matched."""

    follower = None
    batches_max = 2

    def __init__(self, service: Service, held: Sequence[int] = (), failing: Sequence[int] = ()) -> None:
        self._folder = service.folder
        self._held, self._failing = held, failing
        self._lock = threading.Lock()
        self._later = threading.Event()
        self.calls = self.running = self.most = 0
        self.ended: list[int] = []

    def match(self, tasks: Sequence[Sequence[RecordRange]], _manifest: int) -> list[Any]:
        with self._lock:
            number, self.calls, self.running = self.calls, self.calls + 1, self.running + 1
            self.most = max(self.most, self.running)
        if number in self._held:
            assert self._later.wait(DEADLINE_S)
        matcher = RangeMatcher(self._folder)
        if number not in self._failing:
            for ranges in tasks:
                for each in ranges:
                    matcher.match(each)
        with self._lock:
            self.running -= 1
            self.ended.append(number)
        self._later.set()
        if number in self._failing:
            raise RuntimeError(f"batch {number}")
        return []

    def open(self, manifest: int) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def service(tmp_path: Path) -> Service:
    made = Service(tmp_path, seed=5)
    made.live_a_little(120)
    bring_index_up_to_date(made.folder)
    return made


def run(service: Service, jobs: Any) -> MatchLoop:
    context: Any = FakeContext()
    return MatchLoop(context, service.folder, SETTINGS, jobs, until_end=True)


def test_the_next_batch_is_matched_while_the_one_before_is_not_done(service: Service) -> None:
    jobs = Jobs(service, held=(0,))
    assert run(service, jobs).wait(DEADLINE_S)
    assert jobs.calls > 3 and jobs.most == 2
    assert jobs.ended[0] == 1
    service.check()


def test_a_batch_that_fails_is_noticed_when_those_before_it_are_done(service: Service) -> None:
    jobs = Jobs(service, held=(0,), failing=(1,))
    with pytest.raises(RuntimeError, match="batch 1"):
        run(service, jobs).wait(DEADLINE_S)
    assert jobs.ended[:2] == [1, 0]
    assert run(service, Jobs(service)).wait(DEADLINE_S)
    service.check()


def test_a_failure_is_seen_when_the_jobs_are_closed(service: Service) -> None:
    """The next loop's jobs may need the same port."""
    jobs, closing, goes_on = Jobs(service, failing=(0,)), threading.Event(), threading.Event()

    def close() -> None:
        closing.set()
        assert goes_on.wait(DEADLINE_S)

    jobs.close = close  # type: ignore[method-assign]
    loop = run(service, jobs)
    assert closing.wait(DEADLINE_S)
    assert loop.is_active and loop.exception() is None
    goes_on.set()
    with pytest.raises(RuntimeError, match="batch 0"):
        loop.wait(DEADLINE_S)


def test_while_there_are_suspects_no_second_batch_is_under_way(service: Service) -> None:
    records = len(service.records)
    SuspectsFile(service.folder.suspects).save((Suspects(0, 0, records, 1),))
    jobs = Jobs(service)
    assert run(service, jobs).wait(DEADLINE_S)
    assert jobs.most == 1 and jobs.calls > 3
    service.check()
