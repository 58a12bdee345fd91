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
        self._number = -1
        self._parts: dict[str, Part] = {}
        self._indexes: dict[str, Index] = {}

    def indexes(self, number: int, revision: int) -> Mapping[str, Index]:
        """The indexes of all spaces for a batch that was planned with this manifest and revision.

        A batch that is matched again after a restart may name a manifest that is no longer there. Any later
        one will do as well: it covers the revision, and it keeps every version that counts for a record that
        Spark has not committed yet, which are all that can still be asked for.
        """
        if number == self._number:
            return self._indexes
        for attempt in range(1, OPEN_TRIES + 1):
            try:
                self._open(self._manifest(number, revision))
            except (OSError, IndexFileError):
                # The files of an old manifest may go while it is being opened; there is a newer one then.
                if attempt == OPEN_TRIES:
                    raise
                continue
            break
        self._number = number
        return self._indexes

    def _manifest(self, number: int, revision: int) -> Manifest:
        with suppress(IndexStoreError):
            return self._store.manifest(number)
        newest = self._store.newest()
        if newest is None or newest.revision < revision:
            raise RuntimeError(f"there is no index that covers registry revision {revision}")
        return newest

    def _open(self, manifest: Manifest) -> None:
        parts: dict[str, Part] = {}
        indexes: dict[str, Index] = {}
        for space, files in manifest.spaces.items():
            for name in part_names(files):
                parts[name] = self._parts.get(name) or Part.open(self._store.path(name))
            closings = Closings.open(self._store.path(files.closings)) if files.closings else Closings()
            indexes[space] = Index(tuple(parts[name] for name in part_names(files)), closings)
        self._parts, self._indexes = parts, indexes


def part_names(files: SpaceManifest) -> list[str]:
    """The part files of a space, the snapshot first."""
    return [*([files.snapshot] if files.snapshot else []), *files.deltas]
