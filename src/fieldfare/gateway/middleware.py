"""Middleware and error answers of a gateway and a relay: measuring, and the audit log."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fieldfare.gateway.admission.audit import Audit
from fieldfare.gateway.admission.bodies import Bodies
from fieldfare.gateway.admission.callers import ANONYMOUS, in_scope, invalid_key
from fieldfare.gateway.admission.request_ids import SCOPE_KEY
from fieldfare.gateway.fair_limiter import ThreadsClosed
from fieldfare.gateway.problems import (
    HttpProblem,
    WriterClosed,
    http_exception_response,
    internal_error_response,
    problem_response,
)
from fieldfare.gateway.request_metrics import RequestMetrics, RequestTimer
from fieldfare.storage.errors import DiskFullError, StorageError

logger = logging.getLogger("fieldfare.gateway")

PATH_MAX_CHARS = 400
_CHANGING = frozenset(("POST", "PUT", "PATCH", "DELETE"))
_NO_CHANGE = frozenset(
    (
        *("publish", "pull", "stream", "ack", "nack", "extend", "terminate", "create_ticket"),
        "post_entries",
        *("check_filter", "explain_filter", "test_filter", "convert_filter"),
    )
)
"""Routes that are not audited, by handler name: paths end in client-chosen names, so they cannot be used."""

_WAITING = frozenset({"pull", "stream"})


class Timed:
    """ASGI middleware that measures each route's request times, and then releases the bodies' memory."""

    def __init__(self, app: ASGIApp, metrics: RequestMetrics, bodies: Bodies) -> None:
        self._app = app
        self._metrics = metrics
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        timer = RequestTimer(self._metrics)
        status = 500

        async def observed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, observed)
        finally:
            self._bodies.release(scope)
            name = _route_name(scope)
            if name not in _WAITING:
                timer.stop(name, status)


class ErrorMiddleware:
    """ASGI middleware that responds to failed requests, inside the CORS middleware.

    Starlette's own handler is outside it, so its response has no CORS headers and browsers withhold it from
    pages.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_answered = False

        async def observed(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await self._app(scope, receive, observed)
        except Exception as error:
            if is_answered or scope["type"] != "http":
                raise
            answer = await internal_error_response(Request(scope), error)
            await answer(scope, receive, send)


class Audited:
    """ASGI middleware that writes to the audit log all changes but events and acks, refused ones included."""

    def __init__(self, app: ASGIApp, audit: Audit) -> None:
        self._app = app
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        changes = scope["type"] == "http" and scope["method"] in _CHANGING
        # Attempts without a key are left out: they could fill the audit log.
        if not changes or in_scope(scope) is ANONYMOUS:
            await self._app(scope, receive, send)
            return

        async def observed(message: Message) -> None:
            if message["type"] == "http.response.start" and _route_name(scope) not in _NO_CHANGE:
                made = dict(message.get("headers", ())).get(b"location")
                now_ms = time.time_ns() // 1_000_000
                place = made.decode() if made is not None else None
                by, method, path = in_scope(scope).id, scope["method"], scope["path"]
                self._audit.note(
                    now_ms,
                    by,
                    method,
                    path[:PATH_MAX_CHARS],
                    message["status"],
                    place,
                    request=scope.get(SCOPE_KEY, ""),
                )
            await send(message)

        await self._app(scope, receive, observed)


def _route_name(scope: Scope) -> str:
    """Return the name of a request's handler, "none" before the route is found."""
    return getattr(scope.get("endpoint"), "__name__", "none")


async def _storage_error_response(request: Request, error: Exception) -> Response:
    logger.error("storage failed: %s", error, exc_info=error if isinstance(error, OSError) else None)
    if isinstance(error, DiskFullError) or getattr(error, "errno", None) == errno.ENOSPC:
        detail = "The disk is full: nothing was stored. Free disk space, then send the request again."
        return HttpProblem(503, "disk-full", detail, headers={"Retry-After": "1"}).response()
    detail = "The service's storage failed: see the service's log, and try again later."
    return HttpProblem(503, "storage", detail, headers={"Retry-After": "1"}).response()


async def _closing_response(request: Request, error: Exception) -> Response:
    detail = "The gateway is stopping, and nothing was stored: send the request again."
    return HttpProblem(503, "stopping", detail, headers={"Retry-After": "1"}).response()


async def _gone_response(request: Request, error: Exception) -> Response:
    """Respond to a request whose client disconnected, or was cut off, before it was complete.

    No client reads this, except where its key was revoked meanwhile.
    """
    if in_scope(request.scope).has_ended:
        return invalid_key().response()
    return HttpProblem(
        400, "incomplete", "The request's body ended before it was complete: send it again."
    ).response()


EXCEPTION_HANDLERS: Mapping[Any, Callable[..., Any]] = {
    HttpProblem: problem_response,
    HTTPException: http_exception_response,
    StorageError: _storage_error_response,
    OSError: _storage_error_response,  # from storage: too many open files, a failing disk
    WriterClosed: _closing_response,
    ThreadsClosed: _closing_response,
    ClientDisconnect: _gone_response,
    Exception: internal_error_response,
}
"""The answers to errors that routes raise."""
