"""The event log in a SQLite file: files, processes, formats, and figures that are exact here."""

from __future__ import annotations

import multiprocessing
import pickle
import random
import sqlite3
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from storage_support import RECORDS_WITHOUT_ORIGINS, STAMPS_WITHOUT_ORIGINS, WITHOUT_CHECKSUMS

from fieldfare.storage import open_event_log, open_registry
from fieldfare.storage.errors import EventLogError, FormatError, TrimmedError
from fieldfare.storage.event_log import (
    PAYLOAD_BYTES_MAX,
    Appended,
    NewRecord,
    Record,
    RetentionPolicy,
)
from fieldfare.storage.registry import Put, Remove
from fieldfare.storage.sqlite.log import SqliteEventLog

OpenLog = Callable[[], SqliteEventLog]


def lines(count: int, width: int = 8) -> bytes:
    return (b'"' + b"x" * width + b'"\n') * count


def record(count: int = 1, width: int = 8, **fields: object) -> NewRecord:
    return NewRecord("birds", lines(count, width), count, **fields)  # type: ignore[arg-type]


def test_records_read_back_as_they_were_appended(log: SqliteEventLog, open_log: OpenLog) -> None:
    appended = log.append([record(2, appended_ms=5), NewRecord("fish", b"{}\n", 1, appended_ms=6)])
    assert appended == [Appended(0, 2, 0, False), Appended(1, 1, 0, False)]
    expected = [Record(0, "birds", 2, lines(2), 5, 0), Record(1, "fish", 1, b"{}\n", 6, 0)]
    assert list(log.read(0, 2)) == expected
    assert list(open_log().read(0, 99)) == expected
    assert list(log.read(1, 2)) == expected[1:]


def test_a_producers_repeat_appends_nothing_and_tells_the_first_place(
    log: SqliteEventLog, open_log: OpenLog
) -> None:
    """A client did not get the answer to its publish call, and sends the batch again."""
    log.append([record(), record(3, producer="p", sequence=7)])
    again = [record(3, producer="p", sequence=7), record(2, producer="p", sequence=8)]
    assert log.append(again) == [Appended(1, 3, 0, True), Appended(2, 2, 0, False)]
    assert open_log().append(again) == [Appended(1, 3, 0, True), Appended(2, 2, 0, True)]
    assert log.end() == 3
    assert log.append([record(producer="q", sequence=7)]) == [Appended(3, 1, 0, False)]


def test_repeats_are_forgotten_by_offset_when_asked(log: SqliteEventLog) -> None:
    log.append([record(producer="p", sequence=1), record(producer="q", sequence=1)])
    assert log.forget_producers(1) == 1
    assert [done.duplicate for done in log.append([record(producer="p", sequence=1)])] == [False]
    assert [done.duplicate for done in log.append([record(producer="q", sequence=1)])] == [True]


def test_a_record_of_64_mb_is_kept(log: SqliteEventLog) -> None:
    payload = b"x" * (PAYLOAD_BYTES_MAX - 1) + b"\n"
    log.append([NewRecord("birds", payload, 1)])
    assert next(log.read(0, 1)).payload == payload


def test_bound_and_backlog_agree_with_sums_over_the_records(log: SqliteEventLog) -> None:
    chance = random.Random(3)
    counts = [chance.randint(1, 9) for _ in range(300)]
    log.append(
        [record(count, width=chance.randint(1, 50), appended_ms=index) for index, count in enumerate(counts)]
    )
    log.trim(20)
    sizes = [len(kept.payload) for kept in log.read(20, 300)]
    for _ in range(100):
        start, max_bytes, max_events = (
            chance.randint(20, 300),
            chance.randint(1, 9_000),
            chance.randint(1, 900),
        )
        end = start
        while end < 300 and (
            end == start
            or (sum(sizes[start - 20 : end - 19]) <= max_bytes and sum(counts[start : end + 1]) <= max_events)
        ):
            end += 1
        assert log.bound(start, max_bytes, max_events) == end
        assert log.backlog_events(start) == sum(counts[start:])
    assert log.size_bytes() == sum(sizes)


@pytest.mark.parametrize(
    ("sizes", "pieces", "piece_bytes", "expected"),
    [
        ([2] * 10, 2, 20, [(0, 10)]),
        ([2] * 10, 2, 5, [(0, 5), (5, 10)]),
        ([100, 2, 2], 2, 5, [(0, 1), (1, 3)]),
        ([2, 2, 100], 4, 5, [(0, 3)]),
        ([5, 5, 5, 5], 2, 8, [(0, 2), (2, 4)]),
    ],
)
def test_a_range_is_split_by_bytes(
    log: SqliteEventLog, sizes: list[int], pieces: int, piece_bytes: int, expected: list[tuple[int, int]]
) -> None:
    log.append([NewRecord("birds", b"x" * (size - 1) + b"\n", 1) for size in sizes])
    assert log.split(0, len(sizes), pieces, piece_bytes) == expected


def test_offsets_go_on_after_all_records_were_trimmed(log: SqliteEventLog, open_log: OpenLog) -> None:
    log.append([record(2, producer="p", sequence=1), record()])
    assert log.trim(99) == 2
    assert (log.start(), log.end(), log.size_bytes(), log.backlog_events(0)) == (2, 2, 0, 0)
    reopened = open_log()
    assert reopened.append([record(5)]) == [Appended(2, 5, 0, False)]
    assert reopened.append([record(2, producer="p", sequence=1)]) == [Appended(0, 2, 0, True)]
    assert (reopened.backlog_events(0), reopened.size_bytes()) == (5, len(lines(5)))


def test_reading_what_was_trimmed_is_an_error_and_not_an_empty_answer(log: SqliteEventLog) -> None:
    log.append([record() for _ in range(10)])
    assert log.trim(4) == 4
    assert log.trim(4) == 0
    assert [kept.offset for kept in log.read(4, 10)] == [4, 5, 6, 7, 8, 9]
    with pytest.raises(TrimmedError, match="from 4 to 10"):
        list(log.read(3, 10))
    with pytest.raises(TrimmedError):
        log.bound(0, 1, 1)


def test_the_space_of_trimmed_records_is_used_again(log: SqliteEventLog, tmp_path: Path) -> None:
    def append_10_mb() -> None:
        for _ in range(10):
            log.append([record(1, width=1_000_000)])

    append_10_mb()
    log.trim(10)
    size_bytes = (tmp_path / "log.db").stat().st_size
    for _ in range(5):
        append_10_mb()
        log.trim(log.end())
    assert (tmp_path / "log.db").stat().st_size < size_bytes + 25_000_000


def test_a_record_keeps_its_stamp_and_a_repeat_tells_the_first_ones(
    log: SqliteEventLog, open_log: OpenLog
) -> None:
    assert (log.last_stamp(), log.lowest_stamp(0)) == (0, None)
    stamps = [3, 3, 3, 7, 7, 8]
    records = [record(stamp=stamp, producer="p", sequence=n) for n, stamp in enumerate(stamps)]
    done = log.append(records[:2]) + log.append(records[2:5]) + log.append(records[5:])
    assert [each.stamp for each in done] == stamps
    again = replace(records[2], stamp=9)
    assert log.append([again]) == [Appended(2, 1, 3, True)]
    for other in (log, open_log()):
        assert [found.stamp for found in other.read(0, 9)] == stamps
        assert [other.lowest_stamp(start) for start in range(7)] == [3, 3, 3, 7, 7, 8, None]
        assert other.last_stamp() == 8


def test_stamps_are_right_after_a_trim_and_across_a_hole(log: SqliteEventLog, open_log: OpenLog) -> None:
    log.append([record(stamp=stamp) for stamp in (1, 1, 2, 5, 5)])
    log.trim(4)
    assert [found.stamp for found in log.read(4, 9)] == [5]
    log.raise_end(8)
    log.append([record(stamp=5), record(stamp=6)])
    assert [found.stamp for found in open_log().read(4, 10)] == [5, 5, 6]
    log.trim(10)
    assert (log.lowest_stamp(0), log.last_stamp()) == (None, 6)
    log.append([record(stamp=6)])
    assert log.lowest_stamp(0) == 6


def test_stamps_may_fall_and_the_lowest_is_found(log: SqliteEventLog) -> None:
    """Several gateways write one log, each with the last stamp that it has read."""
    log.append([record(stamp=stamp) for stamp in (4, 9, 2, 2, 6)])
    assert [log.lowest_stamp(start) for start in range(5)] == [2, 2, 2, 2, 6]
    assert [log.first_stamped(stamp) for stamp in (1, 3, 6, 7)] == [0, 4, 4, None]


def test_where_stamps_rise_is_known_after_a_trim(log: SqliteEventLog) -> None:
    assert log.first_stamped(1) is None
    log.append([record(stamp=stamp) for stamp in (1, 1, 2, 5, 5)])
    log.trim(4)
    assert [log.first_stamped(stamp) for stamp in (5, 6)] == [3, None]
    assert (log.first_stamped(1) or 0) <= 4


def test_records_of_before_get_stamps_that_meet_the_versions_they_met(tmp_path: Path) -> None:
    """A log of format 2: a version counted from the log's end at one change to the end at the next."""
    chance = random.Random(13)
    log, registry = (
        open_event_log(f"sqlite:///{tmp_path}/log.db"),
        open_registry(f"sqlite:///{tmp_path}/registry.db"),
    )
    registry.create_space("birds")
    valid: dict[int, list[int]] = {}
    standing: dict[str, int] = {}
    for _ in range(200):
        end = log.end()
        if chance.random() < 0.5:
            log.append([record()])
            continue
        id = chance.choice("abcde")
        put = chance.random() < 0.7
        change = Put("birds", id, "a = 1", "sql", b"") if put else Remove("birds", id)
        registry.apply([change], (end,), 0)
        if put or id in standing:
            revision = registry.revision()
            if id in standing:
                valid[standing.pop(id)][1:] = [end, revision]
            if put:
                standing[id] = revision
                valid[revision] = [end, 1 << 62, 1 << 62]
    log.trim(10)
    log.close()
    with sqlite3.connect(tmp_path / "log.db") as connection:
        for table in ("stamps", "sizes", "counted"):
            connection.execute(f"DROP TABLE {table}")
        connection.executescript(WITHOUT_CHECKSUMS + RECORDS_WITHOUT_ORIGINS)
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    upgraded = open_event_log(f"sqlite:///{tmp_path}/log.db")
    for found in upgraded.read(10, upgraded.end()):
        by_offset = {revision for revision, (start, end, _) in valid.items() if start <= found.offset < end}
        by_stamp = {
            revision for revision, (_, _, closed) in valid.items() if revision <= found.stamp < closed
        }
        assert by_stamp == by_offset, found.offset
    later = registry.revision()
    upgraded.append([record(stamp=later)])
    assert [found.stamp for found in upgraded.read(upgraded.end() - 1, upgraded.end())] == [later]


def test_counting_the_bytes_of_spaces_does_not_read_the_events(
    log: SqliteEventLog, open_log: OpenLog
) -> None:
    """A burst of large records made each count as slow as reading them all."""
    for _ in range(20):
        log.append([record(1, width=1 << 20)])
    fresh = open_log()
    fresh.end()
    before = bytes_read()
    assert fresh.sizes() == {"birds": 20 * ((1 << 20) + 3)}
    assert bytes_read() - before < 4 << 20


def bytes_read() -> int:
    """The bytes that this process has read from files."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_a_log_of_the_third_format_counts_what_is_in_it(log: SqliteEventLog, tmp_path: Path) -> None:
    log.append([replace(record(3), space=space) for space in ("birds", "fish", "birds")])
    sizes = log.sizes()
    log.close()
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.executescript(
            f"DROP TABLE sizes; DROP TABLE counted; {WITHOUT_CHECKSUMS} {RECORDS_WITHOUT_ORIGINS}"
            f"{STAMPS_WITHOUT_ORIGINS} PRAGMA user_version = 3"
        )
    connection.close()
    upgraded = open_event_log(f"sqlite:///{tmp_path}/log.db")
    assert upgraded.sizes() == sizes and sizes["birds"] == 2 * sizes["fish"]
    upgraded.trim(2)
    assert upgraded.sizes() == {"birds": sizes["fish"]}


def test_records_of_other_brokers_keep_their_origin_and_stamp(log: SqliteEventLog) -> None:
    log.append([record(stamp=5), record(stamp=3, origin="berlin/0-17/9"), record(stamp=5), record(stamp=7)])
    found = list(log.read(0, 4))
    assert [each.origin for each in found] == [None, "berlin/0-17/9", None, None]
    assert [each.stamp for each in found] == [5, 3, 5, 7]
    assert log.last_stamp() == 7 and log.lowest_stamp(0) == 3 and log.lowest_stamp(2) == 5
    log.append([record(stamp=2, origin="berlin/0-18/9")])
    assert log.last_stamp() == 7, "the greatest, not the last"
    assert log.first_stamped(7) == 3, "what another broker sends late moves no end of a replay"
    assert log.first_stamped(4) == 0


def test_a_log_of_the_sixth_format_is_upgraded(log: SqliteEventLog, tmp_path: Path) -> None:
    log.append([record(stamp=3), record(stamp=4)])
    log.close()
    with sqlite3.connect(tmp_path / "log.db") as connection:
        connection.executescript(
            f"{RECORDS_WITHOUT_ORIGINS} {STAMPS_WITHOUT_ORIGINS} PRAGMA user_version = 6"
        )
    connection.close()
    upgraded = open_event_log(f"sqlite:///{tmp_path}/log.db")
    upgraded.append([record(stamp=1, origin="berlin/0-17/9")])
    assert [(each.stamp, each.origin) for each in upgraded.read(0, 3)] == [
        (3, None),
        (4, None),
        (1, "berlin/0-17/9"),
    ]


def test_what_is_counted_of_spaces_survives_a_kill_between_any_two_steps_of_a_trim(
    log: SqliteEventLog,
) -> None:
    """Each step takes its records and what was counted of them in one transaction."""
    log.append([replace(record(100), space=space) for space in ("birds", "fish") * 3])
    log._count()
    log.append([record()])
    for before in (1, 1, 3, 6, 7):
        log.trim(before)
        log.close()
        kept: dict[str, int] = {}
        for found in log.read(log.start(), log.end()):
            kept[found.space] = kept.get(found.space, 0) + len(found.payload)
        assert log.sizes() == kept


def test_an_older_log_beside_a_registry_that_cannot_be_read_is_left_as_it_is(
    log: SqliteEventLog, tmp_path: Path
) -> None:
    log.append([record()])
    log.close()
    with sqlite3.connect(tmp_path / "log.db") as connection:
        for table in ("stamps", "sizes", "counted"):
            connection.execute(f"DROP TABLE {table}")
        connection.executescript(WITHOUT_CHECKSUMS + RECORDS_WITHOUT_ORIGINS)
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    (tmp_path / "registry.db").write_text("not a database" * 100)
    for _ in range(2):
        with pytest.raises(FormatError, match=r"registry\.db, which is needed to upgrade the log"):
            open_event_log(f"sqlite:///{tmp_path}/log.db")
    (tmp_path / "registry.db").unlink()
    assert [found.stamp for found in open_event_log(f"sqlite:///{tmp_path}/log.db").read(0, 1)] == [0]


def test_a_log_can_be_sent_to_another_process_and_read_there(
    log: SqliteEventLog, run_program: Callable[[str], tuple[int, str]]
) -> None:
    log.append([record(3)])
    program = f"import pickle; print(pickle.loads({pickle.dumps(log)!r}).backlog_events(0))"
    assert run_program(program) == (0, "3\n")


def test_a_forked_process_opens_its_own_connections(log: SqliteEventLog) -> None:
    """Python's multiprocessing and Spark's workers fork."""
    log.append([record(3)])
    child = multiprocessing.get_context("fork").Process(target=log.append, args=([record(2)],))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert log.append([record(1)]) == [Appended(2, 1, 0, False)]
    assert log.backlog_events(0) == 6


def test_processes_may_create_the_files_at_the_same_time(tmp_path: Path) -> None:
    """Gateway and pipeline start together in an empty folder."""
    context = multiprocessing.get_context("fork")
    for attempt in range(4):
        together = context.Barrier(4)

        def open_both(barrier: Any = together, attempt: int = attempt) -> None:
            barrier.wait(30)
            open_event_log(f"sqlite:///{tmp_path}/log-{attempt}.db").append([record()])
            open_registry(f"sqlite:///{tmp_path}/registry-{attempt}.db").spaces()

        processes = [context.Process(target=open_both) for _ in range(4)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        assert [process.exitcode for process in processes] == [0, 0, 0, 0]
        assert open_event_log(f"sqlite:///{tmp_path}/log-{attempt}.db").end() == 4


def test_threads_read_while_one_appends(log: SqliteEventLog) -> None:
    wrong: list[object] = []

    def read_on() -> None:
        seen = 0
        while seen < 200:
            for found in log.read(seen, log.end()):
                if found.offset != seen or found.payload != lines(1 + seen % 5, 100):
                    wrong.append(found)
                seen += 1

    readers = [threading.Thread(target=read_on) for _ in range(3)]
    for reader in readers:
        reader.start()
    for index in range(200):
        log.append([record(1 + index % 5, 100)])
    for reader in readers:
        reader.join(60)
    assert not wrong
    log.close()
    assert log.end() == 200


def test_what_was_acknowledged_survives_a_kill_and_retries_append_only_the_rest(
    open_log: OpenLog, start_program: Callable[[str], subprocess.Popen[str]]
) -> None:
    """The gateway is killed at a random moment; its clients send again what was not answered."""
    chance = random.Random(5)
    program = """if True:
        from fieldfare.storage import open_event_log
        from fieldfare.storage.event_log import NewRecord
        log = open_event_log({url!r})
        for sequence in range(1_000_000):
            payload = b'"%d"\\n' % sequence * (1 + sequence % 3)
            done = log.append([NewRecord("birds", payload, 1 + sequence % 3, "p", sequence)])
            print(done[0].offset, flush=True)
    """
    end = 0
    for _ in range(3):
        process = start_program(program.format(url=open_log().url))
        assert process.stdout is not None
        answered = [int(process.stdout.readline()) for _ in range(chance.randint(20, 200))]
        process.kill()
        answered += [int(line) for line in process.stdout.read().split("\n")[:-1]]
        process.wait()
        process.stdout.close()
        assert answered == list(range(len(answered)))
        at_least = max(end, len(answered))
        log = open_log()
        end = log.end()
        assert at_least <= end <= at_least + 1
        kept = [(found.offset, found.payload) for found in log.read(0, end)]
        assert kept == [(index, b'"%d"\n' % index * (1 + index % 3)) for index in range(end)]


@pytest.mark.parametrize("url", ["nats://host/topic", "log.db", "sqlite://", ""])
def test_an_address_of_another_kind_is_refused_with_the_form_expected(url: str) -> None:
    with pytest.raises(ValueError, match="sqlite:///PATH or kafka://HOST:PORT/TOPIC"):
        open_event_log(url)


def test_a_file_that_is_no_log_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database\n" * 100)
    with pytest.raises(EventLogError, match=r"notes\.txt"):
        open_event_log(f"sqlite:///{path}")
    with pytest.raises(EventLogError, match=r"nowhere/log\.db"):
        open_event_log(f"sqlite:///{tmp_path}/nowhere/log.db")


def test_retention_goes_by_age_and_by_bytes_and_spares_what_the_pipeline_needs(log: SqliteEventLog) -> None:
    """Ten records of 11 bytes: the first five are an hour old, all but the last two at least a minute."""
    for count, elapsed_ms in ((5, 3_540_000), (3, 60_000), (2, 0)):
        log.append([record(width=8) for _ in range(count)])
        log.observe(0, every_ms=1, keep_ms=7_200_000)
        log.observe(elapsed_ms, every_ms=1 << 40, keep_ms=7_200_000)

    def start(keep_from: int = 99, **bounds: int) -> int:
        log.retain(RetentionPolicy(**bounds), (keep_from,))
        return log.start()

    assert start() == 0
    assert start(max_age_ms=3_600_001) == 0
    assert start(keep_from=0, max_bytes=0) == 0
    assert start(max_bytes=110) == 0
    assert start(max_age_ms=3_600_000) == 5
    assert start(keep_from=6, max_bytes=0) == 6
    assert start(max_bytes=35) == 7
    assert start(max_bytes=35, max_age_ms=60_000) == 8
    assert start(max_bytes=0) == 10
