"""Loading of saved deliveries in batches: requests that arrive during a read share the next read.

A gateway that starts opens the deliveries of all subscriptions with a push address; reading them one by one
would take milliseconds each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from dataclasses import dataclass

from fieldfare.delivery.attempts import UNREFUSED
from fieldfare.delivery.keys import key_of
from fieldfare.gateway.delivery.replays import OwnReplay, Replays
from fieldfare.model import Cursor, Position, Subscription
from fieldfare.storage.registry import Registry

LOADED_BATCH_SIZE = 200
"""Maximum deliveries read in one batch: few enough that a thread reads them, and the event loop absorbs them,
without a noticeable pause. The others wait for the next batch."""

LETTERS_BATCH_SIZE = 10_000
"""Maximum dead letters of a subscription read by one query; more take further queries."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The saved state of a delivery: its cursor, its dead letters and its replay.

    ``letters`` is the number of dead letters, ``unheard`` the keys of those that no reader refused.
    """

    cursor: Cursor | None
    letters: int
    replay: OwnReplay | None
    unheard: Set[int] = frozenset()


class Loader:
    """Reader of the saved state of deliveries.

    Parameters
    ----------
    registry, replays
        The stores that the state is read from.
    """

    def __init__(self, registry: Registry, replays: Replays) -> None:
        self._registry = registry
        self._replays = replays
        self._asked: list[tuple[Subscription, asyncio.Future[Saved]]] = []
        self._reading: asyncio.Task[None] | None = None

    async def load(self, subscription: Subscription) -> Saved:
        """Return the saved state of a subscription's delivery, or raise the error of reading it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Saved] = loop.create_future()
        self._asked.append((subscription, future))
        if self._reading is None:
            self._reading = loop.create_task(self._read_all())
        return await future

    async def _read_all(self) -> None:
        try:
            while self._asked:
                some, self._asked = self._asked[:LOADED_BATCH_SIZE], self._asked[LOADED_BATCH_SIZE:]
                found = await asyncio.to_thread(self._read, [subscription for subscription, _ in some])
                for (_, future), saved in zip(some, found, strict=True):
                    if future.done():
                        continue  # the caller was cancelled
                    if isinstance(saved, Saved):
                        future.set_result(saved)
                    else:
                        future.set_exception(saved)
        finally:
            self._reading = None

    def _read(self, subscriptions: Sequence[Subscription]) -> list[Saved | Exception]:
        """Return a result or an error for each: one that cannot be read must not hold up the others."""
        numbers = [each.number for each in subscriptions]
        try:
            cursors, letters = self._registry.load_cursors(numbers), self._registry.count_letters(numbers)
        except Exception as error:
            if len(numbers) == 1:
                return [error]
            return [found for each in subscriptions for found in self._read([each])]
        found: list[Saved | Exception] = []
        for number, each in zip(numbers, subscriptions, strict=True):
            try:
                replay = None if each.start is None else self._replays.find(number)
                count = letters.get(number, 0)
                unheard = self._unheard(number) if count else frozenset[int]()
                found.append(Saved(cursors.get(number), count, replay, unheard))
            except Exception as error:
                found.append(error)
        return found

    def _unheard(self, number: int) -> set[int]:
        found: set[int] = set()
        after: Position | None = None
        while page := self._registry.letters(number, after, LETTERS_BATCH_SIZE):
            found.update(key_of(each.position) for each in page if each.reason in UNREFUSED)
            after = page[-1].position
        return found
