"""Routes about the service itself: liveness, readiness, metrics, statistics, OpenAPI description."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.audit import Audit, ChangeDocument
from fieldfare.gateway.admission.callers import Right, caller_of
from fieldfare.gateway.admission.keyring import Keyring
from fieldfare.gateway.maintenance.figures import Figures
from fieldfare.gateway.maintenance.pipeline_figures import PipelineFigures
from fieldfare.gateway.maintenance.rounds import Maintenance
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.routes.requests import json_response, query_int

AUDIT_MAX = 1_000
"""Maximum changes of one response; a larger `limit` is refused."""


class LivenessDocument(Struct):
    status: Annotated[str, "Always `alive`."] = "alive"


class ReadinessDocument(Struct, omit_defaults=True):
    """Whether events are accepted and matched.

    Attributes
    ----------
    checks
        State of each component: `ready`, or why it is not; only for callers with the right `watch`.
    notices
        What an operator should look at, as sentences; only for callers with the right `watch`.
    """

    status: Annotated[str, "`ready` or `not ready`."]
    checks: dict[str, str] | None = None
    notices: list[str] | None = None


class CallerDocument(Struct):
    """Rights of a caller."""

    id: Annotated[str, "Id of the key, or subject and issuer of the token; empty if none is required."]
    needs_keys: Annotated[bool, "Whether the service requires keys."]
    service: Annotated[list[str], "Rights in the service; `admin` allows everything."]
    spaces: Annotated[dict[str, list[str]], "Rights by space."]


class AuditDocument(Struct):
    audit: Annotated[list[ChangeDocument], "The changes, newest first."]


@dataclass(frozen=True, slots=True)
class ServiceRoutes:
    """Routes about the service's state."""

    figures: Figures
    pipeline_figures: PipelineFigures
    maintenance: Maintenance
    keyring: Keyring
    record: Audit
    counts: Metrics
    description: bytes

    async def healthz(self, request: Request) -> Response:
        """Report liveness: the process answers."""
        return json_response(LivenessDocument())

    async def readyz(self, request: Request) -> Response:
        """Report readiness: 200 if events are accepted and matched, else 503.

        Callers with the right to watch also get the reasons.
        """
        checks = await self.figures.checks()
        ready = all(state == "ready" for state in checks.values())
        document = ReadinessDocument("ready" if ready else "not ready")
        if caller_of(request).may(Right.WATCH):
            document.checks, document.notices = checks, list(self.maintenance.notices)
        return json_response(document, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        await self.figures.scrape()
        text = await asyncio.to_thread(self.counts.text)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def stats(self, request: Request) -> Response:
        return json_response(await self.figures.stats())

    async def pipeline(self, request: Request) -> Response:
        """Return the state of the pipeline and of the service's processes."""
        return json_response(await self.pipeline_figures.document())

    async def caller(self, request: Request) -> Response:
        """Return the caller's rights."""
        caller = caller_of(request)
        document = CallerDocument(
            id=caller.id,
            needs_keys=self.keyring.required,
            service=sorted(caller.grants.get(None, ())),
            spaces={space: sorted(rights) for space, rights in caller.grants.items() if space is not None},
        )
        return json_response(document)

    async def audit(self, request: Request) -> Response:
        """List the last changes."""
        limit = query_int(request, "limit", 100, 1, AUDIT_MAX)
        return json_response(AuditDocument(await asyncio.to_thread(self.record.newest, limit)))

    async def openapi(self, request: Request) -> Response:
        return Response(self.description, media_type="application/json")
