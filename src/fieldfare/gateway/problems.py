"""Errors as ``application/problem+json`` (RFC 9457): what went wrong, and where in the request."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

logger = logging.getLogger("fieldfare.gateway")

MEDIA_TYPE = "application/problem+json"

TITLES = {
    400: "Bad request",
    401: "Who are you?",
    404: "Not found",
    403: "Forbidden",
    405: "Method not allowed",
    408: "Too slow",
    409: "Conflict",
    413: "Too large",
    415: "Unsupported content type",
    421: "Misdirected request",
    426: "Upgrade required",
    429: "Too many requests",
    431: "Head too large",
    500: "Internal error",
    501: "Not implemented",
    503: "Not available",
}


class HttpProblem(Exception):
    """An error to be told to the client.

    Parameters
    ----------
    status
        The HTTP status.
    name
        The problem's kind, in words joined by hyphens; it becomes the ``type`` URI.
    detail
        One sentence for a person: what is wrong and what would be right.
    headers
        Extra response headers.
    place
        Further members that name the place: index, line, column, pointer, hint, refused...
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


async def problem_response(request: Request, error: Exception) -> Response:
    """Starlette's handler for `HttpProblem`."""
    assert isinstance(error, HttpProblem)
    return error.response()


async def http_exception_response(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405 (an unknown route, a wrong method), told in our form."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 404:
        problem = HttpProblem(
            404, "unknown-route", f"There is nothing at {path}; /openapi.json lists what is."
        )
    elif error.status_code == 405:
        allowed = ", ".join(_methods_of(request))
        detail = f"{path} does not take {request.method}; it takes {allowed}."
        problem = HttpProblem(405, "wrong-method", detail, headers={"Allow": allowed})
    else:
        problem = HttpProblem(error.status_code, "http", str(error.detail), headers=error.headers)
    return problem.response()


def _methods_of(request: Request) -> list[str]:
    """What the request's path takes: there is a route for each of its methods."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return sorted(methods)


async def internal_error_response(request: Request, error: Exception) -> Response:
    """A fault of ours: the client hears that much, the log has the traceback."""
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return HttpProblem(500, "internal", "The gateway failed at this request; its log says more.").response()
