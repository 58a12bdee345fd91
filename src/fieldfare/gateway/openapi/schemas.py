"""The content of requests and responses, by name."""

from __future__ import annotations

from fieldfare.gateway.openapi.backlogs import BACKLOG_SCHEMAS
from fieldfare.gateway.openapi.events import EVENT_SCHEMAS
from fieldfare.gateway.openapi.filters import FILTER_SCHEMAS
from fieldfare.gateway.openapi.messages import MESSAGE_SCHEMAS
from fieldfare.gateway.openapi.pipeline import PIPELINE_SCHEMAS
from fieldfare.gateway.openapi.subscriptions import SUBSCRIPTION_SCHEMAS
from fieldfare.gateway.openapi.tenants import TENANT_SCHEMAS
from fieldfare.gateway.openapi.words import Json, array, boolean, integer, number, record, ref, string
from fieldfare.gateway.tracing import STEPS

_PLACE: Json = {
    "pointer": string("JSON pointer to the wrong value in the request's body or in the event."),
    "byte": integer("Offset in the request's body, in bytes from 0."),
    "line": integer("Line of the body or of the filter, from 1."),
    "column": integer("Character in the line, from 1."),
    "hint": string("How to correct the request."),
    "display": string("The text with carets below the wrong place, as text for people."),
}
_PERCENTILE: Json = {"type": ["number", "null"]}

_PROBLEM_SCHEMAS: Json = {
    "Problem": record(
        {
            "type": string("Kind of the problem: `urn:fieldfare:problem:` and a name."),
            "title": string("Short description of the kind."),
            "status": integer("HTTP status of the response."),
            "detail": string("What is wrong and what is allowed, as sentences."),
            **_PLACE,
            "refused": array(ref("Refused"), "The refused items; only for requests with several items."),
        },
        ["type", "title", "status", "detail"],
        description="An error (RFC 9457). Members that name a place are missing where there is none.",
    ),
    "Refused": record(
        {
            "index": integer("Index of the item in the request, from 0."),
            "detail": string("What is wrong with the item, as a phrase."),
            **_PLACE,
        },
        ["index", "detail"],
    ),
}

_SERVICE_SCHEMAS: Json = {
    "Trace": record(
        {
            "seconds": number("How long records were traced."),
            "records": array(
                record(
                    {
                        "position": string("The position of the record's first event."),
                        "space": string("Its space."),
                        "events": integer("Number of its events."),
                        "received_ms": number("When its request came, in milliseconds since 1970."),
                        "steps": {
                            "type": "object",
                            "description": "When it passed each step, in milliseconds since its request came;"
                            " without the steps that it has not reached. `fetched` and `sent` are of its"
                            " first delivery.",
                            "properties": {step: number(text) for step, text in STEPS.items()},
                            "required": ["received", "decoded", "appended"],
                        },
                    }
                ),
                "The records, in the order of the log.",
            ),
        }
    ),
    "Stats": record(
        {
            "log_end": integer("Number of records that were ever appended to the log."),
            "matched_end": integer("Number of those records that are matched."),
            "lag_events": integer("Number of events appended and not matched yet."),
            "lag_s": number("Age of the oldest event that is not matched yet, in seconds; 0 if all are."),
            "events_total": integer("Events appended since the gateway's start."),
            "matches_total": integer("Matches found since the gateway's start."),
            "delivered_total": integer("Messages delivered to subscribers since the gateway's start."),
            "subscriptions": integer("Number of subscriptions of all spaces."),
            "connected": integer("Number of open streams and WebSockets."),
            "events_per_s": number("Events appended per second, over the last 5 s or so."),
            "matches_per_s": number("Matches found per second, over the last 5 s or so."),
            "match_latency_ms": record(
                {
                    "p50": _PERCENTILE
                    | {"description": "Median; null if nothing was matched in the last minute."},
                    "p99": _PERCENTILE
                    | {"description": "99th percentile; null if nothing was matched in the last minute."},
                },
                description="Milliseconds from an event's append until it was matched, over the last minute.",
            ),
            "log_bytes": integer("Bytes of the event log on disk."),
            "disk_free_bytes": integer("Free bytes on the disk of the data directory."),
            "notices": array(string("One notice."), "What an operator should look at, as sentences."),
            "quarantined_records": integer("Number of records set aside because matching them failed."),
            "pid": integer("Id of the gateway's process."),
        }
    ),
    "Caller": record(
        {
            "id": string("Id of the key, or subject and issuer of the token; empty if none is required."),
            "needs_keys": boolean("Whether the service requires keys."),
            "service": array(string("One right."), "Rights in the service; `admin` allows everything."),
            "spaces": {
                "type": "object",
                "additionalProperties": array(string("One right."), "Rights in this space."),
                "description": "Rights by space.",
            },
        }
    ),
    "Change": record(
        {
            "time_ms": integer("Time of the change, in milliseconds since 1970."),
            "key": string(
                "Id of the caller's key; empty if none is required, or the service made the change."
            ),
            "method": string("Method of the request."),
            "path": string("Path of the request."),
            "status": integer("Status of the response."),
            "made": string("Path of what was created."),
            "because": string("Why the service made the change by itself."),
            "request": string("Id of the request."),
        },
        ["time_ms", "key", "method", "path", "status"],
    ),
    "Quarantined": record(
        {
            "position": string("Position of the record: that of its first event."),
            "space": string("Name of the record's space."),
            "events": integer("Number of its events, none of which was delivered."),
            "error": string("Why it could not be matched; contains no text of the events."),
            "set_aside_ms": integer("Time at which it was set aside, in milliseconds since 1970."),
        }
    ),
    "Readiness": record(
        {
            "status": string("`ready` or `not ready`."),
            "checks": {
                "type": "object",
                "additionalProperties": string("`ready`, or why the component is not ready."),
                "description": "State of each component; only for callers with the right `watch`.",
            },
            "notices": array(
                string("One notice."),
                "What an operator should look at, as sentences; only for callers with the right `watch`.",
            ),
        },
        ["status"],
    ),
}

SCHEMAS: Json = {
    **TENANT_SCHEMAS,
    **_PROBLEM_SCHEMAS,
    **EVENT_SCHEMAS,
    **SUBSCRIPTION_SCHEMAS,
    **FILTER_SCHEMAS,
    **MESSAGE_SCHEMAS,
    **BACKLOG_SCHEMAS,
    **PIPELINE_SCHEMAS,
    **_SERVICE_SCHEMAS,
}
