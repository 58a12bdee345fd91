"""Routes about the service itself: alive, ready, metrics, figures, its description."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.callers import Right, caller_of
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.openapi.document import DOCUMENT
from fieldfare.gateway.routes.requests import json_response
from fieldfare.gateway.upkeep.figures import Figures
from fieldfare.gateway.upkeep.maintenance import Maintenance

_DESCRIPTION = msgspec.json.encode(DOCUMENT)


@dataclass(frozen=True, slots=True)
class ServiceRoutes:
    """How the service is."""

    figures: Figures
    maintenance: Maintenance
    counts: Metrics

    async def healthz(self, request: Request) -> Response:
        """Alive: the process answers."""
        return json_response({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        """Ready: events are taken and matched. 503 otherwise, with the reasons for who may know them."""
        checks = await self.figures.checks()
        ready = all(state == "ready" for state in checks.values())
        document: dict[str, Any] = {"status": "ready" if ready else "not ready"}
        if caller_of(request).may(Right.WATCH):
            document |= {"checks": checks, "notices": list(self.maintenance.notices)}
        return json_response(document, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        await self.figures.observe()
        text = await asyncio.to_thread(self.counts.text)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def stats(self, request: Request) -> Response:
        return json_response(await self.figures.stats())

    async def openapi(self, request: Request) -> Response:
        return Response(_DESCRIPTION, media_type="application/json")
