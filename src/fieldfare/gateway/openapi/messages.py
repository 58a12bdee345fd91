"""The part of the OpenAPI description about messages: pulls, streams, acks and dead letters."""

from __future__ import annotations

from fieldfare.delivery.attempts import RETRIED_MAX
from fieldfare.gateway.openapi.events import CURSOR, EVENT, POSITION
from fieldfare.gateway.openapi.from_types import described
from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    array,
    body,
    boolean,
    content,
    integer,
    number,
    operation,
    or_null,
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
from fieldfare.gateway.routes.messages import PullBody
from fieldfare.gateway.routes.positions import POSITIONS_MAX
from fieldfare.gateway.routes.tickets import TicketBody
from fieldfare.model import DEADLINE_MAX_S

MESSAGE_SCHEMAS: Json = {
    "Message": record(
        {
            "position": POSITION,
            "attempt": integer("Number of this delivery of the message, from 1.", minimum=1),
            "event": ref("Event"),
        }
    ),
    "DeadLetter": record(
        {
            "position": POSITION,
            "attempts": integer("Number of times that the message was delivered.", minimum=0),
            "reason": string("Why it became a dead letter, as a phrase."),
            "dead_ms": integer("Time at which it became a dead letter, in milliseconds since 1970."),
            "event": {
                "oneOf": [{"type": "null"}, ref("Event")],
                "description": "The event; null if retention has removed it.",
            },
        }
    ),
}

_POSITIONS: Json = {
    "items": POSITION,
    "description": f"Positions of the messages, at most {POSITIONS_MAX:,}.",
}
_SETTLED = taken({"positions": {"type": "array", **_POSITIONS}})
_CURSOR_AFTER = record({"cursor": {**CURSOR, "description": "The subscription's cursor after the change."}})


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
            answers=answer(
                "The number of messages changed; messages in another state are ignored.",
                record({counted[0]: integer(counted[1])}),
                {counted[0]: 0},
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
            takes=body(described(PullBody), {"max": 100, "wait_s": 0, "ack_deadline_s": 30}, required=False),
            answers={
                "200": answer(
                    "The messages, in order of delivery; none if there were none until `wait_s` was over.",
                    record({"messages": array(ref("Message"), "The messages.")}),
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
                        taken(
                            {
                                "up_to": {
                                    **POSITION,
                                    "description": "Acknowledge all messages of the partition up to and"
                                    " including"
                                    " this position: partition-offset-index.",
                                }
                            }
                        ),
                    ]
                },
                {"positions": []},
            ),
            answers=answer(
                "The acknowledgements are on disk: none of these messages is delivered again.",
                _CURSOR_AFTER,
                {"cursor": "0-6-0"},
            ),
            problems="400 404",
        ),
    ),
    **_verb(
        "nack",
        "Request redelivery of messages",
        NackBody,
        ("returned", "Number of messages that were in flight and will be redelivered."),
    ),
    **_verb(
        "extend",
        "Extend the ack deadline of messages",
        ExtendBody,
        ("extended", "Number of messages that were in flight and have a new deadline."),
    ),
    **_verb(
        "terminate",
        "Turn messages into dead letters, which are not redelivered",
        TerminateBody,
        (
            "terminated",
            "Number of messages that were delivered, were not acknowledged, and are dead letters now.",
        ),
        "400 404 409",
    ),
    **path(
        "/v1/spaces/{space}/subscriptions/{id}/ticket",
        post=operation(
            "create_ticket",
            "Create a ticket for the stream and the WebSocket of a subscription",
            "A browser sends no key with an EventSource or a WebSocket. It can pass a ticket in the address,"
            " as `ticket`. A ticket has the rights of its caller, and ends with the caller's key.",
            takes=body(described(TicketBody), {"valid_s": 60}),
            answers={
                "201": answer(
                    "The ticket.",
                    record(
                        {
                            "ticket": string("The ticket, which is shown only here."),
                            "valid_s": number("Seconds for which streams may be opened with it."),
                        }
                    ),
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
                record(
                    {
                        "pending": integer(
                            "Number of messages that matched and are not acknowledged.", minimum=0
                        ),
                        "is_exact": boolean("Whether `pending` was counted; a large one is estimated."),
                        "in_flight": integer(
                            "Number of messages that readers have not acknowledged.", minimum=0
                        ),
                        "redeliveries": integer("Number of messages that wait to be redelivered.", minimum=0),
                        "dead_letters": integer("Number of dead letters.", minimum=0),
                        "readers": integer("Number of open streams, and of pulls under way.", minimum=0),
                        "cursor": {**CURSOR, "description": "Everything before this cursor is settled."},
                        "oldest_s": or_null(
                            number(
                                "Seconds since the oldest pending event was published; null: none is.",
                                minimum=0,
                            )
                        ),
                    }
                ),
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
            takes=body(described(SeekBody), {"to": "latest"}),
            answers=answer("The new cursor, which is on disk.", _CURSOR_AFTER, {"cursor": "0-6-0"}),
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
                    "after", "query", POSITION, "Return only dead letters after this position; default: all."
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
                record(
                    {
                        "dead_letters": array(ref("DeadLetter"), "The dead letters of the page."),
                        "next": or_null(
                            string("Value of `after` for the next page; null if this is the last page.")
                        ),
                        "total": integer("Number of dead letters of all pages."),
                    }
                ),
            ),
            problems="400 404",
        ),
        delete=operation(
            "clear_dead_letters",
            "Delete all dead letters of the subscription",
            answers=answer(
                "The dead letters were deleted.",
                record({"removed": integer("Number of dead letters deleted.")}),
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
            takes=body(described(RetryBody, positions={"items": POSITION}), {}, required=False),
            answers={
                "200": answer(
                    "The dead letters are redelivered.",
                    record(
                        {
                            "retried": integer("Number of dead letters that are redelivered."),
                            "gone": integer(
                                "Number of named dead letters whose events retention has removed."
                            ),
                            "left": integer("Number of dead letters that remain in the list."),
                        }
                    ),
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
        POSITION,
        "With ack=auto: acknowledge all messages up to this position first.",
    ),
    parameter(
        "Last-Event-ID",
        "header",
        POSITION,
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
