"""AP, M and EP without Spark, while subscriptions change, spaces are cut again and tasks run again."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_support import SPACES, History, payload_of, random_event, random_filter, random_partitioning
from test_indexer import snapshots_of
from tests.doses import drawn

from fieldfare.forwarding import POLICIES
from fieldfare.matching.libraries import PLAIN
from fieldfare.model import Change
from fieldfare.partitioning import ONE_SLICE, HashPartitioning, Partitioning
from fieldfare.pipeline.indexer import Indexer
from fieldfare.runtimes.indexer.index_writer import write_step
from fieldfare.runtimes.spark.distributed import tasks
from fieldfare.runtimes.spark.distributed.loads import MeasuredLoads, encode_routing, routing_of
from fieldfare.runtimes.spark.distributed.tasks import Dispatch, MatchConsignments, Spread, WriteBlocks
from fieldfare.runtimes.spark.range_task import RANGES
from fieldfare.storage import open_event_log, open_index_store, open_match_log
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.folder import DataFolder

ATTEMPTS_MAX = 9


class Life:
    """A log and an index that change at random, and what must come out of them."""

    def __init__(self, root: Path, random: Random) -> None:
        self.folder, self.random = DataFolder(root), random
        self.folder.make()
        self.store = open_index_store(self.folder.index_url)
        self.log = open_event_log(self.folder.log_url)
        self.history, self.indexer = History(), Indexer(new_cut=self._new_cut)
        self.changes: list[Change] = []
        self.records: list[tuple[str, int, list[dict[str, Any]]]] = []
        self.cuts = 0
        self.change(6)

    def _new_cut(self, space: str) -> Partitioning:
        return self.random.choice([ONE_SLICE, HashPartitioning(2, 3)])

    def change(self, count: int) -> None:
        new = []
        for _ in range(count):
            number = self.random.randrange(10)
            text = random_filter(self.random, 1) if self.random.random() < 0.75 else None
            new.append(self.history.change(SPACES[number % 2], number, text))
        self.changes += new
        write_step(self.store, self.indexer.apply(new, self.history.revision))

    def cut(self) -> None:
        """Cut a space again, while changes exist that its new snapshots do not include."""
        newest = self.store.newest()
        assert newest is not None
        revision = self.random.randint(newest.snapshot_revision, self.history.revision)
        known = {name: space.partitioning for name, space in newest.spaces.items()}
        again = {name: random_partitioning(self.random) for name in known if self.random.random() < 0.7}
        later = [change for change in self.changes if change.revision > revision]
        parts = snapshots_of(self.history, revision, 0, PLAIN, known | again)
        write_step(self.store, self.indexer.rebase(parts, revision, again, later))
        self.cuts += len(again)

    def publish(self) -> None:
        for _ in range(self.random.randrange(1, 4)):
            space = self.random.choice(SPACES)
            events = [random_event(self.random) for _ in range(self.random.randrange(1, 4))]
            payload = payload_of(events, self.random)
            self.log.append([NewRecord(space, payload, len(events), stamp=self.history.revision)])
            self.records.append((space, self.history.revision, events))

    def go_on(self) -> None:
        """Do something that may happen between any two tasks; old manifests are removed immediately."""
        what = self.random.choice(["nothing", "change", "cut", "cut", "collect", "another process"])
        if what == "change":
            self.change(self.random.randrange(1, 4))
        elif what == "cut":
            self.cut()
            if self.random.random() < 0.7:  # the previous manifest is no longer needed
                self.store.collect(self.store.greatest_number())
                tasks._services.clear()
        elif what == "collect":
            self.store.collect(self.store.greatest_number())
        elif what == "another process":
            tasks._services.clear()

    def match(self, start: int, end: int) -> int:
        """Match a batch, in several attempts if necessary; return how often it was planned again."""
        for attempt in range(ATTEMPTS_MAX):
            try:
                self._attempt(start, end)
            except IndexStoreError as error:
                assert "partitioned again" in str(error)
                continue
            return attempt
        raise AssertionError(f"not matched in {ATTEMPTS_MAX} attempts")

    def _attempt(self, start: int, end: int) -> None:
        random = self.random
        manifest = self.store.newest()
        assert manifest is not None
        measured = MeasuredLoads()
        if random.random() < 0.5:
            sliced = [(name, len(space.slices)) for name, space in manifest.spaces.items()]
            work = [
                (0, name, random.randrange(count), random.randrange(1, 99), random.uniform(0.01, 1), 0)
                for name, count in sliced
            ]
            measured.learn(manifest, work, 1.0, 2.0)
            measured.save(self.folder.slices, manifest.number)
        routing = encode_routing(routing_of(manifest, self.folder.slices, 3.0))
        row = dict(zip(RANGES.names, (0, start, end, manifest.number, routing), strict=True))
        matchers = random.randrange(1, 4)
        spread = Spread(matchers, 1, random.choice(POLICIES), random.randrange(9))

        def sent() -> list[pa.RecordBatch]:
            return list(Dispatch(self.folder, spread)(iter([pa.RecordBatch.from_pylist([row], RANGES)])))

        first = second = sent()
        if random.random() < 0.5:  # what it sent was lost with its executor
            self.go_on()
            second = sent()
        found: list[pa.RecordBatch] = []
        for matcher in range(matchers):
            self.go_on()
            chosen = [row for row in random.choice([first, second]) if row["matcher"][0].as_py() == matcher]
            found += MatchConsignments(self.folder)(iter(chosen))
        random.shuffle(found)
        assert len(list(WriteBlocks(self.folder)(iter(found)))) == 1

    def run(self) -> None:
        """A few batches, between which anything may happen, and whether all met what they must."""
        for _ in range(3):
            self.go_on()
            start = len(self.records)
            self.publish()
            self.go_on()
            self.match(start, len(self.records))
        self.check()

    def check(self) -> None:
        log = open_match_log(self.folder.matches_url).partition(0)
        lists: list[list[int]] = []
        at = 0
        while at < len(self.records):
            block = log.block_at(at)
            assert block is not None
            indptr, numbers = block.by_event()
            bounds = indptr.tolist()
            lists += [numbers[a:b].tolist() for a, b in pairwise(bounds)]
            at = block.end
        expected = [
            self.history.expected(space, stamp, event)
            for space, stamp, events in self.records
            for event in events
        ]
        assert [sorted(each) for each in lists] == expected


@settings(max_examples=drawn(60))
@given(st.randoms(use_true_random=False))
def test_matches_are_exact_whatever_happens_between_tasks(random: Random) -> None:
    with tempfile.TemporaryDirectory() as root:
        life = Life(Path(root), random)
        try:
            life.run()
        finally:
            life.log.close()
            tasks._services.clear()


def test_a_cut_while_events_are_in_flight_is_detected(tmp_path: Path) -> None:
    """Some of many lives have batches that are planned again; otherwise nothing of the above was tested."""
    lives = [Life(tmp_path / str(seed), Random(seed)) for seed in range(8)]
    again = 0
    for life in lives:
        for _ in range(3):
            start = len(life.records)
            life.publish()
            again += life.match(start, len(life.records))
        life.check()
        life.log.close()
        tasks._services.clear()
    assert again > 0
    assert sum(life.cuts for life in lives) > 8


def test_a_policy_that_does_not_exist_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'rnd'.*adaptive, response_time"):
        Spread(2, 1, "rnd")
