"""Small JSON files with a checksum: one object, whose last member is the checksum of the bytes before it.

A file of an older version has no checksum and counts as unchecked.
"""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from crc32c import crc32c

from fieldfare.files import write_file
from fieldfare.storage.corruption import note_corruption

_Kind = TypeVar("_Kind", bound=msgspec.Struct)
_CHECKED = re.compile(rb'(\{.*?),?"checksum":([0-9]{1,10})\}\n', re.DOTALL)
_HAS_CHECKSUM = re.compile(rb'[^\\]"checksum":')
"""Matches only outside JSON strings, in which quotes are escaped."""
_REPAIRED_MAX_BYTES = 4_096
"""Largest file of which each bit is tried, in 50 ms; a larger one is only found to be corrupt."""


class ChangedFileError(ValueError):
    """A file does not match its checksum."""


def write_checked(path: Path, record: msgspec.Struct) -> None:
    """Write a record with its checksum, durably; OSError if that fails."""
    write_file(path, lambda file: file.write(_checked(msgspec.json.encode(record))))


def read_checked(path: Path, kind: type[_Kind], noted: tuple[Path, str] | None = None) -> _Kind:
    """Read a record. One flipped bit is restored in the file, too, and noted.

    Parameters
    ----------
    path
        The file.
    kind
        Type of the record.
    noted
        The path and the name of notes about the file: see `note_corruption`. Default: the file itself.

    Raises
    ------
    OSError
        The file is missing or unreadable.
    ValueError
        The file is corrupt, or not a record of this type.
    """
    stored = path.read_bytes()
    if _is_right(stored) or not _HAS_CHECKSUM.search(stored):
        return msgspec.json.decode(stored, type=kind)
    restored = _restored(stored)
    if restored is None:
        raise ChangedFileError(
            "it does not match its checksum. If it was edited by hand, remove the member checksum"
        )
    record = msgspec.json.decode(restored, type=kind)
    where, name = noted or (path, "bit")
    note_corruption(
        where, name, f"{path.name} had changed on the disk; a bit was restored, and nothing is lost"
    )
    with suppress(OSError):  # It is restored again when it is read again.
        write_file(path, lambda file: file.write(restored))
    return record


def set_aside(path: Path) -> Path:
    """Rename a corrupt file to a name of its own, and return it."""
    kept = next(each for n in count(1) if not (each := path.with_name(f"{path.name}.damaged-{n}")).exists())
    path.rename(kept)
    return kept


def _checked(content: bytes) -> bytes:
    begins = content.removesuffix(b"}")
    return b'%b%b"checksum":%d}\n' % (begins, b"," if begins != b"{" else b"", crc32c(begins))


def _is_right(stored: bytes | bytearray) -> bool:
    found: Any = _CHECKED.fullmatch(stored)
    return found is not None and crc32c(found[1]) == int(found[2])


def _restored(stored: bytes) -> bytes | None:
    """Return a file's content with the one flipped bit restored that makes the checksum fit."""
    content = bytearray(stored)
    for bit in range(8 * len(content) if len(content) <= _REPAIRED_MAX_BYTES else 0):
        content[bit // 8] ^= 1 << bit % 8
        if _is_right(content):
            return bytes(content)
        content[bit // 8] ^= 1 << bit % 8
    return None
