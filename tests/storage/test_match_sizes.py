"""Bytes of matches by space, as blocks report them, through all operations on a log."""

from __future__ import annotations

import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_support import block_of, files_of, some_matches
from tests.doses import drawn

from fieldfare.storage.errors import MatchLogError
from fieldfare.storage.files import match_sizes
from fieldfare.storage.files.match_block import FileBlock
from fieldfare.storage.files.match_folder import BlockFile, range_of
from fieldfare.storage.files.match_log import FileMatchLog
from fieldfare.storage.files.match_sizes import MatchSizes


@pytest.fixture
def log(tmp_path: Path) -> FileMatchLog:
    return FileMatchLog(tmp_path / "matches")


def write(log: FileMatchLog, start: int, end: int, of_others: int = 0, *, is_old: bool = False) -> None:
    """A block whose matches belong to the space `mine`, except for some; an older block has no such
    counts."""
    block = block_of(some_matches(end), start, end)
    matches = len(block.lists.ordinals)
    spaces = {"mine": matches - of_others} | ({"theirs": of_others} if of_others else {})
    log.write(replace(block, spaces={} if is_old else spaces))


def naive(log: FileMatchLog) -> Counter[str]:
    """Compute the sizes naively, by reading all blocks completely."""
    total = Counter[str]()
    for path in files_of(log):
        found = range_of(path)
        assert found is not None
        block = FileBlock(path, 0, found)
        size_bytes = path.stat().st_size
        total.update({space: size_bytes * n // block.matches for space, n in block.spaces.items()})
    return total


def test_a_blocks_bytes_are_divided_by_the_matches_of_each_space(log: FileMatchLog) -> None:
    write(log, 0, 50, of_others=30)
    block = log.block_at(0)
    assert block is not None and dict(block.spaces) == {"mine": block.matches - 30, "theirs": 30}
    sizes = log.sizes()
    assert sizes == naive(log) and sizes["theirs"] == log.size_bytes() * 30 // block.matches
    assert log.size_bytes() - 1 <= sum(sizes.values()) <= log.size_bytes()


def test_a_block_of_an_older_format_is_read_and_counts_for_no_space(log: FileMatchLog) -> None:
    """Its header does not count matches by space, although it has matches."""
    write(log, 0, 50, is_old=True)
    path = files_of(log)[0]
    with pa.OSFile(str(path)) as file:
        reader = pa.ipc.open_file(file)
        rows = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        header = msgspec.json.decode(reader.schema.metadata[b"fieldfare"])
        del header["spaces"]
        schema = reader.schema.with_metadata({b"fieldfare": msgspec.json.encode(header)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for row in rows:
            writer.write_batch(row)
    block = log.block_at(0)
    assert block is not None and block.matches and block.spaces == {} == log.sizes()
    block.check()


@settings(max_examples=drawn(30))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("write", "again", "overlap", "old", "compact", "trim", "tear", "aside", "look")),
            st.integers(0, 40),
        ),
        max_size=15,
    ),
    st.integers(1, 4),
    st.integers(0, 2),
)
def test_whatever_happens_sizes_are_the_sum_of_what_blocks_say(
    steps: list[tuple[str, int]], opened_at_once: int, newest_folders: int
) -> None:
    """The sizes kept by a log that is asked repeatedly never differ from those computed from scratch."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(match_sizes, "OPENED_BATCH_SIZE", opened_at_once)
        patch.setattr(match_sizes, "NEWEST_FOLDERS", newest_folders)
        log, end, torn = FileMatchLog(folder), 0, set[BlockFile]()
        for verb, number in steps:
            blocks = [block for path in files_of(log) if (block := range_of(path)) and block not in torn]
            if verb in ("write", "old"):
                # Folders of blocks are a thousand records each: some blocks are in further ones.
                write(log, end, end + 5 + 40 * number, number, is_old=verb == "old")
                end += 5 + 40 * number
            elif verb == "overlap" and end > 3:
                write(log, end - 3, end + 7)
                end += 7
            elif verb == "again" and blocks:
                block = blocks[number % len(blocks)]
                write(log, *block)
            elif verb == "compact" and not torn:
                log.compact(end)
            elif verb == "trim":
                log.trim(end - 20 * number)
                torn = {block for block in torn if block.path(log.folder).exists()}
            elif verb == "tear" and blocks:
                block = blocks[number % len(blocks)]
                path = block.path(log.folder)
                content = path.read_bytes()
                path.unlink()
                path.write_bytes(content[: len(content) // 2])
                log.forget(block)
                torn.add(block)
            elif verb == "aside" and torn:
                log.set_aside(torn.pop())
                for path in log.aside():
                    path.unlink()
            elif verb == "look":
                log.sizes()
        for block in torn:
            log.sizes()
            block.path(log.folder).unlink()
        for _ in range(len(files_of(log)) + match_sizes.TURNS):
            sizes = log.sizes()
        assert sizes == naive(log)


def test_a_torn_block_counts_for_no_space_until_it_is_matched_again(log: FileMatchLog) -> None:
    write(log, 0, 20)
    whole = files_of(log)[0].read_bytes()
    files_of(log)[0].write_bytes(whole[:100])
    write(log, 20, 40)
    other = files_of(log)[1].stat().st_size
    assert log.sizes() == {"mine": other} == log.sizes()
    log.recover(0)
    write(log, 0, 20)
    assert log.sizes() == {"mine": other + len(whole)}


def test_a_corrupt_header_affects_only_its_block(log: FileMatchLog) -> None:
    """For any changed bit: the file is no longer a block, or at most its whole size is assigned wrongly."""
    write(log, 0, 20, of_others=9)
    path, block = files_of(log)[0], BlockFile(0, 20)
    whole = path.read_bytes()
    header = whole.rfind(b'{"format"'), whole.rfind(b"}}") + 2
    shared = 0
    for place in range(*header):
        for bit in range(8):
            path.unlink()
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            sizes = FileMatchLog(log.folder).sizes()
            assert sum(sizes.values()) <= len(whole)
            shared += bool(sizes)
            with suppress(MatchLogError):
                FileBlock(path, 0, block).check()
    assert 0 < shared < 8 * (header[1] - header[0])


@pytest.mark.parametrize("said", [{"mine": -5}, {"mine": -(10**30)}, {"mine": 10**30, "theirs": 1}])
def test_an_impossible_header_changes_no_spaces_sum(log: FileMatchLog, said: dict[str, int]) -> None:
    write(log, 0, 20)
    block = block_of(some_matches(40), 20, 40)
    log.write(replace(block, spaces=said))
    one, other = (path.stat().st_size for path in files_of(log))
    assert one <= log.sizes()["mine"] <= one + other


def test_compaction_keeps_whose_matches_are_and_retention_takes_them(log: FileMatchLog) -> None:
    """The matches of an old block that was merged with others count for no space."""
    for start in range(0, 60, 10):
        write(log, start, start + 10, of_others=5, is_old=start == 50)
    said = sum(
        (Counter(block.spaces) for start in range(0, 60, 10) if (block := log.block_at(start))), Counter()
    )
    log.sizes()
    assert log.compact(60) == 5
    block = log.block_at(0)
    assert block is not None and block.spaces == said and sum(said.values()) < block.matches
    assert log.sizes() == naive(log)
    assert log.trim(60) == 1 and log.sizes() == {}


def test_blocks_that_overlap_are_not_counted_twice_once_they_are_merged(log: FileMatchLog) -> None:
    write(log, 0, 30)
    write(log, 10, 40)
    log.compact(40)
    block = log.block_at(0)
    assert block is not None and block.end == 40 and block.spaces == {"mine": block.matches}


def test_a_round_opens_a_limited_number_of_files_newest_first(
    log: FileMatchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a start with a week's log maintenance takes no longer, and no file is opened twice."""
    opened: list[str] = []
    shares_of = match_sizes.shares_of
    monkeypatch.setattr(match_sizes, "shares_of", lambda path: opened.append(path.name) or shares_of(path))
    monkeypatch.setattr(match_sizes, "OPENED_BATCH_SIZE", 4)
    for start in range(0, 2_500, 250):
        write(log, start, start + 250)
    newest = [path.name for path in sorted(files_of(log), key=lambda path: path.name, reverse=True)]
    for looks in (1, 2, 3, 4):
        log.sizes()
        assert opened == newest[: 4 * looks]
    assert log.sizes() == naive(log)


def test_a_round_only_adds_up_changes(log: FileMatchLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding up a week's folders for a hundred spaces takes seconds of Python, while all others wait."""
    counted: list[int] = []
    count = MatchSizes._count

    def counting(self: MatchSizes, shares: Any, times: int) -> None:
        counted.append(times)
        count(self, shares, times)

    monkeypatch.setattr(MatchSizes, "_count", counting)
    monkeypatch.setattr(match_sizes, "SETTLED_NS", -(1 << 62))
    for start in range(0, 5_000, 500):
        write(log, start, start + 500)
    assert log.sizes() == naive(log) and counted == [1] * 10
    write(log, 5_000, 5_500)
    assert log.sizes() == naive(log) and counted == [1] * 11
    log.trim(2_500)
    for _ in range(match_sizes.TURNS):
        sizes = log.sizes()
    assert sizes == naive(log) and counted == [1] * 11 + [-1] * 5
    log.trim(5_500)
    assert log.sizes() == {}


def test_a_log_of_several_partitions_is_one(log: FileMatchLog) -> None:
    write(log, 0, 20)
    write(log.partition(1), 0, 20)
    assert log.sizes() == {"mine": log.size_bytes()} == FileMatchLog(log.folder).sizes()
