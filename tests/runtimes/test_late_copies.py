"""Two copies of one task, as a cluster runs them if the first is late, and readers of their blocks."""

from __future__ import annotations

import random
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "storage"))

from indexing import bring_index_up_to_date
from memory_log import MemoryEventLog
from test_several_partitions import Place, Query, opened, places_of  # noqa: F401
from tests.doses import drawn

from fieldfare.filters import compile_filter
from fieldfare.runtimes.spark import range_task
from fieldfare.runtimes.spark.range_task import RangeMatcher, RecordRange
from fieldfare.runtimes.spark.replay_task import BlockCollector
from fieldfare.storage import NewMatchBlock, open_match_log
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.event_log import ends_of
from fieldfare.storage.files.match_log import FileMatchLog
from fieldfare.storage.registry import Put

pytestmark = pytest.mark.long

GONE = 1 << 40
"""The number of a manifest that is not there."""


class Copy(RangeMatcher):
    """A copy of a task whose blocks are not written yet."""

    def __init__(self, query: Query) -> None:
        super().__init__(query.folder, lambda: 5.0)
        self.held = BlockCollector()

    def _writer(self, partition: int) -> BlockCollector:
        return self.held

    def blocks(self, wanted: RecordRange) -> list[NewMatchBlock]:
        self.match(wanted)
        return [step for step in self.held._steps if isinstance(step, NewMatchBlock)]


class Reader:
    """Goes on, block by block, from where it is: as delivery does."""

    def __init__(self, log: FileMatchLog, numbers: list[int]) -> None:
        self._log, self._numbers, self.at = log, numbers, 0
        self.found: list[list[Place]] = [[] for _ in numbers]

    def read(self, most_blocks: int) -> None:
        for _ in range(most_blocks):
            block = self._log.block_at(self.at)
            if block is None:
                return
            for own, number in zip(self.found, self._numbers, strict=True):
                offsets, indexes = block.matches_of(number, self.at)
                own += [(0, int(o), int(i)) for o, i in zip(offsets, indexes, strict=True)]
            self.at = block.end


@pytest.mark.parametrize("seed", range(drawn(20)))
def test_copies_with_different_blocks_lose_and_duplicate_nothing_in_any_order(
    tmp_path: Path,
    opened: MemoryEventLog,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    """Their indexes are of other manifests, so their blocks end elsewhere; one may even die on its way."""
    chance = random.Random(seed)
    query = Query(tmp_path, opened)
    query.append(range(0, 120, 2))
    partition = opened.partitions[0]
    wanted = RecordRange(0, partition.start(), partition.end(), bring_index_up_to_date(query.folder).number)
    monkeypatch.setattr(range_task, "GROUP_EVENTS", 3)
    copies = []
    for slots in (chance.randint(1, 9), chance.randint(10, 60)):
        monkeypatch.setattr(range_task, "BLOCK_SLOTS", slots)
        copies.append(Copy(query).blocks(wanted))
    assert len(copies[0]) > len(copies[1]) > 0
    winner, late = chance.sample(copies, 2)
    late = late[: chance.randint(0, len(late))]
    log = open_match_log(query.folder.matches_url).partition(0)
    assert isinstance(log, FileMatchLog)
    readers = [Reader(log, query._numbers()) for _ in range(3)]
    left = [list(winner), late]
    while any(left):
        queue = chance.choice([each for each in left if each])
        log.write(queue.pop(0))
        chance.choice(readers).read(chance.randint(1, 3))
        if chance.random() < 0.2:
            log.compact(log.end())
    expected = [sorted(place for place in each if place[0] == 0) for each in query.expected()]
    for reader in readers:
        reader.read(1 << 30)
        assert reader.at == wanted.end
        assert reader.found == expected


def test_a_late_copy_without_its_manifest_overwrites_no_matched_block(
    tmp_path: Path,
    opened: MemoryEventLog,  # noqa: F811
) -> None:
    """A worker hung, another did its task; then the filters changed, and the old ones were forgotten."""
    query = Query(tmp_path, opened)
    query.append(range(0, 60, 2))
    expected, numbers = query.expected(), query._numbers()
    ranges = [(each.number, each.start(), each.end()) for each in opened.partitions]
    assert query.run() > 0
    nothing = compile_filter("n < 0").compiled
    for number in range(len(numbers)):
        query.registry.apply([Put("default", str(number), "n < 0", "sql", nothing)], ends_of(opened), 0)
    query.registry.purge(query.registry.revision())
    shutil.rmtree(query.folder.index)
    bring_index_up_to_date(query.folder)
    matcher, url = RangeMatcher(query.folder, lambda: 6.0), query.folder.matches_url
    for each in ranges:
        with pytest.raises(IndexStoreError, match=r"was removed, and record .* is matched already"):
            matcher.match(RecordRange(*each, GONE))
        assert [set(places_of(query, url, number)) for number in numbers] == expected
    # Unmatched records are matched with the present manifest.
    query.append(range(60, 80, 2))
    for number, _, end in ranges:
        matcher.match(RecordRange(number, end, opened.partitions[number].end(), GONE))
    assert [set(places_of(query, url, number)) for number in numbers] == expected
