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
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from fieldfare.storage.match_block import MAX_BLOCK_EVENTS

SHARD_RECORDS = 1_000
SUFFIX = ".arrow"

_SETTLED_NS = 50_000_000
"""A folder that changed less than this before it was listed may change again with the same time."""

MAX_BLOCK_RECORDS = MAX_BLOCK_EVENTS
"""A record has an event at least."""


class BlockRange(NamedTuple):
    """The records of one block."""

    start: int
    end: int

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
    blocks: tuple[BlockRange, ...] = ()
    """By start; of several with the same start the longest last."""
    end: int = 0
    shards: tuple[int, ...] = ()


class BlockFolder:
    """The listing of a match log's folder, which need not exist yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listings: dict[int | None, _Listing] = {}

    def covering(self, offset: int) -> BlockRange | None:
        """A block that holds the record at an offset, or None."""
        nearest = offset // SHARD_RECORDS
        farthest = max(0, offset - MAX_BLOCK_RECORDS) // SHARD_RECORDS
        shards = self._root().shards
        for place in range(bisect_right(shards, nearest) - 1, -1, -1):
            if shards[place] < farthest:
                break
            listing = self._shard(shards[place])
            if listing.end <= offset:
                continue
            first = bisect_right(listing.blocks, offset, key=attrgetter("start"))
            for block in reversed(listing.blocks[:first]):
                if block.end > offset:
                    return block
        return None

    def blocks(self, from_offset: int = 0) -> Iterator[BlockRange]:
        """The blocks that hold records from an offset on, by start; of the same start the longest first."""
        farthest = max(0, from_offset - MAX_BLOCK_RECORDS) // SHARD_RECORDS
        for shard in self._root().shards:
            if shard >= farthest:
                for block in sorted(self._shard(shard).blocks, key=lambda block: (block.start, -block.end)):
                    if block.end > from_offset:
                        yield block

    def shards(self) -> tuple[int, ...]:
        """The numbers of the folders that there are."""
        return self._root().shards

    def forget(self) -> None:
        """List everything anew when asked next."""
        self._listings.clear()

    def _root(self) -> _Listing:
        return self._list(None, self.folder)

    def _shard(self, shard: int) -> _Listing:
        return self._list(shard, shard_path(self.folder, shard))

    def _list(self, key: int | None, folder: Path) -> _Listing:
        try:
            changed_ns = os.stat(folder).st_mtime_ns
            known = self._listings.get(key)
            if known is not None and known.settled and known.changed_ns == changed_ns:
                return known
            settled = time.time_ns() - changed_ns > _SETTLED_NS
            names = os.listdir(folder)
        except FileNotFoundError:
            self._listings.pop(key, None)
            return _Listing(0, False)
        if key is None:
            listing = _Listing(
                changed_ns, settled, shards=tuple(sorted(map(int, filter(str.isdecimal, names))))
            )
        else:
            blocks = tuple(sorted(block for name in names if (block := _parse(name)) is not None))
            end = max((block.end for block in blocks), default=0)
            listing = _Listing(changed_ns, settled, blocks, end)
        self._listings[key] = listing
        return listing


def shard_path(folder: Path, shard: int) -> Path:
    """The folder of one shard."""
    return folder / f"{shard:04d}"


def _parse(name: str) -> BlockRange | None:
    start, _, end = name.removesuffix(SUFFIX).partition("-")
    if not name.endswith(SUFFIX) or not (start.isdecimal() and end.isdecimal()):
        return None
    return BlockRange(int(start), int(end))
