"""File permissions of the data directory: only the service's user has access (files 0600, folders 0700).

Each process creates its files with these modes (`keep_private`). Files of an older fieldfare or of a copied
directory are changed when a service starts (`tighten`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fieldfare.storage.folder import DataFolder

UMASK = 0o077
FOLDER, FILE = 0o700, 0o600


def keep_private() -> None:
    """Set the umask so that only this user can read the later files of this process and its children."""
    os.umask(UMASK)


def tighten(data: DataFolder) -> None:
    """Remove other users' permissions in a data directory; OSError if that fails.

    Files that are not the service's (see `DataFolder.owns`) keep their modes; if there are any, so does the
    directory itself.
    """
    if _tighten_all(data.root, data.owns):
        _set_mode(data.root, FOLDER)


def _tighten_all(folder: Path, owns: Callable[[str], bool]) -> bool:
    """Set the modes of the owned entries of a folder; return whether there are no others."""
    are_all_owned = True
    with os.scandir(folder) as entries:
        for entry in entries:
            if not owns(entry.name):
                are_all_owned = False
                continue
            with suppress(FileNotFoundError):  # It was a temporary file.
                if entry.is_dir(follow_symlinks=False):
                    _tighten_folder(Path(entry.path))
                elif not entry.is_symlink():
                    _set_mode(Path(entry.path), FILE)
    return are_all_owned


def _tighten_folder(folder: Path) -> None:
    """Set the modes of a folder's content, then the folder's own, which marks the content as done."""
    if stat.S_IMODE(folder.stat().st_mode) != FOLDER:
        _tighten_all(folder, lambda _: True)
        _set_mode(folder, FOLDER)


def _set_mode(path: Path, mode: int) -> None:
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)
