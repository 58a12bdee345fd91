"""The OpenAPI description of the HTTP interface; a test holds it against the routes."""

from __future__ import annotations

from fieldfare import __version__
from fieldfare.gateway.maintenance.figures import StatsDocument
from fieldfare.gateway.maintenance.pipeline_figures import PipelineDocument
from fieldfare.gateway.openapi.backlogs import BACKLOGS
from fieldfare.gateway.openapi.brokers import BROKERS
from fieldfare.gateway.openapi.delayed import DELAYED
from fieldfare.gateway.openapi.events import EVENT_SCHEMAS, EVENTS
from fieldfare.gateway.openapi.filters import FILTERS
from fieldfare.gateway.openapi.from_types import resolve_types
from fieldfare.gateway.openapi.messages import MESSAGES
from fieldfare.gateway.openapi.subscriptions import SUBSCRIPTION_SCHEMAS, SUBSCRIPTIONS
from fieldfare.gateway.openapi.tenants import KEYS, SPACES
from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    content,
    integer,
    number,
    operation,
    parameter,
    path,
    problem,
    string,
)
from fieldfare.gateway.routes.events import AppendedDocument
from fieldfare.gateway.routes.quarantine import QuarantineDocument
from fieldfare.gateway.routes.service import (
    AUDIT_MAX,
    AuditDocument,
    CallerDocument,
    LivenessDocument,
    ReadinessDocument,
)
from fieldfare.gateway.routes.trace import TRACE_MAX_S, TRACE_S, TraceDocument

_QUARANTINE: Json = {
    **path(
        "/v1/quarantine",
        get=operation(
            "listQuarantine",
            "List the quarantined records, which were set aside because matching them failed",
            answers=answer(
                "The oldest 1,000 records of the spaces that the caller manages.",
                QuarantineDocument,
            ),
        ),
    ),
    **path(
        "/v1/quarantine/{position}/retry",
        post=operation(
            "retryQuarantined",
            "Publish the events of a quarantined record again",
            "The events get a new position, and are matched against the subscriptions as they are now. A"
            " repeated"
            " retry appends nothing more.",
            answers={
                "200": answer("The events were appended at this place.", AppendedDocument),
                "404": problem(
                    "There is no quarantined record at this position, or retention has removed it."
                ),
                "429": problem("The service is overloaded. Retry after the seconds in Retry-After."),
            },
            problems="400",
        ),
    ),
}

_ALIVE = answer("The gateway is alive.", LivenessDocument, {"status": "alive"})
_READY = {
    "200": answer("Events are accepted and matched.", ReadinessDocument),
    "503": answer("A component is not ready; `checks` names it and the reason.", ReadinessDocument),
}
_METRICS = {
    "200": {
        "description": "The metrics in Prometheus' text format.",
        "content": content(string(), None, "text/plain"),
    }
}

_CALLER: Json = {"id": "", "needs_keys": False, "service": ["admin"], "spaces": {}}

_SERVICE: Json = {
    **path(
        "/v1/stats",
        get=operation(
            "stats", "Read current figures of the service", answers=answer("The figures.", StatsDocument)
        ),
    ),
    **path(
        "/v1/pipeline",
        get=operation(
            "pipeline",
            "Read the state of the pipeline and of the service's processes",
            "Lag and rates are in `/v1/stats`.",
            answers=answer("The state.", PipelineDocument),
        ),
    ),
    **path(
        "/v1/trace",
        get=operation(
            "trace",
            "Trace events that are published now",
            "Samples at most 200 requests per second, for some seconds; the answer comes one second later.",
            parameters=[
                parameter(
                    "seconds",
                    "query",
                    number(exclusiveMinimum=0, maximum=TRACE_MAX_S, default=TRACE_S),
                    "How long to trace.",
                ),
                parameter("space", "query", string(), "Trace only events of this space."),
            ],
            answers={
                "200": answer("The traced records.", TraceDocument),
                "404": problem("There is no such space."),
                "429": problem("The maximum number of traces is under way."),
            },
            problems="400",
        ),
    ),
    **path(
        "/v1/caller",
        get=operation(
            "caller",
            "Read what the caller may do",
            answers=answer("The caller's rights.", CallerDocument, _CALLER),
        ),
    ),
    **path(
        "/v1/audit",
        get=operation(
            "audit",
            "List the last changes, the newest first",
            "From the newest lines of the audit log: all requests that change more than events and acks,"
            " refused ones included.",
            parameters=[
                parameter(
                    "limit",
                    "query",
                    integer(minimum=1, maximum=AUDIT_MAX, default=100),
                    "Maximum number of changes.",
                )
            ],
            answers=answer("The changes.", AuditDocument),
            problems="400",
        ),
    ),
    **path("/healthz", get=operation("healthz", "Check that the gateway responds", answers=_ALIVE)),
    **path("/readyz", get=operation("readyz", "Check that events are accepted and matched", answers=_READY)),
    **path("/metrics", get=operation("metrics", "Read the metrics for Prometheus", answers=_METRICS)),
    **path(
        "/openapi.json",
        get=operation(
            "openapi",
            "Read this description of the API",
            answers=answer("The description, in OpenAPI 3.1.", {"type": "object"}),
        ),
    ),
}

_DESCRIPTION: Json = {
    "openapi": "3.1.0",
    "info": {
        "title": "fieldfare",
        "version": __version__,
        "description": "Content-based publish/subscribe: publish CloudEvents, subscribe with filters over"
        " any of"
        " their attributes. All errors are application/problem+json (RFC 9457).",
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    "paths": SPACES
    | EVENTS
    | DELAYED
    | SUBSCRIPTIONS
    | MESSAGES
    | BACKLOGS
    | FILTERS
    | _QUARANTINE
    | BROKERS
    | KEYS
    | _SERVICE,
    "components": {
        "schemas": EVENT_SCHEMAS | SUBSCRIPTION_SCHEMAS,
        "securitySchemes": {
            "key": {
                "type": "http",
                "scheme": "bearer",
                "description": "An API key, or a signed token (JWT) of an issuer that the service trusts.",
            }
        },
    },
    "security": [{"key": []}, {}],
}

DOCUMENT = resolve_types(_DESCRIPTION)
