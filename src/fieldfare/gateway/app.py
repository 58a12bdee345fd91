"""The gateway as an ASGI application: its routes and middleware."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import cache

import msgspec
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware

from fieldfare.gateway.admission.request_guard import Identified, RequestGuard
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.filter_warnings import FilterWarnings
from fieldfare.gateway.middleware import EXCEPTION_HANDLERS, Audited, ErrorMiddleware, Timed
from fieldfare.gateway.openapi.document import api_document
from fieldfare.gateway.publishing.events import Limits
from fieldfare.gateway.routes.acks import Settling
from fieldfare.gateway.routes.backlogs import BacklogRoutes
from fieldfare.gateway.routes.brokers import BrokerRoutes
from fieldfare.gateway.routes.console import ConsoleRoute
from fieldfare.gateway.routes.delayed import DelayedRoutes
from fieldfare.gateway.routes.deliveries import DeliveryFinder
from fieldfare.gateway.routes.delivery import DeliveryRoutes
from fieldfare.gateway.routes.event_store import EventStore
from fieldfare.gateway.routes.events import EventRoutes
from fieldfare.gateway.routes.filters import FilterRoutes
from fieldfare.gateway.routes.guarded import GuardedRoute, GuardedSocket, KeyRoute, OpenRoute
from fieldfare.gateway.routes.keys import KeyRoutes
from fieldfare.gateway.routes.messages import MessageRoutes
from fieldfare.gateway.routes.positions import Positions
from fieldfare.gateway.routes.quarantine import QuarantineRoutes
from fieldfare.gateway.routes.quotas import QuotaRoutes
from fieldfare.gateway.routes.service import ServiceRoutes
from fieldfare.gateway.routes.subscriptions import SubscriptionRoutes
from fieldfare.gateway.routes.table import routes_of
from fieldfare.gateway.routes.tickets import TicketRoutes
from fieldfare.gateway.routes.trace import TraceRoutes
from fieldfare.gateway.setting_values import ANY
from fieldfare.gateway.transports.heartbeats import Heartbeats


def create_app(gateway: Gateway) -> Starlette:
    """Create the ASGI application of a gateway; its lifespan starts and closes the gateway."""
    settings = gateway.settings

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.close()

    app = Starlette(
        routes=[*_routes(gateway), ConsoleRoute()],
        lifespan=lifespan,
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.router.redirect_slashes = False
    app.add_middleware(Timed, metrics=gateway.metrics, bodies=gateway.bodies)
    app.add_middleware(Audited, audit=gateway.audit)
    app.add_middleware(
        Identified, keyring=gateway.keyring, key_watch=gateway.key_watch, tickets=gateway.tickets
    )
    if settings.cors_origins:
        app.add_middleware(ErrorMiddleware)
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
            allow_headers=(ANY,),
            allow_private_network=True,
            expose_headers=("Location", "Retry-After", "WWW-Authenticate", "X-Request-Id"),
        )
    app.add_middleware(RequestGuard, settings=settings)
    return app


def _routes(g: Gateway) -> list[OpenRoute | KeyRoute | GuardedRoute | GuardedSocket]:
    """Return the routes over the parts of a gateway."""
    settings, warnings = g.settings, FilterWarnings(g.log)
    finder = DeliveryFinder(g.subscriptions, g.deliveries, g.unused)
    backlogs = BacklogRoutes(g.backlogs, g.subscriptions)
    positions = Positions(g.log, lambda: g.writer.log_ends, g.tail)
    settling = Settling(finder, g.deliveries, positions, g.metrics, settings.ack_deadline_s)
    return routes_of(
        EventRoutes(
            subscriptions=g.subscriptions,
            appender=g.appender,
            bodies=g.bodies,
            load=g.load,
            quotas=g.quotas,
            matching_time=g.matching_time,
            metrics=g.metrics,
            tracer=g.tracer,
            store=EventStore(g.appender, g.delayed, g.load, g.advertisements),
            limits=Limits(settings.event_max_bytes, settings.batch_max_events),
            delay_max_s=settings.delay_max_s,
        ),
        DelayedRoutes(g.subscriptions, g.delayed),
        SubscriptionRoutes(
            subscriptions=g.subscriptions,
            deliveries=g.deliveries,
            replays=g.replays,
            pushes=g.pushes,
            unused=g.unused,
            metrics=g.metrics,
            bodies=g.bodies,
            space_removal=g.space_removal,
            warnings=warnings,
            backlogs=backlogs,
            bulk_max_subscriptions=settings.bulk_max_subscriptions,
            federation=g.federation,
        ),
        MessageRoutes(
            finder=finder,
            deliveries=g.deliveries,
            positions=positions,
            settling=settling,
            bodies=g.bodies,
            metrics=g.metrics,
            beats=Heartbeats(settings.heartbeat_s),
            quotas=g.quotas,
            settings=settings,
        ),
        DeliveryRoutes(
            finder=finder,
            places=g.places,
            positions=positions,
            bodies=g.bodies,
            log=g.log,
            letters=g.registry,
            writer=g.writer,
            records=g.records,
            load=g.load,
            backlogs=g.backlogs,
        ),
        _filter_routes(g, warnings),
        _quarantine_routes(g),
        _service_routes(g),
        KeyRoutes(g.keyring, g.subscriptions.check_space, g.bodies),
        TicketRoutes(g.tickets, g.subscriptions, g.bodies),
        QuotaRoutes(g.subscriptions, g.quotas, g.bodies),
        backlogs,
        BrokerRoutes(g.federation, g.bodies, g.subscriptions, settings.filter_max_bytes),
        TraceRoutes(g.tracer, g.subscriptions, g.load),
    )


def _service_routes(g: Gateway) -> ServiceRoutes:
    figures, pipeline_figures = g.figures, g.pipeline_figures
    return ServiceRoutes(
        figures, pipeline_figures, g.maintenance, g.keyring, g.audit, g.metrics, _description
    )


@cache
def _description() -> bytes:
    return msgspec.json.encode(api_document())


def _quarantine_routes(g: Gateway) -> QuarantineRoutes:
    return QuarantineRoutes(
        g.subscriptions, g.quarantine, g.log, g.writer, g.load, g.metrics, g.advertisements
    )


def _filter_routes(g: Gateway, warnings: FilterWarnings) -> FilterRoutes:
    threads, most = g.help_threads, g.settings.filter_max_bytes
    return FilterRoutes(g.subscriptions, g.log, warnings, g.bodies, threads, most)
