"""Files that other processes read: after a crash or a power failure each is complete or does not exist.

All of them are written here: index files, blocks, manifests, notes. So all temporary files have the same form
of name, and `remove_abandoned` finds those of killed writers.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

T = TypeVar("T")

TEMPORARY_SUFFIX = ".tmp"
_WRITER = re.compile(r"\..*\.(\d+)-[0-9a-f]+" + re.escape(TEMPORARY_SUFFIX))


def decode_file(path: Path, kind: type[T]) -> T | None:
    """Read a file that another process writes; None if it is missing, torn, or of an older version."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def write_file(path: Path, write: Callable[[BinaryIO], object]) -> int:
    """Write a file under a temporary name, sync it, and rename it into place; return its size in bytes.

    Missing folders are created. An existing file is replaced; processes that have it open keep the old one.
    """
    with temporary_file(path) as temporary:
        with _create(temporary) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            size_bytes = file.tell()
        os.rename(temporary, path)
    sync_folder(path.parent)
    return size_bytes


def write_file_unsynced(path: Path, write: Callable[[BinaryIO], object]) -> int:
    """Write a file like `write_file`, but sync it only if another one has its name; return its size in bytes.

    A new file may be torn, empty or missing after a power failure, until `sync_file` is called. A durable one
    is never replaced by one that is not, even if it appears while this one is written.
    """
    with temporary_file(path) as temporary:
        with _create(temporary) as file:
            write(file)
            size_bytes = file.tell()
        try:
            os.link(temporary, path)
        except OSError:  # The name is taken, or the file system has no links.
            sync_file(temporary)
            os.rename(temporary, path)
            sync_folder(path.parent)
    return size_bytes


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file without syncing it: a power failure may tear it, and lose the one before."""
    with temporary_file(path) as temporary:
        temporary.write_bytes(content)
        temporary.replace(path)


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """Yield a `temporary_path`; remove the file that still has it at the end."""
    temporary = temporary_path(path)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def temporary_path(path: Path) -> Path:
    """Return a name in the file's folder that no other writer uses."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")


def remove_abandoned(folder: Path) -> None:
    """Delete the temporary files in a folder whose writers were killed.

    A file's name contains its writer's process id. (Its age is no criterion, as clocks jump.) If another
    process has that id now, the file stays until that ends.
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


def link_file(path: Path, other: Path) -> None:
    """Make another name for a file, in place of what has that name."""
    temporary = temporary_path(other)
    os.link(path, temporary)
    os.rename(temporary, other)


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder durable."""
    sync_file(folder)


def sync_file(path: Path) -> None:
    """Make a file's content durable; its name is durable once its folder is synced."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, durably."""
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
            # The folder did not exist, or was removed just now because it was empty.
            make_folder(path.parent)
