"""Of the OpenAPI description: events that are published for later."""

from __future__ import annotations

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
    ref,
    string,
)

_DUE: Json = {
    "id": string("By what it is cancelled."),
    "due": string("When its events are appended to the log and matched.", format="date-time"),
    "due_ms": integer("The same in milliseconds since 1970."),
    "count": integer("Events."),
}
_REFUSED: Json = {
    "accepted": array(record({"index": integer()})),
    "refused": array(ref("Refused")),
}
LATER = [
    parameter(
        "Fieldfare-Deliver-After",
        "header",
        string(pattern=r"^[0-9]{1,12}(\.[0-9]{1,12})?$"),
        "Seconds after which the events are appended to the log and matched; or Fieldfare-Deliver-At.",
    ),
    parameter(
        "Fieldfare-Deliver-At",
        "header",
        string(format="date-time"),
        "The moment instead, as RFC 3339 writes it.",
    ),
]
"""Parameters of publishing that say when."""

KEPT = answer(
    "The events wait for their time; of those that were refused each is named.",
    record({**_DUE, "duplicate": {"type": "boolean"}, **_REFUSED}, [*_DUE, "duplicate"]),
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
        "List what waits for its time, soonest first",
        parameters=[
            parameter("after", "query", string(), "Only what comes after this one: next."),
            parameter("limit", "query", integer(minimum=1, maximum=1000, default=100), "At most."),
        ],
        answers=answer(
            "A page; next is there when there are more.",
            record(
                {
                    "delayed": array(record({**_DUE, "bytes": integer()})),
                    "next": {"type": ["string", "null"]},
                    "total": integer("How many wait."),
                    "total_bytes": integer("How many bytes their events take."),
                }
            ),
        ),
        problems="400 404",
    ),
) | path(
    "/v1/spaces/{space}/delayed/{delayed}",
    delete=operation(
        "cancel_delayed",
        "Have events not come that wait for their time",
        answers={
            "204": answer("They do not come."),
            "404": problem("There are no delayed events with this id, or they were published already."),
        },
    ),
)
