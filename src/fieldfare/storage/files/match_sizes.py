"""The bytes of a match log's folder that belong to each space.

Sizes of blocks are cached, and an unchanged folder is not listed again: a week's log may have 120,000
folders, and is measured every few seconds. Each measurement checks the newest folders for changes and a
fraction of the others: those were compacted already, and folders removed by retention are detected by their
names alone.
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

OPENED_BATCH_SIZE = 2_000
"""Maximum unknown blocks that one measurement opens, the newest first; the next measurement resumes."""

NEWEST_FOLDERS = 1_000
"""Number of newest folders that every measurement checks for changes."""
TURNS = 10
"""Number of measurements in which each older, completely known folder is checked once for changes."""


Shares = tuple[tuple[str, ...], "array[int]"]
"""Spaces and the bytes of a block that belong to each; dicts for the blocks of a week would take a
gigabyte."""


class MatchSizes:
    """The bytes by space of one partition; use it from one thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = 0
        self._settled: dict[int, int] = {}
        """Modification time of each folder whose blocks are all known."""
        self._shares: dict[int, dict[BlockFile, Shares]] = {}
        self._total = Counter[str]()
        """Total bytes by space, kept up to date: summing again takes seconds with many spaces."""

    def forget(self, block: BlockFile) -> None:
        """Drop the cached size of a block that was replaced."""
        self._settled.pop(block.shard, None)
        self._count(self._shares.get(block.shard, {}).pop(block, None), -1)

    def sizes(self) -> Counter[str]:
        """Examine new and changed folders, and return the known bytes by space."""
        shards = list_shards(self._folder)
        for gone in self._shares.keys() - set(shards):
            self._take_over(gone, {})
            del self._shares[gone]
            self._settled.pop(gone, None)
        left = OPENED_BATCH_SIZE
        self._turn = (self._turn + 1) % TURNS
        for age, shard in enumerate(reversed(shards)):
            if age < NEWEST_FOLDERS or shard not in self._settled or shard % TURNS == self._turn:
                left -= self._look(shard, left)
            if left <= 0:
                break  # The last known sizes of older folders still count.
        self._total = +self._total  # Drop spaces without bytes.
        return self._total.copy()

    def _look(self, shard: int, most: int) -> int:
        """Update the sizes of a folder's blocks; open at most `most` and return how many were opened."""
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
                is_settled = False  # Corrupt, which may be repaired, or left for the next measurement.
            else:
                found[block] = shares
        self._take_over(shard, found)
        if is_settled:
            self._settled[shard] = changed_ns
        return opened

    def _take_over(self, shard: int, found: dict[BlockFile, Shares]) -> None:
        """Replace the known blocks of a folder and update the totals."""
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
