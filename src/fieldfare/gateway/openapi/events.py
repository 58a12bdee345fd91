"""The part of the OpenAPI description about publishing."""

from __future__ import annotations

from fieldfare.gateway.openapi.delayed import KEPT, LATER
from fieldfare.gateway.openapi.from_types import described
from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    array,
    boolean,
    content,
    integer,
    operation,
    parameter,
    path,
    problem,
    record,
    ref,
    string,
)
from fieldfare.gateway.publishing.events import UsualEvent

POSITION = string("Position of an event: partition-offset-index.", pattern=r"^\d+-\d+-\d+$")
CURSOR = string(
    "One position for each partition of the log, separated by commas.",
    pattern=r"^\d+-\d+-\d+(,\d+-\d+-\d+)*$",
)
EVENT: Json = {
    "specversion": "1.0",
    "id": "1",
    "source": "/exchange",
    "type": "trade",
    "time": "2013-01-01T05:00:00Z",
    "data": {"symbol": "YHOO", "price": 18.25},
}
_APPENDED: Json = {"partition": 0, "offset": 5, "count": 1, "stamp": 1, "duplicate": False}

_EVENT_WORDS = {
    "specversion": "Version of CloudEvents.",
    "id": "Id of the event; unique among the events of its source.",
    "source": "What the event comes from, as a URI reference.",
    "type": "Kind of the event.",
    "subject": "What the event is about, within its source.",
    "time": "Time of the event (RFC 3339, with a time zone).",
    "datacontenttype": "Media type of the data; default: application/json.",
    "dataschema": "URI of the schema of the data.",
    "data": "Payload of the event: any JSON value.",
}
_EVENT = described(UsualEvent, **{name: {"description": words} for name, words in _EVENT_WORDS.items()})
_EVENT["description"] = "A CloudEvent; members that are not listed are extension attributes."
_EVENT["properties"]["data_base64"] = {
    "type": ["string", "null"],
    "description": "Payload that is not JSON, as base64, in place of `data`.",
}
_EVENT["additionalProperties"] = {"type": ["string", "integer", "boolean", "null"]}

_FOLLOWS = integer("The request's Fieldfare-Follows; missing if it had none.")

EVENT_SCHEMAS: Json = {
    "Event": _EVENT,
    "Appended": record(
        {
            "partition": integer("Partition of the log."),
            "offset": {
                "type": ["integer", "null"],
                "description": "Offset of the record in the partition: event i of the request is at the"
                " position"
                " partition-offset-i. null if the request was an empty batch, which appends nothing.",
            },
            "count": integer("Number of events of the record."),
            "stamp": {
                "type": ["integer", "null"],
                "description": "Revision of the registry whose subscriptions the events are matched against;"
                " null for an empty batch.",
            },
            "duplicate": boolean(
                "Whether this repeats an earlier request: nothing was appended, and the response names the"
                " record of that request."
            ),
            "follows": _FOLLOWS,
        },
        ["partition", "offset", "count", "stamp", "duplicate"],
    ),
    "PartlyAppended": record(
        {
            "title": string("Short description, the same for all responses of this kind."),
            "partition": integer("Partition of the log."),
            "offset": integer("Offset of the record of the accepted events in the partition."),
            "count": integer("Number of accepted events."),
            "stamp": integer("Revision of the registry whose subscriptions the events are matched against."),
            "duplicate": boolean("Whether this repeats an earlier request, whose record is named."),
            "follows": _FOLLOWS,
            "accepted": array(
                record(
                    {"index": integer("Index of the event in the request, from 0."), "position": POSITION}
                ),
                "The accepted events.",
            ),
            "refused": array(ref("Refused"), "The refused events."),
        },
        ["title", "partition", "offset", "count", "stamp", "duplicate", "accepted", "refused"],
    ),
}

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
            "200": answer("All events were appended.", ref("Appended"), _APPENDED),
            "202": KEPT,
            "207": answer("Some events were refused; the others were appended.", ref("PartlyAppended")),
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
