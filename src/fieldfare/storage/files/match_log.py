"""The match log in a folder of files, one per block; partitions other than 0 are in subfolders.

A block's file is written under a temporary name and renamed, so a killed process leaves a complete block or
none. Of the pipeline's blocks, those that `sync` has not synced yet may be torn or missing after a power
failure. Nothing counts them as matched before that, and the next pipeline matches their records again. So a
block is delivered without waiting for the disk.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path

from fieldfare.files import make_folder, sync_file, sync_folder, write_file, write_file_unsynced
from fieldfare.storage.bell import Bell, Listener
from fieldfare.storage.errors import CorruptBlockError, MatchLogError
from fieldfare.storage.files.compaction import Compaction
from fieldfare.storage.files.match_block import FileBlock, write_block
from fieldfare.storage.files.match_folder import (
    SUFFIX,
    BlockFile,
    BlockFolder,
    blocks_from,
    list_blocks,
    list_shards,
    range_of,
    shard_path,
)
from fieldfare.storage.files.match_sizes import MatchSizes
from fieldfare.storage.match_log import BLOCK_RECORDS_MAX, OPEN_BLOCKS_MAX, LostBlock, NewMatchBlock

SET_ASIDE = "set-aside"
"""Name of the subfolder of corrupt blocks that were set aside."""

BELL = ".bell"

READ_MAX_BYTES = 16 << 10
"""Bytes from which on a block is mapped; a smaller one is read, which takes less time."""

SYNCED_TOGETHER = 16
"""Maximum blocks that are synced at a time."""
SYNC_S = 0.5
"""Seconds after which a call of `sync` syncs no further blocks; the next call goes on."""

PARTITION = "partition-"
"""Name prefix of the subfolders of partitions other than 0."""

_ATTEMPTS = 100
"""Maximum attempts to open a block that is compacted meanwhile; then MatchLogError is raised."""


class FileMatchLog:
    """A `MatchLog` in a folder; the object is also its own partition 0, which has no subfolder.

    Parameters
    ----------
    folder
        Path of the folder; created when the first block is written.
    number
        Number of the partition.
    bell
        The bell of partition 0, for another one.
    """

    look_every_s = 0.0

    def __init__(self, folder: str | Path, number: int = 0, bell: Bell | None = None) -> None:
        self.folder = Path(folder).absolute()
        self.number = number
        self._bell = bell or Bell(self.folder / BELL)
        self._others: dict[int, FileMatchLog] = {}
        self._listing = BlockFolder(self.folder)
        self._lock = threading.Lock()
        self._open: OrderedDict[BlockFile, FileBlock] = OrderedDict()
        self.on_broken: Callable[[CorruptBlockError], None] | None = None
        self._sizes = MatchSizes(self.folder)
        self._syncers = ThreadPoolExecutor(SYNCED_TOGETHER, thread_name_prefix="fieldfare-match-sync")
        self._compaction = Compaction(self.folder, self._read, self.write, self._report)

    def __reduce__(self) -> tuple[type[FileMatchLog], tuple[str, int, Bell]]:
        return FileMatchLog, (str(self.folder), self.number, self._bell)

    def __repr__(self) -> str:
        return f"FileMatchLog({str(self.folder)!r})"

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def listen(self, partition: int) -> Listener:
        return self._bell.listen()

    def partition(self, number: int) -> FileMatchLog:
        if number == self.number:
            return self
        with self._lock:
            if number not in self._others:
                other = FileMatchLog(self.folder / f"{PARTITION}{number:04d}", number, self._bell)
                other.on_broken = self._report
                self._others[number] = other
            return self._others[number]

    def write(self, block: NewMatchBlock, *, synced: bool = True) -> int:
        path = BlockFile(block.start, block.end).path(self.folder)
        try:
            # A late task's block may replace a durable one, which `sync` does not look at again.
            write = write_file if synced else write_file_unsynced
            size_bytes = write(path, lambda file: write_block(block, file))
        except OSError as error:
            raise MatchLogError(f"{path} could not be written: {error}") from error
        self._bell.ring()
        return size_bytes

    def block_at(self, offset: int) -> FileBlock | None:
        # The next block of a service that keeps up, as a rule: opening it takes less time than a listing.
        found = self._block_of_one(offset)
        return self._block_listed(offset) if found is None else found

    def _block_of_one(self, offset: int) -> FileBlock | None:
        """Return the block of this record alone; None if there is none, or if it was used lately."""
        block = BlockFile(offset, offset + 1)
        with self._lock:
            if block in self._open:
                return None
        try:
            found = self._read(block)
        except FileNotFoundError:
            return None
        self._keep_open(block, found)
        return found

    def _keep_open(self, block: BlockFile, opened: FileBlock) -> None:
        with self._lock:
            self._open[block] = opened
            if len(self._open) > OPEN_BLOCKS_MAX:
                self._open.popitem(last=False)

    def _block_listed(self, offset: int) -> FileBlock | None:
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
                # The block was compacted after the listing: another block covers the offset now.
                self._forget()
                continue
            self._keep_open(found, block)
            return block
        raise MatchLogError(f"{self.folder}: a block of record {offset} is listed but cannot be opened")

    def end(self, from_offset: int = 0) -> int:
        end = from_offset
        for block in self._steps(from_offset):
            end = block.end
        return end

    def sync(self, from_offset: int) -> int:
        # Folders in any case: a process that writes synced files may be killed before it syncs them.
        end, until_s = from_offset, time.monotonic() + SYNC_S
        folders = {self.folder.parent, self.folder}  # The parent of other partitions is partition 0.
        if self.number:
            folders.add(self.folder.parent.parent)
        steps = self._steps(from_offset)
        # Several at a time: a file system's journal then has them in one commit.
        while blocks := list(islice(steps, SYNCED_TOGETHER)):
            list(self._syncers.map(self._sync_block, blocks))
            end = blocks[-1].end
            folders.update(shard_path(self.folder, block.shard) for block in blocks)
            if time.monotonic() > until_s:
                break
        for folder in folders:
            with suppress(FileNotFoundError):  # Compaction or retention has removed the folder.
                sync_folder(folder)
        return end

    def _sync_block(self, block: BlockFile) -> None:
        path = block.path(self.folder)
        try:
            sync_file(path)
        except FileNotFoundError:
            pass  # Compaction has merged it into a synced block.
        except OSError:
            # Another attempt would succeed, though the content may be lost. Its records are matched again.
            path.unlink(missing_ok=True)
            self._forget()
            raise

    def recover(self, from_offset: int) -> int:
        for block in list(blocks_from(self.folder, from_offset)):
            if self.trouble(block) is not None:
                block.path(self.folder).unlink(missing_ok=True)
        self._forget()
        return self.sync(from_offset)

    def greatest_end(self) -> int:
        for shard in reversed(list_shards(self.folder)):
            ends = [block.end for block in list_blocks(self.folder, shard)]
            if ends:
                # A block in an earlier folder may end later.
                farthest = max(0, max(ends) - BLOCK_RECORDS_MAX)
                return max(block.end for block in blocks_from(self.folder, farthest))
        return 0

    def next_start(self, offset: int) -> int | None:
        starts = (block.start for block in blocks_from(self.folder, offset) if block.start > offset)
        return min(starts, default=None)

    def trouble(self, block: tuple[int, int]) -> str | None:
        try:
            self._read(BlockFile(*block)).check()
        except FileNotFoundError:
            return None
        except CorruptBlockError as error:
            return str(error)
        return None

    def set_aside(self, block: tuple[int, int]) -> Path:
        start, end = block
        path = BlockFile(start, end).path(self.folder)
        kept = self.folder / SET_ASIDE / path.name
        try:
            make_folder(kept.parent)
            with suppress(FileExistsError):
                os.link(path, kept)
            sync_folder(kept.parent)
            # A gap block of the same name replaces the file; others fill what other blocks do not cover.
            filled = self.fill(start, end, besides=block)
            if block not in filled:
                path.unlink()
                sync_folder(path.parent)
        except OSError as error:
            raise MatchLogError(f"{path} could not be set aside: {error}") from error
        self.forget(block)
        return kept

    def forget(self, block: tuple[int, int]) -> None:
        with self._lock:
            self._open.pop(BlockFile(*block), None)
        self._sizes.forget(BlockFile(*block))

    def fill(self, start: int, end: int, besides: tuple[int, int] | None = None) -> list[BlockFile]:
        gaps: list[BlockFile] = []
        if start >= end:
            return gaps  # Called for every range; most have no hole, and a listing is expensive.
        for block in blocks_from(self.folder, start):
            if block.start >= end:
                break
            if block != besides:
                if block.start > start:
                    gaps.append(BlockFile(start, block.start))
                start = max(start, block.end)
        if start < end:
            gaps.append(BlockFile(start, end))
        pieces = [
            BlockFile(first, min(first + BLOCK_RECORDS_MAX, gap.end))
            for gap in gaps
            for first in range(gap.start, gap.end, BLOCK_RECORDS_MAX)
        ]
        for piece in pieces:
            self.write(NewMatchBlock.gap(*piece))
        return pieces

    def aside(self) -> list[Path]:
        """Return the files of this partition's blocks that were set aside."""
        return sorted((self.folder / SET_ASIDE).glob(f"*{SUFFIX}"))

    def lost(self) -> list[LostBlock]:
        return [
            LostBlock(each.number, *block, str(path))
            for each in self._all()
            for path in each.aside()
            if (block := range_of(path)) is not None
        ]

    def compact(self, before: int, most_blocks: int = 1 << 30) -> int:
        return self._compaction.compact(before, most_blocks)

    def trim(self, before: int) -> int:
        for path in self.aside():
            block = range_of(path)
            if block is not None and block.end <= before:
                path.unlink(missing_ok=True)
        return self._compaction.trim(before)

    def size_bytes(self) -> int:
        total = 0
        for folder in [each.folder for each in self._all()]:
            for block in blocks_from(folder):
                with suppress(FileNotFoundError):
                    total += block.path(folder).stat().st_size
        return total

    def sizes(self) -> dict[str, int]:
        return sum((each._sizes.sizes() for each in self._all()), Counter())

    def _all(self) -> list[FileMatchLog]:
        """Return all partitions with a folder."""
        names = (path.name.removeprefix(PARTITION) for path in self.folder.glob(f"{PARTITION}*"))
        return [self.partition(number) for number in (0, *sorted(map(int, filter(str.isdecimal, names))))]

    def _steps(self, offset: int) -> Iterator[BlockFile]:
        """Yield the blocks that a reader visits from an offset on."""
        while True:
            with self._lock:
                blocks = self._listing.chain(offset)
            if not blocks:
                return
            yield from blocks
            offset = blocks[-1].end

    def _read(self, block: BlockFile) -> FileBlock:
        path, content = block.path(self.folder), None
        try:
            with open(path, "rb", buffering=0) as file:
                content = file.read(READ_MAX_BYTES)
        except FileNotFoundError:
            raise
        except OSError:
            pass  # FileBlock tries again, and tells a rotten file from a lack of this process.
        if content is not None and len(content) == READ_MAX_BYTES:
            content = None
        return FileBlock(path, self.number, block, content)

    def _report(self, error: CorruptBlockError) -> None:
        if self.on_broken is not None:
            self.on_broken(error)

    def _forget(self) -> None:
        with self._lock:
            self._listing.forget()
