"""The match log: what the pipeline found, a block a range of records, in a folder of files.

A block is durable before it can be seen: its file is written under another name, synced, and renamed. The
sync costs a fraction of a millisecond; without it a power failure could take a block whose batch the pipeline
has committed, and nothing would match it again. (A killed process alone needs no sync.)

Blocks may overlap after a crash, when a batch was cut into other ranges the second time, and while a block
made by compaction stands beside those it was made of. They agree, for matches depend on log and registry
alone. So a reader steps from position to position: it takes any block that covers its position, what that
block holds from there on, and goes on at the block's end. Whatever is deleted meanwhile, it misses nothing
and meets nothing twice.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from fieldfare.storage.errors import MatchLogError
from fieldfare.storage.files import remove_abandoned, write_file
from fieldfare.storage.match_block import MAX_BLOCK_EVENTS, MatchBlock, NewMatchBlock, write_block
from fieldfare.storage.match_folder import BlockFolder, BlockRange, shard_path

MAX_COMPACTED_MATCHES = 8_000_000
"""Compaction makes no block with more matches: it bounds the memory that it takes to about 100 MB."""

_OPEN_BLOCKS = 16
_ATTEMPTS = 100


class MatchLog:
    """A match log in a folder; one may be opened in any number of processes, and pickled.

    Parameters
    ----------
    folder
        Where it lies; made when the first block is written.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).absolute()
        self._listing = BlockFolder(self.folder)
        self._lock = threading.Lock()
        self._open: OrderedDict[BlockRange, MatchBlock] = OrderedDict()
        self._sizes: dict[BlockRange, tuple[int, int]] = {}

    def __reduce__(self) -> tuple[type[MatchLog], tuple[str]]:
        return MatchLog, (str(self.folder),)

    def __repr__(self) -> str:
        return f"MatchLog({str(self.folder)!r})"

    def write(self, block: NewMatchBlock) -> int:
        """Write a block; durable and visible on return. A block of the same range is replaced.

        Returns
        -------
        int
            The size of its file in bytes.

        Raises
        ------
        ValueError
            The block's arrays do not fit together, or it has too many events.
        MatchLogError
            The file could not be written.
        """
        path = BlockRange(block.start, block.end).path(self.folder)
        try:
            return write_file(path, lambda file: write_block(block, file))
        except OSError as error:
            raise MatchLogError(f"{path} could not be written: {error}") from error

    def block_at(self, offset: int) -> MatchBlock | None:
        """A block that covers the record at an offset; None when that was not matched yet, or trimmed.

        Asking for what is not there yet costs a few stat calls, so it may be asked every few ms.
        """
        for _ in range(_ATTEMPTS):
            with self._lock:
                found = self._listing.covering(offset)
                if found is None:
                    return None
                known = self._open.pop(found, None)
                if known is not None:
                    self._open[found] = known
                    return known
            try:
                block = self._read(found)
            except FileNotFoundError:
                # Compacted since it was listed: now another block covers the offset.
                self._forget()
                continue
            with self._lock:
                self._open[found] = block
                if len(self._open) > _OPEN_BLOCKS:
                    self._open.popitem(last=False)
            return block
        raise MatchLogError(f"{self.folder}: a block of record {offset} is listed but cannot be opened")

    def end(self, from_offset: int = 0) -> int:
        """Up to which offset everything from ``from_offset`` on is there."""
        end = from_offset
        for block in self._blocks(from_offset):
            if block.start > end:
                break
            end = max(end, block.end)
        return end

    def compact(self, before: int) -> int:
        """Merge neighbouring blocks that end at or before an offset; returns how many files that saved.

        Blocks grow up to 65,536 events. In a merge no block makes up more than three quarters: a large one
        is not written again for a small one's sake. A block made so has no ``extra``: its parts' figures
        have no common meaning. To be called by one process at a time, which no one else needs to know of.
        """
        blocks = self._remove_contained([block for block in self._blocks(0) if block.end <= before])
        saved = 0
        for run in self._runs(blocks):
            merged = self._merge(run)
            self.write(merged)
            whole = BlockRange(merged.start, merged.end)
            saved += self._delete([block for block in run if block != whole]) - 1
        self._forget()
        return saved

    def trim(self, before: int) -> int:
        """Delete the blocks that end at or before an offset; returns how many those were."""
        removed = self._delete([block for block in self._blocks(0) if block.end <= before])
        for shard in self._listing.shards():
            folder = shard_path(self.folder, shard)
            remove_abandoned(folder)
            try:
                folder.rmdir()
            except OSError:
                pass  # It is not empty.
        self._forget()
        return removed

    def size_bytes(self) -> int:
        """The size of all files."""
        total = 0
        for block in self._blocks(0):
            try:
                total += block.path(self.folder).stat().st_size
            except FileNotFoundError:
                pass
        return total

    def _blocks(self, from_offset: int) -> list[BlockRange]:
        with self._lock:
            return list(self._listing.blocks(from_offset))

    def _read(self, block: BlockRange) -> MatchBlock:
        opened = MatchBlock(block.path(self.folder))
        if (opened.start, opened.end) != block:
            raise MatchLogError(f"{opened.path} holds the records {opened.start}-{opened.end}")
        return opened

    def _remove_contained(self, blocks: Sequence[BlockRange]) -> list[BlockRange]:
        """Delete the blocks whose records another block holds too."""
        kept: list[BlockRange] = []
        contained = []
        for block in blocks:
            if kept and block.end <= kept[-1].end:
                contained.append(block)
            else:
                kept.append(block)
        self._delete(contained)
        return kept

    def _size(self, block: BlockRange) -> tuple[int, int]:
        opened = self._read(block)
        return opened.events, opened.matches

    def _runs(self, blocks: Sequence[BlockRange]) -> Iterator[list[BlockRange]]:
        """The runs of neighbours that are worth merging."""
        sizes = {block: self._sizes.get(block) or self._size(block) for block in blocks}
        self._sizes = sizes
        first = 0
        while first < len(blocks):
            events, matches = sizes[blocks[first]]
            largest, last = events, first + 1
            while last < len(blocks) and blocks[last].start <= blocks[last - 1].end:
                more_events, more_matches = sizes[blocks[last]]
                if events + more_events > MAX_BLOCK_EVENTS or matches + more_matches > MAX_COMPACTED_MATCHES:
                    break
                events, matches = events + more_events, matches + more_matches
                largest, last = max(largest, more_events), last + 1
            if last - first > 1 and 4 * largest <= 3 * events:
                yield list(blocks[first:last])
                first = last
            else:
                first += 1

    def _merge(self, run: Sequence[BlockRange]) -> NewMatchBlock:
        at = run[0].start
        counts, lengths, subscriptions = [], [], []
        for block in run:
            opened = self._read(block)
            skipped = at - block.start
            first_event = int(opened.counts[:skipped].sum())
            indptr, numbers = opened.by_event()
            counts.append(opened.counts[skipped:])
            lengths.append(np.diff(indptr[first_event:]))
            subscriptions.append(numbers[indptr[first_event] :])
            at = block.end
        indptr = np.concatenate(([0], np.cumsum(np.concatenate(lengths), dtype=np.int64)))
        return NewMatchBlock.by_event(
            run[0].start, at, np.concatenate(counts), indptr, np.concatenate(subscriptions)
        )

    def _delete(self, blocks: Sequence[BlockRange]) -> int:
        for block in blocks:
            block.path(self.folder).unlink(missing_ok=True)
        return len(blocks)

    def _forget(self) -> None:
        with self._lock:
            self._listing.forget()
