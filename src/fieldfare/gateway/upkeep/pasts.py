"""Looking after the logs of subscriptions that began in the past: what is done, broken, or of nobody."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from fieldfare.gateway.delivery.pasts import Pasts, seam_of
from fieldfare.storage import EventReader, Registry
from fieldfare.storage.errors import StorageError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.registry import Past

LOOKED_AT_ONCE = 20
"""Of those that are matched so many are looked at in a round, each in its turn."""

logger = logging.getLogger("fieldfare.gateway")


class PastUpkeep:
    """One round after the other, on one thread.

    Parameters
    ----------
    folder, log, registry
        What is looked after.
    pasts
        Open the match logs, and say which of them has a block that cannot be read.
    floor
        A stamp below which no record will be appended any more.
    """

    def __init__(
        self,
        folder: DataFolder,
        log: EventReader,
        registry: Registry,
        pasts: Pasts,
        floor: Callable[[], int],
    ) -> None:
        self._folder = folder
        self._log = log
        self._registry = registry
        self._pasts = pasts
        self._floor = floor
        self._turn = 0

    def round(self) -> None:
        """Remove what belongs to no subscription, and see how far the others are."""
        folders = self._folders()  # before the rows: what is made from now on has one, and is not among these
        rows = self._registry.pasts()
        known = {self._folder.past_path(row.number, row.revision).name for row in rows}
        for name in folders - known:
            shutil.rmtree(self._folder.pasts / name, ignore_errors=True)
        self._pasts.keep_only({row.number for row in rows})
        for row in self._next(rows):
            try:
                self._look_after(row)
            except (StorageError, OSError) as error:
                logger.error("the past of subscription number %d: %s", row.number, error)

    def _next(self, rows: Sequence[Past]) -> Iterator[Past]:
        """Those that are not matched, those that are broken, and some of the others, all in turn."""
        matched = [row.number for row in rows if row.matched]
        turn = ([number for number in matched if number > self._turn] or matched)[:LOOKED_AT_ONCE]
        self._turn = turn[-1] if turn else 0
        wanted = self._pasts.broken.union(turn)
        return (row for row in rows if not row.matched or row.number in wanted)

    def _folders(self) -> set[str]:
        with suppress(FileNotFoundError):
            return {path.name for path in self._folder.pasts.iterdir()}
        return set()

    def _look_after(self, row: Past) -> None:
        """Drop what is broken and what retention has taken; note whether all that is left is matched."""
        match_log = self._pasts.match_log_of(row)
        is_matched = is_gone = True
        for log in self._log.partitions:
            matches, start = match_log.partition(log.number), log.start()
            begin = max(row.starts[log.number], start)
            if row.number in self._pasts.broken:
                # Also one that begins before what retention has left: it is read from there.
                matches.recover(row.starts[log.number])
            matches.trim(start)
            seam = seam_of(log, row.revision, self._floor)
            is_gone &= seam is not None and seam <= start
            is_matched &= seam is not None and matches.end(begin) >= seam
        self._pasts.broken.discard(row.number)
        self._pasts.count(row, match_log)
        if is_gone:
            self._registry.forget_past(row.number)
        elif is_matched is not row.matched:
            self._registry.mark_past(row.number, matched=is_matched)
