"""The match log in files: against a plain dict, across crashes, compaction and broken files."""

from __future__ import annotations

import errno
import io
import os
import pickle
import random
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_support import block_of, files_of, of_number, read_on, some_matches, write_in_blocks
from tests.doses import drawn

from fieldfare.storage import NewMatchBlock
from fieldfare.storage.errors import CorruptBlockError, MatchLogError
from fieldfare.storage.files import match_block, match_log
from fieldfare.storage.files.match_block import FileBlock, write_block
from fieldfare.storage.files.match_folder import BlockFile
from fieldfare.storage.files.match_log import BELL, FileMatchLog


@pytest.fixture
def log(tmp_path: Path) -> FileMatchLog:
    return FileMatchLog(tmp_path / "matches")


def test_a_block_reads_back_by_subscription_and_by_event(log: FileMatchLog) -> None:
    matches = {(7, 0): [3, 5], (7, 1): [], (8, 0): [5], (9, 0): [5, 4_294_967_295], (9, 1): [3]}
    size_bytes = log.write(block_of(matches, 7, 10, matched_ms=12.5, appended_ms=1_700_000_000_000))
    assert [path.stat().st_size for path in files_of(log)] == [size_bytes] == [log.size_bytes()]
    block = pickle.loads(pickle.dumps(log)).block_at(7)
    assert (block.start, block.end, block.events, block.matches) == (7, 10, 5, 6)
    assert block.counts.tolist() == [2, 1, 2]
    assert block.extra == {"matched_ms": 12.5, "appended_ms": 1_700_000_000_000}
    assert block.numbers().tolist() == [3, 5, 4_294_967_295]
    for number in (0, 3, 4, 5, 4_294_967_295):
        offsets, indexes = block.matches_of(number)
        assert (offsets.dtype, indexes.dtype) == (np.int64, np.int32)
        assert list(zip(offsets, indexes, strict=True)) == of_number(matches, number)
    indptr, subscriptions = block.by_event()
    assert indptr.tolist() == [0, 2, 2, 3, 5, 6]
    assert subscriptions.tolist() == [3, 5, 5, 5, 4_294_967_295, 3]


@settings(max_examples=drawn(60))
@given(
    st.lists(
        st.lists(
            st.sets(st.one_of(st.integers(0, 20), st.integers(0, (1 << 32) - 1)), max_size=6),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 1 << 40),
)
def test_any_block_equals_the_naive_one(
    tmp_path_factory: pytest.TempPathFactory, records: list[list[set[int]]], start: int
) -> None:
    matches = {
        (start + offset, index): sorted(numbers)
        for offset, events in enumerate(records)
        for index, numbers in enumerate(events)
    }
    path = tmp_path_factory.getbasetemp() / "block.arrow"
    with path.open("wb") as file:
        write_block(block_of(matches, start, start + len(records)), file)
    block = FileBlock(path, 0, (start, start + len(records)))
    path.unlink()
    numbers = sorted({number for found in matches.values() for number in found})
    assert block.numbers().tolist() == numbers
    for number in [*numbers, 21]:
        for from_offset in (start, start + len(records) // 2, start + len(records)):
            offsets, indexes = block.matches_of(number, from_offset)
            assert list(zip(offsets, indexes, strict=True)) == of_number(matches, number, from_offset)
    asked = sorted({*numbers[::2], *numbers[:1], 21})
    bounds, offsets, indexes = block.matches_of_each(np.array(asked, np.uint32))
    places = list(zip(offsets.tolist(), indexes.tolist(), strict=True))
    assert [places[a:b] for a, b in pairwise(bounds.tolist())] == [of_number(matches, n) for n in asked]
    indptr, subscriptions = block.by_event()
    found = [subscriptions[a:b].tolist() for a, b in pairwise(indptr)]
    assert found == [matches[place] for place in sorted(matches)]


@pytest.mark.parametrize("subscriptions", [50, 5_000, 4_000_000_000])
def test_a_full_block_of_several_batches_equals_its_input(log: FileMatchLog, subscriptions: int) -> None:
    """65,536 events; few, some, or widely scattered subscriptions (which are sorted in another way)."""
    chance = np.random.default_rng(4)
    events, per_event = 65_536, 6
    strata = subscriptions // per_event
    numbers = chance.integers(0, strata, (events, per_event)) + np.arange(per_event) * strata
    indptr = np.arange(events + 1) * per_event
    counts = np.full(64, 1_024, np.int32)
    log.write(NewMatchBlock.by_event(100, 164, counts, indptr, numbers.astype(np.uint32).ravel()))
    block = log.block_at(163)
    assert block is not None
    read_indptr, read_numbers = block.by_event()
    assert (read_indptr == indptr).all()
    assert (read_numbers == numbers.ravel()).all()
    for number in [*chance.choice(numbers.ravel(), 50).tolist(), 0, subscriptions - 1]:
        expected = np.flatnonzero((numbers == number).any(axis=1))
        offsets, indexes = block.matches_of(number)
        assert (offsets == 100 + expected // 1_024).all() and (indexes == expected % 1_024).all()
    asked = np.unique([*chance.choice(numbers.ravel(), 50), 0, subscriptions - 1]).astype(np.uint32)
    bounds, offsets, indexes = block.matches_of_each(asked)
    for number, (first, end) in zip(asked.tolist(), pairwise(bounds.tolist()), strict=True):
        for one, each in zip(block.matches_of(number), (offsets, indexes), strict=True):
            assert (one == each[first:end]).all()


def test_a_poll_sees_the_next_block_as_soon_as_another_process_wrote_it(log: FileMatchLog) -> None:
    """Blocks come faster than the file system's clock ticks; none may be overlooked."""
    writer = pickle.loads(pickle.dumps(log))
    matches = some_matches(60)
    for offset in range(60):
        assert log.block_at(offset) is None
        writer.write(block_of(matches, offset, offset + 1))
        assert log.block_at(offset) is not None


def test_a_block_written_again_replaces_the_first(log: FileMatchLog) -> None:
    matches = some_matches(5)
    for attempt in range(2):
        log.write(block_of(matches, 0, 5, attempt=attempt))
    assert len(files_of(log)) == 1
    block = FileMatchLog(log.folder).block_at(0)
    assert block is not None and block.extra == {"attempt": 1}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_compaction_changes_no_answer_wherever_blocks_were_cut(log: FileMatchLog, seed: int) -> None:
    chance = random.Random(seed)
    matches = some_matches(90, seed, subscriptions=8)
    write_in_blocks(log, matches, sorted({0, 90, *chance.sample(range(90), 25)}))
    for _ in range(12):
        start = chance.randint(0, 88)
        log.write(block_of(matches, start, chance.randint(start + 1, min(90, start + 12))))
    for before in (30, 60, 90, 90):
        log.compact(before)
        for number in range(8):
            assert read_on(log, number) == (of_number(matches, number), 90)
            start = chance.randint(0, 89)
            assert read_on(log, number, start)[0] == of_number(matches, number, start)
    assert len(files_of(log)) <= 9
    assert log.compact(90) == 0


def test_compaction_keeps_to_65536_events_and_leaves_what_is_large_alone(log: FileMatchLog) -> None:
    def write(start: int, records: int, events: int) -> None:
        nothing = np.zeros(0, np.uint32)
        counts = np.full(records, events, np.int32)
        log.write(
            NewMatchBlock.by_event(
                start, start + records, counts, np.zeros(counts.sum() + 1, np.int64), nothing
            )
        )

    write(0, 1, 60_000)
    for start in range(1, 9):
        write(start, 1, 10_000)
    assert log.compact(9) == 6
    starts = [int(path.name[:16]) for path in files_of(log)]
    assert starts == [0, 1, 7]
    assert log.end() == 9


def test_compaction_leaves_blocks_alone_that_end_after_the_bound_or_have_no_neighbour(
    log: FileMatchLog,
) -> None:
    matches = some_matches(20)
    write_in_blocks(log, matches, [0, 5, 10, 15])
    log.write(block_of(matches, 16, 18))
    assert log.compact(14) == 1
    assert [path.name for path in files_of(log)] == [
        "0000000000000000-0000000000000010.arrow",
        "0000000000000010-0000000000000015.arrow",
        "0000000000000016-0000000000000018.arrow",
    ]


def test_a_reader_misses_nothing_while_blocks_are_compacted_and_trimmed(log: FileMatchLog) -> None:
    """A reader holds a block, and has listed others, which are removed before it continues."""
    matches = some_matches(120)
    write_in_blocks(log, matches, list(range(0, 121, 3)))
    other = FileMatchLog(log.folder)
    for number in range(5):
        reader = FileMatchLog(log.folder)
        block = reader.block_at(0)
        assert block is not None
        other.compact(24 * (number + 1))
        offsets, indexes = block.matches_of(number)
        met = list(zip(offsets.tolist(), indexes.tolist(), strict=True))
        rest, end = read_on(reader, number, block.end)
        assert (met + rest, end) == (of_number(matches, number), 120)
    other.trim(120)
    assert block.matches_of(3)[0].size == len(
        [place for place in of_number(matches, 3) if place[0] < block.end]
    )


def test_trimming_removes_whole_blocks_and_empty_folders(log: FileMatchLog) -> None:
    matches = some_matches(3_000, most_events=1)
    write_in_blocks(log, matches, list(range(0, 3_001, 500)))
    assert log.trim(1_400) == 2
    assert log.block_at(999) is None
    assert log.block_at(1_400) is not None
    assert sorted(path.name for path in log.folder.iterdir()) == [BELL, "0001", "0002"]
    assert (log.trim(1_400), log.end(1_000)) == (0, 3_000)
    log.write(block_of(matches, 0, 500))
    assert log.block_at(0) is not None


CRASH = """if True:
    import os
    import numpy as np
    from fieldfare.storage import NewMatchBlock
    from fieldfare.storage.files.compaction import Compaction
    from fieldfare.storage.files.match_log import FileMatchLog
    log = FileMatchLog({folder!r})
    def die(*_):
        os._exit(9)
    {patch}
    {step}
"""
WRITE = (
    "log.write(NewMatchBlock.by_event("
    "0, 1, np.ones(1, np.int32), np.array([0, 1]), np.array([7], np.uint32)))"
)


@pytest.mark.parametrize(
    ("patch", "visible"),
    [("os.fsync = die", False), ("os.rename = die", False), ("pass", True)],
)
def test_a_killed_write_leaves_a_whole_block_or_none(
    log: FileMatchLog, run_program: Callable[[str], tuple[int, str]], patch: str, visible: bool
) -> None:
    status, _ = run_program(CRASH.format(folder=str(log.folder), patch=patch, step=WRITE + "; die()"))
    assert status == 9
    assert (log.block_at(0) is not None) == visible
    log.write(block_of({(0, 0): [7]}, 0, 1))
    assert read_on(log, 7) == ([(0, 0)], 1)
    for path in files_of(log):
        os.utime(path, (0, 0))
    log.trim(0)
    assert len(files_of(log)) == 1


@pytest.mark.parametrize(
    "patch",
    [
        "os.rename = die",
        "Compaction._delete = lambda self, blocks: blocks and die()",
        "unlink = os.unlink; os.unlink = lambda path, **_: (unlink(path), die())",
    ],
)
def test_a_killed_compaction_changes_no_answer_and_the_next_one_finishes_it(
    log: FileMatchLog, run_program: Callable[[str], tuple[int, str]], patch: str
) -> None:
    matches = some_matches(40)
    write_in_blocks(log, matches, list(range(0, 41, 4)))
    status, _ = run_program(CRASH.format(folder=str(log.folder), patch=patch, step="log.compact(40)"))
    assert status == 9
    for _ in range(2):
        for number in range(30):
            assert read_on(log, number) == (of_number(matches, number), 40)
        log.compact(40)
    assert [path.name for path in files_of(log) if path.suffix == ".arrow"] == [
        "0000000000000000-0000000000000040.arrow"
    ]


@pytest.mark.parametrize("packed", [True, False])
def test_a_broken_block_is_an_error_that_names_the_file(
    log: FileMatchLog, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """Every truncation and every flipped byte is either noticed or harmless."""
    monkeypatch.setattr(match_block, "PACKED_MATCHES", 0 if packed else 1 << 30)
    matches = some_matches(12, most_events=3)
    log.write(block_of(matches, 0, 12))
    [path] = files_of(log)
    whole = path.read_bytes()
    expected = {number: of_number(matches, number) for number in range(30)}
    chance = random.Random(6)
    broken = [whole[: chance.randrange(len(whole))] for _ in range(30)] + [b""]
    for _ in range(200):
        place = chance.randrange(len(whole))
        broken.append(whole[:place] + bytes([whole[place] ^ (1 << chance.randrange(8))]) + whole[place + 1 :])
    noticed = 0
    for data in broken:
        path.unlink()
        path.write_bytes(data)
        try:
            found = {number: read_on(FileMatchLog(log.folder), number)[0] for number in range(30)}
        except MatchLogError as error:
            assert str(path) in str(error)
            noticed += 1
        else:
            assert found == expected
    assert noticed > 100


def test_a_length_that_has_rotted_is_no_lack_of_memory(
    log: FileMatchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No machine has that much memory, so a reader that waited for it never got past the block."""
    monkeypatch.setattr(match_block, "PACKED_MATCHES", 0)
    log.write(block_of(some_matches(30), 0, 30))
    [path] = files_of(log)
    whole = path.read_bytes()
    # Arrow stores compressed data after its length, 8 bytes: zstd's frames begin with these bytes.
    frames = [found.start() for found in re.finditer(rb"\x28\xb5\x2f\xfd", whole)]
    assert frames
    for frame in frames:
        length = int.from_bytes(whole[frame - 8 : frame], "little", signed=True)
        path.unlink()
        path.write_bytes(whole[: frame - 8] + (length | 1 << 60).to_bytes(8, "little") + whole[frame:])
        with pytest.raises(CorruptBlockError):
            FileBlock(path, 0, (0, 30)).check()


def test_the_block_of_one_record_is_read_without_a_listing_and_others_with_one(log: FileMatchLog) -> None:
    matches = some_matches(6)
    for start, end in ((0, 1), (1, 2), (2, 5), (5, 6)):
        log.write(block_of(matches, start, end))
    reader, listed = FileMatchLog(log.folder), list[int]()
    covering = reader._listing.covering
    reader._listing.covering = lambda offset, **more: listed.append(offset) or covering(offset, **more)
    found = [reader.block_at(offset) for offset in (0, 1, 2, 5, 6)]
    assert [block and (block.start, block.end) for block in found] == [(0, 1), (1, 2), (2, 5), (5, 6), None]
    assert listed == [2, 6]
    assert reader.block_at(1) is found[1], "used lately"
    assert reader.block_at(4) is found[2]


@pytest.mark.parametrize(
    "error",
    [pa.ArrowMemoryError("malloc of size 65536 failed"), OSError(errno.EMFILE, "full")],
)
def test_a_lack_of_resources_does_not_condemn_a_block(
    log: FileMatchLog, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    log.write(block_of(some_matches(4), 0, 4))

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(match_block, "_opened", fail)
    with pytest.raises(MatchLogError, match="could not be opened") as caught:
        log.block_at(0)
    assert not isinstance(caught.value, CorruptBlockError)


def test_a_block_under_another_ones_name_is_refused(log: FileMatchLog) -> None:
    log.write(block_of(some_matches(4), 0, 4))
    os.rename(BlockFile(0, 4).path(log.folder), BlockFile(0, 5).path(log.folder))
    with pytest.raises(MatchLogError, match="holds the records 0-4"):
        log.block_at(4)


def test_a_full_block_takes_at_most_one_and_a_half_bytes_a_match() -> None:
    """BlueDove's density: 25,000 subscriptions of which an event matches 4 in 1,000."""
    chance = np.random.default_rng(2)
    events, per_event = 32_768, 100
    numbers = chance.integers(0, 250, (events, per_event)) + np.arange(per_event) * 250
    counts = np.full(32, 1_024, np.int32)
    file = io.BytesIO()
    indptr = np.arange(events + 1) * per_event
    write_block(NewMatchBlock.by_event(0, 32, counts, indptr, numbers.astype(np.uint32).ravel()), file)
    assert file.tell() / numbers.size < 1.5


def test_a_block_that_is_durable_is_replaced_by_none_that_is_not(
    log: FileMatchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks that follow the log may match a record, one of them after it was reported as matched."""
    block = block_of(some_matches(10), 0, 10)
    log.write(block, synced=False)
    assert log.sync(0) == 10
    synced = set[int]()
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    log.write(block, synced=False)
    path = BlockFile(0, 10).path(log.folder)
    assert {path.stat().st_ino, path.parent.stat().st_ino} <= synced


def test_a_block_that_becomes_durable_while_another_is_written_is_replaced_by_none_that_is_not(
    log: FileMatchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that was stopped as it wrote a block, while another one wrote the same."""
    block, synced = block_of(some_matches(10), 0, 10), set[int]()
    real_write, real_sync = match_log.write_block, os.fsync

    def late(block: NewMatchBlock, file: BinaryIO) -> None:
        real_write(block, file)
        monkeypatch.setattr(match_log, "write_block", real_write)
        log.write(block, synced=False)
        assert log.sync(0) == 10

    def record(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        real_sync(descriptor)

    monkeypatch.setattr(match_log, "write_block", late)
    monkeypatch.setattr(os, "fsync", record)
    log.write(block, synced=False)
    assert BlockFile(0, 10).path(log.folder).stat().st_ino in synced
    assert files_of(log) == [BlockFile(0, 10).path(log.folder)]


def test_compaction_leaves_no_record_to_a_block_that_is_not_durable(
    log: FileMatchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late task may write a block over the range of blocks that are reported as matched, and `sync` passes
    it over then."""
    matches = some_matches(10)
    log.write(block_of(matches, 0, 5))
    log.write(block_of(matches, 5, 10))
    log.write(block_of(matches, 0, 10), synced=False)
    container = BlockFile(0, 10).path(log.folder)
    synced = set[int]()
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    log.compact(10)
    assert files_of(log) == [container]
    assert {container.stat().st_ino, container.parent.stat().st_ino} <= synced


def test_a_torn_block_that_begins_before_what_is_durable_is_matched_again_too(log: FileMatchLog) -> None:
    """A task that takes over may match records again that another one has matched, in a larger block."""
    matches = some_matches(20)
    log.write(block_of(matches, 0, 10))
    log.write(block_of(matches, 5, 20), synced=False)
    torn = BlockFile(5, 20).path(log.folder)
    torn.write_bytes(torn.read_bytes()[:100])
    assert FileMatchLog(log.folder).recover(10) == 10
