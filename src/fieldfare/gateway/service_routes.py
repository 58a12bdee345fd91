"""Routes about the service itself: alive, ready, metrics, figures, its description."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.openapi import DOCUMENT
from fieldfare.gateway.readiness import readiness
from fieldfare.gateway.subscription_routes import json_response

if TYPE_CHECKING:
    from fieldfare.gateway.app import Gateway


async def healthz(request: Request) -> Response:
    """Alive: the process answers."""
    return json_response({"status": "alive"})


async def readyz(request: Request) -> Response:
    """Ready: events are taken and matched. 503 with the reasons otherwise."""
    gateway: Gateway = request.app.state.gateway
    found = await readiness(gateway)
    return json_response(
        {
            "status": "ready" if found.ready else "not ready",
            "checks": found.checks,
            "notices": list(gateway.maintenance.notices),
        },
        200 if found.ready else 503,
    )


async def metrics(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    await gateway.background.observe()
    return Response(gateway.metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def stats(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    return json_response(await gateway.background.stats())


async def openapi(request: Request) -> Response:
    return json_response(DOCUMENT)
