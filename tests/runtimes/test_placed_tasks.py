"""Matchers that read the log themselves, several in a task: what they find is what AP would send."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from test_spread_life import Life
from tests.doses import drawn

from fieldfare.forwarding import POLICIES
from fieldfare.runtimes.spark.distributed import tasks
from fieldfare.runtimes.spark.distributed.loads import encode_routing, routing_of
from fieldfare.runtimes.spark.distributed.tasks import Spread
from fieldfare.runtimes.spark.elastic.pinned import (
    MatchPinned,
    OpenPinned,
    PinnedBatch,
    PinnedMatching,
    PinnedTask,
    WritePinned,
    open_placed,
    place_tasks,
)
from fieldfare.runtimes.spark.failures import reason
from fieldfare.runtimes.spark.range_task import RecordRange


class PlacedLife(Life):
    """Batches go to tasks of some matchers each, any of which may run twice, and be heard either time."""

    def _attempt(self, start: int, end: int) -> None:
        random = self.random
        manifest = self.store.newest()
        assert manifest is not None
        routing = encode_routing(routing_of(manifest, self.folder.slices, 3.0))
        matchers = random.randrange(1, 5)
        spread = Spread(matchers, 2, random.choice(POLICIES), random.randrange(9))
        groups: list[list[int]] = [[] for _ in range(random.randrange(1, matchers + 1))]
        for matcher in range(matchers):
            random.choice(groups).append(matcher)
        found: list[tuple[bytes, bytes]] = []
        for group in filter(None, groups):
            self.go_on()
            task = PinnedTask(tuple(group))
            if random.random() < 0.3:
                rows = [msgspec.json.encode(task).decode()]
                list(OpenPinned(self.folder, manifest.number, matchers)(rows))
            batch = PinnedBatch((RecordRange(0, start, end, manifest.number, routing),), spread.exits)
            runs = [list(MatchPinned(self.folder, spread).found(task, batch)) for _ in range(2)]
            run = random.choice(runs)
            found += zip(run[::2], run[1::2], strict=True)
        random.shuffle(found)
        assert len({exit for exit, _ in found}) == 1
        assert len(list(WritePinned(self.folder)(0, (row for _, row in found)))) == 1


@settings(max_examples=drawn(60))
@given(st.randoms(use_true_random=False))
def test_each_event_meets_each_slice_once_however_matchers_are_placed(random: Random) -> None:
    with tempfile.TemporaryDirectory() as root:
        life = PlacedLife(Path(root), random)
        try:
            life.run()
        finally:
            life.log.close()
            tasks._services.clear()


def test_work_of_a_slice_is_measured_in_cpu_seconds(tmp_path: Path) -> None:
    """A task that waits costs nothing: what it says it took is no more than its process did."""
    life = PlacedLife(tmp_path, Random(3))
    life.publish()
    manifest = life.store.newest()
    assert manifest is not None
    routing = encode_routing(routing_of(manifest, life.folder.slices, 3.0))
    batch = PinnedBatch((RecordRange(0, 0, len(life.records), manifest.number, routing),), 1)
    processor = tasks.Processor()
    found = list(MatchPinned(life.folder, Spread(2, 1)).found(PinnedTask((0, 1)), batch))
    most_s = processor.taken_s()
    read = [pa.ipc.read_record_batch(pa.py_buffer(row), tasks.FINDINGS) for row in found[1::2]]
    work = [each for row in read for some in row["work"].to_pylist() for each in some or ()]
    assert {each["executor"] for each in work} <= {Path.cwd().name}
    assert 0 <= sum(each["cpu_s"] for each in work) <= most_s
    life.log.close()
    tasks._services.clear()


def test_a_place_that_spark_does_not_have_is_no_obstacle(session: SparkSession, tmp_path: Path) -> None:
    """The executor has gone: its tasks run elsewhere, batch after batch, and find the same."""
    life = PlacedLife(tmp_path, Random(5))
    manifest = life.store.newest()
    assert manifest is not None
    routing = encode_routing(routing_of(manifest, life.folder.slices, 3.0))
    places = [PinnedTask((0, 2), "executor_127.0.0.1_7"), PinnedTask((1,))]
    assert len(open_placed(place_tasks(session.sparkContext, places), life.folder, manifest.number, 3)) == 2
    matching = PinnedMatching(session.sparkContext, life.folder, Spread(3, 2), places)
    start = 0
    for exits in (2, 1, 2):
        life.publish()
        end = len(life.records)
        summaries = matching.match([RecordRange(0, start, end, manifest.number, routing)], exits)
        assert [(each["start"], each["end"]) for each in summaries] == [(start, end)]
        assert all(each["cpu_s"] >= 0 for summary in summaries for each in summary["work"])
        start = end
    life.check()
    with pytest.raises(PythonException) as failed:
        matching.match([RecordRange(0, start, start + 9, manifest.number, routing)], 1)
    assert reason(failed.value).endswith(f"the log ends before record {start + 9}, the end of the batch")
    life.log.close()
