"""The part of the OpenAPI description about the backlogs of many subscriptions."""

from __future__ import annotations

from fieldfare.gateway.openapi.from_types import described
from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    array,
    integer,
    operation,
    parameter,
    path,
    problem,
    record,
    string,
)
from fieldfare.gateway.routes.backlogs import WORST_MAX
from fieldfare.model import SpaceBacklog, SubscriptionBacklog

_SUMS: Json = {
    name: {key: value for key, value in each.items() if key != "default"}
    for name, each in described(SpaceBacklog)["properties"].items()
    if name != "space"
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
            answers={"200": answer("The sums.", SpaceBacklog), "503": STARTING},
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
                            "total": record(_SUMS, description="The sums of all spaces."),
                            "spaces": array(SpaceBacklog, "The spaces, most pending messages first."),
                            "subscriptions": array(
                                {
                                    "allOf": [SubscriptionBacklog],
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
