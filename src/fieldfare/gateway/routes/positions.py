"""Positions as clients name them: into keys, if something can be there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from fieldfare.delivery.keys import PARTITION_SHIFT, key_of, offset_of
from fieldfare.gateway.delivery.match_tail import MatchTail
from fieldfare.gateway.problems import HttpProblem
from fieldfare.model import Offsets, Position
from fieldfare.storage.event_log import MAX_RECORD_EVENTS, EventReader

POSITIONS_MAX = 20_000
SETTLED_AT_ONCE = 250
"""After so many positions of one request others have their turn."""


class Positions:
    """Knows which positions an event can have.

    Parameters
    ----------
    log, log_ends
        Up to where there are events: the second knows, and the first is asked where that is not enough.
    tail
        Up to where they are matched.
    """

    def __init__(self, log: EventReader, log_ends: Callable[[], Offsets], tail: MatchTail) -> None:
        self._log = log
        self._log_ends = log_ends
        self._tail = tail

    async def keys(self, texts: Sequence[str], pointer: str, most: int = POSITIONS_MAX) -> list[int]:
        """The keys of positions; Problem 400 names the one that is none, or that nothing can have been at."""
        if len(texts) > most:
            detail = f"The request has {len(texts)} positions; at most {most} are taken in one request."
            raise HttpProblem(413, "too-many-positions", detail, pointer=pointer, max_positions=most)
        keys = []
        for index, text in enumerate(texts):
            if index and index % SETTLED_AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                keys.append(await self._key(text))
            except ValueError as error:
                raise _bad(error, pointer=f"{pointer}/{index}") from None
        return keys

    async def key_up_to(self, text: str, **place: Any) -> int:
        """For all up to a position: what was not matched yet nobody has been given, let alone done."""
        tail = self._tail
        try:
            key = await self._key(text)
            partition = key >> PARTITION_SHIFT
            if offset_of(key) >= tail.tips[partition]:
                await tail.catch_up()
            if offset_of(key) >= tail.tips[partition]:
                raise ValueError(f"{text} has not been matched yet, let alone delivered")
        except ValueError as error:
            raise _bad(error, **place) from None
        return key

    async def _key(self, text: str) -> int:
        position = Position.parse(text)
        key = key_of(position)
        if position.index >= MAX_RECORD_EVENTS:
            raise ValueError(f"no record has {position.index + 1} events, so nothing is at {position}")
        partition, ends = position.partition, self._log_ends()
        if partition >= len(ends):
            raise ValueError(f"the log's last partition is {len(ends) - 1}; {position} names another")
        if position.offset >= ends[partition]:
            end = await asyncio.to_thread(self._log.partitions[partition].end)
            if position.offset >= end:
                raise ValueError(f"{position} lies beyond the log's end")
        return key


def _bad(error: ValueError, **place: Any) -> HttpProblem:
    return HttpProblem(400, "bad-position", f"{error}.", **place)
