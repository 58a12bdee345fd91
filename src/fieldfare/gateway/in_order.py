"""Ordering of pipelined records: one that arrives before its predecessor waits for it, for a short time.

A publisher with several requests in flight cannot control which of them arrives first.

    append ──▶ appended, or a repeat ──▶ its followers are tried
         └──▶ out of order ──▶ wait for the predecessor. When that is refused, or is delayed, or after
                               HOLD_S, the publisher gets an error, and so do the followers

Only the log decides the order; this module only keeps the waiting records. Each is a task on the event loop
with its record, without a thread. At most `HELD_MAX` records wait, and each space has a fair share of these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fieldfare.gateway.fair_queue import SharedCapacity
from fieldfare.storage.event_log import Appended, NewRecord, OutOfOrder

HOLD_S = 2.0
"""Maximum seconds that a record waits for its predecessor; then it is refused as out of order. Up: a slow or
lost packet causes no resend; records that can never be in order take room for longer."""

HELD_MAX = 1_000

_Key = tuple[str, str, int]
"""A space, a producer, and the sequence number of a predecessor."""


@dataclass(eq=False, slots=True)
class _Successor:
    """A record that follows another; registered before its append, as the other may arrive during it."""

    sequence: int
    has_come: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class RecordOutOfOrder(Exception):
    """The producer's newest record is not the one that this record follows; nothing was appended.

    Attributes
    ----------
    newest
        The sequence number of the producer's newest record; `FIRST` if none is known.
    has_waited
        Whether the record was early, and waited for `HOLD_S` seconds.
    is_behind_later
        Whether it follows a delayed record, which is never before it in the log.
    """

    def __init__(self, newest: int, *, has_waited: bool = False, is_behind_later: bool = False) -> None:
        super().__init__(f"the newest is {newest}")
        self.newest = newest
        self.has_waited = has_waited
        self.is_behind_later = is_behind_later


class OrderedAppender:
    """Appends records in order, each after its predecessor; used on one event loop.

    Parameters
    ----------
    append
        Tries to append a record.

    Attributes
    ----------
    is_for_later
        Returns whether the record of a space, a producer and a sequence number is delayed.
    """

    def __init__(self, append: Callable[[NewRecord], Awaitable[Appended | OutOfOrder]]) -> None:
        self._append = append
        self.is_for_later: Callable[[str, str, int], Awaitable[bool]] = _never
        self._waiting: dict[_Key, dict[_Successor, None]] = {}
        """Followers by predecessor, in the order of arrival, until the predecessor's outcome is known."""
        self._room = SharedCapacity(HELD_MAX)

    async def append(self, record: NewRecord) -> Appended:
        """Append a record; raise RecordOutOfOrder if its predecessor does not come in time."""
        if record.producer is None or record.sequence is None:
            return _appended(await self._append(record))
        own = (record.space, record.producer, record.sequence)
        try:
            if record.follows is None:
                place = _appended(await self._append(record))
            else:
                key = (record.space, record.producer, record.follows)
                place = await self._append_behind(key, record.sequence, record)
        except RecordOutOfOrder:
            self._tell(own, has_come=False)
            raise
        except asyncio.CancelledError:  # Its client is gone; it may still be appended, before its followers.
            self._tell(own, has_come=True)
            raise
        self._tell(own, has_come=True)
        return place

    def refused(self, space: str, producer: str, sequence: int) -> None:
        """Fail the followers of a record that was permanently refused, or is delayed."""
        self._tell((space, producer, sequence), has_come=False)

    async def _append_behind(self, key: _Key, sequence: int, record: NewRecord) -> Appended:
        until_s = asyncio.get_running_loop().time() + HOLD_S
        while True:
            follower = _Successor(sequence)
            self._waiting.setdefault(key, {})[follower] = None
            try:
                place = await self._append(record)
                if isinstance(place, Appended):
                    return place
                if place.newest > key[2]:  # another record has followed that one: this can never be in order
                    raise RecordOutOfOrder(place.newest)
                try:
                    has_come = await self._has_come(key, follower.has_come, until_s)
                except TimeoutError:
                    raise RecordOutOfOrder(place.newest, has_waited=True) from None
                if not has_come:
                    is_behind_later = await self.is_for_later(*key)
                    raise RecordOutOfOrder(place.newest, is_behind_later=is_behind_later)
            finally:
                self._forget(key, follower)

    async def _has_come(self, key: _Key, future: asyncio.Future[bool], until_s: float) -> bool:
        space = key[0]
        if future.done():  # during this record's append
            return future.result()
        if not self._room.fits(space, 1):
            return False
        self._room.take(space, 1)
        try:
            if await self.is_for_later(*key) and not future.done():
                return False  # it will be appended under another number
            async with asyncio.timeout_at(until_s):
                return await future
        finally:
            self._room.give_back(space, 1)

    def _tell(self, key: _Key, has_come: bool) -> None:
        """Have all direct and indirect followers tried or refused; tried ones go to disk together."""
        space, producer, sequence = key
        ahead = [sequence]
        while ahead:
            for follower in self._waiting.pop((space, producer, ahead.pop()), ()):
                if not follower.has_come.done():
                    follower.has_come.set_result(has_come)
                    ahead.append(follower.sequence)

    def _forget(self, key: _Key, follower: _Successor) -> None:
        others = self._waiting.get(key)
        if others is not None:
            others.pop(follower, None)
            if not others:
                del self._waiting[key]


async def _never(space: str, producer: str, sequence: int) -> bool:
    return False


def _appended(place: Appended | OutOfOrder) -> Appended:
    if isinstance(place, OutOfOrder):
        raise RecordOutOfOrder(place.newest)
    return place
