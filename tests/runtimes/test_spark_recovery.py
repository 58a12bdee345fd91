"""Faults that kill or stop the pipeline's own processes: bad records, a full disk, a hanging task."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from accidents import MIB, fill, small_disk
from indexing import bring_index_up_to_date, indexer

from fieldfare.filters import compile_filter, encode_normal_form
from fieldfare.gateway.maintenance.restored import pass_over_lost
from fieldfare.pipeline.suspects import Suspects
from fieldfare.runtimes.process.locks import FileLock, birth_of, end_process_of, write_pid
from fieldfare.runtimes.spark.batch_planner import BatchPlanner
from fieldfare.runtimes.spark.batches import MicroBatchSettings, Offset
from fieldfare.runtimes.spark.heartbeat import PipelineHeartbeat
from fieldfare.runtimes.spark.range_task import RangeMatcher, RecordRange
from fieldfare.runtimes.spark.recovery import FAILURES_MAX, FULL_PAUSE_S, Recovery, is_the_records_fault
from fieldfare.runtimes.spark.suspects_file import SuspectsFile
from fieldfare.storage import open_event_log, open_registry
from fieldfare.storage.event_log import EventLog, NewRecord, ends_of
from fieldfare.storage.files.match_folder import BlockFile
from fieldfare.storage.files.match_log import FileMatchLog
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import Quarantine
from fieldfare.storage.registry import Put

pytestmark = pytest.mark.long

RAISED = (
    "org.apache.spark...\n  RecordsError: records 0 to 9 of partition 0 cannot be matched: ValueError: no"
)
BROKEN = "java.io.IOException: Input/output error"
FULL = "java.io.IOException: No space left on device"

SABOTAGE = """
import builtins, os, signal, sys
real = builtins.__import__
def watch(*arguments, **named):
    module = real(*arguments, **named)
    found = sys.modules.get("fieldfare.runtimes.spark.range_task")
    if hasattr(found, "OpenIndex"):
        builtins.__import__ = real
        stream_by_space = found.stream_by_space
        def crash(records, indexes):
            if any(b"CRASH" in payload.as_py() for payload in records.column("payload")):
                os.kill(os.getpid(), signal.SIGSEGV)
            return stream_by_space(records, indexes)
        found.stream_by_space = crash
    return module
builtins.__import__ = watch
"""
"""Loaded by every Python process that finds it on its path: a kernel that crashes on some event."""


def until(condition: Callable[[], Any], wait_s: float = 400) -> Any:
    until_s = time.monotonic() + wait_s
    while not (value := condition()):
        assert time.monotonic() < until_s, "it did not come about"
        time.sleep(0.05)
    return value


def heartbeat_of(folder: DataFolder) -> dict[str, Any]:
    try:
        return dict(json.loads(folder.heartbeat.read_text()))
    except FileNotFoundError:
        return {}


@contextmanager
def driver(root: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "fieldfare.runtimes.spark.driver", "--data", str(root), "--cores", "1"]
    with (root / "pipeline.txt").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **environment})
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def open_service(root: Path) -> tuple[DataFolder, EventLog]:
    folder = DataFolder(root)
    folder.make()
    log, registry = open_event_log(folder.log_url), open_registry(folder.registry_url)
    for space in ("default", "other"):
        registry.create_space(space)
        compiled = encode_normal_form(compile_filter("n >= 0").normal_form)
        registry.apply([Put(space, "s", "n >= 0", "sql", compiled)], (0,), 0)
    return folder, log


def good(n: int, space: str = "default") -> NewRecord:
    return NewRecord(space, b'{"n": %d}\n' % n, 1, stamp=2)


@pytest.mark.spark
def test_one_record_that_makes_matching_fail_is_set_aside_and_the_others_go_on(tmp_path: Path) -> None:
    """A record that no task can read, one that crashes every process: all others are matched, in one run."""
    folder, log = open_service(tmp_path)
    # A good record is tried with each of them, and others come later; every failure restarts the query.
    raises = NewRecord("other", b"{\n", 1, stamp=2)
    crashes = NewRecord("default", b'{"n": "CRASH"}\n', 1, stamp=2)
    log.append([good(0), raises, crashes])
    sabotage = tmp_path / "sabotage"
    sabotage.mkdir()
    (sabotage / "sitecustomize.py").write_text(SABOTAGE)
    matches = FileMatchLog(folder.matches)
    path = os.pathsep.join([str(sabotage), *sys.path])
    with indexer(folder), driver(tmp_path, PYTHONPATH=path) as process:
        until(lambda: matches.end(0) == 3 or process.poll() is not None)
        assert process.poll() is None, (tmp_path / "pipeline.txt").read_text()
        log.append([good(3, "other"), good(4)])
        until(lambda: heartbeat_of(folder).get("offset") == 5)
        assert process.poll() is None
    aside = [Quarantine(folder.quarantine).get(0, offset) for offset in (1, 2)]
    assert Quarantine(folder.quarantine).offsets(0) == [1, 2]
    assert [record.space for record in aside] == ["other", "default"]
    assert "cannot be matched" in aside[0].error
    assert "exited unexpectedly" in aside[1].error
    for offset in range(5):
        block = matches.block_at(offset)
        indptr, numbers = block.by_event()
        event = offset - block.start
        assert len(numbers[indptr[event] : indptr[event + 1]]) == (offset not in (1, 2)), offset
    assert not folder.suspects.exists()


def recovery_of(folder: DataFolder, log: EventLog) -> Recovery:
    return Recovery(folder, log, FileMatchLog(folder.matches), MicroBatchSettings(), lambda: 1)


def test_a_full_disk_is_no_records_fault_and_no_process(tmp_path: Path) -> None:
    """However long it was full: once there is room, no increased pause and no new Java delays matching."""
    folder, log = open_service(tmp_path)
    log.append([good(0)])
    recovery = recovery_of(folder, log)
    for report in (FULL, "OSError: [Errno 28] No space left on device", "OSError: [Errno 122] Disk quota"):
        assert {recovery.failed(report, report) for _ in range(3 * FAILURES_MAX)} == {FULL_PAUSE_S}
    assert not folder.suspects.exists()
    assert Quarantine(folder.quarantine).offsets(0) == []


def test_other_failures_are_retried_with_backoff_and_then_by_another_process(
    tmp_path: Path,
) -> None:
    folder, log = open_service(tmp_path)
    log.append([good(0)])
    recovery = recovery_of(folder, log)
    pauses = [recovery.failed(BROKEN, BROKEN) for _ in range(FAILURES_MAX)]
    assert pauses[-1] is None
    assert pauses[:-1] == sorted(pauses[:-1]) and 0 < pauses[0] < pauses[-2]
    assert not folder.suspects.exists()
    assert Quarantine(folder.quarantine).offsets(0) == []


def test_a_record_that_kills_the_process_is_remembered_across_restarts(tmp_path: Path) -> None:
    """The machine is out of memory and takes everything with it: only a file can tell what was tried."""
    folder, log = open_service(tmp_path)
    log.append([good(n) for n in range(4)])
    deadly, deaths = 2, 0
    file, tip = SuspectsFile(folder.suspects), FileMatchLog(folder.matches)
    while tip.end(0) < 4:
        recovery = recovery_of(folder, log)
        recovery.start(predecessor_died=deaths > 0, told=None)
        start = tip.end(0)
        suspects = file.load()[0]
        left = [each for each in (found.passed(start) for found in suspects) if each]
        upto = left[0].upto if left else 4
        if left:
            file.save((left[0],), trying=True)
        if start <= deadly < upto:
            deaths += 1
            assert deaths < 20
            continue
        for offset in range(start, upto):
            recovery._match_log.partition(0).write(recovery_block(offset))
    assert Quarantine(folder.quarantine).offsets(0) == [deadly]
    assert "ended while" in Quarantine(folder.quarantine).get(0, deadly).error


def test_a_machine_that_kills_whatever_is_tried_costs_hardly_any_record(tmp_path: Path) -> None:
    """The index has outgrown the memory: every process is killed, and no record is at fault."""
    folder, log = open_service(tmp_path)
    log.append([good(n) for n in range(16)])
    file = SuspectsFile(folder.suspects)
    for _ in range(100):
        recovery_of(folder, log).start(predecessor_died=True, told=None)
        if suspects := file.load()[0]:
            file.save(suspects, trying=True)
    assert len(Quarantine(folder.quarantine).offsets(0)) <= 3


def test_a_record_set_aside_does_not_hide_that_the_matches_before_it_are_missing(tmp_path: Path) -> None:
    """A power failure removes a block that was not reported as durable, and leaves the one behind it.

    It is of a record that was set aside. The missing matches are matched again, not lost.
    """
    folder, log = open_service(tmp_path)
    log.append([good(0), good(1)])
    matches = FileMatchLog(folder.matches)
    matches.write(recovery_block(0))
    recovery = recovery_of(folder, log)
    recovery.failed(RAISED, "no")
    recovery.failed(RAISED, "no")
    assert Quarantine(folder.quarantine).offsets(0) == [1]
    matches.block_at(0)
    BlockFile(0, 1).path(folder.matches).unlink()
    assert pass_over_lost(log, FileMatchLog(folder.matches), 0) == 0


def recovery_block(offset: int) -> Any:
    import numpy as np

    from fieldfare.storage import NewMatchBlock

    return NewMatchBlock.by_event(
        offset, offset + 1, np.ones(1, np.int32), np.zeros(2, np.int64), np.zeros(0, np.uint32)
    )


def test_a_pipeline_that_is_stopped_while_it_tries_a_record_does_not_blame_it(tmp_path: Path) -> None:
    """A user restarts the service twice, at the wrong times."""
    folder, log = open_service(tmp_path)
    log.append([good(0)])
    file = SuspectsFile(folder.suspects)
    file.save((Suspects(0, 0, 1, 1, 1, "killed"),), trying=True)
    recovery_of(folder, log).stopped()
    recovery_of(folder, log).start(predecessor_died=False, told=(0,))
    assert file.load() == ((Suspects(0, 0, 1, 1, 1, "killed"),), False)
    assert Quarantine(folder.quarantine).offsets(0) == []


def test_a_record_is_not_set_aside_when_that_cannot_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full just then: an event may be given up only where people can see it."""
    folder, log = open_service(tmp_path)
    log.append([good(0)])
    folder.quarantine.write_text("in the way")
    recovery = recovery_of(folder, log)
    assert recovery.failed(RAISED, "no") == 0.0
    pause_s = recovery.failed(RAISED, "no")
    assert pause_s is not None and pause_s > 0
    assert FileMatchLog(folder.matches).end(0) == 0
    folder.quarantine.unlink()
    assert recovery.failed(RAISED, "no") == 0.0
    assert FileMatchLog(folder.matches).end(0) == 1
    assert Quarantine(folder.quarantine).offsets(0) == [0]


def test_repeated_deaths_at_a_hole_of_the_log_set_no_record_aside(tmp_path: Path) -> None:
    """Where an older ``log.db`` was put back there are no records that could be at fault, or be read."""
    folder, log = open_service(tmp_path)
    log.raise_end(3)
    log.append([good(0)])
    for _ in range(8):
        recovery = recovery_of(folder, log)
        recovery.start(predecessor_died=True, told=(0,))
        suspects, _ = SuspectsFile(folder.suspects).load()
        SuspectsFile(folder.suspects).save(suspects, trying=True)
    assert Quarantine(folder.quarantine).offsets(0) == []
    bring_index_up_to_date(folder)
    planner, matcher = BatchPlanner(folder, MicroBatchSettings()), RangeMatcher(folder)
    at: Offset = {"ends": planner.first(), "manifest": 0}
    while at["ends"] < ends_of(log):
        end = planner.next_end(at)
        for each in chain(*planner.tasks(at["ends"], end["ends"])):
            matcher.match(RecordRange(*each, end["manifest"]))
        at = end
    planner.close()
    assert FileMatchLog(folder.matches).end(0) == 4


def test_a_torn_note_about_suspects_is_as_none(tmp_path: Path) -> None:
    folder, _ = open_service(tmp_path)
    for text in (b"", b"{", b'{"suspects": {"start": 1}}', b"[]", b"\xff"):
        folder.suspects.write_bytes(text)
        assert SuspectsFile(folder.suspects).load() == ((), False)


def test_a_report_blames_records_only_for_matching_and_for_a_dead_worker() -> None:
    assert is_the_records_fault(RAISED)
    assert is_the_records_fault("SparkException: Python worker exited unexpectedly (crashed)")
    assert not is_the_records_fault(FULL)
    assert not is_the_records_fault("fieldfare.storage.errors.MatchLogError: could not be written")


def test_on_a_full_disk_the_heartbeat_still_reports_matched(tmp_path: Path) -> None:
    """Its figures stood still and said that events wait: a healthy pipeline was killed for it."""
    with small_disk(tmp_path / "run", MIB) as disk:
        folder, log = open_service(tmp_path)
        matches = FileMatchLog(folder.matches)
        heartbeat = PipelineHeartbeat(folder, log, matches)
        log.append([good(n) for n in range(3)])
        heartbeat.beat("running")
        assert (heartbeat_of(folder)["offset"], heartbeat_of(folder)["log_end"]) == (0, 3)
        fill(disk)
        with pytest.raises(OSError, match="No space left"):
            (disk / "another").write_bytes(b"text")
        matches.write(recovery_block(0))
        for state in ("running", "stopping"):
            heartbeat.beat(state)
            found = heartbeat_of(folder)
            assert (found["state"], found["offset"], found["log_end"]) == (state, 1, 3)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"5", b"null", b'{"state": "running", "matched": [Infinity]}', b"[" * 1024]
)
def test_a_heartbeat_of_before_that_is_garbage_stops_no_pipeline(tmp_path: Path, text: bytes) -> None:
    folder, log = open_service(tmp_path)
    folder.heartbeat.write_bytes(text)
    heartbeat = PipelineHeartbeat(folder, log, FileMatchLog(folder.matches))
    assert (heartbeat.predecessor_died, heartbeat.told) == (True, None)


def test_what_is_durable_is_known_after_a_power_failure_where_files_have_no_second_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, torn blocks were reported as matched, and their matches lost."""

    def refused(*arguments: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    folder, log = open_service(tmp_path)
    matches = FileMatchLog(folder.matches)
    log.append([good(0)])
    matches.write(recovery_block(0))
    heartbeat = PipelineHeartbeat(folder, log, matches)
    for _ in range(2):
        heartbeat.beat("running")
    folder.heartbeat.write_bytes(b"")
    assert PipelineHeartbeat(folder, log, matches).told == (1,)


def test_a_heartbeat_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that fails; what the supervisor sees then is that the file's time moves."""
    folder, log = open_service(tmp_path)
    heartbeat = PipelineHeartbeat(folder, log, FileMatchLog(folder.matches))
    heartbeat.beat("running")
    before = folder.heartbeat.read_bytes(), folder.heartbeat.stat().st_mtime_ns

    def broken(*arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "write_bytes", broken)
    for _ in range(3):
        heartbeat.beat("running")
    assert caplog.text.count("Input/output error") == 1
    assert folder.heartbeat.read_bytes() == before[0]
    assert folder.heartbeat.stat().st_mtime_ns > before[1]
    monkeypatch.undo()
    heartbeat.beat("stopped")
    assert heartbeat_of(folder)["state"] == "stopped"


def test_the_heartbeat_reports_only_durable_matches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry forgets what lies before; so the folders are synced first, and the figure is as well."""
    folder, log = open_service(tmp_path)
    log.append([good(n) for n in range(3)])
    matches = FileMatchLog(folder.matches)
    for offset in (0, 1):
        matches.write(recovery_block(offset))
    synced: list[str] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    heartbeat = PipelineHeartbeat(folder, log, matches)
    heartbeat.beat("running")
    assert (heartbeat_of(folder)["offset"], heartbeat_of(folder)["log_end"]) == (2, 3)
    assert "0000" in synced and "matches" in synced
    assert any("pipeline.json" in name for name in synced)
    assert synced.index("0000") < next(p for p, name in enumerate(synced) if "pipeline.json" in name)


def test_a_stranger_with_the_id_of_a_process_that_ended_is_left_alone(tmp_path: Path) -> None:
    """After a restart of the machine the Java process's old number may be anybody's."""
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(tmp_path)])
    try:
        pid_file = tmp_path / "jvm.pid"
        for text in (f"{stranger.pid}", f"{stranger.pid} another-boot/17", "", "x y", f"-1 {birth_of(1)}"):
            pid_file.write_text(text)
            end_process_of(pid_file, 0.0)
            assert stranger.poll() is None
        write_pid(pid_file, stranger.pid)
        end_process_of(pid_file, 0.0)
        assert stranger.wait(60) == -signal.SIGKILL
    finally:
        stranger.kill()
        stranger.wait()


def test_a_holder_that_hangs_does_not_keep_its_lock_for_ever(tmp_path: Path) -> None:
    """An indexer was stopped with SIGSTOP, and outlived its supervisor."""
    lock = tmp_path / "indexer.lock"
    program = (
        "import sys, time; from pathlib import Path\n"
        "from fieldfare.runtimes.process.locks import FileLock\n"
        "FileLock(Path(sys.argv[1]), 0).acquire(); print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(lock)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        holder.send_signal(signal.SIGSTOP)
        FileLock(lock, 0.1, end_holder=True).acquire()
        assert holder.wait(60) == -signal.SIGKILL
    finally:
        holder.kill()
        holder.wait()
