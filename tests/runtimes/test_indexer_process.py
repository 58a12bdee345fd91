"""The indexer's process: it follows the registry, and whatever happens to it or its files is mended."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from accidents import MIB, empty, fill, newest, small_disk
from indexing import bring_index_up_to_date, indexer
from pipeline_support import History, payload_of, random_event, random_filter

from fieldfare.filters import compile_filter, encode_normal_form
from fieldfare.model import Subscription
from fieldfare.pipeline.access_point import record_batch
from fieldfare.pipeline.manifest import Manifest
from fieldfare.pipeline.match_batch import match_batch
from fieldfare.planning.cuts import CutSettings
from fieldfare.runtimes.indexer import following
from fieldfare.runtimes.indexer.following import floor, run_indexer
from fieldfare.runtimes.process.heartbeat import read_beat
from fieldfare.runtimes.process.locks import FileLock
from fieldfare.runtimes.process.wanted import request_index, requested_revision
from fieldfare.runtimes.spark.batch_planner import BatchPlanner
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.index_cache import IndexCache
from fieldfare.storage import open_event_log, open_index_store, open_match_log, open_registry
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.event_log import NewRecord, Record
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.registry import Put, Remove

pytestmark = pytest.mark.long

DEADLINE_S = 180.0


def until(condition: Callable[[], Any]) -> Any:
    until_s = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < until_s, "it did not come true in time"
        time.sleep(0.01)
    return value


class Service:
    """A registry that changes at random, and what its index must find."""

    def __init__(self, root: Path) -> None:
        self.folder = DataFolder(root)
        self.folder.make()
        self.registry = open_registry(self.folder.registry_url)
        self.registry.create_space("alpha")
        self.store = open_index_store(self.folder.index_url)
        self.random = Random(13)
        self.history = History()

    def change(self, count: int = 1) -> int:
        """Put and remove subscriptions; gives the revision."""
        for _ in range(count):
            id = f"s{self.random.randrange(20)}"
            text = random_filter(self.random) if self.random.random() < 0.8 else None
            if text is None:
                change: Put | Remove = Remove("alpha", id)
            else:
                compiled = encode_normal_form(compile_filter(text).normal_form)
                change = Put("alpha", id, text, "sql", compiled)
            (result,) = self.registry.apply([change], (0,), 0)
            if isinstance(result, Subscription):
                self.history.change("alpha", result.number, text)
        return self.registry.revision()

    def newest(self) -> Manifest | None:
        try:
            return self.store.newest()
        except IndexStoreError:
            return None

    def covering(self, revision: int) -> Manifest:
        """Wait for a manifest that covers a revision."""

        def found() -> Manifest | None:
            manifest = self.newest()
            return manifest if manifest is not None and manifest.revision >= revision else None

        return until(found)

    def check(self) -> None:
        """Whatever the stamp, events match what a naive replay says."""
        revision = self.registry.revision()
        manifest = self.covering(revision)
        records, expected = [], []
        for offset in range(revision + 1):
            event = random_event(self.random)
            records.append(Record(offset, "alpha", 1, payload_of([event], self.random), 0, offset))
            expected.append(self.history.expected("alpha", offset, event))
        indexes = IndexCache(self.store).indexes(manifest.number, revision)
        assert match_batch(record_batch(records), indexes).lists() == expected

    @property
    def beat(self) -> dict[str, Any]:
        return read_beat(self.folder.heartbeat_of("indexer"))


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path)


@contextmanager
def following_thread(service: Service) -> Iterator[None]:
    """The indexer, in a thread of this process."""
    stop = threading.Event()
    thread = threading.Thread(target=run_indexer, args=(service.folder, stop, CutSettings()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_changes_are_covered_as_they_come_and_it_tells_how_far_it_is(service: Service) -> None:
    first = service.change(10)
    with following_thread(service):
        service.covering(first)
        for _ in range(5):
            service.covering(service.change(3))
        until(lambda: service.beat.get("revision") == service.registry.revision() > first)
        assert service.beat["state"] == "running"
        assert service.beat["snapshot_revision"] == first
        service.check()
    assert service.beat["state"] == "stopped"


@pytest.mark.parametrize("what", ["manifest", "part", "everything"])
def test_an_index_that_is_corrupted_or_deleted_while_it_runs_is_rebuilt(service: Service, what: str) -> None:
    """The pipeline finds no way to match then; it must not need a person, or the next change of a filter."""
    service.change(10)
    with following_thread(service):
        before = service.covering(service.change())
        if what == "manifest":
            empty(newest(service.folder.index / "manifests"))
        elif what == "part":
            newest(service.folder.index / "files")[0].unlink()
        else:
            shutil.rmtree(service.folder.index)
        until(lambda: (now := service.newest()) is not None and (now != before or what == "everything"))
        service.check()


def test_files_that_have_rotted_are_found_when_the_pipeline_fails(service: Service) -> None:
    """A sector is lost: the file exists, but a process that maps it fails."""
    service.change(10)
    with following_thread(service):
        before = service.covering(service.change())
        (file, *_) = newest(service.folder.index / "files")
        file.write_bytes(file.read_bytes()[:-64] + b"x" * 64)
        beat = {"pid": 1, "state": "recovering", "time_ms": 0}
        service.folder.heartbeat.write_text(json.dumps(beat))
        until(lambda: service.covering(0).number > before.number)
        service.check()


def test_it_reports_a_full_disk_and_resumes_when_there_is_room(service: Service) -> None:
    with small_disk(service.folder.index, 4 * MIB) as disk:
        service.change(10)
        with following_thread(service):
            service.covering(service.change())
            ballast = fill(disk)
            service.change()
            until(lambda: service.beat.get("state") == "recovering")
            assert "No space left" in service.beat["error"]
            ballast.unlink()
            service.check()
            until(lambda: service.beat["state"] == "running" and service.beat["error"] is None)
            shutil.rmtree(service.folder.index, ignore_errors=True)


def test_a_task_with_a_removed_manifest_finds_the_same_matches(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of a batch that was planned long ago: its worker was killed, or it waited for a core."""
    monkeypatch.setattr(following, "KEPT_S", 0.0)
    service.change(10)
    with following_thread(service):
        old = service.covering(service.change(3)).number
        revision = service.change(3)
        service.covering(revision)
        until(lambda: not list(service.folder.index.rglob(f"*{old}.json")))
        event = random_event(service.random)
        record = Record(0, "alpha", 1, payload_of([event], service.random), 0, revision - 2)
        indexes = IndexCache(service.store).indexes(old, record.stamp)
        expected = [service.history.expected("alpha", record.stamp, event)]
        assert match_batch(record_batch([record]), indexes).lists() == expected


def test_work_of_a_process_killed_at_any_time_is_resumed(service: Service) -> None:
    """Between a delta and its manifest, in the middle of a file, while it starts: nothing is missing."""
    service.change(10)
    for _ in range(3):
        with indexer(service.folder):
            reached = service.newest()
            until(lambda reached=reached: service.newest() not in (None, reached))
            service.change(service.random.randrange(1, 6))
            time.sleep(service.random.random() / 20)
    with indexer(service.folder) as last:
        service.check()
        # The waited-for index may exist already, and then this process only starts.
        until(lambda: service.beat.get("pid") == last.pid and service.beat.get("state") == "running")
        last.send_signal(signal.SIGTERM)
        assert last.wait(DEADLINE_S) == 0
    assert service.beat["state"] == "stopped"


def test_two_indexers_cannot_have_one_data_directory(service: Service) -> None:
    command = [sys.executable, "-m", "fieldfare.runtimes.indexer", "--data", str(service.folder.root)]
    with FileLock(service.folder.lock_of("indexer"), 0):
        ended = subprocess.run(
            [*command, "--lock-wait", "0"], capture_output=True, text=True, timeout=DEADLINE_S
        )
    assert ended.returncode == 1
    assert "another indexer runs on this data directory" in ended.stderr
    assert not service.folder.heartbeat_of("indexer").exists()


def test_a_registry_that_is_none_ends_it_for_good(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.registry_path.write_bytes(b"this is no database, and was never one" * 100)
    command = [sys.executable, "-m", "fieldfare.runtimes.indexer", "--data", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode == 4
    assert "Traceback" not in ended.stderr
    assert read_beat(folder.heartbeat_of("indexer"))["state"] == "failed"


def test_a_batch_is_planned_when_the_index_covers_it_and_not_before(service: Service) -> None:
    """The indexer is away for a while: the query goes on asking, and can be stopped."""
    log = open_event_log(service.folder.log_url)
    planner = BatchPlanner(service.folder, MicroBatchSettings(wait_ms=20))
    at = {"ends": planner.first(), "manifest": 0}
    first = service.change(5)
    log.append([NewRecord("alpha", b"{}\n", 1, stamp=first)])
    assert planner.next_end(at) == at
    manifest = bring_index_up_to_date(service.folder)
    assert planner.next_end(at) == {"ends": (1,), "manifest": manifest.number}
    log.append([NewRecord("alpha", b"{}\n", 1, stamp=service.change())])
    at = {"ends": (1,), "manifest": manifest.number}
    assert planner.next_end(at) == at
    planner.stop_at_present_end()
    with pytest.raises(RuntimeError, match="does not cover"):
        planner.next_end(at)
    planner.close()


def test_while_many_subscribe_manifests_are_paced_but_for_a_batch_that_waits(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PACE_S", 10 * DEADLINE_S)
    monkeypatch.setattr(following, "REST", 1e9)
    log = open_event_log(service.folder.log_url)
    planner = BatchPlanner(service.folder, MicroBatchSettings(wait_ms=int(DEADLINE_S * 1000)))
    with following_thread(service):
        until(lambda: service.beat.get("state") == "running")
        service.covering(until(service.change))
        paced = service.change(10)
        manifest = service.newest()
        assert manifest is not None and manifest.revision < paced
        log.append([NewRecord("alpha", b"{}\n", 1, stamp=paced)])
        planned = planner.next_end({"ends": planner.first(), "manifest": 0})
        assert planned["ends"] == (1,)
        assert service.store.manifest(planned["manifest"]).revision >= paced
    planner.close()


def test_a_wanted_revision_beyond_the_registry_is_ignored(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a registry before it was restored, say: there would be a manifest for each change from then on."""
    monkeypatch.setattr(following, "PACE_S", 10 * DEADLINE_S)
    monkeypatch.setattr(following, "REST", 1e9)
    looks: list[int] = []
    monkeypatch.setattr(
        following, "requested_revision", lambda path: looks.append(requested_revision(path)) or looks[-1]
    )
    request_index(service.folder.wanted, 1 << 62)
    with following_thread(service):
        until(lambda: service.beat.get("state") == "running")
        service.covering(until(service.change))
        paced = service.change(10)
        until(lambda: len(looks) > 10 or service.store.newest().revision >= paced)
        assert service.store.newest().revision < paced
        request_index(service.folder.wanted, paced)
        service.covering(paced)


@pytest.mark.parametrize("text", ["", "x", "12 \0", None])
def test_the_wanted_revision_is_a_hint_that_may_be_torn(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "wanted"
    if text is not None:
        path.write_text(text)
    assert requested_revision(path) == 0
    request_index(path, 12)
    assert requested_revision(path) == 12
    request_index(tmp_path / "no folder" / "wanted", 12)


class Racing:
    """A log, and its one partition, to which two records are appended between two questions."""

    number = 0

    def __init__(self, folder: DataFolder) -> None:
        self.partitions = (self,)
        self.log = open_event_log(folder.log_url)
        self.log.append([NewRecord("alpha", b"{}\n", 1, stamp=1)])

    def start(self) -> int:
        return self.log.start()

    def last_stamp(self) -> int:
        return self.log.last_stamp()

    def lowest_stamp(self, start: int) -> int | None:
        found = self.log.lowest_stamp(start)
        self.log.append([NewRecord("alpha", b"{}\n", 1, stamp=stamp) for stamp in (2, 3)])
        return found


def test_no_version_is_left_out_that_a_record_to_come_needs(service: Service) -> None:
    """Everything is matched when it asks; two records come before it has its answer."""
    service.folder.heartbeat.write_text(json.dumps({"matched": [1]}))
    log, match_log = Racing(service.folder), open_match_log(service.folder.matches_url)
    match_log.partition(0).fill(0, 1)
    assert floor(service.folder, log, match_log) <= 2
    assert floor(service.folder, log, match_log) == 2
    for told in ("{}", "", '{"matched": null}', '{"matched": [3]}', '{"matched": []}', '{"matched": 3}'):
        service.folder.heartbeat.write_text(told)
        assert floor(service.folder, log, match_log) <= 2
