"""Records that arrive before the one that they follow wait for it, for a short time.

A publisher that has several requests under way cannot say which of them arrives first.

    append ──▶ appended, or a repeat ──▶ who follows it is tried
         └──▶ out of order ──▶ waits for the one before it. When that was refused, or is kept for later, or
                               HOLD_S later, the publisher is told, and so are those that wait behind

The log alone says what is in order; here is only who waits. What waits is a task on the event loop and its
record: no thread, and no more records than `HELD_MAX`, of which each space has its share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from fieldfare.gateway.turns import SharedRoom
from fieldfare.storage.event_log import Appended, NewRecord, OutOfOrder

HOLD_S = 2.0
"""So long one waits for the one before it. Up: a slower or lost packet costs no second sending; what will
never be in order takes room for longer."""

HELD_MAX = 1_000

_Key = tuple[str, str, int]
"""A space, a producer, and the sequence that somebody follows."""


@dataclass(eq=False, slots=True)
class _Behind:
    """Who follows another one, from before it is tried: what it follows may be appended meanwhile."""

    sequence: int
    has_come: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class RecordOutOfOrder(Exception):
    """The newest of a record's producer is another one than the record follows; nothing was appended.

    Attributes
    ----------
    newest
        That one's sequence; `FIRST` where none is known.
    has_waited
        Whether it was early, and waited for as long as may be.
    is_behind_later
        Whether it follows one that was published for later, which never is before it in the log.
    """

    def __init__(self, newest: int, *, has_waited: bool = False, is_behind_later: bool = False) -> None:
        super().__init__(f"the newest is {newest}")
        self.newest = newest
        self.has_waited = has_waited
        self.is_behind_later = is_behind_later


class KeptInOrder:
    """Appends records, each behind the one that it follows; used on one event loop.

    Parameters
    ----------
    append
        Tries to append one.

    Attributes
    ----------
    is_for_later
        Says of a space, a producer and a sequence whether that was published for later.
    """

    def __init__(self, append: Callable[[NewRecord], Awaitable[Appended | OutOfOrder]]) -> None:
        self._append = append
        self.is_for_later: Callable[[str, str, int], Awaitable[bool]] = _never
        self._waiting: dict[_Key, dict[_Behind, None]] = {}
        """In the order in which they came, until they are told."""
        self._room = SharedRoom(HELD_MAX)

    async def append(self, record: NewRecord) -> Appended:
        """Append one; RecordOutOfOrder when the one that it follows has not come in time."""
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
        self._tell(own, has_come=True)
        return place

    def refused(self, space: str, producer: str, sequence: int) -> None:
        """A request of this number was refused for good, or is kept for later: nobody need wait for it."""
        self._tell((space, producer, sequence), has_come=False)

    async def _append_behind(self, key: _Key, sequence: int, record: NewRecord) -> Appended:
        until_s = asyncio.get_running_loop().time() + HOLD_S
        while True:
            follower = _Behind(sequence)
            self._waiting.setdefault(key, {})[follower] = None
            try:
                place = await self._append(record)
                if isinstance(place, Appended):
                    return place
                if place.newest > key[2]:  # Another one has followed that: this never will be in order.
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
        if future.done():  # while this one was tried
            return future.result()
        if not self._room.fits(space, 1):
            return False
        self._room.take(space, 1)
        try:
            if await self.is_for_later(*key) and not future.done():
                return False  # it is appended under another number
            async with asyncio.timeout_at(until_s):
                return await future
        finally:
            self._room.give_back(space, 1)

    def _tell(self, key: _Key, has_come: bool) -> None:
        """Have who follows it tried, or give up; and who follows that one: all go to disk together."""
        space, producer, sequence = key
        ahead = [sequence]
        while ahead:
            for follower in self._waiting.pop((space, producer, ahead.pop()), ()):
                if not follower.has_come.done():
                    follower.has_come.set_result(has_come)
                    ahead.append(follower.sequence)

    def _forget(self, key: _Key, follower: _Behind) -> None:
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
