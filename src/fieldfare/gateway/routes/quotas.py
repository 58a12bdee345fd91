"""``/v1/spaces/{space}/quotas``: a space's quotas and usage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.bodies import Bodies
from fieldfare.gateway.admission.quotas import NAMES, TOTALS, Quotas
from fieldfare.gateway.openapi.words import answer, json_body, operation
from fieldfare.gateway.routes.requests import json_response
from fieldfare.gateway.subscriptions import Subscriptions

BODY_MAX_BYTES = 4 << 10
QUOTA_MAX = 1 << 53
"""Maximum value of a quota; a larger one is refused: JSON cannot represent it exactly, and it limits no
space."""

_Quota = Annotated[float, msgspec.Meta(ge=0, le=QUOTA_MAX)] | None


class _Quotas(msgspec.Struct):
    events_per_s: Annotated[_Quota, "Maximum events published per second, on average."] = None
    bytes_per_s: Annotated[_Quota, "Maximum bytes of events published per second, on average."] = None
    matching_ms_per_s: Annotated[
        _Quota,
        "Maximum milliseconds of processor time per second, on average, for matching the space's events.",
    ] = None
    changes_per_s: Annotated[
        _Quota, "Maximum subscriptions created, changed or deleted per second, on average."
    ] = None
    delivered_bytes_per_s: Annotated[
        _Quota, "Maximum bytes of messages sent to the space's readers per second, on average."
    ] = None
    subscriptions: Annotated[_Quota, "Maximum number of subscriptions."] = None
    filter_cost: Annotated[
        _Quota, "Maximum total cost of the filters, in predicates as /v1/filters:explain counts them."
    ] = None
    stored_event_bytes: Annotated[_Quota, "Maximum bytes of events in the log."] = None
    stored_match_bytes: Annotated[_Quota, "Maximum bytes of matches on disk."] = None
    connections: Annotated[_Quota, "Maximum number of open streams, WebSockets and pulls."] = None


class QuotasBody(_Quotas, forbid_unknown_fields=True):
    """Quotas of a space. A member that is null or missing: the default of all spaces; 0: no limit."""


class OwnLimitsDocument(_Quotas, omit_defaults=True):
    """The quotas that were set for this space; others are the defaults."""


class UsedDocument(msgspec.Struct):
    """Current usage, for the quotas that are totals."""

    subscriptions: Annotated[int, "Number of subscriptions."]
    filter_cost: Annotated[int, "Total cost of the filters, in predicates."]
    stored_event_bytes: Annotated[int, "Bytes of events in the log."]
    stored_match_bytes: Annotated[int, "Bytes of matches on disk."]
    connections: Annotated[int, "Number of open streams, WebSockets and pulls."]


class QuotasDocument(msgspec.Struct):
    """A space's quotas and usage."""

    space: Annotated[str, "Name of the space."]
    limits: Annotated[QuotasBody, "The quotas that apply, defaults included; null: no limit."]
    used: Annotated[UsedDocument, "Current usage, for the quotas that are totals."]
    set: Annotated[OwnLimitsDocument, "The quotas that were set for this space; others are the defaults."]


@dataclass(frozen=True, slots=True)
class QuotaRoutes:
    """Routes for a space's quotas."""

    subscriptions: Subscriptions
    quotas: Quotas
    bodies: Bodies

    @operation(answer("The quotas and the usage.", QuotasDocument), "404")
    async def get_quotas(self, request: Request) -> Response:
        """Read a space's quotas and usage."""
        return json_response(self._document(request.path_params["space"]))

    @operation(
        answer("The quotas after the change.", QuotasDocument),
        "400 404 429",
        takes=json_body(QuotasBody, {"events_per_s": 500, "subscriptions": 10000}),
    )
    async def put_quotas(self, request: Request) -> Response:
        """Replace all quotas of a space.

        Usage beyond a new quota stays, but cannot grow.
        """
        space = request.path_params["space"]
        self.subscriptions.check_space(space)
        body = await self.bodies.read_json(request, QuotasBody, BODY_MAX_BYTES)
        given = msgspec.structs.asdict(body)
        await self.subscriptions.set_quotas(
            space, {name: value for name, value in given.items() if value is not None}
        )
        return json_response(self._document(space))

    def _document(self, space: str) -> QuotasDocument:
        key = self.subscriptions.check_space(space)
        used = self.quotas.used(key)
        return QuotasDocument(
            space=space,
            limits=QuotasBody(**{name: self.quotas.limit(key, name) for name in NAMES}),
            used=UsedDocument(**{name: getattr(used, name) for name in TOTALS}),
            set=OwnLimitsDocument(**self.quotas.is_set(key)),
        )
