"""The files of the matching index, and the manifests that say which of them count.

Both are written once and never changed, a manifest after the files that it names. So whoever holds a manifest
can open its files, until `IndexStore.collect` removes both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from fieldfare.pipeline.manifest import Manifest


class IndexSource(Protocol):
    """What who matches needs of an index store."""

    @property
    def url(self) -> str:
        """The address that opens it."""
        ...

    def path(self, name: str) -> Path:
        """Where a process of this machine can map the index file of a name, and finds it if it is there.

        A store that lies elsewhere brings the file here. ValueError for what is no name of a file.
        """
        ...

    def manifest(self, number: int) -> Manifest:
        """The manifest of a number; IndexStoreError when it is not there (any more) or broken."""
        ...

    def newest(self) -> Manifest | None:
        """The manifest with the highest number, or None."""
        ...


class IndexStore(IndexSource, Protocol):
    """An index store. One process writes; any number read. It can be pickled."""

    def write(self, name: str, save: Callable[[Path], object]) -> Path:
        """Write an index file; durable on return, and gives where it can be mapped.

        Parameters
        ----------
        name
            Its name, one that no manifest names yet.
        save
            Writes the file to the path that it is given.
        """
        ...

    def write_manifest(self, manifest: Manifest) -> None:
        """Write a manifest; durable and the newest on return.

        Raises
        ------
        IndexStoreError
            There is a manifest of this number or a later one, or a file that it names is not there.
        """
        ...

    def greatest_number(self) -> int:
        """The highest number that a manifest has, be it broken; 0 when there is none."""
        ...

    def collect(self, keep_from: int, keep_files: Collection[str] = ()) -> int:
        """Remove the manifests before a number, and the files that no manifest left names.

        To be called by the process that writes, which knows the files of manifests still to come.

        Parameters
        ----------
        keep_from
            The lowest number of a manifest that someone may still use. The newest always stays.
        keep_files
            Names of files to keep although no manifest names them yet.

        Returns
        -------
        int
            How many files went, manifests not counted.

        Raises
        ------
        IndexStoreError
            A manifest that is kept cannot be read, so which files it needs is not known: all of them stay.
        """
        ...
