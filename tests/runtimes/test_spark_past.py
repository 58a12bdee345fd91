"""The pipeline's side of subscriptions that begin in the past: what is planned, matched, and tried again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from fieldfare.filters import compile_filter
from fieldfare.model import Position, Subscription
from fieldfare.runtimes.spark import replay_planner
from fieldfare.runtimes.spark.range_task import RecordRange
from fieldfare.runtimes.spark.replay_planner import ReplayPlanner
from fieldfare.runtimes.spark.replay_task import Piece, ReplayMatcher, match_pieces
from fieldfare.runtimes.spark.replays import ReplayRunner
from fieldfare.storage import EventLog, Registry, open_event_log, open_match_log, open_registry
from fieldfare.storage.event_log import NewRecord, RetentionPolicy
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.registry import Put, Remove, Replay


class Service:
    """A log of records of two events each, and subscriptions that begin at its start."""

    def __init__(self, root: Path, records: int) -> None:
        self.folder = DataFolder(root)
        self.folder.make()
        self.log: EventLog = open_event_log(self.folder.log_url)
        self.registry: Registry = open_registry(self.folder.registry_url)
        self.registry.create_space("default")
        self.append(range(records))

    def append(self, numbers: Sequence[int], stamp: int = 0) -> None:
        self.log.append([NewRecord("default", lines(n), 2, stamp=stamp) for n in numbers])

    def begin(self, id: str, filter: str = "n >= 0", offset: int = 0) -> Replay:
        compiled = compile_filter(filter).compiled
        put = Put("default", id, filter, "sql", compiled, start=(Position(0, offset, 0),))
        (made,) = self.registry.apply([put], (self.log.partitions[0].end(),), 0)
        assert isinstance(made, Subscription)
        replay = self.registry.replay(made.number)
        assert replay is not None
        return replay

    def found(self, replay: Replay) -> list[tuple[int, int]]:
        """Where the events stand that its own log has, each as often as it is there."""
        matches = open_match_log(self.folder.replay_url(replay.number, replay.revision)).partition(0)
        places, offset = [], replay.starts[0]
        while (block := matches.block_at(offset)) is not None:
            offsets, indexes = block.matches_of(replay.number, offset)
            places += list(zip(offsets.tolist(), indexes.tolist(), strict=True))
            offset = block.end
        return places


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 180
    while not condition():
        assert time.monotonic() < deadline_s, "it did not come true in time"
        time.sleep(0.01)


def lines(n: int) -> bytes:
    return b"".join(json.dumps({"id": str(n), "n": n + i}).encode() + b"\n" for i in (0, 1))


def match(folder: DataFolder, pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        ReplayMatcher(folder, piece.replay, lambda: 5.0).match(
            RecordRange(piece.partition, piece.start, piece.end, 0)
        )


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of three records, the first of one."""
    monkeypatch.setattr(replay_planner, "PIECE_EVENTS", 6)
    yield


@pytest.mark.usefixtures("small_pieces")
def test_open_replays_get_pieces_in_turn_and_a_single_one_gets_all(tmp_path: Path) -> None:
    service = Service(tmp_path, 9)
    first, second = service.begin("a"), service.begin("b", offset=5)
    planner = ReplayPlanner(service.folder)
    planned = []
    while pieces := planner.next_round(3):
        planned.append([(piece.replay.number, piece.start, piece.end) for piece in pieces])
        match(service.folder, pieces)
    assert planned == [
        [(1, 0, 1), (2, 5, 6), (1, 1, 4)],
        [(2, 6, 9), (1, 4, 7), (1, 7, 9)],
    ]
    assert service.found(first) == [(n, i) for n in range(9) for i in (0, 1)]
    assert service.found(second) == [(n, i) for n in range(5, 9) for i in (0, 1)]


@pytest.mark.usefixtures("small_pieces")
def test_a_replay_ends_with_the_first_record_after_the_subscription(tmp_path: Path) -> None:
    """Events that were on their way when it was created are past, too: their stamp says so."""
    service = Service(tmp_path, 3)
    replay = service.begin("a")
    planner = ReplayPlanner(service.folder)
    while pieces := planner.next_round(2):
        match(service.folder, pieces)
    service.append([3], stamp=0)
    service.append([4, 5], stamp=replay.revision)
    while pieces := planner.next_round(2):
        match(service.folder, pieces)
    assert service.found(replay) == [(n, i) for n in range(4) for i in (0, 1)]
    service.registry.apply([Remove("default", "a")], (6,), 0)
    service.append([6], stamp=2)
    assert planner.next_round(2) == []


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("killed_after", range(5))
def test_the_next_driver_fills_the_gaps_between_a_killed_ones_blocks(
    tmp_path: Path, killed_after: int
) -> None:
    """Of two tasks of a round the later one may be done and the earlier not, and a file may be unfinished."""
    service = Service(tmp_path, 20)
    replay = service.begin("a", "n % 3 = 0")
    planner = ReplayPlanner(service.folder)
    for round in range(killed_after + 1):
        pieces = planner.next_round(2)
        match(service.folder, pieces if round < killed_after else pieces[1:])
    folder = service.folder.replay_path(replay.number, replay.revision)
    (folder / "0000").mkdir(parents=True, exist_ok=True)
    (folder / "0000" / ".unfinished").write_bytes(b"torn")
    planner = ReplayPlanner(service.folder)
    while pieces := planner.next_round(2):
        match(service.folder, pieces)
    expected = [(n, i) for n in range(20) for i in (0, 1) if (n + i) % 3 == 0]
    assert service.found(replay) == expected


@pytest.mark.usefixtures("small_pieces")
def test_a_record_that_cannot_be_matched_is_found_and_passed_over(tmp_path: Path) -> None:
    service = Service(tmp_path, 9)
    replay, other = service.begin("a"), service.begin("b", "n = 4")
    planner, tried = ReplayPlanner(service.folder), 0
    while pieces := planner.next_round(2):
        bad = [piece for piece in pieces if piece.start <= 4 < piece.end and piece.replay == replay]
        match(service.folder, [piece for piece in pieces if piece not in bad])
        if bad:
            tried += 1
            planner.failed(pieces, "RecordsError: something", "it failed")
    assert 2 <= tried <= 5
    assert service.found(replay) == [(n, i) for n in range(9) if n != 4 for i in (0, 1)]
    assert service.found(other) == [(3, 1), (4, 0)]


def test_records_removed_between_plan_and_match_are_skipped(tmp_path: Path) -> None:
    """The round failed, and all pasts waited for the next one; seed 508178 of the simulation."""
    service = Service(tmp_path, 9)
    replay = service.begin("a")
    (first, *_) = pieces = ReplayPlanner(service.folder).next_round(1)
    assert (first.start, first.end) == (0, 9)
    service.log.retain(RetentionPolicy(max_bytes=1), (6,))
    assert service.log.partitions[0].start() == 6
    match(service.folder, pieces)
    assert service.found(replay) == [(n, i) for n in range(6, 9) for i in (0, 1)]


@pytest.mark.usefixtures("small_pieces")
def test_records_removed_while_a_round_is_planned_delay_no_other_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(tmp_path, 9)
    service.begin("a")
    later = service.begin("b", offset=7)
    planner = ReplayPlanner(service.folder)
    take_in = planner._absorb

    def and_retain(replays: Sequence[Replay]) -> None:
        take_in(replays)
        service.log.retain(RetentionPolicy(max_bytes=1), (6,))

    monkeypatch.setattr(planner, "_absorb", and_retain)
    planned = [[(piece.replay.number, piece.start) for piece in planner.next_round(1)] for _ in range(2)]
    assert planned == [[(later.number, 7)], [(1, 6)]]


def test_spark_matches_a_piece_in_each_task(session: SparkSession, tmp_path: Path) -> None:
    service = Service(tmp_path, 50)
    replays = [service.begin("a", "n % 2 = 0"), service.begin("b", "n > 40", offset=7)]
    events = match_pieces(
        session.sparkContext, service.folder, [Piece(replays[0], 0, 0, 50), Piece(replays[1], 0, 7, 50)]
    )
    assert events == 100 + 86
    assert service.found(replays[0]) == [(n, i) for n in range(50) for i in (0, 1) if (n + i) % 2 == 0]
    assert service.found(replays[1]) == [(n, i) for n in range(50) for i in (0, 1) if n + i > 40]


def test_the_runner_matches_replays_requested_while_it_runs(session: SparkSession, tmp_path: Path) -> None:
    service = Service(tmp_path, 30)
    runner = ReplayRunner(session.sparkContext, service.folder, 2)
    runner.start()
    try:
        replays = [service.begin(id, "n % 7 = 1") for id in "abc"]
        expected = [(n, i) for n in range(30) for i in (0, 1) if (n + i) % 7 == 1]
        for replay in replays:
            matches = open_match_log(service.folder.replay_url(replay.number, replay.revision)).partition(0)
            until(lambda matches=matches: matches.end() == 30)  # type: ignore[misc]
            assert service.found(replay) == expected
        # Events go on to come: the past of who comes now is longer.
        service.append(range(30, 33), stamp=3)
        later = service.begin("d", "n % 7 = 1", offset=29)
        matches = open_match_log(service.folder.replay_url(later.number, later.revision)).partition(0)
        until(lambda: matches.end(29) == 33)
        assert service.found(later) == [(n, i) for n in range(29, 33) for i in (0, 1) if (n + i) % 7 == 1]
    finally:
        runner.close()
