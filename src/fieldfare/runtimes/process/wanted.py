"""A small file with a number: the revision of the registry up to which a waiting batch needs the index.

It is a hint, which may be lost, torn or outdated: without it the indexer writes a little later.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def request_index(path: Path, revision: int) -> None:
    """Request an index that covers a revision."""
    with suppress(OSError):
        path.write_bytes(b"%d" % revision)


def requested_revision(path: Path) -> int:
    """Return the last requested revision; 0 if there is none or it cannot be read."""
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return 0
