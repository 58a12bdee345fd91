"""``/v1/spaces/{space}/quotas``: what a space may have, and what it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.bodies import Bodies
from fieldfare.gateway.admission.quotas import NAMES, TOTALS, Quotas
from fieldfare.gateway.routes.requests import json_response
from fieldfare.gateway.subscriptions import Subscriptions

BODY_MAX_BYTES = 4 << 10
QUOTA_MAX = 1 << 53
"""Larger ones are no bound to anybody, and no number that JSON keeps exactly."""

_Quota = Annotated[float, msgspec.Meta(ge=0, le=QUOTA_MAX)] | None

QuotasBody = msgspec.defstruct(
    "QuotasBody", [(name, _Quota, None) for name in NAMES], forbid_unknown_fields=True
)
"""What is set for a space: null, or not there, is what all spaces have by themselves; 0 is no bound."""

_quotas_body: msgspec.json.Decoder[msgspec.Struct] = msgspec.json.Decoder(QuotasBody)


@dataclass(frozen=True, slots=True)
class QuotaRoutes:
    """How much a space may."""

    subscriptions: Subscriptions
    quotas: Quotas
    bodies: Bodies

    async def get_quotas(self, request: Request) -> Response:
        return json_response(self._document(request.path_params["space"]))

    async def put_quotas(self, request: Request) -> Response:
        """Set a space's quotas, all of them; what it has beyond them stays, and nothing is added."""
        space = request.path_params["space"]
        self.subscriptions.check_space(space)
        body = await self.bodies.read_json(request, _quotas_body, BODY_MAX_BYTES)
        given = msgspec.structs.asdict(body)
        await self.subscriptions.set_quotas(
            space, {name: value for name, value in given.items() if value is not None}
        )
        return json_response(self._document(space))

    def _document(self, space: str) -> dict[str, Any]:
        key = self.subscriptions.check_space(space)
        used = self.quotas.used(key)
        return {
            "space": space,
            "limits": {name: self.quotas.limit(key, name) for name in NAMES},
            "used": {name: getattr(used, name) for name in TOTALS},
            "set": dict(self.quotas.is_set(key)),
        }
