"""The files of the matching index, and the manifests that list the valid ones.

Both are written once and never changed, a manifest after the files that it names. So the holder of a manifest
can open its files until `IndexStore.collect` removes both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from fieldfare.pipeline.manifest import Manifest


class IndexSource(Protocol):
    """The part of an index store that matching needs."""

    def path(self, name: str) -> Path:
        """Return the local path at which an index file can be mapped, if the file exists.

        A remote store first copies the file to this machine. ValueError for an invalid file name.
        """

    def manifest(self, number: int) -> Manifest:
        """Return the manifest with a number; IndexStoreError if it is missing, removed or corrupt."""

    def newest(self) -> Manifest | None:
        """Return the manifest with the highest number; None if there is none."""


class IndexStore(IndexSource, Protocol):
    """An index store: one process writes, any number read. It can be pickled.

    The writer saves a file at its `path`, durably, before it writes the first manifest that names it.
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

    def collect(self, keep_from: int) -> int:
        """Remove the manifests before a number, and the files that no remaining manifest names.

        Only the writing process may call this, when it has written the manifests of all its files.

        Parameters
        ----------
        keep_from
            Lowest number of a manifest that may still be in use. The newest manifest is always kept.

        Returns
        -------
        int
            Number of removed files, without manifests.

        Raises
        ------
        IndexStoreError
            A kept manifest cannot be read, so the files that it needs are unknown; no index file was removed.
        """
