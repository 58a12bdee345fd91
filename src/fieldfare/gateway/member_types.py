"""Types of members that several requests and responses have, as the API's description shows them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from fieldfare.model import DEADLINE_MAX_S

PositionText = Annotated[
    str,
    Meta(
        description="Position of an event: partition-offset-index.",
        extra_json_schema={"pattern": r"^\d+-\d+-\d+$"},
    ),
]
"""A position; requests with others are refused with a problem that says more than a pattern."""

CursorText = Annotated[
    str,
    Meta(
        description="One position for each partition of the log, separated by commas.",
        extra_json_schema={"pattern": r"^\d+-\d+-\d+(,\d+-\d+-\d+)*$"},
    ),
]

DeadlineSeconds = Annotated[float, Meta(gt=0, le=DEADLINE_MAX_S)]

_EVENT = {"$ref": "#/components/schemas/Event"}
EventJson = Annotated[Any, Meta(extra_json_schema=_EVENT)]
EventOrNull = Annotated[Any, Meta(extra_json_schema={"oneOf": [{"type": "null"}, _EVENT]})]

NextPage = Annotated[str | None, "Value of `after` for the next page; null if this is the last page."]
