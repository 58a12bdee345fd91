"""Links to other brokers over HTTP: batches of neighbours in, and the state of links for operators."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.bodies import Bodies, drain
from fieldfare.gateway.admission.request_guard import header
from fieldfare.gateway.federation.documents import (
    AdvertisementDocument,
    AdviceDocument,
    BalancingDocument,
    BrokersDocument,
    DepartureDocument,
    SubscriptionMoveDocument,
)
from fieldfare.gateway.federation.links import Links
from fieldfare.gateway.federation.service import Federation
from fieldfare.gateway.federation.wire import MEDIA_TYPE
from fieldfare.gateway.filter_texts import RefusedFilter, compile_checked
from fieldfare.gateway.openapi.from_types import described
from fieldfare.gateway.openapi.words import (
    answer,
    boolean,
    content,
    json_body,
    operation,
    parameter,
    string,
)
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.requests import BODY_MAX_BYTES, json_response, query_text
from fieldfare.gateway.subscriptions import Subscriptions


class MoveBody(msgspec.Struct, forbid_unknown_fields=True):
    """Where a subscription is to move."""

    to: Annotated[str, "The name of another broker of the same cluster."]


class BalanceBody(msgspec.Struct, forbid_unknown_fields=True):
    """An operator's decision about the load of this broker."""

    drain: Annotated[bool, "Move all subscriptions away that are not pinned."] = False


class LeaveBody(msgspec.Struct, forbid_unknown_fields=True):
    """An operator's decision that this broker leaves the sites."""

    force: Annotated[bool, "Leave even if other brokers can then no longer reach each other."] = False


class AdvertisementBody(msgspec.Struct, forbid_unknown_fields=True):
    """An advertisement: which events are published in a space at this site."""

    filter: Annotated[
        Any, "A filter that matches all events published here; null: any event may be published."
    ]
    dialect: Annotated[str, "The filter's dialect."] = "sql"


_NO_BROKER = "This service is not a broker."
_ADVERTISED = answer(
    "The advertisement.",
    AdvertisementDocument,
    {
        "space": "market",
        "filter": "type = 'trade'",
        "dialect": "sql",
        "is_pending": False,
        "sites": {"oslo": True},
    },
)


async def receive_entries(request: Request, bodies: Bodies, links: Links) -> Response:
    """Store a batch of a neighbour's entries; the response acknowledges what is stored."""
    media = (header(request, b"content-type") or "").partition(";")[0].strip().lower()
    if media != MEDIA_TYPE:
        await drain(request, 0)
        detail = f"The Content-Type {media[:80] or '(none)'} is not supported: send {MEDIA_TYPE}."
        raise HttpProblem(415, "content-type", detail, accepted=[MEDIA_TYPE])
    body = await bodies.read(request)
    return Response(await links.receive(request.path_params["broker"], body), media_type=MEDIA_TYPE)


@dataclass(frozen=True, slots=True)
class BrokerRoutes:
    """Routes between brokers, and about them."""

    federation: Federation | None
    bodies: Bodies
    subscriptions: Subscriptions
    filter_max_bytes: int

    @operation(
        {
            "200": answer("The entries that are stored are acknowledged.", string(), media=MEDIA_TYPE),
            "404": "This service is not a broker, or the sender is no neighbour.",
            "409": "The sender's name, routing or place in the sequence does not fit.",
            "429": "Too many entries of other brokers wait here. Retry after the seconds in Retry-After.",
        },
        "400",
        takes={"required": True, "content": content(string(), None, MEDIA_TYPE)},
        name="postEntries",
    )
    async def post_entries(self, request: Request) -> Response:
        """Take a batch of a neighbour's entries.

        For other brokers only: MessagePack, as the module gateway.federation.wire says.
        """
        return await receive_entries(request, self.bodies, self._federation().links)

    @operation(
        {"200": answer("The state.", BrokersDocument), "404": _NO_BROKER},
        "400",
        parameters=[
            parameter(
                "space", string(), "Show only the advertisements of this space; default: of all spaces."
            )
        ],
        name="getBrokers",
    )
    async def get_brokers(self, request: Request) -> Response:
        """Read the links of this broker, and what it has exchanged with others."""
        space = query_text(request, "space")
        return json_response(await asyncio.to_thread(self._federation().document, space))

    @operation(
        {
            "202": answer(
                "The move has begun.", SubscriptionMoveDocument, {"state": "offered", "broker": "oslo"}
            ),
            "409": "It cannot move, or is moving already: `moving`, `cannot-move`.",
        },
        "400 404",
        takes=json_body(described(MoveBody), {"to": "oslo"}),
    )
    async def move_subscription(self, request: Request) -> Response:
        """Move a subscription to another broker.

        The request begins the move, which goes on by itself. This broker delivers the events up to one place
        of each origin, and once they are settled answers all requests for the subscription with 410, whose
        document has the members `broker`, `url` and `token`; the other broker delivers the events after it.
        """
        space, id = request.path_params["space"], request.path_params["id"]
        federation = self._federation()
        await self.subscriptions.get(space, id)
        body = await self.bodies.read_json(request, MoveBody, BODY_MAX_BYTES)
        subscription = await self.subscriptions.get(space, id)
        return json_response(await federation.move(subscription, body.to), 202)

    @operation(answer("The state.", SubscriptionMoveDocument, {"state": "ended", "broker": "oslo"}), "404")
    async def get_move(self, request: Request) -> Response:
        """Read how far the move of a subscription to another broker is."""
        space, id = request.path_params["space"], request.path_params["id"]
        state = self._federation().moves.state(self.subscriptions.check_space(space), id)
        if state is None:
            await self.subscriptions.get(space, id)
            raise HttpProblem(404, "no-move", f"The subscription {id[:128]!r} has not been moved.")
        return json_response(state)

    @operation(_ADVERTISED, "404")
    async def get_advertisement(self, request: Request) -> Response:
        """Read what is published in a space at this site."""
        space = request.path_params["space"]
        federation = self._federation()
        self.subscriptions.check_space(space)
        return json_response(federation.advertisements.document(space))

    @operation(
        {
            "200": _ADVERTISED,
            "503": "This broker is leaving.",
            "409": "The space is encrypted (`cannot-advertise`); too many changes are not confirmed"
            " (`advertisement-pending`), or too many spaces advertise (`too-many-advertisements`).",
        },
        "400 404",
        takes=json_body(
            described(AdvertisementBody, filter={"description": "The filter; null for all events."}),
            {"filter": "type = 'trade'"},
        ),
    )
    async def put_advertisement(self, request: Request) -> Response:
        """State what is published in a space at this site.

        Other sites send only the filters that can match it. Events that do not match it are refused from now
        on (400, `not-advertised`); what only a wider one allows is refused (503, `advertisement-pending`)
        until all other sites have sent the filters that it needs.
        """
        space = request.path_params["space"]
        federation = self._federation()
        key = self.subscriptions.check_space(space)
        body = await self.bodies.read_json(request, AdvertisementBody, BODY_MAX_BYTES)
        filter = None
        if body.filter is not None:
            if self.subscriptions.encryption(key) is not None:
                detail = "The events of an encrypted space stay at their site: it needs no advertisement."
                raise HttpProblem(409, "cannot-advertise", detail)
            found = await asyncio.to_thread(compile_checked, body.filter, body.dialect, self.filter_max_bytes)
            if isinstance(found, RefusedFilter):
                raise HttpProblem(
                    400, "bad-filter", **found.document(), title="The advertisement was refused"
                )
            filter = found
        with self.subscriptions.gate.entered():
            return json_response(await federation.advertise(space, filter))

    @operation(
        {
            "200": answer("The loads and the moves; nothing is done.", AdviceDocument),
            "404": _NO_BROKER,
            "409": "No other broker can take the subscriptions of one that is to be drained.",
        },
        "400",
        parameters=[
            parameter("drain", boolean("Whether all subscriptions are to leave."), "Default: false.")
        ],
    )
    async def get_balance(self, request: Request) -> Response:
        """Read the loads of all brokers, and what this one would do about its own."""
        drain = query_text(request, "drain") or "false"
        if drain not in ("true", "1", "false", "0"):
            raise HttpProblem(400, "bad-parameter", "drain must be true or false.", parameter="drain")
        is_drain = drain in ("true", "1")
        return json_response(await self._federation().balancer.document(is_drain=is_drain))

    @operation(
        {
            "202": answer("The moves have begun, and continue without further requests.", BalancingDocument),
            "404": _NO_BROKER,
            "409": "No other broker can take the subscriptions.",
        },
        "400",
        takes=json_body(described(BalanceBody), {"drain": True}),
    )
    async def balance(self, request: Request) -> Response:
        """Move the subscriptions that balance the load, or all of them."""
        body = await self.bodies.read_json(request, BalanceBody, BODY_MAX_BYTES)
        return json_response(await self._federation().balance(is_drain=body.drain), 202)

    @operation({"200": answer("The state.", DepartureDocument), "404": _NO_BROKER})
    async def get_leave(self, request: Request) -> Response:
        """Read whether this broker is leaving, and what it waits for."""
        return json_response(self._federation().departure.document())

    @operation(
        {
            "202": answer(
                "The broker is leaving, and continues without further requests.", DepartureDocument
            ),
            "404": _NO_BROKER,
            "409": "Other brokers could no longer reach each other: `cut-vertex`, `cannot-leave`.",
        },
        "400",
        takes=json_body(described(LeaveBody), {"force": False}),
    )
    async def leave(self, request: Request) -> Response:
        """Leave the sites in good order.

        From now on events, and new or replaced subscriptions, are refused with 503 (`leaving`). The broker
        leaves once all that it holds is with others, and its subscribers have all that came for them. A
        repeated request changes nothing.
        """
        federation = self._federation()
        body = await self.bodies.read_json(request, LeaveBody, BODY_MAX_BYTES)
        return json_response(await federation.leave(is_forced=body.force), 202)

    @operation(
        {
            "200": answer("It stays.", DepartureDocument),
            "404": _NO_BROKER,
            "409": "It has left already: `has-left`.",
        }
    )
    async def stay(self, request: Request) -> Response:
        """Cancel leaving.

        Subscriptions here count again at all other brokers, from one place on.
        """
        await drain(request, 0)
        return json_response(await self._federation().stay())

    @operation(
        {
            "204": "The broker is removed; or it was before.",
            "404": "This service is not a broker, or knows no other broker of this name.",
            "409": "The broker can be reached: stop it first.",
        },
        name="removeBroker",
    )
    async def remove_broker(self, request: Request) -> Response:
        """Remove a broker that is gone for good.

        Its filters are deleted, nothing is kept for it any more, and all brokers refuse it.
        """
        await drain(request, 0)
        await self._federation().custody.remove(request.path_params["broker"])
        return Response(status_code=204)

    def _federation(self) -> Federation:
        if self.federation is None:
            detail = "This service has no links to other brokers."
            raise HttpProblem(404, "no-broker", detail, hint="Start it with --broker NAME --peer NAME=URL.")
        return self.federation
