"""Links to other brokers over HTTP: batches of neighbours in, and the state of links for operators."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.bodies import Bodies, drain
from fieldfare.gateway.admission.request_guard import header
from fieldfare.gateway.federation.service import Federation
from fieldfare.gateway.federation.wire import MEDIA_TYPE
from fieldfare.gateway.filter_texts import RefusedFilter, compile_checked
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.requests import BODY_MAX_BYTES, json_response, query_text
from fieldfare.gateway.subscriptions import Subscriptions


class MoveBody(msgspec.Struct, forbid_unknown_fields=True):
    """Where a subscription is to move.

    Attributes
    ----------
    to
        The name of another broker of the same cluster.
    """

    to: str


class BalanceBody(msgspec.Struct, forbid_unknown_fields=True):
    """An operator's decision about the load of this broker.

    Attributes
    ----------
    drain
        Move all subscriptions away that are not pinned.
    """

    drain: bool = False


class LeaveBody(msgspec.Struct, forbid_unknown_fields=True):
    """An operator's decision that this broker leaves the sites.

    Attributes
    ----------
    force
        Leave even if others have no path to one another without this broker.
    """

    force: bool = False


class AdvertisementBody(msgspec.Struct, forbid_unknown_fields=True):
    """An advertisement: which events are published in a space at this site.

    Attributes
    ----------
    filter
        The filter that all events match; None for all events.
    dialect
        The filter's dialect.
    """

    filter: Any
    dialect: str = "sql"


_advertisement_body = msgspec.json.Decoder(AdvertisementBody)
_leave_body = msgspec.json.Decoder(LeaveBody)
_balance_body = msgspec.json.Decoder(BalanceBody)
_move_body = msgspec.json.Decoder(MoveBody)


@dataclass(frozen=True, slots=True)
class BrokerRoutes:
    """Routes between brokers, and about them."""

    federation: Federation | None
    bodies: Bodies
    subscriptions: Subscriptions
    filter_max_bytes: int

    async def post_entries(self, request: Request) -> Response:
        """Store a batch of a neighbour's entries; the answer acknowledges what is stored."""
        federation = self._federation()
        media = (header(request, b"content-type") or "").partition(";")[0].strip().lower()
        if media != MEDIA_TYPE:
            await drain(request, 0)
            detail = f"The Content-Type {media[:80] or '(none)'} is not supported: send {MEDIA_TYPE}."
            raise HttpProblem(415, "content-type", detail, accepted=[MEDIA_TYPE])
        body = await self.bodies.read(request)
        answer = await federation.links.receive(request.path_params["broker"], body)
        return Response(answer, media_type=MEDIA_TYPE)

    async def get_brokers(self, request: Request) -> Response:
        """Return the topology, the links, and what was exchanged with each other broker."""
        return json_response(await asyncio.to_thread(self._federation().document))

    async def move_subscription(self, request: Request) -> Response:
        """Begin to move a subscription to another broker; it goes on by itself."""
        space, id = request.path_params["space"], request.path_params["id"]
        federation = self._federation()
        await self.subscriptions.get(space, id)
        body = await self.bodies.read_json(request, _move_body, BODY_MAX_BYTES)
        subscription = await self.subscriptions.get(space, id)
        return json_response(await federation.move(subscription, body.to), 202)

    async def get_move(self, request: Request) -> Response:
        """Return how far the move of a subscription is."""
        space, id = request.path_params["space"], request.path_params["id"]
        state = self._federation().moves.state(self.subscriptions.check_space(space), id)
        if state is None:
            await self.subscriptions.get(space, id)
            raise HttpProblem(404, "no-move", f"The subscription {id[:128]!r} has not been moved.")
        return json_response(state)

    async def get_advertisement(self, request: Request) -> Response:
        """Return what is published in a space at this site, and which other sites have confirmed it."""
        space = request.path_params["space"]
        federation = self._federation()
        self.subscriptions.check_space(space)
        return json_response(federation.advertisements.document(space))

    async def put_advertisement(self, request: Request) -> Response:
        """State what is published in a space at this site."""
        space = request.path_params["space"]
        federation = self._federation()
        key = self.subscriptions.check_space(space)
        body = await self.bodies.read_json(request, _advertisement_body, BODY_MAX_BYTES)
        filter = None
        if body.filter is not None:
            if self.subscriptions.encryption(key) is not None:
                detail = "The space is encrypted, and its events stay at their site."
                raise HttpProblem(409, "cannot-advertise", detail)
            found = await asyncio.to_thread(compile_checked, body.filter, body.dialect, self.filter_max_bytes)
            if isinstance(found, RefusedFilter):
                raise HttpProblem(
                    400, "bad-filter", **found.document(), title="The advertisement was refused"
                )
            filter = found
        with self.subscriptions.gate.entered():
            return json_response(await federation.advertise(space, filter))

    async def get_balance(self, request: Request) -> Response:
        """Return the loads of all brokers, and what this one would do about its own; it does nothing."""
        drain = query_text(request, "drain") or "false"
        if drain not in ("true", "1", "false", "0"):
            raise HttpProblem(400, "bad-parameter", "drain must be true or false.", parameter="drain")
        is_drain = drain in ("true", "1")
        return json_response(await self._federation().balancer.document(is_drain=is_drain))

    async def balance(self, request: Request) -> Response:
        """Begin to move the subscriptions that balance the load, or all of them."""
        body = await self.bodies.read_json(request, _balance_body, BODY_MAX_BYTES)
        return json_response(await self._federation().balance(is_drain=body.drain), 202)

    async def get_leave(self, request: Request) -> Response:
        """Return whether this broker is leaving, and what it waits for."""
        return json_response(self._federation().departure.document())

    async def leave(self, request: Request) -> Response:
        """Begin to leave the sites in good order; it goes on by itself."""
        federation = self._federation()
        body = await self.bodies.read_json(request, _leave_body, BODY_MAX_BYTES)
        return json_response(await federation.leave(is_forced=body.force), 202)

    async def stay(self, request: Request) -> Response:
        """Cancel leaving."""
        await drain(request, 0)
        return json_response(await self._federation().stay())

    async def remove_broker(self, request: Request) -> Response:
        """Remove a broker that is gone for good; nothing is kept for it any more."""
        await drain(request, 0)
        await self._federation().custody.remove(request.path_params["broker"])
        return Response(status_code=204)

    def _federation(self) -> Federation:
        if self.federation is None:
            detail = "This service has no links to other brokers."
            raise HttpProblem(404, "no-broker", detail, hint="Start it with --broker NAME --peer NAME=URL.")
        return self.federation
