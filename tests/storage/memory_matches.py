"""A match log and an index store in memory, as for an implementation without a folder of files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from deaf_waiter import DeafWaiter
from numpy.typing import NDArray

from fieldfare.matching.pairs import MatchLists
from fieldfare.pipeline.manifest import Manifest, decode_manifest, encode_manifest
from fieldfare.storage.errors import CorruptBlockError, IndexStoreError
from fieldfare.storage.match_log import BLOCK_RECORDS_MAX, BlockRange, LostBlock, NewMatchBlock


class MemoryBlock:
    """A `MatchBlock`: what each event matched, in a list."""

    def __init__(self, block: NewMatchBlock) -> None:
        self.start, self.end = block.start, block.end
        self.counts: NDArray[np.int32] = block.counts
        self.extra: Mapping[str, int | float] = dict(block.extra)
        self.spaces: Mapping[str, int] = dict(block.spaces)
        self.events = int(block.counts.sum())
        self._found: list[list[int]] = [[] for _ in range(self.events)]
        for numbers, starts, ordinals in block.pieces():
            for number, first, end in zip(numbers.tolist(), starts[:-1], starts[1:], strict=True):
                for ordinal in ordinals[first:end].tolist():
                    self._found[ordinal].append(number)
        self.matches = sum(map(len, self._found))
        records = np.repeat(np.arange(len(self.counts)), self.counts)
        begins = np.concatenate(([0], np.cumsum(self.counts)))
        self._places = [(self.start + int(r), e - int(begins[r])) for e, r in enumerate(records)]

    def matches_of(
        self, number: int, from_offset: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        first = self.start if from_offset is None else from_offset
        found = [
            place
            for place, numbers in zip(self._places, self._found, strict=True)
            if number in numbers and place[0] >= first
        ]
        return np.array([o for o, _ in found], np.int64), np.array([i for _, i in found], np.int32)

    def matches_of_each(
        self, numbers: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        found = [self.matches_of(number) for number in numbers.tolist()]
        bounds = np.cumsum([0, *(len(offsets) for offsets, _ in found)], dtype=np.int64)
        offsets = np.concatenate([np.zeros(0, np.int64), *(offsets for offsets, _ in found)])
        return bounds, offsets, np.concatenate([np.zeros(0, np.int32), *(indexes for _, indexes in found)])

    def numbers(self) -> NDArray[np.uint32]:
        return np.array(sorted({number for found in self._found for number in found}), np.uint32)

    def lengths(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        numbers, lengths = np.unique(self.by_event()[1], return_counts=True)
        return numbers, lengths

    def by_event(self) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        lengths = np.cumsum([0, *map(len, self._found)], dtype=np.int64)
        return lengths, np.array([n for found in self._found for n in sorted(found)], np.uint32)

    def check(self) -> None:
        """Do nothing: blocks in memory cannot be damaged."""


class MemoryMatchPartition:
    """One partition: a dict of blocks."""

    def __init__(self) -> None:
        self.blocks: dict[BlockRange, MemoryBlock] = {}

    def block_at(self, offset: int) -> MemoryBlock | None:
        return next((block for (start, end), block in self.blocks.items() if start <= offset < end), None)

    def end(self, from_offset: int = 0) -> int:
        while (block := self.block_at(from_offset)) is not None:
            from_offset = block.end
        return from_offset

    def next_start(self, offset: int) -> int | None:
        return min((start for start, _ in self.blocks if start > offset), default=None)

    def greatest_end(self) -> int:
        return max((end for _, end in self.blocks), default=0)

    def write(self, block: NewMatchBlock, *, synced: bool = True) -> int:
        block.check()
        if isinstance(block.lists, MatchLists):
            ordinals, starts = block.lists.ordinals.astype(np.int64), block.lists.starts
            rising = np.diff(ordinals) > 0
            rising[starts[1:-1] - 1] = True
            if not rising.all():
                raise block.refusal("the events of a list are not in ascending order")
        self.blocks[BlockRange(block.start, block.end)] = MemoryBlock(block)
        return block.end - block.start

    def sync(self, from_offset: int) -> int:
        return self.end(from_offset)

    def recover(self, from_offset: int) -> int:
        return self.end(from_offset)

    def fill(self, start: int, end: int) -> list[BlockRange]:
        filled = []
        while start < end:
            block = self.block_at(start)
            if block is not None:
                start = block.end
                continue
            until = min(end, start + BLOCK_RECORDS_MAX, self.next_start(start) or end)
            self.write(NewMatchBlock.gap(start, until))
            filled.append(BlockRange(start, until))
            start = until
        return filled

    def compact(self, before: int, most_blocks: int = 1 << 30) -> int:
        return 0

    def trim(self, before: int) -> int:
        old = [block for block in self.blocks if block.end <= before]
        for block in old:
            del self.blocks[block]
        return len(old)

    def trouble(self, block: tuple[int, int]) -> str | None:
        return None

    def set_aside(self, block: tuple[int, int]) -> object:
        raise AssertionError("nothing of it can break")

    def forget(self, block: tuple[int, int]) -> None:
        """Do nothing: nothing is cached."""


class MemoryMatchLog:
    """A `MatchLog` of this process."""

    url = "memory:"
    look_every_s = 0.0
    on_broken: Callable[[CorruptBlockError], None] | None = None

    def __init__(self) -> None:
        self._partitions: dict[int, MemoryMatchPartition] = {}

    def listen(self, partition: int) -> DeafWaiter:
        return DeafWaiter()

    def partition(self, number: int) -> MemoryMatchPartition:
        return self._partitions.setdefault(number, MemoryMatchPartition())

    def lost(self) -> list[LostBlock]:
        return []

    def size_bytes(self) -> int:
        return sum(len(each.blocks) for each in self._partitions.values())

    def sizes(self) -> dict[str, int]:
        return {}


class MemoryIndexStore:
    """An `IndexStore` whose manifests are in memory, and whose files are in a temporary folder."""

    def __init__(self) -> None:
        self._manifests: dict[int, bytes] = {}
        self._here = tempfile.TemporaryDirectory()

    def path(self, name: str) -> Path:
        if not name or name.startswith(".") or "/" in name or name.endswith(".tmp"):
            raise ValueError(f"{name!r} is not the name of an index file")
        return Path(self._here.name) / name

    def write_manifest(self, manifest: Manifest) -> None:
        if manifest.number <= (newest := self.greatest_number()) and self._manifests:
            raise IndexStoreError(f"manifest {newest} was written before")
        for name in sorted(manifest.files()):
            if not self.path(name).exists():
                raise IndexStoreError(f"it names {name}, which is not there")
        self._manifests[manifest.number] = encode_manifest(manifest)

    def manifest(self, number: int) -> Manifest:
        if number not in self._manifests:
            raise IndexStoreError(f"there is no manifest {number}")
        return decode_manifest(self._manifests[number])

    def newest(self) -> Manifest | None:
        return self.manifest(self.greatest_number()) if self._manifests else None

    def greatest_number(self) -> int:
        return max(self._manifests, default=0)

    def collect(self, keep_from: int) -> int:
        newest = self.greatest_number()
        for number in [n for n in self._manifests if n < keep_from and n != newest]:
            del self._manifests[number]
        needed = frozenset[str]().union(*(self.manifest(number).files() for number in self._manifests))
        gone = [path for path in Path(self._here.name).iterdir() if path.name not in needed]
        for path in gone:
            path.unlink()
        return len(gone)
