"""A backup copy of the first page of a SQLite file, without which the rest of the file cannot be read.

The page holds the file's header and the table definitions. Unless the tables change, only a few counters
in it change. The copy is a file beside the database, ``NAME.first-page``, written while the WAL is empty.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fieldfare.files import write_file
from fieldfare.storage.checksums import checksum
from fieldfare.storage.corruption import note_corruption
from fieldfare.storage.sqlite.wal import holds_first_page, wal_path

SUFFIX = ".first-page"

_MAGIC = b"SQLite format 3\0"
_LEAF = 13
"""Page type of a leaf page of a table."""

_SIZE = slice(28, 32)
_FREE = slice(32, 40)
"""Header bytes of the free list: its first page and its number of pages."""
_COOKIE = slice(40, 44)
_COUNTERS = (slice(24, 44), slice(92, 100))
"""Header bytes that change with writes: counters, the file's size, the free list, the schema cookie."""


def save_first_page(path: Path) -> None:
    """Copy the first page of a file that was opened or closed without an error; skip a current copy."""
    page = None if _has_wal(path) else _page(path)
    if page is None or not page.startswith(_MAGIC) or page[100] != _LEAF:
        return  # The table definitions exceed one page; no file of the service has that many tables.
    kept = _kept(path)
    if kept is not None and _without_counters(kept) == _without_counters(page):
        return
    content = checksum(page).to_bytes(4) + page
    with suppress(OSError):  # The disk may be full; the database itself is intact.
        write_file(_copy_path(path), lambda file: file.write(content))


def mend_first_page(path: Path) -> bool:
    """Restore a first page that differs from its copy; return whether it was restored.

    Call it before anything opens the file. If the file has other tables than the copy, as after a restore
    of an older format's backup, the copy is removed: when that file is upgraded again, its schema gets the
    same number, but its tables may be on other pages.
    """
    kept = _kept(path)
    page = None if kept is None else _page(path, len(kept))
    if kept is None or page is None:
        return False
    if page[_COOKIE] != kept[_COOKIE] and page.startswith(_MAGIC):
        with suppress(OSError):
            _copy_path(path).unlink(missing_ok=True)
        return False
    size = path.stat().st_size // len(kept)
    changed = _without_counters(page) != _without_counters(kept)
    if _has_wal(path):  # The WAL determines the size, and may hold pages of the free list.
        is_free_list_right = True
        if not changed or holds_first_page(path):
            return False
    else:
        is_free_list_right = _is_free_list_right(path, page, size)
        if not changed and is_free_list_right and int.from_bytes(page[_SIZE]) == size:
            return False
    mended = bytearray(kept)
    for counters in _COUNTERS:
        mended[counters] = page[counters]
    mended[_SIZE] = size.to_bytes(4)
    if not is_free_list_right:
        mended[_FREE] = bytes(8)  # These pages stay unused: a corrupt free list would block all writes.
    mended[92:96] = mended[24:28]  # Otherwise SQLite ignores the size in the header.
    try:
        with path.open("r+b") as file:
            file.write(mended)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        note_corruption(
            path, "first-page", f"its first page has changed on the disk and cannot be restored: {error}"
        )
        return False
    note_corruption(
        path, "first-page", "its first page had changed on the disk and was restored; nothing is lost"
    )
    return True


def _is_free_list_right(path: Path, page: bytes, size: int) -> bool:
    """Return whether the free list has as many pages as the first page says."""
    trunk, count = int.from_bytes(page[32:36]), int.from_bytes(page[36:40])
    found = 0
    with path.open("rb") as file:
        while trunk and found <= count <= size:
            file.seek((trunk - 1) * len(page))
            head = file.read(8)
            trunk, leaves = int.from_bytes(head[:4]), int.from_bytes(head[4:])
            found += 1 + leaves
    return not trunk and found == count


def _has_wal(path: Path) -> bool:
    wal = wal_path(path)
    return wal.exists() and wal.stat().st_size > 0


def _page(path: Path, size: int | None = None) -> bytes | None:
    try:
        with path.open("rb") as file:
            size = size or int.from_bytes(file.read(18)[16:18])
            file.seek(0)
            page = file.read(size)
    except OSError:
        return None
    return page if len(page) == size and size >= 512 else None


def _kept(path: Path) -> bytes | None:
    try:
        content = _copy_path(path).read_bytes()
    except OSError:
        return None
    page = content[4:]
    return page if len(page) >= 512 and checksum(page) == int.from_bytes(content[:4]) else None


def _without_counters(page: bytes) -> bytes:
    blank = bytearray(page)
    for counters in _COUNTERS:
        blank[counters] = bytes(counters.stop - counters.start)
    return bytes(blank)


def _copy_path(path: Path) -> Path:
    return path.with_name(path.name + SUFFIX)
