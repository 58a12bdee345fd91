"""Index files and manifests: the contract of an index store, for every implementation, and files."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from memory_matches import MemoryIndexStore

from fieldfare.pipeline.manifest import (
    Manifest,
    SliceManifest,
    Snapshot,
    SpaceManifest,
    decode_manifest,
    encode_manifest,
)
from fieldfare.storage import IndexStore, open_index_store
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.files.index_store import FileIndexStore


@pytest.fixture(params=["files", "memory"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> IndexStore:
    return MemoryIndexStore() if request.param == "memory" else FileIndexStore(tmp_path / "index")


@pytest.fixture
def store(tmp_path: Path) -> FileIndexStore:
    return FileIndexStore(tmp_path / "index")


def write(store: IndexStore, *names: str) -> None:
    for name in names:
        store.path(name).parent.mkdir(parents=True, exist_ok=True)
        store.path(name).write_bytes(b"part")


def manifest(number: int, snapshot: str | None, *deltas: str, closings: str | None = None) -> Manifest:
    built = Snapshot(snapshot, 3) if snapshot else None
    birds = SliceManifest(snapshot=built, deltas=deltas, closings=closings)
    return Manifest(number, number * 10, {"birds": SpaceManifest((birds,))})


def test_a_manifest_reads_back_from_its_json() -> None:
    birds = SliceManifest(2, "plain", Snapshot("s", 4000), ("d1", "d2"), "c", 40)
    written = Manifest(7, 4711, {"birds": SpaceManifest((birds,)), "ants": SpaceManifest()})
    assert decode_manifest(encode_manifest(written)) == written
    assert written.files() == {"s", "d1", "d2", "c"}
    assert written.snapshot_revision == 4000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":3}',
        b'{"format":2,"number":1}',
        b'{"format":1,"number":1}',
        encode_manifest(manifest(1, "s"))[:-9],
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="manifest"):
        decode_manifest(data)


def test_the_newest_manifest_is_found(any_store: IndexStore) -> None:
    assert (any_store.newest(), any_store.greatest_number()) == (None, 0)
    write(any_store, "a", "b")
    any_store.write_manifest(manifest(1, "a"))
    any_store.write_manifest(manifest(20, "a", "b"))
    assert (any_store.newest(), any_store.greatest_number()) == (manifest(20, "a", "b"), 20)
    assert any_store.manifest(1) == manifest(1, "a")
    with pytest.raises(IndexStoreError):
        any_store.manifest(2)


def test_a_file_can_be_mapped_where_the_store_says(any_store: IndexStore) -> None:
    assert not any_store.path("a").exists()
    write(any_store, "a")
    assert any_store.path("a").read_bytes() == b"part"
    any_store.write_manifest(manifest(1, None))
    any_store.collect(keep_from=1)
    assert not any_store.path("a").exists()


def test_the_newest_manifest_is_found_also_by_another_process(store: FileIndexStore) -> None:
    assert store.newest() is None
    write(store, "a", "b")
    store.write_manifest(manifest(1, "a"))
    store.write_manifest(manifest(20, "a", "b"))
    assert pickle.loads(pickle.dumps(store)).newest() == manifest(20, "a", "b")
    assert store.manifest(1) == manifest(1, "a")


def test_a_manifest_is_never_replaced_and_names_only_files_that_are_there(any_store: IndexStore) -> None:
    write(any_store, "a")
    any_store.write_manifest(manifest(5, "a"))
    for number in (4, 5):
        with pytest.raises(IndexStoreError, match="manifest 5 was written before"):
            any_store.write_manifest(manifest(number, "a"))
    with pytest.raises(IndexStoreError, match="b, which is not there"):
        any_store.write_manifest(manifest(6, "a", "b"))
    assert any_store.newest() == manifest(5, "a")


def test_collecting_removes_what_no_manifest_kept_names(store: FileIndexStore) -> None:
    write(store, "a", "b", "c", "d", "stray")
    store.write_manifest(manifest(1, "a", "b"))
    store.write_manifest(manifest(2, "c", closings="b"))
    store.write_manifest(manifest(3, "c", "d"))
    assert store.collect(keep_from=2) == 2
    assert {path.name for path in (store.folder / "files").iterdir()} == {"b", "c", "d"}
    with pytest.raises(IndexStoreError, match=r"000000000001\.json"):
        store.manifest(1)
    assert store.manifest(2) == manifest(2, "c", closings="b")
    assert store.collect(keep_from=99) == 1
    assert store.newest() == manifest(3, "c", "d")


def test_collecting_again_reads_only_the_manifests_that_are_new(
    store: FileIndexStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    manifest_of = store.manifest
    monkeypatch.setattr(store, "manifest", lambda number: read.append(number) or manifest_of(number))
    for number, name in enumerate("abcd", 1):
        write(store, name)
        store.write_manifest(manifest(number, name))
        store.collect(keep_from=number - 1)
    assert read == [1, 2, 3, 4]
    assert {path.name for path in (store.folder / "files").iterdir()} == {"c", "d"}


def test_collecting_leaves_the_files_alone_while_a_manifest_that_it_keeps_cannot_be_read(
    store: FileIndexStore,
) -> None:
    """Nobody knows which of them that one needs; the older manifests go all the same, broken or not."""
    write(store, "a", "b", "c")
    for number, name in enumerate("abc", 1):
        store.write_manifest(manifest(number, name))
    for number in (1, 2):
        (store.folder / "manifests" / f"{number:012d}.json").write_bytes(b"")
    with pytest.raises(IndexStoreError, match=r"000000000002\.json is broken"):
        store.collect(keep_from=2)
    assert {path.name for path in (store.folder / "files").iterdir()} == {"a", "b", "c"}
    assert [path.name for path in sorted((store.folder / "manifests").iterdir())] == [
        "000000000002.json",
        "000000000003.json",
    ]
    assert store.collect(keep_from=3) == 2
    assert store.newest() == manifest(3, "c")


def test_the_number_of_a_broken_manifest_is_not_free(store: FileIndexStore) -> None:
    assert store.greatest_number() == 0
    store.write_manifest(manifest(4, None))
    (store.folder / "manifests" / "000000000004.json").write_bytes(b"")
    assert store.greatest_number() == 4
    with pytest.raises(IndexStoreError, match="manifest 4 was written before"):
        store.write_manifest(manifest(4, None))


def test_a_broken_manifest_is_named(store: FileIndexStore) -> None:
    store.write_manifest(manifest(1, None))
    path = store.folder / "manifests" / "000000000001.json"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(IndexStoreError, match=r"000000000001\.json is broken"):
        store.newest()


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".hidden", "a.tmp"])
def test_a_name_that_leaves_the_folder_is_refused(any_store: IndexStore, name: str) -> None:
    with pytest.raises(ValueError, match="not the name of an index file"):
        any_store.path(name)


def test_an_address_of_another_kind_is_refused_with_the_form_expected(tmp_path: Path) -> None:
    store = open_index_store(f"{tmp_path.as_uri()}/a%20folder")
    assert store.path("x") == tmp_path / "a folder" / "files" / "x"
    with pytest.raises(ValueError, match="the address of the index store is file:///PATH"):
        open_index_store("s3://bucket")
