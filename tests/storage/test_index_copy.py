"""The shared copy of the index: what a machine without the store finds there, and caches on its disk."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from fieldfare.pipeline.manifest import Manifest, SliceManifest, SpaceManifest
from fieldfare.storage import open_index_store
from fieldfare.storage.addresses import AddressError, settle
from fieldfare.storage.errors import IndexStoreError, OtherMachineError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.shared import files
from fieldfare.storage.shared.address import SharedAddress
from fieldfare.storage.shared.cache import FileCache
from fieldfare.storage.shared.files import SharedFiles
from fieldfare.storage.shared.index_copy import CopiedIndexStore, IndexCopy
from fieldfare_lab.hadoop import HdfsCluster, why_no_hadoop
from fieldfare_lab.ports import find_free_port


class Place:
    """A service's store, the copy of it, and another machine that reads the copy."""

    def __init__(self, folder: Path, limit_bytes: int = 1 << 20, url: str | None = None) -> None:
        self.folder = folder
        self.address = SharedAddress.parse(url or (folder / "shared").as_uri())
        self.store = self.writer()
        self.cache = FileCache(folder / "cache", limit_bytes)
        self.machine = IndexCopy(self.address, self.cache)

    def writer(self) -> CopiedIndexStore:
        store = open_index_store((self.folder / "index").as_uri(), self.address.url)
        assert isinstance(store, CopiedIndexStore)
        return store

    def publish(self, number: int, **files: bytes) -> Manifest:
        """Write files, and a manifest that names them."""
        for name, content in files.items():
            if not self.store.path(name).exists():
                self.store.path(name).parent.mkdir(parents=True, exist_ok=True)
                self.store.path(name).write_bytes(content)
        one = SliceManifest(deltas=tuple(files), size=len(files))
        manifest = Manifest(number, number * 10, {"birds": SpaceManifest((one,))})
        self.store.write_manifest(manifest)
        return manifest

    def copies(self) -> set[str]:
        return {path.name.split(".")[0] for path in (self.folder / "shared" / "files").iterdir()}

    def cached(self) -> set[str]:
        return {path.name.split(".")[0] for path in self.cache.folder.iterdir()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty bucket of an S3 server: moto's, which needs a separate environment.

    Its packages do not agree with those that tests need, so it is no dependency: ``MOTO_SERVER`` names its
    program. Version 5.2.5 does; an older one could not put together what is uploaded in parts.
    """
    program = os.environ.get("MOTO_SERVER")
    if program is None:
        pytest.skip("there is no S3 server: MOTO_SERVER is to name moto_server, 5.2.5 or later")
    for name, value in (
        ("ACCESS_KEY_ID", "any"),
        ("SECRET_ACCESS_KEY", "any"),
        ("EC2_METADATA_DISABLED", "1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    port = find_free_port()
    with subprocess.Popen([program, "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL) as server:
        try:
            give_up_s = time.monotonic() + 180
            while True:
                try:
                    httpx.put(f"http://127.0.0.1:{port}/bucket").raise_for_status()
                    break
                except httpx.ConnectError:
                    assert time.monotonic() < give_up_s and server.poll() is None
                    time.sleep(0.05)
            yield f"s3://bucket/in/it?endpoint_override=127.0.0.1:{port}&region=us-east-1&scheme=http"
        finally:
            server.kill()


def check_a_copy(place: Place) -> None:
    """Do everything that is done with a copy, for a copy on another system."""
    assert place.machine.newest() is None
    place.publish(1, a=b"one")
    second = place.publish(2, a=b"one", b=b"two" * 3_000_000)
    assert place.machine.newest() == second
    assert [len(place.machine.path(name).read_bytes()) for name in "ab"] == [3, 9_000_000]
    place.publish(3, a=b"one")
    place.store = place.writer()
    assert place.store.collect(keep_from=3) == 1
    with pytest.raises(IndexStoreError, match=r"manifests/000000000002\.json"):
        place.machine.manifest(2)
    copies = SharedFiles(place.address)
    assert [name.partition(".")[0] for name in copies.names("files")] == ["a"]
    shutil.rmtree(place.cache.folder)
    assert place.machine.newest() == place.store.newest() and place.machine.path("a").read_bytes() == b"one"


def test_a_copy_in_s3(tmp_path: Path, bucket: str) -> None:
    assert settle(tmp_path / "data", None, bucket).index_copy == bucket
    with pytest.raises(AddressError, match=r"s3://none/in/it/README: .*bucket does not exist"):
        settle(tmp_path / "data", None, bucket.replace("bucket", "none"))
    check_a_copy(Place(tmp_path, url=bucket))


@pytest.mark.slow
def test_a_copy_in_hdfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real NameNode and DataNode; while the first is down nothing is taken for lost, then all goes on."""
    if (reason := why_no_hadoop()) is not None:
        pytest.skip(reason)
    with HdfsCluster() as hdfs:
        url = f"{hdfs.address}/in/it"
        with monkeypatch.context() as patched, pytest.raises(AddressError, match=r"(?i)permission denied"):
            patched.setenv("HADOOP_USER_NAME", "stranger")
            settle(tmp_path / "data", None, url)
        assert settle(tmp_path / "data", None, url).index_copy == url
        place = Place(tmp_path, url=url)
        check_a_copy(place)
        place.publish(4, a=b"one", b=b"two")
        hdfs.kill_namenode()
        with pytest.raises(IndexStoreError, match=r"in/it/manifests: .*refused"):
            place.machine.newest()
        with pytest.raises(IndexStoreError, match=r"in/it/.*refused"):
            place.publish(5, a=b"one", c=b"three")
        assert place.store.newest() == place.store.manifest(4)
        hdfs.start_namenode()
        fifth = place.publish(5, a=b"one", c=b"three")
        assert place.machine.newest() == fifth and place.machine.path("c").read_bytes() == b"three"


def test_what_hdfs_needs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AddressError, match="HADOOP_USER_NAME"):
        settle(tmp_path / "data", None, "hdfs://me@127.0.0.1:9/in/it")
    with pytest.raises(AddressError, match=r"hdfs://nobody/in/it/README: .*NameNode"):
        settle(tmp_path / "data", None, "hdfs://nobody/in/it")
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    with pytest.raises(AddressError, match=r"pip install 'fieldfare\[hdfs\]'"):
        settle(tmp_path / "data", None, "hdfs://127.0.0.1:9/in/it")


def test_another_machine_opens_what_the_store_has(place: Place) -> None:
    assert place.machine.newest() is None
    first = place.publish(1, a=b"one")
    second = place.publish(2, a=b"one", b=b"two")
    assert place.machine.newest() == second
    assert [place.machine.path(name).read_bytes() for name in "ab"] == [b"one", b"two"]
    assert pickle.loads(pickle.dumps(IndexCopy(place.address))).manifest(1) == first
    with pytest.raises(IndexStoreError, match=r"manifests/000000000003\.json"):
        place.machine.manifest(3)


def test_a_file_is_fetched_once_by_all_processes_of_a_machine(place: Place) -> None:
    place.publish(1, a=b"one")
    place.machine.newest()
    path = place.machine.path("a")
    shutil.rmtree(place.folder / "shared" / "files")
    assert place.machine.path("a") == path
    other = IndexCopy(place.address, place.cache)
    other.newest()
    assert other.path("a").read_bytes() == b"one"


def test_a_manifest_counts_only_when_its_files_are_copied(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planner that uses the store's newest manifest plans for machines that only have the copy."""
    place.publish(1, a=b"one")

    def fail(*_: object) -> None:
        raise IndexStoreError("the bucket is gone")

    with monkeypatch.context() as broken:
        broken.setattr("fieldfare.storage.shared.files.SharedFiles.put", fail)
        with pytest.raises(IndexStoreError, match="the bucket is gone"):
            place.publish(2, a=b"one", b=b"two")
    assert [place.store.newest().number, place.machine.newest().number] == [1, 1]
    place.store = place.writer()  # as after a kill
    place.publish(2, a=b"one", b=b"two")
    assert place.machine.newest() == place.store.newest()


def test_what_is_removed_from_the_store_goes_from_the_copy(place: Place) -> None:
    place.publish(1, a=b"one", b=b"two")
    place.publish(2, b=b"two", c=b"three")
    (place.folder / "shared" / "files" / "stray.0").write_bytes(b"")
    place.store = place.writer()
    assert place.store.collect(keep_from=2) == 1
    assert place.copies() == {"b", "c"}
    with pytest.raises(IndexStoreError):
        place.machine.manifest(1)
    assert place.machine.newest() == place.store.newest()


def test_a_rebuilt_index_is_not_mistaken_for_the_lost_one(place: Place) -> None:
    """Manifests and files are numbered from 1 on again, and machines have files of the same names."""
    place.publish(1, a=b"one")
    place.machine.newest()
    assert place.machine.path("a").read_bytes() == b"one"
    shutil.rmtree(place.folder / "index")
    assert place.writer().greatest_number() == 1
    shutil.rmtree(place.folder / "shared")
    place.store = place.writer()
    place.publish(1, a=b"another")
    assert place.machine.newest() == place.store.newest()
    assert place.machine.path("a").read_bytes() == b"another"


def test_removed_files_are_copied_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.publish(1, a=b"one", b=b"two")
    for gone in ("files", "manifests"):
        shutil.rmtree(place.folder / "shared" / gone)
        assert place.store.newest() is not None and not (place.folder / "shared" / gone).exists()
        with monkeypatch.context() as later:
            later.setattr("fieldfare.storage.shared.index_copy.LOOK_AGAIN_S", 0.0)
            place.store.newest()
        place.machine.newest()
        assert place.machine.path("b").read_bytes() == b"two"


def test_a_copy_that_does_not_hold_what_it_should_is_not_used(place: Place) -> None:
    place.publish(1, a=b"one")
    (copy,) = (place.folder / "shared" / "files").iterdir()
    copy.write_bytes(b"oNe")
    place.machine.newest()
    with pytest.raises(OSError, match="does not match the checksum in its name"):
        place.machine.path("a")
    assert place.cached() == set()


def test_the_cache_forgets_what_was_not_used_for_longest(tmp_path: Path) -> None:
    place = Place(tmp_path, limit_bytes=250)
    for number, name in enumerate("abcd", 1):
        place.publish(number, **{name: name.encode() * 100})
        place.machine.manifest(number)
        path = place.machine.path(name)
        os.utime(path, (number, number))
    assert place.cached() == {"c", "d"}
    # The files of one manifest are never too many for the cache.
    place.publish(5, e=b"e" * 200, f=b"f" * 200)
    place.machine.manifest(5)
    assert [len(place.machine.path(name).read_bytes()) for name in "ef"] == [200, 200]
    assert place.cached() == {"e", "f"}
    place.machine.manifest(4)
    with pytest.raises(FileNotFoundError, match="e is not a file of the current index"):
        place.machine.path("e")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "file:///PATH"),
        ("/mnt/index", "file:///PATH"),
        ("file://mnt/index", "a folder's whole path"),
        ("ftp://host/path", "s3://BUCKET/PATH"),
        ("s3://", "s3://BUCKET/PATH"),
        ("s3://key:secret@bucket/path", "without a password"),
        ("ftp://key:secret@host/path", "without a password"),
        ("s3://bucket/path?secret_key=secret", "without a password"),
        ("s3://bucket/path?cache_bytes=none", "cache_bytes is a number"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(AddressError) as refused:
        settle(tmp_path, None, url)
    assert said in str(refused.value) and "secret@" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_an_address_reads_back_with_its_options() -> None:
    url = "s3://bucket/path?endpoint_override=127.0.0.1:9000&scheme=http&cache_bytes=5"
    address = SharedAddress.parse(url)
    assert (address.url, address.cache_bytes) == (url, 5)
    assert address.opened == url.removesuffix("&cache_bytes=5")
    assert SharedAddress.parse("file:///a?cache_bytes=7").url == "file:///a?cache_bytes=7"
    assert SharedAddress.parse("file:///a/").url == "file:///a"


def test_where_the_copy_is_is_noted_and_found_again(tmp_path: Path) -> None:
    data, shared, other = tmp_path / "data", tmp_path / "shared", tmp_path / "other"
    folder = settle(data, None, shared.as_uri())
    assert folder.index_copy == shared.as_uri() and folder.log is None
    assert DataFolder.at(data) == folder == settle(data, None) == settle(data, None, shared.as_uri())
    assert settle(data, None, other.as_uri()).index_copy == other.as_uri() == DataFolder.at(data).index_copy


def test_the_copy_is_where_it_can_be_written_and_not_in_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(AddressError, match="the index cannot be copied to"):
        settle(tmp_path / "data", None, (tmp_path / "file" / "index").as_uri())
    with pytest.raises(AddressError, match="is in the data directory"):
        settle(tmp_path / "data", None, (tmp_path / "data" / "copy").as_uri())
    assert not (tmp_path / "data").exists()


def test_a_task_on_another_machine_opens_no_file_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An SQLite log in a network folder seems to work, but gets corrupted: it is refused, not read."""
    here = DataFolder(tmp_path).for_tasks()
    assert here.log_url == DataFolder(tmp_path).log_url
    monkeypatch.setattr("fieldfare.storage.folder._this_machine", lambda: "another")
    for opened in ("log_url", "matches_url", "index_url"):
        with pytest.raises(OtherMachineError, match="a file on another machine"):
            getattr(here, opened)
    away = DataFolder(
        tmp_path,
        "kafka://b:9092/t",
        "kafka://b:9092/t.matches",
        index_copy=(tmp_path / "shared").as_uri(),
        machine="first",
    )
    assert (away.log_url, away.matches_url) == ("kafka://b:9092/t", "kafka://b:9092/t.matches")
    assert isinstance(away.open_index(), IndexCopy)
    assert away.scratch.is_dir() and tmp_path not in away.scratch.parents
