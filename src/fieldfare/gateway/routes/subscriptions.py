"""Routes for spaces and subscriptions."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.bodies import Bodies, parse_json
from fieldfare.gateway.admission.callers import caller_of
from fieldfare.gateway.delivery.replays import Replays
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.federation.service import Federation
from fieldfare.gateway.filter_warnings import FilterWarnings, NamedWarningDocument
from fieldfare.gateway.maintenance.unused import Unused
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.openapi.from_types import described
from fieldfare.gateway.openapi.schemas import LABELS, OWNER
from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    array,
    boolean,
    json_body,
    number,
    operation,
    page_limit,
    parameter,
    ref,
    string,
    taken,
)
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.encrypted import Dimensions, SpaceDocument, space_document
from fieldfare.gateway.push.pushes import Pushes
from fieldfare.gateway.routes.backlogs import PAGE_MAX, BacklogRoutes, PageDocument
from fieldfare.gateway.routes.criteria import SEARCH_MAX_CHARS, WANTED_MAX, query_criteria
from fieldfare.gateway.routes.requests import json_response, query_int, query_seconds, query_text, unless_gone
from fieldfare.gateway.space_removal import SpaceRemoval
from fieldfare.gateway.subscription_store import (
    FOUND_MAX,
    SEARCHED_MAX,
    ChangesBody,
    Outcome,
    PutRequest,
    SubscriptionBody,
    SubscriptionDocument,
    subscription_document,
)
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.model import OWNER_MAX, Subscription
from fieldfare.storage.registry import SpaceEncryption

SITES_WAIT_MAX_S = 60.0

CONFIGURED_BATCH_SIZE = 500
"""Maximum subscriptions of one request that are configured before other tasks run."""


class EncryptionBody(msgspec.Struct, forbid_unknown_fields=True):
    """Encryption of a new space, which takes encrypted events and filters only.

    See docs/encrypted-spaces.md.
    """

    library: Annotated[Literal["aspe"], "Name of the library of encrypted filters."]
    dimensions: Dimensions


class SpaceBody(msgspec.Struct, forbid_unknown_fields=True):
    """A new space."""

    name: Annotated[
        str,
        "Name of the space: 1 to 128 of the letters a-z and A-Z, digits and _ . : @ ~ -, the first a"
        " letter, digit or _.",
    ]
    encryption: Annotated[EncryptionBody | None, "Encryption of the space; null: it is not encrypted."] = None


class SpacesDocument(msgspec.Struct):
    spaces: Annotated[list[SpaceDocument], "The spaces."]


class SubscriptionsBody(msgspec.Struct, forbid_unknown_fields=True):
    """One subscription, or a list of any items, each of which is validated separately.

    ``replace`` concerns a list: whether existing subscriptions that differ are replaced.
    """

    filter: str | dict[str, Any] | list[Any] | None = None
    dialect: str = "sql"
    id: str | None = None
    delivery: dict[str, Any] | None = None
    start: str | None = None
    owner: str | msgspec.UnsetType | None = msgspec.UNSET
    labels: dict[str, Any] | msgspec.UnsetType | None = msgspec.UNSET
    subscriptions: list[Any] | None = None
    replace: bool | msgspec.UnsetType = msgspec.UNSET


class BulkAnswerDocument(msgspec.Struct, omit_defaults=True):
    """The result of a request with several subscriptions."""

    created: Annotated[int, "Number of subscriptions that were created."]
    replaced: Annotated[int, "Number of subscriptions that were replaced."]
    unchanged: Annotated[int, "Number of subscriptions that existed with the same filter and settings."]
    refused: Annotated[
        list[Any],
        msgspec.Meta(extra_json_schema={"items": {"$ref": "#/components/schemas/Refused"}}),
        "The subscriptions that were refused.",
    ]
    warnings: Annotated[
        list[NamedWarningDocument] | None,
        "What is probably not intended in the first filters of the request; missing if nothing.",
    ] = None


_EXAMPLE: Json = {
    "id": "cheap-yahoo",
    "space": "default",
    "filter": "data.symbol = 'YHOO' AND data.price < 18.5",
    "dialect": "sql",
    "revision": 1,
    "valid_from": "0-0-0",
}
_BULK = taken(
    {
        "subscriptions": array(
            ref("Filter"), "The subscriptions; each needs an id to be replaced later.", maxItems=10000
        ),
        "replace": boolean(
            "Whether existing subscriptions are replaced (default). Otherwise one that exists with another"
            " filter or other settings is refused."
        ),
    },
    ["subscriptions"],
)
_LIST_PARAMETERS = [
    parameter(
        "after",
        string(),
        "Return only ids after this one, or what follows the page with this `next`; default: from the first.",
    ),
    parameter(
        "sort",
        string(enum=["id", "backlog"], default="id"),
        "Order. By backlog the greatest comes first, each subscription has a `backlog`, and a page has at"
        f" most {PAGE_MAX:,}.",
    ),
    parameter(
        "search",
        string(maxLength=SEARCH_MAX_CHARS),
        "Return only subscriptions with this text in their id, filter, owner, or in `key=value` of a label,"
        f" in any case of A to Z. Not with `sort=backlog`. A page has at most {FOUND_MAX}, and looks at"
        f" {SEARCHED_MAX:,} of them: it may be short, or empty, and have a `next`.",
    ),
    parameter(
        "owner",
        string(minLength=1, maxLength=OWNER_MAX),
        f"Return only subscriptions with this owner. A page has at most {FOUND_MAX}, or, sorted by backlog,"
        f" {PAGE_MAX:,}, and may be short, or empty, and have a `next`.",
    ),
    parameter(
        "label",
        array(string(), maxItems=WANTED_MAX),
        "Return only subscriptions with this label: `key=value`, or `key` for any value. Repeated: only those"
        " with all of these labels. Pages are as with `owner`.",
    ),
    page_limit(10000, "Maximum subscriptions of the page."),
]
_STORED = answer("The subscription was created.", SubscriptionDocument, _EXAMPLE)
_NO_REPLAY = "The subscription has a `start`, and the space's stored matches have reached their quota."


@dataclass(frozen=True, slots=True)
class SubscriptionRoutes:
    """``/v1/spaces`` and below: spaces, and the subscriptions of each."""

    subscriptions: Subscriptions
    deliveries: DeliveryService
    replays: Replays
    pushes: Pushes
    unused: Unused
    metrics: Metrics
    bodies: Bodies
    space_removal: SpaceRemoval
    warnings: FilterWarnings
    backlogs: BacklogRoutes
    bulk_max_subscriptions: int
    federation: Federation | None

    @operation(answer("All of these spaces.", SpacesDocument, {"spaces": [{"name": "default"}]}))
    async def list_spaces(self, request: Request) -> Response:
        """List the spaces in which the caller has rights."""
        known = filter(caller_of(request).may_know, self.subscriptions.spaces())
        return json_response(SpacesDocument([self._space_document(name) for name in known]))

    @operation(
        {
            "201": answer("The space was created.", SpaceDocument, {"name": "market"}),
            "409": "A space with this name exists.",
        },
        "400 429",
        takes=json_body(SpaceBody, {"name": "market"}),
    )
    async def create_space(self, request: Request) -> Response:
        """Create a space."""
        body = await self.bodies.read_json(request, SpaceBody)
        said = body.encryption
        encryption = None if said is None else SpaceEncryption(said.library, said.dimensions)
        await self.subscriptions.create_space(body.name, encryption)
        document = space_document(body.name, encryption)
        return json_response(document, 201, {"Location": f"/v1/spaces/{body.name}"})

    def _space_document(self, name: str) -> SpaceDocument:
        return space_document(name, self.subscriptions.encryption(self.subscriptions.check_space(name)))

    @operation({"204": "The space was deleted.", "409": "The space `default` cannot be deleted."}, "404 429")
    async def delete_space(self, request: Request) -> Response:
        """Delete a space.

        Removes the space with its subscriptions, their cursors and dead letters, its keys and its quotas, and
        closes its streams. A space that is created with this name later starts empty. The space `default`
        cannot be deleted.
        """
        await self.space_removal.delete(request.path_params["space"])
        return Response(status_code=204)

    @operation(
        {
            "200": answer(
                "The filter was replaced, or was the same already.", SubscriptionDocument, _EXAMPLE
            ),
            "201": _STORED,
            "409": "The subscription exists, and only new ones can have a `start`; or the space has reached"
            " its quota of subscriptions or filter cost.",
            "507": _NO_REPLAY,
        },
        "400 404 429",
        takes=json_body(ref("Filter"), {"filter": _EXAMPLE["filter"], "dialect": "sql"}),
    )
    async def put_subscription(self, request: Request) -> Response:
        """Create a subscription, or replace its filter.

        Events that are published after the response are matched against the new filter only. The cursor
        stays, and so do delivery settings that the request does not name.
        """
        space, id = request.path_params["space"], request.path_params["id"]
        await self.subscriptions.check_change(space)
        text = await self.bodies.read_json_text(request)

        def read() -> PutRequest:
            body = parse_json(text, SubscriptionBody)
            if body.id not in (None, id):
                detail = f"The body's id is {body.id!r}, the path's {id!r}."
                raise HttpProblem(400, "bad-request", detail, pointer="/id")
            body.id = id
            return PutRequest([body], replace=True)

        unless = partial(unless_gone, request)
        put = await self.subscriptions.put(space, len(text), read, unless)
        ((subscription, outcome),) = put.stored
        self.deliveries.configure(subscription)
        return json_response(await self._warned(subscription), 201 if outcome is Outcome.CREATED else 200)

    @operation(
        answer("The subscription after the change.", SubscriptionDocument, _EXAMPLE),
        "400 404 429",
        takes=json_body(
            described(ChangesBody, delivery=ref("Delivery"), owner=OWNER, labels=LABELS),
            {"delivery": {"max_attempts": 5}, "labels": {"env": "prod"}},
        ),
    )
    async def patch_subscription(self, request: Request) -> Response:
        """Change a subscription's delivery settings, owner or labels.

        Members that are not named do not change, nor do the filter and its revision.
        """
        space, id = request.path_params["space"], request.path_params["id"]
        await self.subscriptions.check_change(space)
        await self.subscriptions.get(space, id)
        body = await self.bodies.read_json(request, ChangesBody)
        if body == ChangesBody():
            detail = "The body changes nothing: it needs delivery, owner or labels."
            raise HttpProblem(400, "bad-request", detail)
        configured = await self.subscriptions.configure(space, id, body)
        self.deliveries.configure(configured)
        return json_response(subscription_document(configured))

    @operation(
        {
            "200": answer(
                "For many: the number of subscriptions by result. For one: it exists with the same filter and"
                " settings.",
                {"oneOf": [BulkAnswerDocument, SubscriptionDocument]},
                {"created": 1, "replaced": 0, "unchanged": 0, "refused": []},
            ),
            "201": _STORED,
            "409": "A subscription with this id has another filter or other settings; or the space has"
            " reached its quota of subscriptions or filter cost.",
            "507": _NO_REPLAY,
        },
        "400 404 429",
        takes=json_body(
            {"oneOf": [ref("Filter"), _BULK]},
            {"subscriptions": [{"id": "cheap-yahoo", "filter": _EXAMPLE["filter"]}]},
        ),
    )
    async def create_subscriptions(self, request: Request) -> Response:
        """Create one subscription, or create and replace many.

        In a request with many, each subscription is checked on its own: the valid ones are stored and replace
        those with the same id, the others are listed in `refused`.
        """
        space = request.path_params["space"]
        await self.subscriptions.check_change(space)
        text = await self.bodies.read_json_text(request)
        unless = partial(unless_gone, request)
        put = await self.subscriptions.put(space, len(text), lambda: self._read(text), unless)
        if put.is_bulk:
            for at, (subscription, _) in enumerate(put.stored):
                if at % CONFIGURED_BATCH_SIZE == CONFIGURED_BATCH_SIZE - 1:
                    await asyncio.sleep(0)
                if self.subscriptions.is_newest(subscription):  # else a later request does it
                    self.deliveries.configure(subscription)
                    self.subscriptions.release(subscription)
            return await asyncio.to_thread(self._bulk_response, put)
        ((subscription, outcome),) = put.stored
        self.deliveries.configure(subscription)
        headers = {"Location": f"/v1/spaces/{space}/subscriptions/{subscription.id}"}
        document = await self._warned(subscription)
        return json_response(document, 201 if outcome is Outcome.CREATED else 200, headers)

    async def _warned(self, subscription: Subscription) -> SubscriptionDocument:
        """Return the document of a subscription that was just stored, with warnings about its filter."""
        warnings = self.warnings.at_once(subscription)
        if warnings is None:
            warnings = await asyncio.to_thread(self.warnings.of, subscription)
        document = subscription_document(subscription)
        document.warnings = warnings or None
        if self.federation is not None:
            document.sites = self.federation.counts_at(subscription.revision) or None
        return document

    def _bulk_response(self, put: PutRequest) -> Response:
        warnings = self.warnings.of_bulk([subscription for subscription, _ in put.stored])
        counts = Counter(outcome for _, outcome in put.stored)
        return json_response(
            BulkAnswerDocument(
                created=counts[Outcome.CREATED],
                replaced=counts[Outcome.REPLACED],
                unchanged=counts[Outcome.UNCHANGED],
                refused=[each for _, each in sorted(put.refused, key=itemgetter(0))],
                warnings=warnings or None,
            )
        )

    def _read(self, text: bytes) -> PutRequest:
        body = parse_json(text, SubscriptionsBody)
        if body.subscriptions is None:
            if body.filter is None:
                raise HttpProblem(400, "bad-request", "The member filter is missing.", pointer="/filter")
            if body.replace is not msgspec.UNSET:
                detail = "The member replace is for a list of subscriptions; PUT replaces one."
                raise HttpProblem(400, "bad-request", detail, pointer="/replace")
            one = SubscriptionBody(
                body.filter, body.dialect, body.id, body.delivery, body.start, body.owner, body.labels
            )
            return PutRequest([one], replace=False)
        if body != SubscriptionsBody(
            subscriptions=body.subscriptions, dialect=body.dialect, replace=body.replace
        ):
            detail = "Send one subscription, or a list of subscriptions, not both."
            raise HttpProblem(400, "bad-request", detail)
        limit, count = self.bulk_max_subscriptions, len(body.subscriptions)
        if count > limit:
            detail = f"The request has {count} subscriptions; the maximum in one request is {limit}."
            raise HttpProblem(413, "bulk-too-long", detail, max_subscriptions=limit)
        replace = body.replace is not False
        return PutRequest(list(map(_item, body.subscriptions)), replace, is_bulk=True)

    @operation(
        answer(
            "A page of the subscriptions. Sorted by backlog, it can be refused with 503 soon after a start.",
            PageDocument,
            {"subscriptions": [_EXAMPLE], "next": None},
        ),
        "400 404",
        parameters=_LIST_PARAMETERS,
    )
    async def list_subscriptions(self, request: Request) -> Response:
        """List subscriptions, sorted by id or by backlog."""
        sort = query_text(request, "sort") or "id"
        if sort not in ("id", "backlog"):
            raise HttpProblem(400, "bad-parameter", "sort must be id or backlog.", parameter="sort")
        criteria = query_criteria(request)
        if sort == "backlog":
            if criteria.text is not None:
                detail = "A search is in the order of ids: send search without sort=backlog."
                raise HttpProblem(400, "bad-parameter", detail, parameter="search")
            return await self.backlogs.list_by_backlog(request, criteria)
        limit = query_int(request, "limit", 100, 1, 10_000)
        after = request.query_params.get("after")
        key = self.subscriptions.check_space(request.path_params["space"])

        def read() -> Response:
            page, last = self.subscriptions.page(key, after, limit, criteria)
            return json_response(PageDocument(list(map(subscription_document, page)), last))

        return await asyncio.to_thread(read)

    @operation(
        answer("The subscription.", SubscriptionDocument, _EXAMPLE),
        "400 404",
        parameters=[
            parameter(
                "sites_wait_s",
                number(exclusiveMinimum=0, maximum=SITES_WAIT_MAX_S),
                "Maximum seconds to wait until the subscription counts at all sites.",
            )
        ],
    )
    async def get_subscription(self, request: Request) -> Response:
        """Read a subscription."""
        wait_s = query_seconds(request, "sites_wait_s", None, SITES_WAIT_MAX_S)
        found = await self.subscriptions.get(request.path_params["space"], request.path_params["id"])
        document = subscription_document(found)
        if self.federation is not None:
            waited = self.federation.wait_for_counting(found.revision, wait_s or 0.0)
            sites = await (waited if wait_s is None else unless_gone(request, waited))
            document.sites = sites or None
        document.given_up_events = self.metrics.given_up_by.get(found.number) or None
        unused_s = self.unused.unused_s(found.number)
        document.unused_s = None if unused_s is None else round(unused_s)
        if found.start is not None:
            document.past = await asyncio.to_thread(self.replays.state, found)
        document.push = self.pushes.document(found)
        return json_response(document)

    @operation({"204": "The subscription was deleted."}, "404 429")
    async def delete_subscription(self, request: Request) -> Response:
        """Delete a subscription.

        Its open streams end with the event `deleted`.
        """
        space, id = request.path_params["space"], request.path_params["id"]
        await self.subscriptions.check_change(space)
        removed = await self.subscriptions.remove(space, id)
        self.deliveries.deleted(removed.number)
        return Response(status_code=204)


def _item(item: Any) -> SubscriptionBody:
    """Return an item of a list, with members of any type: each is validated on its own."""
    if not isinstance(item, dict):
        item = {}
    id, filter, dialect = item.get("id"), item.get("filter"), item.get("dialect", "sql")
    owner, labels = item.get("owner", msgspec.UNSET), item.get("labels", msgspec.UNSET)
    return SubscriptionBody(filter, dialect, id, item.get("delivery"), item.get("start"), owner, labels)
