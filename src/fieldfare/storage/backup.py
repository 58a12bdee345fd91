"""Backups of a data directory, also of a running service, and their restoration.

A backup is a folder with the parts of the directory that cannot be rebuilt, and `backup.json`, which names
every file with its size and checksum. It is written last, so a folder without it is no backup.

**Consistency.** The parts are copied one after the other while the service goes on. Their order makes them
fit::

    delayed.db, links.db    before the log: an event that moves to another is in one of them at least
    log.db                  its moment is the backup's: later events are not part of it
    registry.db             after the log: no message that was acknowledged before is delivered again
    pasts/, quarantine/     before and after the registry: what it says is matched has its blocks
    matches/                last: what the registry takes for matched has its blocks

Each database is one snapshot. Files of folders are written once, but compaction replaces several by one: a
folder is listed until a listing holds nothing new. A later part may refer to records behind the copied log's
end; a start moves the log's end behind them (`gateway.maintenance.restored`), so no new event meets what
belongs to another.

The index is not copied: it is rebuilt from the registry.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec
from crc32c import crc32c

from fieldfare.files import TEMPORARY_SUFFIX, make_folder, sync_folder
from fieldfare.storage.checked_files import ChangedFileError, read_checked, write_checked
from fieldfare.storage.errors import StorageError
from fieldfare.storage.files.match_folder import SUFFIX, range_of
from fieldfare.storage.files.match_log import FileMatchLog
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.sqlite import schema

MANIFEST = "backup.json"
FORMAT = 1
PIECE_BYTES = 8 << 20
"""Bytes that are read at a time."""

_PARTIAL = ".partial"


class BackupError(StorageError):
    """A backup cannot be made, or cannot be restored; the message names the file."""


class CopiedFile(msgspec.Struct, frozen=True):
    """A file of a backup.

    Attributes
    ----------
    size_bytes, checksum
        Size and CRC32C of the file in the backup.
    changed_ns
        Modification time of the file that was copied, in nanoseconds since 1970; 0 for a database.
    """

    size_bytes: int
    checksum: int
    changed_ns: int


class Manifest(msgspec.Struct, frozen=True):
    """The content of a backup.

    Attributes
    ----------
    format
        Version of the backup's layout.
    files
        The files by their paths in the data directory.
    log_end
        End offset of the copied event log; None if it is elsewhere (Kafka).
    """

    format: int
    files: dict[str, CopiedFile]
    log_end: int | None


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a backup: its manifest, its bytes, and how many of them an earlier backup shares."""

    manifest: Manifest
    size_bytes: int
    shared_bytes: int


def make_backup(folder: DataFolder, to: Path, base: Path | None = None) -> Copied:
    """Copy a data directory into a new folder.

    Parameters
    ----------
    folder
        The data directory; a service may run on it.
    to
        The folder to create.
    base
        An earlier backup of the directory, on the same disk as ``to``: files that have not changed since are
        hard links to its files.

    Raises
    ------
    BackupError
        ``to`` exists or is in the data directory, ``base`` is not a backup, or a file cannot be copied; then
        nothing is left.
    """
    if to.exists():
        raise BackupError(f"{to} exists already: name a new folder for the backup")
    if to.resolve().is_relative_to(folder.root.resolve()):
        raise BackupError(f"{to} is in the data directory: name a folder elsewhere, best on another disk")
    _check_source(folder)
    earlier = None if base is None else read_manifest(base)
    try:
        with _new_folder(to) as partial:
            return _Backup(folder, partial, base, earlier).make()
    except OSError as error:
        raise BackupError(f"the backup {to} cannot be made: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    """Return the file and what is wrong with it, without the error's number."""
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)


def read_manifest(backup: Path) -> Manifest:
    """Return the manifest of a backup; BackupError if it is none, or one of a later version."""
    try:
        manifest = read_checked(backup / MANIFEST, Manifest)
    except FileNotFoundError:
        raise BackupError(f"{backup} is not a backup: it has no {MANIFEST}") from None
    except (OSError, ChangedFileError, msgspec.MsgspecError) as error:
        raise BackupError(f"{backup / MANIFEST} cannot be used: {error}") from error
    if manifest.format != FORMAT:
        raise BackupError(f"{backup} has format {manifest.format}; this version reads format {FORMAT}")
    if wrong := next((name for name in manifest.files if not _is_inside(name)), None):
        raise BackupError(f"{backup / MANIFEST} names a file outside the backup: {wrong!r}")
    return manifest


def check_backup(backup: Path) -> Iterator[str]:
    """Read all files of a backup; yield a sentence for each that is missing or has changed."""
    for name, copied in read_manifest(backup).files.items():
        path = backup / name
        try:
            size_bytes, checksum = _measured(path)
        except OSError as error:
            yield f"{path} cannot be read: {error.strerror or error}"
            continue
        if (size_bytes, checksum) != (copied.size_bytes, copied.checksum):
            yield f"{path} has changed since the backup"


def restore_backup(backup: Path, to: Path) -> Manifest:
    """Copy a backup into a new data directory.

    Parameters
    ----------
    backup
        The backup; all its files are checked before ``to`` exists.
    to
        The data directory to create; it may exist if it is empty.

    Raises
    ------
    BackupError
        The backup is incomplete or has changed, or ``to`` is not empty or cannot be written; ``to`` is as it
        was then.
    """
    manifest = read_manifest(backup)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise BackupError(f"{to} is not empty: name a new data directory")
    if to.is_mount():
        raise BackupError(f"{to} is a mount point, which cannot be replaced: name a new directory in it")
    try:
        with _new_folder(to) as partial:
            for name, copied in manifest.files.items():
                if _copy(backup / name, partial / name) != (copied.size_bytes, copied.checksum):
                    raise BackupError(
                        f"{backup / name} has changed since the backup, which cannot be restored"
                    )
            for folder in {(partial / name).parent for name in manifest.files}:
                sync_folder(folder)
    except OSError as error:
        raise BackupError(f"{to} cannot be restored from {backup}: {_reason(error)}") from error
    return manifest


def _check_source(folder: DataFolder) -> None:
    """Raise BackupError for a folder that is no data directory: its backup would be empty, and succeed."""
    needed = [folder.registry_path, *([folder.log_path] if folder.log is None else [])]
    for path in needed:
        if not path.exists():
            raise BackupError(f"{folder.root} is not the data directory of a service: it has no {path.name}")


@contextmanager
def _new_folder(to: Path) -> Iterator[Path]:
    """Yield an empty folder beside a path, and rename it to that path at the end; after an error, remove it.

    One process at a time has it; of one that was killed, the content is removed.
    """
    to = to.resolve()
    partial = to.with_name(to.name + _PARTIAL)
    make_folder(partial)
    descriptor = os.open(partial, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # Not all file systems have locks.
            _lock(descriptor, partial)
        try:
            for path in partial.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            yield partial
            if to.exists():
                to.rmdir()
            os.rename(partial, to)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)
    sync_folder(to.parent)


def _lock(descriptor: int, folder: Path) -> None:
    """Lock an open folder until it is closed; BackupError if another process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_same = os.path.samestat(os.fstat(descriptor), folder.stat())
    except (BlockingIOError, FileNotFoundError):
        is_same = False
    if not is_same:
        raise BackupError(f"another process is writing {folder}: wait until it ends")


class _Backup:
    """A backup that is being made."""

    def __init__(self, folder: DataFolder, to: Path, base: Path | None, earlier: Manifest | None) -> None:
        self._folder = folder
        self._to = to
        self._base = base
        self._earlier = {} if earlier is None else earlier.files
        self._files: dict[str, CopiedFile] = {}
        self._shared_bytes = 0

    def make(self) -> Copied:
        """Copy everything, and write the manifest."""
        folder = self._folder
        for path in (folder.delayed_path, folder.links_path, folder.log_path):
            self._copy_database(path)
        log = _log_bounds(self._to / folder.log_path.name)
        self._copy_folders()
        self._copy_database(folder.registry_path)
        self._copy_folders()
        if log is not None:
            start, end = log
            self._copy_folder(folder.matches, lambda path: _begins_before(path, end))
            now = _log_bounds(folder.log_path)
            self._fill_removed(start, start if now is None else now[0])
        for path in (folder.addresses, folder.elastic, folder.audit_log):
            with suppress(FileNotFoundError):
                self._copy_file(path)
        for inner in {(self._to / name).parent for name in self._files}:
            sync_folder(inner)
        manifest = Manifest(FORMAT, self._files, None if log is None else log[1])
        write_checked(self._to / MANIFEST, manifest)
        size_bytes = sum(copied.size_bytes for copied in self._files.values())
        return Copied(manifest, size_bytes, self._shared_bytes)

    def _copy_folders(self) -> None:
        """Copy the folders whose files the registry refers to."""
        for folder in (self._folder.replays, self._folder.quarantine, self._folder.corruption):
            self._copy_folder(folder)

    def _copy_database(self, path: Path) -> None:
        """Copy one snapshot of a SQLite file, if there is one; a writer does not wait for it."""
        if not path.exists():
            return
        copy = self._to / path.name
        try:
            with (
                closing(sqlite3.connect(f"file:{quote(os.fsencode(path))}?mode=ro", uri=True)) as source,
                closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
        except sqlite3.Error as error:
            raise BackupError(f"{path} cannot be copied: {error}") from error
        self._files[path.name] = CopiedFile(*_measured(copy, is_synced=True), 0)

    def _copy_folder(self, folder: Path, is_wanted: Callable[[Path], bool] = lambda path: True) -> None:
        """Copy the files of a folder, until a listing holds none that is not copied."""
        while True:
            found = [path for path in _files_of(folder) if is_wanted(path) and not self._has(path)]
            if not found:
                return
            for path in found:
                with suppress(FileNotFoundError):  # compaction or retention has removed it
                    self._copy_file(path)

    def _has(self, path: Path) -> bool:
        copied = self._files.get(self._name(path))
        try:
            return copied is not None and copied.changed_ns == path.stat().st_mtime_ns
        except FileNotFoundError:
            return True

    def _name(self, path: Path) -> str:
        return path.relative_to(self._folder.root).as_posix()

    def _copy_file(self, path: Path) -> None:
        """Copy a file that is written once, or link it to the earlier backup's copy of it."""
        name, about = self._name(path), path.stat()
        copy = self._to / name
        copy.unlink(missing_ok=True)
        copy.parent.mkdir(parents=True, exist_ok=True)
        before = self._earlier.get(name)
        is_same = (
            before is not None
            and before.changed_ns == about.st_mtime_ns
            and before.size_bytes == about.st_size
        )
        if (
            self._base is not None
            and before is not None
            and is_same
            and _link(self._base / name, copy, before.size_bytes)
        ):
            self._files[name] = before
            self._shared_bytes += before.size_bytes
            return
        self._files[name] = CopiedFile(*_copy(path, copy), about.st_mtime_ns)

    def _fill_removed(self, start: int, removed_to: int) -> None:
        """Mark records as matched whose blocks retention removed after the log was copied.

        Others without a block, from `removed_to` on, are not matched yet, though later ones may be.
        """
        copy = self._to / self._folder.matches.name
        matches = FileMatchLog(copy)
        first = matches.next_start(start) if matches.end(start) == start else None
        for block in [] if first is None else matches.fill(start, min(first, removed_to)):
            path = block.path(copy)
            self._files[path.relative_to(self._to).as_posix()] = CopiedFile(*_measured(path), 0)


def _log_bounds(log: Path) -> tuple[int, int] | None:
    """Return the start and end offsets of a copied event log; None if there is none."""
    if not log.exists():
        return None
    try:
        with closing(sqlite3.connect(log)) as connection:
            if not schema.is_current(connection):
                raise BackupError(
                    f"{log.name} is of an older version of fieldfare: start the service once, which upgrades"
                    " it"
                )
            return schema.bounds(connection)
    except sqlite3.Error as error:
        raise BackupError(f"{log.name} cannot be read: {error}") from error


def _begins_before(path: Path, offset: int) -> bool:
    """Return whether a file of the match log is a block that begins before an offset."""
    block = range_of(path)
    return path.suffix == SUFFIX and block is not None and block.start < offset


def _files_of(folder: Path) -> list[Path]:
    """Return the complete files below a folder, sorted; none if it does not exist.

    Links to folders are followed, as an operator may have put one on another disk. Left out is what no
    service writes: pipes, devices, links to nothing or to a folder that was read, names that are not UTF-8.
    """
    found, seen = [], set[str]()
    for root, folders, names in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(root))
        folders[:] = [name for name in folders if os.path.realpath(os.path.join(root, name)) not in seen]
        found += [Path(root) / name for name in names if not name.endswith(TEMPORARY_SUFFIX)]
    return sorted(path for path in found if path.is_file() and _is_text(path.relative_to(folder)))


def _copy(path: Path, copy: Path) -> tuple[int, int]:
    """Copy a file durably; return its size and checksum."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    size_bytes = checksum = 0
    with path.open("rb") as source, copy.open("xb") as target:
        while piece := source.read(PIECE_BYTES):
            checksum = crc32c(piece, checksum)
            size_bytes += len(piece)
            target.write(piece)
        target.flush()
        os.fsync(target.fileno())
    return size_bytes, checksum


def _link(path: Path, copy: Path, size_bytes: int) -> bool:
    """Create a hard link to a file of a size; False if it is missing, on another disk, or of another size."""
    try:
        if path.stat().st_size == size_bytes:
            os.link(path, copy)
            return True
    except OSError:
        pass
    return False


def _measured(path: Path, *, is_synced: bool = False) -> tuple[int, int]:
    """Return a file's size and checksum; with ``is_synced``, make it durable first."""
    size_bytes = checksum = 0
    with path.open("rb") as file:
        if is_synced:
            os.fsync(file.fileno())
        while piece := file.read(PIECE_BYTES):
            checksum = crc32c(piece, checksum)
            size_bytes += len(piece)
    return size_bytes, checksum


def _is_text(path: Path) -> bool:
    try:
        os.fsencode(path).decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_inside(name: str) -> bool:
    path = Path(name)
    return not path.is_absolute() and ".." not in path.parts and name == path.as_posix()
