"""What subscriptions matched that began in the past: read for each alone, until it meets the rest.

The pipeline writes it, a match log a subscription, as it gets on; see `delivery.past` for where it ends.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fieldfare.delivery.keys import PARTITION_SHIFT, key_at, offset_of
from fieldfare.delivery.past import Seams
from fieldfare.gateway.delivery.match_tail import READERS, LookResult, keys_in
from fieldfare.gateway.slots import SharedThreads
from fieldfare.model import Position, Subscription, positions_text
from fieldfare.storage import EventReader, LogPartition, MatchLog, Registry, open_match_log
from fieldfare.storage import registry as stored
from fieldfare.storage.errors import BrokenBlockError, StorageError
from fieldfare.storage.folder import DataFolder

logger = logging.getLogger("fieldfare.gateway.matches")


def seam_of(log: LogPartition, revision: int, floor: Callable[[], int]) -> int | None:
    """Where the past of what was created at a revision ends; None while that may still move.

    Parameters
    ----------
    floor
        Says a stamp below which no record will be appended that is not in the log yet.
    """
    # In this order: what is appended behind the end as it is read now has the floor's stamp at least.
    lowest, end = floor(), log.end()
    first = log.first_stamped(revision)
    return end if first is None and lowest >= revision else first


class OwnPast(Seams):
    """The past of one subscription, and the match log that has it."""

    __slots__ = ("match_log", "row")

    def __init__(self, row: stored.Past, match_log: MatchLog) -> None:
        super().__init__()
        self.row = row
        self.match_log = match_log


class Pasts:
    """The pasts of all subscriptions.

    Parameters
    ----------
    folder
        Where their match logs lie.
    log, registry
        What they are read beside.
    floor
        A stamp below which no record will be appended any more.
    """

    def __init__(
        self, folder: DataFolder, log: EventReader, registry: Registry, floor: Callable[[], int]
    ) -> None:
        self._folder = folder
        self._log = log
        self._registry = registry
        self._floor = floor
        self._threads = SharedThreads(READERS, "fieldfare-pasts")
        self.broken: set[int] = set()
        """The numbers of those that have a block that cannot be read; see `upkeep.pasts`."""
        self._sizes: dict[int, tuple[str, int]] = {}

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def find(self, number: int) -> OwnPast | None:
        """The past of a subscription; not to be called on the event loop."""
        row = self._registry.past(number)
        if row is None:
            return None
        past = OwnPast(row, self.match_log_of(row))
        for partition in self._log.partitions:
            self._find_seam(past, partition)
        return past

    def match_log_of(self, row: stored.Past) -> MatchLog:
        """The match log of a past."""
        return open_match_log(self._folder.past_url(row.number, row.revision))

    def keep_only(self, numbers: set[int]) -> None:
        """Forget what is known of other pasts than these."""
        self.broken &= numbers
        self._sizes = {number: size for number, size in self._sizes.items() if number in numbers}

    def count(self, row: stored.Past, match_log: MatchLog) -> None:
        """See how many bytes a past takes, all of them its space's."""
        self._sizes[row.number] = row.space, match_log.size_bytes()

    def sizes(self) -> Mapping[str, int]:
        """The bytes of each space's pasts, as they were last counted."""
        total = Counter[str]()
        for space, size_bytes in self._sizes.values():
            total[space] += size_bytes
        return total

    async def look(self, past: OwnPast, key: int, space: str) -> LookResult | None:
        """What is there for a space from a key on; None when nothing is yet, or the past ends before it."""
        return await self._threads.run(space, self._look, past, key)

    def _look(self, past: OwnPast, key: int) -> LookResult | None:
        number, offset = key >> PARTITION_SHIFT, offset_of(key)
        partition = self._log.partitions[number]
        try:
            seam = self._find_seam(past, partition)
            if seam is not None and offset >= seam:
                return None
            # Retention may have taken what was asked for, and who seeks may stand before it.
            begin = max(past.row.starts[number], partition.start())
            if offset < begin:
                return LookResult([], number, begin if seam is None else min(begin, seam), 0, None)
            block = past.match_log.partition(number).block_at(offset)
            if block is None:
                # It may be matched as far as it goes: holes may lie where the log ended, and once there is a
                # record behind them the past is known to end before them.
                self._find_seam(past, partition, anew=True)
                return None
            keys = keys_in(block, number, past.row.number)
            end = block.end if seam is None else min(block.end, seam)
            keys = keys[: np.searchsorted(keys, key_at(number, end))]
            return LookResult([(past.row.number, keys)] if len(keys) else [], number, end, 0, block)
        except BrokenBlockError as error:
            self.broken.add(past.row.number)
            logger.error("%s; it will be matched again", error)
        except StorageError as error:
            logger.error("%s", error)
        return None

    def _find_seam(self, past: OwnPast, partition: LogPartition, *, anew: bool = False) -> int | None:
        seam = past.known.get(partition.number)
        if seam is None or anew:
            seam = seam_of(partition, past.row.revision, self._floor)
            if seam is not None:
                past.known[partition.number] = seam
        return seam

    def state(self, subscription: Subscription) -> dict[str, Any] | None:
        """How far the past of a subscription is matched, as clients see it; not on the event loop.

        None for one that has none, or of whose past nothing is left.
        """
        past = self.find(subscription.number) if subscription.start is not None else None
        if past is None:
            return None
        kept, matched, ends = [], [], []
        for partition in self._log.partitions:
            number, start = partition.number, partition.start()
            kept.append(max(past.row.starts[number], start))
            ends.append(max(past.known.get(number, partition.end()), kept[-1]))
            reached = past.match_log.partition(number).end(kept[-1])
            matched.append(min(reached, ends[-1]))
        return {
            "kept_from": _text(kept),
            "matched_to": _text(matched),
            "to": _text(ends),
            "is_matched": matched == ends and len(past.known) == len(ends),
        }


def _text(offsets: list[int]) -> str:
    return positions_text(Position(partition, offset, 0) for partition, offset in enumerate(offsets))
