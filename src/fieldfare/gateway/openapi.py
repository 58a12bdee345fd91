"""The OpenAPI description of the HTTP interface, written by hand; a test holds it against the routes."""

from __future__ import annotations

from typing import Any

from fieldfare import __version__
from fieldfare.filters.filter import DIALECTS

Json = dict[str, Any]

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
_APPENDED: Json = {"partition": 0, "offset": 5, "count": 1, "duplicate": False}


def _object(properties: Json, required: list[str] | None = None, **more: Any) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        **more,
    }


def _string(description: str = "", **more: Any) -> Json:
    return {"type": "string", **({"description": description} if description else {}), **more}


def _integer(description: str = "", **more: Any) -> Json:
    return {"type": "integer", **({"description": description} if description else {}), **more}


def _number(description: str = "", **more: Any) -> Json:
    return {"type": "number", **({"description": description} if description else {}), **more}


def _array(items: Json, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


_POSITION = _string("Where an event stands: partition-offset-index.", pattern=r"^\d+-\d+-\d+$")
_NULLABLE_NUMBER: Json = {"type": ["number", "null"]}

_PLACE: Json = {
    "pointer": _string("A JSON pointer into the request or the event."),
    "byte": _integer("Byte of the request's body, from 0."),
    "line": _integer("Line of the text, from 1."),
    "column": _integer("Character of the line, from 1."),
    "hint": _string("What may have been meant."),
    "display": _string("The text with a caret under the place."),
}

_SCHEMAS: Json = {
    "Problem": _object(
        {
            "type": _string("The kind of problem, a URN."),
            "title": _string(),
            "status": _integer(),
            "detail": _string("What is wrong, for a person."),
            **_PLACE,
            "refused": _array(_ref("Refused")),
        },
        ["type", "title", "status", "detail"],
    ),
    "Refused": _object(
        {"index": _integer("Place in the request, from 0."), "detail": _string(), **_PLACE},
        ["index", "detail"],
    ),
    "Event": _object(
        {
            "specversion": _string(enum=["1.0"]),
            "id": _string(minLength=1),
            "source": _string(minLength=1),
            "type": _string(minLength=1),
            "subject": _string(),
            "time": _string(format="date-time"),
            "datacontenttype": _string(),
            "dataschema": _string(),
            "data": {"description": "Any JSON value."},
            "data_base64": _string(),
        },
        ["specversion", "id", "source", "type"],
        additionalProperties={"type": ["string", "integer", "boolean", "null"]},
    ),
    "Appended": _object(
        {
            "partition": _integer(),
            "offset": _integer("Offset of the record; event i of it stands at partition-offset-i."),
            "count": _integer("Events appended."),
            "duplicate": {"type": "boolean", "description": "A repeat: the first one's place."},
        }
    ),
    "PartlyAppended": _object(
        {
            "title": _string(),
            "partition": _integer(),
            "offset": _integer(),
            "count": _integer(),
            "duplicate": {"type": "boolean"},
            "accepted": _array(_object({"index": _integer(), "position": _POSITION})),
            "refused": _array(_ref("Refused")),
        }
    ),
    "Space": _object({"name": _string()}),
    "Filter": _object(
        {
            "filter": {
                "description": "The filter's text; in a dialect that is JSON also the JSON itself.",
                "type": ["string", "object", "array"],
            },
            "dialect": _string(enum=list(DIALECTS)),
            "id": _string(),
        },
        ["filter"],
    ),
    "Subscription": _object(
        {
            "id": _string(),
            "space": _string(),
            "filter": _string(),
            "dialect": _string(),
            "revision": _integer("The registry revision that wrote this version."),
            "valid_from": _POSITION,
        }
    ),
    "Message": _object({"position": _POSITION, "event": _ref("Event")}),
    "Stats": _object(
        {
            "log_end": _integer("The offset that the next record gets."),
            "matched_end": _integer("The records before this offset are matched."),
            "lag_events": _integer("Events appended and not matched yet."),
            "events_total": _integer("Events appended since the gateway's start."),
            "matches_total": _integer("Matches found since the gateway's start."),
            "delivered_total": _integer("Messages given to subscribers since the gateway's start."),
            "subscriptions": _integer(),
            "connected": _integer("Open streams."),
            "events_per_s": _number(),
            "matches_per_s": _number(),
            "match_latency_ms": _object({"p50": _NULLABLE_NUMBER, "p99": _NULLABLE_NUMBER}),
            "log_bytes": _integer(),
            "disk_free_bytes": _integer(),
            "pid": _integer(),
        }
    ),
}


def _content(schema: Json, example: Any = None, media: str = "application/json") -> Json:
    body: Json = {"schema": schema}
    if example is not None:
        body["example"] = example
    return {media: body}


def _answer(description: str, schema: Json | None = None, example: Any = None) -> Json:
    answer: Json = {"description": description}
    if schema is not None:
        answer["content"] = _content(schema, example)
    return answer


def _problem(description: str) -> Json:
    return {
        "description": description,
        "content": _content(_ref("Problem"), None, "application/problem+json"),
    }


def _body(schema: Json, example: Any, *, required: bool = True) -> Json:
    return {"required": required, "content": _content(schema, example)}


def _path_parameter(name: str, description: str) -> Json:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string"},
    }


def _parameter(name: str, place: str, schema: Json, description: str) -> Json:
    return {"name": name, "in": place, "required": False, "description": description, "schema": schema}


_SPACE = _path_parameter("space", "The space's name.")
_ID = _path_parameter("id", "The subscription's id.")
_UNKNOWN = _problem("Unknown space or subscription.")
_BAD = _problem("The request is wrong; the answer names the place.")
_LARGE = _problem("The body or the batch is too large.")
_MEDIA = _problem("The content type is not taken.")

_PUBLISH: Json = {
    "operationId": "publish",
    "summary": "Publish events",
    "description": "CloudEvents 1.0 in structured, batch or binary mode (attributes as ce- headers), or one "
    "event a line. The events of one request are appended as one record; acknowledged is durable.",
    "parameters": [
        _parameter(
            "Fieldfare-Producer",
            "header",
            {"type": "string", "maxLength": 128},
            "Who publishes; with Fieldfare-Sequence it makes a repeat harmless.",
        ),
        _parameter(
            "Fieldfare-Sequence",
            "header",
            {"type": "integer", "minimum": 0},
            "The producer's own number of this request, increasing.",
        ),
    ],
    "requestBody": {
        "required": True,
        "content": {
            **_content(_ref("Event"), _EVENT, "application/cloudevents+json"),
            **_content(_array(_ref("Event")), [_EVENT], "application/cloudevents-batch+json"),
            "application/x-ndjson": {"schema": {"type": "string", "description": "One event a line."}},
            "*/*": {"schema": {"description": "The data of one event in binary mode."}},
        },
    },
    "responses": {
        "200": _answer("All events were appended.", _ref("Appended"), _APPENDED),
        "207": {
            "description": "Some events were refused; the others were appended.",
            "content": _content(_ref("PartlyAppended")),
        },
        "400": _problem("No event was appended."),
        "404": _UNKNOWN,
        "413": _LARGE,
        "415": _MEDIA,
        "429": _problem("Publishers must wait: see Retry-After."),
    },
}

_PATHS: Json = {
    "/v1/spaces": {
        "get": {
            "operationId": "list_spaces",
            "summary": "List the spaces",
            "responses": {
                "200": _answer(
                    "The spaces.",
                    _object({"spaces": _array(_ref("Space"))}),
                    {"spaces": [{"name": "default"}]},
                )
            },
        },
        "post": {
            "operationId": "create_space",
            "summary": "Create a space",
            "requestBody": _body(_ref("Space"), {"name": "market"}),
            "responses": {
                "201": _answer("The space was created.", _ref("Space"), {"name": "market"}),
                "400": _BAD,
                "409": _problem("There is such a space already."),
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
                _parameter("after", "query", {"type": "string"}, "Only ids after this one."),
                _parameter(
                    "limit",
                    "query",
                    {"type": "integer", "minimum": 1, "maximum": 10000, "default": 100},
                    "At most.",
                ),
            ],
            "responses": {
                "200": _answer(
                    "A page; next is the last id when there are more.",
                    _object(
                        {"subscriptions": _array(_ref("Subscription")), "next": {"type": ["string", "null"]}}
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
            "requestBody": _body(
                {
                    "oneOf": [
                        _ref("Filter"),
                        _object({"subscriptions": _array(_ref("Filter"), maxItems=10000)}),
                    ]
                },
                {"subscriptions": [{"id": "cheap-yahoo", "filter": _SUBSCRIPTION["filter"]}]},
            ),
            "responses": {
                "200": _answer(
                    "What became of many (or the one exists already, with this filter).",
                    _object(
                        {
                            "created": _integer(),
                            "replaced": _integer(),
                            "unchanged": _integer(),
                            "refused": _array(_ref("Refused")),
                        }
                    ),
                    {"created": 1, "replaced": 0, "unchanged": 0, "refused": []},
                ),
                "201": _answer("The one was created.", _ref("Subscription"), _SUBSCRIPTION),
                "400": _BAD,
                "404": _UNKNOWN,
                "409": _problem("There is a subscription of this id with another filter."),
                "413": _LARGE,
            },
        },
    },
    "/v1/spaces/{space}/subscriptions/{id}": {
        "parameters": [_SPACE, _ID],
        "get": {
            "operationId": "get_subscription",
            "summary": "Read a subscription",
            "responses": {
                "200": _answer("The subscription.", _ref("Subscription"), _SUBSCRIPTION),
                "404": _UNKNOWN,
            },
        },
        "put": {
            "operationId": "put_subscription",
            "summary": "Create a subscription or replace its filter",
            "description": "Events published after the answer meet exactly the new filter. The cursor stays.",
            "requestBody": _body(_ref("Filter"), {"filter": _SUBSCRIPTION["filter"], "dialect": "sql"}),
            "responses": {
                "200": _answer("It was replaced, or stood so already.", _ref("Subscription"), _SUBSCRIPTION),
                "201": _answer("It was created.", _ref("Subscription"), _SUBSCRIPTION),
                "400": _BAD,
                "404": _UNKNOWN,
            },
        },
        "delete": {
            "operationId": "delete_subscription",
            "summary": "Delete a subscription",
            "description": "Its streams end with the event deleted.",
            "responses": {"204": _answer("It was deleted."), "404": _UNKNOWN},
        },
    },
    "/v1/spaces/{space}/subscriptions/{id}/pull": {
        "parameters": [_SPACE, _ID],
        "post": {
            "operationId": "pull",
            "summary": "Take messages",
            "requestBody": _body(
                _object(
                    {
                        "max": _integer("At most so many messages.", minimum=1, default=100),
                        "wait_s": _number("Seconds to wait when there is none.", minimum=0, default=0),
                        "ack_deadline_s": _number(
                            "Seconds until a message that was not acked comes again.", exclusiveMinimum=0
                        ),
                    },
                    [],
                ),
                {"max": 100, "wait_s": 0, "ack_deadline_s": 30},
                required=False,
            ),
            "responses": {
                "200": _answer(
                    "The messages, in order; none when the time was over.",
                    _object({"messages": _array(_ref("Message"))}),
                    {"messages": [{"position": "0-5-0", "event": _EVENT}]},
                ),
                "400": _BAD,
                "404": _UNKNOWN,
            },
        },
    },
    "/v1/spaces/{space}/subscriptions/{id}/ack": {
        "parameters": [_SPACE, _ID],
        "post": {
            "operationId": "ack",
            "summary": "Acknowledge messages, one by one or all up to one",
            "requestBody": _body(
                {
                    "oneOf": [
                        _object({"positions": _array(_POSITION)}),
                        _object({"up_to": _POSITION}),
                    ]
                },
                {"positions": []},
            ),
            "responses": {
                "200": _answer(
                    "Durable: none of these comes again.", _object({"cursor": _POSITION}), {"cursor": "0-6-0"}
                ),
                "400": _BAD,
                "404": _UNKNOWN,
            },
        },
    },
    "/v1/spaces/{space}/subscriptions/{id}/nack": {
        "parameters": [_SPACE, _ID],
        "post": {
            "operationId": "nack",
            "summary": "Give messages back; they come again at once",
            "requestBody": _body(_object({"positions": _array(_POSITION)}), {"positions": []}),
            "responses": {
                "200": _answer(
                    "How many were leased and came back.", _object({"returned": _integer()}), {"returned": 0}
                ),
                "400": _BAD,
                "404": _UNKNOWN,
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
                _parameter(
                    "window",
                    "query",
                    {"type": "integer", "minimum": 1, "maximum": 20000, "default": 1000},
                    "Messages that may be unacked.",
                ),
                _parameter(
                    "ack_deadline_s",
                    "query",
                    {"type": "number", "exclusiveMinimum": 0, "default": 30},
                    "Seconds until a message that was not acked comes again.",
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
    "/v1/stats": {
        "get": {
            "operationId": "stats",
            "summary": "Live figures",
            "responses": {"200": _answer("The figures.", _ref("Stats"))},
        }
    },
    "/healthz": {
        "get": {
            "operationId": "healthz",
            "summary": "Whether the gateway answers",
            "responses": {"200": _answer("Alive.", _object({"status": _string()}), {"status": "alive"})},
        }
    },
    "/readyz": {
        "get": {
            "operationId": "readyz",
            "summary": "Whether events are taken and matched",
            "responses": {
                code: _answer(
                    description,
                    _object(
                        {
                            "status": _string(),
                            "checks": {"type": "object", "additionalProperties": {"type": "string"}},
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
            "responses": {"200": _answer("OpenAPI 3.1.", {"type": "object"})},
        }
    },
}

DOCUMENT: Json = {
    "openapi": "3.1.0",
    "info": {
        "title": "fieldfare",
        "version": __version__,
        "description": "Content-based publish/subscribe: publish CloudEvents, subscribe with filters over "
        "any of their fields. All errors are application/problem+json.",
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    "paths": _PATHS,
    "components": {"schemas": _SCHEMAS},
}
