"""Writing a file so that it is there whole or not at all, also after the power failed."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".tmp"
ABANDONED_AFTER_S = 3_600
"""A temporary file older than this belongs to a writer that was killed."""


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

    A clock that jumps makes none of another process's old that is alive, and a process that removes files has
    none of its own in the folder.
    """
    for path in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        try:
            if time.time() - path.stat().st_mtime > ABANDONED_AFTER_S and not _is_writing(path):
                path.unlink()
        except FileNotFoundError:
            pass  # Its writer was alive after all.


def _is_writing(path: Path) -> bool:
    """Whether the process that a temporary file is named after may still be at it."""
    pid = path.name.removesuffix(TEMPORARY_SUFFIX).rpartition(".")[2].partition("-")[0]
    if not pid.isdecimal() or int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # It is there, and another user's.
    return True


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
