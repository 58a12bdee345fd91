"""The contract of a match log, for every implementation and any partition, with holes between records."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import kafka_rig
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from memory_matches import MemoryMatchLog
from storage_support import Matches, block_of, of_number, read_on, some_matches, write_in_blocks
from tests.doses import drawn

from fieldfare.matching.pairs import MatchLists
from fieldfare.storage import MatchLog, MatchPartition, NewMatchBlock, open_match_log
from fieldfare.storage.match_log import BLOCK_RECORDS_MAX

KINDS: dict[str, Callable[[Path], MatchLog]] = {
    "files": lambda folder: open_match_log((folder / "matches").as_uri()),
    "memory": lambda folder: MemoryMatchLog(),
    "kafka": lambda folder: open_match_log(kafka_rig.topic(13)),
}


@pytest.fixture(params=[f"{kind}-{partition}" for kind in KINDS for partition in (0, 3)])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> MatchPartition:
    kind, _, partition = request.param.partition("-")
    return KINDS[kind](tmp_path).partition(int(partition))


def test_a_block_reads_back_by_subscription_and_by_event(log: MatchPartition) -> None:
    """There is no record 8, and record 9 has no known events."""
    matches = {(7, 0): [3, 5], (7, 1): [], (10, 0): [5], (11, 0): [5, 4_294_967_295], (11, 1): [3]}
    log.write(block_of(matches, 7, 12, matched_ms=12.5, appended_ms=1_700_000_000_000))
    block = log.block_at(8)
    assert block is not None
    assert (block.start, block.end, block.events, block.matches) == (7, 12, 5, 6)
    assert block.counts.tolist() == [2, 0, 0, 1, 2]
    assert block.extra == {"matched_ms": 12.5, "appended_ms": 1_700_000_000_000}
    assert block.numbers().tolist() == [3, 5, 4_294_967_295]
    for number in (0, 3, 4, 5, 4_294_967_295):
        for from_offset in (None, 7, 8, 11, 12):
            offsets, indexes = block.matches_of(number, from_offset)
            assert (offsets.dtype, indexes.dtype) == (np.int64, np.int32)
            assert list(zip(offsets, indexes, strict=True)) == of_number(matches, number, from_offset or 0)
    for numbers in ([], [4], [0, 3, 4, 5, 4_294_967_295], [3, 5]):
        bounds, offsets, indexes = block.matches_of_each(np.array(numbers, np.uint32))
        assert (bounds.dtype, offsets.dtype, indexes.dtype) == (np.int64, np.int64, np.int32)
        places = list(zip(offsets.tolist(), indexes.tolist(), strict=True))
        assert [places[a:b] for a, b in pairwise(bounds)] == [of_number(matches, n) for n in numbers]
    indptr, subscriptions = block.by_event()
    assert indptr.tolist() == [0, 2, 2, 3, 5, 6]
    assert subscriptions.tolist() == [3, 5, 5, 5, 4_294_967_295, 3]
    block.check()


def test_the_lengths_of_a_block_are_the_numbers_of_matches(log: MatchPartition) -> None:
    indptr, numbers = np.array([0, 2, 2, 5]), np.array([3, 900_000, 1, 3, 7], np.uint32)
    log.write(NewMatchBlock.by_event(4, 6, np.array([1, 2], np.int32), indptr, numbers))
    block = log.block_at(4)
    assert block is not None
    found, lengths = block.lengths()
    assert (found.tolist(), lengths.tolist()) == ([1, 3, 7, 900_000], [1, 2, 1, 1])


def test_a_block_without_matches_is_a_block(log: MatchPartition) -> None:
    log.write(block_of({(0, 0): [], (0, 1): []}, 0, 1))
    block = log.block_at(0)
    assert block is not None
    assert (block.events, block.matches, block.numbers().size) == (2, 0, 0)
    assert block.matches_of(3)[0].size == 0
    assert block.by_event()[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"end": 0}, "range is empty"),
        ({"end": 3}, "a number for each record"),
        ({"counts": np.array([2, -1], np.int32)}, "a number for each record"),
        ({"end": 65_537, "counts": np.ones(65_537, np.int32)}, "more than 65536"),
        ({"counts": np.array([2, 65_535], np.int32)}, "more than 65536"),
        ({"indptr": np.array([0, 1, 2])}, "must ascend from 0 and hold 4 entries"),
        ({"indptr": np.array([0, 2, 1, 3])}, "must ascend"),
        ({"indptr": np.array([0, 1, 2, 2])}, "number of matches"),
        ({"subscriptions": np.array([9, 9, 9], np.uint32), "indptr": np.array([0, 2, 2, 3])}, "twice"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(
    log: MatchPartition, change: dict[str, object], complaint: str
) -> None:
    good = {
        "start": 0,
        "end": 2,
        "counts": np.array([2, 1], np.int32),
        "indptr": np.array([0, 1, 2, 3]),
        "subscriptions": np.array([1, 2, 3], np.uint32),
    }
    with pytest.raises(ValueError, match=complaint):
        log.write(NewMatchBlock.by_event(**(good | change)))  # type: ignore[arg-type]
    assert (log.block_at(0), log.greatest_end()) == (None, 0)


def test_lists_that_are_not_lists_are_refused(log: MatchPartition) -> None:
    """Kernels trust what was checked: no empty list, no event beyond the block, none twice."""
    for starts, ordinals, reason in (
        ([0, 1, 1], [0], "every number must have a match"),
        ([0, 1, 2], [0, 2], "of an event that it does not have"),
        ([0, 2, 3], [1, 1, 0], "not in ascending order"),
        ([0, 1], [0], "starts must begin"),
    ):
        lists = MatchLists(np.array([3, 5], np.uint32), np.array(starts), np.array(ordinals, np.uint16))
        with pytest.raises(ValueError, match=reason):
            log.write(NewMatchBlock(0, 1, np.array([2], np.int32), lists))
    assert log.block_at(0) is None


def test_a_block_is_found_by_any_offset_that_it_covers(log: MatchPartition) -> None:
    assert (log.block_at(0), log.greatest_end(), log.next_start(0)) == (None, 0, None)
    matches = some_matches(5_000, most_events=1)
    write_in_blocks(log, matches, [0, 1, 10, 999, 1_000, 3_500, 4_990])
    for offset in (0, 1, 9, 10, 998, 999, 1_000, 2_000, 3_499, 3_500, 4_989):
        block = log.block_at(offset)
        assert block is not None and block.start <= offset < block.end
    assert log.block_at(4_990) is None
    assert (log.end(), log.end(2_000), log.end(4_990), log.end(9_999)) == (4_990, 4_990, 4_990, 9_999)
    log.write(block_of(matches, 4_995, 5_000))
    assert (log.end(), log.next_start(4_990), log.greatest_end()) == (4_990, 4_995, 5_000)
    log.write(block_of(matches, 4_990, 4_995))
    assert (log.end(), log.sync(0), log.recover(4_000)) == (5_000, 5_000, 5_000)


def test_a_batch_cut_otherwise_after_a_crash_is_read_once(log: MatchPartition) -> None:
    matches = some_matches(100)
    write_in_blocks(log, matches, [0, 10, 30, 50])
    write_in_blocks(log, matches, [10, 25, 45, 70, 100])
    assert log.end() == 100
    for number in range(30):
        assert read_on(log, number) == (of_number(matches, number), 100)


def test_a_block_written_again_replaces_the_first(log: MatchPartition) -> None:
    matches = some_matches(5)
    for attempt in range(2):
        log.write(block_of(matches, 0, 5, attempt=attempt))
        log.forget((0, 5))
        block = log.block_at(0)
        assert block is not None and block.extra == {"attempt": attempt}


def test_a_gap_of_any_length_is_filled_with_blocks_that_say_nothing(log: MatchPartition) -> None:
    far = 3 * BLOCK_RECORDS_MAX
    log.write(NewMatchBlock.gap(100, 200))
    log.write(NewMatchBlock.gap(far, far + 10))
    pieces = log.fill(0, far + 5)
    assert pieces[0] == (0, 100)
    assert pieces[-1].end == far
    assert all(one.end <= two.start for one, two in pairwise(pieces))
    assert log.end() == log.greatest_end() == far + 10
    assert log.fill(0, far) == log.fill(7, 7) == []
    block = log.block_at(150_000)
    assert block is not None and (block.events, block.matches) == (0, 0)
    log.compact(far + 10)
    assert read_on(log, 5) == ([], far + 10)


@pytest.mark.parametrize("kind", list(KINDS))
def test_partitions_do_not_see_each_others_blocks(kind: str, tmp_path: Path) -> None:
    whole = KINDS[kind](tmp_path)
    matches = {number: some_matches(20, seed=number) for number in (0, 1, 12)}
    for number, own in matches.items():
        write_in_blocks(whole.partition(number), own, [0, 7, 20])
    whole.partition(1).trim(7)
    assert [whole.partition(number).end() for number in (0, 1, 2, 12)] == [20, 0, 0, 20]
    assert read_on(whole.partition(12), 4)[0] == of_number(matches[12], 4)
    assert whole.partition(1).block_at(0) is None
    assert whole.size_bytes() > 0
    assert whole.lost() == []


class MatchesAgainstModel(RuleBasedStateMachine):
    """Blocks are cut at any offsets, repeated, merged and trimmed; a stepping reader still finds all
    matches."""

    kind = ""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.log = KINDS[self.kind](Path(self.folder.name))
        self.chance = random.Random(9)
        self.matches: dict[int, Matches] = {0: {}, 1: {}}
        self.ends = dict.fromkeys(self.matches, 0)
        """How far everything is written, and by now all of it is decided."""
        self.starts = dict.fromkeys(self.matches, 0)

    def teardown(self) -> None:
        self.folder.cleanup()

    @rule(
        partition=st.integers(0, 1), steps=st.lists(st.sampled_from([1, 1, 1, 2, 5]), min_size=1, max_size=9)
    )
    def match(self, partition: int, steps: list[int]) -> None:
        """A batch of records, some of them behind a hole."""
        start = at = self.ends[partition]
        for step in steps:
            at += step
            for index in range(self.chance.randint(1, 3)):
                self.matches[partition][at - 1, index] = sorted(self.chance.sample(range(4), 2))
        self.ends[partition] = at
        cuts = sorted({start, at, *(self.chance.randint(start, at) for _ in range(2))})
        write_in_blocks(self.log.partition(partition), self.matches[partition], cuts)

    @rule(partition=st.integers(0, 1), back=st.integers(1, 12))
    def match_again(self, partition: int, back: int) -> None:
        """The pipeline was killed before it reported its progress."""
        end = self.ends[partition]
        start = max(self.starts[partition], end - back)
        if start < end:
            self.log.partition(partition).write(block_of(self.matches[partition], start, end))

    @rule(partition=st.integers(0, 1), behind=st.integers(0, 9))
    def compact(self, partition: int, behind: int) -> None:
        self.log.partition(partition).compact(max(0, self.ends[partition] - behind))

    @rule(partition=st.integers(0, 1), by=st.integers(0, 9))
    def trim(self, partition: int, by: int) -> None:
        self.starts[partition] = min(self.starts[partition] + by, self.ends[partition])
        self.log.partition(partition).trim(self.starts[partition])

    @invariant()
    def a_reader_meets_everything_once(self) -> None:
        for partition, matches in self.matches.items():
            start, end = self.starts[partition], self.ends[partition]
            at = self.chance.randint(start, end)
            for number in range(4):
                wanted = [each for each in of_number(matches, number) if each[0] >= at]
                assert read_on(self.log.partition(partition), number, at) == (wanted, end)


class FilesAgainstModel(MatchesAgainstModel):
    kind = "files"


class MemoryAgainstModel(MatchesAgainstModel):
    kind = "memory"


class KafkaAgainstModel(MatchesAgainstModel):
    """Readers come and go, and look back a few messages at a time."""

    kind = "kafka"

    @rule()
    def open_again(self) -> None:
        self.log = open_match_log(self.log.url)


TestFilesAgainstModel = FilesAgainstModel.TestCase
TestMemoryAgainstModel = MemoryAgainstModel.TestCase
TestKafkaAgainstModel = KafkaAgainstModel.TestCase
for case, examples in (TestFilesAgainstModel, 20), (TestMemoryAgainstModel, 20), (TestKafkaAgainstModel, 5):
    case.settings = settings(max_examples=drawn(examples), stateful_step_count=20)
del case  # or pytest collects it, too


@pytest.mark.parametrize("url", ["kafke://host/topic", "matches", "file://", "sqlite:///x", ""])
def test_an_address_of_another_kind_is_refused_with_the_form_expected(url: str) -> None:
    with pytest.raises(ValueError, match="the address of the match log is file:///PATH"):
        open_match_log(url)
