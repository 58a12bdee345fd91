"""The gateway as an ASGI application: its routes and middleware."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware

from fieldfare.gateway.admission.callers import Right
from fieldfare.gateway.admission.request_guard import Identified, RequestGuard
from fieldfare.gateway.admission.sockets import SOCKET
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.filter_warnings import FilterWarnings
from fieldfare.gateway.middleware import EXCEPTION_HANDLERS, Audited, ErrorMiddleware, Timed
from fieldfare.gateway.openapi.document import DOCUMENT
from fieldfare.gateway.publishing.events import Limits
from fieldfare.gateway.routes.acks import Settling
from fieldfare.gateway.routes.backlogs import BacklogRoutes
from fieldfare.gateway.routes.brokers import BrokerRoutes
from fieldfare.gateway.routes.console import ConsoleRoute
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
from fieldfare.gateway.routes.subscriptions import SubscriptionRoutes
from fieldfare.gateway.routes.tickets import TicketRoutes
from fieldfare.gateway.routes.trace import TraceRoutes
from fieldfare.gateway.setting_values import ANY
from fieldfare.gateway.transports.heartbeats import Heartbeats

_DESCRIPTION = msgspec.json.encode(DOCUMENT)


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
            delayed=g.delayed,
            limits=Limits(settings.event_max_bytes, settings.batch_max_events),
            delay_max_s=settings.delay_max_s,
            advertisements=g.advertisements,
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
        figures, pipeline_figures, g.maintenance, g.keyring, g.audit, g.metrics, _DESCRIPTION
    )


def _quarantine_routes(g: Gateway) -> QuarantineRoutes:
    return QuarantineRoutes(
        g.subscriptions, g.quarantine, g.log, g.writer, g.load, g.metrics, g.advertisements
    )


def _filter_routes(g: Gateway, warnings: FilterWarnings) -> FilterRoutes:
    threads, most = g.help_threads, g.settings.filter_max_bytes
    return FilterRoutes(g.subscriptions, g.log, warnings, g.bodies, threads, most)


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
    tickets: TicketRoutes,
    quotas: QuotaRoutes,
    backlogs: BacklogRoutes,
    brokers: BrokerRoutes,
    traces: TraceRoutes,
) -> list[OpenRoute | KeyRoute | GuardedRoute | GuardedSocket]:
    """Return the routes: paths, handlers and required rights."""
    space = "/v1/spaces/{space}"
    subscription = space + "/subscriptions/{id}"
    publish, subscribe, watch, admin = Right.PUBLISH, Right.SUBSCRIBE, Right.WATCH, Right.ADMIN
    # Routes are tried in this order: the most frequent come first.
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
        GuardedRoute(subscription + "/ticket", tickets.create_ticket, ["POST"], subscribe),
        GuardedRoute(subscription + "/backlog", delivery.backlog, ["GET"], subscribe),
        GuardedRoute(subscription + "/seek", delivery.seek, ["POST"], subscribe),
        GuardedRoute(subscription + "/dead-letters", delivery.list_dead_letters, ["GET"], subscribe),
        GuardedRoute(subscription + "/dead-letters", delivery.clear_dead_letters, ["DELETE"], subscribe),
        GuardedRoute(subscription + "/dead-letters/retry", delivery.retry_dead_letters, ["POST"], subscribe),
        # Before the GET route, which also accepts HEAD: a HEAD request must not take messages.
        GuardedRoute(subscription + "/stream", messages.head_of_stream, ["HEAD"], subscribe),
        GuardedRoute(subscription + "/stream", messages.stream, ["GET"], subscribe, lasting=True),
        GuardedRoute(subscription + SOCKET, messages.no_socket, ["GET"], subscribe),
        GuardedSocket(subscription + SOCKET, messages.socket, subscribe),
        GuardedRoute(space + "/delayed", delayed.list_delayed, ["GET"], publish),
        GuardedRoute(space + "/delayed/{delayed}", delayed.cancel_delayed, ["DELETE"], publish),
        GuardedRoute(space, subscriptions.delete_space, ["DELETE"], admin),
        GuardedRoute(space + "/backlog", backlogs.get_space_backlog, ["GET"], subscribe),
        GuardedRoute(space + "/attributes", filters.list_attributes, ["GET"], subscribe),
        GuardedRoute("/v1/backlogs", backlogs.get_backlogs, ["GET"], watch),
        GuardedRoute(space + "/quotas", quotas.get_quotas, ["GET"], Right.MANAGE),
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
        *_routes_of_brokers(brokers),
        *_routes_of_service(service, traces),
    ]


def _routes_of_service(
    service: ServiceRoutes, traces: TraceRoutes
) -> list[OpenRoute | KeyRoute | GuardedRoute]:
    """Return the routes about the service itself."""
    return [
        KeyRoute("/v1/caller", service.caller, methods=["GET"]),
        GuardedRoute("/v1/audit", service.audit, ["GET"], Right.ADMIN),
        GuardedRoute("/v1/stats", service.stats, ["GET"], Right.WATCH),
        GuardedRoute("/v1/pipeline", service.pipeline, ["GET"], Right.WATCH),
        GuardedRoute("/v1/trace", traces.trace, ["GET"], Right.WATCH, lasting=True),
        GuardedRoute("/metrics", service.metrics, ["GET"], Right.WATCH),
        OpenRoute("/healthz", service.healthz, methods=["GET"]),
        OpenRoute("/readyz", service.readyz, methods=["GET"]),
        OpenRoute("/openapi.json", service.openapi, methods=["GET"]),
    ]


def _routes_of_brokers(brokers: BrokerRoutes) -> list[GuardedRoute]:
    """Return the routes between brokers, and about them and what moves between them."""
    subscription = "/v1/spaces/{space}/subscriptions/{id}"
    advertisement = "/v1/spaces/{space}/advertisement"
    return [
        GuardedRoute(advertisement, brokers.get_advertisement, ["GET"], Right.MANAGE),
        GuardedRoute(advertisement, brokers.put_advertisement, ["PUT"], Right.ADMIN),
        GuardedRoute("/v1/brokers", brokers.get_brokers, ["GET"], Right.WATCH),
        GuardedRoute("/v1/balance", brokers.get_balance, ["GET"], Right.WATCH),
        GuardedRoute("/v1/balance", brokers.balance, ["POST"], Right.ADMIN),
        GuardedRoute("/v1/leave", brokers.get_leave, ["GET"], Right.WATCH),
        GuardedRoute("/v1/leave", brokers.leave, ["POST"], Right.ADMIN),
        GuardedRoute("/v1/leave", brokers.stay, ["DELETE"], Right.ADMIN),
        GuardedRoute("/v1/brokers/{broker}", brokers.remove_broker, ["DELETE"], Right.ADMIN),
        GuardedRoute("/v1/brokers/{broker}/entries", brokers.post_entries, ["POST"], Right.BROKER),
        GuardedRoute(subscription + "/move", brokers.get_move, ["GET"], Right.MANAGE),
        GuardedRoute(subscription + "/move", brokers.move_subscription, ["POST"], Right.ADMIN),
    ]
