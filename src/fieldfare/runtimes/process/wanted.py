"""A number in a small file: up to which revision of the registry a batch wants the index, and waits for it.

It is a hint, and nothing is wrong if it is lost, torn or old: the indexer writes what it has not been asked
for a little later.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def want(path: Path, revision: int) -> None:
    """Ask for an index that covers a revision."""
    with suppress(OSError):
        path.write_bytes(b"%d" % revision)


def wanted(path: Path) -> int:
    """What was asked for last; 0 if nothing was, or that cannot be read."""
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return 0
