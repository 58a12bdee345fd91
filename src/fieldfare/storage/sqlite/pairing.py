"""Detection of a WAL that was not written for the database beside it.

A backup of a database may be restored while the WAL of a killed service is left beside it, or a WAL be copied
to the wrong place. SQLite does not check that: it would write the WAL's pages over those of the file, and the
events and subscriptions of both would be lost, or those of another service be served.

Two things tell. Both are in the header of the file, on its first page, of which the WAL holds later
versions: the kind of database (``application_id``), and a counter that SQLite increases when another
connection changed the page. The header of the file is that of a first page in the WAL, copied by a
checkpoint, or has the counter of the first of these, or of the page before it. A WAL of another service
with a fitting counter is not detected.
"""

from __future__ import annotations

import os
from pathlib import Path

from fieldfare.storage.sqlite.wal import first_page_headers

HEADER_BYTES = 100
FLIPPED_BITS_MAX = 3
"""Maximum bits in which two headers that are taken for the same differ; a disk may have changed some."""

_MAGIC = b"SQLite format 3\0"
_PAGE_SIZE, _COUNTER, _PAGES = slice(16, 18), slice(24, 28), slice(28, 32)
_KIND, _VALID_FOR = slice(68, 72), slice(92, 96)


def find_foreign_wal(path: Path) -> str | None:
    """Return what is wrong if the WAL of a database that no process has open belongs to another file.

    Without a first page in the WAL, or with a damaged header, the answer is None: it cannot be told.
    """
    headers = list(first_page_headers(path, HEADER_BYTES))
    if not headers:
        return None
    try:
        with path.open("rb") as file:
            own = file.read(HEADER_BYTES)
            size_bytes = file.seek(0, os.SEEK_END)
    except FileNotFoundError:
        own = b""
    except OSError:
        return None
    if not own:
        return "the database that it was written for is missing or empty, and SQLite would delete it"
    if not own.startswith(_MAGIC) or own[_COUNTER] != own[_VALID_FOR]:
        return None
    # The kind is 0 in a new file until its first checkpoint.
    kinds = bytes(4), headers[-1][_KIND]
    is_of_kind = any(_differing_bits(own[_KIND], kind) <= FLIPPED_BITS_MAX for kind in kinds)
    if is_of_kind and (_is_copied(own, headers) or _precedes(own, size_bytes, headers[0])):
        return None
    return (
        "it was not written for the database beside it, as when a backup of one is restored without the other"
    )


def _is_copied(own: bytes, headers: list[bytes]) -> bool:
    """Return whether a file's header is that of a first page in the WAL."""
    return any(
        own[_COUNTER] == each[_COUNTER] and _differing_bits(own, each) <= FLIPPED_BITS_MAX for each in headers
    )


def _precedes(own: bytes, size_bytes: int, first: bytes) -> bool:
    """Return whether a file's header can be the one before the first in the WAL: files do not shrink."""
    before = int.from_bytes(first[_COUNTER]) - int.from_bytes(own[_COUNTER])
    pages, pages_after = int.from_bytes(own[_PAGES]), int.from_bytes(first[_PAGES])
    is_damaged = pages * int.from_bytes(own[_PAGE_SIZE]) > size_bytes
    return before in (0, 1) and (is_damaged or pages <= pages_after)


def _differing_bits(one: bytes, other: bytes) -> int:
    return (int.from_bytes(one) ^ int.from_bytes(other)).bit_count()
