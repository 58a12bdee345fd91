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

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from fieldfare.files import make_folder, sync_folder, write_file
from fieldfare.storage.errors import BrokenBlockError, MatchLogError
from fieldfare.storage.match_block import MAX_BLOCK_RECORDS, MatchBlock, NewMatchBlock, write_block
from fieldfare.storage.match_compaction import Compaction
from fieldfare.storage.match_folder import (
    SUFFIX,
    BlockFolder,
    BlockRange,
    blocks_from,
    list_blocks,
    list_shards,
    range_of,
    shard_path,
)

SET_ASIDE = "set-aside"
"""The folder, within the match log's, of blocks that have rotted."""

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
        self.on_broken: Callable[[BrokenBlockError], None] | None = None
        """Called with the error of a block that compaction finds broken."""
        self._compaction = Compaction(self.folder, self._read, self.write, self._report)

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
                found = self._listing.covering(offset, polled=True)
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
        for block in self._steps(from_offset):
            end = block.end
        return end

    def sync(self, from_offset: int) -> int:
        """Make sure that a power failure takes no block any more, from an offset on up to the end given.

        A block's file is synced before it has its name; the names are synced here once more, for the process
        that wrote one may have been killed before it could. Only what lies before the end given may be
        reported as committed: the registry forgets what matching it again would need.

        Returns
        -------
        int
            Up to which offset everything from ``from_offset`` on is there for good.
        """
        end = from_offset
        folders = {self.folder.parent, self.folder}
        for block in self._steps(from_offset):
            end = block.end
            folders.add(shard_path(self.folder, block.shard))
        for folder in folders:
            with suppress(FileNotFoundError):  # A compaction or retention was quicker.
                sync_folder(folder)
        return end

    def recover(self, from_offset: int) -> int:
        """For the pipeline when it starts: drop the torn blocks that start at an offset or after it.

        What lies there was not committed, so it can be matched again, and is: from the end given on. What
        lies before was, and cannot: see `set_aside`.

        Returns
        -------
        int
            Up to which offset everything from ``from_offset`` on is there, whole, and for good.
        """
        for block in list(blocks_from(self.folder, from_offset)):
            if block.start >= from_offset and self.trouble(block) is not None:
                block.path(self.folder).unlink(missing_ok=True)
        self._forget()
        return self.sync(from_offset)

    def greatest_end(self) -> int:
        """Behind the last record that any block holds; 0 when there is none."""
        for shard in reversed(list_shards(self.folder)):
            ends = [block.end for block in list_blocks(self.folder, shard)]
            if ends:
                # A block that begins in an earlier folder may reach farther.
                farthest = max(0, max(ends) - MAX_BLOCK_RECORDS)
                return max(block.end for block in blocks_from(self.folder, farthest))
        return 0

    def next_start(self, offset: int) -> int | None:
        """Where the first block after an offset begins that does not hold it; None when there is none."""
        starts = (block.start for block in blocks_from(self.folder, offset) if block.start > offset)
        return min(starts, default=None)

    def trouble(self, block: BlockRange) -> str | None:
        """What is wrong with a block, all of which is read; None when nothing is, or when it has gone."""
        try:
            self._read(block).check()
        except FileNotFoundError:
            return None
        except BrokenBlockError as error:
            return str(error)
        return None

    def set_aside(self, block: BlockRange) -> Path:
        """Take a broken block out of the log, and fill the gap that it leaves; returns where its file lies.

        It can be killed between any two steps: until the broken block is gone, the next one begins again.
        """
        path = block.path(self.folder)
        kept = self.folder / SET_ASIDE / path.name
        try:
            make_folder(kept.parent)
            with suppress(FileExistsError):
                os.link(path, kept)
            sync_folder(kept.parent)
            # One of the same name replaces it; other names are for what other blocks leave open.
            filled = self.fill(block.start, block.end, besides=block)
            if block not in filled:
                path.unlink()
                sync_folder(path.parent)
        except OSError as error:
            raise MatchLogError(f"{path} could not be set aside: {error}") from error
        self.forget(path)
        return kept

    def forget(self, path: Path) -> None:
        """Read a block's file anew when it is needed next: it was replaced."""
        block = range_of(path)
        with self._lock:
            if block is not None:
                self._open.pop(block, None)

    def fill(self, start: int, end: int, besides: BlockRange | None = None) -> list[BlockRange]:
        """Write blocks that say nothing for the records that no block holds, ``besides`` not counted."""
        gaps: list[BlockRange] = []
        for block in blocks_from(self.folder, start):
            if block.start >= end:
                break
            if block != besides:
                if block.start > start:
                    gaps.append(BlockRange(start, block.start))
                start = max(start, block.end)
        if start < end:
            gaps.append(BlockRange(start, end))
        pieces = [
            BlockRange(first, min(first + MAX_BLOCK_RECORDS, gap.end))
            for gap in gaps
            for first in range(gap.start, gap.end, MAX_BLOCK_RECORDS)
        ]
        for piece in pieces:
            self.write(NewMatchBlock.gap(*piece))
        return pieces

    def aside(self) -> list[Path]:
        """The files of the blocks that were set aside, and are kept for a person to look at."""
        return sorted((self.folder / SET_ASIDE).glob(f"*{SUFFIX}"))

    def compact(self, before: int, most_blocks: int = 1 << 30) -> int:
        """Merge neighbouring blocks that end at or before an offset; returns how many files that saved.

        Blocks grow up to 65,536 events. In a merge no block makes up more than three quarters: a large one
        is not written again for a small one's sake. A block made so has no ``extra``: its parts' figures
        have no common meaning. To be called by one process at a time, which no one else needs to know of.
        It goes on where the last call ended, and looks at about ``most_blocks``. A broken block is left
        alone, and reported to `on_broken`.
        """
        return self._compaction.compact(before, most_blocks)

    def trim(self, before: int) -> int:
        """Delete the blocks that end at or before an offset; returns how many those were."""
        for path in self.aside():
            block = range_of(path)
            if block is not None and block.end <= before:
                path.unlink(missing_ok=True)
        return self._compaction.trim(before)

    def size_bytes(self) -> int:
        """The size of all files."""
        total = 0
        for block in blocks_from(self.folder):
            with suppress(FileNotFoundError):
                total += block.path(self.folder).stat().st_size
        return total

    def _steps(self, offset: int) -> Iterator[BlockRange]:
        """The blocks that a reader meets who goes on from an offset."""
        while True:
            with self._lock:
                block = self._listing.covering(offset)
            if block is None:
                return
            yield block
            offset = block.end

    def _read(self, block: BlockRange) -> MatchBlock:
        opened = MatchBlock(block.path(self.folder))
        if (opened.start, opened.end) != block:
            raise BrokenBlockError(
                opened.path, f"{opened.path} holds the records {opened.start}-{opened.end}"
            )
        return opened

    def _report(self, error: BrokenBlockError) -> None:
        if self.on_broken is not None:
            self.on_broken(error)

    def _forget(self) -> None:
        with self._lock:
            self._listing.forget()
