"""The table of routes: paths, handlers and required rights."""

from __future__ import annotations

from fieldfare.gateway.admission.callers import Right
from fieldfare.gateway.admission.sockets import SOCKET
from fieldfare.gateway.routes.backlogs import BacklogRoutes
from fieldfare.gateway.routes.brokers import BrokerRoutes
from fieldfare.gateway.routes.delayed import DelayedRoutes
from fieldfare.gateway.routes.delivery import DeliveryRoutes
from fieldfare.gateway.routes.events import EventRoutes
from fieldfare.gateway.routes.filters import FilterRoutes
from fieldfare.gateway.routes.guarded import GuardedRoute, GuardedSocket, KeyRoute, OpenRoute
from fieldfare.gateway.routes.keys import KeyRoutes
from fieldfare.gateway.routes.messages import MessageRoutes
from fieldfare.gateway.routes.quarantine import QuarantineRoutes
from fieldfare.gateway.routes.quotas import QuotaRoutes
from fieldfare.gateway.routes.service import ServiceRoutes
from fieldfare.gateway.routes.subscriptions import SubscriptionRoutes
from fieldfare.gateway.routes.tickets import TicketRoutes
from fieldfare.gateway.routes.trace import TraceRoutes

_SPACE = "/v1/spaces/{space}"
_SUBSCRIPTION = _SPACE + "/subscriptions/{id}"


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
    space, subscription = _SPACE, _SUBSCRIPTION
    publish, subscribe, watch, admin = Right.PUBLISH, Right.SUBSCRIBE, Right.WATCH, Right.ADMIN
    # Routes are tried in this order: the most frequent come first.
    return [
        GuardedRoute(space + "/events", events.publish, ["POST"], publish),
        GuardedRoute(subscription + "/pull", messages.pull, ["POST"], subscribe, lasting=True),
        GuardedRoute(subscription + "/ack", messages.ack, ["POST"], subscribe),
        KeyRoute("/v1/spaces", subscriptions.list_spaces, methods=["GET"]),
        GuardedRoute("/v1/spaces", subscriptions.create_space, ["POST"], admin),
        GuardedRoute(space + "/subscriptions", subscriptions.list_subscriptions, ["GET"], subscribe),
        GuardedRoute(space + "/subscriptions", subscriptions.create_subscriptions, ["POST"], subscribe),
        GuardedRoute(subscription, subscriptions.get_subscription, ["GET"], subscribe),
        GuardedRoute(subscription, subscriptions.put_subscription, ["PUT"], subscribe),
        GuardedRoute(subscription, subscriptions.patch_subscription, ["PATCH"], subscribe),
        GuardedRoute(subscription, subscriptions.delete_subscription, ["DELETE"], subscribe),
        GuardedRoute(subscription + "/nack", messages.nack, ["POST"], subscribe),
        GuardedRoute(subscription + "/extend", messages.extend, ["POST"], subscribe),
        GuardedRoute(subscription + "/terminate", messages.terminate, ["POST"], subscribe),
        GuardedRoute(subscription + "/ticket", tickets.create_ticket, ["POST"], subscribe),
        GuardedRoute(subscription + "/backlog", delivery.get_backlog, ["GET"], subscribe),
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
    return [
        GuardedRoute(_SPACE + "/advertisement", brokers.get_advertisement, ["GET"], Right.MANAGE),
        GuardedRoute(_SPACE + "/advertisement", brokers.put_advertisement, ["PUT"], Right.ADMIN),
        GuardedRoute("/v1/brokers", brokers.get_brokers, ["GET"], Right.WATCH),
        GuardedRoute("/v1/balance", brokers.get_balance, ["GET"], Right.WATCH),
        GuardedRoute("/v1/balance", brokers.balance, ["POST"], Right.ADMIN),
        GuardedRoute("/v1/leave", brokers.get_leave, ["GET"], Right.WATCH),
        GuardedRoute("/v1/leave", brokers.leave, ["POST"], Right.ADMIN),
        GuardedRoute("/v1/leave", brokers.stay, ["DELETE"], Right.ADMIN),
        GuardedRoute("/v1/brokers/{broker}", brokers.remove_broker, ["DELETE"], Right.ADMIN),
        GuardedRoute("/v1/brokers/{broker}/entries", brokers.post_entries, ["POST"], Right.BROKER),
        GuardedRoute(_SUBSCRIPTION + "/move", brokers.get_move, ["GET"], Right.MANAGE),
        GuardedRoute(_SUBSCRIPTION + "/move", brokers.move_subscription, ["POST"], Right.ADMIN),
    ]
