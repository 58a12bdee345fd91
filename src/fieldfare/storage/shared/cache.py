"""A cache of fetched files on this machine's disk, shared by its processes; names identify their content.

A file is complete or missing. Beyond the limit, the least recently used files are deleted: processes that
have mapped a file keep it, and a later request fetches it again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from fieldfare.files import TEMPORARY_SUFFIX, remove_abandoned, temporary_file


class FileCache:
    """A folder of fetched files.

    Parameters
    ----------
    folder
        Path of the folder; created if it does not exist.
    limit_bytes
        Maximum bytes to keep; beyond it, files are deleted that are not needed at the moment.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    @classmethod
    def of_this_machine(cls, limit_bytes: int) -> FileCache:
        """Return this user's cache in the system's folder for temporary files."""
        return cls(Path(tempfile.gettempdir()) / f"fieldfare-index-{os.getuid()}", limit_bytes)

    def path(self, name: str, fetch: Callable[[Path], object], needed: Collection[str] = ()) -> Path:
        """Return the path of a file; fetch it if it is missing.

        Parameters
        ----------
        name
            Name of the file.
        fetch
            Function that writes the file to a given path.
        needed
            Names of files that are kept whatever their size.
        """
        path = self.folder / name
        with suppress(FileNotFoundError):
            os.utime(path)  # Mark the file as recently used.
            return path
        self._make_folder()
        with temporary_file(path) as temporary:
            fetch(temporary)
            size_bytes = temporary.stat().st_size
            self._make_room(size_bytes, {name, *needed})
            os.rename(temporary, path)
        return path

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{self.folder} belongs to another user")

    def _make_room(self, size_bytes: int, needed: Collection[str]) -> None:
        remove_abandoned(self.folder)
        kept: list[tuple[float, int, Path]] = []
        for path in self.folder.iterdir():
            with suppress(FileNotFoundError):
                found = path.stat()
                if not path.name.endswith(TEMPORARY_SUFFIX):
                    kept.append((found.st_mtime, found.st_size, path))
        total_bytes = size_bytes + sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if total_bytes <= self.limit_bytes:
                return
            if path.name not in needed:
                path.unlink(missing_ok=True)
                total_bytes -= size
