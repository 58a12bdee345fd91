"""Where in a partition of the topic which blocks stand: what a reader has met of it so far.

    topic   ... ├──── page ────┼──── page ────┼──── page ────┤ end
                               low ◀── reached back    followed ──▶ high

A reader begins at the topic's end. New messages are met as they come; older pages when somebody asks for
what they may hold. Blocks are written about in the order of their records: the pipeline matches batch after
batch, what is matched again is written anew, and stands behind. So where a whole page lies before a record,
that record's block is not farther back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import NamedTuple

from fieldfare.storage.match_log import MAX_BLOCK_RECORDS, BlockRange

_NO_END = 1 << 62


class BlockPlace(NamedTuple):
    """Where a block's messages stand in the topic, and how many pieces it has."""

    first: int
    last: int
    id: str
    pieces: int


class BlockPlaces:
    """The blocks met, by the ranges of their records."""

    def __init__(self) -> None:
        self._places: dict[BlockRange, BlockPlace] = {}
        self._ranges: list[BlockRange] = []
        self._trimmed = 0

    def __len__(self) -> int:
        return len(self._ranges)

    def add(self, block: BlockRange, place: BlockPlace) -> None:
        """Take a block in; of several of one range the last one in the topic counts."""
        if block.end <= self._trimmed:
            return
        known = self._places.get(block)
        if known is None:
            insort(self._ranges, block)
        if known is None or known.first < place.first:
            self._places[block] = place

    def covering(self, offset: int) -> tuple[BlockRange, BlockPlace] | None:
        """A block that holds a record."""
        for place in range(bisect_right(self._ranges, (offset, _NO_END)) - 1, -1, -1):
            block = self._ranges[place]
            if block.end > offset:
                return block, self._places[block]
            if block.start <= offset - MAX_BLOCK_RECORDS:
                break
        return None

    def place_of(self, block: BlockRange) -> BlockPlace | None:
        """Where the block of just this range stands."""
        return self._places.get(block)

    def next_start(self, offset: int) -> int | None:
        """Where the first block begins behind a record."""
        place = bisect_right(self._ranges, (offset, _NO_END))
        return self._ranges[place].start if place < len(self._ranges) else None

    def greatest_end(self) -> int:
        """Behind the last record of any block."""
        greatest = 0
        for block in reversed(self._ranges):
            greatest = max(greatest, block.end)
            if block.start <= greatest - MAX_BLOCK_RECORDS:
                break
        return greatest

    def remove_before(self, offset: int) -> None:
        """Forget the blocks that end at or before a record, and those that will be met."""
        self._trimmed = max(self._trimmed, offset)
        stop = bisect_left(self._ranges, (offset, 0))
        kept = [block for block in self._ranges[:stop] if block.end > offset]
        for block in self._ranges[:stop]:
            if block.end <= offset:
                del self._places[block]
        self._ranges[:stop] = kept

    def remove(self, block: BlockRange) -> None:
        """Forget a block."""
        if self._places.pop(block, None) is not None:
            del self._ranges[bisect_left(self._ranges, block)]
