"""Replay: reading a subscription's matches from before its creation, up to the live ones.

The pipeline writes a match log for each such subscription; `delivery.replay_boundary` says where it ends.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Annotated

import numpy as np
from msgspec import Struct

from fieldfare.delivery.keys import PARTITION_SHIFT, key_at, offset_of
from fieldfare.delivery.replay_boundary import ReplayBoundary
from fieldfare.gateway.delivery.match_log_follower import ReadResult, keys_in
from fieldfare.gateway.fair_limiter import FairExecutor
from fieldfare.gateway.member_types import CursorText
from fieldfare.model import Position, Subscription, positions_text
from fieldfare.storage import EventReader, LogPartition, MatchLog, open_match_log
from fieldfare.storage import registry as stored
from fieldfare.storage.errors import CorruptBlockError, StorageError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.registry import ReplayStore

logger = logging.getLogger("fieldfare.gateway.matches")


def seam_of(log: LogPartition, revision: int, floor: Callable[[], int]) -> int | None:
    """Return the offset where a replay ends, for a subscription's first revision; None while it may move.

    Parameters
    ----------
    floor
        Returns the lowest stamp that a record appended from now on can have.
    """
    # In this order: records appended after the end is read have at least the floor's stamp.
    lowest, end = floor(), log.end()
    first = log.first_stamped(revision)
    return end if first is None and lowest >= revision else first


class OwnReplay(ReplayBoundary):
    """The replay of one subscription, with its match log."""

    __slots__ = ("match_log", "row")

    def __init__(self, row: stored.Replay, match_log: MatchLog) -> None:
        super().__init__()
        self.row = row
        self.match_log = match_log


class ReplayDocument(Struct):
    """Progress in matching the events from before a subscription's creation."""

    kept_from: Annotated[
        CursorText, "Where the replay begins: at its start, or later if retention has removed events."
    ]
    matched_to: Annotated[CursorText, "Where the part ends that is matched so far."]
    to: Annotated[CursorText, "Where the replay ends: live matching begins there."]
    is_matched: Annotated[bool, "Whether the whole replay is matched."]


class Replays:
    """The replays of all subscriptions.

    Parameters
    ----------
    folder
        The data folder with their match logs.
    log, registry
        The event log, and the registry of the replays.
    floor
        Returns the lowest stamp that a record appended from now on can have.
    readers
        The threads that read the match logs.
    """

    def __init__(
        self,
        folder: DataFolder,
        log: EventReader,
        registry: ReplayStore,
        floor: Callable[[], int],
        readers: FairExecutor,
    ) -> None:
        self._folder = folder
        self._log = log
        self._registry = registry
        self._floor = floor
        self._readers = readers
        self.broken: set[int] = set()
        """Numbers of the subscriptions whose replay has a corrupt block; see `maintenance.replays`."""
        self._sizes: dict[int, tuple[str, int]] = {}

    def find(self, number: int) -> OwnReplay | None:
        """Return the replay of a subscription, None if it has none. It reads files: call it on a thread."""
        row = self._registry.replay(number)
        if row is None:
            return None
        replay = OwnReplay(row, self.match_log_of(row))
        for partition in self._log.partitions:
            self._find_replay_boundary(replay, partition)
        return replay

    def match_log_of(self, row: stored.Replay) -> MatchLog:
        """Open the match log of a replay."""
        return open_match_log(self._folder.replay_url(row.number, row.revision))

    def keep_only(self, numbers: set[int]) -> None:
        """Forget the state of all replays but those of these subscriptions."""
        self.broken &= numbers
        self._sizes = {number: size for number, size in self._sizes.items() if number in numbers}

    def measure(self, row: stored.Replay, match_log: MatchLog) -> None:
        """Measure the bytes that a replay takes; they count as its space's."""
        self._sizes[row.number] = row.space, match_log.size_bytes()

    def sizes(self) -> Mapping[str, int]:
        """Return the bytes of each space's replays, as last measured by `measure`."""
        total = Counter[str]()
        for space, size_bytes in self._sizes.values():
            total[space] += size_bytes
        return total

    async def read(self, replay: OwnReplay, key: int, space: str) -> ReadResult | None:
        """Read a replay's matches from a key on, in the turn of a space.

        None when there are none yet, when they cannot be read, or when the replay ends before the key.
        """
        return await self._readers.run(space, self._read, replay, key)

    def _read(self, replay: OwnReplay, key: int) -> ReadResult | None:
        number, offset = key >> PARTITION_SHIFT, offset_of(key)
        partition = self._log.partitions[number]
        try:
            seam = self._find_replay_boundary(replay, partition)
            if seam is not None and offset >= seam:
                return None
            # Retention may have removed the record, and a seek may lead to before the replay's start.
            begin = max(replay.row.starts[number], partition.start())
            if offset < begin:
                return ReadResult([], number, begin if seam is None else min(begin, seam), 0, None)
            block = replay.match_log.partition(number).block_at(offset)
            if block is None:
                # The replay may be matched completely: the log may have ended in unused offsets, and once a
                # record follows them, the replay is known to end before them.
                self._find_replay_boundary(replay, partition, again=True)
                return None
            keys = keys_in(block, number, replay.row.number)
            end = block.end if seam is None else min(block.end, seam)
            keys = keys[: np.searchsorted(keys, key_at(number, end))]
            return ReadResult([(replay.row.number, keys)] if len(keys) else [], number, end, 0, block)
        except CorruptBlockError as error:
            self.broken.add(replay.row.number)
            logger.error("%s; the replay is matched again", error)
        except StorageError as error:
            logger.error("%s", error)
        return None

    def _find_replay_boundary(
        self, replay: OwnReplay, partition: LogPartition, *, again: bool = False
    ) -> int | None:
        seam = replay.known.get(partition.number)
        if seam is None or again:
            seam = seam_of(partition, replay.row.revision, self._floor)
            if seam is not None:
                replay.known[partition.number] = seam
        return seam

    def state(self, subscription: Subscription) -> ReplayDocument | None:
        """Return how far a subscription's replay is matched, as clients see it; None if it has no replay.

        It reads files: call it on a thread.
        """
        replay = self.find(subscription.number) if subscription.start is not None else None
        if replay is None:
            return None
        kept, matched, ends = [], [], []
        for partition in self._log.partitions:
            number, start = partition.number, partition.start()
            kept.append(max(replay.row.starts[number], start))
            ends.append(max(replay.known.get(number, partition.end()), kept[-1]))
            reached = replay.match_log.partition(number).end(kept[-1])
            matched.append(min(reached, ends[-1]))
        return ReplayDocument(
            kept_from=_text(kept),
            matched_to=_text(matched),
            to=_text(ends),
            is_matched=matched == ends and len(replay.known) == len(ends),
        )


def _text(offsets: list[int]) -> str:
    return positions_text(Position(partition, offset, 0) for partition, offset in enumerate(offsets))
