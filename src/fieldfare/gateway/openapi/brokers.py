"""The part of the OpenAPI description about links to other brokers."""

from __future__ import annotations

from fieldfare.gateway.federation.documents import (
    AdvertisementDocument,
    AdviceDocument,
    BalancingDocument,
    BrokersDocument,
    DepartureDocument,
    SubscriptionMoveDocument,
)
from fieldfare.gateway.federation.wire import MEDIA_TYPE
from fieldfare.gateway.openapi.from_types import described
from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    body,
    boolean,
    content,
    operation,
    parameter,
    path,
    problem,
    string,
)
from fieldfare.gateway.routes.brokers import AdvertisementBody, BalanceBody, LeaveBody, MoveBody

_MOVES: Json = path(
    "/v1/spaces/{space}/subscriptions/{id}/move",
    get=operation(
        "get_move",
        "How far the move of a subscription to another broker is",
        answers=answer("The state.", SubscriptionMoveDocument, {"state": "ended", "broker": "oslo"}),
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
            "202": answer(
                "The move has begun.", SubscriptionMoveDocument, {"state": "offered", "broker": "oslo"}
            ),
            "409": problem("It cannot move, or is moving already: `moving`, `cannot-move`."),
        },
        problems="400 404",
    ),
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
            "200": answer("The loads and the moves; nothing is done.", AdviceDocument),
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
                BalancingDocument,
            ),
            "404": problem("This service is no broker."),
            "409": problem("No other broker can take the subscriptions."),
        },
        problems="400",
    ),
)

_LEAVE: Json = path(
    "/v1/leave",
    get=operation(
        "get_leave",
        "Whether this broker is leaving, and what it waits for",
        answers={
            "200": answer("The state.", DepartureDocument),
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
            "202": answer("It is leaving; that goes on by itself.", DepartureDocument),
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
            "200": answer("It stays.", DepartureDocument),
            "404": problem("This service is no broker."),
            "409": problem("It has left already: `has-left`."),
        },
    ),
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
        answers=answer("The advertisement.", AdvertisementDocument, _ADVERTISED_EXAMPLE),
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
            "200": answer("The advertisement.", AdvertisementDocument, _ADVERTISED_EXAMPLE),
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
            answers={
                "200": answer("The state.", BrokersDocument),
                "404": problem("This service is no broker."),
            },
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
