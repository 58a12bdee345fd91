"""Shared by the transports: large responses, the number of messages per step, and client disconnects."""

from __future__ import annotations

import asyncio
from typing import Self

from starlette.types import Receive

from fieldfare.gateway.delivery.records import PIECE_BYTES

FIRST_BATCH_SIZE = 16
SENT_BATCH_SIZE = 500


def first_step(piece_bytes: float) -> int:
    """Return how many messages to take first, while their size is unknown."""
    return max(1, int(FIRST_BATCH_SIZE * piece_bytes // PIECE_BYTES))


def next_step(size_bytes: int, count: int, piece_bytes: float) -> int:
    """Return how many messages of the last step's size make up about ``piece_bytes``."""
    return max(1, min(SENT_BATCH_SIZE, int(piece_bytes * count // max(size_bytes, 1))))


class Disconnect:
    """Detects that the client has disconnected while its request is being answered."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._may_read = False
        self.future: asyncio.Future[None] = asyncio.ensure_future(self._watch())

    @property
    def happened(self) -> bool:
        return self.future.done()

    @property
    def is_lost(self) -> bool:
        """Whether the client reads nothing more. One that only closed its side for writing may still read."""
        return self.future.done() and not self._may_read

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.future.cancel()

    async def _watch(self) -> None:
        while (message := await self._receive())["type"] != "http.disconnect":
            pass
        self._may_read = message.get("half_closed", False)
