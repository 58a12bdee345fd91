"""Which blocks of the match log there are: a folder of folders of files, named by their ranges.

A block of the records with ``start <= offset < end`` is ``folder/SSSS/START-END.arrow`` (decimal, padded with
zeros), where SSSS is start // 1,000: listings stay short, and all questions but the matches themselves are
answered by names alone. A listing is kept until its folder's modification time says that it changed, so
asking again costs a few stat calls.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path

from fieldfare.storage.match_log import MAX_BLOCK_RECORDS, BlockRange

SHARD_RECORDS = 1_000
SUFFIX = ".arrow"

SETTLED_NS = 50_000_000
"""A folder that changed less than this before it was listed may change again with the same time."""

_FAR_LOOK_S = 0.1
_LISTINGS = 1_024
"""So many folders' listings are kept: those of readers far behind go first."""


class BlockFile(BlockRange):
    """The records of one block, and its file."""

    __slots__ = ()

    @property
    def shard(self) -> int:
        """The number of the folder that its file lies in."""
        return self.start // SHARD_RECORDS

    def path(self, folder: Path) -> Path:
        """Its file."""
        return shard_path(folder, self.shard) / f"{self.start:016d}-{self.end:016d}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class _Listing:
    changed_ns: int
    settled: bool
    blocks: tuple[BlockFile, ...] = ()
    """By start; of several with the same start the longest last."""
    end: int = 0


_NOTHING = _Listing(0, False)


class BlockFolder:
    """The listings of a match log's folder, which need not exist yet.

    No question needs the list of all shards, which are 120,000 in a week of a thousand records a second.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listings: OrderedDict[int, _Listing] = OrderedDict()
        self._absent = -1, 0.0
        """The last offset asked for again and again, and when all folders that matter were looked into."""

    def covering(self, offset: int, *, polled: bool = False) -> BlockFile | None:
        """A block that holds the record at an offset, or None.

        Whoever asks again and again (``polled``) for what comes next is told at once of a block that begins
        in this folder or the one before, as that does, and of any other some time later.
        """
        nearest = offset // SHARD_RECORDS
        farthest = max(0, offset - MAX_BLOCK_RECORDS) // SHARD_RECORDS
        if polled:
            absent_at, looked_s = self._absent
            if absent_at == offset and time.monotonic() - looked_s < _FAR_LOOK_S:
                farthest = max(farthest, nearest - 1)
            else:
                self._absent = offset, time.monotonic()
        for shard in range(nearest, farthest - 1, -1):
            listing = self._list(shard)
            if listing.end <= offset:
                continue
            first = bisect_right(listing.blocks, offset, key=attrgetter("start"))
            for block in reversed(listing.blocks[:first]):
                if block.end > offset:
                    return block
        return None

    def forget(self) -> None:
        """List everything anew when asked next."""
        self._listings.clear()
        self._absent = -1, 0.0

    def _list(self, shard: int) -> _Listing:
        folder = shard_path(self.folder, shard)
        try:
            changed_ns = os.stat(folder).st_mtime_ns
            known = self._listings.get(shard)
            if known is not None and known.settled and known.changed_ns == changed_ns:
                return known
            settled = time.time_ns() - changed_ns > SETTLED_NS
            names = os.listdir(folder)
        except FileNotFoundError:
            self._listings.pop(shard, None)
            return _NOTHING
        blocks = tuple(sorted(block for name in names if (block := _parse(name)) is not None))
        listing = _Listing(changed_ns, settled, blocks, max((block.end for block in blocks), default=0))
        self._listings.pop(shard, None)
        self._listings[shard] = listing
        if len(self._listings) > _LISTINGS:
            self._listings.popitem(last=False)
        return listing


def list_shards(folder: Path) -> list[int]:
    """The numbers of the folders that there are, ascending."""
    try:
        return sorted(map(int, filter(str.isdecimal, os.listdir(folder))))
    except FileNotFoundError:
        return []


def list_blocks(folder: Path, shard: int) -> list[BlockFile]:
    """The blocks of one shard, by start; of the same start the longest first."""
    try:
        names = os.listdir(shard_path(folder, shard))
    except FileNotFoundError:
        return []
    blocks = (block for name in names if (block := _parse(name)) is not None)
    return sorted(blocks, key=lambda block: (block.start, -block.end))


def blocks_from(folder: Path, from_offset: int = 0) -> Iterator[BlockFile]:
    """The blocks that hold records from an offset on, in the same order, as they are listed now."""
    farthest = max(0, from_offset - MAX_BLOCK_RECORDS) // SHARD_RECORDS
    for shard in list_shards(folder):
        if shard >= farthest:
            yield from (block for block in list_blocks(folder, shard) if block.end > from_offset)


def shard_path(folder: Path, shard: int) -> Path:
    """The folder of one shard."""
    return folder / f"{shard:04d}"


def range_of(path: Path) -> BlockFile | None:
    """The records of the block that a file of this name holds; None for another name."""
    return _parse(path.name)


@lru_cache(maxsize=4 * SHARD_RECORDS)
def _parse(name: str) -> BlockFile | None:
    start, _, end = name.removesuffix(SUFFIX).partition("-")
    if not name.endswith(SUFFIX) or not (start.isdecimal() and end.isdecimal()):
        return None
    return BlockFile(int(start), int(end))
