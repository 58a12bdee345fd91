"""Helpers shared by routes: query parameters, JSON responses, and cancellation on disconnect."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response

from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.sent_pieces import SentPieces

BODY_MAX_BYTES = 1 << 20
"""Maximum bytes of a request about messages; a longer one gets 413."""
PIECE_BYTES = 256 << 10

T = TypeVar("T")


def json_response(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    text = msgspec.json.encode(document)
    if len(text) > PIECE_BYTES:
        pieces = [text[at : at + PIECE_BYTES] for at in range(0, len(text), PIECE_BYTES)]
        return SentPieces(pieces, status, headers)
    return Response(text, status, headers, "application/json")


def query_int(request: HTTPConnection, name: str, default: int, low: int, high: int) -> int:
    """Return an integer query parameter; raise Problem 400 if it is no whole number or out of range."""
    text = query_text(request, name)
    if text is None:
        return default
    if not (re.fullmatch(r"[0-9]{1,12}", text) and low <= int(text) <= high):
        raise HttpProblem(
            400, "bad-parameter", f"{name} must be a whole number from {low} to {high}.", parameter=name
        )
    return int(text)


def query_seconds(request: HTTPConnection, name: str, default: float | None, high: float) -> float | None:
    """Return a query parameter in seconds; raise Problem 400 unless it is over 0 and at most ``high``."""
    text = query_text(request, name)
    if text is None:
        return default
    # Stricter than Python's numbers: no nan, infinity, 1_0 or other scripts' digits.
    value = float(text) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,12})?", text) else 0.0
    if not 0 < value <= high:
        raise HttpProblem(
            400,
            "bad-parameter",
            f"{name} must be a time in seconds, more than 0 and at most {high:g}.",
            parameter=name,
        )
    return value


def query_text(request: HTTPConnection, name: str) -> str | None:
    """Return a query parameter, None if it is missing; raise Problem 400 if it is repeated."""
    texts = request.query_params.getlist(name)
    if len(texts) > 1:
        raise HttpProblem(400, "bad-parameter", f"{name} is repeated: send it once.", parameter=name)
    return texts[0] if texts else None


async def unless_gone(request: Request, work: Awaitable[T], on_gone: Callable[[], None] = lambda: None) -> T:
    """Await work after the request was read; if the client disconnects first, cancel it.

    Raise ClientDisconnect then, after calling ``on_gone``.
    """
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientDisconnect
    finally:
        leaving.cancel()
        if not doing.done():
            on_gone()
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
