"""An index of the blocks in one partition of the topic, as far as a reader has read it.

    topic   ... ├──── page ────┼──── page ────┼──── page ────┤ end
                               low ◀── reached back    followed ──▶ high

A reader begins at the topic's end. It reads new messages as they arrive, and older pages when a caller asks
for a block that they may hold. Blocks are written roughly in the order of their records: the pipeline matches
one batch after another, and blocks of records that are matched again are appended at the end. So if a
complete page contains only blocks before a record, that record's block is not farther back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import NamedTuple

from fieldfare.storage.match_log import BLOCK_RECORDS_MAX, BlockRange

_NO_END = 1 << 62


class BlockPlace(NamedTuple):
    """The place of a block in the topic: its first and last message, its ID and its number of pieces."""

    first: int
    last: int
    id: str
    pieces: int


class BlockPlaces:
    """An index of blocks by their ranges of records."""

    def __init__(self) -> None:
        self._places: dict[BlockRange, BlockPlace] = {}
        self._ranges: list[BlockRange] = []
        self._trimmed = 0

    def __len__(self) -> int:
        return len(self._ranges)

    def add(self, block: BlockRange, place: BlockPlace) -> None:
        """Add a block; of several blocks with the same range, the last one in the topic counts."""
        if block.end <= self._trimmed:
            return
        known = self._places.get(block)
        if known is None:
            insort(self._ranges, block)
        if known is None or known.first < place.first:
            self._places[block] = place

    def covering(self, offset: int) -> tuple[BlockRange, BlockPlace] | None:
        """Return a block that holds a record; None if no indexed block does."""
        for place in range(bisect_right(self._ranges, (offset, _NO_END)) - 1, -1, -1):
            block = self._ranges[place]
            if block.end > offset:
                return block, self._places[block]
            if block.start <= offset - BLOCK_RECORDS_MAX:
                break
        return None

    def place_of(self, block: BlockRange) -> BlockPlace | None:
        """Return the place of the block with exactly this range; None if it is not indexed."""
        return self._places.get(block)

    def next_start(self, offset: int) -> int | None:
        """Return the start of the first block after a record; None if there is none."""
        place = bisect_right(self._ranges, (offset, _NO_END))
        return self._ranges[place].start if place < len(self._ranges) else None

    def greatest_end(self) -> int:
        """Return the greatest end of any block; 0 if there is none."""
        greatest = 0
        for block in reversed(self._ranges):
            greatest = max(greatest, block.end)
            if block.start <= greatest - BLOCK_RECORDS_MAX:
                break
        return greatest

    def remove_before(self, offset: int) -> None:
        """Remove the blocks that end at or before a record; later calls of `add` ignore such blocks."""
        self._trimmed = max(self._trimmed, offset)
        stop = bisect_left(self._ranges, (offset, 0))
        kept = [block for block in self._ranges[:stop] if block.end > offset]
        for block in self._ranges[:stop]:
            if block.end <= offset:
                del self._places[block]
        self._ranges[:stop] = kept

    def remove(self, block: BlockRange) -> None:
        """Remove a block from the index."""
        if self._places.pop(block, None) is not None:
            del self._ranges[bisect_left(self._ranges, block)]
