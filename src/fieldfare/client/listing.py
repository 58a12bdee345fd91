"""The call that lists subscriptions: by id or backlog, all or those with an owner, labels or a text."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from fieldfare.client.protocol import Answer, ApiCall, make_subscription, read_object, subscriptions_path
from fieldfare.client.records import SubscriptionInfo


def list_subscriptions(
    space: str,
    after: str | None,
    limit: int,
    sort: str = "id",
    search: str | None = None,
    owner: str | None = None,
    labels: Mapping[str, str | None] | None = None,
) -> ApiCall[tuple[list[SubscriptionInfo], str | None]]:
    """Read a page of subscriptions by id or backlog, and the ``after`` of the next page (None: no more)."""
    asked = {"limit": str(limit), "sort": sort, "search": search, "owner": owner, "after": after}
    query = [(name, value) for name, value in asked.items() if value is not None]
    for key, wanted in (labels or {}).items():
        query.append(("label", key if wanted is None else f"{key}={wanted}"))
    return ApiCall("GET", f"{subscriptions_path(space)}?{urlencode(query)}", _read_page)


def _read_page(answer: Answer) -> tuple[list[SubscriptionInfo], str | None]:
    value = read_object(answer)
    return [make_subscription(item) for item in value["subscriptions"]], value.get("next")
