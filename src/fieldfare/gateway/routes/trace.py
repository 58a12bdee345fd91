"""``GET /v1/trace``: where the time goes between the request of events and their delivery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.load import Load
from fieldfare.gateway.openapi.words import answer, number, operation, parameter, string
from fieldfare.gateway.routes.requests import json_response, query_seconds, query_text, unless_gone
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.gateway.tracing import TRACES_MAX, TooManyTraces, TracedDocument, Tracer

TRACE_S = 5.0
TRACE_MAX_S = 60.0
"""Default and maximum duration of a trace, in seconds."""


class TraceDocument(Struct):
    seconds: Annotated[float, "How long records were traced."]
    records: Annotated[list[TracedDocument], "The records, in the order of the log."]


@dataclass(frozen=True, slots=True)
class TraceRoutes:
    """The route that traces records."""

    tracer: Tracer
    subscriptions: Subscriptions
    load: Load

    @operation(
        {
            "200": answer("The traced records.", TraceDocument),
            "404": "There is no such space.",
            "429": "The maximum number of traces is under way.",
        },
        "400",
        parameters=[
            parameter(
                "seconds",
                number(exclusiveMinimum=0, maximum=TRACE_MAX_S, default=TRACE_S),
                "How long to trace.",
            ),
            parameter("space", string(), "Trace only events of this space."),
        ],
    )
    async def trace(self, request: Request) -> Response:
        """Trace events that are published now.

        Samples at most 200 requests per second, for some seconds; the answer comes one second later.
        """
        seconds = query_seconds(request, "seconds", TRACE_S, TRACE_MAX_S)
        name = query_text(request, "space")
        space = None if name is None else self.subscriptions.check_space(name)
        assert seconds is not None
        try:
            records = await unless_gone(request, self.tracer.trace(seconds, space))
        except TooManyTraces:
            detail = f"{TRACES_MAX} traces are under way, the maximum: try again later."
            raise self.load.overloaded("traces", detail) from None
        return json_response(TraceDocument(seconds, records))
