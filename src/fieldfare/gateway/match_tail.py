"""Following the match log: how far events are matched, and the newest blocks."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fieldfare.storage.errors import BrokenBlockError, MatchLogError
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
    on_broken
        Called with the error of a block that cannot be read. Whoever needs it waits, but not for long: see
        `Maintenance`.
    """

    def __init__(
        self,
        match_log: MatchLog,
        start: int,
        on_block: Callable[[MatchBlock], None] | None = None,
        on_broken: Callable[[BrokenBlockError], None] | None = None,
    ) -> None:
        self._match_log = match_log
        self._on_block = on_block
        self._on_broken = on_broken
        self._said = ""
        self.gap_seen = False
        """Whether a record before the end was looked for and has no block, though the log holds it."""
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
            self.report(error)
            return None

    def report(self, error: MatchLogError) -> None:
        """Something of the match log could not be read."""
        if str(error) != self._said:
            self._said = str(error)
            logger.error("%s", error)
        if isinstance(error, BrokenBlockError) and self._on_broken is not None:
            self._on_broken(error)
