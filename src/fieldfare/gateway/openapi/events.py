"""The part of the OpenAPI description about publishing."""

from __future__ import annotations

from fieldfare.gateway.openapi.delayed import KEPT, LATER
from fieldfare.gateway.openapi.from_types import described
from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    array,
    content,
    integer,
    operation,
    parameter,
    path,
    problem,
    ref,
    string,
)
from fieldfare.gateway.publishing.events import UsualEvent
from fieldfare.gateway.routes.events import AppendedDocument, PartlyAppendedDocument

EVENT: Json = {
    "specversion": "1.0",
    "id": "1",
    "source": "/exchange",
    "type": "trade",
    "time": "2013-01-01T05:00:00Z",
    "data": {"symbol": "YHOO", "price": 18.25},
}
_APPENDED: Json = {"partition": 0, "offset": 5, "count": 1, "stamp": 1, "duplicate": False}

_EVENT = described(UsualEvent)
_EVENT["description"] = "A CloudEvent; members that are not listed are extension attributes."
_EVENT["properties"]["data_base64"] = {
    "type": ["string", "null"],
    "description": "Payload that is not JSON, as base64, in place of `data`.",
}
_EVENT["additionalProperties"] = {"type": ["string", "integer", "boolean", "null"]}

EVENT_SCHEMAS: Json = {"Event": _EVENT}

_PUBLISHED: Json = {
    "required": True,
    "content": {
        **content(ref("Event"), EVENT, "application/cloudevents+json"),
        **content(array(ref("Event")), [EVENT], "application/cloudevents-batch+json"),
        "application/x-ndjson": {"schema": string("CloudEvents as JSON, one on each line.")},
        "application/vnd.apache.arrow.stream": {
            "schema": string(
                "An Arrow IPC stream: each row is an event, each column an attribute of the events.",
                format="binary",
            )
        },
        "*/*": {
            "schema": {
                "description": "Data of one event in CloudEvents' binary mode; headers ce-* have the"
                " attributes."
            }
        },
    },
}

EVENTS = path(
    "/v1/spaces/{space}/events",
    post=operation(
        "publish",
        "Publish events",
        "Accepts CloudEvents 1.0 in structured, batch or binary mode, JSON lines, or an Arrow stream. The"
        " events"
        " of one request are appended to the log as one record, which is on disk before the response.",
        parameters=[
            parameter(
                "Fieldfare-Producer",
                "header",
                string(maxLength=128),
                "Name of the producer. With Fieldfare-Sequence, a repeated request appends nothing again.",
            ),
            parameter(
                "Fieldfare-Sequence",
                "header",
                integer(minimum=0),
                "The producer's number of this request: higher for each new request, the same for a repeat."
                " Required with Fieldfare-Producer.",
            ),
            parameter(
                "Fieldfare-Follows",
                "header",
                integer(minimum=-1),
                "Sequence number of the producer's previous request, -1 if there is none. This request is"
                " appended only after that one, for which it waits briefly. Default: any order.",
            ),
            parameter(
                "Content-Encoding",
                "header",
                string(enum=["identity", "gzip", "zstd"]),
                "Compression of the body. All routes with a request body accept these.",
            ),
            *LATER,
        ],
        takes=_PUBLISHED,
        answers={
            "200": answer("All events were appended.", AppendedDocument, _APPENDED),
            "202": KEPT,
            "207": answer("Some events were refused; the others were appended.", PartlyAppendedDocument),
            "400": problem("The request or all of its events are invalid. Nothing was appended."),
            "409": problem(
                "The sequence number does not fit, and nothing was appended: the producer has used it for"
                " other"
                " events, or a higher one; or the request that this one follows is not the producer's newest,"
                " which the member `newest` names."
            ),
            "429": problem(
                "The service is overloaded, or the space has used up a rate quota. Retry after the seconds in"
                " Retry-After."
            ),
            "507": problem(
                "The space's stored events or matches have reached their quota: wait until retention has"
                " removed"
                " some."
            ),
        },
        problems="404",
    ),
)
