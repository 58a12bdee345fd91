"""AP and M one after the other, without Spark, while manifests come and go in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from fieldfare.filters import compile_filter
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.partitioning import HashPartitioning, Partitioning
from fieldfare.runtimes.spark.spread import tasks
from fieldfare.runtimes.spark.spread.loads import encode_routing, routing_of
from fieldfare.runtimes.spark.spread.tasks import Dispatch, MatchConsignments, Spread, WriteBlocks
from fieldfare.storage import open_event_log, open_index_store, open_match_log
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.folder import DataFolder
from fieldfare_lab.spark.fixed_index import write_space

EVERYBODY = list(range(20))


class Scene:
    """A record that 20 subscriptions match, in slices at two matchers."""

    def __init__(self, root: Path) -> None:
        self.folder = DataFolder(root)
        self.folder.make()
        self.store = open_index_store(self.folder.index_url)
        filter = compile_filter("x = 1")
        self.entries = [
            IndexEntry(n + 1, n, 0, OPEN_END, filter.compiled, filter.text, "sql") for n in EVERYBODY
        ]
        log = open_event_log(self.folder.log_url)
        log.append([NewRecord("mine", b'{"x": 1}\n', 1)])
        log.close()
        self.planned_with = self.index(HashPartitioning(2))

    def index(self, partitioning: Partitioning) -> int:
        """Write a manifest; no other is left."""
        number = write_space(self.store, "mine", self.entries, partitioning).number
        self.store.collect(number)
        return number

    def sent(self) -> list[pa.RecordBatch]:
        """What AP sends to the matchers."""
        manifest = self.store.manifest(self.planned_with)
        routing = encode_routing(routing_of(manifest, self.folder.slices, 1.0))
        row = {"partition": 0, "start": 0, "end": 1, "manifest": manifest.number, "routing": routing}
        return list(Dispatch(self.folder, Spread(2, 1))(iter([pa.RecordBatch.from_pylist([row])])))

    def matched(self, sent: list[pa.RecordBatch]) -> list[int]:
        """Whom M and EP find."""
        found = MatchConsignments(self.folder)(iter(sent))
        assert len(list(WriteBlocks(self.folder)(found))) == 1
        block = open_match_log(self.folder.matches_url).partition(0).block_at(0)
        assert block is not None
        return sorted(block.numbers().tolist())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    yield Scene(tmp_path)
    tasks._caches.clear()


@pytest.mark.parametrize("elsewhere", [True, False], ids=["another process", "the same process"])
def test_a_slice_that_goes_before_it_is_first_needed_is_a_newer_ones(scene: Scene, elsewhere: bool) -> None:
    """The worker was paused for longer than manifests are kept, or nothing visited the slice till then."""
    sent = scene.sent()
    scene.index(HashPartitioning(2))
    if elsewhere:
        tasks._caches.clear()
    assert scene.matched(sent) == EVERYBODY


@pytest.mark.parametrize("partitioning", [HashPartitioning(2, 3), HashPartitioning(3)], ids=repr)
@pytest.mark.parametrize("elsewhere", [True, False], ids=["another process", "the same process"])
def test_slices_of_another_cut_are_never_searched_for_those_that_events_were_sent_to(
    scene: Scene, partitioning: Partitioning, elsewhere: bool
) -> None:
    """They hold other subscriptions under the same numbers. The batch is planned anew, and nobody blamed."""
    sent = scene.sent()
    scene.planned_with = scene.index(partitioning)
    if elsewhere:
        tasks._caches.clear()
    with pytest.raises(IndexStoreError, match="cut anew"):
        scene.matched(sent)
    assert scene.matched(scene.sent()) == EVERYBODY
