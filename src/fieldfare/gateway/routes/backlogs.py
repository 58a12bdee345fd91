"""Routes for the backlogs of many subscriptions: lists by backlog, and sums by space."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.delivery.backlogs import Backlogs, Page
from fieldfare.gateway.member_types import NextPage
from fieldfare.gateway.openapi.from_types import described
from fieldfare.gateway.openapi.words import Json, answer, array, operation, page_limit, record, string
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.requests import json_response, query_int, query_text
from fieldfare.gateway.subscription_store import SubscriptionDocument, subscription_document
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.model import SpaceBacklog, SubscriptionBacklog, space_name
from fieldfare.storage.registry import Criteria

PAGE_MAX = 1_000
"""Maximum subscriptions of a page by backlog; a larger `limit` is refused."""

WORST_MAX = 100
"""Maximum spaces, and subscriptions, in the overview of the service; a larger `limit` is refused."""

_AFTER = re.compile(r"([0-9]{1,18})-([0-9]{1,10})")


class PageDocument(Struct):
    """A page of a list of subscriptions."""

    subscriptions: Annotated[list[SubscriptionDocument], "The subscriptions of the page."]
    next: NextPage


_STARTING = "The gateway has just started and reads the cursors. Retry after the seconds in Retry-After."
_SUMS: Json = {
    name: {key: value for key, value in each.items() if key != "default"}
    for name, each in described(SpaceBacklog)["properties"].items()
    if name != "space"
}
_GREATEST = record(
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
)


@dataclass(frozen=True, slots=True)
class BacklogRoutes:
    """``/v1/backlogs``, and the lists and sums below ``/v1/spaces/{space}``."""

    backlogs: Backlogs
    subscriptions: Subscriptions

    async def list_by_backlog(self, request: Request, criteria: Criteria) -> Response:
        """Return a page of the subscriptions of a space with some labels, the greatest backlog first."""
        limit = query_int(request, "limit", 100, 1, PAGE_MAX)
        after = _after(request)
        key = self.subscriptions.check_space(request.path_params["space"])
        page = await self.backlogs.page(key, after, limit, criteria)
        return await asyncio.to_thread(_response, page)

    @operation({"200": answer("The sums.", SpaceBacklog), "503": _STARTING}, "404")
    async def get_space_backlog(self, request: Request) -> Response:
        """Read the sums of all backlogs of a space.

        They are at most a second old.
        """
        key = self.subscriptions.check_space(request.path_params["space"])
        return json_response(await self.backlogs.sums_of(key))

    @operation(
        {"200": answer("The greatest backlogs.", _GREATEST), "503": _STARTING},
        "400",
        parameters=[page_limit(WORST_MAX, "Maximum spaces, and maximum subscriptions.", default=10)],
    )
    async def get_backlogs(self, request: Request) -> Response:
        """Read the greatest backlogs of the service.

        The spaces and the subscriptions with the most pending messages, and the sums of all spaces.
        """
        limit = query_int(request, "limit", 10, 1, WORST_MAX)
        sums = list((await self.backlogs.sums()).values())
        page = await self.backlogs.page(None, None, limit)
        return json_response(
            {
                "total": _total(sums),
                "spaces": await self.backlogs.worst_spaces(limit),
                "subscriptions": [
                    {"space": space_name(each.space), "id": each.id, **asdict(backlog)}
                    for each, backlog in page.items
                ],
            }
        )


def _total(sums: Sequence[SpaceBacklog]) -> dict[str, Any]:
    counted = ("subscriptions", "behind", "pending", "in_flight", "dead_letters")
    found: dict[str, Any] = {name: sum(getattr(each, name) for each in sums) for name in counted}
    ages = [each.oldest_s for each in sums if each.oldest_s is not None]
    return found | {
        "is_exact": all(each.is_exact for each in sums),
        "oldest_s": max(ages, default=None),
        "stored_event_bytes": sum(each.stored_event_bytes for each in sums),
        "stored_match_bytes": sum(each.stored_match_bytes for each in sums),
    }


def _response(page: Page) -> Response:
    items = [replace(subscription_document(each), backlog=backlog) for each, backlog in page.items]
    after = None if page.after is None else "-".join(map(str, page.after))
    return json_response(PageDocument(items, after))


def _after(request: Request) -> tuple[int, int] | None:
    text = query_text(request, "after")
    if text is None:
        return None
    found = _AFTER.fullmatch(text)
    if found is None or int(found[2]) >= 1 << 32:
        detail = "With sort=backlog, after must be the value of next in the page before."
        raise HttpProblem(400, "bad-parameter", detail, parameter="after")
    return int(found[1]), int(found[2])
