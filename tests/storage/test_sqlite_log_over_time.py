"""The state that a log keeps over weeks, upgrades and restored copies: repeats, ages, offsets."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from fieldfare.storage import open_event_log
from fieldfare.storage.errors import EventLogError
from fieldfare.storage.event_log import Appended, NewRecord
from fieldfare.storage.sqlite.log import SqliteEventLog

OpenLog = Callable[[], SqliteEventLog]

FORMAT_1 = """
CREATE TABLE records (
    offset INTEGER PRIMARY KEY, space TEXT NOT NULL, count INTEGER NOT NULL, appended_ms INTEGER NOT NULL,
    events_end INTEGER NOT NULL, bytes_end INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE TABLE trimmed (start INTEGER NOT NULL, events_end INTEGER NOT NULL, bytes_end INTEGER NOT NULL);
CREATE TABLE producers (
    producer TEXT NOT NULL, sequence INTEGER NOT NULL, offset INTEGER NOT NULL, count INTEGER NOT NULL,
    appended_ms INTEGER NOT NULL, PRIMARY KEY (producer, sequence)) WITHOUT ROWID;
INSERT INTO trimmed VALUES (1, 2, 4);
INSERT INTO records VALUES (1, 'birds', 1, 77, 3, 7, x'7b7d0a');
INSERT INTO records VALUES (2, 'fish', 2, 78, 5, 13, x'7b7d0a7b7d0a');
INSERT INTO producers VALUES ('p', 6, 0, 2, 76), ('p', 7, 1, 1, 77), ('q', 7, 2, 2, 78);
PRAGMA application_id = 1717980231;
PRAGMA user_version = 1;
"""
"""A file as the first version wrote it: its first record was trimmed already."""


def record(text: bytes = b"{}\n", space: str = "birds", **fields: object) -> NewRecord:
    return NewRecord(space, text, text.count(b"\n"), **fields)  # type: ignore[arg-type]


def test_a_known_pair_with_another_body_is_told_apart_from_a_repeat(log: SqliteEventLog) -> None:
    """A program lost its counter and began again at 1: its new events were answered and thrown away."""
    log.append([record(b'{"x":1}\n', producer="p", sequence=1)])
    wrong = record(b'{"x":2}\n', producer="p", sequence=1)
    right = record(b'{"x":1}\n', producer="p", sequence=1)
    other = record(b'{"x":3}\n', producer="p", sequence=2)
    wrong_other = record(b'{"x":4}\n', producer="p", sequence=2)
    assert log.append([wrong, other, right, wrong_other]) == [
        Appended(0, 1, 0, True, differs=True),
        Appended(1, 1, 0, False),
        Appended(0, 1, 0, True),
        Appended(1, 1, 0, True, differs=True),
    ]
    assert log.end() == 2
    log.trim(2)
    assert log.append([wrong]) == [Appended(0, 1, 0, True)], (
        "without the first one's body it counts as a repeat"
    )


def test_forgetting_looks_at_a_bounded_number_and_goes_on(log: SqliteEventLog) -> None:
    """With a million producers the whole table was read inside a write transaction every ten seconds."""
    size = 1_000
    for first in range(0, 25_000, size):
        log.append([record(producer=f"p{first + i}", sequence=1) for i in range(size)])
    forgotten = [log.forget_producers(15_000) for _ in range(4)]
    assert sum(forgotten[:3]) == 15_000
    assert max(forgotten) <= 10_000
    assert log.append([record(producer="p14999", sequence=1)])[0].duplicate is False
    assert log.append([record(producer="p15000", sequence=1)])[0].duplicate is True


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    with sqlite3.connect(tmp_path / "log.db") as old:
        old.executescript(FORMAT_1)
    old.close()
    return tmp_path / "log.db"


def check_upgraded(log: SqliteEventLog) -> None:
    assert (log.start(), log.end()) == (1, 3)
    assert [(kept.offset, kept.space, kept.count) for kept in log.read(1, 3)] == [
        (1, "birds", 1),
        (2, "fish", 2),
    ]
    assert (log.backlog_events(0), log.size_bytes()) == (3, 9)
    assert log.append([record(producer="p", sequence=7)]) == [Appended(1, 1, 0, True)]
    assert log.append([record(b"[]\n", producer="p", sequence=7)])[0].differs
    assert log.append([record(b"{}\n{}\n", "fish", producer="q", sequence=7)]) == [Appended(2, 2, 0, True)]


def test_a_file_of_the_first_format_is_upgraded_and_loses_nothing(old_file: Path) -> None:
    log = open_event_log(f"sqlite:///{old_file}")
    check_upgraded(log)
    check_upgraded(open_event_log(f"sqlite:///{old_file}"))
    assert log.append([record(space="fish", producer="p", sequence=7)]) == [Appended(3, 1, 0, False)]
    assert log.append([record(producer="p", sequence=6)]) == [Appended(4, 1, 0, False)]


@pytest.mark.parametrize("statement", range(10))
def test_an_upgrade_can_be_killed_between_any_two_steps(
    old_file: Path, run_program: Callable[[str], tuple[int, str]], statement: int
) -> None:
    status, _ = run_program(f"""if True:
        import os
        from fieldfare.storage import open_event_log
        from fieldfare.storage.sqlite import schema
        def die_after(connection, registry):
            for statement in (*schema._FROM_1, *schema._ADDED_BY_3)[:{statement}]:
                connection.execute(statement)
            os._exit(9)
        schema.prepare = die_after
        open_event_log("sqlite:///{old_file}")
    """)
    assert status == 9
    check_upgraded(open_event_log(f"sqlite:///{old_file}"))


def test_a_file_of_a_later_format_is_refused(old_file: Path) -> None:
    with sqlite3.connect(old_file) as later:
        later.execute("PRAGMA user_version = 8")
    later.close()
    with pytest.raises(EventLogError, match="not an event log of formats 1 to 7"):
        open_event_log(f"sqlite:///{old_file}")


HOUR_MS = 3_600_000


def test_records_grow_older_by_the_time_that_the_service_ran(log: SqliteEventLog, open_log: OpenLog) -> None:
    """Independently of the clock when they were appended, which may have been in the year 2100."""
    for hour in range(100):
        log.append([record(appended_ms=4_102_444_800_000 if hour < 50 else 0)])
        log.observe(HOUR_MS, every_ms=HOUR_MS, keep_ms=20 * HOUR_MS)
    assert [log.older_than(hours * HOUR_MS) for hours in (0, 1, 2, 20)] == [100, 99, 98, 80]
    assert open_log().older_than(10 * HOUR_MS) == 90
    with sqlite3.connect(log.url.removeprefix("sqlite:///")) as file:
        assert file.execute("SELECT count(*) FROM observed").fetchone()[0] <= 22
    file.close()


def test_records_of_an_unobserved_log_have_no_age(log: SqliteEventLog) -> None:
    log.append([record()])
    assert log.older_than(0) == 0
    log.observe(-HOUR_MS, every_ms=1, keep_ms=HOUR_MS)
    assert (log.older_than(0), log.older_than(1)) == (1, 0)


def test_ages_are_recorded_rarely_and_are_never_too_great(log: SqliteEventLog) -> None:
    chance = random.Random(1)
    ran_ms, ends = 0, []
    for _ in range(300):
        log.append([record()] * chance.randint(0, 3))
        elapsed_ms = chance.randint(0, 2_000)
        ran_ms += elapsed_ms
        log.observe(elapsed_ms, every_ms=5_000, keep_ms=60_000)
        ends.append((ran_ms, log.end()))
    for age_ms in range(0, 60_000, 700):
        exact = max((end for at_ms, end in ends if at_ms <= ran_ms - age_ms), default=0)
        late = max((end for at_ms, end in ends if at_ms <= ran_ms - age_ms - 7_000), default=0)
        assert late <= log.older_than(age_ms) <= exact


def test_no_offset_below_a_raised_end_is_given_to_a_record(log: SqliteEventLog, open_log: OpenLog) -> None:
    """A copy of yesterday's log was put back: what refers to offsets beyond it must not meet new records."""
    log.append([record(), record()])
    log.raise_end(1)
    assert log.end() == 2
    log.raise_end(5_000_000)
    assert open_log().end() == 5_000_000
    assert log.append([record(b"{}\n{}\n")]) == [Appended(5_000_000, 2, 0, False)]
    assert [kept.offset for kept in log.read(0, 9_999_999)] == [0, 1, 5_000_000]
    assert [kept.offset for kept in log.read(3, 9_999_999)] == [5_000_000]
    assert (log.backlog_events(0), log.size_bytes()) == (4, 12)
    assert log.backlog_events(77) == log.backlog_events(5_000_000) == 2


def test_bounds_are_exact_across_holes(log: SqliteEventLog) -> None:
    chance = random.Random(2)
    offsets: list[int] = []
    while log.end() < 2_000:
        offsets += [done.offset for done in log.append([record()] * chance.randint(0, 40))]
        log.raise_end(log.end() + chance.choice((0, 1, 100)))
    log.append([record()])
    offsets.append(log.end() - 1)
    start = 0
    while start < log.end():
        end = log.bound(start, 60, 1 << 30)
        assert end > start
        inside = [offset for offset in offsets if start <= offset < end]
        assert len(inside) <= 20
        assert len(inside) == 20 or end == log.end(), "as much as may be"
        assert [kept.offset for kept in log.read(start, end)] == inside
        start = end
    for before in (30, 500, 501, 1_999, log.end()):
        left = [offset for offset in offsets if offset >= before]
        log.trim(before)
        assert (log.start(), log.backlog_events(0)) == (before, len(left))
        assert [kept.offset for kept in log.read(before, 9_999)] == left
    log.append([record()])
    assert log.start() == log.end() - 1
