"""The indexes that a process has mapped, by manifest: what a task needs is nearly always there already."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from fieldfare.matching.files import IndexFileError
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part
from fieldfare.matching.versions import Closings
from fieldfare.pipeline.manifest import Manifest, SliceManifest
from fieldfare.pipeline.slices import Slices
from fieldfare.storage import IndexSource, MatchPartition
from fieldfare.storage.errors import IndexStoreError

OPEN_TRIES = 5


Parts = dict[tuple[str, int], Part]
"""By the name and the inode of their files. An inode is not given again while its file is mapped; a name is,
when an index is lost and built anew, from manifest 1 on."""


def slice_opener(
    path_of: Callable[[str], Path], parts: Parts | None = None
) -> Callable[[SliceManifest], Index]:
    """What opens the index of a slice, for `Slices`.

    Parameters
    ----------
    path_of
        Where the index file of a name lies.
    parts
        Those that are mapped already; what is opened is added.
    """
    known: Parts = parts if parts is not None else {}

    def open_part(name: str) -> Part:
        path = path_of(name)
        key = name, path.stat().st_ino
        return known.get(key) or known.setdefault(key, Part.open(path))

    def open_index(files: SliceManifest) -> Index:
        closings = Closings.open(path_of(files.closings)) if files.closings else Closings()
        return Index([open_part(name) for name in files.parts], closings)

    return open_index


class IndexCache:
    """Opens the indexes that a manifest names; files that the last one named too stay mapped.

    Parameters
    ----------
    store : IndexSource
    every_slice : bool
        Open all slices at once; otherwise each when it is first asked for.
    """

    def __init__(self, store: IndexSource, *, every_slice: bool = True) -> None:
        self._store = store
        self._every_slice = every_slice
        self._number = self._opened = self._revision = -1
        self._parts: Parts = {}
        self._indexes: dict[str, Slices] = {}

    def indexes(self, number: int, stamp: int) -> Mapping[str, Slices]:
        """The indexes of all spaces, by the manifest of a number or another one that covers a stamp.

        Any that covers it will do: it keeps every version that counts for a record that may still be matched.
        Whoever is so late that its manifest has gone asks whether its records may: see `check_unmatched`.
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

    def slices(self, number: int, stamp: int, space: str, wanted: Iterable[int], cut: int) -> Slices | None:
        """A space's slices by `indexes`, those `wanted` open; None when nothing is indexed for the space.

        A slice that was not needed at first may be gone when it is, with its manifest: then this is a newer
        one's, for slices of the same cut hold the same subscriptions.

        Raises
        ------
        IndexStoreError
            The space was cut anew since: its slices hold others now.
        """
        numbers = tuple(wanted)
        for attempt in range(1, OPEN_TRIES + 1):
            found = self.indexes(number, stamp).get(space)
            if found is None:
                return None
            if found.cut != cut:
                raise IndexStoreError(f"space {space} was cut anew while a batch was matched")
            try:
                for each in numbers:
                    found.index(each)
            except (OSError, IndexFileError):
                self._number = -1
                if attempt == OPEN_TRIES:
                    raise
                continue
            return found
        raise AssertionError("unreachable")

    def has_opened(self, number: int) -> bool:
        """Whether what `indexes` gave last is of the manifest of this number, and not of another."""
        return self._opened == number

    def check_unmatched(self, number: int, log: MatchPartition, start: int) -> None:
        """Whether a block may be written that begins at `start`, with what `indexes` gave for a number.

        What the match log had already when another manifest's files were opened may be told as matched, and
        what only these records needed forgotten by then. So this is asked after they were opened.

        Raises
        ------
        IndexStoreError
            The block would not hold what the one that is there holds: this task is a late copy of another.
        """
        if not self.has_opened(number) and log.end(start) > start:
            raise IndexStoreError(f"manifest {number} has gone, and record {start} is matched already")

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
