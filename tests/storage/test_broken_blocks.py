"""The match log when a file is torn, corrupt or missing: no reader waits for it, and nothing else is lost."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from storage_support import Matches, files_of, of_number, read_on, some_matches, write_in_blocks

from fieldfare.files import remove_abandoned
from fieldfare.storage import NewMatchBlock
from fieldfare.storage.errors import CorruptBlockError, MatchLogError
from fieldfare.storage.files import match_block, match_log
from fieldfare.storage.files.match_folder import BlockFile
from fieldfare.storage.files.match_log import FileMatchLog


@pytest.fixture
def log(tmp_path: Path) -> FileMatchLog:
    return FileMatchLog(tmp_path / "matches")


def rot(log: FileMatchLog, start: int, end: int) -> Path:
    """Flip a bit in the middle of a block's file."""
    path = BlockFile(start, end).path(log.folder)
    data = bytearray(path.read_bytes())
    data[:] = data[: len(data) // 2] + bytes(len(data) - len(data) // 2)
    path.unlink()
    path.write_bytes(data)
    return path


def without(matches: Matches, number: int, start: int, end: int) -> list[tuple[int, int]]:
    return [place for place in of_number(matches, number) if not start <= place[0] < end]


def test_a_corrupt_block_is_set_aside_and_later_blocks_are_read(log: FileMatchLog) -> None:
    """A disk lost a sector under a block of last week; its matches are gone, those after it are not."""
    matches = some_matches(40)
    write_in_blocks(log, matches, [0, 10, 20, 30, 40])
    rot(log, 10, 20)
    with pytest.raises(CorruptBlockError) as found:
        log.block_at(10)
    assert (found.value.partition, found.value.block) == (0, (10, 20))
    assert log.trouble(BlockFile(10, 20)) == str(found.value)
    kept = log.set_aside(BlockFile(10, 20))
    assert log.aside() == [kept]
    for reader in (log, FileMatchLog(log.folder)):
        for number in range(30):
            assert read_on(reader, number) == (without(matches, number, 10, 20), 40)
    assert log.end() == 40
    log.trim(20)
    assert log.aside() == [], "what retention took is not kept aside either"


@pytest.mark.parametrize("with_checksum", [True, False])
def test_a_changed_header_makes_a_broken_block_and_no_block_of_another_version(
    log: FileMatchLog, with_checksum: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``"format":2`` became ``"format":3``: neither read nor set aside, readers waited for ever."""
    if not with_checksum:
        monkeypatch.setattr(match_block, "_CHECKSUM_KEY", b"of an earlier checkout")
    matches = some_matches(30)
    write_in_blocks(log, matches, [0, 10, 20, 30])
    monkeypatch.undo()
    path = BlockFile(10, 20).path(log.folder)
    whole = path.read_bytes()
    changes = [(b'"format":2', b'"format":3'), (b'"format":2', b'"format":1')]
    if with_checksum:
        changes += [(b'"start":10', b'"start":12'), (b'"matches":', b'"natches":'), (b"{", b"}")]
    for before, after in changes:
        path.write_bytes(whole.replace(before, after))
        with pytest.raises(CorruptBlockError):
            log.block_at(10)
    log.set_aside(BlockFile(10, 20))
    assert read_on(log, 7) == (without(matches, 7, 10, 20), 30)


def test_a_block_of_a_later_format_is_left_alone(log: FileMatchLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(match_block, "FORMAT", 3)
    write_in_blocks(log, some_matches(10), [0, 10])
    monkeypatch.undo()
    with pytest.raises(MatchLogError, match="format 3") as found:
        log.block_at(0)
    assert not isinstance(found.value, CorruptBlockError)


def test_setting_aside_takes_nothing_that_another_block_holds_too(log: FileMatchLog) -> None:
    """A batch was cut in two ways around a crash, so some of the corrupt block's records are in other blocks,
    too."""
    matches = some_matches(60)
    write_in_blocks(log, matches, [0, 10, 50, 60])
    write_in_blocks(log, matches, [12, 20])
    write_in_blocks(log, matches, [30, 50])
    rot(log, 10, 50)
    log.set_aside(BlockFile(10, 50))
    for number in range(30):
        left = [place for place in without(matches, number, 10, 12) if not 20 <= place[0] < 30]
        assert read_on(log, number) == (left, 60)


@pytest.mark.parametrize(
    "patch",
    [
        "os.link = die",
        "link = os.link; os.link = lambda *paths: (link(*paths), die())",
        "os.rename = die",
        "rename = os.rename; os.rename = lambda *paths: (rename(*paths), die())",
        "os.unlink = die",
        "unlink = os.unlink; os.unlink = lambda path, **_: (unlink(path), die())",
    ],
)
@pytest.mark.parametrize("overlapped", [False, True])
def test_a_block_set_aside_by_a_killed_process_is_set_aside_by_the_next(
    log: FileMatchLog, run_program: Callable[[str], tuple[int, str]], patch: str, overlapped: bool
) -> None:
    matches = some_matches(30)
    write_in_blocks(log, matches, [0, 10, 20, 30])
    if overlapped:
        write_in_blocks(log, matches, [10, 15])
    rot(log, 10, 20)
    run_program(f"""if True:
        import os
        from fieldfare.storage.files.match_log import FileMatchLog
        from fieldfare.storage.files.match_folder import BlockFile
        def die(*_, **__):
            os._exit(9)
        {patch}
        FileMatchLog({str(log.folder)!r}).set_aside(BlockFile(10, 20))
    """)
    block = BlockFile(10, 20)
    if log.trouble(block) is not None:
        log.set_aside(block)
    assert [path.name for path in log.aside()] == [block.path(log.folder).name]
    lost = (15, 20) if overlapped else (10, 20)
    for number in range(30):
        assert read_on(log, number) == (without(matches, number, *lost), 30)


def test_compaction_goes_on_beside_a_broken_block_and_names_it(log: FileMatchLog) -> None:
    """One torn file stopped compaction and retention for good."""
    matches = some_matches(60)
    write_in_blocks(log, matches, list(range(0, 61, 3)))
    rot(log, 30, 33)
    named: list[tuple[int, int]] = []
    log.on_broken = lambda error: named.append(error.block)
    assert log.compact(60) == 17
    assert named == [(30, 33)]
    log.set_aside(BlockFile(30, 33))
    for number in range(30):
        assert read_on(log, number) == (without(matches, number, 30, 33), 60)


def test_a_broken_block_of_compaction_takes_none_of_those_that_it_was_made_of(log: FileMatchLog) -> None:
    """Killed between writing the merged block and deleting its parts, and then the disk fails."""
    matches = some_matches(20)
    write_in_blocks(log, matches, [0, 5, 10, 15, 20])
    write_in_blocks(log, matches, [0, 20])
    rot(log, 0, 20)
    log.compact(20)
    log.set_aside(BlockFile(0, 20))
    for number in range(30):
        assert read_on(log, number) == (of_number(matches, number), 20)


def test_a_torn_block_that_was_not_committed_is_matched_again(log: FileMatchLog) -> None:
    """The power failed before a block's bytes were on the disk; its name was there already."""
    matches = some_matches(50)
    write_in_blocks(log, matches, [0, 10, 20, 30, 40, 50])
    rot(log, 10, 20)
    torn = rot(log, 30, 40)
    assert log.recover(20) == 30, "what was committed is not looked at"
    assert not torn.exists()
    write_in_blocks(log, matches, [30, 40])
    assert log.recover(20) == 50


def test_blocks_are_committed_only_when_they_and_their_names_are_synced(
    log: FileMatchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks do not sync blocks, or are killed before they have synced the folder; then the power fails."""
    matches = some_matches(2_500, most_events=1)
    write_in_blocks(log, matches, [0, 900, 1_800, 2_400])
    write_in_blocks(log, matches, [2_450, 2_500])
    synced: list[str] = []

    def record(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", record)
    assert log.sync(950) == 2_400
    folder = str(log.folder)
    blocks = [f"0000/{900:016}-{1800:016}.arrow", f"0001/{1800:016}-{2400:016}.arrow"]
    assert sorted(synced) == sorted(
        [os.path.dirname(folder), folder, *(f"{folder}/{name}" for name in ("0000", "0001", *blocks))]
    )


def test_a_block_that_could_not_be_synced_is_matched_again(
    log: FileMatchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second sync would succeed, although the disk has lost the content."""
    matches = some_matches(50)
    write_in_blocks(log, matches, [0, 10, 20, 30])
    real = os.fsync
    failed: list[str] = []

    def fail(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.endswith(f"{20:016}.arrow") and not failed:
            failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        log.sync(0)
    assert failed and not Path(failed[0]).exists()
    assert log.sync(0) == log.end() == 10
    write_in_blocks(log, matches, [10, 20])
    assert log.sync(0) == 30


def test_a_slow_disk_is_synced_in_steps(log: FileMatchLog, monkeypatch: pytest.MonkeyPatch) -> None:
    matches = some_matches(60)
    write_in_blocks(log, matches, list(range(0, 61, 1)))
    monkeypatch.setattr(match_log, "SYNC_S", 0.0)
    ends = [0]
    while ends[-1] < 60:
        ends.append(log.sync(ends[-1]))
    assert ends == [0, 16, 32, 48, 60]


def test_the_end_of_a_log_with_holes_is_behind_its_last_record(log: FileMatchLog) -> None:
    assert (log.greatest_end(), log.next_start(0)) == (0, None)
    log.write(NewMatchBlock.gap(900, 4_000))
    log.write(NewMatchBlock.gap(3_500, 3_600))
    assert (log.greatest_end(), log.next_start(0), log.next_start(900)) == (4_000, 900, 3_500)


def test_compaction_and_retention_do_not_list_what_they_have_been_through(
    log: FileMatchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A week's match log has 120,000 folders; each round listed all of them."""
    matches = some_matches(20_000, most_events=1, subscriptions=6)
    write_in_blocks(log, matches, list(range(0, 20_001, 500)))
    log.compact(20_000)
    listed: list[str] = []
    list_folder = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(str(path)) or list_folder(path))
    for _ in range(5):
        assert log.compact(20_000) == 0
    assert len(listed) <= 5 * 21, "the last block may be merged with what comes"
    log.trim(2_000)
    listed.clear()
    for before in (2_500, 3_000, 3_500):
        log.trim(before)
    assert len(listed) <= 3 * 4


def test_a_call_of_compaction_is_bounded_and_the_next_goes_on(log: FileMatchLog) -> None:
    matches = some_matches(6_000, most_events=1, subscriptions=6)
    write_in_blocks(log, matches, list(range(0, 6_001, 50)))
    saved = [log.compact(6_000, most_blocks=40) for _ in range(6)]
    assert saved[0] < 60 and sum(saved) == 119
    for number in range(6):
        assert read_on(log, number) == (of_number(matches, number), 6_000)
    assert len(files_of(log)) == 1


def test_a_jump_of_the_clock_takes_no_file_from_under_a_writer(tmp_path: Path) -> None:
    """The clock went forward by a day while a task was writing; a file of a dead process's is removed."""
    writer = os.getppid()
    alive = tmp_path / f".0-1.arrow.{writer}-abcd.tmp"
    dead = tmp_path / f".0-1.arrow.{1 << 30}-abcd.tmp"
    for path in (alive, dead):
        path.write_bytes(b"")
        os.utime(path, (0, 0))
    remove_abandoned(tmp_path)
    assert [path for path in (alive, dead) if path.exists()] == [alive]


def test_a_look_for_the_next_block_costs_a_few_calls_however_much_lies_before(
    log: FileMatchLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is done every few milliseconds while a reader waits; 66 folders may hold a block that reaches so
    far."""
    for start in range(0, 70_000, 1_000):
        log.write(NewMatchBlock.gap(start, start + 1_000))
    looks: list[str] = []
    stat = os.stat
    now_s = 5.0
    monkeypatch.setattr(os, "stat", lambda path, **more: looks.append(str(path)) or stat(path, **more))
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    for _ in range(50):
        assert log.block_at(70_000) is None
    assert len(looks) < 70 + 50 * 3
    log.write(NewMatchBlock.gap(60_000, 70_001))
    assert log.end() == 70_001
    now_s = 6.0
    assert log.block_at(70_000) is not None, "it was cut otherwise after a crash"
