"""Routes about the service itself: liveness, readiness, metrics, statistics, OpenAPI description."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.audit import Audit, ChangeDocument
from fieldfare.gateway.admission.callers import Right, caller_of
from fieldfare.gateway.admission.keyring import Keyring
from fieldfare.gateway.maintenance.figures import Figures, StatsDocument
from fieldfare.gateway.maintenance.pipeline_figures import PipelineDocument, PipelineFigures
from fieldfare.gateway.maintenance.rounds import Maintenance
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.openapi.words import answer, operation, page_limit, string
from fieldfare.gateway.routes.requests import json_response, query_int

AUDIT_MAX = 1_000
"""Maximum changes of one response; a larger `limit` is refused."""


class LivenessDocument(Struct):
    status: Annotated[str, "Always `alive`."] = "alive"


class ReadinessDocument(Struct, omit_defaults=True):
    """Whether events are accepted and matched."""

    status: Annotated[str, "`ready` or `not ready`."]
    checks: Annotated[
        dict[str, str] | None,
        "State of each component: `ready`, or why it is not; only for callers with the right `watch`.",
    ] = None
    notices: Annotated[
        list[str] | None,
        "What an operator should look at, as sentences; only for callers with the right `watch`.",
    ] = None


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
    description: Callable[[], bytes]

    @operation(answer("The gateway is alive.", LivenessDocument, {"status": "alive"}))
    async def healthz(self, request: Request) -> Response:
        """Check that the gateway responds."""
        return json_response(LivenessDocument())

    @operation(
        {
            "200": answer("Events are accepted and matched.", ReadinessDocument),
            "503": answer("A component is not ready; `checks` names it and the reason.", ReadinessDocument),
        }
    )
    async def readyz(self, request: Request) -> Response:
        """Check that events are accepted and matched."""
        # Only callers with the right to watch get the reasons.
        checks = await self.figures.checks()
        ready = all(state == "ready" for state in checks.values())
        document = ReadinessDocument("ready" if ready else "not ready")
        if caller_of(request).may(Right.WATCH):
            document.checks, document.notices = checks, list(self.maintenance.notices)
        return json_response(document, 200 if ready else 503)

    @operation(answer("The metrics in Prometheus' text format.", string(), media="text/plain"))
    async def metrics(self, request: Request) -> Response:
        """Read the metrics for Prometheus."""
        await self.figures.scrape()
        text = await asyncio.to_thread(self.counts.text)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    @operation(answer("The figures.", StatsDocument))
    async def stats(self, request: Request) -> Response:
        """Read current figures of the service."""
        return json_response(await self.figures.stats())

    @operation(answer("The state.", PipelineDocument))
    async def pipeline(self, request: Request) -> Response:
        """Read the state of the pipeline and of the service's processes.

        Lag and rates are in `/v1/stats`.
        """
        return json_response(await self.pipeline_figures.document())

    @operation(
        answer(
            "The caller's rights.",
            CallerDocument,
            {"id": "", "needs_keys": False, "service": ["admin"], "spaces": {}},
        )
    )
    async def caller(self, request: Request) -> Response:
        """Read what the caller may do."""
        caller = caller_of(request)
        document = CallerDocument(
            id=caller.id,
            needs_keys=self.keyring.required,
            service=sorted(caller.grants.get(None, ())),
            spaces={space: sorted(rights) for space, rights in caller.grants.items() if space is not None},
        )
        return json_response(document)

    @operation(
        answer("The changes.", AuditDocument),
        "400",
        parameters=[page_limit(AUDIT_MAX, "Maximum number of changes.")],
    )
    async def audit(self, request: Request) -> Response:
        """List the last changes, the newest first.

        From the newest lines of the audit log: all requests that change more than events and acks, refused
        ones included.
        """
        limit = query_int(request, "limit", 100, 1, AUDIT_MAX)
        return json_response(AuditDocument(await asyncio.to_thread(self.record.newest, limit)))

    @operation(answer("The description, in OpenAPI 3.1.", {"type": "object"}))
    async def openapi(self, request: Request) -> Response:
        """Read this description of the API."""
        return Response(await asyncio.to_thread(self.description), media_type="application/json")
