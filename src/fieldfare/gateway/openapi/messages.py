"""The part of the OpenAPI description about messages: pulls, streams, acks and dead letters."""

from __future__ import annotations

from typing import Annotated, get_type_hints

from msgspec import Meta

from fieldfare.delivery.attempts import RETRIED_MAX
from fieldfare.gateway.delivery.records import PulledDocument
from fieldfare.gateway.member_types import CursorText, PositionText
from fieldfare.gateway.openapi.events import EVENT
from fieldfare.gateway.openapi.from_types import described
from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    body,
    content,
    integer,
    number,
    operation,
    parameter,
    path,
    problem,
    string,
    taken,
)
from fieldfare.gateway.routes.acks import (
    CursorDocument,
    ExtendBody,
    ExtendedDocument,
    NackBody,
    NackedDocument,
    SomePositions,
    TerminateBody,
    TerminatedDocument,
)
from fieldfare.gateway.routes.delivery import (
    DeadLettersDocument,
    RemovedDocument,
    RetriedDocument,
    RetryBody,
    SeekBody,
)
from fieldfare.gateway.routes.messages import PullBody
from fieldfare.gateway.routes.tickets import TicketBody, TicketDocument
from fieldfare.model import DEADLINE_MAX_S, Backlog

_SETTLED = taken({"positions": SomePositions})


_UP_TO = (
    "Acknowledge all messages of the partition up to and including this position: partition-offset-index."
)
_BACKLOG = described(Backlog)
_BACKLOG["properties"]["cursor"] = Annotated[
    CursorText, Meta(description="Everything before this cursor is settled.")
]


def _verb(name: str, summary: str, request: type, counted: type, problems: str = "400 404") -> Json:
    """Describe an operation on some messages, and its answer: how many it changed."""
    return path(
        f"/v1/spaces/{{space}}/subscriptions/{{id}}/{name}",
        post=operation(
            name,
            summary,
            takes=body(request, {"positions": []}),
            answers=answer(
                "The number of messages changed; messages in another state are ignored.",
                counted,
                dict.fromkeys(get_type_hints(counted), 0),
            ),
            problems=problems,
        ),
    )


_MESSAGES: Json = {
    **path(
        "/v1/spaces/{space}/subscriptions/{id}/pull",
        post=operation(
            "pull",
            "Receive messages",
            takes=body(PullBody, {"max": 100, "wait_s": 0, "ack_deadline_s": 30}, required=False),
            answers={
                "200": answer(
                    "The messages, in order of delivery; none if there were none until `wait_s` was over.",
                    PulledDocument,
                    {"messages": [{"position": "0-5-0", "attempt": 1, "event": EVENT}]},
                ),
                "429": problem(
                    "The space has used up its quota of delivered bytes per second, or of connections. Retry"
                    " after"
                    " the seconds in Retry-After."
                ),
            },
            problems="400 404",
        ),
    ),
    **path(
        "/v1/spaces/{space}/subscriptions/{id}/ack",
        post=operation(
            "ack",
            "Acknowledge messages: single ones, or all up to a position",
            takes=body(
                {
                    "oneOf": [
                        _SETTLED,
                        taken({"up_to": Annotated[PositionText, Meta(description=_UP_TO)]}),
                    ]
                },
                {"positions": []},
            ),
            answers=answer(
                "The acknowledgements are on disk: none of these messages is delivered again.",
                CursorDocument,
                {"cursor": "0-6-0"},
            ),
            problems="400 404",
        ),
    ),
    **_verb(
        "nack",
        "Request redelivery of messages",
        NackBody,
        NackedDocument,
    ),
    **_verb(
        "extend",
        "Extend the ack deadline of messages",
        ExtendBody,
        ExtendedDocument,
    ),
    **_verb(
        "terminate",
        "Turn messages into dead letters, which are not redelivered",
        TerminateBody,
        TerminatedDocument,
        "400 404 409",
    ),
    **path(
        "/v1/spaces/{space}/subscriptions/{id}/ticket",
        post=operation(
            "create_ticket",
            "Create a ticket for the stream and the WebSocket of a subscription",
            "A browser sends no key with an EventSource or a WebSocket. It can pass a ticket in the address,"
            " as `ticket`. A ticket has the rights of its caller, and ends with the caller's key.",
            takes=body(TicketBody, {"valid_s": 60}),
            answers={
                "201": answer(
                    "The ticket.",
                    TicketDocument,
                    {"ticket": "ft_Cq3...", "valid_s": 60},
                ),
                "429": problem("Too many tickets are valid. Retry after the seconds in Retry-After."),
            },
            problems="400 404",
        ),
    ),
    **path(
        "/v1/spaces/{space}/subscriptions/{id}/backlog",
        get=operation(
            "get_backlog",
            "Count the messages that a subscription owes its readers",
            "Events that are not matched yet are not counted: see `lag_events` in `/v1/stats`.",
            answers=answer(
                "The backlog.",
                _BACKLOG,
                {
                    "pending": 1204,
                    "is_exact": True,
                    "in_flight": 100,
                    "redeliveries": 0,
                    "dead_letters": 2,
                    "readers": 1,
                    "cursor": "0-6-0",
                    "oldest_s": 12.5,
                },
            ),
            problems="404",
        ),
    ),
    **path(
        "/v1/spaces/{space}/subscriptions/{id}/seek",
        post=operation(
            "seek",
            "Move the cursor to another place in the log",
            "Matches before the place are settled. Matches from the place on are delivered, also those that"
            " were"
            " acknowledged before.",
            takes=body(SeekBody, {"to": "latest"}),
            answers=answer("The new cursor, which is on disk.", CursorDocument, {"cursor": "0-6-0"}),
            problems="400 404",
        ),
    ),
}

_DEAD_LETTERS: Json = {
    **path(
        "/v1/spaces/{space}/subscriptions/{id}/dead-letters",
        get=operation(
            "list_dead_letters",
            "List the dead letters, sorted by position",
            parameters=[
                parameter(
                    "after",
                    "query",
                    PositionText,
                    "Return only dead letters after this position; default: all.",
                ),
                parameter(
                    "limit",
                    "query",
                    integer(minimum=1, maximum=1000, default=100),
                    "Maximum dead letters of the page; a page also ends at 4 MiB of events.",
                ),
            ],
            answers=answer(
                "A page of the dead letters.",
                DeadLettersDocument,
            ),
            problems="400 404",
        ),
        delete=operation(
            "clear_dead_letters",
            "Delete all dead letters of the subscription",
            answers=answer(
                "The dead letters were deleted.",
                RemovedDocument,
                {"removed": 0},
            ),
            problems="404",
        ),
    ),
    **path(
        "/v1/spaces/{space}/subscriptions/{id}/dead-letters/retry",
        post=operation(
            "retry_dead_letters",
            "Redeliver dead letters, with attempts counted from 1",
            takes=body(RetryBody, {}, required=False),
            answers={
                "200": answer(
                    "The dead letters are redelivered.",
                    RetriedDocument,
                    {"retried": 0, "gone": 0, "left": 0},
                ),
                "429": problem(
                    f"More than {RETRIED_MAX:,} dead letters would be in redelivery. Retry after the seconds"
                    f" in"
                    " Retry-After."
                ),
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
        "Maximum messages of this stream in flight: sent and not acknowledged.",
    ),
    parameter(
        "ack_deadline_s",
        "query",
        number(exclusiveMinimum=0, maximum=DEADLINE_MAX_S),
        "Seconds until a message without an ack is redelivered. Default: the subscription's `ack_deadline_s`,"
        " or else the service's, 30 s.",
    ),
]
_ACK_MODE = parameter(
    "ack",
    "query",
    string(enum=["explicit", "auto"], default="explicit"),
    "`explicit`: the client acknowledges each message. `auto`: the client sends no acks; a message counts as"
    " acknowledged when the client reconnects with a Last-Event-ID at or after it, or when `window` later"
    " messages were sent. With `auto`, messages have no deadline, `ack_deadline_s` must be missing, and a"
    " subscription can have one such stream only.",
)
_LAST_EVENT = [
    parameter(
        "last_event_id",
        "query",
        PositionText,
        "With ack=auto: acknowledge all messages up to this position first.",
    ),
    parameter(
        "Last-Event-ID",
        "header",
        PositionText,
        "Like `last_event_id`, as EventSource sends it; takes precedence over it.",
    ),
]

_STREAM = path(
    "/v1/spaces/{space}/subscriptions/{id}/stream",
    get=operation(
        "stream",
        "Receive messages as server-sent events",
        "`id` is the message's position, `data` the event as JSON; the field `attempt` has the number of the"
        " delivery, if it is not the first. At most `window` messages are in flight. Comments are sent while"
        " there"
        " are no messages. The event `sought` says that the cursor was moved; `deleted` that the"
        " subscription was"
        " deleted, and `moved` that it is at another broker, which end the stream.",
        parameters=[*_OF_A_STREAM, _ACK_MODE, *_LAST_EVENT],
        answers={
            "200": {
                "description": "The stream, which the server keeps open.",
                "content": content(string(), None, "text/event-stream"),
            }
        },
        problems="400 404",
    ),
)

_SOCKET = path(
    "/v1/spaces/{space}/subscriptions/{id}/websocket",
    get=operation(
        "socket",
        "Receive and acknowledge messages on a WebSocket",
        "Uses CloudEvents' subprotocol `cloudevents.json`: each text frame is an event, in both directions. A"
        " message has the extension attributes `fieldfareposition` and `fieldfareattempt`. The client sends"
        " events"
        " of the types `fieldfare.ack`, `fieldfare.nack`, `fieldfare.extend` and `fieldfare.terminate`,"
        " whose data"
        " are the bodies of the routes with these names; the service responds to each with an event"
        " `fieldfare.done` or `fieldfare.problem`.",
        parameters=_OF_A_STREAM,
        answers={
            "101": {"description": "The WebSocket is open."},
            "426": problem("The request does not open a WebSocket."),
        },
        problems="400 404",
    ),
)

MESSAGES: Json = _MESSAGES | _DEAD_LETTERS | _STREAM | _SOCKET
