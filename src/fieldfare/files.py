"""Writing a file so that it is there whole or not at all, also after the power failed.

Every file that others read goes through here: index files, blocks, manifests, notes. So there is one name for
what a killed writer leaves behind, and one rule that removes it.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".tmp"
_WRITER = re.compile(r"\..*\.(\d+)-[0-9a-f]+" + re.escape(TEMPORARY_SUFFIX))


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> int:
    """Write a file under another name, make it durable, and rename it into place; returns its size.

    Missing folders are made. What was there under this name is replaced; who has it open keeps it.
    """
    temporary = temporary_path(path)
    try:
        with _create(temporary) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            size_bytes = file.tell()
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return size_bytes


def temporary_path(path: Path) -> Path:
    """A name beside a file that no other writer uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")


def remove_abandoned(folder: Path) -> None:
    """Delete the temporary files in a folder whose writers were killed.

    How old they are says nothing, for clocks jump; their names say who writes them. Another process may have
    been given that number since: then they stay until it ends.
    """
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        writer = _WRITER.fullmatch(path.name)
        if writer is None or not _is_running(int(writer[1])):
            path.unlink(missing_ok=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return pid > 0


def sync_folder(folder: Path) -> None:
    """Make what was renamed or removed in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder, with those above it that are missing, durably."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def _create(path: Path) -> BinaryIO:
    while True:
        try:
            return open(path, "xb")
        except FileNotFoundError:
            # Also when the folder was empty, and removed for that, just before.
            make_folder(path.parent)
