"""How many bytes of a match log's folder are each space's.

What was found out of a block is kept, and a folder that has not changed is not listed again: a week's log may
have 120,000 of them, and is asked every few seconds. Whether one has changed is asked of the newest each
time, of the others in turns: there compaction has been, and what retention takes is seen by names alone.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from fieldfare.storage.files.match_block import shares_of
from fieldfare.storage.files.match_folder import (
    SETTLED_NS,
    BlockFile,
    list_blocks,
    list_shards,
    shard_path,
)

OPENED_AT_ONCE = 2_000
"""One look opens at most so many blocks that it does not know, the newest first."""

NEWEST_FOLDERS = 1_000
TURNS = 10
"""Of the folders that are older, and all known, a look asks one of so many whether it has changed."""


Shares = tuple[tuple[str, ...], "array[int]"]
"""Spaces, and how many bytes of a block are each one's: a week's, a dict for each block, took a gigabyte."""


class MatchSizes:
    """The bytes by space of one partition, which is asked by one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = 0
        self._settled: dict[int, int] = {}
        """When each folder changed of which all is known that is in it."""
        self._shares: dict[int, dict[BlockFile, Shares]] = {}
        self._total = Counter[str]()
        """What all of these are together: to add them up anew takes seconds where there are many spaces."""

    def forget(self, block: BlockFile) -> None:
        """Look at a block again: it was replaced."""
        self._settled.pop(block.shard, None)
        self._count(self._shares.get(block.shard, {}).pop(block, None), -1)

    def sizes(self) -> Counter[str]:
        """Look at what is new, and say what is known."""
        shards = list_shards(self._folder)
        for gone in self._shares.keys() - set(shards):
            self._take_over(gone, {})
            del self._shares[gone]
            self._settled.pop(gone, None)
        left = OPENED_AT_ONCE
        self._turn = (self._turn + 1) % TURNS
        for age, shard in enumerate(reversed(shards)):
            if age < NEWEST_FOLDERS or shard not in self._settled or shard % TURNS == self._turn:
                left -= self._look(shard, left)
            if left <= 0:
                break  # What older folders had the last time still counts.
        self._total = +self._total  # without the spaces that have nothing any more
        return self._total.copy()

    def _look(self, shard: int, most: int) -> int:
        """See which blocks a folder has; returns how many were opened."""
        try:
            changed_ns = os.stat(shard_path(self._folder, shard)).st_mtime_ns
        except FileNotFoundError:
            return 0
        if self._settled.get(shard) == changed_ns:
            return 0
        is_settled = time.time_ns() - changed_ns > SETTLED_NS
        known = self._shares.get(shard, {})
        found: dict[BlockFile, Shares] = {}
        opened = 0
        for block in reversed(list_blocks(self._folder, shard)):
            shares = known.get(block)
            if shares is None and opened < most:
                opened += 1
                shares = _packed(shares_of(block.path(self._folder)))
            if shares is None:
                is_settled = False  # Broken, which may be mended, or left for the next time.
            else:
                found[block] = shares
        self._take_over(shard, found)
        if is_settled:
            self._settled[shard] = changed_ns
        return opened

    def _take_over(self, shard: int, found: dict[BlockFile, Shares]) -> None:
        """From now on a folder has these blocks."""
        known = self._shares.get(shard, {})
        self._shares[shard] = found
        for block in known.keys() - found.keys():
            self._count(known[block], -1)
        for block in found.keys() - known.keys():
            self._count(found[block], 1)

    def _count(self, shares: Shares | None, times: int) -> None:
        for space, size_bytes in zip(*shares, strict=True) if shares is not None else ():
            self._total[space] += times * size_bytes


def _packed(shares: Mapping[str, int] | None) -> Shares | None:
    return None if shares is None else (tuple(map(sys.intern, shares)), array("q", shares.values()))
