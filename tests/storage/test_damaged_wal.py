"""The WAL of a killed service, one part of which a disk has changed.

SQLite reads it up to the first damaged frame, and says nothing of the acknowledged events behind it.
"""

from __future__ import annotations

import errno
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from doses import drawn
from fieldfare.storage import open_event_log, open_registry
from fieldfare.storage.corruption import corruption_notices
from fieldfare.storage.errors import DiskFullError
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.sqlite.rebuild import mend_databases
from fieldfare.storage.sqlite.wal import WalState, mend_wal, wal_path

RECORDS = 30


@pytest.fixture(scope="module", params=["first use", "overwritten"])
def killed(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A data directory whose log was never closed; SQLite may have begun its WAL again after a checkpoint."""
    made = tmp_path_factory.mktemp("running")
    log = open_event_log(f"sqlite:///{made}/log.db")
    for number in range(RECORDS):
        log.append([NewRecord("default", b'{"a":%d}' % number * 50 + b"\n", 1)])
        if request.param == "overwritten" and number == 2 * RECORDS // 3:
            with closing(sqlite3.connect(made / "log.db")) as other:
                assert other.execute("PRAGMA wal_checkpoint(FULL)").fetchone()[0] == 0
    copy = made / "copy"
    copy.mkdir()
    for path in (made / "log.db", wal_path(made / "log.db")):
        shutil.copy(path, copy)
    log.close()
    return copy


def mended(path: Path) -> list[str]:
    """Return what a start reports about a file."""
    said: list[str] = []
    mend_databases([path], said.append)
    return said


def written(wal: bytes) -> int:
    """Size of the part of a WAL that was written since its last checkpoint."""
    starts = range(32, len(wal), 24 + int.from_bytes(wal[8:12]))
    return next((at for at in starts if wal[at + 8 : at + 16] != wal[16:24]), len(wal))


def readable(data: Path) -> set[int]:
    log = open_event_log(f"sqlite:///{data}/log.db")
    found = {record.offset for record in log.partitions[0].read(0, log.partitions[0].end())}
    log.close()
    return found


@pytest.mark.long
def test_one_flipped_bit_of_a_wal_loses_no_acknowledged_record_in_silence(
    killed: Path, tmp_path: Path
) -> None:
    wal = wal_path(killed / "log.db").read_bytes()
    chance, put_back = random.Random(4), 0
    rounds = drawn(200)
    for number in range(rounds):
        data = Path(shutil.copytree(killed, tmp_path / str(number)))
        changed = bytearray(wal)
        at = chance.randrange(written(wal))
        changed[at] ^= 1 << chance.randrange(8)
        wal_path(data / "log.db").write_bytes(changed)
        assert mended(data / "log.db"), at
        # Where several bits may be the changed one, the page is kept, and its record is named.
        lost = set(range(RECORDS)) - readable(data)
        notes = "\n".join(corruption_notices(data))
        assert len(lost) <= 1 and all(f"record {each} cannot be read" in notes for each in lost), (at, lost)
        put_back += "was restored; nothing is lost" in notes
    assert put_back > rounds / 2


@pytest.mark.long
def test_what_lies_behind_a_destroyed_frame_is_kept_or_named(killed: Path, tmp_path: Path) -> None:
    wal = wal_path(killed / "log.db").read_bytes()
    chance, frame = random.Random(5), 24 + int.from_bytes(wal[8:12])
    for number in range(drawn(100)):
        data = Path(shutil.copytree(killed, tmp_path / str(number)))
        size = chance.choice((4, 512, 4_096, 20_000))
        at = chance.randrange(frame, written(wal) - 5 * frame)  # The first one may hold the tables.
        changed = wal[:at] + chance.randbytes(size) + wal[at + size :]
        wal_path(data / "log.db").write_bytes(changed)
        assert mended(data / "log.db"), at
        lost = set(range(RECORDS)) - readable(data)
        assert corruption_notices(data) and RECORDS - 1 not in lost, (at, size, lost)


def test_a_wal_that_is_right_or_ends_in_a_torn_frame_is_left_as_it_is(killed: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(killed, tmp_path / "data"))
    wal = wal_path(data / "log.db")
    for content in (wal.read_bytes(), wal.read_bytes()[:-100], b""):
        wal.write_bytes(content)
        assert mend_wal(data / "log.db") is WalState.RIGHT
        assert wal.read_bytes() == content and corruption_notices(data) == []


def test_a_killed_log_loses_no_record_to_the_obsolete_frames_of_its_wal(killed: Path, tmp_path: Path) -> None:
    """A kill after a checkpoint: the frames of before it, valid among themselves, still lie behind the new
    ones, and must not be taken for the newest.
    """
    data = Path(shutil.copytree(killed, tmp_path / "data"))
    assert mended(data / "log.db") == []
    assert readable(data) == set(range(RECORDS)) and corruption_notices(data) == []


def test_the_wal_of_a_registry_is_mended_too(tmp_path: Path) -> None:
    registry = open_registry(f"sqlite:///{tmp_path}/registry.db")
    registry.create_space("birds")
    registry.create_space("fish")
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in (tmp_path / "registry.db", wal_path(tmp_path / "registry.db")):
        shutil.copy(path, copy)
    registry.close()
    changed = bytearray(wal_path(copy / "registry.db").read_bytes())
    changed[5] ^= 1  # of its header, without which SQLite drops all of it
    changed[3 * 4_120] ^= 1
    wal_path(copy / "registry.db").write_bytes(changed)
    assert mended(copy / "registry.db")
    assert open_registry(f"sqlite:///{copy}/registry.db").spaces() == ["birds", "fish"]


@pytest.mark.parametrize("writes", [1, 2])
def test_a_flipped_bit_that_may_be_one_of_several_is_not_put_back_elsewhere(
    tmp_path: Path, writes: int
) -> None:
    """The highest bit of many words changes a single bit of the checksum; of the last frame, no other frame
    tells whether the page or its checksum has changed.
    """
    path = tmp_path / "small.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for said in ("page_size = 512", "journal_mode = WAL"):
            database.execute(f"PRAGMA {said}").fetchone()
        database.execute("CREATE TABLE numbers (number INTEGER)")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        for _ in range(writes):
            database.execute("INSERT INTO numbers VALUES (7)")
        wal = wal_path(path).read_bytes()
    put_back = 0
    for at in range(32, len(wal)):
        changed = bytearray(wal)
        changed[at] ^= 0x80
        wal_path(path).write_bytes(changed)
        state = mend_wal(path)
        assert state is WalState.DAMAGED or wal_path(path).read_bytes() == wal, at
        put_back += state is WalState.MENDED
    assert put_back > len(wal) // 2


def test_a_wal_that_a_full_disk_leaves_unrepaired_is_repaired_when_there_is_space(
    killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Path(shutil.copytree(killed, tmp_path / "data"))
    wal = wal_path(data / "log.db")
    changed = bytearray(wal.read_bytes())
    changed[32 + 24 + 8] ^= 1
    wal.write_bytes(changed)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("fieldfare.files.os.fsync", full)
        with pytest.raises(DiskFullError, match="cannot be written, the disk is full"):
            mended(data / "log.db")
        assert wal.read_bytes() == changed and not list(data.rglob("*.tmp"))
    assert mended(data / "log.db")
    assert readable(data) == set(range(RECORDS))
