"""``/v1/spaces/{space}/delayed``: events published for later delivery."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.member_types import NextPage
from fieldfare.gateway.openapi.words import answer, operation, page_limit, parameter, string
from fieldfare.gateway.problems import HttpProblem, RefusedDocument
from fieldfare.gateway.publishing.delayed import Delayed
from fieldfare.gateway.publishing.events import DecodedEvents
from fieldfare.gateway.publishing.request_head import AFTER, AT, SECONDS
from fieldfare.gateway.routes.requests import json_response, query_int, query_text
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.storage.delayed import StoredDelayed, Waiting

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLACE = re.compile(r"([0-9]{1,16})-([0-9]{1,18})")


class AcceptedDocument(Struct):
    index: Annotated[int, "Index of the event in the request, from 0."]


class DueDocument(Struct):
    id: Annotated[str, "Id of the delayed events, for cancelling them."]
    due: Annotated[
        str,
        Meta(extra_json_schema={"format": "date-time"}),
        "Time at which the events are appended to the log and matched.",
    ]
    due_ms: Annotated[int, "`due` in milliseconds since 1970."]
    count: Annotated[int, "Number of events."]


class KeptDocument(DueDocument, omit_defaults=True):
    """Events that are stored until their time."""

    duplicate: Annotated[bool, "Whether this repeats an earlier request, whose events are not stored again."]
    accepted: Annotated[
        list[AcceptedDocument] | None, "The accepted events; missing if all were accepted."
    ] = None
    refused: Annotated[list[RefusedDocument] | None, "The refused events; missing if none was."] = None


class DelayedDocument(DueDocument):
    """Events of one publish request that wait for their time."""

    bytes: Annotated[int, "Bytes that the events take."]


class DelayedPageDocument(Struct):
    delayed: Annotated[
        list[DelayedDocument], "The delayed events; those of one publish request are one entry."
    ]
    next: NextPage
    total: Annotated[int, "Number of entries of all pages."]
    total_bytes: Annotated[int, "Bytes that the events of all pages take."]


DUE_PARAMETERS = [
    parameter(
        AFTER,
        string(pattern=rf"^{SECONDS.pattern}$"),
        "Delay in seconds until the events are appended to the log and matched; default: none. Cannot be"
        " combined with Fieldfare-Deliver-At.",
        "header",
    ),
    parameter(
        AT,
        string(format="date-time"),
        "Time (RFC 3339, with a time zone) at which the events are appended to the log and matched; default:"
        " at once. Cannot be combined with Fieldfare-Deliver-After.",
        "header",
    ),
]
"""Parameters of publishing that set a later time."""


@dataclass(frozen=True, slots=True)
class DelayedRoutes:
    """Routes for a space's delayed records."""

    subscriptions: Subscriptions
    delayed: Delayed

    @operation(
        answer("A page of the delayed events.", DelayedPageDocument),
        "400 404",
        parameters=[
            parameter("after", string(), "`next` of the previous page; default: the first page."),
            page_limit(1000, "Maximum entries of the page."),
        ],
    )
    async def list_delayed(self, request: Request) -> Response:
        """List the delayed events, soonest first."""
        key = self.subscriptions.check_space(request.path_params["space"])
        limit = query_int(request, "limit", 100, 1, 1_000)
        found = await self.delayed.waiting(key, _after(request), limit + 1)
        page = found[:limit]
        records, size_bytes = self.delayed.held.get(key, (0, 0))
        return json_response(
            DelayedPageDocument(
                delayed=list(map(_document, page)),
                next=f"{page[-1].due_ms}-{page[-1].id}" if len(found) > limit else None,
                total=records,
                total_bytes=size_bytes,
            )
        )

    @operation(
        {
            "204": "The events were removed and will not be published.",
            "404": "There are no delayed events with this id, or they were published already.",
        }
    )
    async def cancel_delayed(self, request: Request) -> Response:
        """Cancel delayed events."""
        space, id = request.path_params["space"], request.path_params["delayed"]
        key = self.subscriptions.check_space(space)
        is_number = re.fullmatch(r"[0-9]{1,18}", id) is not None
        if not is_number or await self.delayed.cancel(key, int(id)) is None:
            detail = (
                f"There are no delayed events with the id {id[:40]!r} in the space {space!r}, or they were"
                " published already."
            )
            raise HttpProblem(404, "unknown-delayed", detail)
        return Response(status_code=204)


def kept_document(kept: StoredDelayed, decoded: DecodedEvents) -> KeptDocument:
    """Return the response's document for a record that was accepted for later delivery."""
    due = str(kept.id), _text(kept.due_ms), kept.due_ms, kept.count, kept.duplicate
    if not decoded.refused:
        return KeptDocument(*due)
    accepted = list(map(AcceptedDocument, decoded.accepted))
    return KeptDocument(*due, accepted, [each.document() for each in decoded.refused])


def _document(waiting: Waiting) -> DelayedDocument:
    due = _text(waiting.due_ms)
    return DelayedDocument(str(waiting.id), due, waiting.due_ms, waiting.count, waiting.size_bytes)


def _text(due_ms: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=due_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _after(request: Request) -> tuple[int, int]:
    text = query_text(request, "after")
    if text is None:
        return -1, 0
    found = _PLACE.fullmatch(text)
    if found is None:
        raise HttpProblem(
            400, "bad-parameter", "after must be the value of next from the previous page.", parameter="after"
        )
    return int(found[1]), int(found[2])
