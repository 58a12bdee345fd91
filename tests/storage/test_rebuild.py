"""A database with a damaged structure: the next start copies the readable rows, and continues."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from programs import run
from test_registry import put

from doses import drawn
from fieldfare.model import Cursor, Position
from fieldfare.storage import open_delayed, open_keys, open_registry
from fieldfare.storage.corruption import corruption_notices
from fieldfare.storage.errors import EventLogError, StorageError
from fieldfare.storage.event_log import Appended, NewRecord
from fieldfare.storage.keys import StoredKey
from fieldfare.storage.sqlite.first_page import save_first_page
from fieldfare.storage.sqlite.log import SqliteEventLog
from fieldfare.storage.sqlite.rebuild import _rebuild, mend_databases, note_structure

NAMES = ("log.db", "registry.db", "delayed.db")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("whole")
    log = SqliteEventLog(data / "log.db")
    for number in range(100):
        text = b'{"a":%d}' % number * (number % 40 * 100 + 1) + b"\n"
        log.append([NewRecord("default", text, 1, "p", number)])
    log.raise_end(120)
    log.close()
    registry, keys = (
        open_registry(f"sqlite:///{data}/registry.db"),
        open_keys(f"sqlite:///{data}/registry.db"),
    )
    registry.create_space("birds")
    for number in range(100):
        registry.apply([put(f"x{number}", f"a = {number} AND b = '{'x' * (number % 30 * 50)}'")], (3,), 0)
        keys.add(StoredKey(f"{number:012x}", b"1" * 32, "birds", ("subscribe",), "", 1, "admin"))
    registry.save_cursors([(number, Cursor((Position(0, 4, number),))) for number in range(1, 100)])
    registry.close()
    keys.close()
    delayed = open_delayed(f"sqlite:///{data}/delayed.db")
    delayed.keep([(NewRecord("birds", b"x" * n + b"\n", 1, "p", n), 1 << 50) for n in range(100)], 0)
    delayed.close()
    for name in NAMES:
        save_first_page(data / name)
    return data


def mended(path: Path) -> list[str]:
    """Return what a start reports about a file."""
    said: list[str] = []
    mend_databases([path], said.append)
    return said


def rows_of(path: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(path)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found: dict[str, Any] = {
            name: set(connection.execute(f"SELECT * FROM {name}").fetchall()) for name in names
        }
        for name in ("application_id", "user_version", "page_size", "integrity_check"):
            found[name] = connection.execute(f"PRAGMA {name}").fetchall()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_right_is_left_alone_and_its_copy_has_every_row(
    whole: Path, tmp_path: Path, name: str
) -> None:
    path = Path(shutil.copy(whole / name, tmp_path))
    before = rows_of(path)
    assert mended(path) == [] and corruption_notices(tmp_path) == []
    assert "no row is known to be lost" in _rebuild(path, "a test")
    assert rows_of(path) == before


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES[1:])
def test_a_damaged_page_takes_only_its_own_rows(whole: Path, tmp_path: Path, name: str) -> None:
    before = rows_of(whole / name)
    content = (whole / name).read_bytes()
    chance, size = random.Random(name), before["page_size"][0][0]
    for number in range(drawn(60)):
        data = tmp_path / str(number)
        data.mkdir()
        changed = bytearray(content)
        start = chance.randrange(1, len(content) // size) * size
        damage = chance.choice((bytes(512), chance.randbytes(size), bytes([content[start] ^ 8])))
        changed[start : start + len(damage)] = damage
        (data / name).write_bytes(changed)
        said = mended(data / name)
        after = rows_of(data / name)
        assert after["integrity_check"] == [("ok",)]
        assert after["application_id"] == before["application_id"]
        # A row of which a value has changed is there, and its own checksum tells.
        short = [name for name, rows in before.items() if len(rows) > len(after[name])]
        named = "".join(said)
        assert all(name in named for name in short), (said, short)
        assert sum(len(rows & after[name]) for name, rows in before.items() if isinstance(rows, set)) > 90


def test_an_append_that_damage_ends_succeeds_after_the_next_start(whole: Path, tmp_path: Path) -> None:
    """It was answered with 503 for ever, because SQLite reads the last page of the table for each append."""
    path = Path(shutil.copy(whole / "log.db", tmp_path))
    with closing(sqlite3.connect(path)) as connection:
        [root] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'records'").fetchone()
    content = bytearray(path.read_bytes())
    at = (root - 1) * 16_384
    last = int.from_bytes(content[at + 8 : at + 12])
    content[(last - 1) * 16_384 : last * 16_384] = bytes(16_384)
    path.write_bytes(content)
    log = SqliteEventLog(path)
    with pytest.raises(EventLogError):
        log.append([NewRecord("default", b"{}\n", 1)])
    log.close()
    assert any("restart the service" in notice for notice in corruption_notices(tmp_path))
    [said] = mended(path)
    assert "log.db.damaged-1" in said and (tmp_path / "log.db.damaged-1").exists()
    assert not any("restart the service" in notice for notice in corruption_notices(tmp_path))
    again = SqliteEventLog(path)
    [appended] = again.append([NewRecord("default", b"{}\n", 1)])
    assert isinstance(appended, Appended) and appended.offset >= 120
    found = {record.offset for record in again.read(0, again.end())}
    assert set(range(90)) <= found and appended.offset in found


def test_a_file_that_another_process_reads_is_not_copied_without_its_wal(whole: Path, tmp_path: Path) -> None:
    """A reader of a killed service holds up the checkpoint; the acknowledged rows are still in the WAL."""
    path = Path(shutil.copy(whole / "delayed.db", tmp_path))
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as reader,
        closing(sqlite3.connect(path, isolation_level=None)) as writer,
    ):
        writer.execute("PRAGMA wal_autocheckpoint = 0").fetchone()
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM delayed").fetchone()
        writer.execute("UPDATE delayed SET due_ms = due_ms + 1")
        note_structure(path, "a test")
        content = bytearray(path.read_bytes())
        content[4_096:8_192] = bytes(4_096)
        path.write_bytes(content)
        with pytest.raises(StorageError, match="another process"):
            mended(path)
        assert not (tmp_path / "delayed.db.damaged-1").exists()
    assert mended(path)
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute("SELECT DISTINCT due_ms FROM delayed").fetchall()
    assert found == [((1 << 50) + 1,)]


_KILLED_AT_STEP = """
import os, signal, sys
from pathlib import Path
from fieldfare.storage.sqlite.rebuild import mend_databases

steps = {step}

def count(event, arguments):
    global steps
    if event in ("os.rename", "os.link", "os.remove", "os.mkdir") or event == "open" and arguments[2] & 3:
        steps -= 1
        if steps < 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
mend_databases([Path({path!r})], lambda said: None)
"""


@pytest.mark.long
def test_a_kill_at_any_step_of_a_copy_loses_no_row_and_no_note(whole: Path, tmp_path: Path) -> None:
    content = bytearray((whole / "registry.db").read_bytes())
    with closing(sqlite3.connect(whole / "registry.db")) as connection:
        [root] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'versions'").fetchone()
    size = int.from_bytes(content[16:18])
    last = int.from_bytes(content[(root - 1) * size + 8 :][:4])
    content[(last - 1) * size : last * size] = bytes(size)
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "registry.db").write_bytes(content)
    assert mended(plain / "registry.db")
    expected, status, step = rows_of(plain / "registry.db"), -1, 0
    while status:
        data = tmp_path / str(step)
        data.mkdir()
        path = data / "registry.db"
        path.write_bytes(content)
        status, _ = run(_KILLED_AT_STEP.format(step=step, path=str(path)), data)
        mended(path)
        assert rows_of(path) == expected, step
        assert any("may be lost" in notice for notice in corruption_notices(data)), step
        assert not list(data.rglob("*.tmp")), step
        step += 1
    assert step > 5


def test_a_schema_that_is_not_utf_8_any_more_is_reported_as_damage(tmp_path: Path) -> None:
    """SQLite quotes it in its message, and Python ended the start with a UnicodeDecodeError."""
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE things (x)")
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CREATE \xd4ABLE"))
    with pytest.raises(StorageError, match=r"malformed database schema.* Restore the file from a backup"):
        mend_databases([path], lambda said: None)
