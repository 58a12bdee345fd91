"""Delayed records when a disk gives back other bytes than were written."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fieldfare.storage.corruption import corruption_notices
from fieldfare.storage.errors import FormatError
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.sqlite.delayed import HEADS, SqliteDelayed


def keep(path: Path, count: int = 3) -> None:
    store = SqliteDelayed(path)
    store.keep([(NewRecord("birds", b'{"n":%d}\n' % number, 1), 10 + number) for number in range(count)], 0)
    store.close()


def tamper(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.executescript(statement)
    connection.close()


@pytest.mark.parametrize(
    "change",
    ["payload = X'7B226E223A377D0A'", "payload = 'x'", "due_ms = 1 << 50", "space = 'fish'", "count = 2"],
)
def test_a_changed_record_is_not_published_and_named(tmp_path: Path, change: str) -> None:
    path = tmp_path / "delayed.db"
    keep(path)
    tamper(path, f"UPDATE delayed SET {change} WHERE id = 2")
    store = SqliteDelayed(path)
    assert [each.record.payload for each in store.take(100, 1 << 20)] == [b'{"n":0}\n', b'{"n":2}\n']
    [notice] = corruption_notices(tmp_path)
    assert "delayed events with id 2" in notice
    tamper(path, "UPDATE delayed SET payload = 'y' WHERE id = 3")
    assert [each.id for each in store.take(100, 1 << 20)] == [1], (
        "what changes later is found when it is taken"
    )


def test_a_store_that_is_closed_leaves_nothing_in_its_wal(tmp_path: Path) -> None:
    """All of it lay there; a flipped bit ended what was read, and acknowledged events were gone."""
    path = tmp_path / "delayed.db"
    keep(path)
    reader = SqliteDelayed(path)
    assert reader.held() == {"birds": (3, 24)}
    reader.close()
    wal = Path(f"{path}-wal")
    assert not wal.exists() or wal.stat().st_size == 0


def test_a_start_reads_no_payload(tmp_path: Path) -> None:
    """Gigabytes of delayed events were read at each start, before the service answered."""
    path = tmp_path / "delayed.db"
    keep(path)
    store = SqliteDelayed(path)
    tamper(path, "UPDATE delayed SET payload = 'y' WHERE id = 2")
    with sqlite3.connect(path) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {HEADS}").fetchall()
    assert "USING COVERING INDEX of_space" in plan[0][3]
    again = SqliteDelayed(path)
    assert corruption_notices(tmp_path) == [], "it is found when it is due"
    assert [each.id for each in again.take(100, 1 << 20)] == [1, 3]
    assert len(corruption_notices(tmp_path)) == 1
    store.close()


@pytest.mark.parametrize("change", ["due_ms = 1 << 50", "due_ms = 'x'", "count = 2", "bytes = 1", "head = 7"])
def test_a_record_that_might_never_be_due_is_named_at_a_start(tmp_path: Path, change: str) -> None:
    path = tmp_path / "delayed.db"
    keep(path)
    tamper(path, f"UPDATE delayed SET {change} WHERE id = 2")
    assert SqliteDelayed(path).held() == {"birds": (2, 16)}
    [notice] = corruption_notices(tmp_path)
    assert "delayed events with id 2" in notice


OLDER = {
    1: "ALTER TABLE delayed DROP COLUMN checksum;",
    2: "",
}


@pytest.mark.parametrize("format", OLDER)
def test_a_store_of_an_older_format_goes_on(tmp_path: Path, format: int) -> None:
    path = tmp_path / "delayed.db"
    keep(path)
    tamper(
        path,
        f"""DROP INDEX of_space; ALTER TABLE delayed DROP COLUMN head; {OLDER[format]}
        CREATE INDEX of_space ON delayed (space, due_ms, id, count, bytes); PRAGMA user_version = {format}""",
    )
    store = SqliteDelayed(path)
    store.keep([(NewRecord("birds", b"new\n", 1), 50)], 0)
    store.close()
    again = SqliteDelayed(path)
    assert [each.record.payload[-2:] for each in again.take(100, 1 << 20)] == [b"}\n"] * 3 + [b"w\n"]


@pytest.mark.parametrize("change", ["due_ms = 1 << 50", "payload = 'x'"])
def test_a_changed_record_of_an_older_format_is_named_at_a_start(tmp_path: Path, change: str) -> None:
    path = tmp_path / "delayed.db"
    keep(path)
    tamper(path, f"UPDATE delayed SET head = NULL; UPDATE delayed SET {change} WHERE id = 2")
    assert SqliteDelayed(path).held() == {"birds": (2, 16)}
    [notice] = corruption_notices(tmp_path)
    assert "delayed events with id 2" in notice


@pytest.mark.parametrize("setting", ["user_version = 4", "user_version = 0", "application_id = 7"])
def test_a_file_of_another_kind_or_a_newer_format_is_refused(tmp_path: Path, setting: str) -> None:
    path = tmp_path / "delayed.db"
    keep(path)
    tamper(path, f"PRAGMA {setting}")
    with pytest.raises(FormatError, match="holds no delayed events of formats 1 to 3"):
        SqliteDelayed(path)
