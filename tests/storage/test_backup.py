"""Backups of a running service: the guarantees of a backup hold during any activity."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from fieldfare import Client
from fieldfare.storage import backup as backups
from fieldfare.storage.backup import (
    MANIFEST,
    BackupError,
    check_backup,
    make_backup,
    read_manifest,
    restore_backup,
)
from fieldfare.storage.doctor import examine
from fieldfare.storage.folder import DataFolder
from fieldfare.testing import LocalService

pytestmark = pytest.mark.long

BUSY = {"maintenance_s": 0.05, "retention_bytes": 1 << 20}
"""Compaction and retention all the time."""


def numbered(numbers: range) -> list[dict[str, object]]:
    return [{"source": "/s", "type": "t", "id": str(n), "data": {"n": n, "text": "x" * 200}} for n in numbers]


def pulled(client: Client, id: str) -> list[int]:
    """All messages of a subscription, which are not acked."""
    found: list[int] = []
    while messages := client.pull(id, max_messages=1_000, wait_s=0.3):
        found += [message.event["data"]["n"] for message in messages]
    return found


@dataclass
class Progress:
    """What a publisher was answered: its number of events, and the offset before which all are acked."""

    events: int = 0
    acked: int = 0


@contextmanager
def publishing(service: LocalService) -> Iterator[Progress]:
    """Publish, one event after the other, and ack all that ``acked`` gets."""
    stop, done = threading.Event(), Progress()

    def work() -> None:
        with service.client() as client:
            while not stop.is_set():
                client.publish_many(numbered(range(done.events, done.events + 10)))
                done.events += 10
                messages = client.pull("acked", max_messages=100)
                client.ack("acked", [message.position for message in messages])
                done.acked = max([done.acked, *(message.position.offset for message in messages)])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        stop.set()
        thread.join(60)


def restored(backup: Path, to: Path) -> LocalService:
    restore_backup(backup, to)
    assert list(examine(DataFolder(to), is_running=False)) == []
    return LocalService(to)


def test_a_backup_holds_all_events_from_before_it_and_none_that_was_acked(tmp_path: Path) -> None:
    with LocalService(tmp_path / "data", maintenance_s=0.05) as service, service.client() as client:
        client.create_subscription("data.n % 2 = 0", "even")
        client.create_subscription("data.n >= 0", "acked")
        with publishing(service) as done:
            for turn in range(4):
                while done.events < 200 * (turn + 1):
                    time.sleep(0.01)
                known = done.events
                service.wait_until_matched()
                settled = done.acked
                make_backup(DataFolder(tmp_path / "data"), tmp_path / f"backup-{turn}")
                assert read_manifest(tmp_path / f"backup-{turn}").log_end is not None
                check(tmp_path, turn, known, settled)


def check(tmp_path: Path, turn: int, known: int, settled: int) -> None:
    """Events below `known` were published before the backup, and records below `settled` were acked."""
    backup = tmp_path / f"backup-{turn}"
    assert list(check_backup(backup)) == []
    with restored(backup, tmp_path / f"restored-{turn}") as service, service.client() as client:
        service.wait_until_matched()
        even = pulled(client, "even")
        assert even == list(range(0, even[-1] + 1, 2)) and even[-1] >= known - 2
        again = client.pull("acked", max_messages=1_000)
        assert all(message.position.offset >= settled for message in again)
        (position,) = client.publish_many([{"source": "/s", "type": "t", "data": {"n": 10**9}}])
        service.wait_until_matched()
        last = client.pull("even", max_messages=1_000)
        assert [message.position for message in last] == [position]


def test_blocks_that_compaction_and_retention_remove_meanwhile_are_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the listing of a folder and the copy of a file, others take its place."""
    copy_file = backups._Backup._copy_file
    random = Random(7)

    def late(self: backups._Backup, path: Path) -> None:
        if random.random() < 0.3:
            time.sleep(0.02)
        copy_file(self, path)

    monkeypatch.setattr(backups._Backup, "_copy_file", late)
    with LocalService(tmp_path / "data", **BUSY) as service, service.client() as client:
        client.create_subscription("data.n % 2 = 0", "even")
        client.create_subscription("data.n >= 0", "acked")
        with publishing(service) as done:
            while done.events < 1_000:
                time.sleep(0.01)
            known = done.events
            make_backup(DataFolder(tmp_path / "data"), tmp_path / "backup")
    with restored(tmp_path / "backup", tmp_path / "restored") as service, service.client() as client:
        service.wait_until_matched()
        even = pulled(client, "even")
        assert even == list(range(even[0], even[-1] + 1, 2)), "retention removes the oldest only"
        assert even[-1] >= known - 2


def test_a_block_that_is_not_written_yet_is_no_gap_though_later_ones_are(tmp_path: Path) -> None:
    """Tasks that share the log write later blocks first: the first records were never matched."""
    folder = DataFolder(tmp_path / "data")
    with LocalService(folder.root) as service, service.client() as client:
        client.create_subscription("data.n >= 0", "all")
        for n in range(2):
            client.publish_many(numbered(range(n, n + 1)))
            service.wait_until_matched()
    first, *_ = sorted(folder.matches.rglob("*.arrow"))
    first.unlink()
    make_backup(folder, tmp_path / "backup")
    with restored(tmp_path / "backup", tmp_path / "restored") as service, service.client() as client:
        service.wait_until_matched()
        assert pulled(client, "all") == [0, 1]


def test_a_backup_shares_unchanged_files_with_an_earlier_one(tmp_path: Path) -> None:
    with LocalService(tmp_path / "data") as service, service.client() as client:
        client.create_subscription("data.n >= 0", "all")
        for n in range(5):
            client.publish_many(numbered(range(n, n + 1)))
            service.wait_until_matched()
        make_backup(DataFolder(tmp_path / "data"), tmp_path / "one")
        client.publish_many(numbered(range(5, 6)))
        service.wait_until_matched()
        second = make_backup(DataFolder(tmp_path / "data"), tmp_path / "two", tmp_path / "one")
    assert second.shared_bytes > 0
    shared = [
        name
        for name in second.manifest.files
        if (tmp_path / "one" / name).exists()
        and os.path.samefile(tmp_path / "one" / name, tmp_path / "two" / name)
    ]
    assert shared and all(name.startswith(("matches/", "logs/")) for name in shared)
    shutil.rmtree(tmp_path / "one")
    assert list(check_backup(tmp_path / "two")) == []
    with restored(tmp_path / "two", tmp_path / "restored") as service, service.client() as client:
        assert pulled(client, "all") == [*range(6)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of a service with some events."""
    folder = tmp_path_factory.mktemp("small")
    with LocalService(folder / "data") as service, service.client() as client:
        client.create_subscription("data.n >= 0", "all")
        client.publish_many(numbered(range(3)))
        service.wait_until_matched()
    make_backup(DataFolder(folder / "data"), folder / "backup")
    return folder / "backup"


def test_the_backup_of_a_stopped_service_is_restored(small: Path, tmp_path: Path) -> None:
    with restored(small, tmp_path / "restored") as service, service.client() as client:
        service.wait_until_matched()
        assert pulled(client, "all") == [0, 1, 2]


def test_a_changed_or_missing_file_is_named_and_nothing_is_restored(small: Path, tmp_path: Path) -> None:
    for name in read_manifest(small).files:
        copy = tmp_path / "copy"
        shutil.copytree(small, copy)
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content)
        assert list(check_backup(copy)) == [f"{copy / name} has changed since the backup"]
        with pytest.raises(BackupError, match=f"{name} has changed since the backup"):
            restore_backup(copy, tmp_path / "restored")
        (copy / name).unlink()
        assert f"{copy / name} cannot be read" in next(check_backup(copy))
        with pytest.raises(BackupError, match=name):
            restore_backup(copy, tmp_path / "restored")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["copy"]
        shutil.rmtree(copy)


def test_a_folder_without_a_backup_is_refused(small: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BackupError, match=r"empty is not a backup: it has no backup\.json"):
        restore_backup(tmp_path / "empty", tmp_path / "to")
    copy = tmp_path / "copy"
    shutil.copytree(small, copy)
    text = (copy / MANIFEST).read_bytes()
    (copy / MANIFEST).write_bytes(text.replace(b'"format":1', b'"format":7'))
    with pytest.raises(BackupError, match=f"{MANIFEST} cannot be used: it does not match its checksum"):
        restore_backup(copy, tmp_path / "to")
    for evil in ("../outside", "/outside", "a/../../outside"):
        manifest = read_manifest(small)
        files = {evil: next(iter(manifest.files.values()))}
        backups.write_checked(copy / MANIFEST, backups.Manifest(1, files, 0))
        with pytest.raises(BackupError, match="names a file outside the backup"):
            restore_backup(copy, tmp_path / "to")
    backups.write_checked(copy / MANIFEST, backups.Manifest(7, {}, 0))
    with pytest.raises(BackupError, match="has format 7; this version reads format 1"):
        restore_backup(copy, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_existing_folders_are_left_alone(small: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("mine")
    with pytest.raises(BackupError, match="kept exists already"):
        make_backup(DataFolder(small), tmp_path / "kept")
    with pytest.raises(BackupError, match="inside is in the data directory"):
        make_backup(DataFolder(tmp_path / "kept"), tmp_path / "kept" / "inside")
    with pytest.raises(BackupError, match="kept is not empty"):
        restore_backup(small, tmp_path / "kept")
    assert (tmp_path / "kept" / "file").read_text() == "mine"
    (tmp_path / "new").mkdir()
    restore_backup(small, tmp_path / "new")
    assert (tmp_path / "new" / "registry.db").exists()


def test_the_backup_of_a_folder_without_a_service_does_not_succeed(small: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with pytest.raises(BackupError, match=r"not the data directory of a service: it has no registry\.db"):
        make_backup(DataFolder(tmp_path / "data"), tmp_path / "backup")
    restore_backup(small, tmp_path / "restored")
    (tmp_path / "restored" / "log.db").unlink()
    with pytest.raises(BackupError, match=r"it has no log\.db"):
        make_backup(DataFolder(tmp_path / "restored"), tmp_path / "backup")


def test_a_link_to_nothing_or_a_pipe_does_not_keep_a_backup_from_ending(small: Path, tmp_path: Path) -> None:
    restore_backup(small, tmp_path / "data")
    folder = tmp_path / "data" / "quarantine"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "nothing")
    os.mkfifo(folder / "pipe")
    (folder / "zero").symlink_to("/dev/zero")
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).touch()
    (folder / "a\nb").touch()
    copied = make_backup(DataFolder(tmp_path / "data"), tmp_path / "backup")
    assert [name for name in copied.manifest.files if "quarantine" in name] == ["quarantine/a\nb"]
    assert list(check_backup(tmp_path / "backup")) == []


def test_a_folder_that_was_moved_to_another_disk_is_copied(small: Path, tmp_path: Path) -> None:
    """A link in place of a folder of matches was passed over, and the backup held no matches."""
    data, elsewhere = tmp_path / "data", tmp_path / "disk"
    shutil.copytree(small, data)
    (data / "matches" / "0000").rename(elsewhere)
    (data / "matches" / "0000").symlink_to(elsewhere)
    (elsewhere / "round").symlink_to(data / "matches")
    make_backup(DataFolder(data), tmp_path / "backup")
    copied = {path.name for path in (tmp_path / "backup" / "matches" / "0000").iterdir()}
    assert copied and copied == {path.name for path in elsewhere.iterdir()} - {"round"}


@pytest.mark.parametrize("name", ["registry.db", "log.db", "delayed.db"])
def test_a_database_that_cannot_be_copied_is_named(small: Path, tmp_path: Path, name: str) -> None:
    restore_backup(small, tmp_path / "data")
    (tmp_path / "data" / name).write_bytes(b"no database" * 1000)
    with pytest.raises(BackupError, match=rf"{name} cannot be"):
        make_backup(DataFolder(tmp_path / "data"), tmp_path / "backup")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_two_backups_or_restores_at_once_do_not_mix(small: Path, tmp_path: Path) -> None:
    restore_backup(small, tmp_path / "data")
    (tmp_path / "killed.partial").mkdir()
    (tmp_path / "killed.partial" / "foreign").touch()
    with backups._new_folder(tmp_path / "killed") as partial:
        assert list(partial.iterdir()) == []
        (partial / "mine").touch()
        with pytest.raises(BackupError, match=r"another process is writing .*killed\.partial"):
            make_backup(DataFolder(tmp_path / "data"), tmp_path / "killed")
        with pytest.raises(BackupError, match=r"another process is writing .*killed\.partial"):
            restore_backup(small, tmp_path / "killed")
    assert [path.name for path in (tmp_path / "killed").iterdir()] == ["mine"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "killed"]


def test_a_link_to_an_empty_folder_is_restored_where_it_leads(small: Path, tmp_path: Path) -> None:
    (tmp_path / "disk" / "data").mkdir(parents=True)
    (tmp_path / "data").symlink_to(tmp_path / "disk" / "data")
    restore_backup(small, tmp_path / "data")
    assert (tmp_path / "data").is_symlink()
    assert (tmp_path / "disk" / "data" / "registry.db").exists()


def test_a_mount_point_is_refused_before_anything_is_copied(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "volume").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "volume")
    monkeypatch.setattr(backups, "_copy", None)
    with pytest.raises(BackupError, match=r"volume is a mount point, .*: name a new directory in it"):
        restore_backup(small, tmp_path / "volume")


def test_a_file_that_an_earlier_backup_has_lost_is_copied(small: Path, tmp_path: Path) -> None:
    restore_backup(small, tmp_path / "data")
    make_backup(DataFolder(tmp_path / "data"), tmp_path / "one")
    blocks = sorted((tmp_path / "one" / "matches").rglob("*"))
    (cut,) = (path for path in blocks if path.is_file())
    cut.write_bytes(cut.read_bytes()[:-1])
    make_backup(DataFolder(tmp_path / "data"), tmp_path / "two", tmp_path / "one")
    assert list(check_backup(tmp_path / "two")) == []


def test_a_backup_that_fails_leaves_nothing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restore_backup(small, tmp_path / "data")

    def full(*_: object) -> tuple[int, int]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backups, "_copy", full)
    with pytest.raises(BackupError, match=r"backup cannot be made: .*No space left"):
        make_backup(DataFolder(tmp_path / "data"), tmp_path / "backup")
    with pytest.raises(BackupError, match=r"other cannot be restored from .*No space left"):
        restore_backup(small, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_owners_and_labels_are_in_a_backup_and_found_after_a_restore(tmp_path: Path) -> None:
    with LocalService(tmp_path / "data") as service, service.client() as client:
        client.create_subscription("true", "a", owner="ann", labels={"env": "prod", "team": "pay"})
        client.create_subscription("true", "b", labels={"env": "prod"})
        client.configure_subscription("b", labels={"env": "test"})
        make_backup(DataFolder(tmp_path / "data"), tmp_path / "backup")
    check_backup(tmp_path / "backup")
    with restored(tmp_path / "backup", tmp_path / "restored") as service, service.client() as client:
        (found,) = client.subscriptions(owner="ann", labels={"env": None})
        assert (found.id, found.labels) == ("a", {"env": "prod", "team": "pay"})
        assert [each.id for each in client.subscriptions(labels={"env": "test"})] == ["b"]
