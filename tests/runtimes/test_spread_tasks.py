"""AP and M one after the other, without Spark, while manifests come and go in between."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from encrypted_support import encrypt_filter, entry, event, match_naive

from fieldfare.client.encryption import SpaceKey
from fieldfare.filters import compile_filter
from fieldfare.forwarding import POLICIES, LoadReport
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.partitioning import AttributeSpace, Axis, HashPartitioning, Partitioning
from fieldfare.partitioning.axis import place_before
from fieldfare.pipeline.slices import cut_of
from fieldfare.runtimes.spark.distributed import tasks
from fieldfare.runtimes.spark.distributed.loads import Routing, SpaceRouting, encode_routing, routing_of
from fieldfare.runtimes.spark.distributed.tasks import Dispatch, MatchConsignments, Spread, WriteBlocks
from fieldfare.storage import open_event_log, open_index_store, open_match_log
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.match_log import spent_by_space
from fieldfare_lab.spark.fixed_index import write_space

ANY_CALLER = list(range(20))


def entry_of(number: int, text: str) -> IndexEntry:
    filter = compile_filter(text)
    return IndexEntry(number + 1, number, 0, OPEN_END, filter.compiled, filter.text, "sql")


class Scene:
    """A record that 20 subscriptions match, in slices at two matchers."""

    def __init__(self, root: Path) -> None:
        self.folder = DataFolder(root)
        self.folder.make()
        self.store = open_index_store(self.folder.index_url)
        self.entries = [entry_of(n, "x = 1") for n in ANY_CALLER]
        log = open_event_log(self.folder.log_url)
        log.append([NewRecord("mine", b'{"x": 1}\n', 1)])
        log.close()
        self.planned_with = self.index(HashPartitioning(2))

    def index(self, partitioning: Partitioning) -> int:
        """Write a manifest; no other is left."""
        number = write_space(self.store, "mine", self.entries, partitioning).number
        self.store.collect(number)
        return number

    def routing(self) -> str:
        """How the batch is planned."""
        manifest = self.store.manifest(self.planned_with)
        return encode_routing(routing_of(manifest, self.folder.slices, 1.0))

    def sent(self, routing: str | None = None) -> list[pa.RecordBatch]:
        """Return the rows that AP sends to the matchers."""
        row = {"partition": 0, "start": 0, "end": 1, "manifest": self.planned_with}
        row |= {"routing": routing or self.routing()}
        return list(Dispatch(self.folder, Spread(2, 1))(iter([pa.RecordBatch.from_pylist([row])])))

    def matched(self, sent: list[pa.RecordBatch]) -> list[int]:
        """Whom M and EP find."""
        found = MatchConsignments(self.folder)(iter(sent))
        assert len(list(WriteBlocks(self.folder)(found))) == 1
        block = open_match_log(self.folder.matches_url).partition(0).block_at(0)
        assert block is not None and block.spaces == {"mine": block.matches}
        return sorted(block.numbers().tolist())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    yield Scene(tmp_path)
    tasks._services.clear()


@pytest.mark.parametrize("elsewhere", [True, False], ids=["another process", "the same process"])
def test_a_slice_that_goes_before_it_is_first_needed_is_a_newer_ones(scene: Scene, elsewhere: bool) -> None:
    """The worker was paused for longer than manifests are kept, or nothing visited the slice till then."""
    sent = scene.sent()
    scene.index(HashPartitioning(2))
    if elsewhere:
        tasks._services.clear()
    assert scene.matched(sent) == ANY_CALLER


@pytest.mark.parametrize("slices", [1, 2])
def test_a_block_has_the_matching_time_of_each_space_with_several_matchers(scene: Scene, slices: int) -> None:
    """A space of one slice is matched by AP itself, others are by M: either way it is charged."""
    scene.planned_with = scene.index(HashPartitioning(slices))
    assert scene.matched(scene.sent()) == ANY_CALLER
    block = open_match_log(scene.folder.matches_url).partition(0).block_at(0)
    assert block is not None
    assert spent_by_space(block.extra)["mine"] > 0


@pytest.mark.parametrize("partitioning", [HashPartitioning(2, 3), HashPartitioning(3)], ids=repr)
@pytest.mark.parametrize("elsewhere", [True, False], ids=["another process", "the same process"])
def test_slices_of_another_cut_are_never_searched_for_those_that_events_were_sent_to(
    scene: Scene, partitioning: Partitioning, elsewhere: bool
) -> None:
    """Its slices hold other subscriptions now. The batch is planned again, and no record is blamed."""
    sent = scene.sent()
    scene.planned_with = scene.index(partitioning)
    if elsewhere:
        tasks._services.clear()
    with pytest.raises(IndexStoreError, match="partitioned again"):
        scene.matched(sent)
    assert scene.matched(scene.sent()) == ANY_CALLER


def test_encrypted_events_match_at_several_matchers_like_plain_ones(scene: Scene) -> None:
    """AP does not look into them, and each matcher has some of the filters."""
    key = SpaceKey.generate({"data.x": (0, 99, 1)}, ["data.word"])
    texts = [f"data.x BETWEEN {n} AND {2 * n}" for n in range(20)]
    texts += [f"data.x < {n} AND data.word = '{'ab'[n % 2]}'" for n in range(20)]
    events = [event(x=n * 37 % 100, word="abc"[n % 3]) for n in range(50)]
    scene.entries = [
        replace(entry(n, encrypt_filter(key, text)), valid_from=0) for n, text in enumerate(texts)
    ]
    scene.planned_with = scene.index(HashPartitioning(2, 5))
    lines = key.seal_lines([json.dumps(each).encode() for each in events])
    log = open_event_log(scene.folder.log_url)
    payload = b"\n".join(lines) + b"\n"
    start = log.append([NewRecord("mine", payload, len(events))])[0].offset
    log.close()
    row = {"partition": 0, "start": start, "end": start + 1, "manifest": scene.planned_with}
    ranges = pa.RecordBatch.from_pylist([row | {"routing": scene.routing()}])
    sent = Dispatch(scene.folder, Spread(2, 1))(iter([ranges]))
    assert len(list(WriteBlocks(scene.folder)(MatchConsignments(scene.folder)(sent)))) == 1
    block = open_match_log(scene.folder.matches_url).partition(0).block_at(start)
    assert block is not None
    found: list[list[int]] = [[] for _ in events]
    for number in range(len(texts)):
        for place in block.matches_of(number, start)[1].tolist():
            found[place].append(number)
    assert found == match_naive(texts, events)


@pytest.mark.parametrize("again", [HashPartitioning(1), HashPartitioning(2)], ids=repr)
def test_an_index_that_goes_before_ap_first_searches_it_is_no_records_fault(
    scene: Scene, again: Partitioning
) -> None:
    """AP itself searches a space of one slice.

    Its worker was busy with another space until the manifest was removed, and a record was blamed.
    """
    scene.planned_with = scene.index(HashPartitioning(1))
    routing = scene.routing()
    tasks._opened(scene.folder).cache.indexes(scene.planned_with, 0)
    newer = scene.index(again)
    if again == HashPartitioning(1):
        assert scene.matched(scene.sent(routing)) == ANY_CALLER
        return
    with pytest.raises(IndexStoreError, match="partitioned again"):
        scene.sent(routing)
    scene.planned_with = newer
    assert scene.matched(scene.sent()) == ANY_CALLER


def test_an_index_that_is_lost_while_events_are_on_their_way_is_no_records_fault(scene: Scene) -> None:
    """A user deleted it; the indexer builds another."""
    sent = scene.sent()
    shutil.rmtree(scene.folder.index)
    tasks._services.clear()
    with pytest.raises(IndexStoreError, match="no index that covers"):
        scene.matched(sent)


def test_a_late_matcher_without_its_manifest_adds_nothing_to_an_existing_block(
    scene: Scene,
) -> None:
    """Another did its task while it hung, and the filters that only this record needed were forgotten."""
    sent = scene.sent()
    assert scene.matched(sent) == ANY_CALLER
    scene.entries = scene.entries[:3]
    scene.index(HashPartitioning(2))
    tasks._services.clear()
    with pytest.raises(IndexStoreError, match="was removed, and record 0 is matched already"):
        scene.matched(sent)
    assert open_match_log(scene.folder.matches_url).partition(0).block_at(0).numbers().tolist() == ANY_CALLER


@pytest.mark.parametrize("policy", POLICIES)
def test_events_are_forwarded_alike_whenever_the_task_that_does_so_runs(scene: Scene, policy: str) -> None:
    """The first output was lost with an executor, while some matchers have processed it."""
    axes = tuple(Axis((name,), (place_before(50),)) for name in ("x", "y"))
    cut = AttributeSpace(axes, ((0, 1), (1, 0)))
    scene.entries = [entry_of(n, f"x < {n} AND y > {n}") for n in range(100)]
    number = scene.index(cut)
    log = open_event_log(scene.folder.log_url)
    lines = [b'{"x": %d, "y": %d}\n' % (n * 37 % 100, n * 61 % 100) for n in range(100)]
    start = log.append([NewRecord("mine", b"".join(lines), 100)])[0].offset
    log.close()

    def sent(loads: tuple[LoadReport, ...]) -> list[pa.RecordBatch]:
        routing = encode_routing(Routing(2.0, {"mine": SpaceRouting(cut_of(cut), loads)}))
        row = {"partition": 0, "start": start, "end": start + 1, "manifest": number, "routing": routing}
        return list(Dispatch(scene.folder, Spread(2, 1, policy))(iter([pa.RecordBatch.from_pylist([row])])))

    slow = tuple(LoadReport(n, 1.0, 90.0 * (n % 2), 5.0, 10.0 + 20 * n, 9 - n) for n in range(4))
    even = tuple(LoadReport(n, 1.0, 0.0, 5.0, 50.0, 50) for n in range(4))
    first = sent(slow)
    scene.index(cut)  # the manifest it was planned with is gone
    tasks._services.clear()
    assert sent(slow) == first
    if policy != "random":
        assert sent(even) != first, "it goes by the loads"
