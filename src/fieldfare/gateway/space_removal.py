"""Spaces are deleted: gone at once and for good, and what is left of them bit by bit.

    the registry forgets the name, and revokes the keys ──▶ nobody gets in, streams of keys end
    what it published for later goes ──────────────────────▶ nothing more of it comes
    its subscriptions go, some hundred a transaction ─────▶ their streams and pulls end, the index drops them
    the registry notes that all is done

A kill between any two of these changes nothing that was answered: the first is one transaction, and who
starts next goes on with what it left. What is kept under the space's key, which no space ever gets again,
goes as if it had been removed by hand: cursors and dead letters with the history, events and matches with
retention.
"""

from __future__ import annotations

import asyncio
import logging

from fieldfare.gateway.admission.keyring import Keyring
from fieldfare.gateway.delivery.pump import Pump
from fieldfare.gateway.publishing.delayed import Delayed
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.writer import WriterClosed
from fieldfare.storage.errors import StorageError
from fieldfare.storage.registry import Registry

logger = logging.getLogger("fieldfare.gateway")

AGAIN_S = 2.0


class SpaceRemoval:
    """Deletes spaces.

    Parameters
    ----------
    registry
        Says what an earlier gateway has left.
    subscriptions, keyring, pump, delayed
        Have what belongs to a space.
    """

    def __init__(
        self,
        registry: Registry,
        subscriptions: Subscriptions,
        keyring: Keyring,
        pump: Pump,
        delayed: Delayed,
    ) -> None:
        self._unfinished = registry.unfinished_spaces()
        self._subscriptions = subscriptions
        self._keyring = keyring
        self._pump = pump
        self._delayed = delayed
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Go on with what an earlier gateway has left."""
        for key in self._unfinished:
            self._finish_soon(key)

    async def close(self) -> None:
        """Leave the rest to the next one."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def delete(self, name: str) -> None:
        """Delete a space; Problem when there is none, or it must stay.

        On return nobody gets in any more, and, unless the disk fails, all that was open there has ended.
        """
        async with self._keyring.changing:  # or a key of it could be made behind its end
            key = await self._subscriptions.delete_space(name)
            self._keyring.end_space(name)
        # Nobody need wait to the end: it is done all the same.
        await asyncio.wait((self._finish_soon(key),))

    def _finish_soon(self, key: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._finish(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _finish(self, key: str) -> None:
        while True:
            try:
                if await self._delayed.cancel_some(key):
                    continue
                removed = await self._subscriptions.remove_some(key)
            except WriterClosed:
                return
            except StorageError as error:
                logger.error("what is left of the space %s cannot be removed yet: %s", key, error)
                await asyncio.sleep(AGAIN_S)
                continue
            for number in removed:
                self._pump.deleted(number)
            if not removed:
                return
