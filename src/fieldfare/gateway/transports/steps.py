"""What transports share: large answers, how many messages a step takes, whether the client is still there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Self

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fieldfare.gateway.delivery.records import PIECE_BYTES

FIRST_AT_ONCE = 16
SENT_AT_ONCE = 500


def first_step(piece_bytes: float) -> int:
    """How many messages to take at once by who does not know how large they are."""
    return max(1, int(FIRST_AT_ONCE * piece_bytes // PIECE_BYTES))


def next_step(size_bytes: int, count: int, piece_bytes: float) -> int:
    """How many messages to take at once, about so many bytes, from the size of the last."""
    return max(1, min(SENT_AT_ONCE, int(piece_bytes * count // max(size_bytes, 1))))


class SentPieces(Response):
    """A large answer of JSON, in pieces, so that nobody waits until all of it is copied somewhere."""

    def __init__(
        self, pieces: Sequence[bytes], status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(None, status, headers, "application/json")
        self._pieces = pieces
        self.headers["content-length"] = str(sum(map(len, pieces)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Disconnect:
    """Notices that the client has gone, while its request is being answered."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.future: asyncio.Future[None] = asyncio.ensure_future(self._watch())

    @property
    def happened(self) -> bool:
        return self.future.done()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.future.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
