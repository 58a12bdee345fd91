"""Maintenance of the replays' match logs: completed, corrupt and orphaned ones."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from fieldfare.gateway.delivery.replays import Replays, seam_of
from fieldfare.storage import EventReader
from fieldfare.storage.errors import StorageError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.registry import Replay, ReplayStore

LOOKED_BATCH_SIZE = 20
"""Maximum completely matched replays checked in a round; the others follow in later rounds, in order."""

logger = logging.getLogger("fieldfare.gateway")


class ReplayMaintenance:
    """Maintenance of the replays, in rounds on one thread.

    Parameters
    ----------
    folder, log, registry
        The data folder, the event log and the registry.
    replays
        Opens the match logs, and knows which have a corrupt block.
    floor
        Returns the lowest stamp that a record appended from now on can have.
    """

    def __init__(
        self,
        folder: DataFolder,
        log: EventReader,
        registry: ReplayStore,
        replays: Replays,
        floor: Callable[[], int],
    ) -> None:
        self._folder = folder
        self._log = log
        self._registry = registry
        self._replays = replays
        self._floor = floor
        self._turn = 0

    def round(self) -> None:
        """Remove match logs without a subscription, and check the progress of the others."""
        folders = self._folders()  # before the rows: a folder created from now on is not among these
        rows = self._registry.replays()
        known = {self._folder.replay_path(row.number, row.revision).name for row in rows}
        # A row that cannot be read may belong to any folder: nothing is removed then.
        for name in folders - known if len(rows) == self._registry.count_replays() else ():
            shutil.rmtree(self._folder.replays / name, ignore_errors=True)
        self._replays.keep_only({row.number for row in rows})
        for row in self._next(rows):
            try:
                self._look_after(row)
            except (StorageError, OSError) as error:
                logger.error(
                    "the replay of subscription number %d could not be checked: %s", row.number, error
                )

    def _next(self, rows: Sequence[Replay]) -> Iterator[Replay]:
        """Return the replays that are incomplete or corrupt, and the next batch of the complete ones."""
        matched = [row.number for row in rows if row.matched]
        turn = ([number for number in matched if number > self._turn] or matched)[:LOOKED_BATCH_SIZE]
        self._turn = turn[-1] if turn else 0
        wanted = self._replays.broken.union(turn)
        return (row for row in rows if not row.matched or row.number in wanted)

    def _folders(self) -> set[str]:
        with suppress(FileNotFoundError):
            return {path.name for path in self._folder.replays.iterdir()}
        return set()

    def _look_after(self, row: Replay) -> None:
        """Drop corrupt blocks and what retention removed; note whether the rest is completely matched."""
        match_log = self._replays.match_log_of(row)
        is_matched = is_gone = True
        for log in self._log.partitions:
            matches, start = match_log.partition(log.number), log.start()
            begin = max(row.starts[log.number], start)
            if row.number in self._replays.broken:
                # From the replay's own start: a block may begin before the oldest event that retention left.
                matches.recover(row.starts[log.number])
            matches.trim(start)
            seam = seam_of(log, row.revision, self._floor)
            is_gone &= seam is not None and seam <= start
            is_matched &= seam is not None and matches.end(begin) >= seam
        self._replays.broken.discard(row.number)
        self._replays.measure(row, match_log)
        if is_gone:
            self._registry.forget_replay(row.number)
        elif is_matched is not row.matched:
            self._registry.mark_replay(row.number, matched=is_matched)
