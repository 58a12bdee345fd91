"""Errors as ``application/problem+json`` (RFC 9457): what went wrong, and where in the request."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

logger = logging.getLogger("fieldfare.gateway")

MEDIA_TYPE = "application/problem+json"

TITLES = {
    400: "Bad request",
    401: "Unauthorized",
    404: "Not found",
    403: "Forbidden",
    405: "Method not allowed",
    408: "Too slow",
    409: "Conflict",
    410: "Moved",
    413: "Too large",
    415: "Unsupported content type",
    421: "Misdirected request",
    426: "Upgrade required",
    429: "Too many requests",
    431: "Head too large",
    500: "Internal error",
    501: "Not implemented",
    503: "Not available",
    505: "HTTP version not supported",
}


class PlaceDocument(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Where in a request something is wrong; members are missing where there is no such place."""

    pointer: Annotated[
        str | None, "JSON pointer to the wrong value in the request's body or in the event."
    ] = None
    byte: Annotated[int | None, "Offset in the request's body, in bytes from 0."] = None
    line: Annotated[int | None, "Line of the body or of the filter, from 1."] = None
    column: Annotated[int | None, "Character in the line, from 1."] = None
    hint: Annotated[str | None, "How to correct the request."] = None
    display: Annotated[str | None, "The text with carets below the wrong place, as text for people."] = None


class RefusedDocument(PlaceDocument, omit_defaults=True):
    """A refused item of a request with several."""

    index: Annotated[int, "Index of the item in the request, from 0."]
    detail: Annotated[str, "What is wrong with the item, as a phrase."]


class _WithRefused(PlaceDocument, omit_defaults=True, kw_only=True):
    refused: Annotated[
        list[RefusedDocument] | None, "The refused items; only for requests with several items."
    ] = None


class ProblemDocument(_WithRefused, omit_defaults=True):
    """An error (RFC 9457). Members that name a place are missing where there is none."""

    type: Annotated[str, "Kind of the problem: `urn:fieldfare:problem:` and a name."]
    title: Annotated[str, "Short description of the kind."]
    status: Annotated[int, "HTTP status of the response."]
    detail: Annotated[str, "What is wrong and what is allowed, as sentences."]


class HttpProblem(Exception):
    """An error to report to the client.

    Parameters
    ----------
    status
        The HTTP status.
    name
        The problem's kind, in words joined by hyphens; it becomes the ``type`` URI.
    detail
        One sentence for a person: what is wrong, and what is allowed.
    headers
        Extra response headers.
    place
        Further members of the document, which locate the error: index, line, column, pointer, hint,
        refused...
    """

    def __init__(
        self,
        status: int,
        name: str,
        detail: str,
        *,
        title: str | None = None,
        headers: Mapping[str, str] | None = None,
        **place: Any,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.name = name
        self.detail = detail
        self.title = title or TITLES.get(status, "Error")
        self.headers = dict(headers or {})
        self.place = place

    def body(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "type": f"urn:fieldfare:problem:{self.name}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
        }
        document.update((key, value) for key, value in self.place.items() if value is not None)
        return document

    def response(self) -> Response:
        return Response(
            msgspec.json.encode(self.body()), self.status, headers=self.headers, media_type=MEDIA_TYPE
        )


class WriterClosed(Exception):
    """The gateway is stopping and accepts no more work."""


async def problem_response(request: Request, error: Exception) -> Response:
    """Handle `HttpProblem` for Starlette."""
    assert isinstance(error, HttpProblem)
    return response_to(request.scope, error)


def response_to(scope: Scope, problem: HttpProblem) -> Response:
    """Return the response for a problem; for a browser's EventSource, one after which it reconnects.

    EventSource gives up permanently at any status but 200, even for temporary problems (429, 503).
    """
    headers = dict(scope["headers"])
    is_stream = headers.get(b"accept") == b"text/event-stream" and b"ack=auto" in scope["query_string"]
    if not (is_stream and problem.status in (429, 503)):
        return problem.response()
    wait_s = problem.headers.get("Retry-After", "1")
    body = f": {problem.detail}\nretry: {1000 * int(wait_s) if wait_s.isdigit() else 1000}\n\n"
    more = {"Connection": "close", "Cache-Control": "no-store"}
    return Response(body, headers=more, media_type="text/event-stream")


async def http_exception_response(request: Request, error: Exception) -> Response:
    """Convert Starlette's own 404 and 405 (unknown route, wrong method) to problem documents."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 404:
        problem = HttpProblem(
            404, "unknown-route", f"There is nothing at {path}; /openapi.json lists what is."
        )
    elif error.status_code == 405:
        allowed = ", ".join(_methods_of(request))
        detail = f"{path} does not support {request.method}: use {allowed}."
        problem = HttpProblem(405, "wrong-method", detail, headers={"Allow": allowed})
    else:
        problem = HttpProblem(error.status_code, "http", str(error.detail), headers=error.headers)
    return problem.response()


def _methods_of(request: Request) -> list[str]:
    """Return the methods of the request's path, each of which has its own route."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return sorted(methods)


async def internal_error_response(request: Request, error: Exception) -> Response:
    """Respond to an unexpected exception with Problem 500, and log the traceback."""
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return HttpProblem(500, "internal", "The gateway failed with an internal error: see its log.").response()
