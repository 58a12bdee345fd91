"""The part of the OpenAPI description about events that are published for a later time."""

from __future__ import annotations

from fieldfare.gateway.openapi.words import (
    answer,
    integer,
    operation,
    parameter,
    path,
    problem,
    string,
)
from fieldfare.gateway.routes.delayed import DelayedPageDocument, KeptDocument

LATER = [
    parameter(
        "Fieldfare-Deliver-After",
        "header",
        string(pattern=r"^[0-9]{1,12}(\.[0-9]{1,12})?$"),
        "Delay in seconds until the events are appended to the log and matched; default: none. Cannot be"
        " combined with Fieldfare-Deliver-At.",
    ),
    parameter(
        "Fieldfare-Deliver-At",
        "header",
        string(format="date-time"),
        "Time (RFC 3339, with a time zone) at which the events are appended to the log and matched; default:"
        " at once. Cannot be combined with Fieldfare-Deliver-After.",
    ),
]
"""Parameters of publishing that set a later time."""

KEPT = answer(
    "The events are stored and are appended to the log at their time. Refused events are listed.",
    KeptDocument,
    {
        "id": "12",
        "due": "2030-01-01T12:00:00.000Z",
        "due_ms": 1893499200000,
        "count": 1,
        "duplicate": False,
    },
)

DELAYED = path(
    "/v1/spaces/{space}/delayed",
    get=operation(
        "list_delayed",
        "List the delayed events, soonest first",
        parameters=[
            parameter("after", "query", string(), "`next` of the previous page; default: the first page."),
            parameter(
                "limit",
                "query",
                integer(minimum=1, maximum=1000, default=100),
                "Maximum entries of the page.",
            ),
        ],
        answers=answer(
            "A page of the delayed events.",
            DelayedPageDocument,
        ),
        problems="400 404",
    ),
) | path(
    "/v1/spaces/{space}/delayed/{delayed}",
    delete=operation(
        "cancel_delayed",
        "Cancel delayed events",
        answers={
            "204": answer("The events were removed and will not be published."),
            "404": problem("There are no delayed events with this id, or they were published already."),
        },
    ),
)
