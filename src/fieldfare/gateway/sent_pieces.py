"""Large JSON responses."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class SentPieces(Response):
    """A large JSON response sent in pieces, so that no other task waits while all of it is copied."""

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
