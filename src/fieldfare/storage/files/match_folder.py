"""The folder layout of the match log: a folder of folders of block files, named by their ranges.

A block of the records with ``start <= offset < end`` is ``folder/SSSS/START-END.arrow`` (decimal, padded with
zeros), where SSSS is start // 1,000. So listings are short, and everything except the matches is known from
the names. A listing is cached until its folder's modification time changes, so a repeated query takes only a
few stat calls.
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

from fieldfare.storage.match_log import BLOCK_RECORDS_MAX, BlockRange

SHARD_RECORDS = 1_000
SUFFIX = ".arrow"

SETTLED_NS = 50_000_000
"""Nanoseconds after a folder's last change in which it may change again without a new modification time."""

_FAR_LOOK_S = 0.1
"""Minimum seconds between two searches of distant folders for a polled offset."""
_LISTINGS = 1_024
"""Maximum cached listings; beyond it, the oldest is dropped."""


class BlockFile(BlockRange):
    """The range of records of one block, and its file."""

    __slots__ = ()

    @property
    def shard(self) -> int:
        """The number of the folder that contains the block's file."""
        return self.start // SHARD_RECORDS

    def path(self, folder: Path) -> Path:
        """Return the path of the block's file in a match log's folder."""
        return shard_path(folder, self.shard) / f"{self.start:016d}-{self.end:016d}{SUFFIX}"


@dataclass(frozen=True, slots=True)
class _Listing:
    changed_ns: int
    settled: bool
    names: frozenset[str] = frozenset()
    """The folder's file names that are known."""
    blocks: tuple[BlockFile, ...] = ()
    """The folder's blocks by start, then by end."""
    end: int = 0

    def with_names(self, names: list[str]) -> tuple[BlockFile, ...]:
        """Return the blocks with these names; few are new, as a rule."""
        new = [block for name in names if name not in self.names and (block := _parse(name)) is not None]
        if len(names) - len(self.names) == sum(name not in self.names for name in names):
            return tuple(sorted((*self.blocks, *new)))
        return tuple(sorted(block for name in names if (block := _parse(name)) is not None))


_NOTHING = _Listing(0, False)


class BlockFolder:
    """Cached listings of a match log's folder, which need not exist yet.

    No query needs the list of all shards: a week of 1,000 records per second has 120,000.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listings: OrderedDict[int, _Listing] = OrderedDict()
        self._absent = -1, 0.0
        """The last polled offset, and the time at which all relevant folders were last searched for it."""

    def covering(self, offset: int, *, polled: bool = False) -> BlockFile | None:
        """Return a block that covers an offset; None if there is none.

        With `polled`, for a reader that polls for the next block, repeated calls search only the offset's own
        folder and the one before, where the next block usually starts. Others are searched every
        `_FAR_LOOK_S`.
        """
        nearest = offset // SHARD_RECORDS
        farthest = max(0, offset - BLOCK_RECORDS_MAX) // SHARD_RECORDS
        if polled:
            absent_at, looked_s = self._absent
            if absent_at == offset and time.monotonic() - looked_s < _FAR_LOOK_S:
                farthest = max(farthest, nearest - 1)
            else:
                self._absent = offset, time.monotonic()
        for shard in range(nearest, farthest - 1, -1):
            block = _covering(self._list(shard), offset)
            if block is not None:
                return block
        return None

    def chain(self, offset: int) -> list[BlockFile]:
        """Return blocks that a reader visits one after the other from an offset on; each folder is read once.

        Empty if none covers the offset; another call may find more behind the last one.
        """
        found: list[BlockFile] = []
        listed: dict[int, _Listing] = {}
        while True:
            farthest = max(0, offset - BLOCK_RECORDS_MAX) // SHARD_RECORDS
            for shard in range(offset // SHARD_RECORDS, farthest - 1, -1):
                if shard not in listed:
                    listed[shard] = self._list(shard)
                block = _covering(listed[shard], offset)
                if block is not None:
                    break
            else:
                return found
            found.append(block)
            offset = block.end

    def forget(self) -> None:
        """Drop all cached listings."""
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
        blocks = (known or _NOTHING).with_names(names)
        ends_at = max((block.end for block in blocks), default=0)
        listing = _Listing(changed_ns, settled, frozenset(names), blocks, ends_at)
        self._listings.pop(shard, None)
        self._listings[shard] = listing
        if len(self._listings) > _LISTINGS:
            self._listings.popitem(last=False)
        return listing


def _covering(listing: _Listing, offset: int) -> BlockFile | None:
    if listing.end <= offset:
        return None
    first = bisect_right(listing.blocks, offset, key=attrgetter("start"))
    return next((block for block in reversed(listing.blocks[:first]) if block.end > offset), None)


def list_shards(folder: Path) -> list[int]:
    """Return the numbers of the existing shard folders, ascending."""
    try:
        return sorted(map(int, filter(str.isdecimal, os.listdir(folder))))
    except FileNotFoundError:
        return []


def list_blocks(folder: Path, shard: int) -> list[BlockFile]:
    """Return the blocks of one shard by start; of several with the same start, the longest first."""
    try:
        names = os.listdir(shard_path(folder, shard))
    except FileNotFoundError:
        return []
    blocks = (block for name in names if (block := _parse(name)) is not None)
    return sorted(blocks, key=lambda block: (block.start, -block.end))


def blocks_from(folder: Path, from_offset: int = 0) -> Iterator[BlockFile]:
    """Yield the blocks that end after an offset, ordered like `list_blocks`, without cached listings."""
    farthest = max(0, from_offset - BLOCK_RECORDS_MAX) // SHARD_RECORDS
    for shard in list_shards(folder):
        if shard >= farthest:
            yield from (block for block in list_blocks(folder, shard) if block.end > from_offset)


def shard_path(folder: Path, shard: int) -> Path:
    """Return the folder of one shard."""
    return folder / f"{shard:04d}"


def range_of(path: Path) -> BlockFile | None:
    """Return the range of the block in a file, from the file's name; None if it is not a block's name."""
    return _parse(path.name)


@lru_cache(maxsize=4 * SHARD_RECORDS)
def _parse(name: str) -> BlockFile | None:
    start, _, end = name.removesuffix(SUFFIX).partition("-")
    if not name.endswith(SUFFIX) or not (start.isdecimal() and end.isdecimal()):
        return None
    return BlockFile(int(start), int(end))
