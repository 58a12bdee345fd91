"""A WAL beside a database that it was not written for, and databases that are symbolic links."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from doses import drawn
from fieldfare.storage import open_event_log, open_registry
from fieldfare.storage.doctor import examine
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.sqlite.pairing import find_foreign_wal
from fieldfare.storage.sqlite.rebuild import mend_databases
from fieldfare.storage.sqlite.wal import wal_path


def copied(path: Path, to: Path) -> Path:
    """Copy a database as a kill would leave it now: the file and its WAL."""
    to.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, to)
    if wal_path(path).exists():
        shutil.copy(wal_path(path), to)
    return to / path.name


def append(folder: Path, times: int, text: bytes) -> None:
    """Start, append records as a service does, leave a killed copy in ``killed``, and stop."""
    mend_databases([folder / "log.db"], print)
    log = open_event_log(f"sqlite:///{folder}/log.db")
    for _ in range(times):
        log.append([NewRecord("default", text * 50 + b"\n", 1)])
    copied(folder / "log.db", folder / "killed")
    log.close()


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Two services, the second of which was started more often, and a backup of it after its second run."""
    for name, runs in (("other", 2), ("own", 4)):
        folder = tmp_path / name
        folder.mkdir()
        for run in range(runs):
            append(folder, 80, b'{"run":%d}' % run)
            if run == 1:
                shutil.copytree(folder, tmp_path / "backup", dirs_exist_ok=True)
    return tmp_path


def refused(path: Path) -> str:
    content = path.read_bytes(), wal_path(path).read_bytes()
    with pytest.raises(StorageError) as raised:
        mend_databases([path], print)
    assert (path.read_bytes(), wal_path(path).read_bytes()) == content  # nothing was written over
    return str(raised.value)


def test_a_restored_database_beside_the_wal_of_its_successor_is_refused(made: Path) -> None:
    """SQLite wrote the WAL's pages over the backup's: events of both were lost."""
    path = made / "own" / "killed" / "log.db"
    shutil.copy(made / "backup" / "log.db", path)
    assert str(wal_path(path)) in refused(path)
    (finding, *_) = examine(DataFolder(path.parent), is_running=False)
    assert finding.file == wal_path(path)
    assert "was not written for the database" in finding.what


def test_the_wal_of_another_service_is_refused(made: Path) -> None:
    """Its events were delivered to this service's subscribers."""
    path = copied(made / "other" / "killed" / "log.db", made / "mixed")
    shutil.copy(made / "own" / "log.db", path)
    assert str(wal_path(path)) in refused(path)


def test_the_wal_of_another_database_is_refused(made: Path) -> None:
    registry = open_registry(f"sqlite:///{made}/registry.db")
    for number in range(20):
        registry.create_space(f"space{number}")
    copied(made / "registry.db", made / "killed")
    registry.close()
    path = made / "own" / "log.db"
    shutil.copy(wal_path(made / "killed" / "registry.db"), wal_path(path))
    assert "log.db-wal" in refused(path)


def test_the_wal_of_a_young_service_beside_another_is_refused(made: Path) -> None:
    """The counters of two services that were started once may be the same, but a file does not shrink."""
    for name, times in (("young", 3), ("larger", 2_000)):
        (made / name).mkdir()
        append(made / name, times, b'{"text":"%s"}' % (b"x" * 20))
    path = copied(made / "young" / "killed" / "log.db", made / "mixed")
    shutil.copy(made / "larger" / "log.db", path)
    assert "log.db-wal" in refused(path)


@pytest.mark.parametrize("content", [b"", None])
def test_a_wal_whose_database_is_missing_is_not_deleted(made: Path, content: bytes | None) -> None:
    """SQLite deletes it, and with it the acknowledged events of a killed service."""
    path = made / "own" / "killed" / "log.db"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    wal = wal_path(path).read_bytes()
    with pytest.raises(StorageError, match="missing or empty"):
        mend_databases([path], print)
    assert wal_path(path).read_bytes() == wal


def test_no_wal_of_its_own_database_is_refused(tmp_path: Path) -> None:
    """Several connections write and checkpoint; a kill may happen at any moment."""
    for seed in range(drawn(6)):
        chance = random.Random(seed)
        path = tmp_path / str(seed) / "log.db"
        path.parent.mkdir()
        connections = [_connected(path, chance) for _ in range(3)]
        connections[0].execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b BLOB)")
        for step in range(40):
            connection = chance.choice(connections)
            if chance.random() < 0.1:
                connections.remove(connection)
                connection.close()
                connections.append(connection := _connected(path, chance))
            _work(connection, chance)
            copy = copied(path, tmp_path / "copy")
            assert find_foreign_wal(copy) is None, f"seed {seed}, step {step}"
            shutil.rmtree(copy.parent)
        for connection in connections:
            connection.close()


def _connected(path: Path, chance: random.Random) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL").close()
    connection.execute(f"PRAGMA wal_autocheckpoint = {chance.choice((0, 1, 5, 1000))}").close()
    connection.execute("PRAGMA synchronous = OFF").close()
    return connection


def _work(connection: sqlite3.Connection, chance: random.Random) -> None:
    kind = chance.choice(("insert", "insert", "roll back", "delete", "checkpoint", "table"))
    if kind in ("insert", "roll back"):
        connection.execute("BEGIN IMMEDIATE")
        for _ in range(chance.randrange(1, 20)):
            connection.execute("INSERT INTO t (b) VALUES (randomblob(?))", (chance.randrange(6_000),))
        connection.execute("COMMIT" if kind == "insert" else "ROLLBACK")
    elif kind == "delete":
        connection.execute("DELETE FROM t WHERE a IN (SELECT a FROM t ORDER BY random() LIMIT 20)")
    elif kind == "table":
        connection.execute(f"CREATE TABLE IF NOT EXISTS t{chance.randrange(5)} (a)")
    else:
        mode = chance.choice(("PASSIVE", "FULL", "RESTART", "TRUNCATE"))
        connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()


def linked(made: Path) -> Path:
    """The killed log on another disk, behind a symbolic link in the data directory."""
    target = copied(made / "own" / "killed" / "log.db", made / "disk")
    link = made / "data" / "log.db"
    link.parent.mkdir()
    link.symlink_to(target)
    return link


def test_the_wal_of_a_linked_database_is_repaired_where_it_is(made: Path) -> None:
    """It was looked for beside the link, so a flipped bit in it cost all acknowledged events behind it."""
    link = linked(made)
    wal = bytearray(wal_path(link).read_bytes())
    wal[len(wal) // 2] ^= 4
    wal_path(link).write_bytes(wal)
    said: list[str] = []
    mend_databases([link], said.append)
    assert "WAL had changed on the disk" in said[0]
    log = open_event_log(f"sqlite:///{link}")
    assert log.end() == 320
    log.close()


def test_a_linked_database_is_rebuilt_at_the_place_that_the_link_names(made: Path) -> None:
    link = linked(made)
    with closing(sqlite3.connect(link)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
        root = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'ran'").fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    with link.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * 64)
    mend_databases([link], print)
    assert link.is_symlink()
    assert (made / "data" / "log.db.damaged-1").exists()
    with closing(sqlite3.connect(link)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
