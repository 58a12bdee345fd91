"""Parts of the query on a log of several partitions with holes, called as Spark would call them."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "storage"))

import pyarrow as pa
from indexing import bring_index_up_to_date
from memory_log import MemoryEventLog

from fieldfare.filters import compile_filter
from fieldfare.model import Position, Subscription
from fieldfare.planning.cuts import CutSettings
from fieldfare.runtimes.spark import batch_planner, range_task, replay_planner, replay_task
from fieldfare.runtimes.spark.batch_planner import BatchPlanner
from fieldfare.runtimes.spark.batches import MicroBatchSettings, Offset, ends_of_batch
from fieldfare.runtimes.spark.distributed import tasks
from fieldfare.runtimes.spark.distributed.tasks import Dispatch, MatchConsignments, Spread, WriteBlocks
from fieldfare.runtimes.spark.range_task import RangeMatcher, RecordRange, RecordsError
from fieldfare.runtimes.spark.recovery import Recovery
from fieldfare.runtimes.spark.replay_planner import ReplayPlanner
from fieldfare.runtimes.spark.replay_task import ReplayMatcher
from fieldfare.storage import open_match_log, open_registry
from fieldfare.storage.event_log import NewRecord, ends_of, starts_of
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import Quarantine
from fieldfare.storage.registry import Put

pytestmark = pytest.mark.long

FILTERS = ("n >= 0", "n % 3 = 1", "n BETWEEN 10 AND 40", "n = 7 OR n > 90")
SETTINGS = MicroBatchSettings(max_events=12, wait_ms=0, poll_ms=0, split_bytes=40, tasks=2)
POISON = b"{\n"
MATCHERS = pytest.mark.parametrize("matchers", [1, 3])
"""Tasks match what they read, or send it to the matchers that hold its slices."""

Place = tuple[int, int, int]


class Death(Exception):
    """The process that was at work is gone."""


class Query:
    """A service's folder, a log of some partitions, and the streaming query over it, at some matchers."""

    def __init__(self, root: Path, log: MemoryEventLog, matchers: int = 1) -> None:
        self.folder, self.log, self.settings = DataFolder(root), log, replace(SETTINGS, matchers=matchers)
        self.folder.make()
        self.registry = open_registry(self.folder.registry_url)
        self.registry.create_space("default")
        for number, text in enumerate(FILTERS):
            put = Put("default", str(number), text, "sql", compile_filter(text).compiled)
            self.registry.apply([put], ends_of(log), 0)
        bring_index_up_to_date(self.folder, CutSettings.parsed("hash", matchers, [], 1 << 40))
        self.matches = open_match_log(self.folder.matches_url)
        self.quarantine = Quarantine(self.folder.quarantine)
        self.deadly: Place | None = None

    def append(self, numbers: Iterator[int] | range, events: int = 2) -> None:
        for n in numbers:
            lines = b"".join(json.dumps({"n": n + i}).encode() + b"\n" for i in range(events))
            self.log.append([NewRecord("default", lines, events, stamp=self.registry.revision())])

    def append_poison(self) -> tuple[int, int]:
        (at,) = self.log.append([NewRecord("default", POISON, 1, stamp=self.registry.revision())])
        return at.partition, at.offset

    def recovery(self) -> Recovery:
        return Recovery(self.folder, self.log, self.matches, self.settings, lambda: 5)

    def run(self, most_batches: int = 1 << 30) -> int:
        """Run a query until everything is matched, or at most `most_batches` batches; raise Spark's error."""
        planner = BatchPlanner(self.folder, self.settings)
        at: Offset = {"ends": planner.first(), "manifest": 0}
        batches = 0
        while batches < most_batches and (end := planner.next_end(at)) != at:
            end = json.loads(json.dumps(end))
            planned = planner.tasks(at["ends"], end["ends"])
            assert 1 <= len(planned) <= self.settings.tasks
            routing = planner.routing(end["manifest"])
            for each in chain(*planned):
                if self.deadly and each[0] == self.deadly[0] and each[1] <= self.deadly[1] < each[2]:
                    raise Death
                self.match(RecordRange(*each, end["manifest"], routing))
            at = end
            batches += 1
        return batches

    def match(self, wanted: RecordRange) -> None:
        """Match a range as the tasks do."""
        if wanted.routing is None:
            RangeMatcher(self.folder, lambda: 5.0).match(wanted)
            return
        spread = Spread(self.settings.matchers, self.settings.tasks)
        row = pa.RecordBatch.from_pylist([asdict(wanted)])
        found = MatchConsignments(self.folder)(Dispatch(self.folder, spread)(iter([row])))
        list(WriteBlocks(self.folder)(found))

    def expected(self) -> list[set[Place]]:
        tests = [compile_filter(text).matches for text in FILTERS]
        found: list[set[Place]] = [set() for _ in FILTERS]
        for partition in self.log.partitions:
            for record in partition.read(partition.start(), partition.end()):
                for index, line in enumerate(record.payload.splitlines()):
                    if line != POISON.strip():
                        for own, test in zip(found, tests, strict=True):
                            if test(json.loads(line)):
                                own.add((partition.number, record.offset, index))
        return found

    def found(self) -> list[set[Place]]:
        return [set(places_of(self, self.folder.matches_url, number)) for number in self._numbers()]

    def _numbers(self) -> list[int]:
        return [
            version.number
            for version in self.registry.versions(self.registry.revision(), 0)
            if version.filter
        ]


def places_of(query: Query, url: str, number: int, starts: tuple[int, ...] | None = None) -> Iterator[Place]:
    for partition, at in enumerate(starts or starts_of(query.log)):
        matches = open_match_log(url).partition(partition)
        while (block := matches.block_at(at)) is not None:
            for offset, index in zip(*block.matches_of(number, at), strict=True):
                yield partition, int(offset), int(index)
            at = block.end
        assert at == query.log.partitions[partition].end()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> MemoryEventLog:
    log = MemoryEventLog(3, seed=4)
    for module in (batch_planner, range_task, replay_planner, replay_task, tasks):
        if hasattr(module, "open_event_log"):
            monkeypatch.setattr(module, "open_event_log", lambda url: log)
    return log


@contextmanager
def dying() -> Iterator[None]:
    try:
        yield
    except Death:
        pass


@MATCHERS
def test_every_partition_is_matched_completely_whenever_the_query_is_killed(
    tmp_path: Path, opened: MemoryEventLog, matchers: int
) -> None:
    query, chance = Query(tmp_path, opened, matchers), random.Random(7)
    for round in range(12):
        query.append(range(round * 9, round * 9 + chance.randrange(9)))
        if round % 3:
            query.run(most_batches=chance.randrange(4))
        else:
            with dying():  # in some range of some task
                partition = chance.choice(opened.partitions)
                query.deadly = (partition.number, max(0, partition.end() - 1), 0)
                query.run()
            query.deadly = None
    query.run()
    assert query.found() == query.expected()
    assert query.run() == 0


@MATCHERS
def test_a_record_that_cannot_be_matched_is_set_aside_by_partition(
    tmp_path: Path, opened: MemoryEventLog, matchers: int
) -> None:
    """Two of them, wherever they stand; what is around them is matched, and nothing else is suspected."""
    query = Query(tmp_path, opened, matchers)
    query.append(range(20))
    bad = {query.append_poison()}
    query.append(range(20, 30))
    bad.add(query.append_poison())
    query.append(range(30, 40))
    recovery, attempts = query.recovery(), 0
    while True:
        try:
            query.run()
            break
        except RecordsError as error:
            attempts += 1
            assert attempts < 30
            report = f"org.apache.spark...\n RecordsError: {error}"
            assert recovery.failed(report, str(error)) == 0.0
    assert set(query.quarantine.places()) == bad
    for place in bad:
        aside = query.quarantine.get(*place)
        assert aside is not None and (aside.partition, aside.offset, aside.space) == (*place, "default")
    assert not query.folder.suspects.exists()
    assert query.found() == query.expected()
    (first, offset), *others = sorted(bad)
    query.quarantine.forget_before(tuple(offset + 1 if n == first else 0 for n in range(3)))
    assert query.quarantine.places() == others


def test_a_process_that_dies_without_a_word_is_followed_to_the_record_in_its_partition(
    tmp_path: Path, opened: MemoryEventLog
) -> None:
    query = Query(tmp_path, opened)
    query.append(range(30))
    number = 1
    deadly = next(iter(opened.partitions[number].read(3, 1 << 30))).offset
    query.deadly = (number, deadly, 0)
    deaths = 0
    while True:
        recovery = query.recovery()
        recovery.start(predecessor_died=deaths > 0, told=starts_of(opened))
        try:
            query.run()
            break
        except Death:
            deaths += 1
            assert deaths < 60
    assert query.quarantine.places() == [(number, deadly)]
    expected = [{place for place in own if place[:2] != (number, deadly)} for own in query.expected()]
    assert query.found() == expected


def test_a_batch_for_more_tasks_holds_more_in_each_partition() -> None:
    """Or the more machines there are the more of their time goes by while batches are planned."""
    log = MemoryEventLog(2, seed=6)
    for _ in range(200):
        log.append([NewRecord("default", b'{"n": 1}\n', 1)])

    def ends(tasks: int) -> list[int]:
        start = starts_of(log)
        return [
            end - at
            for at, end in zip(start, ends_of_batch(log, start, replace(SETTINGS, tasks=tasks)), strict=True)
        ]

    assert ends(1) == ends(2) == [6, 6]
    assert ends(6) == [18, 18]


@MATCHERS
def test_a_replay_is_matched_in_every_partition_up_to_its_boundary(
    tmp_path: Path, opened: MemoryEventLog, monkeypatch: pytest.MonkeyPatch, matchers: int
) -> None:
    monkeypatch.setattr(replay_planner, "PIECE_EVENTS", 6)
    query = Query(tmp_path, opened, matchers)
    query.append(range(25))
    query.run()
    text = "n % 2 = 0"
    starts = tuple(Position(each.number, 2 * each.number, 0) for each in opened.partitions)
    put = Put("default", "past", text, "sql", compile_filter(text).compiled, start=starts)
    (made,) = query.registry.apply([put], ends_of(opened), 0)
    assert isinstance(made, Subscription)
    replay = query.registry.replay(made.number)
    assert replay is not None
    seams = ends_of(opened)
    query.append(range(25, 60))
    planner = ReplayPlanner(query.folder)
    while pieces := planner.next_round(2):
        for piece in pieces:
            wanted = RecordRange(piece.partition, piece.start, piece.end, 0)
            ReplayMatcher(query.folder, piece.replay, lambda: 5.0).match(wanted)
    found = []
    url = query.folder.replay_url(replay.number, replay.revision)
    for partition, start in enumerate(replay.starts):
        matches, at = open_match_log(url).partition(partition), start
        while (block := matches.block_at(at)) is not None:
            offsets, indexes = block.matches_of(replay.number, at)
            found += [(partition, *place) for place in zip(offsets.tolist(), indexes.tolist(), strict=True)]
            at = block.end
        assert seams[partition] <= at <= opened.partitions[partition].end()
    expected = [
        (partition.number, record.offset, index)
        for partition, start, seam in zip(opened.partitions, replay.starts, seams, strict=True)
        for record in partition.read(start, seam)
        for index, line in enumerate(record.payload.splitlines())
        if json.loads(line)["n"] % 2 == 0
    ]
    assert found == expected
