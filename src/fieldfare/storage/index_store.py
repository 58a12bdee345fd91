"""The files of the matching index, and the manifests that list the valid ones.

Both are written once and never changed, a manifest after the files that it names. So the holder of a manifest
can open its files until `IndexStore.collect` removes both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from fieldfare.pipeline.manifest import Manifest


class IndexSource(Protocol):
    """The part of an index store that matching needs."""

    @property
    def url(self) -> str:
        """The address that opens this store."""

    def path(self, name: str) -> Path:
        """Return the local path at which an index file can be mapped, if the file exists.

        A remote store first copies the file to this machine. ValueError for an invalid file name.
        """

    def manifest(self, number: int) -> Manifest:
        """Return the manifest with a number; IndexStoreError if it is missing, removed or corrupt."""

    def newest(self) -> Manifest | None:
        """Return the manifest with the highest number; None if there is none."""


class IndexStore(IndexSource, Protocol):
    """An index store: one process writes, any number read. It can be pickled."""

    def write(self, name: str, save: Callable[[Path], object]) -> Path:
        """Write an index file, durable on return; return the path at which it can be mapped.

        Parameters
        ----------
        name
            Name of the file, which no manifest may contain yet.
        save
            Function that writes the file to a given path.
        """

    def write_manifest(self, manifest: Manifest) -> None:
        """Write a manifest; durable and the newest on return.

        Raises
        ------
        IndexStoreError
            A manifest with this or a higher number exists, or a file that the manifest names is missing.
        """

    def greatest_number(self) -> int:
        """Return the highest number of any manifest, even a corrupt one; 0 if there is none."""

    def collect(self, keep_from: int, keep_files: Collection[str] = ()) -> int:
        """Remove the manifests before a number, and the files that no remaining manifest names.

        Only the writing process may call this, since it knows the files of future manifests.

        Parameters
        ----------
        keep_from
            Lowest number of a manifest that may still be in use. The newest manifest is always kept.
        keep_files
            Names of files to keep although no manifest names them yet.

        Returns
        -------
        int
            Number of removed files, without manifests.

        Raises
        ------
        IndexStoreError
            A kept manifest cannot be read, so the files that it needs are unknown; no index file was removed.
        """
