"""The event log on a disk that returns changed bytes: no changed event is delivered, and no reader waits."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from storage_support import RECORDS_WITHOUT_ORIGINS, STAMPS_WITHOUT_ORIGINS, WITHOUT_CHECKSUMS

from fieldfare.storage.corruption import corruption_notices, forget_records_before, note_paths, read_note
from fieldfare.storage.errors import CorruptLogError
from fieldfare.storage.event_log import NewRecord, Record, RetentionPolicy
from fieldfare.storage.sqlite.log import SqliteEventLog

OpenLog = Callable[[], SqliteEventLog]


def record(number: int, stamp: int = 0) -> NewRecord:
    return NewRecord("birds", b'{"number":%d,"text":"%s"}\n' % (number, b"x" * 300), 1, stamp=stamp)


def tamper(log: SqliteEventLog, statement: str) -> None:
    """Change the contents of the file, as a faulty disk would."""
    log.close()
    with sqlite3.connect(log.path) as connection:
        connection.execute(statement)
    connection.close()


def overwrite_leaf(log: SqliteEventLog, marker: bytes) -> None:
    """Fill the beginning of the page that holds a text with rubbish."""
    log.close()
    content = bytearray(log.path.read_bytes())
    page = content.index(marker) // 16_384 * 16_384
    content[page : page + 64] = b"\xff" * 64
    log.path.write_bytes(content)


def offsets(log: SqliteEventLog, start: int = 0) -> list[int]:
    return [each.offset for each in log.read(start, log.end())]


def noted(log: SqliteEventLog) -> list[tuple[int | None, int | None]]:
    notes = filter(None, map(read_note, note_paths(log.path.parent)))
    return sorted((note.start, note.end) for note in notes)


@pytest.mark.parametrize(
    "change",
    [
        "payload = CAST(replace(payload, '\"number\":2,', '\"number\":7,') AS BLOB)",
        "payload = substr(payload, 2)",
        "payload = 'text, and no bytes'",
        "space = 'fish'",
        "count = 2",
        "appended_ms = 1",
        "events_end = 4711",
        "checksum = 5",
    ],
)
def test_a_changed_record_is_left_out_and_named(log: SqliteEventLog, open_log: OpenLog, change: str) -> None:
    """An event whose text a disk had changed was delivered as it was."""
    log.append([record(number) for number in range(5)])
    tamper(log, f"UPDATE records SET {change} WHERE offset = 2")
    assert offsets(open_log()) == [0, 1, 3, 4]
    assert noted(log) == [(2, 3)]
    [notice] = corruption_notices(log.path.parent)
    assert "record 2 cannot be read" in notice and "publish them again" in notice


def test_a_lost_row_is_damage_and_a_hole_is_not(log: SqliteEventLog, open_log: OpenLog) -> None:
    log.append([record(0), record(1)])
    log.raise_end(1_000_000)
    log.append([record(2), record(3), record(4)])
    assert offsets(log) == [0, 1, 1_000_000, 1_000_001, 1_000_002] and noted(log) == []
    tamper(log, "DELETE FROM records WHERE offset = 1000001")
    assert offsets(open_log()) == [0, 1, 1_000_000, 1_000_002]
    assert noted(log) == [(1_000_001, 1_000_002)]
    forget_records_before(log.path.parent, 1_000_001)
    assert noted(log) == [(1_000_001, 1_000_002)]
    forget_records_before(log.path.parent, 1_000_002)
    assert noted(log) == []


def test_a_page_that_cannot_be_read_holds_up_no_other_record(log: SqliteEventLog, open_log: OpenLog) -> None:
    """Because of one bad page, readers that came from before it repeatedly got 503."""
    for first in range(0, 3_000, 100):
        log.append([record(number, stamp=1) for number in range(first, first + 100)])
    overwrite_leaf(log, b'"number":1500,')
    log = open_log()
    found = offsets(log)
    lost = set(range(3_000)) - set(found)
    assert 1_500 in lost and len(lost) < 100 and sorted(lost) == list(range(min(lost), max(lost) + 1))
    assert {offset for start, end in noted(log) for offset in range(start or 0, end or 0)} == lost
    assert offsets(log, 1_500) == [offset for offset in found if offset >= 1_500]
    at = 0
    while at < log.end():
        at, before = log.bound(at, 4_000, 100), at
        assert at > before
    assert log.lowest_stamp(1_500) == 1 and log.backlog_events(1_500) > 0
    assert log.split(0, 3_000, 4, 100)[-1][1] == 3_000
    assert log.first_since(0) <= max(lost) + 1
    assert isinstance(log.sizes(), dict)
    log.retain(RetentionPolicy(max_bytes=1), (3_000,))
    log.append([record(3_000)])
    assert offsets(log, 2_900)[-1] == 3_000


def test_a_record_is_matched_as_of_the_stamp_that_it_was_written_with(
    log: SqliteEventLog, open_log: OpenLog
) -> None:
    """A changed row of stamps would have had a hundred records matched with other subscriptions."""
    log.append([record(number, stamp=4 + number // 3) for number in range(9)])
    tamper(log, "UPDATE stamps SET stamp = 77 WHERE stamp = 5")
    assert [(each.offset, each.stamp) for each in open_log().read(0, 9)] == [
        (number, 4 + number // 3) for number in range(9)
    ]
    assert noted(log) == []


def test_a_changed_sum_does_not_have_retention_remove_everything(
    log: SqliteEventLog, open_log: OpenLog
) -> None:
    log.append([record(number) for number in range(10)])
    tamper(log, "UPDATE records SET bytes_end = bytes_end + (1 << 40) WHERE offset = 9")
    log = open_log()
    log.append([record(10)])
    size = len(record(5).payload)
    log.retain(RetentionPolicy(max_bytes=5 * size + 20), (11,))
    assert log.start() == 6


def test_records_without_a_checksum_are_read_as_they_are(log: SqliteEventLog, open_log: OpenLog) -> None:
    """They are from a log of an older format: it is unknown what was written."""
    log.append([record(number) for number in range(3)])
    log.close()
    with sqlite3.connect(log.path) as connection:
        connection.executescript(
            f"{WITHOUT_CHECKSUMS} {RECORDS_WITHOUT_ORIGINS} {STAMPS_WITHOUT_ORIGINS} PRAGMA user_version = 4"
        )
    connection.close()
    upgraded = open_log()
    upgraded.append([record(3)])
    assert [each.payload for each in upgraded.read(0, 4)] == [record(number).payload for number in range(4)]
    tamper(log, "UPDATE records SET count = 7 WHERE offset IN (0, 3)")
    assert offsets(open_log()) == [0, 1, 2]


def test_a_log_that_is_closed_leaves_nothing_in_its_wal(log: SqliteEventLog, open_log: OpenLog) -> None:
    """SQLite reads a WAL up to the first damaged frame, and does not report the frames after it."""
    log.append([record(1)])
    assert list(log.read(0, 1))
    wal = Path(f"{log.path}-wal")
    log.close()
    assert not wal.exists() or wal.stat().st_size == 0
    assert offsets(open_log()) == [0]


def test_an_unreadable_end_of_the_log_is_an_error(log: SqliteEventLog, open_log: OpenLog) -> None:
    log.append([record(number) for number in range(100)])
    overwrite_leaf(log, b'"number":99,')
    with pytest.raises(CorruptLogError, match=r"log\.db"):
        open_log().end()


def test_record_read_is_record_written(log: SqliteEventLog) -> None:
    new = [
        replace(record(number), appended_ms=number, stamp=number, space=f"s{number}é") for number in range(5)
    ]
    log.append(new)
    assert list(log.read(0, 5)) == [
        Record(number, each.space, 1, each.payload, number, number) for number, each in enumerate(new)
    ]


@pytest.mark.parametrize("change", ["start = 8", "start = 0, checksum = 5", "bytes_end = -1", "start = NULL"])
def test_where_the_log_starts_is_found_again_from_its_records(
    log: SqliteEventLog, open_log: OpenLog, change: str
) -> None:
    """With a start that had risen, unread records were left out silently."""
    log.append([record(number) for number in range(10)])
    log.trim(4)
    before = log.size_bytes(), log.sizes(), log.backlog_events(5)
    log.close()
    with sqlite3.connect(log.path) as connection:
        connection.executescript(
            "CREATE TABLE t (start INTEGER, events_end INTEGER, bytes_end INTEGER, checksum INTEGER);"
            "INSERT INTO t SELECT * FROM trimmed; DROP TABLE trimmed; ALTER TABLE t RENAME TO trimmed;"
            f"UPDATE trimmed SET {change}"
        )
    connection.close()
    log = open_log()
    assert log.start() == 4 and offsets(log, 4) == list(range(4, 10))
    assert (log.size_bytes(), log.sizes(), log.backlog_events(5)) == before
    [notice] = corruption_notices(log.path.parent)
    assert "was restored from its records: 4; nothing is lost" in notice
    tamper(log, "DELETE FROM trimmed")
    assert open_log().start() == 4


@pytest.mark.parametrize(
    "change", ["UPDATE ran SET ran_ms = 1 << 40", "DELETE FROM ran", "UPDATE observed SET end = 900"]
)
def test_a_changed_age_has_no_record_removed_before_its_time(
    log: SqliteEventLog, open_log: OpenLog, change: str
) -> None:
    """A running time that was too high made all records older than retention keeps them."""
    policy = RetentionPolicy(max_age_ms=1_000)
    log.append([record(number) for number in range(10)])
    log.grow_older(10, policy)
    tamper(log, change)
    log = open_log()
    log.grow_older(500, policy)
    log.retain(policy, (10,))
    assert offsets(log) == list(range(10))
    [notice] = corruption_notices(log.path.parent)
    assert "kept longer than configured" in notice
    for _ in range(3):
        log.grow_older(600, policy)
        log.retain(policy, (10,))
    assert log.start() == 10


def test_a_changed_hole_moves_the_end_of_the_log_nowhere(log: SqliteEventLog, open_log: OpenLog) -> None:
    """The next record got an offset far behind all others."""
    log.append([record(0)])
    log.raise_end(3)
    log.append([record(1)])
    tamper(log, "UPDATE holes SET end = 1 << 50")
    log = open_log()
    assert log.end() == 4 and offsets(log) == [0, 3]
    assert any("without records has changed" in notice for notice in corruption_notices(log.path.parent))
    assert log.append([record(2)])[0].offset == 4  # type: ignore[union-attr]


def test_a_spaces_bytes_are_counted_again_if_their_sum_has_changed(
    log: SqliteEventLog, open_log: OpenLog
) -> None:
    """Its quota said that the space was full, for ever."""
    log.append([record(number) for number in range(10)])
    log.trim(1)
    before = log.sizes()
    tamper(log, "UPDATE sizes SET bytes = 1 << 40")
    log = open_log()
    log.trim(1)
    assert log.sizes() == before
    tamper(log, "DELETE FROM counted")
    assert open_log().sizes() == before
