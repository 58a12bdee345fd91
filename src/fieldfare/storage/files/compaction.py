"""Compaction and trimming of the match log's files: merge small blocks, delete the ones beyond retention.

Both resume where they ended the last time, because a week's log may have 120,000 folders; they list folders
themselves, so that no reader waits for them. Both may be killed between any two steps: a merged block is
durable before its parts are deleted, and readers handle either state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fieldfare.files import remove_abandoned, sync_file, sync_folder
from fieldfare.matching.pairs import lists_of_keys
from fieldfare.storage.errors import CorruptBlockError
from fieldfare.storage.files.match_block import FileBlock
from fieldfare.storage.files.match_folder import (
    SHARD_RECORDS,
    BlockFile,
    list_blocks,
    list_shards,
    shard_path,
)
from fieldfare.storage.match_log import BLOCK_EVENTS_MAX, BLOCK_RECORDS_MAX, NewMatchBlock

COMPACTED_MATCHES_MAX = 8_000_000
"""Maximum matches of a block that compaction creates, which limits its memory to about 200 MB."""

SMALL_MATCHES = 100
"""Maximum matches of a block that is read completely when its size is checked: opening it again takes
longer."""

Content = tuple[NDArray[np.int32], NDArray[np.uint64], Mapping[str, int]]
"""The counts of a block, the keys of its matches, and the number of matches of each space."""

Size = tuple[int, int]
"""The number of events and of matches of a block."""


class Compaction:
    """Compaction and trimming of one match log, by one process.

    Parameters
    ----------
    folder
        The folder of the log.
    read, write
        Functions that open a block's file and write a block.
    broken
        Called with the error of each block that cannot be read; such a block is left alone.
    """

    def __init__(
        self,
        folder: Path,
        read: Callable[[BlockFile], FileBlock],
        write: Callable[[NewMatchBlock], int],
        broken: Callable[[CorruptBlockError], None],
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
        """Merge adjacent blocks that end at or before an offset; return the number of files saved."""
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
            self._restore_revision(left, blocks[-1].end)
        return saved

    def trim(self, before: int) -> int:
        """Delete the blocks that end at or before an offset; return their number."""
        removed = 0
        lowest: int | None = None
        for shard in self._shards(self._lowest_shard, before):
            removed += self._delete(
                [block for block in list_blocks(self._folder, shard) if block.end <= before]
            )
            folder = shard_path(self._folder, shard)
            remove_abandoned(folder)
            with suppress(OSError):  # The folder is not empty.
                folder.rmdir()
            if lowest is None and folder.is_dir():
                lowest = shard
        self._lowest_shard = before // SHARD_RECORDS if lowest is None else lowest
        return removed

    def _shards(self, first: int | None, before: int) -> range:
        """Return the range of numbers of folders that may have blocks before an offset."""
        if first is None:
            first = next(iter(list_shards(self._folder)), before // SHARD_RECORDS + 1)
        return range(first, before // SHARD_RECORDS + 1)

    def _window(self, before: int, most_blocks: int) -> list[BlockFile]:
        """Return the next blocks to examine."""
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

    def _restore_revision(self, left: Sequence[tuple[BlockFile, Size]], end: int) -> None:
        """Set where the next call resumes: at the last blocks that later ones may be merged with."""
        at, events = end, 0
        self._sizes = {}
        for block, size in reversed(left):
            events += size[0]
            if block.end < at or events > BLOCK_EVENTS_MAX or end - block.start > BLOCK_RECORDS_MAX:
                break
            at = block.start
            self._sizes[block] = size
        self._from = at

    def _remove_contained(self, blocks: Sequence[BlockFile]) -> list[BlockFile]:
        """Delete the blocks whose range another, intact block contains; return the others."""
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
            except CorruptBlockError as error:
                self._broken(error)
            else:
                # It may be the late block of a task, and the others durable.
                path = container.path(self._folder)
                sync_file(path)
                sync_folder(path.parent)
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
        except CorruptBlockError as error:
            self._broken(error)
            return None
        except FileNotFoundError:
            return None
        return opened.events, opened.matches

    def _runs(self, blocks: Sequence[BlockFile]) -> Iterator[list[tuple[BlockFile, Size]]]:
        """Yield the readable blocks in runs; each run of several blocks is worth merging."""
        sized = [(block, size) for block in blocks if (size := self._size(block)) is not None]
        first = 0
        while first < len(sized):
            block, (events, matches) = sized[first]
            largest, last = events, first + 1
            while last < len(sized) and sized[last][0].start <= sized[last - 1][0].end:
                more_events, more_matches = sized[last][1]
                if (
                    events + more_events > BLOCK_EVENTS_MAX
                    or matches + more_matches > COMPACTED_MATCHES_MAX
                    or sized[last][0].end - block.start > BLOCK_RECORDS_MAX
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
        at, events, matches = run[0].start, 0, 0
        counts, keys = [], []
        spaces = Counter[str]()
        for block in run:
            try:
                found, of_block, of_spaces = self._small.get(block) or _content(self._read(block))
            except CorruptBlockError as error:
                self._broken(error)
                return None
            except FileNotFoundError:
                return None
            skipped = at - block.start
            first_event = int(found[:skipped].sum())
            counts.append(found[skipped:])
            matches += of_block.size
            if first_event:
                of_block = of_block[of_block.astype(np.uint16) >= first_event] - np.uint64(first_event)
            keys.append(of_block + np.uint64(events))
            spaces.update(of_spaces)
            events += int(counts[-1].sum())
            at = block.end
        lists = lists_of_keys(np.concatenate(keys))
        # Blocks may overlap: assume that their common matches are spread evenly over the spaces.
        kept = {space: n * lists.ordinals.size // max(1, matches) for space, n in spaces.items()}
        return NewMatchBlock(run[0].start, at, np.concatenate(counts), lists, spaces=kept)

    def _delete(self, blocks: Sequence[BlockFile]) -> int:
        for block in blocks:
            block.path(self._folder).unlink(missing_ok=True)
        return len(blocks)


def _content(block: FileBlock) -> Content:
    """Return the content of a block for merging; it keeps no file open."""
    return block.counts.copy(), block.keys(), block.spaces
