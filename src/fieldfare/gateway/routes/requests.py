"""What routes share: parameters of the query in, JSON out."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from starlette.requests import HTTPConnection
from starlette.responses import Response

from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.transports.steps import SentPieces

PIECE_BYTES = 256 << 10


def json_response(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    text = msgspec.json.encode(document)
    if len(text) > PIECE_BYTES:
        pieces = [text[at : at + PIECE_BYTES] for at in range(0, len(text), PIECE_BYTES)]
        return SentPieces(pieces, status, headers)
    return Response(text, status, headers, "application/json")


def query_int(request: HTTPConnection, name: str, default: int, low: int, high: int) -> int:
    """A whole number of the query; Problem 400 when it is none, or out of its range."""
    text = query_text(request, name)
    if text is None:
        return default
    if not (re.fullmatch(r"[0-9]{1,12}", text) and low <= int(text) <= high):
        raise HttpProblem(
            400, "bad-parameter", f"{name} must be a whole number from {low} to {high}.", parameter=name
        )
    return int(text)


def query_seconds(request: HTTPConnection, name: str, default: float | None, high: float) -> float | None:
    """A time in seconds of the query, more than 0."""
    text = query_text(request, name)
    if text is None:
        return default
    # Not all that Python reads as a number: nan, infinity, 1_0, other scripts' digits.
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
    """A parameter of the query, None where it is not given; Problem 400 when it comes more than once."""
    texts = request.query_params.getlist(name)
    if len(texts) > 1:
        raise HttpProblem(400, "bad-parameter", f"{name} comes more than once.", parameter=name)
    return texts[0] if texts else None
