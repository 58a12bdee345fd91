"""A process's mapped indexes, by manifest: nearly always the index that a task needs is mapped already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from fieldfare.matching.files import IndexFileError
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part
from fieldfare.matching.versions import Closings
from fieldfare.pipeline.manifest import Manifest, SliceManifest
from fieldfare.pipeline.slices import Slices
from fieldfare.storage import IndexSource, MatchPartition
from fieldfare.storage.errors import IndexStoreError

OPEN_TRIES = 5
T = TypeVar("T")


Parts = dict[tuple[str, int], Part]
"""Mapped parts, by file name and inode.

An inode is not reused while its file is mapped; a name may be, if an index is lost and rebuilt.
"""


def slice_opener(
    path_of: Callable[[str], Path], parts: Parts | None = None
) -> Callable[[SliceManifest], Index]:
    """Return a function that opens the index of a slice, for `Slices`.

    Parameters
    ----------
    path_of
        Returns the path of an index file, by its name.
    parts
        Parts that are already mapped; newly opened ones are added.
    """
    known: Parts = parts if parts is not None else {}

    def open_part(name: str) -> Part:
        path = path_of(name)
        key = name, path.stat().st_ino
        # Verified here because nothing else reads an old file completely; it takes 0.3 s for a gigabyte.
        return known.get(key) or known.setdefault(key, Part.open(path, verify=True))

    def open_index(files: SliceManifest) -> Index:
        closings = Closings.open(path_of(files.closings)) if files.closings else Closings()
        return Index([open_part(name) for name in files.parts], closings)

    return open_index


class IndexCache:
    """Opens the indexes that a manifest names; files that the previous one named too stay mapped.

    Parameters
    ----------
    store : IndexSource
    every_slice : bool
        Open all slices at once; otherwise each one on first use.
    """

    def __init__(self, store: IndexSource, *, every_slice: bool = True) -> None:
        self._store = store
        self._every_slice = every_slice
        self._number = self._opened = self._revision = -1
        self._parts: Parts = {}
        self._indexes: dict[str, Slices] = {}

    def indexes(self, number: int, stamp: int) -> Mapping[str, Slices]:
        """Return the indexes of all spaces, by a manifest's number or a newer manifest that covers a stamp.

        Any one that covers it will do: it keeps every version that is valid for a record that may still be
        matched. A task that is so late that its manifest was removed has to call `check_unmatched`.
        """
        if number == self._number and stamp <= self._revision:
            return self._indexes
        self._retried(lambda: self._open(self._manifest(number, stamp)))
        self._number = number
        return self._indexes

    def covering(self, stamp: int) -> int | None:
        """Return the number of an opened manifest that covers a stamp; None if there is none yet."""
        if self._revision < stamp:
            newest = self._store.newest()
            if newest is None or newest.revision < stamp:
                return None
            self.indexes(newest.number, stamp)
        return self._opened

    def open_newest(self) -> None:
        """Open the newest manifest, if it is not the one that is open."""
        newest = self._store.newest()
        if newest is not None and newest.number != self._number:
            self.indexes(newest.number, newest.revision)

    def slices(self, number: int, stamp: int, space: str, wanted: Iterable[int], cut: int) -> Slices | None:
        """Return a space's slices with those `wanted` opened; None if the space has no index.

        A slice that is opened late may have been removed, with its manifest: then a newer manifest's slice is
        used, because slices of the same cut hold the same subscriptions.

        Raises
        ------
        IndexStoreError
            The space was cut again since: its slices hold other subscriptions now.
        """
        numbers = tuple(wanted)

        def opened() -> Slices | None:
            found = self.indexes(number, stamp).get(space)
            if found is not None and found.cut != cut:
                raise IndexStoreError(f"space {space} was partitioned again while a batch was matched")
            return found.open(numbers) if found is not None else None

        return self._retried(opened)

    def open_slices(self, number: int, wanted: Callable[[Slices], Iterable[int]]) -> None:
        """Open slices of every space of a manifest, or of a newer one if it was removed meanwhile."""

        def opened() -> None:
            for slices in self.indexes(number, 0).values():
                slices.open(wanted(slices))

        self._retried(opened)

    def _retried(self, opened: Callable[[], T]) -> T:
        """Open slices; where files of an old manifest were removed, those of a newer one."""
        for _ in range(OPEN_TRIES - 1):
            with suppress(OSError, IndexFileError):
                return opened()
            self._number = -1
        return opened()

    def has_opened(self, number: int) -> bool:
        """Return whether `indexes` last returned the manifest with this number, and not a newer one."""
        return self._opened == number

    def check_unmatched(self, number: int, log: MatchPartition, start: int) -> None:
        """Check that a block that begins at `start` may be written with the result of `indexes` for a number.

        If another manifest was opened instead, records that the match log already held by then may be
        reported as matched, and versions that only they needed removed. So call this after `indexes`.

        Raises
        ------
        IndexStoreError
            The block would differ from the existing one: this task is a late copy of another.
        """
        if not self.has_opened(number) and log.end(start) > start:
            raise IndexStoreError(f"manifest {number} was removed, and record {start} is matched already")

    def _manifest(self, number: int, stamp: int) -> Manifest:
        with suppress(IndexStoreError):
            manifest = self._store.manifest(number)
            if manifest.revision >= stamp:
                return manifest
        newest = self._store.newest()
        if newest is None or newest.revision < stamp:
            raise IndexStoreError(f"there is no index that covers registry revision {stamp}")
        return newest

    def _open(self, manifest: Manifest) -> None:
        named = manifest.files()
        parts = {key: part for key, part in self._parts.items() if key[0] in named}
        open_index = slice_opener(self._store.path, parts)
        indexes = {space: Slices(files, open_index) for space, files in manifest.spaces.items()}
        if self._every_slice:
            for slices in indexes.values():
                slices.open()
        self._parts, self._indexes = parts, indexes
        self._opened, self._revision = manifest.number, manifest.revision
