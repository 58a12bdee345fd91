"""`fieldfare doctor`: what is damaged in a data directory, where, and what to do."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_cli_index import FILTERS, make_data
from typer.testing import CliRunner

from fieldfare.cli.app import app
from fieldfare.model import Cursor, DeadLetter, Position
from fieldfare.storage import (
    NewMatchBlock,
    open_delayed,
    open_event_log,
    open_keys,
    open_match_log,
    open_registry,
)
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.keys import StoredKey
from fieldfare.storage.sqlite.rebuild import mend_databases


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with something of every kind in it."""
    root = make_data(tmp_path / "data", FILTERS)
    folder = DataFolder(root)
    records = [NewRecord("default", b'{"n":%d,"text":"%s"}\n' % (n, b"x" * 400), 1) for n in range(300)]
    log, delayed = open_event_log(folder.log_url), open_delayed(folder.delayed_url)
    log.append(records)
    delayed.keep([(record, 1 << 50) for record in records[:3]], 0)
    matches = open_match_log(folder.matches_url).partition(0)
    matches.write(NewMatchBlock.gap(0, 150))
    matches.write(NewMatchBlock.gap(150, 300))
    log.close()
    delayed.close()
    return root


def examined(data: Path, status: int) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["doctor", "--data", str(data), "--json"])
    assert result.exit_code == status, result.output
    return list(json.loads(result.stdout))


def tamper(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_directory_without_damage_has_none(data: Path) -> None:
    assert examined(data, 0) == []
    result = CliRunner().invoke(app, ["doctor", "--data", str(data)])
    assert (result.exit_code, result.stdout) == (0, "no damage found\n")


def test_damage_of_every_kind_is_named_with_what_to_do(data: Path) -> None:
    tamper(data / "log.db", "UPDATE records SET payload = X'7B7D0A' WHERE offset = 7")
    tamper(data / "registry.db", "UPDATE versions SET compiled = X'00' WHERE revision = 3")
    tamper(data / "registry.db", "UPDATE subscriptions SET filter = 'x = 1' WHERE id = 'late'")
    tamper(data / "delayed.db", "UPDATE delayed SET due_ms = 5 WHERE id = 2")
    flip(next((data / "matches").glob("*/*0150.arrow")))
    flip(next((data / "index" / "files").glob("*.part")))
    found = {(Path(each["file"]).name, each["what"]) for each in examined(data, 1)}
    for name, what in (
        ("log.db", "record 7 cannot be read"),
        ("registry.db", "revision 3 has changed on the disk; it was compiled again"),
        ("registry.db", "the subscription 'late'"),
        ("delayed.db", "the delayed events with id 2"),
        ("0000000000000000-0000000000000150.arrow", ""),
        (".part", "checksum"),
    ):
        assert any(file.endswith(name) and what in said for file, said in found), (name, what, found)
    assert len(found) == 6


@pytest.mark.parametrize("name", ["log.db", "registry.db"])
def test_a_missing_database_is_named(data: Path, name: str) -> None:
    for path in data.glob(f"{name}*"):
        path.unlink()
    (found,) = examined(data, 1)
    assert (Path(found["file"]).name, found["what"]) == (
        name,
        "the file is missing: all that it held is lost",
    )
    assert "before the next start" in found["to_do"]


def test_what_a_directory_never_had_is_not_missing(tmp_path: Path) -> None:
    """A start that was killed after it made the event log; and a relay, whose registry has only keys."""
    for name, opened in (("site", "log"), ("relay", "registry")):
        folder = DataFolder(tmp_path / name)
        folder.make()
        (open_event_log(folder.log_url) if opened == "log" else open_keys(folder.registry_url)).close()
        assert examined(folder.root, 0) == []


def test_damaged_pages_are_named(data: Path) -> None:
    content = bytearray((data / "log.db").read_bytes())
    page = content.index(b'"n":150,') // 16_384 * 16_384
    content[page : page + 100] = b"\xff" * 100
    (data / "log.db").write_bytes(content)
    (data / "registry.db-wal").unlink(missing_ok=True)
    (data / "registry.db").write_bytes(b"no database at all" * 1_000)
    found = [(Path(each["file"]).name, each["what"]) for each in examined(data, 1)]
    assert any(name == "log.db" and "cannot be read" in what for name, what in found)
    assert any(name == "registry.db" and "not a database" in what for name, what in found)


def test_a_missing_directory_is_an_error_message(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["doctor", "--data", str(tmp_path / "no")])
    assert result.exit_code != 0 and "there is no directory" in result.output


def test_a_directory_of_something_else_is_not_called_undamaged(tmp_path: Path) -> None:
    (tmp_path / "readme").touch()
    result = CliRunner().invoke(app, ["doctor", "--data", str(tmp_path)])
    assert result.exit_code == 1 and "there is no data of a service in" in result.output


def killed(data: Path, name: str) -> Path:
    """Commit two transactions, and leave them in the WAL as a kill does; return the WAL."""
    path, wal = data / name, data / f"{name}-wal"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL").close()
        connection.execute("CREATE TABLE one (x)")
        connection.commit()
        connection.execute("CREATE TABLE two (x)")
        connection.commit()
        content, pages = wal.read_bytes(), path.read_bytes()
    connection.close()
    path.write_bytes(pages)
    wal.write_bytes(content)
    (data / f"{name}-shm").unlink(missing_ok=True)
    return wal


@pytest.mark.parametrize("name", ["log.db", "registry.db", "delayed.db"])
def test_a_damaged_wal_is_named_and_left_for_the_start_that_repairs_it(data: Path, name: str) -> None:
    """It was not looked at, and SQLite deleted what lay behind the damage when the check closed the file."""
    wal = killed(data, name)
    content = bytearray(wal.read_bytes())
    content[32 + 24 + 100] ^= 1
    wal.write_bytes(content)
    [found] = examined(data, 1)
    assert found["file"] == str(wal) and "has changed on the disk" in found["what"]
    assert wal.read_bytes() == content
    said: list[str] = []
    mend_databases(DataFolder(data).databases, said.append)
    assert any("nothing is lost" in each["what"] for each in examined(data, 1))
    with sqlite3.connect(data / name) as connection:
        assert connection.execute("SELECT * FROM two").fetchall() == []


def test_vanished_rows_keys_and_dead_letters_are_read(data: Path) -> None:
    folder = DataFolder(data)
    registry, keys = open_registry(folder.registry_url), open_keys(folder.registry_url)
    keys.add(StoredKey("a" * 12, bytes(32), None, ("subscribe",), "", 1, "admin"))
    keys.close()
    letters = (DeadLetter(Position(0, 5, 0), 3, "why"),)
    registry.save_cursors([(1, Cursor((Position(0, 9, 0),), letters=letters))])
    registry.close()
    assert examined(data, 0) == []
    tamper(data / "registry.db", "UPDATE api_keys SET rights = 'admin'")
    tamper(data / "registry.db", "UPDATE letters SET attempts = 4")
    tamper(data / "registry.db", "DELETE FROM subscriptions WHERE id = 'late'")
    found = [each["what"] for each in examined(data, 1)]
    for what in ("the API key", "the dead letter 0-5-0", "rows have vanished"):
        assert any(what in said for said in found), (what, found)
    assert len(found) == 3


@pytest.mark.parametrize("name", ["log.db", "registry.db", "delayed.db"])
def test_an_empty_database_is_no_older_one(data: Path, name: str) -> None:
    """It said that a start brings the file up to date: that begins an empty log."""
    path = data / name
    path.write_bytes(b"")
    for other in ("-wal", "-shm"):
        Path(f"{path}{other}").unlink(missing_ok=True)
    (finding,) = (each for each in examined(data, 1) if each["file"] == str(path))
    assert "is empty" in finding["what"] and finding["to_do"].startswith("restore it from a backup")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_under_a_database_s_name_is_named(data: Path, make: Callable[[Path], None]) -> None:
    """It waited for ever for the other end of a pipe."""
    path = data / "delayed.db"
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        each.unlink(missing_ok=True)
    make(path)
    found = [each for each in examined(data, 1) if each["file"] == str(path)]
    assert [each["what"] for each in found] == ["it is no file"]
