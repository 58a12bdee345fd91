"""Tickets over HTTP: see `gateway.admission.tickets`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.bodies import Bodies
from fieldfare.gateway.admission.callers import caller_of
from fieldfare.gateway.admission.sockets import SOCKET
from fieldfare.gateway.admission.tickets import VALID_MAX_S, Tickets
from fieldfare.gateway.openapi.words import answer, json_body, operation
from fieldfare.gateway.routes.requests import BODY_MAX_BYTES, json_response
from fieldfare.gateway.subscriptions import Subscriptions


class TicketBody(msgspec.Struct, forbid_unknown_fields=True):
    """A new ticket."""

    valid_s: Annotated[
        float,
        msgspec.Meta(gt=0, le=VALID_MAX_S),
        "Seconds for which streams may be opened with it; an open one goes on.",
    ] = 60.0


class TicketDocument(msgspec.Struct):
    ticket: Annotated[str, "The ticket, which is shown only here."]
    valid_s: Annotated[float, "Seconds for which streams may be opened with it."]


@dataclass(frozen=True, slots=True)
class TicketRoutes:
    """The route for tickets."""

    tickets: Tickets
    subscriptions: Subscriptions
    bodies: Bodies

    @operation(
        {
            "201": answer("The ticket.", TicketDocument, {"ticket": "ft_Cq3...", "valid_s": 60}),
            "429": "Too many tickets are valid. Retry after the seconds in Retry-After.",
        },
        "400 404",
        takes=json_body(TicketBody, {"valid_s": 60}),
    )
    async def create_ticket(self, request: Request) -> Response:
        """Create a ticket for the stream and the WebSocket of a subscription.

        A browser sends no key with an EventSource or a WebSocket. It can pass a ticket in the address, as
        `ticket`. A ticket has the rights of its caller, and ends with the caller's key.
        """
        space, id = request.path_params["space"], request.path_params["id"]
        subscription = await self.subscriptions.get(space, id)
        body = await self.bodies.read_json(request, TicketBody, BODY_MAX_BYTES)
        path = f"/v1/spaces/{space}/subscriptions/{id}"
        paths = frozenset((f"{path}/stream", path + SOCKET))
        ticket = self.tickets.issue(caller_of(request), subscription, paths, body.valid_s)
        headers = {"Cache-Control": "no-store"}
        return json_response(TicketDocument(ticket, body.valid_s), 201, headers)
