"""The OpenAPI description of the HTTP interface, written by hand; a test holds it against the routes."""

from __future__ import annotations

from fieldfare import __version__
from fieldfare.filters.filter import DIALECTS
from fieldfare.gateway.openapi import filters
from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    array,
    body,
    content,
    integer,
    number,
    parameter,
    path_parameter,
    problem,
    record,
    ref,
    string,
    taken,
)

_EVENT: Json = {
    "specversion": "1.0",
    "id": "1",
    "source": "/exchange",
    "type": "trade",
    "time": "2013-01-01T05:00:00Z",
    "data": {"symbol": "YHOO", "price": 18.25},
}
_SUBSCRIPTION: Json = {
    "id": "cheap-yahoo",
    "space": "default",
    "filter": "data.symbol = 'YHOO' AND data.price < 18.5",
    "dialect": "sql",
    "revision": 1,
    "valid_from": "0-0-0",
}
_APPENDED: Json = {"partition": 0, "offset": 5, "count": 1, "stamp": 1, "duplicate": False}


_POSITION = string("Where an event stands: partition-offset-index.", pattern=r"^\d+-\d+-\d+$")
_NULLABLE_NUMBER: Json = {"type": ["number", "null"]}

_PLACE: Json = {
    "pointer": string("A JSON pointer into the request or the event."),
    "byte": integer("Byte of the request's body, from 0."),
    "line": integer("Line of the text, from 1."),
    "column": integer("Character of the line, from 1."),
    "hint": string("What may have been meant."),
    "display": string("The text with a caret under the place."),
}

_SCHEMAS: Json = {
    "Problem": record(
        {
            "type": string("The kind of problem, a URN."),
            "title": string(),
            "status": integer(),
            "detail": string("What is wrong, for a person."),
            **_PLACE,
            "refused": array(ref("Refused")),
        },
        ["type", "title", "status", "detail"],
    ),
    "Refused": record(
        {"index": integer("Place in the request, from 0."), "detail": string(), **_PLACE},
        ["index", "detail"],
    ),
    "Event": record(
        {
            "specversion": string(enum=["1.0"]),
            "id": string(minLength=1),
            "source": string(minLength=1),
            "type": string(minLength=1),
            "subject": string(),
            "time": string(format="date-time"),
            "datacontenttype": string(),
            "dataschema": string(),
            "data": {"description": "Any JSON value."},
            "data_base64": string(),
        },
        ["specversion", "id", "source", "type"],
        additionalProperties={"type": ["string", "integer", "boolean", "null"]},
    ),
    "Appended": record(
        {
            "partition": integer(),
            "offset": {
                "type": ["integer", "null"],
                "description": "Offset of the record; event i of it stands at partition-offset-i. An empty "
                "batch makes none.",
            },
            "count": integer("Events appended."),
            "stamp": {
                "type": ["integer", "null"],
                "description": "The events are matched against the subscriptions as of this revision.",
            },
            "duplicate": {"type": "boolean", "description": "A repeat: the first one's place."},
        }
    ),
    "PartlyAppended": record(
        {
            "title": string(),
            "partition": integer(),
            "offset": integer(),
            "count": integer(),
            "stamp": integer(),
            "duplicate": {"type": "boolean"},
            "accepted": array(record({"index": integer(), "position": _POSITION})),
            "refused": array(ref("Refused")),
        }
    ),
    "Space": taken({"name": string()}),
    "Filter": taken(
        {
            "filter": filters.FILTER,
            "dialect": string(enum=sorted(DIALECTS), default="sql"),
            "id": string(),
        },
        ["filter"],
    ),
    **filters.SCHEMAS,
    "Subscription": record(
        {
            "id": string(),
            "space": string(),
            "filter": string(),
            "dialect": string(),
            "revision": integer(
                "The registry revision that wrote this version: it counts from that stamp on."
            ),
            "valid_from": string(
                "No event before this position meets this version.", pattern=_POSITION["pattern"]
            ),
            "given_up_events": integer(
                "For so many events, since the gateway's start, the filter was too much work to evaluate; "
                "they were not matched. Only where one subscription is read, and only if there are any."
            ),
        },
        ["id", "space", "filter", "dialect", "revision", "valid_from"],
    ),
    "BulkAnswer": record(
        {
            "created": integer(),
            "replaced": integer(),
            "unchanged": integer(),
            "refused": array(ref("Refused")),
        }
    ),
    "Message": record({"position": _POSITION, "event": ref("Event")}),
    "Stats": record(
        {
            "log_end": integer("The offset that the next record gets."),
            "matched_end": integer("The records before this offset are matched."),
            "lag_events": integer("Events appended and not matched yet."),
            "events_total": integer("Events appended since the gateway's start."),
            "matches_total": integer("Matches found since the gateway's start."),
            "delivered_total": integer("Messages given to subscribers since the gateway's start."),
            "subscriptions": integer(),
            "connected": integer("Open streams."),
            "events_per_s": number(),
            "matches_per_s": number(),
            "match_latency_ms": record({"p50": _NULLABLE_NUMBER, "p99": _NULLABLE_NUMBER}),
            "log_bytes": integer(),
            "disk_free_bytes": integer(),
            "notices": {"type": "array", "items": string()},
            "quarantined_records": integer("Records set aside because matching them failed."),
            "pid": integer(),
        }
    ),
}


_SET_ASIDE = record(
    {
        "position": string("Where the record stands: that of its first event."),
        "space": string(),
        "events": integer("How many events nobody was given."),
        "error": string("Why it could not be matched, in short and without any event's text."),
        "set_aside_ms": integer("When, in milliseconds since 1970."),
    }
)
_SPACE = path_parameter("space", "The space's name.")
_ID = path_parameter("id", "The subscription's id.")
_UNKNOWN = problem("Unknown space or subscription.")
_BAD = problem("The request is wrong; the answer names the place.")
_LARGE = problem("The body or the batch is too large.")
_MEDIA = problem("The content type is not taken.")
_BUSY = problem("Too many changes of subscriptions wait: see Retry-After.")
_OTHER = problem(
    "Who asks, or how, is refused (403, 408, 421, 431), or the service cannot answer (500, 503)."
)

_PUBLISH: Json = {
    "operationId": "publish",
    "summary": "Publish events",
    "description": "CloudEvents 1.0 in structured, batch or binary mode (attributes as ce- headers), or one "
    "event a line. The events of one request are appended as one record; acknowledged is durable.",
    "parameters": [
        parameter(
            "Fieldfare-Producer",
            "header",
            {"type": "string", "maxLength": 128},
            "Who publishes; with Fieldfare-Sequence it makes a repeat harmless.",
        ),
        parameter(
            "Fieldfare-Sequence",
            "header",
            {"type": "integer", "minimum": 0},
            "The producer's own number of this request, increasing.",
        ),
    ],
    "requestBody": {
        "required": True,
        "content": {
            **content(ref("Event"), _EVENT, "application/cloudevents+json"),
            **content(array(ref("Event")), [_EVENT], "application/cloudevents-batch+json"),
            "application/x-ndjson": {"schema": {"type": "string", "description": "One event a line."}},
            "application/vnd.apache.arrow.stream": {
                "schema": {
                    "type": "string",
                    "format": "binary",
                    "description": "An Arrow IPC stream: a row is an event, a column an attribute of events.",
                }
            },
            "*/*": {"schema": {"description": "The data of one event in binary mode."}},
        },
    },
    "responses": {
        "200": answer("All events were appended.", ref("Appended"), _APPENDED),
        "207": {
            "description": "Some events were refused; the others were appended.",
            "content": content(ref("PartlyAppended")),
        },
        "400": problem("No event was appended."),
        "404": _UNKNOWN,
        "409": problem("The producer has sent something else under this sequence number."),
        "413": _LARGE,
        "415": _MEDIA,
        "429": problem("Publishers must wait: see Retry-After."),
    },
}

_PATHS: Json = {
    "/v1/spaces": {
        "get": {
            "operationId": "list_spaces",
            "summary": "List the spaces",
            "responses": {
                "200": answer(
                    "The spaces.",
                    record({"spaces": array(ref("Space"))}),
                    {"spaces": [{"name": "default"}]},
                )
            },
        },
        "post": {
            "operationId": "create_space",
            "summary": "Create a space",
            "requestBody": body(ref("Space"), {"name": "market"}),
            "responses": {
                "201": answer("The space was created.", ref("Space"), {"name": "market"}),
                "400": _BAD,
                "409": problem("There is such a space already."),
                "429": _BUSY,
            },
        },
    },
    "/v1/spaces/{space}/events": {"parameters": [_SPACE], "post": _PUBLISH},
    "/v1/spaces/{space}/subscriptions": {
        "parameters": [_SPACE],
        "get": {
            "operationId": "list_subscriptions",
            "summary": "List subscriptions, sorted by id",
            "parameters": [
                parameter("after", "query", {"type": "string"}, "Only ids after this one."),
                parameter(
                    "limit",
                    "query",
                    {"type": "integer", "minimum": 1, "maximum": 10000, "default": 100},
                    "At most.",
                ),
            ],
            "responses": {
                "200": answer(
                    "A page; next is the last id when there are more.",
                    record(
                        {"subscriptions": array(ref("Subscription")), "next": {"type": ["string", "null"]}}
                    ),
                    {"subscriptions": [_SUBSCRIPTION], "next": None},
                ),
                "400": _BAD,
                "404": _UNKNOWN,
            },
        },
        "post": {
            "operationId": "create_subscriptions",
            "summary": "Create one subscription, or put many",
            "description": "Of many, each is judged for itself; the good ones are stored, those with an id "
            "that exists replace it.",
            "requestBody": body(
                {
                    "oneOf": [
                        ref("Filter"),
                        taken({"subscriptions": array(ref("Filter"), maxItems=10000)}),
                    ]
                },
                {"subscriptions": [{"id": "cheap-yahoo", "filter": _SUBSCRIPTION["filter"]}]},
            ),
            "responses": {
                "200": answer(
                    "What became of many; or the one, which exists already with this filter.",
                    {"oneOf": [ref("BulkAnswer"), ref("Subscription")]},
                    {"created": 1, "replaced": 0, "unchanged": 0, "refused": []},
                ),
                "201": answer("The one was created.", ref("Subscription"), _SUBSCRIPTION),
                "400": _BAD,
                "404": _UNKNOWN,
                "409": problem("There is a subscription of this id with another filter."),
                "413": _LARGE,
                "429": _BUSY,
            },
        },
    },
    "/v1/spaces/{space}/subscriptions/{id}": {
        "parameters": [_SPACE, _ID],
        "get": {
            "operationId": "get_subscription",
            "summary": "Read a subscription",
            "responses": {
                "200": answer("The subscription.", ref("Subscription"), _SUBSCRIPTION),
                "404": _UNKNOWN,
            },
        },
        "put": {
            "operationId": "put_subscription",
            "summary": "Create a subscription or replace its filter",
            "description": "Events published after the answer meet exactly the new filter. The cursor stays.",
            "requestBody": body(ref("Filter"), {"filter": _SUBSCRIPTION["filter"], "dialect": "sql"}),
            "responses": {
                "200": answer("It was replaced, or stood so already.", ref("Subscription"), _SUBSCRIPTION),
                "201": answer("It was created.", ref("Subscription"), _SUBSCRIPTION),
                "400": _BAD,
                "404": _UNKNOWN,
                "429": _BUSY,
            },
        },
        "delete": {
            "operationId": "delete_subscription",
            "summary": "Delete a subscription",
            "description": "Its streams end with the event deleted.",
            "responses": {"204": answer("It was deleted."), "404": _UNKNOWN, "429": _BUSY},
        },
    },
    "/v1/spaces/{space}/subscriptions/{id}/pull": {
        "parameters": [_SPACE, _ID],
        "post": {
            "operationId": "pull",
            "summary": "Take messages",
            "requestBody": body(
                taken(
                    {
                        "max": integer("At most so many messages.", minimum=1, default=100),
                        "wait_s": number("Seconds to wait when there is none.", minimum=0, default=0),
                        "ack_deadline_s": number(
                            "Seconds until a message that was not acked comes again.", exclusiveMinimum=0
                        ),
                    },
                    [],
                ),
                {"max": 100, "wait_s": 0, "ack_deadline_s": 30},
                required=False,
            ),
            "responses": {
                "200": answer(
                    "The messages, in order; none when the time was over.",
                    record({"messages": array(ref("Message"))}),
                    {"messages": [{"position": "0-5-0", "event": _EVENT}]},
                ),
                "400": _BAD,
                "404": _UNKNOWN,
                "413": _LARGE,
                "415": _MEDIA,
            },
        },
    },
    "/v1/spaces/{space}/subscriptions/{id}/ack": {
        "parameters": [_SPACE, _ID],
        "post": {
            "operationId": "ack",
            "summary": "Acknowledge messages, one by one or all up to one",
            "requestBody": body(
                {
                    "oneOf": [
                        taken({"positions": array(_POSITION)}),
                        taken({"up_to": _POSITION}),
                    ]
                },
                {"positions": []},
            ),
            "responses": {
                "200": answer(
                    "Durable: none of these comes again.", record({"cursor": _POSITION}), {"cursor": "0-6-0"}
                ),
                "400": _BAD,
                "404": _UNKNOWN,
                "413": _LARGE,
                "415": _MEDIA,
            },
        },
    },
    "/v1/spaces/{space}/subscriptions/{id}/nack": {
        "parameters": [_SPACE, _ID],
        "post": {
            "operationId": "nack",
            "summary": "Give messages back; they come again at once",
            "requestBody": body(taken({"positions": array(_POSITION)}), {"positions": []}),
            "responses": {
                "200": answer(
                    "How many were leased and came back.", record({"returned": integer()}), {"returned": 0}
                ),
                "400": _BAD,
                "404": _UNKNOWN,
                "413": _LARGE,
                "415": _MEDIA,
            },
        },
    },
    "/v1/spaces/{space}/subscriptions/{id}/stream": {
        "parameters": [_SPACE, _ID],
        "get": {
            "operationId": "stream",
            "summary": "Follow a subscription as server-sent events",
            "description": "id is the position, data the event as JSON. The stream goes on only while fewer "
            "than window messages are unacked. A comment comes when there is nothing else to send; the event "
            "deleted ends the stream.",
            "parameters": [
                parameter(
                    "window",
                    "query",
                    {"type": "integer", "minimum": 1, "maximum": 20000, "default": 1000},
                    "Messages that may be unacked.",
                ),
                parameter(
                    "ack_deadline_s",
                    "query",
                    {"type": "number", "exclusiveMinimum": 0, "default": 30},
                    "Seconds until a message that was not acked comes again; with ack=explicit only.",
                ),
                parameter(
                    "ack",
                    "query",
                    {"type": "string", "enum": ["explicit", "auto"], "default": "explicit"},
                    "auto: the client sends no acks. A message is settled by a Last-Event-ID at or after it, "
                    "or when a window of younger ones was sent; a subscription has one such stream.",
                ),
                parameter(
                    "last_event_id",
                    "query",
                    _POSITION,
                    "With ack=auto: everything up to this position is settled first.",
                ),
                parameter(
                    "Last-Event-ID",
                    "header",
                    _POSITION,
                    "The same, as an EventSource sends it; it goes before last_event_id.",
                ),
            ],
            "responses": {
                "200": {
                    "description": "The stream.",
                    "content": {"text/event-stream": {"schema": {"type": "string"}}},
                },
                "400": _BAD,
                "404": _UNKNOWN,
            },
        },
    },
    **filters.PATHS,
    "/v1/quarantine": {
        "get": {
            "operationId": "listQuarantine",
            "summary": "The records that were set aside because matching them failed",
            "responses": {"200": answer("The oldest 1,000.", record({"quarantine": array(_SET_ASIDE)}))},
        }
    },
    "/v1/quarantine/{position}/retry": {
        "parameters": [path_parameter("position", "Where the record stands, as the list says.")],
        "post": {
            "operationId": "retryQuarantined",
            "summary": "Publish the events of a record that was set aside again",
            "description": "They get a new position, and are matched against the subscriptions as they stand "
            "then. Repeating it appends nothing more.",
            "responses": {
                "200": answer("Where they are now.", ref("Appended")),
                "400": _BAD,
                "404": problem("No such record is set aside, or retention has removed it."),
                "429": problem("Publishers must wait: see Retry-After."),
            },
        },
    },
    "/v1/stats": {
        "get": {
            "operationId": "stats",
            "summary": "Live figures",
            "responses": {"200": answer("The figures.", ref("Stats"))},
        }
    },
    "/healthz": {
        "get": {
            "operationId": "healthz",
            "summary": "Whether the gateway answers",
            "responses": {"200": answer("Alive.", record({"status": string()}), {"status": "alive"})},
        }
    },
    "/readyz": {
        "get": {
            "operationId": "readyz",
            "summary": "Whether events are taken and matched",
            "responses": {
                code: answer(
                    description,
                    record(
                        {
                            "status": string(),
                            "checks": {"type": "object", "additionalProperties": {"type": "string"}},
                            "notices": {"type": "array", "items": string()},
                        }
                    ),
                )
                for code, description in (("200", "Ready."), ("503", "Not ready; checks says why."))
            },
        }
    },
    "/metrics": {
        "get": {
            "operationId": "metrics",
            "summary": "Prometheus metrics",
            "responses": {
                "200": {"description": "Metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}}
            },
        }
    },
    "/openapi.json": {
        "get": {
            "operationId": "openapi",
            "summary": "This document",
            "responses": {"200": answer("OpenAPI 3.1.", {"type": "object"})},
        }
    },
}


def _with_common_answers(paths: Json) -> Json:
    """Every operation may be answered with a problem; those that take a body also with 413 and 415."""
    for item in paths.values():
        for method, operation in item.items():
            if method != "parameters":
                if "requestBody" in operation:
                    operation["responses"].setdefault("413", _LARGE)
                    operation["responses"].setdefault("415", _MEDIA)
                operation["responses"].setdefault("default", _OTHER)
    return paths


DOCUMENT: Json = {
    "openapi": "3.1.0",
    "info": {
        "title": "fieldfare",
        "version": __version__,
        "description": "Content-based publish/subscribe: publish CloudEvents, subscribe with filters over "
        "any of their fields. All errors are application/problem+json.",
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    "paths": _with_common_answers(_PATHS),
    "components": {"schemas": _SCHEMAS},
}
