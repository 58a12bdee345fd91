"""The OpenAPI description of the HTTP interface; a test holds it against the routes."""

from __future__ import annotations

from fieldfare import __version__
from fieldfare.gateway.openapi.brokers import BROKERS
from fieldfare.gateway.openapi.delayed import DELAYED, KEPT, LATER
from fieldfare.gateway.openapi.from_types import described
from fieldfare.gateway.openapi.schemas import (
    APPENDED,
    DIALECT,
    EVENT,
    FILTER,
    POSITION,
    SCHEMAS,
    SET_ASIDE,
    SUBSCRIPTION,
)
from fieldfare.gateway.openapi.tenants import KEYS, SPACES
from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    array,
    body,
    content,
    integer,
    number,
    operation,
    parameter,
    path,
    problem,
    record,
    ref,
    string,
    taken,
)
from fieldfare.gateway.routes.acks import ExtendBody, NackBody, TerminateBody
from fieldfare.gateway.routes.delivery import RetryBody, SeekBody
from fieldfare.gateway.routes.filters import EVENTS_MAX, CheckBody, ConvertBody, ExplainBody, TestBody
from fieldfare.gateway.routes.messages import PullBody
from fieldfare.gateway.routes.subscriptions import ChangesBody

_PUBLISHED: Json = {
    "required": True,
    "content": {
        **content(ref("Event"), EVENT, "application/cloudevents+json"),
        **content(array(ref("Event")), [EVENT], "application/cloudevents-batch+json"),
        "application/x-ndjson": {"schema": string("One event a line.")},
        "application/vnd.apache.arrow.stream": {
            "schema": string(
                "An Arrow IPC stream: a row is an event, a column an attribute of events.", format="binary"
            )
        },
        "*/*": {"schema": {"description": "The data of one event in binary mode."}},
    },
}

_EVENTS = path(
    "/v1/spaces/{space}/events",
    post=operation(
        "publish",
        "Publish events",
        "CloudEvents 1.0 in structured, batch or binary mode (attributes as ce- headers), or one event a"
        " line. The events of one request are appended as one record; acknowledged is durable.",
        parameters=[
            parameter(
                "Fieldfare-Producer",
                "header",
                string(maxLength=128),
                "Who publishes; with Fieldfare-Sequence it makes a repeat harmless.",
            ),
            parameter(
                "Fieldfare-Sequence",
                "header",
                integer(minimum=0),
                "The producer's own number of this request, increasing.",
            ),
            parameter(
                "Fieldfare-Follows",
                "header",
                integer(minimum=-1),
                "The number of the producer's request before this one, -1 where there is none: it is appended"
                " only behind that, and waits for it for a moment.",
            ),
            parameter(
                "Content-Encoding",
                "header",
                string(enum=["identity", "gzip", "zstd"]),
                "How the body is packed; every route that takes one takes it so.",
            ),
            *LATER,
        ],
        takes=_PUBLISHED,
        answers={
            "200": answer("All events were appended.", ref("Appended"), APPENDED),
            "202": KEPT,
            "207": answer("Some events were refused; the others were appended.", ref("PartlyAppended")),
            "400": problem("No event was appended."),
            "409": problem(
                "The producer has sent something else under this sequence number; or what this request is to"
                " follow is not its newest, which `newest` names; or that is a later one than this."
            ),
            "429": problem("Publishers must wait: see Retry-After."),
            "507": problem("The space keeps as many bytes of events, or of matches, as it may."),
        },
        problems="404",
    ),
)

_LIMIT = integer(minimum=1, maximum=10000, default=100)
_NO_REPLAY = problem("It is to begin in the past, and the space has as many bytes of matches as it may.")
_BULK = taken({"subscriptions": array(ref("Filter"), maxItems=10000)})

_SUBSCRIPTIONS = path(
    "/v1/spaces/{space}/subscriptions",
    get=operation(
        "list_subscriptions",
        "List subscriptions, sorted by id",
        parameters=[
            parameter("after", "query", string(), "Only ids after this one."),
            parameter("limit", "query", _LIMIT, "At most."),
        ],
        answers=answer(
            "A page; next is the last id when there are more.",
            record({"subscriptions": array(ref("Subscription")), "next": {"type": ["string", "null"]}}),
            {"subscriptions": [SUBSCRIPTION], "next": None},
        ),
        problems="400 404",
    ),
    post=operation(
        "create_subscriptions",
        "Create one subscription, or put many",
        "Of many, each is judged for itself; the good ones are stored, those with an id that exists replace"
        " it.",
        takes=body(
            {"oneOf": [ref("Filter"), _BULK]},
            {"subscriptions": [{"id": "cheap-yahoo", "filter": SUBSCRIPTION["filter"]}]},
        ),
        answers={
            "200": answer(
                "What became of many; or the one, which exists already with this filter.",
                {"oneOf": [ref("BulkAnswer"), ref("Subscription")]},
                {"created": 1, "replaced": 0, "unchanged": 0, "refused": []},
            ),
            "201": answer("The one was created.", ref("Subscription"), SUBSCRIPTION),
            "409": problem(
                "There is one of this id with another filter, or the space has as many as it may."
            ),
            "507": _NO_REPLAY,
        },
        problems="400 404 429",
    ),
)

_SUBSCRIPTION = path(
    "/v1/spaces/{space}/subscriptions/{id}",
    get=operation(
        "get_subscription",
        "Read a subscription",
        answers=answer("The subscription.", ref("Subscription"), SUBSCRIPTION),
        problems="404",
    ),
    put=operation(
        "put_subscription",
        "Create a subscription or replace its filter",
        "Events published after the answer meet exactly the new filter. The cursor stays, and so do settings"
        " of the delivery where none are sent.",
        takes=body(ref("Filter"), {"filter": SUBSCRIPTION["filter"], "dialect": "sql"}),
        answers={
            "200": answer("It was replaced, or stood so already.", ref("Subscription"), SUBSCRIPTION),
            "201": answer("It was created.", ref("Subscription"), SUBSCRIPTION),
            "409": problem("It has another filter, and start is of new ones only."),
            "507": _NO_REPLAY,
        },
        problems="400 404 429",
    ),
    patch=operation(
        "patch_subscription",
        "Change how a subscription's messages are given",
        "Only what is named changes; its filter and its revision stay.",
        takes=body(described(ChangesBody, delivery=ref("Delivery")), {"delivery": {"max_attempts": 5}}),
        answers=answer("It is so now.", ref("Subscription"), SUBSCRIPTION),
        problems="400 404 429",
    ),
    delete=operation(
        "delete_subscription",
        "Delete a subscription",
        "Its streams end with the event deleted.",
        answers={"204": answer("It was deleted.")},
        problems="404 429",
    ),
)

_POSITIONS: Json = {"items": POSITION}
_SETTLED = taken({"positions": array(POSITION)})


def _verb(
    name: str, summary: str, request: type, counted: tuple[str, str], problems: str = "400 404"
) -> Json:
    """Describe an operation on some messages, and its answer: how many it changed."""
    return path(
        f"/v1/spaces/{{space}}/subscriptions/{{id}}/{name}",
        post=operation(
            name,
            summary,
            takes=body(described(request, positions=_POSITIONS), {"positions": []}),
            answers=answer(counted[1], record({counted[0]: integer()}), {counted[0]: 0}),
            problems=problems,
        ),
    )


_MESSAGES: Json = {
    **path(
        "/v1/spaces/{space}/subscriptions/{id}/pull",
        post=operation(
            "pull",
            "Take messages",
            takes=body(described(PullBody), {"max": 100, "wait_s": 0, "ack_deadline_s": 30}, required=False),
            answers={
                "200": answer(
                    "The messages, in order; none when the time was over.",
                    record({"messages": array(ref("Message"))}),
                    {"messages": [{"position": "0-5-0", "attempt": 1, "event": EVENT}]},
                ),
                "429": problem("The space was sent as much as it may be: see Retry-After."),
            },
            problems="400 404",
        ),
    ),
    **path(
        "/v1/spaces/{space}/subscriptions/{id}/ack",
        post=operation(
            "ack",
            "Acknowledge messages, one by one or all up to one",
            takes=body({"oneOf": [_SETTLED, taken({"up_to": POSITION})]}, {"positions": []}),
            answers=answer(
                "Durable: none of these comes again.", record({"cursor": POSITION}), {"cursor": "0-6-0"}
            ),
            problems="400 404",
        ),
    ),
    **_verb(
        "nack",
        "Give messages back; they come again",
        NackBody,
        ("returned", "How many were leased and came back."),
    ),
    **_verb(
        "extend",
        "Have messages for longer",
        ExtendBody,
        ("extended", "How many were leased."),
    ),
    **_verb(
        "terminate",
        "Make messages dead letters; they are not delivered again",
        TerminateBody,
        ("terminated", "How many were given and not acked."),
        "400 404 409",
    ),
    **path(
        "/v1/spaces/{space}/subscriptions/{id}/seek",
        post=operation(
            "seek",
            "Go on from another place",
            "What lies before it is settled; what matched from it on comes, also what was acked.",
            takes=body(described(SeekBody), {"to": "latest"}),
            answers=answer("Durable.", record({"cursor": POSITION}), {"cursor": "0-6-0"}),
            problems="400 404",
        ),
    ),
}

_DEAD_LETTERS: Json = {
    **path(
        "/v1/spaces/{space}/subscriptions/{id}/dead-letters",
        get=operation(
            "list_dead_letters",
            "The messages that were given up, by position",
            parameters=[
                parameter("after", "query", POSITION, "Only those behind this one."),
                parameter("limit", "query", integer(minimum=1, maximum=1000, default=100), "At most."),
            ],
            answers=answer(
                "A page; next is the last position when there are more, total how many there are.",
                record(
                    {
                        "dead_letters": array(ref("DeadLetter")),
                        "next": {"type": ["string", "null"]},
                        "total": integer(),
                    }
                ),
            ),
            problems="400 404",
        ),
        delete=operation(
            "clear_dead_letters",
            "Forget the messages that were given up",
            answers=answer("How many those were.", record({"removed": integer()}), {"removed": 0}),
            problems="404",
        ),
    ),
    **path(
        "/v1/spaces/{space}/subscriptions/{id}/dead-letters/retry",
        post=operation(
            "retry_dead_letters",
            "Deliver dead letters again, with attempts counted from 1",
            "Without positions the first 1,000 of all.",
            takes=body(described(RetryBody, positions=_POSITIONS), {}, required=False),
            answers={
                "200": answer(
                    "How many are given again, how many of the named ones retention has taken, and how many"
                    " are left in the list.",
                    record({"retried": integer(), "gone": integer(), "left": integer()}),
                    {"retried": 0, "gone": 0, "left": 0},
                ),
                "429": problem("Too many are being tried again: see Retry-After."),
            },
            problems="400 404",
        ),
    ),
}

_OF_A_STREAM = [
    parameter(
        "window",
        "query",
        integer(minimum=1, maximum=20000, default=1000),
        "Messages that may be unacked.",
    ),
    parameter(
        "ack_deadline_s",
        "query",
        number(exclusiveMinimum=0, default=30),
        "Seconds until a message that was not acked comes again; not with ack=auto.",
    ),
]

_STREAM = path(
    "/v1/spaces/{space}/subscriptions/{id}/stream",
    get=operation(
        "stream",
        "Follow a subscription as server-sent events",
        "id is the position, data the event as JSON; the field attempt says which time it is given, if not"
        " the first. The stream goes on only while fewer than window messages are unacked. A comment comes"
        " when there is nothing else to send. The event sought says that the delivery was set to another"
        " place, and deleted ends the stream.",
        parameters=[
            *_OF_A_STREAM,
            parameter(
                "ack",
                "query",
                string(enum=["explicit", "auto"], default="explicit"),
                "auto: the client sends no acks. A message is settled by a Last-Event-ID at or after it, or"
                " when a window of younger ones was sent; a subscription has one such stream.",
            ),
            parameter(
                "last_event_id",
                "query",
                POSITION,
                "With ack=auto: everything up to this position is settled first.",
            ),
            parameter(
                "Last-Event-ID",
                "header",
                POSITION,
                "The same, as an EventSource sends it; it goes before last_event_id.",
            ),
        ],
        answers={
            "200": {"description": "The stream.", "content": content(string(), None, "text/event-stream")}
        },
        problems="400 404",
    ),
)

_SOCKET = path(
    "/v1/spaces/{space}/subscriptions/{id}/websocket",
    get=operation(
        "socket",
        "Follow a subscription on a WebSocket, and settle its messages there",
        "In CloudEvents' subprotocol cloudevents.json: each text frame is an event, in both directions. A"
        " message has the extension attributes fieldfareposition and fieldfareattempt; the client says"
        " fieldfare.ack, fieldfare.nack, fieldfare.extend and fieldfare.terminate, with the bodies of the"
        " routes of these names as data, and hears fieldfare.done or fieldfare.problem.",
        parameters=_OF_A_STREAM,
        answers={
            "101": {"description": "The socket is open."},
            "426": problem("The request does not open a WebSocket."),
        },
        problems="400 404",
    ),
)


def _about_filters(
    name: str, summary: str, kind: type, answered: Json, example: Json, problems: str = "", **members: Json
) -> Json:
    request = described(kind, filter=FILTER, dialect=DIALECT, **members)
    return path(
        f"/v1/filters:{name}",
        post=operation(
            f"{name}_filter",
            summary,
            takes=body(request, {"filter": SUBSCRIPTION["filter"], **example}),
            answers=answered,
            problems=f"400 {problems}",
        ),
    )


_FILTERS: Json = {
    **_about_filters(
        "check",
        "Find all mistakes of a filter",
        CheckBody,
        answer(
            "Whether it can be used, what is wrong with it, and what is most likely not meant.", ref("Check")
        ),
        {},
    ),
    **_about_filters(
        "explain",
        "Say what a filter matches, and how selective it is",
        ExplainBody,
        answer(
            "When an event matches, what the index uses, and what is most likely not meant.",
            ref("Explanation"),
        ),
        {"space": "default"},
        "404",
        sample_events={"minimum": 0, "maximum": EVENTS_MAX},
        events={"maxItems": EVENTS_MAX},
    ),
    **_about_filters(
        "test",
        "Run a filter over events",
        TestBody,
        answer(
            "What became of each event, in order, and which part of the filter the others failed. After much "
            "work only matches is told.",
            record({"matched": integer("How many match."), "results": array(ref("Tested"))}),
        ),
        {"events": [{"type": "trade", "data": {"symbol": "YHOO", "price": 20}}]},
        events={"maxItems": EVENTS_MAX},
    ),
    **_about_filters(
        "convert",
        "Write a filter of another dialect in sql",
        ConvertBody,
        answer(
            "Text that matches exactly the same events.", record({"filter": string(), "dialect": string()})
        ),
        {"dialect": "sql"},
        to={"enum": ["sql"]},
    ),
}

_QUARANTINE: Json = {
    **path(
        "/v1/quarantine",
        get=operation(
            "listQuarantine",
            "The records that were set aside because matching them failed",
            answers=answer("The oldest 1,000.", record({"quarantine": array(SET_ASIDE)})),
        ),
    ),
    **path(
        "/v1/quarantine/{position}/retry",
        post=operation(
            "retryQuarantined",
            "Publish the events of a record that was set aside again",
            "They get a new position, and are matched against the subscriptions as they stand then. Repeating"
            " it appends nothing more.",
            answers={
                "200": answer("Where they are now.", ref("Appended")),
                "404": problem("No such record is set aside, or retention has removed it."),
                "429": problem("Publishers must wait: see Retry-After."),
            },
            problems="400",
        ),
    ),
}

_READINESS = record(
    {
        "status": string(),
        "checks": {"type": "object", "additionalProperties": string()},
        "notices": array(string()),
    },
    ["status"],
)
_ALIVE = answer("Alive.", record({"status": string()}), {"status": "alive"})
_READY = {
    "200": answer("Ready.", _READINESS),
    "503": answer("Not ready; checks says why.", _READINESS),
}
_METRICS = {"200": {"description": "Metrics.", "content": content(string(), None, "text/plain")}}

_SERVICE: Json = {
    **path("/v1/stats", get=operation("stats", "Live figures", answers=answer("The figures.", ref("Stats")))),
    **path("/healthz", get=operation("healthz", "Whether the gateway answers", answers=_ALIVE)),
    **path("/readyz", get=operation("readyz", "Whether events are taken and matched", answers=_READY)),
    **path("/metrics", get=operation("metrics", "Prometheus metrics", answers=_METRICS)),
    **path(
        "/openapi.json",
        get=operation("openapi", "This document", answers=answer("OpenAPI 3.1.", {"type": "object"})),
    ),
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
    "paths": SPACES
    | _EVENTS
    | DELAYED
    | _SUBSCRIPTIONS
    | _SUBSCRIPTION
    | _MESSAGES
    | _DEAD_LETTERS
    | _STREAM
    | _SOCKET
    | _FILTERS
    | _QUARANTINE
    | BROKERS
    | KEYS
    | _SERVICE,
    "components": {
        "schemas": SCHEMAS,
        "securitySchemes": {
            "key": {"type": "http", "scheme": "bearer", "description": "An API key, or a token (JWT)."}
        },
    },
    "security": [{"key": []}, {}],
}
