"""The gateway: what clients talk to, put together from its parts, and its routes."""

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

from fieldfare.files import make_folder
from fieldfare.gateway import (
    delivery_routes,
    event_routes,
    event_stream,
    filter_routes,
    quarantine_routes,
    service_routes,
    subscription_routes,
)
from fieldfare.gateway.background import Background
from fieldfare.gateway.door import Door
from fieldfare.gateway.events import Limits
from fieldfare.gateway.maintenance import Maintenance
from fieldfare.gateway.match_tail import MatchTail
from fieldfare.gateway.metrics import Metrics, Timer
from fieldfare.gateway.problems import (
    Problem,
    http_exception_response,
    internal_error_response,
    problem_response,
)
from fieldfare.gateway.pump import Pump
from fieldfare.gateway.records import RecordCache
from fieldfare.gateway.requests import BodyBytes
from fieldfare.gateway.restored import make_consistent
from fieldfare.gateway.settings import ANY, GatewaySettings
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.writer import Writer, WriterClosed
from fieldfare.model import DEFAULT_SPACE
from fieldfare.storage import open_event_log, open_match_log, open_registry
from fieldfare.storage.errors import DiskFullError, StorageError
from fieldfare.storage.quarantine import Quarantine

logger = logging.getLogger("fieldfare.gateway")


class Gateway:
    """Everything one gateway process holds, on one data directory.

    Parameters
    ----------
    settings
        Its knobs; ``settings.data`` is created if it is not there.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        data = settings.folder
        for folder in (data.root, data.matches, data.run):
            make_folder(folder)
        self.log = open_event_log(data.log_url)
        self.registry = open_registry(data.registry_url)
        if not self.registry.has_space(DEFAULT_SPACE):
            self.registry.create_space(DEFAULT_SPACE)
        self.match_log = open_match_log(data.matches_url)
        matched = make_consistent(settings, self.log, self.registry, self.match_log)
        self.quarantine = Quarantine(data.quarantine)
        self.heartbeat_path = data.heartbeat
        self.limits = Limits(settings.event_max_bytes, settings.batch_max_events)
        self.bodies = BodyBytes(settings.bodies_max_bytes)
        self.metrics = Metrics()
        self.writer = Writer(self.log, self.registry, queue_max_bytes=settings.queue_max_bytes)
        self.records = RecordCache(self.log, settings.record_cache_bytes)
        self.subscriptions = Subscriptions(
            self.registry,
            self.writer,
            filter_max_bytes=settings.filter_max_bytes,
            overloaded=self.overloaded,
        )
        self.maintenance = Maintenance(self)
        self.tail = MatchTail(
            self.match_log,
            self.log,
            lambda: self.writer.log_ends,
            matched,
            poll_s=settings.poll_ms / 1000,
            on_broken=self.maintenance.report,
        )
        self.pump = Pump(
            self.log,
            self.registry,
            self.tail,
            self.writer,
            self.metrics,
            window_max=settings.window_max,
        )
        self.filter_help = filter_routes.FilterHelp()
        self.background = Background(self)

    async def start(self) -> None:
        """Begin to work, on the running event loop."""
        self.writer.start()
        self.pump.start()
        self.background.start()

    async def close(self) -> None:
        """End the sessions, finish what is queued, save the cursors."""
        await self.background.close()
        await self.pump.close()
        await self.writer.close()
        self.subscriptions.close()
        self.records.close()
        self.filter_help.close()
        self.log.close()
        self.registry.close()

    def check_load(self) -> None:
        """Problem 429 when publishers must wait for the pipeline or for disk."""
        settings = self.settings
        if self.background.lag_events > settings.lag_max_events:
            raise self.overloaded(
                "lag",
                f"{self.background.lag_events} events wait to be matched; at most "
                f"{settings.lag_max_events} may.",
            )
        if self.background.disk_free_bytes < settings.disk_free_min_bytes:
            raise self.overloaded("disk", "The disk is almost full.")

    def overloaded(self, why: str, detail: str) -> Problem:
        """The problem that asks a client to come back later."""
        self.metrics.overloaded.labels(why).inc()
        return Problem(
            429, "overloaded", detail, headers={"Retry-After": str(self.settings.retry_after_s)}, why=why
        )


ROUTES = [
    Route("/v1/spaces", subscription_routes.list_spaces, methods=["GET"]),
    Route("/v1/spaces", subscription_routes.create_space, methods=["POST"]),
    Route("/v1/spaces/{space}/events", event_routes.publish, methods=["POST"]),
    Route("/v1/spaces/{space}/subscriptions", subscription_routes.list_subscriptions, methods=["GET"]),
    Route("/v1/spaces/{space}/subscriptions", subscription_routes.post_subscriptions, methods=["POST"]),
    Route("/v1/spaces/{space}/subscriptions/{id}", subscription_routes.get_subscription, methods=["GET"]),
    Route("/v1/spaces/{space}/subscriptions/{id}", subscription_routes.put_subscription, methods=["PUT"]),
    Route(
        "/v1/spaces/{space}/subscriptions/{id}", subscription_routes.delete_subscription, methods=["DELETE"]
    ),
    Route("/v1/spaces/{space}/subscriptions/{id}/pull", delivery_routes.pull, methods=["POST"]),
    Route("/v1/spaces/{space}/subscriptions/{id}/ack", delivery_routes.ack, methods=["POST"]),
    Route("/v1/spaces/{space}/subscriptions/{id}/nack", delivery_routes.nack, methods=["POST"]),
    # Before GET's, which takes HEAD too: who only asks what a stream would be must take no messages.
    Route(
        "/v1/spaces/{space}/subscriptions/{id}/stream", subscription_routes.head_of_stream, methods=["HEAD"]
    ),
    Route("/v1/spaces/{space}/subscriptions/{id}/stream", event_stream.stream, methods=["GET"]),
    Route("/v1/filters:check", filter_routes.check_filter, methods=["POST"]),
    Route("/v1/filters:explain", filter_routes.explain_filter, methods=["POST"]),
    Route("/v1/filters:test", filter_routes.test_filter, methods=["POST"]),
    Route("/v1/filters:convert", filter_routes.convert_filter, methods=["POST"]),
    Route("/v1/quarantine", quarantine_routes.list_quarantine, methods=["GET"]),
    Route("/v1/quarantine/{position}/retry", quarantine_routes.retry, methods=["POST"]),
    Route("/v1/stats", service_routes.stats, methods=["GET"]),
    Route("/healthz", service_routes.healthz, methods=["GET"]),
    Route("/readyz", service_routes.readyz, methods=["GET"]),
    Route("/metrics", service_routes.metrics, methods=["GET"]),
    Route("/openapi.json", service_routes.openapi, methods=["GET"]),
]

_WAITING = frozenset({"pull", "stream"})


class Timed:
    """ASGI middleware: how long each route's requests take; what they held is given back after them."""

    def __init__(self, app: ASGIApp, metrics: Metrics, bodies: BodyBytes) -> None:
        self._app = app
        self._metrics = metrics
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        timer = Timer(self._metrics)
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


def create_app(gateway: Gateway) -> Starlette:
    """The ASGI application over a gateway; its lifespan starts and closes the gateway."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.close()

    app = Starlette(
        routes=ROUTES,
        lifespan=lifespan,
        exception_handlers={
            Problem: problem_response,
            HTTPException: http_exception_response,
            StorageError: _storage_error_response,
            WriterClosed: _closing_response,
            ClientDisconnect: _gone_response,
            Exception: internal_error_response,
        },
    )
    app.router.redirect_slashes = False
    app.add_middleware(Timed, metrics=gateway.metrics, bodies=gateway.bodies)
    if gateway.settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=gateway.settings.cors_origins,
            allow_methods=("GET", "POST", "PUT", "DELETE"),
            allow_headers=(ANY,),
            allow_private_network=True,
            expose_headers=("Location", "Retry-After"),
        )
    app.add_middleware(Door, settings=gateway.settings)
    app.state.gateway = gateway
    return app


async def _storage_error_response(request: Request, error: Exception) -> Response:
    logger.error("storage failed: %s", error)
    if isinstance(error, DiskFullError):
        detail = "The disk is full: nothing of this request was done. It is taken again when there is space."
        return Problem(503, "disk-full", detail, headers={"Retry-After": "1"}).response()
    detail = "The service's storage cannot be used at the moment; its log says more."
    return Problem(503, "storage", detail, headers={"Retry-After": "1"}).response()


async def _closing_response(request: Request, error: Exception) -> Response:
    detail = "The gateway is stopping; nothing of this request was done."
    return Problem(503, "stopping", detail, headers={"Retry-After": "1"}).response()


async def _gone_response(request: Request, error: Exception) -> Response:
    """Nobody reads this: the client went away, or was cut off, before its request was complete."""
    return Problem(400, "incomplete", "The request's body did not come to its end.").response()
