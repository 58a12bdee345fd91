"""Spaces and subscriptions over HTTP."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.problems import Problem
from fieldfare.gateway.requests import query_int, read_json
from fieldfare.gateway.subscriptions import Wanted, subscription_document

if TYPE_CHECKING:
    from fieldfare.gateway.app import Gateway


TAKEN_AT_ONCE = 1_000


class SpaceBody(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class FilterBody(msgspec.Struct, forbid_unknown_fields=True):
    filter: str | dict[str, Any] | list[Any]
    dialect: str = "sql"
    id: str | None = None


class SubscriptionsBody(msgspec.Struct, forbid_unknown_fields=True):
    """One subscription, or many: then each is judged for itself, whatever it is."""

    filter: str | dict[str, Any] | list[Any] | None = None
    dialect: str = "sql"
    id: str | None = None
    subscriptions: list[Any] | None = None


_space_body = msgspec.json.Decoder(SpaceBody)
_filter_body = msgspec.json.Decoder(FilterBody)
_subscriptions_body = msgspec.json.Decoder(SubscriptionsBody)


def json_response(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(document), status, headers, "application/json")


async def list_spaces(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    return json_response({"spaces": [{"name": name} for name in gateway.subscriptions.spaces()]})


async def create_space(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    body = await read_json(request, _space_body, gateway.settings.body_max_bytes)
    await gateway.subscriptions.create_space(body.name)
    return json_response({"name": body.name}, 201, {"Location": f"/v1/spaces/{body.name}"})


async def put_subscription(request: Request) -> Response:
    """Create a subscription, or replace its filter; the event log's end at this moment is when."""
    gateway: Gateway = request.app.state.gateway
    space, id = request.path_params["space"], request.path_params["id"]
    gateway.subscriptions.check_space(space)
    body = await read_json(request, _filter_body, gateway.settings.body_max_bytes)
    if body.id not in (None, id):
        raise Problem(400, "bad-request", f"The body's id is {body.id!r}, the path's {id!r}.", pointer="/id")
    stored = await gateway.subscriptions.put(space, Wanted(id, body.filter, body.dialect), replace=True)
    return json_response(subscription_document(stored.subscription), 201 if stored.created else 200)


async def post_subscriptions(request: Request) -> Response:
    """Create one subscription, or put many."""
    gateway: Gateway = request.app.state.gateway
    space = request.path_params["space"]
    gateway.subscriptions.check_space(space)
    body = await read_json(request, _subscriptions_body, gateway.settings.body_max_bytes)
    if body.subscriptions is not None:
        if body.filter is not None or body.id is not None:
            raise Problem(400, "bad-request", "Send one subscription, or a list of subscriptions, not both.")
        return await _put_many(gateway, space, body.subscriptions)
    if body.filter is None:
        raise Problem(400, "bad-request", "The member filter is missing.", pointer="/filter")
    stored = await gateway.subscriptions.put(space, Wanted(body.id, body.filter, body.dialect), replace=False)
    document = subscription_document(stored.subscription)
    headers = {"Location": f"/v1/spaces/{space}/subscriptions/{stored.subscription.id}"}
    return json_response(document, 201 if stored.created else 200, headers)


async def _put_many(gateway: Gateway, space: str, items: list[Any]) -> Response:
    limit = gateway.settings.bulk_max_subscriptions
    if len(items) > limit:
        detail = f"The request has {len(items)} subscriptions; at most {limit} are taken in one request."
        raise Problem(413, "bulk-too-long", detail, max_subscriptions=limit)
    wanted: list[Wanted] = []
    for item in items:
        wanted.append(_wanted(item))
        if len(wanted) % TAKEN_AT_ONCE == 0:
            await asyncio.sleep(0)  # the others have their turn
    stored, refused = await gateway.subscriptions.put_all(space, wanted)
    return json_response(
        {
            "created": sum(each.created for each in stored),
            "replaced": sum(each.replaced for each in stored),
            "unchanged": sum(not each.created and not each.replaced for each in stored),
            "refused": [{"index": index, "id": wanted[index].id, **why.document()} for index, why in refused],
        }
    )


def _wanted(item: Any) -> Wanted:
    if not isinstance(item, dict):
        return Wanted(None, None)
    return Wanted(item.get("id"), item.get("filter"), item.get("dialect", "sql"))


async def list_subscriptions(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    limit = query_int(request, "limit", 100, 1, 10_000)
    page, last = await gateway.subscriptions.page(
        request.path_params["space"], request.query_params.get("after"), limit
    )
    return json_response({"subscriptions": [subscription_document(each) for each in page], "next": last})


async def get_subscription(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    found = gateway.subscriptions.get(request.path_params["space"], request.path_params["id"])
    document = dict(subscription_document(found))
    given_up = gateway.metrics.given_up_by.get(found.number)
    if given_up:
        document["given_up_events"] = given_up
    return json_response(document)


async def head_of_stream(request: Request) -> Response:
    """What a stream's answer would begin with."""
    gateway: Gateway = request.app.state.gateway
    gateway.subscriptions.get(request.path_params["space"], request.path_params["id"])
    response = Response(media_type="text/event-stream", headers={"Cache-Control": "no-store"})
    del response.headers["content-length"]
    return response


async def delete_subscription(request: Request) -> Response:
    """Remove a subscription: events appended from now on do not meet it, and its streams end."""
    gateway: Gateway = request.app.state.gateway
    removed = await gateway.subscriptions.remove(request.path_params["space"], request.path_params["id"])
    gateway.pump.deleted(removed.number)
    return Response(status_code=204)
