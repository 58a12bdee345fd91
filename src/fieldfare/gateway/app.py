"""The gateway as an ASGI application: its routes, and what stands before them."""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fieldfare.gateway.admission.audit import Audit
from fieldfare.gateway.admission.bodies import Bodies
from fieldfare.gateway.admission.callers import NOBODY, Right, in_scope, invalid_key
from fieldfare.gateway.admission.door import Door, Identified
from fieldfare.gateway.admission.sockets import SOCKET
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.metrics import Metrics, RequestTimer
from fieldfare.gateway.problems import (
    HttpProblem,
    http_exception_response,
    internal_error_response,
    problem_response,
)
from fieldfare.gateway.publishing.events import Limits
from fieldfare.gateway.routes.delayed import DelayedRoutes
from fieldfare.gateway.routes.deliveries import DeliveryFinder
from fieldfare.gateway.routes.delivery import DeliveryRoutes
from fieldfare.gateway.routes.events import EventRoutes
from fieldfare.gateway.routes.filters import FilterRoutes
from fieldfare.gateway.routes.guarded import GuardedRoute, GuardedSocket, KeyRoute, OpenRoute
from fieldfare.gateway.routes.keys import KeyRoutes
from fieldfare.gateway.routes.messages import MessageRoutes
from fieldfare.gateway.routes.positions import Positions
from fieldfare.gateway.routes.quarantine import QuarantineRoutes
from fieldfare.gateway.routes.quotas import QuotaRoutes
from fieldfare.gateway.routes.service import ServiceRoutes
from fieldfare.gateway.routes.settling import Settling
from fieldfare.gateway.routes.subscriptions import SubscriptionRoutes
from fieldfare.gateway.settings import ANY
from fieldfare.gateway.transports.beats import Beats
from fieldfare.gateway.writer import WriterClosed
from fieldfare.storage.errors import DiskFullError, StorageError

logger = logging.getLogger("fieldfare.gateway")


def create_app(gateway: Gateway) -> Starlette:
    """The ASGI application over a gateway; its lifespan starts and closes the gateway."""
    g, settings = gateway, gateway.settings
    limits = Limits(settings.event_max_bytes, settings.batch_max_events)
    filters = FilterRoutes(g.subscriptions, g.log, g.bodies, settings.filter_max_bytes)
    deliveries = DeliveryFinder(g.subscriptions, g.pump, g.unused)
    positions = Positions(g.log, lambda: g.writer.log_ends, g.tail)
    settling = Settling(deliveries, g.pump, positions, g.metrics, settings.ack_deadline_s)
    routes = routes_of(
        EventRoutes(
            *(g.subscriptions, g.writer, g.records, g.bodies, g.load, g.quotas, g.metrics, g.delayed),
            *(limits, settings.delay_max_s),
        ),
        DelayedRoutes(g.subscriptions, g.delayed),
        SubscriptionRoutes(
            *(g.subscriptions, g.pump, g.pasts, g.pushes, g.unused, g.metrics, g.bodies, g.space_removal),
            settings.bulk_max_subscriptions,
        ),
        MessageRoutes(
            *(deliveries, g.pump, positions, settling, g.bodies, g.metrics),
            *(Beats(settings.heartbeat_s), g.quotas, settings),
        ),
        DeliveryRoutes(
            deliveries, g.places, positions, g.bodies, g.log, g.registry, g.writer, g.records, g.load
        ),
        filters,
        QuarantineRoutes(g.subscriptions, g.quarantine, g.log, g.writer, g.load, g.metrics),
        ServiceRoutes(g.figures, g.maintenance, g.metrics),
        KeyRoutes(g.keyring, g.subscriptions, g.bodies),
        QuotaRoutes(g.subscriptions, g.quotas, g.bodies),
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            filters.close()
            await gateway.close()

    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={
            HttpProblem: problem_response,
            HTTPException: http_exception_response,
            StorageError: _storage_error_response,
            OSError: _storage_error_response,  # of files that storage reads: too many are open, a disk dies
            WriterClosed: _closing_response,
            ClientDisconnect: _gone_response,
            Exception: internal_error_response,
        },
    )
    app.router.redirect_slashes = False
    app.add_middleware(Timed, metrics=gateway.metrics, bodies=gateway.bodies)
    app.add_middleware(Audited, audit=gateway.audit)
    app.add_middleware(Identified, keyring=gateway.keyring, key_watch=gateway.key_watch)
    if settings.cors_origins:
        app.add_middleware(Caught)
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
            allow_headers=(ANY,),
            allow_private_network=True,
            expose_headers=("Location", "Retry-After", "WWW-Authenticate"),
        )
    app.add_middleware(Door, settings=settings)
    return app


def routes_of(
    events: EventRoutes,
    delayed: DelayedRoutes,
    subscriptions: SubscriptionRoutes,
    messages: MessageRoutes,
    delivery: DeliveryRoutes,
    filters: FilterRoutes,
    quarantine: QuarantineRoutes,
    service: ServiceRoutes,
    keys: KeyRoutes,
    quotas: QuotaRoutes,
) -> list[OpenRoute | KeyRoute | GuardedRoute | GuardedSocket]:
    """The paths, what answers there, and who may ask."""
    space = "/v1/spaces/{space}"
    subscription = space + "/subscriptions/{id}"
    publish, subscribe, watch, admin = Right.PUBLISH, Right.SUBSCRIBE, Right.WATCH, Right.ADMIN
    manage = Right.MANAGE
    # They are looked at in this order: what is asked most often comes first.
    return [
        GuardedRoute(space + "/events", events.publish, ["POST"], publish),
        GuardedRoute(subscription + "/pull", messages.pull, ["POST"], subscribe, lasting=True),
        GuardedRoute(subscription + "/ack", messages.ack, ["POST"], subscribe),
        KeyRoute("/v1/spaces", subscriptions.list_spaces, methods=["GET"]),
        GuardedRoute("/v1/spaces", subscriptions.create_space, ["POST"], admin),
        GuardedRoute(space + "/subscriptions", subscriptions.list_subscriptions, ["GET"], subscribe),
        GuardedRoute(space + "/subscriptions", subscriptions.post_subscriptions, ["POST"], subscribe),
        GuardedRoute(subscription, subscriptions.get_subscription, ["GET"], subscribe),
        GuardedRoute(subscription, subscriptions.put_subscription, ["PUT"], subscribe),
        GuardedRoute(subscription, subscriptions.patch_subscription, ["PATCH"], subscribe),
        GuardedRoute(subscription, subscriptions.delete_subscription, ["DELETE"], subscribe),
        GuardedRoute(subscription + "/nack", messages.nack, ["POST"], subscribe),
        GuardedRoute(subscription + "/extend", messages.extend, ["POST"], subscribe),
        GuardedRoute(subscription + "/terminate", messages.terminate, ["POST"], subscribe),
        GuardedRoute(subscription + "/seek", delivery.seek, ["POST"], subscribe),
        GuardedRoute(subscription + "/dead-letters", delivery.list_dead_letters, ["GET"], subscribe),
        GuardedRoute(subscription + "/dead-letters", delivery.clear_dead_letters, ["DELETE"], subscribe),
        GuardedRoute(subscription + "/dead-letters/retry", delivery.retry_dead_letters, ["POST"], subscribe),
        # Before GET's, which takes HEAD too: who only asks what a stream would be must take no messages.
        GuardedRoute(subscription + "/stream", messages.head_of_stream, ["HEAD"], subscribe),
        GuardedRoute(subscription + "/stream", messages.stream, ["GET"], subscribe, lasting=True),
        GuardedRoute(subscription + SOCKET, messages.no_socket, ["GET"], subscribe),
        GuardedSocket(subscription + SOCKET, messages.socket, subscribe),
        GuardedRoute(space + "/delayed", delayed.list_delayed, ["GET"], publish),
        GuardedRoute(space + "/delayed/{delayed}", delayed.cancel_delayed, ["DELETE"], publish),
        GuardedRoute(space, subscriptions.delete_space, ["DELETE"], admin),
        GuardedRoute(space + "/quotas", quotas.get_quotas, ["GET"], manage),
        GuardedRoute(space + "/quotas", quotas.put_quotas, ["PUT"], admin),
        KeyRoute("/v1/filters:check", filters.check_filter, methods=["POST"]),
        KeyRoute("/v1/filters:explain", filters.explain_filter, methods=["POST"]),
        KeyRoute("/v1/filters:test", filters.test_filter, methods=["POST"]),
        KeyRoute("/v1/filters:convert", filters.convert_filter, methods=["POST"]),
        KeyRoute("/v1/keys", keys.list_keys, methods=["GET"]),
        KeyRoute("/v1/keys", keys.create_key, methods=["POST"]),
        KeyRoute("/v1/keys/{key}", keys.revoke_key, methods=["DELETE"]),
        KeyRoute("/v1/quarantine", quarantine.list_quarantine, methods=["GET"]),
        KeyRoute("/v1/quarantine/{position}/retry", quarantine.retry, methods=["POST"]),
        GuardedRoute("/v1/stats", service.stats, ["GET"], watch),
        GuardedRoute("/metrics", service.metrics, ["GET"], watch),
        OpenRoute("/healthz", service.healthz, methods=["GET"]),
        OpenRoute("/readyz", service.readyz, methods=["GET"]),
        OpenRoute("/openapi.json", service.openapi, methods=["GET"]),
    ]


PATH_MAX_CHARS = 400
_CHANGING = frozenset(("POST", "PUT", "PATCH", "DELETE"))
_NO_CHANGE = frozenset(
    (
        *("publish", "pull", "stream", "ack", "nack", "extend", "terminate"),
        *("check_filter", "explain_filter", "test_filter", "convert_filter"),
    )
)
"""Routes, by what answers there: a path may end like any of them, for clients name subscriptions."""

_WAITING = frozenset({"pull", "stream"})


class Timed:
    """ASGI middleware: how long each route's requests take; what they held is given back after them."""

    def __init__(self, app: ASGIApp, metrics: Metrics, bodies: Bodies) -> None:
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


class Caught:
    """ASGI middleware: answers where a request fails, inside of what allows for pages of other origins.

    Starlette does that outside of everything, and a browser would keep such an answer from its page.
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
    """ASGI middleware: what changes more than events and acks, and what of it is refused, is written down."""

    def __init__(self, app: ASGIApp, audit: Audit) -> None:
        self._app = app
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        changes = scope["type"] == "http" and scope["method"] in _CHANGING
        # Whoever has no key could fill the record with his attempts.
        if not changes or in_scope(scope) is NOBODY:
            await self._app(scope, receive, send)
            return

        async def observed(message: Message) -> None:
            if message["type"] == "http.response.start" and _route_name(scope) not in _NO_CHANGE:
                made = dict(message.get("headers", ())).get(b"location")
                now_ms = time.time_ns() // 1_000_000
                place = made.decode() if made is not None else None
                by, method, path = in_scope(scope).id, scope["method"], scope["path"]
                self._audit.note(now_ms, by, method, path[:PATH_MAX_CHARS], message["status"], place)
            await send(message)

        await self._app(scope, receive, observed)


def _route_name(scope: Scope) -> str:
    """The name of what answers, once the route is found."""
    return getattr(scope.get("endpoint"), "__name__", "none")


async def _storage_error_response(request: Request, error: Exception) -> Response:
    logger.error("storage failed: %s", error, exc_info=error if isinstance(error, OSError) else None)
    if isinstance(error, DiskFullError) or getattr(error, "errno", None) == errno.ENOSPC:
        detail = "The disk is full: nothing of this request was done. It is taken again when there is space."
        return HttpProblem(503, "disk-full", detail, headers={"Retry-After": "1"}).response()
    detail = "The service's storage cannot be used at the moment; its log says more."
    return HttpProblem(503, "storage", detail, headers={"Retry-After": "1"}).response()


async def _closing_response(request: Request, error: Exception) -> Response:
    detail = "The gateway is stopping; nothing of this request was done."
    return HttpProblem(503, "stopping", detail, headers={"Retry-After": "1"}).response()


async def _gone_response(request: Request, error: Exception) -> Response:
    """Nobody reads this: the client went away, or was cut off, before its request was complete.

    But where its key was revoked meanwhile.
    """
    if in_scope(request.scope).has_ended:
        return invalid_key().response()
    return HttpProblem(400, "incomplete", "The request's body did not come to its end.").response()
