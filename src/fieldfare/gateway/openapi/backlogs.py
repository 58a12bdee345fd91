"""The part of the OpenAPI description about the backlogs of many subscriptions."""

from __future__ import annotations

from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    array,
    boolean,
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
)
from fieldfare.gateway.routes.backlogs import WORST_MAX

_COUNTS: Json = {
    "pending": integer("Number of messages that matched and are not acknowledged.", minimum=0),
    "is_exact": boolean(
        "Whether `pending` was counted; otherwise it is an estimate, after a seek or soon after a start."
    ),
    "in_flight": integer("Number of messages that readers have not acknowledged.", minimum=0),
    "dead_letters": integer("Number of dead letters; as a sum, some may be settled already.", minimum=0),
    "oldest_s": or_null(
        number("Seconds since the oldest pending event was published, or one soon before it; else null.")
    ),
}
_MEMBERS: Json = {
    "subscriptions": integer("Number of subscriptions.", minimum=0),
    "behind": integer("Number of subscriptions with pending messages.", minimum=0),
    **_COUNTS,
    "stored_event_bytes": integer("Bytes of the events in the log.", minimum=0),
    "stored_match_bytes": integer("Bytes of the matches on disk.", minimum=0),
}

BACKLOG_SCHEMAS: Json = {
    "SubscriptionBacklog": record(
        {**_COUNTS, "readers": integer("Number of open streams, and of pulls under way.", minimum=0)},
        description="Backlog of one subscription; only in lists that are sorted by backlog.",
    ),
    "SpaceBacklog": record(
        {"space": string("Name of the space."), **_MEMBERS},
        description="Backlogs of all subscriptions of a space together.",
    ),
}

STARTING = problem(
    "The gateway has just started and reads the cursors. Retry after the seconds in Retry-After."
)

BACKLOGS: Json = {
    **path(
        "/v1/spaces/{space}/backlog",
        get=operation(
            "get_space_backlog",
            "Read the sums of all backlogs of a space",
            "They are at most a second old.",
            answers={"200": answer("The sums.", ref("SpaceBacklog")), "503": STARTING},
            problems="404",
        ),
    ),
    **path(
        "/v1/backlogs",
        get=operation(
            "get_backlogs",
            "Read the greatest backlogs of the service",
            "The spaces and the subscriptions with the most pending messages, and the sums of all spaces.",
            parameters=[
                parameter(
                    "limit",
                    "query",
                    integer(minimum=1, maximum=WORST_MAX, default=10),
                    "Maximum spaces, and maximum subscriptions.",
                )
            ],
            answers={
                "200": answer(
                    "The greatest backlogs.",
                    record(
                        {
                            "total": record(_MEMBERS, description="The sums of all spaces."),
                            "spaces": array(ref("SpaceBacklog"), "The spaces, most pending messages first."),
                            "subscriptions": array(
                                {
                                    "allOf": [ref("SubscriptionBacklog")],
                                    "properties": {
                                        "space": string("Name of the space."),
                                        "id": string("Id of the subscription."),
                                    },
                                    "required": ["space", "id"],
                                },
                                "The subscriptions with pending messages, most first.",
                            ),
                        }
                    ),
                ),
                "503": STARTING,
            },
            problems="400",
        ),
    ),
}
