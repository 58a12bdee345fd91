"""Snapshots are built by a process in the background while subscriptions go on changing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from encrypted_support import encrypt_filter
from pipeline_support import SPACES, History, payload_of, random_event, random_filter

from fieldfare.client.encryption import SpaceKey
from fieldfare.filters import compile_filter, encode_normal_form
from fieldfare.filters.encrypted import compile_encrypted
from fieldfare.model import Subscription
from fieldfare.partitioning import AttributeSpace, Axis, HashPartitioning, Replicated
from fieldfare.partitioning.axis import place_before
from fieldfare.pipeline.access_point import record_batch
from fieldfare.pipeline.indexer import Indexer
from fieldfare.pipeline.manifest import Manifest
from fieldfare.pipeline.match_batch import match_batch
from fieldfare.planning.cuts import Cut, CutSettings
from fieldfare.runtimes.indexer import index_writer
from fieldfare.runtimes.indexer.index_writer import IndexWriter, SnapshotSettings, write_step
from fieldfare.runtimes.indexer.planning import latest_events
from fieldfare.runtimes.indexer.snapshot_builder import Built, build_files, build_snapshots
from fieldfare.runtimes.spark.index_cache import IndexCache
from fieldfare.storage import open_event_log, open_registry
from fieldfare.storage.event_log import NewRecord, Record
from fieldfare.storage.files.index_store import FileIndexStore
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import Quarantine, QuarantinedRecord
from fieldfare.storage.registry import Put, Remove

pytestmark = pytest.mark.long

SETTINGS = SnapshotSettings(share=0, fewest_rows=100, most_rows=100)
DEADLINE_S = 180.0
LOOK_EVERY_S = 0.2
"""While a snapshot is built: its builder needs the processor, too."""


class Life:
    """A registry that changes at random, its index, and what must come out of it."""

    def __init__(self, root: Path) -> None:
        self.folder = DataFolder(root)
        self.folder.make()
        self.registry = open_registry(self.folder.registry_url)
        for space in SPACES:
            self.registry.create_space(space)
        self.random = Random(2011)
        self.history = History()
        self.store = FileIndexStore(self.folder.index)
        self.cache = IndexCache(self.store)
        self.floor = 0
        self.writer = self.open()

    def open(self, *cuts: str) -> IndexWriter:
        wished = CutSettings.parsed("auto", 1, cuts, 1 << 40)
        return IndexWriter(self.folder, self.registry, self.store, lambda: self.floor, SETTINGS, cuts=wished)

    def change(self, count: int) -> None:
        """Put and remove subscriptions."""
        for _ in range(count):
            space, id = self.random.choice(SPACES), f"s{self.random.randrange(60)}"
            text = random_filter(self.random) if self.random.random() < 0.7 else None
            if text is None:
                change: Put | Remove = Remove(space, id)
            else:
                compiled = encode_normal_form(compile_filter(text).normal_form)
                change = Put(space, id, text, "sql", compiled)
            (result,) = self.registry.apply([change], (0,), 0)
            if isinstance(result, Subscription):
                self.history.change(space, result.number, text)

    def check(self, since: int) -> None:
        """Events of stamps from `since` on match, by the newest manifest, what a naive replay says."""
        revision = self.registry.revision()
        manifest = self.writer.catch_up(revision)
        records, expected = [], []
        stamps = range(since, revision + 1)
        for offset, stamp in enumerate(sorted(self.random.sample(stamps, min(12, len(stamps))))):
            events = [random_event(self.random) for _ in range(3)]
            space = self.random.choice(SPACES)
            records.append(Record(offset, space, 3, payload_of(events, self.random), 0, stamp))
            expected += [self.history.expected(space, stamp, event) for event in events]
        found = match_batch(record_batch(records), self.cache.indexes(manifest.number, revision))
        assert found.lists() == expected

    def builders(self) -> list[int]:
        """The processes that build snapshots for this one now."""
        return [
            int(stat.parent.name)
            for stat in Path("/proc").glob("[0-9]*/stat")
            if _parent(stat) == os.getpid() and b"snapshot_builder" in _command(stat.parent)
        ]


def _parent(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def until(condition: Callable[[], bool], *, every_s: float = 0.01) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until_s, "it did not come true in time"
        time.sleep(every_s)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    found = Life(tmp_path)
    yield found
    found.writer.close()


def test_a_snapshot_is_built_while_changes_go_on_and_the_manifest_moves_over(life: Life) -> None:
    """Twice; then the files of manifests that are no longer needed are removed."""
    for _ in range(2):
        before = life.writer.manifest.snapshot_revision
        life.change(250)
        passed = life.floor = life.registry.revision()
        life.check(since=passed)
        assert life.writer.is_building, "it is built in the background"

        def moved_over(before: int = before, passed: int = passed) -> bool:
            life.change(3)
            life.check(since=passed)
            return life.writer.manifest.snapshot_revision > before

        until(moved_over, every_s=LOOK_EVERY_S)
        assert life.writer.manifest.snapshot_revision < life.writer.manifest.revision
        life.writer.collect(life.writer.manifest.number)
        life.check(since=passed)
    life.writer.collect(life.writer.manifest.number)
    files = {path.name for path in (life.folder.index / "files").iterdir()}
    assert files == life.writer.manifest.files()


def test_an_index_that_cannot_be_opened_leaves_the_one_before_in_use(life: Life) -> None:
    """A task that follows the log looks for newer manifests, and matches older records meanwhile."""
    life.change(20)
    life.check(0)
    before, revision = life.store.newest(), life.registry.revision()
    assert before is not None
    life.change(20)
    newest = life.writer.catch_up(life.registry.revision())
    hidden = [
        life.store.path(name) for name in newest.files() - before.files() if life.store.path(name).exists()
    ]
    assert hidden
    for path in hidden:
        path.rename(path.with_suffix(".hidden"))
    with pytest.raises(OSError):
        life.cache.open_newest()
    assert life.cache.covering(revision) == before.number
    assert life.cache.indexes(before.number, revision).keys() == set(SPACES)
    assert life.cache.has_opened(before.number)
    for path in hidden:
        path.with_suffix(".hidden").rename(path)
    life.cache.open_newest()
    assert life.cache.has_opened(newest.number)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="it looks for processes in /proc")
@pytest.mark.parametrize("accident", [signal.SIGKILL, signal.SIGSTOP])
def test_a_build_that_was_killed_or_hangs_is_done_again(
    life: Life, monkeypatch: pytest.MonkeyPatch, accident: signal.Signals
) -> None:
    """Otherwise there were no snapshot ever again, and the deltas would slow matching down more and more."""
    monkeypatch.setattr(index_writer, "RETRY_S", 0.0)
    life.change(250)
    life.check(since=0)
    (struck,) = life.builders()
    os.kill(struck, accident)
    if accident == signal.SIGSTOP:
        monkeypatch.setattr(index_writer, "BUILD_MAX_S", 0.0)
        life.check(since=0)
        assert struck not in life.builders()
        monkeypatch.setattr(index_writer, "BUILD_MAX_S", 3_600.0)

    def taken() -> bool:
        life.change(1)
        life.check(since=0)
        return life.writer.manifest.snapshot_revision > 0

    until(taken, every_s=LOOK_EVERY_S)
    life.writer.close()
    assert life.builders() == []
    assert list(life.folder.run.glob("snapshot-*")) == []


def test_a_restart_resumes_from_the_snapshot_after_older_history_was_purged(life: Life) -> None:
    """Changes that the pipeline has passed, and that the newest snapshot includes, are not read again."""
    life.change(250)
    passed = life.floor = life.registry.revision()
    life.check(since=passed)
    until(lambda: life.writer.catch_up(life.registry.revision()).snapshot_revision > 0)
    life.change(40)
    life.check(since=passed)
    assert life.registry.purge(min(passed, life.writer.manifest.snapshot_revision)) > 50
    for leave_out_index in (False, True):
        life.change(30)
        life.writer.close()
        if leave_out_index:  # as if its files were corrupt: everything is rebuilt
            for file in (life.folder.index / "files").iterdir():
                file.unlink()
        life.writer = life.open()
        life.check(since=passed)


def test_a_corrupt_manifest_stops_nothing_and_its_number_is_not_reused(
    life: Life, caplog: pytest.LogCaptureFixture
) -> None:
    """Every start of the pipeline failed at an empty newest manifest, until ``index/`` was deleted.

    Workers know a manifest by its number: one of the same number with other content would be passed over.
    """
    life.change(40)
    life.check(since=0)
    passed = life.floor = life.registry.revision()
    life.change(20)
    life.check(since=0)
    rotted = life.writer.manifest
    path = life.folder.index / "manifests" / f"{rotted.number:012d}.json"
    life.writer.close()
    path.write_bytes(b"")
    life.writer = life.open()
    assert caplog.text.count("rebuilding the index") == 1
    assert life.writer.manifest.number > rotted.number
    assert not path.exists()
    assert not {file.name for file in (life.folder.index / "files").iterdir()} & rotted.files()
    life.check(since=passed)


def test_a_space_that_is_cut_stays_so_through_snapshots_and_restarts(life: Life) -> None:
    life.change(40)
    life.check(since=0)
    life.writer.close()
    revision, number = life.registry.revision(), life.writer.manifest.number
    axis = Axis(("data", "x"), (place_before(2), place_before(4)))
    cut = {SPACES[0]: AttributeSpace((axis,), ((0, 1, 0),), (1,)), SPACES[1]: Replicated(2)}
    parts = build_snapshots(life.registry, revision, 0, cut.__getitem__)
    write_step(life.store, Indexer(Manifest(number, 0)).rebase(parts, revision, cut))
    life.floor = revision
    life.writer = life.open()
    life.change(250)

    def moved_over() -> bool:
        life.change(3)
        life.check(since=revision)
        return life.writer.manifest.snapshot_revision > revision

    until(moved_over, every_s=LOOK_EVERY_S)
    life.writer.close()
    life.change(20)
    life.writer = life.open()
    life.check(since=revision)
    found = life.writer.manifest.spaces
    assert {space: files.partitioning for space, files in found.items()} == cut
    assert all(part.snapshot for files in found.values() for part in files.slices)


def test_spaces_are_cut_again_in_the_background_during_changes(life: Life) -> None:
    """By their subscribers and publishers; and they become one slice again without a wish to cut them."""
    log = open_event_log(life.folder.log_url)
    for _ in range(40):
        events = [random_event(life.random) for _ in range(5)]
        log.append([NewRecord(SPACES[0], payload_of(events, life.random), 5)])
    log.append([NewRecord(SPACES[0], b"{\n", 1)])  # unreadable, so nothing can be learned from it
    Quarantine(life.folder.quarantine).add(QuarantinedRecord(40, SPACES[0], 1, "no JSON", 0, 0))
    log.close()
    life.change(90)
    life.check(since=0)
    wishes: list[tuple[str, ...]] = [(f"{SPACES[0]}=attribute_space:2", f"{SPACES[1]}=hash:3"), ()]
    for cuts, matchers in zip(wishes, ([2, 3], [1, 1]), strict=True):
        passed = life.floor = life.registry.revision()
        life.writer.close()
        life.writer = life.open(*cuts)
        life.writer.review_partitioning({})
        steps = 0

        def are_cut(passed: int = passed, matchers: list[int] = matchers) -> bool:
            nonlocal steps
            steps += 1
            life.change(3)
            life.check(since=passed)
            spaces = life.writer.manifest.spaces
            return [spaces[space].matchers for space in SPACES] == matchers

        until(are_cut, every_s=LOOK_EVERY_S)
        assert steps > 1, "it was done in the background"
        assert 0 < life.writer.cut_number <= life.writer.manifest.number
        if cuts:
            assert isinstance(life.writer.manifest.spaces[SPACES[0]].partitioning, AttributeSpace)
        life.change(20)
        life.check(since=passed)
        wanted = life.writer._cuts.due(life.writer._standing({}), time.monotonic())
        assert not wanted, "all is as it is wished"


def test_a_space_is_planned_by_its_latest_events_however_large_records_are(tmp_path: Path) -> None:
    """It was the oldest of the last 64 records that were looked at: a load that had moved was not seen."""
    folder = DataFolder(tmp_path)
    folder.make()
    log = open_event_log(folder.log_url)
    for x in (1, 2):
        log.append([NewRecord("mine", b'{"x": %d}\n' % x * 1_000, 1_000) for _ in range(6)])
    events = latest_events(log, Quarantine(folder.quarantine), "mine", (("x",),))
    log.close()
    assert events is not None and events.size == 4_096
    assert [events.value(("x",), at) for at in (0, 2_000, 4_095)] == [2, 2, 2]


def test_an_encrypted_space_is_cut_by_hash_and_keeps_no_other_from_being_cut(life: Life) -> None:
    """The extents of its filters are unknown here; reading them failed, and with it every space's plan."""
    key = SpaceKey.generate({"data.x": (0, 9, 1)}, ["data.word"])
    life.registry.create_space("secret")
    for number in range(12):
        text = encrypt_filter(key, f"data.x < {number}")
        put = Put("secret", f"s{number}", text, "aspe", compile_encrypted(text).compiled)
        (made,) = life.registry.apply([put], (0,), 0)
        assert isinstance(made, Subscription)
        life.history.revision += 1
    log = open_event_log(life.folder.log_url)
    for _ in range(40):
        events = [random_event(life.random) for _ in range(5)]
        log.append([NewRecord(SPACES[0], payload_of(events, life.random), 5)])
    log.close()
    life.change(90)
    life.check(since=0)
    life.writer.close()
    life.writer = life.open(f"{SPACES[0]}=attribute_space:2", "secret=attribute_space:3")
    life.writer.review_partitioning({})

    def are_cut() -> bool:
        life.check(since=0)
        spaces = life.writer.manifest.spaces
        return spaces[SPACES[0]].matchers == 2 and spaces["secret"].matchers == 3

    until(are_cut, every_s=LOOK_EVERY_S)
    spaces = life.writer.manifest.spaces
    assert isinstance(spaces[SPACES[0]].partitioning, AttributeSpace)
    assert spaces["secret"].partitioning == HashPartitioning(3)
    assert sum(part.size for part in spaces["secret"].slices) == 12


class Death(Exception):
    """The process is gone."""


class BuildHere:
    """A build that is not in a process of its own, and done at once: many can be."""

    is_running, started_s, problem = False, 0.0, ""

    def __init__(self, folder: DataFolder, revision: int, floor: int, wanted: Mapping[str, Cut]) -> None:
        self.revision = revision
        self._scratch = Path(tempfile.mkdtemp(prefix="snapshot-", dir=folder.run))
        self._said = build_files(folder, revision, floor, wanted, self._scratch)

    @classmethod
    def start(cls, *given: Any) -> BuildHere:
        return cls(*given)

    def result(self) -> Built:
        return Built.decoded(self._said)

    def close(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)


def test_a_writer_that_dies_between_any_two_steps_of_a_new_cut_has_lost_nothing(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step later each time, until no process dies; the next one shall cut the spaces in another way."""
    left = 1 << 30

    def mortal(work: Callable[..., Any]) -> Callable[..., Any]:
        def worked(*given: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Death
            return work(*given)

        return worked

    monkeypatch.setattr(life.store, "write_manifest", mortal(life.store.write_manifest))
    monkeypatch.setattr(Path, "replace", mortal(Path.replace))
    monkeypatch.setattr(index_writer, "SnapshotBuild", BuildHere)
    life.change(40)
    life.check(since=0)
    ways = [
        (f"{SPACES[0]}=hash:2", f"{SPACES[1]}=hash:3"),
        (f"{SPACES[0]}=attribute_space:3",),
        (f"{SPACES[1]}=hash:2",),
    ]
    deaths = attempts = survived = 0
    while survived < len(ways):
        life.writer.close()
        life.writer = life.open(*ways[attempts % len(ways)])
        life.check(since=0)
        life.writer.review_partitioning({})
        life.check(since=0)
        life.change(6)  # placed as before first, then again
        left = attempts // len(ways)
        attempts += 1
        try:
            for _ in range(2):
                life.writer.catch_up(life.registry.revision())
            survived += 1
        except Death:
            deaths, survived = deaths + 1, 0
        finally:
            left = 1 << 30
    assert deaths > 15
    life.check(since=0)
    assert life.writer.cut_number > 0


def test_a_space_is_deleted_while_it_is_cut_and_another_of_its_name_is_cut_too(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second has only the name in common; earlier records still meet the earlier subscribers."""
    monkeypatch.setattr(index_writer, "SnapshotBuild", BuildHere)
    life.change(60)
    life.check(since=0)
    life.writer.close()
    life.writer = life.open(f"{SPACES[0]}=hash:2")
    life.writer.review_partitioning({})
    life.writer.catch_up(life.registry.revision())
    assert life.writer.is_building
    life.registry.delete_space(SPACES[0], 0)
    held = [found for n in range(60) if (found := life.registry.get(SPACES[0], f"s{n}"))]
    assert held
    for each in held:
        life.registry.apply([Remove(SPACES[0], each.id)], (0,), 0)
        life.history.change(SPACES[0], each.number, None)
    life.check(since=0)
    key = life.registry.create_space(SPACES[0])
    assert key != SPACES[0]
    for number in range(5):
        compiled = encode_normal_form(compile_filter(f"data.x = {number}").normal_form)
        (made,) = life.registry.apply(
            [Put(key, f"s{number}", f"data.x = {number}", "sql", compiled)], (0,), 0
        )
        assert isinstance(made, Subscription)
        life.history.change(key, made.number, made.filter)
    life.check(since=0)
    spaces = life.writer.manifest.spaces
    assert [spaces[SPACES[0]].matchers, spaces[key].matchers] == [2, 2]
    assert sum(part.size for part in spaces[key].slices) == 5


def test_a_lost_index_is_not_confused_with_the_rebuilt_one(life: Life) -> None:
    """Its files are numbered from 1 again; processes that had mapped the old ones kept using them."""
    life.change(40)
    life.check(since=0)
    life.writer.close()
    shutil.rmtree(life.folder.index)
    passed = life.floor = life.registry.revision()
    life.change(20)
    life.writer = life.open()
    life.change(20)
    life.check(since=passed)
    life.change(20)
    life.check(since=passed)


def test_an_index_with_a_manifest_of_the_previous_format_is_rebuilt(
    life: Life, caplog: pytest.LogCaptureFixture
) -> None:
    """A space was one index then, and a snapshot's name said of which revision it was."""
    life.change(40)
    life.check(since=0)
    life.change(20)
    life.check(since=0)
    before = life.writer.manifest
    life.writer.close()
    spaces = {}
    for name, space in before.spaces.items():
        (only,) = space.slices
        snapshot = only.snapshot and f"snapshot-{only.snapshot.revision}-1-0.part"
        if only.snapshot:
            shutil.copy(life.store.path(only.snapshot.file), life.store.path(snapshot))
        spaces[name] = {"snapshot": snapshot, "deltas": list(only.deltas), "closings": only.closings}
    older = {"format": 2, "number": before.number, "revision": before.revision, "spaces": spaces}
    path = life.folder.index / "manifests" / f"{before.number:012d}.json"
    path.write_text(json.dumps(older))
    life.writer = life.open()
    assert caplog.text.count("rebuilding the index") == 1
    assert life.writer.manifest.number > before.number
    life.check(since=0)
    assert not path.exists()
    files = {path.name for path in (life.folder.index / "files").iterdir()}
    assert files == life.writer.manifest.files()


def test_a_manifest_that_rots_while_the_pipeline_runs_is_cleaned_up_later(
    life: Life, caplog: pytest.LogCaptureFixture
) -> None:
    """Removal of old files reads the kept manifests; a commit failed because of that."""
    while life.writer.manifest.number < 4:
        life.change(2)
        life.check(since=0)
    kept = life.writer.manifest.number - 1
    path = life.folder.index / "manifests" / f"{kept:012d}.json"
    path.write_bytes(b"")
    life.writer.collect(kept)
    assert caplog.text.count("old index files could not be removed") == 1
    life.check(since=0)
    life.writer.collect(life.writer.manifest.number)
    assert not path.exists()
    life.check(since=0)
    life.writer.close()
    life.writer = life.open()
    life.check(since=0)


def test_files_of_a_writer_killed_before_its_manifest_are_rewritten(life: Life) -> None:
    """A delta with the next manifest's name lay there already, and what changed after it was lost."""
    life.change(40)
    life.check(since=0)
    life.change(1)
    (unfinished,) = {life.writer.catch_up(life.registry.revision()).number} - {1}
    life.writer.close()
    (manifest,) = life.folder.index.rglob(f"*{unfinished}.json")
    manifest.unlink()
    life.change(30)
    life.writer = life.open()
    assert life.writer.manifest.number == unfinished
    life.check(since=0)
