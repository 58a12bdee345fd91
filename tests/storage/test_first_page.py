"""A damaged first page of a SQLite file is put back; without it nothing else in the file can be found."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from doses import drawn
from fieldfare.storage import open_delayed, open_event_log, open_registry
from fieldfare.storage.corruption import corruption_notices, note_corruption
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.sqlite.first_page import mend_first_page, save_first_page
from fieldfare.storage.sqlite.rebuild import mend_databases


@pytest.fixture
def path(tmp_path: Path) -> Path:
    log = open_event_log(f"sqlite:///{tmp_path}/log.db")
    log.append([NewRecord("birds", b'{"n":%d}\n' % n, 1) for n in range(50)])
    log.close()
    save_first_page(tmp_path / "log.db")
    return tmp_path / "log.db"


def test_any_changed_byte_of_the_first_page_is_mended(path: Path) -> None:
    """A byte of the text that says which columns a table has ended each start."""
    whole = path.read_bytes()
    chance = random.Random(7)
    places = [
        0,
        16,
        18,
        28,
        31,
        60,
        68,
        100,
        103,
        105,
        *(chance.randrange(16_384) for _ in range(drawn(200))),
    ]
    for at in places:
        if 24 <= at < 28 or 40 <= at < 44 or 92 <= at < 100:
            continue  # counters, which SQLite reads as they are
        content = bytearray(whole)
        content[at] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
        assert mend_first_page(path), at
        log = open_event_log(f"sqlite:///{path}")
        assert [record.offset for record in log.read(0, log.end())] == list(range(50)), at
        log.append([])
        log.close()
    [notice] = corruption_notices(path.parent)
    assert "its first page had changed on the disk and was restored; nothing is lost" in notice


def test_a_first_page_that_changed_with_what_was_written_is_left_alone(path: Path) -> None:
    log = open_event_log(f"sqlite:///{path}")
    log.append([NewRecord("birds", b'"%s"\n' % (b"x" * 100_000), 1)])
    log.trim(40)
    log.close()
    before = path.read_bytes()
    assert not mend_first_page(path) and path.read_bytes() == before
    assert corruption_notices(path.parent) == []


def test_every_database_of_the_service_has_a_first_page_that_can_be_kept(tmp_path: Path) -> None:
    open_registry(f"sqlite:///{tmp_path}/registry.db").close()
    open_delayed(f"sqlite:///{tmp_path}/delayed.db").close()
    for name in ("registry.db", "delayed.db"):
        save_first_page(tmp_path / name)
        assert (tmp_path / f"{name}.first-page").exists(), name
    (tmp_path / "delayed.db.first-page").write_bytes(b"changed itself")
    assert not mend_first_page(tmp_path / "delayed.db")


def test_a_copy_from_before_a_backup_was_put_back_is_not_written_into_the_file(tmp_path: Path) -> None:
    """A file upgraded a second time has its new index on another page, and the same number of its schema."""
    path = tmp_path / "registry.db"

    def change(*statements: str) -> None:
        with closing(sqlite3.connect(path)) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()

    change("CREATE TABLE keys (name TEXT)", "INSERT INTO keys VALUES ('first')")
    backup = path.read_bytes()
    change("CREATE INDEX valid ON keys (name)")
    save_first_page(path)
    path.write_bytes(backup)
    assert not mend_first_page(path)
    change("INSERT INTO keys SELECT hex(randomblob(5000)) FROM json_each('[1,2,3,4,5,6,7,8,9]')")
    change("CREATE INDEX valid ON keys (name)")
    assert not mend_first_page(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("at", [35, 36, 39])
@pytest.mark.parametrize("has_free_pages", [False, True])
def test_a_changed_list_of_unused_pages_ends_no_append(path: Path, at: int, has_free_pages: bool) -> None:
    """SQLite calls the whole file malformed at the first write that needs a page."""
    if has_free_pages:
        log = open_event_log(f"sqlite:///{path}")
        log.append([NewRecord("birds", b'"%s"\n' % (b"x" * 200_000), 1) for _ in range(3)])
        log.trim(52)
        log.close()
        assert int.from_bytes(path.read_bytes()[36:40]) > 0
        assert not mend_first_page(path)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert mend_first_page(path)
    log = open_event_log(f"sqlite:///{path}")
    log.append([NewRecord("birds", b'"%s"\n' % (b"x" * 500_000), 1)])
    offsets = [record.offset for record in log.read(log.start(), log.end())]
    assert offsets == list(range(52 if has_free_pages else 0, log.end()))
    log.close()
    with closing(sqlite3.connect(path)) as connection:
        [(said,)] = connection.execute("PRAGMA quick_check(1)").fetchall()
    assert said == "ok" or "never used" in said


def test_a_note_that_a_full_disk_refused_is_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "corrupt").write_bytes(b"in the way, as a full disk is")
    for _ in range(3):
        note_corruption(tmp_path / "log.db", "record-3", "record 3 cannot be read")
    assert len(caplog.records) == 2
    (tmp_path / "corrupt").unlink()
    note_corruption(tmp_path / "log.db", "record-3", "record 3 cannot be read")
    [notice] = corruption_notices(tmp_path)
    assert "record 3 cannot be read" in notice


def test_a_first_page_that_cannot_be_put_back_is_noted_and_ends_no_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file was read-only, and the start ended with a traceback."""
    whole = bytearray(path.read_bytes())
    whole[103] ^= 0xFF
    path.write_bytes(whole)
    real = Path.open

    def refused(self: Path, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if self == path and "+" in mode:
            raise PermissionError("read-only")
        return real(self, mode, *rest, **named)

    monkeypatch.setattr(Path, "open", refused)
    assert not mend_first_page(path)
    assert "cannot be restored" in corruption_notices(path.parent)[0]


def test_a_service_that_is_only_ever_killed_has_a_copy_of_its_first_pages(path: Path) -> None:
    path.with_name("log.db.first-page").unlink()
    mend_databases([path], lambda said: None)
    page = bytearray(path.read_bytes())
    page[100:512] = bytes(412)
    path.write_bytes(page)
    said: list[str] = []
    mend_databases([path], said.append)
    assert len(said) == 1 and "was restored" in said[0]
