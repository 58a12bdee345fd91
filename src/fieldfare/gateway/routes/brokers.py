"""Links to other brokers over HTTP: batches of neighbours in, and the state of links for operators."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.bodies import Bodies, drain
from fieldfare.gateway.admission.request_guard import header
from fieldfare.gateway.federation.service import Federation
from fieldfare.gateway.federation.wire import MEDIA_TYPE
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.requests import json_response


@dataclass(frozen=True, slots=True)
class BrokerRoutes:
    """Routes between brokers, and about them."""

    federation: Federation | None
    bodies: Bodies

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

    async def remove_broker(self, request: Request) -> Response:
        """Remove a broker that is gone for good; nothing is kept for it any more."""
        await drain(request, 0)
        await self._federation().remove(request.path_params["broker"])
        return Response(status_code=204)

    def _federation(self) -> Federation:
        if self.federation is None:
            detail = "This service has no links to other brokers."
            raise HttpProblem(404, "no-broker", detail, hint="Start it with --broker NAME --peer NAME=URL.")
        return self.federation
