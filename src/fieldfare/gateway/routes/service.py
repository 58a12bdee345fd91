"""Routes about the service itself: liveness, readiness, metrics, statistics, OpenAPI description."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.callers import Right, caller_of
from fieldfare.gateway.maintenance.figures import Figures
from fieldfare.gateway.maintenance.rounds import Maintenance
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.openapi.document import DOCUMENT
from fieldfare.gateway.routes.requests import json_response

_DESCRIPTION = msgspec.json.encode(DOCUMENT)


@dataclass(frozen=True, slots=True)
class ServiceRoutes:
    """Routes about the service's state."""

    figures: Figures
    maintenance: Maintenance
    counts: Metrics

    async def healthz(self, request: Request) -> Response:
        """Report liveness: the process answers."""
        return json_response({"status": "alive"})

    async def readyz(self, request: Request) -> Response:
        """Report readiness: 200 if events are accepted and matched, else 503.

        Callers with the right to watch also get the reasons.
        """
        checks = await self.figures.checks()
        ready = all(state == "ready" for state in checks.values())
        document: dict[str, Any] = {"status": "ready" if ready else "not ready"}
        if caller_of(request).may(Right.WATCH):
            document |= {"checks": checks, "notices": list(self.maintenance.notices)}
        return json_response(document, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        await self.figures.scrape()
        text = await asyncio.to_thread(self.counts.text)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def stats(self, request: Request) -> Response:
        return json_response(await self.figures.stats())

    async def openapi(self, request: Request) -> Response:
        return Response(_DESCRIPTION, media_type="application/json")
