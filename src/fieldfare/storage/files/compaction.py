"""Keeping the match log's files few: merging small blocks, and deleting what retention gave up.

Both go through the folder from where they ended the last time, for a week's log may have 120,000 folders;
they list folders themselves, so that no reader waits for them. Either can be killed between any two steps: a
merged block is there for good before its parts are deleted, and readers mind neither state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldfare.files import remove_abandoned
from fieldfare.storage.errors import BrokenBlockError
from fieldfare.storage.files.match_block import FileBlock
from fieldfare.storage.files.match_folder import (
    SHARD_RECORDS,
    BlockFile,
    list_blocks,
    list_shards,
    shard_path,
)
from fieldfare.storage.match_log import MAX_BLOCK_EVENTS, MAX_BLOCK_RECORDS, NewMatchBlock

MAX_COMPACTED_MATCHES = 8_000_000
"""Compaction makes no block with more matches: it bounds the memory that it takes to about 100 MB."""

SMALL_MATCHES = 100
"""A block with no more is read once, when its size is looked at: to open its file takes longer than that."""

Content = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.uint32], Mapping[str, int]]
"""The counts of a block, its matches by event, and how many are of each space."""

Size = tuple[int, int]
"""The events and matches of a block."""


class Compaction:
    """Compaction and trimming of one match log, which one process does.

    Parameters
    ----------
    folder
        Where the log lies.
    read, write
        Open a block's file, and write one.
    broken
        Called with the error of a block that cannot be read; it is left alone.
    """

    def __init__(
        self,
        folder: Path,
        read: Callable[[BlockFile], FileBlock],
        write: Callable[[NewMatchBlock], int],
        broken: Callable[[BrokenBlockError], None],
    ) -> None:
        self._folder = folder
        self._read = read
        self._write = write
        self._broken = broken
        self._from: int | None = None
        self._lowest_shard: int | None = None
        self._small: dict[BlockFile, Content] = {}
        self._sizes: dict[BlockFile, Size] = {}

    def compact(self, before: int, most_blocks: int) -> int:
        """Merge neighbours that end at or before an offset; returns how many files that saved."""
        self._small.clear()
        blocks = self._window(before, most_blocks)
        saved = 0
        left: list[tuple[BlockFile, Size]] = []
        for run in self._runs(self._remove_contained(blocks)):
            merged = self._merge([block for block, _ in run]) if len(run) > 1 else None
            if merged is None:
                left += run
                continue
            whole = BlockFile(merged.start, merged.end)
            self._write(merged)
            self._delete([block for block, _ in run if block != whole])
            saved += len(run) - 1
            left.append((whole, (sum(size[0] for _, size in run), sum(size[1] for _, size in run))))
        if blocks:
            self._go_on_after(left, blocks[-1].end)
        return saved

    def trim(self, before: int) -> int:
        """Delete the blocks that end at or before an offset; returns how many those were."""
        removed = 0
        lowest: int | None = None
        for shard in self._shards(self._lowest_shard, before):
            removed += self._delete(
                [block for block in list_blocks(self._folder, shard) if block.end <= before]
            )
            folder = shard_path(self._folder, shard)
            remove_abandoned(folder)
            with suppress(OSError):  # It is not empty.
                folder.rmdir()
            if lowest is None and folder.is_dir():
                lowest = shard
        self._lowest_shard = before // SHARD_RECORDS if lowest is None else lowest
        return removed

    def _shards(self, first: int | None, before: int) -> range:
        """The numbers that folders may have which hold blocks from before an offset."""
        if first is None:
            first = next(iter(list_shards(self._folder)), before // SHARD_RECORDS + 1)
        return range(first, before // SHARD_RECORDS + 1)

    def _window(self, before: int, most_blocks: int) -> list[BlockFile]:
        """The next blocks to look at."""
        first = None if self._from is None else self._from // SHARD_RECORDS
        blocks: list[BlockFile] = []
        for shard in self._shards(first, before):
            remove_abandoned(shard_path(self._folder, shard))
            blocks += (
                block
                for block in list_blocks(self._folder, shard)
                if block.end <= before and block.start >= (self._from or 0)
            )
            if len(blocks) >= most_blocks:
                break
        return blocks

    def _go_on_after(self, left: Sequence[tuple[BlockFile, Size]], end: int) -> None:
        """Remember where the next call begins: with the last blocks, which what comes may be merged with."""
        at, events = end, 0
        self._sizes = {}
        for block, size in reversed(left):
            events += size[0]
            if block.end < at or events > MAX_BLOCK_EVENTS or end - block.start > MAX_BLOCK_RECORDS:
                break
            at = block.start
            self._sizes[block] = size
        self._from = at

    def _remove_contained(self, blocks: Sequence[BlockFile]) -> list[BlockFile]:
        """Delete the blocks whose records another block, which is whole, holds too."""
        kept: list[BlockFile] = []
        contained: dict[BlockFile, list[BlockFile]] = {}
        for block in blocks:
            if kept and block.end <= kept[-1].end:
                contained.setdefault(kept[-1], []).append(block)
            else:
                kept.append(block)
        for container, others in contained.items():
            try:
                self._read(container).check()
            except BrokenBlockError as error:
                self._broken(error)
            else:
                self._delete(others)
        return kept

    def _size(self, block: BlockFile) -> Size | None:
        known = self._sizes.get(block)
        if known is not None:
            return known
        try:
            opened = self._read(block)
            if opened.matches <= SMALL_MATCHES:
                self._small[block] = _content(opened)
        except BrokenBlockError as error:
            self._broken(error)
            return None
        except FileNotFoundError:
            return None
        return opened.events, opened.matches

    def _runs(self, blocks: Sequence[BlockFile]) -> Iterator[list[tuple[BlockFile, Size]]]:
        """All blocks that can be read, those together that are worth merging."""
        sized = [(block, size) for block in blocks if (size := self._size(block)) is not None]
        first = 0
        while first < len(sized):
            block, (events, matches) = sized[first]
            largest, last = events, first + 1
            while last < len(sized) and sized[last][0].start <= sized[last - 1][0].end:
                more_events, more_matches = sized[last][1]
                if (
                    events + more_events > MAX_BLOCK_EVENTS
                    or matches + more_matches > MAX_COMPACTED_MATCHES
                    or sized[last][0].end - block.start > MAX_BLOCK_RECORDS
                ):
                    break
                events, matches = events + more_events, matches + more_matches
                largest, last = max(largest, more_events), last + 1
            if last - first > 1 and 4 * largest <= 3 * events:
                yield sized[first:last]
                first = last
            else:
                yield sized[first : first + 1]
                first += 1

    def _merge(self, run: Sequence[BlockFile]) -> NewMatchBlock | None:
        at = run[0].start
        counts, lengths, subscriptions = [], [], []
        spaces, matches = Counter[str](), 0
        for block in run:
            try:
                found, indptr, numbers, of_spaces = self._small.get(block) or _content(self._read(block))
            except BrokenBlockError as error:
                self._broken(error)
                return None
            except FileNotFoundError:
                return None
            skipped = at - block.start
            first_event = int(found[:skipped].sum())
            counts.append(found[skipped:])
            lengths.append(np.diff(indptr[first_event:]))
            subscriptions.append(numbers[indptr[first_event] :])
            spaces.update(of_spaces)
            matches += numbers.size
            at = block.end
        indptr = np.concatenate(([0], np.cumsum(np.concatenate(lengths), dtype=np.int64)))
        merged = NewMatchBlock.by_event(
            run[0].start, at, np.concatenate(counts), indptr, np.concatenate(subscriptions)
        )
        # Blocks may overlap: what they have twice is taken to be of all spaces alike.
        kept = int(indptr[-1])
        return replace(merged, spaces={space: n * kept // max(1, matches) for space, n in spaces.items()})

    def _delete(self, blocks: Sequence[BlockFile]) -> int:
        for block in blocks:
            block.path(self._folder).unlink(missing_ok=True)
        return len(blocks)


def _content(block: FileBlock) -> Content:
    """What is merged of a block; it keeps no file open."""
    return block.counts.copy(), *block.by_event(), block.spaces
