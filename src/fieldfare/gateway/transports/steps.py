"""What transports share: how many messages a step takes, and whether its client is still there."""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from fieldfare.gateway.delivery.records import PIECE_BYTES

PARTS = 3
"""What one message takes in the list that its text is written to."""

FIRST_AT_ONCE = 16
SENT_AT_ONCE = 500


def next_step(size_bytes: int, count: int) -> int:
    """How many messages to take at once, from the size of the last."""
    return max(1, min(SENT_AT_ONCE, PIECE_BYTES * count // max(size_bytes, 1)))


class Disconnect:
    """Notices that the client has gone, while its request is being answered."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.future: asyncio.Future[None] = asyncio.ensure_future(self._watch())

    @property
    def happened(self) -> bool:
        return self.future.done()

    async def __aenter__(self) -> Disconnect:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.future.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
