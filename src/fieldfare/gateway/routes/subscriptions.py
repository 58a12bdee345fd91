"""Spaces and subscriptions over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.filters.encrypted import DIMENSIONS_MAX
from fieldfare.gateway.admission.bodies import Bodies, parse_json
from fieldfare.gateway.admission.callers import caller_of
from fieldfare.gateway.delivery.pasts import Pasts
from fieldfare.gateway.delivery.pump import Pump
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.sealed import space_document
from fieldfare.gateway.push.pushes import Pushes
from fieldfare.gateway.routes.requests import json_response, query_int
from fieldfare.gateway.space_removal import SpaceRemoval
from fieldfare.gateway.subscription_store import PutResult, subscription_document
from fieldfare.gateway.subscriptions import Asked, Subscriptions, Wanted
from fieldfare.gateway.upkeep.unused import Unused
from fieldfare.storage.registry import SpaceEncryption

CONFIGURED_AT_ONCE = 500
"""After so many subscriptions of one request others have their turn."""


class EncryptionBody(msgspec.Struct, forbid_unknown_fields=True):
    library: Literal["aspe"]
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=DIMENSIONS_MAX)]


class SpaceBody(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    encryption: EncryptionBody | None = None


class FilterBody(msgspec.Struct, forbid_unknown_fields=True):
    filter: str | dict[str, Any] | list[Any]
    dialect: str = "sql"
    id: str | None = None
    delivery: dict[str, Any] | None = None
    start: str | None = None


class ChangesBody(msgspec.Struct, forbid_unknown_fields=True):
    delivery: dict[str, Any]


class SubscriptionsBody(msgspec.Struct, forbid_unknown_fields=True):
    """One subscription, or many: then each is judged for itself, whatever it is."""

    filter: str | dict[str, Any] | list[Any] | None = None
    dialect: str = "sql"
    id: str | None = None
    delivery: dict[str, Any] | None = None
    start: str | None = None
    subscriptions: list[Any] | None = None


_space_body = msgspec.json.Decoder(SpaceBody)
_filter_body = msgspec.json.Decoder(FilterBody)
_changes_body = msgspec.json.Decoder(ChangesBody)
_subscriptions_body = msgspec.json.Decoder(SubscriptionsBody)


@dataclass(frozen=True, slots=True)
class SubscriptionRoutes:
    """``/v1/spaces`` and below: spaces, and the subscriptions of each."""

    subscriptions: Subscriptions
    pump: Pump
    pasts: Pasts
    pushes: Pushes
    unused: Unused
    metrics: Metrics
    bodies: Bodies
    space_removal: SpaceRemoval
    bulk_max_subscriptions: int

    async def list_spaces(self, request: Request) -> Response:
        """The spaces that who asks has rights in."""
        known = filter(caller_of(request).knows, self.subscriptions.spaces())
        return json_response({"spaces": [self._space_document(name) for name in known]})

    async def create_space(self, request: Request) -> Response:
        body = await self.bodies.read_json(request, _space_body)
        said = body.encryption
        encryption = None if said is None else SpaceEncryption(said.library, said.dimensions)
        await self.subscriptions.create_space(body.name, encryption)
        document = space_document(body.name, encryption)
        return json_response(document, 201, {"Location": f"/v1/spaces/{body.name}"})

    def _space_document(self, name: str) -> dict[str, Any]:
        return space_document(name, self.subscriptions.encryption(self.subscriptions.check_space(name)))

    async def delete_space(self, request: Request) -> Response:
        """From the answer on there is nothing of a space, and one of its name is a new one."""
        await self.space_removal.delete(request.path_params["space"])
        return Response(status_code=204)

    async def put_subscription(self, request: Request) -> Response:
        """Create a subscription, or replace its filter; the event log's end at this moment is when."""
        space, id = request.path_params["space"], request.path_params["id"]
        await self.subscriptions.check_change(space)
        text = await self.bodies.read_json_text(request)

        def read() -> Asked:
            body = parse_json(text, _filter_body)
            if body.id not in (None, id):
                detail = f"The body's id is {body.id!r}, the path's {id!r}."
                raise HttpProblem(400, "bad-request", detail, pointer="/id")
            return Asked([Wanted(id, body.filter, body.dialect, body.delivery, body.start)], replace=True)

        (stored,) = (await self.subscriptions.put(space, len(text), read)).stored
        self.pump.configure(stored.subscription)
        return json_response(subscription_document(stored.subscription), 201 if stored.created else 200)

    async def patch_subscription(self, request: Request) -> Response:
        """Change settings of a subscription's delivery; its filter stays, and takes no new revision."""
        space, id = request.path_params["space"], request.path_params["id"]
        await self.subscriptions.check_change(space)
        await self.subscriptions.get(space, id)
        body = await self.bodies.read_json(request, _changes_body)
        configured = await self.subscriptions.configure(space, id, body.delivery)
        self.pump.configure(configured)
        return json_response(subscription_document(configured))

    async def post_subscriptions(self, request: Request) -> Response:
        """Create one subscription, or put many."""
        space = request.path_params["space"]
        await self.subscriptions.check_change(space)
        text = await self.bodies.read_json_text(request)
        result = await self.subscriptions.put(space, len(text), lambda: self._asked(text))
        if result.is_bulk:
            for at, stored in enumerate(result.stored):
                if at % CONFIGURED_AT_ONCE == CONFIGURED_AT_ONCE - 1:
                    await asyncio.sleep(0)
                if self.subscriptions.is_newest(stored.subscription):  # or who overtook it has done so
                    self.pump.configure(stored.subscription)
            return await asyncio.to_thread(_told, result)
        (stored,) = result.stored
        if stored.differs:
            detail = (
                f"There is a subscription {stored.subscription.id!r} with another filter or other"
                " settings; PUT replaces them."
            )
            raise HttpProblem(409, "subscription-exists", detail)
        headers = {"Location": f"/v1/spaces/{space}/subscriptions/{stored.subscription.id}"}
        document = subscription_document(stored.subscription)
        return json_response(document, 201 if stored.created else 200, headers)

    def _asked(self, text: bytes) -> Asked:
        body = parse_json(text, _subscriptions_body)
        if body.subscriptions is None:
            if body.filter is None:
                raise HttpProblem(400, "bad-request", "The member filter is missing.", pointer="/filter")
            wanted = Wanted(body.id, body.filter, body.dialect, body.delivery, body.start)
            return Asked([wanted], replace=False)
        if any(each is not None for each in (body.filter, body.id, body.delivery, body.start)):
            detail = "Send one subscription, or a list of subscriptions, not both."
            raise HttpProblem(400, "bad-request", detail)
        limit, count = self.bulk_max_subscriptions, len(body.subscriptions)
        if count > limit:
            detail = f"The request has {count} subscriptions; at most {limit} are taken in one request."
            raise HttpProblem(413, "bulk-too-long", detail, max_subscriptions=limit)
        return Asked(list(map(_wanted, body.subscriptions)), replace=True, is_bulk=True)

    async def list_subscriptions(self, request: Request) -> Response:
        limit = query_int(request, "limit", 100, 1, 10_000)
        after = request.query_params.get("after")
        key = self.subscriptions.check_space(request.path_params["space"])

        def read() -> Response:
            page, last = self.subscriptions.page(key, after, limit)
            return json_response({"subscriptions": list(map(subscription_document, page)), "next": last})

        return await asyncio.to_thread(read)

    async def get_subscription(self, request: Request) -> Response:
        found = await self.subscriptions.get(request.path_params["space"], request.path_params["id"])
        document = dict(subscription_document(found))
        given_up = self.metrics.given_up_by.get(found.number)
        if given_up:
            document["given_up_events"] = given_up
        unused_s = self.unused.unused_s(found.number)
        if unused_s is not None:
            document["unused_s"] = round(unused_s)
        if found.start is not None:
            past = await asyncio.to_thread(self.pasts.state, found)
            if past is not None:
                document["past"] = past
        pushed = self.pushes.document(found)
        if pushed is not None:
            document["push"] = pushed
        return json_response(document)

    async def delete_subscription(self, request: Request) -> Response:
        """Remove a subscription: events appended from now on do not meet it, and its streams end."""
        space, id = request.path_params["space"], request.path_params["id"]
        await self.subscriptions.check_change(space)
        removed = await self.subscriptions.remove(space, id)
        self.pump.deleted(removed.number)
        return Response(status_code=204)


def _told(result: PutResult) -> Response:
    stored = result.stored
    return json_response(
        {
            "created": sum(each.created for each in stored),
            "replaced": sum(each.replaced for each in stored),
            "unchanged": sum(not each.created and not each.replaced for each in stored),
            "refused": [each for _, each in sorted(result.refused, key=itemgetter(0))],
        }
    )


def _wanted(item: Any) -> Wanted:
    if not isinstance(item, dict):
        return Wanted(None, None)
    id, filter, dialect = item.get("id"), item.get("filter"), item.get("dialect", "sql")
    return Wanted(id, filter, dialect, item.get("delivery"), item.get("start"))
