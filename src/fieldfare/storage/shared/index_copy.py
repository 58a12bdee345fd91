"""A copy of the index store that other machines can read, written by the process that writes the store.

    manifests/000000000007.json      the manifest, and for each file that it names the name of its copy
    files/delta-7-0.part.3f2a...     a file of the index: its own name, followed by a hash of its content

A manifest is copied before it becomes valid in the store itself, and after its files. So every machine can
open a manifest that is in the store. The name of a copy identifies its content: a machine that has a file of
that name need not fetch it again, even after an index was lost and built again from number 1.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import msgspec

from fieldfare.pipeline.manifest import Manifest, decode_manifest, encode_manifest
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.index_store import IndexStore
from fieldfare.storage.shared.address import SharedAddress
from fieldfare.storage.shared.cache import FileCache
from fieldfare.storage.shared.files import SharedFiles

LOOK_AGAIN_S = 30.0
"""Seconds between two checks of the writer that the copy is complete: files may have been removed from it."""

_SUM_CHARACTERS = 32
_MANIFESTS = "manifests"
_FILES = "files"


class _CopiedManifest(msgspec.Struct):
    files: dict[str, str]
    manifest: msgspec.Raw


class CopiedIndexStore:
    """An `IndexStore` that also copies its files to an address; for the process that writes it.

    Parameters
    ----------
    store
        The store on the service's own machine, from which files are read.
    address
        Address of the copy.
    """

    def __init__(self, store: IndexStore, address: SharedAddress) -> None:
        self._store = store
        self._copies = SharedFiles(address)
        self._manifests: set[int] = set()
        self._looked_s: float | None = None
        self._there: set[str] = set()
        self._called: dict[str, tuple[int, str]] = {}

    def path(self, name: str) -> Path:
        return self._store.path(name)

    def write_manifest(self, manifest: Manifest) -> None:
        self._copy(manifest)
        self._store.write_manifest(manifest)

    def manifest(self, number: int) -> Manifest:
        return self._store.manifest(number)

    def newest(self) -> Manifest | None:
        """Return the store's newest manifest; every `LOOK_AGAIN_S`, restore its copy if it is incomplete."""
        newest = self._store.newest()
        if newest is not None and self._look(LOOK_AGAIN_S) and not self._is_copied(newest):
            self._copy(newest)
        return newest

    def greatest_number(self) -> int:
        self._look()
        return max(self._store.greatest_number(), max(self._manifests, default=0))

    def collect(self, keep_from: int) -> int:
        removed = self._store.collect(keep_from)
        newest = self._store.newest()
        if newest is None:
            return removed
        self._look()
        gone = {each for each in self._manifests if each < keep_from} - {newest.number}
        for number in sorted(gone):
            self._copies.remove(_manifest_name(number))
            self._manifests.discard(number)
        kept = [self._store.manifest(number) for number in sorted(self._manifests)]
        named = {name for manifest in kept for name in manifest.files()}
        needed = {self._name_of(name) for name in named}
        for copy in sorted(self._there - needed):
            self._copies.remove(f"{_FILES}/{copy}")
            self._there.discard(copy)
        self._called = {name: each for name, each in self._called.items() if name in named}
        return removed

    def _look(self, again_after_s: float = float("inf")) -> bool:
        """List the copy on the first call, and again after some seconds; return whether it was listed now."""
        now_s = time.monotonic()
        if self._looked_s is not None and now_s - self._looked_s < again_after_s:
            return False
        self._manifests = _numbers(self._copies)
        self._there = set(self._copies.names(_FILES))
        self._looked_s = now_s
        return True

    def _is_copied(self, manifest: Manifest) -> bool:
        return manifest.number in self._manifests and all(
            self._name_of(name) in self._there for name in manifest.files()
        )

    def _copy(self, manifest: Manifest) -> None:
        self._look()
        files = {}
        for name in sorted(manifest.files()):
            files[name] = copy = self._name_of(name)
            if copy not in self._there:
                self._copies.put(f"{_FILES}/{copy}", self._store.path(name))
                self._there.add(copy)
        encoded = msgspec.json.encode(_CopiedManifest(files, msgspec.Raw(encode_manifest(manifest))))
        self._copies.put_bytes(_manifest_name(manifest.number), encoded)
        self._manifests.add(manifest.number)

    def _name_of(self, name: str) -> str:
        """Return the name of a file's copy."""
        path = self._store.path(name)
        try:
            inode = path.stat().st_ino
            known = self._called.get(name)
            if known is None or known[0] != inode:
                known = self._called[name] = inode, f"{name}.{_sum_of(path)}"
        except OSError as error:
            raise IndexStoreError(f"{path} could not be read: {error}") from error
        return known[1]


class IndexCopy:
    """An `IndexSource` that reads a copy of the index through a cache on this machine's disk."""

    def __init__(self, address: SharedAddress, cache: FileCache | None = None) -> None:
        self._address = address
        self._copies = SharedFiles(address)
        self._cache = cache or FileCache.of_this_machine(address.cache_bytes)
        self._called: dict[str, str] = {}

    def path(self, name: str) -> Path:
        """Return the local path of a file of the last manifest that was read; fetch it if it is missing.

        Raises
        ------
        FileNotFoundError
            The file belongs to an older manifest, or was removed with it.
        """
        copy = self._called.get(name)
        if copy is None:
            raise FileNotFoundError(f"{name} is not a file of the current index in {self._address.place}")

        def fetch(path: Path) -> None:
            self._copies.fetch(f"{_FILES}/{copy}", path)
            if not copy.endswith(_sum_of(path)):
                raise OSError(
                    f"{self._address.place}/{_FILES}/{copy} does not match the checksum in its name"
                )

        try:
            return self._cache.path(copy, fetch, self._called.values())
        except IndexStoreError as error:
            raise FileNotFoundError(str(error)) from error

    def manifest(self, number: int) -> Manifest:
        name = _manifest_name(number)
        try:
            copied = msgspec.json.decode(self._copies.get_bytes(name), type=_CopiedManifest)
            manifest = decode_manifest(bytes(copied.manifest))
        except (msgspec.DecodeError, ValueError) as error:
            raise IndexStoreError(f"{self._address.place}/{name} is broken: {error}") from error
        if manifest.number != number or copied.files.keys() != manifest.files():
            raise IndexStoreError(
                f"{self._address.place}/{name} is broken: it holds the data of another file"
            )
        self._called = copied.files
        return manifest

    def newest(self) -> Manifest | None:
        while True:
            numbers = _numbers(self._copies)
            if not numbers:
                return None
            try:
                return self.manifest(max(numbers))
            except IndexStoreError:
                if max(_numbers(self._copies), default=-1) == max(numbers):
                    raise


def _manifest_name(number: int) -> str:
    return f"{_MANIFESTS}/{number:012d}.json"


def _numbers(copies: SharedFiles) -> set[int]:
    stems = (name.removesuffix(".json") for name in copies.names(_MANIFESTS) if name.endswith(".json"))
    return {int(stem) for stem in stems if stem.isdecimal()}


def _sum_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:_SUM_CHARACTERS]
