"""The part of the OpenAPI description about links to other brokers."""

from __future__ import annotations

from fieldfare.gateway.federation.wire import MEDIA_TYPE
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
    parameter,
    path,
    problem,
    record,
    string,
)
from fieldfare.gateway.routes.brokers import AdvertisementBody, BalanceBody, LeaveBody, MoveBody

_LINK = record(
    {
        "peer": string("The neighbour's name."),
        "url": string("The URL of the neighbour."),
        "cluster": {"type": ["string", "null"], "description": "The cluster of the link, if it has one."},
        "is_up": {"type": "boolean", "description": "Whether the last requests were answered."},
        "trouble": {"type": ["string", "null"], "description": "Why the last request failed."},
        "outbox_entries": integer("Entries that the neighbour has not acknowledged."),
        "outbox_bytes": integer("Bytes of these entries."),
        "unacknowledged": integer("Those of the entries that were sent."),
        "received_to": integer("The number of the last entry received from the neighbour."),
        "sent_requests": integer("Requests answered since the gateway's start."),
        "sent_entries": integer("Entries acknowledged since the gateway's start."),
        "sent_bytes": integer("Bytes of these requests, compressed."),
        "withheld_events": integer("Events of these entries that the link's filter has kept back."),
    }
)
_BROKER = record(
    {
        "name": string("Name of the broker."),
        "links": array(string(), "The neighbours to which its links are up."),
        "is_removed": {"type": "boolean", "description": "Whether it was removed for good."},
        "is_leaving": {"type": "boolean", "description": "Whether it says that it is leaving."},
        "is_relay": {"type": "boolean", "description": "Whether it only passes entries on."},
        "cluster": {"type": ["string", "null"], "description": "The cluster shared with it, if it has one."},
        "next_hop": {"type": ["string", "null"], "description": "The neighbour on the shortest path to it."},
        "advertised": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "description": "What it publishes: a filter by space; other spaces publish everything.",
        },
        "held_back_filters": {
            "type": ["integer", "null"],
            "description": "Filters here that can match nothing of that, and are not sent to it, as counted"
            " last; null: not counted yet.",
        },
        "filters": integer("Filters of its subscribers that are known here."),
        "destination": {"type": ["integer", "null"], "description": "The number of its matches."},
        "events_sent": integer("Entries with events of this broker for it."),
        "events_received": integer("Entries with events of its that are in the log here, without a gap."),
        "told_revision": integer("The revision up to which it was sent changes of filters."),
        "counts_through": integer(
            "Subscriptions here with a revision of at most this count for all its later events."
        ),
        "missing_entries": integer("Entries with events of its that have not come, while later ones have."),
        "waits_for_filters": boolean("Whether a change of its filters waits here for an earlier one."),
        "sent_twice": integer("Entries that it has sent twice, and that were not appended again."),
    },
    ["name", "links", "is_removed"],
)
_STATE = record(
    {
        "broker": string("The name of this broker."),
        "routing": string("The routing protocol: ddbr, fbr or merc."),
        "state": string("Whether it leaves: staying, closing, withdrawn, left; or relay."),
        "clusters": array(string(), "The clusters of this broker; none with the protocol ddbr."),
        "links": array(_LINK, "The links to neighbours."),
        "brokers": array(_BROKER, "All brokers that this one knows, itself included."),
        "without_path": integer("Entries whose destinations cannot be reached at present."),
        "kept_entries": integer("Entries of this broker that their destinations have not confirmed."),
        "kept_bytes": integer("Bytes of these entries."),
        "not_kept_entries": integer(
            "Entries of which no copy was kept since the gateway's start, because the copies have 1 GiB."
        ),
        "inbox_bytes": integer("Bytes of received entries that are not processed yet."),
        "dropped_events": integer(
            "Events of others that were not valid, were kept back by a filter, or had no space here."
        ),
        "refused_filters": integer("Filters of others that were refused."),
        "failed_moves": integer("Messages about moves that could not be processed, and are tried again."),
        "forwarded_to": array(integer(), "The offsets up to which records are forwarded, by partition."),
        "moves": {
            "type": "object",
            "additionalProperties": {"type": "integer"},
            "description": "Number of subscriptions that are moving or have moved, by state.",
        },
    }
)
_MOVE = record(
    {
        "state": string(
            "`offered`, `cancelled`, `ending`, `ended`, `moved` where it leaves; `arriving`, `accepted`,"
            " `counting`, `ready` where it arrives; `refused`: it has stayed."
        ),
        "broker": string("The other broker."),
        "reason": string("Why it has stayed the last time."),
    },
    ["state"],
)
_MOVES: Json = path(
    "/v1/spaces/{space}/subscriptions/{id}/move",
    get=operation(
        "get_move",
        "How far the move of a subscription to another broker is",
        answers=answer("The state.", _MOVE, {"state": "ended", "broker": "oslo"}),
        problems="404",
    ),
    post=operation(
        "move_subscription",
        "Move a subscription to another broker",
        "The request begins the move, which goes on by itself. This broker delivers the events up to one"
        " place of each origin, and once they are settled answers all requests for the subscription with"
        " 410, whose document has the members `broker`, `url` and `token`; the other broker delivers the"
        " events after it.",
        takes=body(described(MoveBody), {"to": "oslo"}),
        answers={
            "202": answer("The move has begun.", _MOVE, {"state": "offered", "broker": "oslo"}),
            "409": problem("It cannot move, or is moving already: `moving`, `cannot-move`."),
        },
        problems="400 404",
    ),
)

_LOADS = record(
    {
        "name": string("The broker."),
        "state": string(
            "`OK`, `BUSY`, `N/A` (overloaded), `STABILIZING`; `unknown` when not heard of lately."
        ),
        "is_automatic": boolean("Whether it balances by itself with others that do."),
        "input": number("Share of the events that its pipeline can match: rate x matching time."),
        "output": number("Share of its output bandwidth that its subscriptions' matches take."),
        "delay_ms": number("Mean matching time of an event."),
        "cpu": number("Share of the processors that its machine uses."),
        "memory": number("Share of the memory that its machine uses."),
        "queue_s": number("Age of the oldest event that is not matched yet."),
        "subscriptions": integer("Number of its subscriptions."),
        "events_per_s": number("Events that it matches."),
        "deliveries_per_s": number("Matches of its subscriptions."),
        "age_s": number("Seconds since it was heard of."),
        "counts": boolean(
            "Whether plans count with it: heard of lately, reachable, with room, and true to what it claims."
        ),
    }
)
_BALANCE_MOVE = record(
    {"space": string("Its space."), "id": string("The subscription."), "to": string("The broker.")},
    ["space", "id", "to"],
)
_ADVICE = record(
    {
        "broker": string("The name of this broker."),
        "automatic": {
            "type": "object",
            "description": "Whether this broker balances by itself (`is_automatic`), its `state`, and its"
            " `last` decision.",
        },
        "brokers": array(_LOADS, "The loads of all brokers that were heard of."),
        "target": {
            "type": "object",
            "description": "What each broker that counts is to have: the mean of `input`, `output` and"
            " `delay_ms`, weighted by capacity.",
        },
        "pinned": integer("Number of subscriptions that stay in any case."),
        "resting": integer("Number of those that stay for now: they have just come, or could not move."),
        "actions": array(
            {
                "type": "object",
                "description": "A broker and a metric, what moving changes, and for how many seconds the"
                " difference must still last before the broker acts by itself (`waits_s`).",
            },
            "The broker-action list, with the estimated loads of both brokers afterwards.",
        ),
        "moves": array(_BALANCE_MOVE, "The subscriptions that would move."),
    }
)
_BALANCE: Json = path(
    "/v1/balance",
    get=operation(
        "get_balance",
        "The loads of all brokers, and what this one would do about its own",
        parameters=[
            parameter("drain", "query", boolean("Whether all subscriptions are to leave."), "Default: false.")
        ],
        answers={
            "200": answer("The loads and the moves; nothing is done.", _ADVICE),
            "404": problem("This service is no broker."),
            "409": problem("No other broker can take the subscriptions of one that is to be drained."),
        },
        problems="400",
    ),
    post=operation(
        "balance",
        "Move the subscriptions that balance the load, or all of them",
        takes=body(described(BalanceBody), {"drain": True}),
        answers={
            "202": answer(
                "The moves have begun; they go on by themselves.",
                record(
                    {
                        "begun": array(_BALANCE_MOVE, "The subscriptions that move now."),
                        "refused": array(_BALANCE_MOVE, "Those that cannot, with a `detail`."),
                        "left": integer("Number of those that follow with another request."),
                        "moving": {"type": "object", "description": "Number of moves in each state."},
                    }
                ),
            ),
            "404": problem("This service is no broker."),
            "409": problem("No other broker can take the subscriptions."),
        },
        problems="400",
    ),
)

_DEPARTURE = record(
    {
        "broker": string("The name of this broker."),
        "state": string(
            "`staying`; `closing`: it takes nothing new; `withdrawn`: others are told that it has no filters;"
            " `left`: all others refuse it."
        ),
        "waits_for": {
            "type": "object",
            "additionalProperties": {"type": "integer"},
            "description": "What must be done here first, by kind; only numbers above 0.",
        },
        "sites": array(string(), "The brokers that have not heard or confirmed everything."),
        "untold": array(string(), "The neighbours that do not know yet that it has left."),
    }
)
_LEAVE: Json = path(
    "/v1/leave",
    get=operation(
        "get_leave",
        "Whether this broker is leaving, and what it waits for",
        answers={
            "200": answer("The state.", _DEPARTURE),
            "404": problem("This service is no broker."),
        },
    ),
    post=operation(
        "leave",
        "Leave the sites in good order",
        "From now on events, and new or replaced subscriptions, are refused with 503 (`leaving`). The broker"
        " leaves once all that it holds is with others, and its subscribers have all that came for them."
        " A repeated request changes nothing.",
        takes=body(described(LeaveBody), {"force": False}),
        answers={
            "202": answer("It is leaving; that goes on by itself.", _DEPARTURE),
            "404": problem("This service is no broker."),
            "409": problem("Others would be parted: `cut-vertex`, `cannot-leave`."),
        },
        problems="400",
    ),
    delete=operation(
        "stay",
        "Cancel leaving",
        "Subscriptions here count again at all other brokers, from one place on.",
        answers={
            "200": answer("It stays.", _DEPARTURE),
            "404": problem("This service is no broker."),
            "409": problem("It has left already: `has-left`."),
        },
    ),
)

_ADVERTISED = record(
    {
        "space": string("Name of the space."),
        "filter": {
            "type": ["string", "null"],
            "description": "The filter that all events match which are published here; null: all events.",
        },
        "dialect": string("The filter's dialect."),
        "is_pending": boolean(
            "Whether events that only this advertisement allows, not an earlier one, are still refused."
        ),
        "sites": {
            "type": "object",
            "additionalProperties": {"type": "boolean"},
            "description": "By other broker, whether it has sent the filters that this advertisement needs.",
        },
    }
)
_ADVERTISED_EXAMPLE: Json = {
    "space": "market",
    "filter": "type = 'trade'",
    "dialect": "sql",
    "is_pending": False,
    "sites": {"oslo": True},
}
_ADVERTISEMENT: Json = path(
    "/v1/spaces/{space}/advertisement",
    get=operation(
        "get_advertisement",
        "What is published in a space at this site",
        answers=answer("The advertisement.", _ADVERTISED, _ADVERTISED_EXAMPLE),
        problems="404",
    ),
    put=operation(
        "put_advertisement",
        "State what is published in a space at this site",
        "Other sites send only the filters that can match it. Events that do not match it are refused from"
        " now on (400, `not-advertised`); what only a wider one allows is refused (503,"
        " `advertisement-pending`) until all other sites have sent the filters that it needs.",
        takes=body(
            described(AdvertisementBody, filter={"description": "The filter; null for all events."}),
            {"filter": "type = 'trade'"},
        ),
        answers={
            "200": answer("The advertisement.", _ADVERTISED, _ADVERTISED_EXAMPLE),
            "503": problem("This broker is leaving."),
            "409": problem(
                "The space is encrypted (`cannot-advertise`); too many changes are not confirmed"
                " (`advertisement-pending`), or too many spaces advertise (`too-many-advertisements`)."
            ),
        },
        problems="400 404",
    ),
)

BROKERS: Json = {
    **_MOVES,
    **_ADVERTISEMENT,
    **_BALANCE,
    **_LEAVE,
    **path(
        "/v1/brokers",
        get=operation(
            "getBrokers",
            "The links of this broker, and what it has exchanged with others",
            answers={"200": answer("The state.", _STATE), "404": problem("This service is no broker.")},
        ),
    ),
    **path(
        "/v1/brokers/{broker}",
        delete=operation(
            "removeBroker",
            "Remove a broker that is gone for good",
            "Its filters are deleted, nothing is kept for it any more, and all brokers refuse it.",
            answers={
                "204": {"description": "The broker is removed; or it was before."},
                "404": problem("This service is no broker, or knows no other broker of this name."),
                "409": problem("The broker can be reached: stop it first."),
            },
        ),
    ),
    **path(
        "/v1/brokers/{broker}/entries",
        post=operation(
            "postEntries",
            "Take a batch of a neighbour's entries",
            "For other brokers only: MessagePack, as the module gateway.federation.wire says.",
            takes={"required": True, "content": content(string(), None, MEDIA_TYPE)},
            answers={
                "200": {
                    "description": "The entries that are stored are acknowledged.",
                    "content": content(string(), None, MEDIA_TYPE),
                },
                "404": problem("This service is no broker, or the sender is no neighbour."),
                "409": problem("The sender's name, routing or place in the sequence does not fit."),
                "429": problem("Too much of others waits here: see Retry-After."),
            },
            problems="400",
        ),
    ),
}
