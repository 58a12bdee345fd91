"""Deletion of spaces: immediate and final for clients; the data is removed step by step.

    the registry drops the name, and revokes the keys ──▶ no access any more, streams of keys end
    what it advertises, and the moves of its subscriptions, are forgotten
    its delayed events are removed ──────────────────────▶ none of them is delivered
    its subscriptions are removed in batches ────────────▶ their streams and pulls end, the index drops them
    the registry notes that all is done

A kill between any two steps breaks no promise: the first step is one transaction, and the next gateway
resumes the others. Data under the space's key, which no other space ever gets, is removed as in other spaces:
cursors and dead letters with the history, events and matches with retention.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from fieldfare.gateway.admission.keyring import Keyring
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.problems import WriterClosed
from fieldfare.gateway.publishing.delayed import Delayed
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.storage.errors import StorageError
from fieldfare.storage.registry import SpaceStore

logger = logging.getLogger("fieldfare.gateway")

AGAIN_S = 2.0


class SpaceRemoval:
    """Deletes spaces, and completes deletions that an earlier gateway left unfinished.

    Parameters
    ----------
    registry
        Knows the unfinished deletions.
    subscriptions, keyring, deliveries, delayed
        Hold the parts of a space.
    forget_exchange
        Forgets the moves of its subscriptions between brokers, and what it advertises; None for a service
        that is no broker.
    """

    def __init__(
        self,
        registry: SpaceStore,
        subscriptions: Subscriptions,
        keyring: Keyring,
        deliveries: DeliveryService,
        delayed: Delayed,
        forget_exchange: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self._unfinished = registry.unfinished_spaces()
        self._subscriptions = subscriptions
        self._keyring = keyring
        self._deliveries = deliveries
        self._delayed = delayed
        self._forget_exchange = forget_exchange
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Resume the deletions that an earlier gateway left unfinished."""
        for key in self._unfinished:
            self._finish_soon(key)

    async def close(self) -> None:
        """Stop; the next gateway resumes unfinished deletions."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def delete(self, name: str) -> None:
        """Delete a space; raise a problem if it is unknown, or the default space.

        On return all access to it is refused and, unless the disk fails, its streams and pulls have ended.
        """
        async with self._keyring.changing:  # else a key could be created after it is gone
            key = await self._subscriptions.delete_space(name)
            self._keyring.end_space(name)
        # A cancelled request does not stop the removal.
        await asyncio.wait((self._finish_soon(key),))

    def _finish_soon(self, key: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._finish(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _finish(self, key: str) -> None:
        forget = self._forget_exchange
        while True:
            try:
                # Once, and before all is noted as done: the name may be that of another space soon.
                if forget is not None:
                    await forget(key)
                    forget = None
                if await self._delayed.cancel_some(key):
                    continue
                removed = await self._subscriptions.remove_some(key)
            except WriterClosed:
                return
            except StorageError as error:
                logger.error("the deleted space %s could not be removed completely; retrying: %s", key, error)
                await asyncio.sleep(AGAIN_S)
                continue
            for number in removed:
                self._deliveries.deleted(number)
            if not removed:
                return
