"""Files fetched to this machine's disk, by names that say what is in them: shared by all its processes.

A file is there whole or not at all. When there is too much, what was not used for longest goes: who has it
mapped keeps it, and who wants it later has it fetched again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from fieldfare.files import TEMPORARY_SUFFIX, remove_abandoned, temporary_path


class FileCache:
    """A folder of fetched files.

    Parameters
    ----------
    folder
        Made if it is not there.
    limit_bytes
        What is kept at most, unless more is needed at once.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes

    @classmethod
    def of_this_machine(cls, limit_bytes: int) -> FileCache:
        """This user's, in the folder for temporary files."""
        return cls(Path(tempfile.gettempdir()) / f"fieldfare-index-{os.getuid()}", limit_bytes)

    def path(self, name: str, fetch: Callable[[Path], object], needed: Collection[str] = ()) -> Path:
        """Where a file is; fetched to the path that `fetch` is given, if it is not there.

        Parameters
        ----------
        needed
            Names that stay, however much that is.
        """
        path = self.folder / name
        with suppress(FileNotFoundError):
            os.utime(path)  # It is used: others go first.
            return path
        self._make_folder()
        temporary = temporary_path(path)
        try:
            fetch(temporary)
            size_bytes = temporary.stat().st_size
            self._make_room(size_bytes, {name, *needed})
            os.rename(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        return path

    def _make_folder(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{self.folder} is another user's")

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
