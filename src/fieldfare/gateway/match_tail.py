"""Following the match log: how far events are matched, and the newest blocks."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fieldfare.storage.errors import MatchLogError
from fieldfare.storage.match_block import MatchBlock
from fieldfare.storage.match_log import MatchLog

logger = logging.getLogger("fieldfare.gateway.matches")

BLOCKS_A_LOOK = 64


class MatchTail:
    """The end of the match log.

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
        self._broken: set[str] = set()
        self.tip = match_log.end(start)

    def advance(self) -> bool:
        """Look for blocks at the end; whether there were any. Costs a few stat calls when there are none."""
        before = self.tip
        for _ in range(BLOCKS_A_LOOK):
            block = self.block_at(self.tip)
            if block is None:
                break
            self.tip = block.end
            if self._on_block is not None:
                self._on_block(block)
        return self.tip != before

    def block_at(self, offset: int) -> MatchBlock | None:
        """The block that covers a record; None when the match log has none there."""
        try:
            return self._match_log.block_at(offset)
        except MatchLogError as error:
            # Until somebody puts the file right, events wait at it; none is passed over.
            message = str(error)
            if message not in self._broken:
                self._broken.add(message)
                logger.error("%s", message)
            return None
