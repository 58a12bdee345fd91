"""Attacks that a reader of the code would try: small ones, without a service."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from accidents import empty, newest, tear
from indexing import bring_index_up_to_date
from service_support import until

from fieldfare.filters import compile_filter, encode_normal_form
from fieldfare.runtimes.spark.batch_planner import BatchPlanner
from fieldfare.runtimes.spark.batches import MicroBatchSettings, Offset
from fieldfare.runtimes.spark.range_task import RangeMatcher, RecordRange
from fieldfare.storage import NewMatchBlock, open_event_log, open_registry
from fieldfare.storage.errors import CorruptBlockError, MatchLogError
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.files.index_store import FileIndexStore
from fieldfare.storage.files.match_folder import BlockFile
from fieldfare.storage.files.match_log import FileMatchLog
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.registry import Put

pytestmark = pytest.mark.long


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process may open no more files, as one may whose clients hold all that it is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _is_settled(folder: Path) -> bool:
    """Whether a listing of the folders is kept: they have not changed for a while."""
    return all(time.time() - path.stat().st_mtime > 0.1 for path in (folder, folder / "0000"))


def one_block(folder: Path) -> FileMatchLog:
    log = FileMatchLog(folder)
    counts = np.array([1, 1], np.int32)
    log.write(
        NewMatchBlock.by_event(0, 2, counts, np.array([0, 1, 2], np.int64), np.array([7, 7], np.uint32))
    )
    return log


def test_a_block_that_cannot_be_opened_for_want_of_file_descriptors_is_not_called_broken(
    tmp_path: Path,
) -> None:
    """Ten thousand idle connections: the next block cannot be opened, and must not be set aside for that.

    What is set aside is passed over, and its matches are lost for everybody who has not read them.
    """
    one_block(tmp_path / "matches")
    log = FileMatchLog(tmp_path / "matches")
    until(lambda: log.end(0) == 2 and _is_settled(log.folder))
    with no_more_files(), pytest.raises((MatchLogError, OSError)) as raised:
        log.block_at(0)
    assert not isinstance(raised.value, CorruptBlockError), raised.value


def test_what_looks_for_broken_blocks_does_not_take_a_full_table_of_files_for_a_broken_block(
    tmp_path: Path,
) -> None:
    """`recover` deletes what `trouble` names, and `set_aside` replaces it with a block that says nothing."""
    one_block(tmp_path / "matches")
    log = FileMatchLog(tmp_path / "matches")
    try:
        with no_more_files():
            trouble = log.trouble(BlockFile(0, 2))
    except (MatchLogError, OSError):
        trouble = None
    assert trouble is None, trouble


def test_a_block_for_which_memory_is_short_is_not_called_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program takes all memory for a moment: Arrow says so with an error of its own."""
    one_block(tmp_path / "matches")
    log = FileMatchLog(tmp_path / "matches")

    def fail(*arguments: object, **named: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 262144 failed")

    monkeypatch.setattr(pa.ipc, "open_file", fail)
    with pytest.raises((MatchLogError, MemoryError)) as raised:
        log.block_at(0)
    assert not isinstance(raised.value, CorruptBlockError), raised.value


HEAVY = """
import json
import numpy as np
import pyarrow as pa
from fieldfare.filters import compile_filter, encode_normal_form
from fieldfare.matching.versions import IndexEntry
from fieldfare.matching.index import Index
from fieldfare.matching.part import PartBuilder
from fieldfare.pipeline.access_point import RECORDS
from fieldfare.pipeline.match_batch import match_batch

texts = [f"ANY a IN data.v SATISFIES (ANY b IN data.v SATISFIES (a + b = -{n}))" for n in range(1, 11)]
entries = []
for number, text in enumerate(texts):
    compiled = encode_normal_form(compile_filter(text).normal_form)
    entries.append(IndexEntry(number + 1, number, 0, (1 << 63) - 1, compiled, text, "sql"))
builder = PartBuilder()
builder.add(entries)
index = Index([builder.finish()])
event = json.dumps({"id": "1", "data": {"v": list(range(900))}})
payload = (event + "\\n").encode() * EVENTS
batch = pa.record_batch(
    [[0], [0], ["default"], pa.array([EVENTS], pa.int32()), pa.array([payload], pa.large_binary())],
    schema=RECORDS,
)
match_batch(batch, {"default": index})
"""


def test_one_request_cannot_hold_matching_up_for_longer_than_a_pipeline_may_hang() -> None:
    """Ten filters and a request of 0.7 MB, each event just within its bound: events of all spaces wait.

    A request may have 8 MiB. The work of one event is bounded; that of a record, and of a space in a batch
    that it shares with others, must be too, or a record takes hours (and is set aside, when the pipeline was
    ended three times for want of progress; then the next one comes).
    """
    program = HEAVY.replace("EVENTS", "200")
    try:
        done = subprocess.run([sys.executable, "-c", program], timeout=120, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        pytest.fail("200 events are not matched after two minutes")
    assert done.returncode == 0, done.stderr


def test_records_are_not_given_up_because_their_process_was_killed_again_and_again(tmp_path: Path) -> None:
    """A machine short of memory kills the Java process once a minute, whatever it is at: nothing is wrong
    with the records that it was matching, and none of them may be lost for their subscribers.

    ``kill -9`` at any moment loses nothing: a death by SIGKILL is no evidence against a record.
    """
    recovery_module = pytest.importorskip("fieldfare.runtimes.spark.recovery")
    suspects_module = pytest.importorskip("fieldfare.runtimes.spark.suspects_file")
    quarantine_module = pytest.importorskip("fieldfare.storage.quarantine")
    folder = DataFolder(tmp_path)
    folder.make()
    log = open_event_log(folder.log_url)
    log.append([NewRecord("default", b'{"n": %d}\n' % n, 1) for n in range(8)])
    for _ in range(12):
        recovery = recovery_module.Recovery(folder, log, FileMatchLog(folder.matches), MicroBatchSettings())
        recovery.start(predecessor_died=True, told=(0,))
        file = suspects_module.SuspectsFile(folder.suspects)
        found, _ = file.load()
        file.save(found, trying=True)  # as the planner does before each attempt; then comes the kill
    assert quarantine_module.Quarantine(folder.quarantine).offsets(0) == []


def service_with_an_index(root: Path) -> DataFolder:
    """A data directory with an event, a filter that matches it, and an index of a snapshot and a delta."""
    folder = DataFolder(root)
    folder.make()
    log, registry = open_event_log(folder.log_url), open_registry(folder.registry_url)
    registry.create_space("default")
    bring_index_up_to_date(folder)
    compiled = encode_normal_form(compile_filter("n >= 0").normal_form)
    registry.apply([Put("default", "s", "n >= 0", "sql", compiled)], (0,), 0)
    bring_index_up_to_date(folder)
    log.append([NewRecord("default", b'{"n": 1}\n', 1, stamp=1)])
    registry.close()
    log.close()
    return folder


DAMAGED = {
    "the newest manifest is empty": ("manifests", empty),
    "the newest manifest is torn": ("manifests", tear),
    "the newest delta is empty": ("files", empty),
    "the newest delta is torn": ("files", tear),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_an_index_that_has_rotted_is_built_anew(tmp_path: Path, name: str) -> None:
    """All of the index can be built again: what is broken there must stop nobody for longer than that."""
    folder = service_with_an_index(tmp_path)
    part, damage = DAMAGED[name]
    damage(newest(folder.index / part))
    bring_index_up_to_date(folder)
    manifest = FileIndexStore(folder.index).newest()
    assert manifest is not None
    RangeMatcher(folder).match(RecordRange(0, 0, 1, manifest.number))
    block = FileMatchLog(folder.matches).block_at(0)
    assert block is not None
    assert block.matches == 1


@pytest.mark.parametrize("hole", [7, 200_000])
def test_a_match_log_that_was_deleted_is_made_again_across_a_hole_of_the_event_log(
    tmp_path: Path, hole: int
) -> None:
    """An older log.db was put back some time ago, so its offsets have a hole; now matches/ is deleted.

    The documentation allows that: matches that were not delivered are lost, or made again. The pipeline must
    come over the hole, and leave no gap at which every subscriber would wait for ever.
    """
    folder = service_with_an_index(tmp_path)
    log = open_event_log(folder.log_url)
    if not hasattr(log, "raise_end"):
        pytest.skip("this log has no holes")
    for _ in range(2):
        log.raise_end(log.end() + hole)
        log.append([NewRecord("default", b'{"n": 2}\n', 1, stamp=1)] * 2)
    log.raise_end(log.end() + hole)
    planner, matcher = BatchPlanner(folder, MicroBatchSettings()), RangeMatcher(folder)
    at: Offset = {"ends": planner.first(), "manifest": 0}
    try:
        while (end := planner.next_end(at)) != at:
            for each in chain(*planner.tasks(at["ends"], end["ends"])):
                matcher.match(RecordRange(*each, end["manifest"]))
            at = end
    finally:
        planner.close()
    matches = FileMatchLog(folder.matches)
    assert matches.end(0) == log.end() == 3 * hole + 5
    found: list[int] = []
    offset = 0
    while (block := matches.block_at(offset)) is not None:
        found += block.matches_of(1, offset)[0].tolist()
        offset = block.end
    assert found == [0, hole + 1, hole + 2, 2 * hole + 3, 2 * hole + 4]


def test_a_machine_that_was_paused_finds_nobody_hanging(tmp_path: Path) -> None:
    """``docker pause`` for five minutes stops the supervisor with all others, but not the clock.

    When they go on, nobody has had the time to give a sign of life: nothing hangs, and ending gateway and
    pipeline would cut every stream off for nothing.
    """
    progress = pytest.importorskip("fieldfare.runtimes.process.watching")
    if not hasattr(progress, "HangWatch"):
        pytest.skip("nobody watches for hanging processes")
    sign = tmp_path / "sign"
    sign.write_text("")
    watch = progress.HangWatch(sign, 60.0)
    for second in range(5):
        os.utime(sign, (1000 + second, 1000 + second))
        assert watch(1, float(second)) == ""
    assert watch(1, 300.0) == ""
