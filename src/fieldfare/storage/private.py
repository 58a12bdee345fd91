"""Nobody but the user whom a service runs as reads its data directory: files 0600, folders 0700.

Each process makes its own that way (`keep_private`). What an older fieldfare made, or a copy brought, is
changed when a service starts (`tighten`).
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from fieldfare.storage.folder import DataFolder

UMASK = 0o077
FOLDER, FILE = 0o700, 0o600


def keep_private() -> None:
    """Let nobody else read what this process, and those that it starts, write from now on."""
    os.umask(UMASK)


def tighten(data: DataFolder) -> None:
    """Take from others what they may in a data directory; OSError when that cannot be done.

    What else lies in the directory is left as it is, and then so is the directory itself.
    """
    folders = (data.matches, data.index, data.quarantine, data.checkpoint, data.run, data.logs)
    for folder in folders:
        if folder.is_dir():
            _tighten_folder(folder)
    own = {folder.name for folder in folders}
    databases = tuple(f"{path.name}{end}" for path in (data.log_path, data.registry_path) for end in _PARTS)
    for name in databases:
        with suppress(FileNotFoundError):
            _set_mode(data.root / name, FILE)
    if not set(os.listdir(data.root)) - own - set(databases):
        _set_mode(data.root, FOLDER)


_PARTS = ("", "-wal", "-shm", "-journal")
"""Of an SQLite database."""


def _tighten_folder(folder: Path) -> None:
    """The folder's own mode comes last: while it is not what it should be, what is in it may not be."""
    if stat.S_IMODE(folder.stat().st_mode) == FOLDER:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # It was a temporary one.
                if entry.is_dir(follow_symlinks=False):
                    _tighten_folder(Path(entry.path))
                elif not entry.is_symlink():
                    _set_mode(Path(entry.path), FILE)
    _set_mode(folder, FOLDER)


def _set_mode(path: Path, mode: int) -> None:
    if stat.S_IMODE(path.stat().st_mode) != mode:
        path.chmod(mode)
