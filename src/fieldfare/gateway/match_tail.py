"""Following the match log: how far events are matched, and the newest blocks."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

from fieldfare.storage.errors import MatchLogError
from fieldfare.storage.match_log import MatchBlock, MatchLog

logger = logging.getLogger("fieldfare.gateway.matches")

BLOCKS_HELD = 16
BLOCKS_A_LOOK = 64


class MatchTail:
    """The end of the match log, and a few open blocks.

    Parameters
    ----------
    match_log
        What the pipeline writes.
    start
        A record offset that lies in the match log or at its end: the look for the end begins here.
    on_block
        Called with every block that appears after this.
    """

    def __init__(
        self, match_log: MatchLog, start: int, on_block: Callable[[MatchBlock], None] | None = None
    ) -> None:
        self._match_log = match_log
        self._on_block = on_block
        self._held: OrderedDict[int, MatchBlock] = OrderedDict()
        self.tip = match_log.end(start)

    def advance(self) -> bool:
        """Look for blocks at the end; whether there were any. Costs one failing open when there are none."""
        before = self.tip
        for _ in range(BLOCKS_A_LOOK):
            block = self._open(self.tip)
            if block is None:
                break
            self._hold(block)
            self.tip = block.end
            if self._on_block is not None:
                self._on_block(block)
        return self.tip != before

    def block_at(self, offset: int) -> MatchBlock | None:
        """The block that covers a record; None when the match log has none there."""
        for block in reversed(self._held.values()):
            if block.start <= offset < block.end:
                return block
        found = self._open(offset)
        if found is not None:
            self._hold(found)
        return found

    def _open(self, offset: int) -> MatchBlock | None:
        try:
            return self._match_log.block_at(offset)
        except MatchLogError as error:
            # The pipeline writes a block again after a crash; until then it is as if it were not there.
            logger.error("%s", error)
            return None

    def _hold(self, block: MatchBlock) -> None:
        self._held[block.start] = block
        self._held.move_to_end(block.start)
        if len(self._held) > BLOCKS_HELD:
            self._held.popitem(last=False)
