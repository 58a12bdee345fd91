"""The index store in a folder of files.

The folder contains ``manifests/NUMBER.json`` and ``files/NAME``. Both kinds of files are written under a
temporary name, synced and renamed, a manifest after the files that it names.
"""

from __future__ import annotations

import os
from pathlib import Path

from fieldfare.files import TEMPORARY_SUFFIX, remove_abandoned, write_file
from fieldfare.pipeline.manifest import Manifest, decode_manifest, encode_manifest
from fieldfare.storage.errors import IndexStoreError


class FileIndexStore:
    """An `IndexStore` in a folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self._manifests = self.folder / "manifests"
        self._files = self.folder / "files"
        self._named: dict[int, frozenset[str]] = {}
        """The files named by each manifest that `collect` has kept."""

    def __reduce__(self) -> tuple[type[FileIndexStore], tuple[str]]:
        return FileIndexStore, (str(self.folder),)

    def __repr__(self) -> str:
        return f"FileIndexStore({str(self.folder)!r})"

    def path(self, name: str) -> Path:
        if not name or name.startswith(".") or "/" in name or name.endswith(TEMPORARY_SUFFIX):
            raise ValueError(f"{name!r} is not the name of an index file")
        return self._files / name

    def write_manifest(self, manifest: Manifest) -> None:
        path = self._manifest_path(manifest.number)
        newest = max(self._numbers(), default=-1)
        if manifest.number <= newest:
            raise IndexStoreError(f"{path}: manifest {newest} was written before")
        for name in sorted(manifest.files()):
            if not self.path(name).is_file():
                raise IndexStoreError(f"{path} names {self.path(name)}, which is not there")
        try:
            write_file(path, lambda file: file.write(encode_manifest(manifest)))
        except OSError as error:
            raise IndexStoreError(f"{path} could not be written: {error}") from error

    def manifest(self, number: int) -> Manifest:
        path = self._manifest_path(number)
        try:
            manifest = decode_manifest(path.read_bytes())
        except OSError as error:
            raise IndexStoreError(f"{path} could not be read: {error}") from error
        except ValueError as error:
            raise IndexStoreError(f"{path} is broken: {error}") from error
        if manifest.number != number:
            raise IndexStoreError(f"{path} is broken: it holds manifest {manifest.number}")
        return manifest

    def newest(self) -> Manifest | None:
        while True:
            numbers = self._numbers()
            if not numbers:
                return None
            try:
                return self.manifest(max(numbers))
            except IndexStoreError:
                if max(self._numbers(), default=-1) == max(numbers):
                    raise

    def greatest_number(self) -> int:
        return max(self._numbers(), default=0)

    def collect(self, keep_from: int) -> int:
        numbers = sorted(self._numbers())
        kept = [number for number in numbers if number >= keep_from or number == numbers[-1]]
        # Manifests first: if this is interrupted, each remaining manifest still has all its files.
        for number in numbers:
            if number not in kept:
                self._manifest_path(number).unlink(missing_ok=True)
        # Cached, since manifests never change: while many subscribe, this handles hundreds every second.
        self._named = {number: self._named.get(number) or self.manifest(number).files() for number in kept}
        needed: frozenset[str] = frozenset().union(*self._named.values())
        removed = 0
        for path in list(self._files.iterdir()) if self._files.is_dir() else []:
            if path.name not in needed and not path.name.startswith("."):
                path.unlink(missing_ok=True)
                removed += 1
        remove_abandoned(self._files)
        remove_abandoned(self._manifests)
        return removed

    def _manifest_path(self, number: int) -> Path:
        return self._manifests / f"{number:012d}.json"

    def _numbers(self) -> list[int]:
        try:
            names = os.listdir(self._manifests)
        except FileNotFoundError:
            return []
        stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
        return [int(stem) for stem in stems if stem.isdecimal()]
