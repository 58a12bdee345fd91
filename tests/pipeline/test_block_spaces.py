"""The number of matches per space in a block, counted while it is filled, compared with a naive count."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.matching.pairs import Pairs
from fieldfare.runtimes.spark import range_task
from fieldfare.runtimes.spark.range_task import Block
from fieldfare.storage.event_log import Record
from fieldfare.storage.match_log import NewMatchBlock, lists_of


class Written:
    """The destination of a block."""

    def write(self, block: NewMatchBlock, *, synced: bool = True) -> int:
        self.spaces = dict(block.spaces)
        return 0

    def fill(self, start: int, end: int) -> list[object]:
        return []


def record(offset: int, space: str, count: int) -> Record:
    return Record(offset, space, count, b"", 0, 0)


def pairs_of(found: list[int]) -> Pairs:
    """Make pairs in which event i matches the first found[i] subscriptions."""
    events = np.repeat(np.arange(len(found), dtype=np.int32), found)
    subscriptions = np.concatenate([np.zeros(0, np.int32), *(np.arange(n, dtype=np.int32) for n in found)])
    numbers = np.arange(10, dtype=np.uint32)
    return Pairs(np.stack([events, subscriptions], 1).astype(np.int32), 0, numbers, 0, 9)


GROUPS = st.lists(
    st.lists(
        st.tuples(st.sampled_from(("a", "b", "b#1")), st.lists(st.integers(0, 4), min_size=1, max_size=5)),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=5,
)


@settings(
    max_examples=drawn(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(GROUPS, st.sampled_from((1, 6, 1 << 20)))
def test_a_block_counts_the_matches_of_each_space(
    tmp_path: Path, groups: list[list[tuple[str, list[int]]]], held_slots: int
) -> None:
    """The counts are right whatever part of the block is spilled to disk before its records are known."""
    expected, log, offset = Counter[str](), Written(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_task, "HELD_SLOTS", held_slots)
        patch.setattr(range_task, "COUNTED_BATCH_SIZE", 3)
        block = Block(0, tmp_path)
        for group in groups:
            records = []
            for space, found in group:
                records.append(record(offset, space, len(found)))
                offset += 2  # Offsets are not consecutive.
                expected[space] += sum(found)
            every = [n for _, found in group for n in found]
            block.add(records, iter([pairs_of(every)]))
        block.write(log, 0.0)
    assert log.spaces == +expected


def test_lists_that_arrive_before_their_records_are_counted(tmp_path: Path) -> None:
    """With several matchers, matches may arrive, and be spilled, before the spaces of their events are
    known."""
    lists, log = lists_of(np.array([0, 2, 3, 6]), np.array([1, 2, 1, 1, 2, 3], np.uint32)), Written()
    block = Block(0, tmp_path)
    block.add_lists(lists, np.zeros(0, np.uint32))
    block.spill_to_disk()
    block.add_records(2, [1, 2], 0, [("a", 1), ("b", 2)])
    block.write(log, 0.0)
    assert log.spaces == {"a": 2, "b": 4}
