"""The gateway as an ASGI application: its routes, and what stands before them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fieldfare.gateway.admission.bodies import Bodies
from fieldfare.gateway.admission.door import Door
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.metrics import Metrics, RequestTimer
from fieldfare.gateway.problems import (
    HttpProblem,
    http_exception_response,
    internal_error_response,
    problem_response,
)
from fieldfare.gateway.publishing.events import Limits
from fieldfare.gateway.routes.deliveries import DeliveryFinder
from fieldfare.gateway.routes.delivery import DeliveryRoutes
from fieldfare.gateway.routes.events import EventRoutes
from fieldfare.gateway.routes.filters import FilterRoutes
from fieldfare.gateway.routes.messages import MessageRoutes
from fieldfare.gateway.routes.positions import Positions
from fieldfare.gateway.routes.quarantine import QuarantineRoutes
from fieldfare.gateway.routes.service import ServiceRoutes
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
    deliveries = DeliveryFinder(g.subscriptions, g.pump)
    positions = Positions(g.log, lambda: g.writer.log_ends, g.tail)
    routes = routes_of(
        EventRoutes(g.subscriptions, g.writer, g.records, g.bodies, g.load, g.metrics, limits),
        SubscriptionRoutes(g.subscriptions, g.pump, g.metrics, g.bodies, settings.bulk_max_subscriptions),
        MessageRoutes(
            deliveries, g.pump, positions, g.bodies, g.metrics, Beats(settings.heartbeat_s), settings
        ),
        DeliveryRoutes(deliveries, positions, g.bodies, g.log, g.registry, g.writer, g.records, g.load),
        filters,
        QuarantineRoutes(g.quarantine, g.log, g.writer, g.load, g.metrics),
        ServiceRoutes(g.figures, g.maintenance, g.metrics),
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
            WriterClosed: _closing_response,
            ClientDisconnect: _gone_response,
            Exception: internal_error_response,
        },
    )
    app.router.redirect_slashes = False
    app.add_middleware(Timed, metrics=gateway.metrics, bodies=gateway.bodies)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
            allow_headers=(ANY,),
            allow_private_network=True,
            expose_headers=("Location", "Retry-After"),
        )
    app.add_middleware(Door, settings=settings)
    return app


def routes_of(
    events: EventRoutes,
    subscriptions: SubscriptionRoutes,
    messages: MessageRoutes,
    delivery: DeliveryRoutes,
    filters: FilterRoutes,
    quarantine: QuarantineRoutes,
    service: ServiceRoutes,
) -> list[Route]:
    """The paths, and what answers there."""
    space = "/v1/spaces/{space}"
    subscription = space + "/subscriptions/{id}"
    return [
        Route("/v1/spaces", subscriptions.list_spaces, methods=["GET"]),
        Route("/v1/spaces", subscriptions.create_space, methods=["POST"]),
        Route(space + "/events", events.publish, methods=["POST"]),
        Route(space + "/subscriptions", subscriptions.list_subscriptions, methods=["GET"]),
        Route(space + "/subscriptions", subscriptions.post_subscriptions, methods=["POST"]),
        Route(subscription, subscriptions.get_subscription, methods=["GET"]),
        Route(subscription, subscriptions.put_subscription, methods=["PUT"]),
        Route(subscription, subscriptions.patch_subscription, methods=["PATCH"]),
        Route(subscription, subscriptions.delete_subscription, methods=["DELETE"]),
        Route(subscription + "/pull", messages.pull, methods=["POST"]),
        Route(subscription + "/ack", messages.ack, methods=["POST"]),
        Route(subscription + "/nack", messages.nack, methods=["POST"]),
        Route(subscription + "/extend", messages.extend, methods=["POST"]),
        Route(subscription + "/terminate", messages.terminate, methods=["POST"]),
        Route(subscription + "/seek", delivery.seek, methods=["POST"]),
        Route(subscription + "/dead-letters", delivery.list_dead_letters, methods=["GET"]),
        Route(subscription + "/dead-letters", delivery.clear_dead_letters, methods=["DELETE"]),
        Route(subscription + "/dead-letters/retry", delivery.retry_dead_letters, methods=["POST"]),
        # Before GET's, which takes HEAD too: who only asks what a stream would be must take no messages.
        Route(subscription + "/stream", messages.head_of_stream, methods=["HEAD"]),
        Route(subscription + "/stream", messages.stream, methods=["GET"]),
        Route("/v1/filters:check", filters.check_filter, methods=["POST"]),
        Route("/v1/filters:explain", filters.explain_filter, methods=["POST"]),
        Route("/v1/filters:test", filters.test_filter, methods=["POST"]),
        Route("/v1/filters:convert", filters.convert_filter, methods=["POST"]),
        Route("/v1/quarantine", quarantine.list_quarantine, methods=["GET"]),
        Route("/v1/quarantine/{position}/retry", quarantine.retry, methods=["POST"]),
        Route("/v1/stats", service.stats, methods=["GET"]),
        Route("/healthz", service.healthz, methods=["GET"]),
        Route("/readyz", service.readyz, methods=["GET"]),
        Route("/metrics", service.metrics, methods=["GET"]),
        Route("/openapi.json", service.openapi, methods=["GET"]),
    ]


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
            name = getattr(scope.get("endpoint"), "__name__", "none")
            if name not in _WAITING:
                timer.stop(name, status)


async def _storage_error_response(request: Request, error: Exception) -> Response:
    logger.error("storage failed: %s", error)
    if isinstance(error, DiskFullError):
        detail = "The disk is full: nothing of this request was done. It is taken again when there is space."
        return HttpProblem(503, "disk-full", detail, headers={"Retry-After": "1"}).response()
    detail = "The service's storage cannot be used at the moment; its log says more."
    return HttpProblem(503, "storage", detail, headers={"Retry-After": "1"}).response()


async def _closing_response(request: Request, error: Exception) -> Response:
    detail = "The gateway is stopping; nothing of this request was done."
    return HttpProblem(503, "stopping", detail, headers={"Retry-After": "1"}).response()


async def _gone_response(request: Request, error: Exception) -> Response:
    """Nobody reads this: the client went away, or was cut off, before its request was complete."""
    return HttpProblem(400, "incomplete", "The request's body did not come to its end.").response()
