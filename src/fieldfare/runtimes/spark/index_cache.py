"""The indexes that a process has mapped, by manifest: what a task needs is nearly always there already."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from fieldfare.matching.files import IndexFileError
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part
from fieldfare.matching.versions import Closings
from fieldfare.pipeline.manifest import Manifest, SpaceManifest
from fieldfare.storage import IndexStore
from fieldfare.storage.errors import IndexStoreError

OPEN_TRIES = 5


class IndexCache:
    """Opens the indexes that a manifest names; files that the last one named too stay mapped."""

    def __init__(self, store: IndexStore) -> None:
        self._store = store
        self._number = self._revision = -1
        self._parts: dict[str, Part] = {}
        self._indexes: dict[str, Index] = {}

    def indexes(self, number: int, stamp: int) -> Mapping[str, Index]:
        """The indexes of all spaces, by the manifest of a number or another one that covers a stamp.

        Any that covers it will do: it keeps every version that counts for a record that may still be matched.
        """
        if number == self._number and stamp <= self._revision:
            return self._indexes
        for attempt in range(1, OPEN_TRIES + 1):
            try:
                self._open(self._manifest(number, stamp))
            except (OSError, IndexFileError):
                # The files of an old manifest may go while it is being opened; there is a newer one then.
                if attempt == OPEN_TRIES:
                    raise
                continue
            break
        self._number = number
        return self._indexes

    def _manifest(self, number: int, stamp: int) -> Manifest:
        with suppress(IndexStoreError):
            manifest = self._store.manifest(number)
            if manifest.revision >= stamp:
                return manifest
        newest = self._store.newest()
        if newest is None or newest.revision < stamp:
            raise RuntimeError(f"there is no index that covers registry revision {stamp}")
        return newest

    def _open(self, manifest: Manifest) -> None:
        parts: dict[str, Part] = {}
        indexes: dict[str, Index] = {}
        for space, files in manifest.spaces.items():
            for name in part_names(files):
                parts[name] = self._parts.get(name) or Part.open(self._store.path(name))
            closings = Closings.open(self._store.path(files.closings)) if files.closings else Closings()
            indexes[space] = Index(tuple(parts[name] for name in part_names(files)), closings)
        self._parts, self._indexes, self._revision = parts, indexes, manifest.revision


def part_names(files: SpaceManifest) -> list[str]:
    """The part files of a space, the snapshot first."""
    return [*([files.snapshot] if files.snapshot else []), *files.deltas]
