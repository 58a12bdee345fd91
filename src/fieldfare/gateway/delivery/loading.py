"""Deliveries as they were saved: all that are asked for while some are read are read together.

A gateway that starts opens those of all subscriptions that have a push address, and one by one that would
take milliseconds each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from fieldfare.gateway.delivery.pasts import OwnPast, Pasts
from fieldfare.model import Cursor, Subscription
from fieldfare.storage.registry import Registry

LOADED_AT_ONCE = 200
"""As many as a thread reads, and the event loop takes in, while nobody notices."""


@dataclass(frozen=True, slots=True)
class Saved:
    """What is kept of a delivery: its cursor, how many messages it gave up, and its past."""

    cursor: Cursor | None
    letters: int
    past: OwnPast | None


class Loader:
    """Reads what is kept of deliveries.

    Parameters
    ----------
    registry, pasts
        Where it is.
    """

    def __init__(self, registry: Registry, pasts: Pasts) -> None:
        self._registry = registry
        self._pasts = pasts
        self._asked: list[tuple[Subscription, asyncio.Future[Saved]]] = []
        self._reading: asyncio.Task[None] | None = None

    async def load(self, subscription: Subscription) -> Saved:
        """What is kept of one; what reading it raises."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Saved] = loop.create_future()
        self._asked.append((subscription, future))
        if self._reading is None:
            self._reading = loop.create_task(self._read_all())
        return await future

    async def _read_all(self) -> None:
        try:
            while self._asked:
                some, self._asked = self._asked[:LOADED_AT_ONCE], self._asked[LOADED_AT_ONCE:]
                found = await asyncio.to_thread(self._read, [subscription for subscription, _ in some])
                for (_, future), saved in zip(some, found, strict=True):
                    if future.done():
                        continue  # whoever asked has gone
                    if isinstance(saved, Saved):
                        future.set_result(saved)
                    else:
                        future.set_exception(saved)
        finally:
            self._reading = None

    def _read(self, subscriptions: Sequence[Subscription]) -> list[Saved | Exception]:
        """Each is judged for itself: one that cannot be read must not hold up the others."""
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
                past = None if each.start is None else self._pasts.find(number)
                found.append(Saved(cursors.get(number), letters.get(number, 0), past))
            except Exception as error:
                found.append(error)
        return found
