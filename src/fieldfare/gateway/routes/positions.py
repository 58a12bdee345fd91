"""Conversion of positions that clients send into keys, with a check that an event can be there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fieldfare.delivery.keys import PARTITION_SHIFT, key_of, offset_of
from fieldfare.gateway.delivery.match_log_follower import MatchLogFollower
from fieldfare.gateway.problems import HttpProblem
from fieldfare.model import RECORD_EVENTS_MAX, Offsets, Position
from fieldfare.storage.event_log import EventReader

POSITIONS_MAX = 20_000
SETTLED_BATCH_SIZE = 250
"""Maximum positions of one request that are processed before other tasks run."""


class Positions:
    """Validation of positions against the ends of the log and the match log.

    Parameters
    ----------
    log, log_ends
        The event log, and a function that returns its known ends; the log is read for positions beyond them.
    tail
        Knows the ends of the match log.
    """

    def __init__(self, log: EventReader, log_ends: Callable[[], Offsets], tail: MatchLogFollower) -> None:
        self._log = log
        self._log_ends = log_ends
        self._tail = tail

    async def keys(self, texts: Sequence[str], pointer: str, most: int = POSITIONS_MAX) -> list[int]:
        """Return the keys of positions; raise Problem 400 for one that is invalid or beyond the log's end.

        Problem 413 if they are more than ``most``.
        """
        if len(texts) > most:
            detail = f"The request has {len(texts)} positions; the maximum in one request is {most}."
            raise HttpProblem(413, "too-many-positions", detail, pointer=pointer, max_positions=most)
        keys = []
        for index, text in enumerate(texts):
            if index and index % SETTLED_BATCH_SIZE == 0:
                await asyncio.sleep(0)
            try:
                keys.append(await self._key(text))
            except ValueError as error:
                raise _bad(error, pointer=f"{pointer}/{index}") from None
        return keys

    async def key_up_to(self, text: str, **place: Any) -> int:
        """Return the key of a position up to which to settle.

        Raises
        ------
        HttpProblem
            400: there can be no event. 503: it is not matched. It may have been delivered before a power
            failure, which took matches that were not on the disk yet; they are found again.
        """
        tail = self._tail
        try:
            key = await self._key(text)
        except ValueError as error:
            raise _bad(error, **place) from None
        partition = key >> PARTITION_SHIFT
        if offset_of(key) >= tail.tips[partition]:
            await tail.catch_up()
        if offset_of(key) >= tail.tips[partition]:
            detail = f"{text} has not been matched yet; if it was delivered, try again."
            raise HttpProblem(503, "not-matched", detail, headers={"Retry-After": "1"}, **place)
        return key

    async def _key(self, text: str) -> int:
        position = Position.parse(text)
        key = key_of(position)
        if position.index >= RECORD_EVENTS_MAX:
            raise ValueError(
                f"there is no event at {position}: a record has at most {RECORD_EVENTS_MAX} events"
            )
        partition, ends = position.partition, self._log_ends()
        if partition >= len(ends):
            raise ValueError(
                f"there is no partition {partition}, which {position} names: the last one is {len(ends) - 1}"
            )
        if position.offset >= ends[partition]:
            end = await asyncio.to_thread(self._log.partitions[partition].end)
            if position.offset >= end:
                raise ValueError(f"{position} is past the log's end")
        return key


def _bad(error: ValueError, **place: Any) -> HttpProblem:
    return HttpProblem(400, "bad-position", f"{error}.", **place)
