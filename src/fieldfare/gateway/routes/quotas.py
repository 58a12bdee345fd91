"""``/v1/spaces/{space}/quotas``: a space's quotas and usage."""

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
"""Maximum value of a quota; a larger one is refused: JSON cannot represent it exactly, and it limits no
space."""

_Quota = Annotated[float, msgspec.Meta(ge=0, le=QUOTA_MAX)] | None

QuotasBody = msgspec.defstruct(
    "QuotasBody", [(name, _Quota, None) for name in NAMES], forbid_unknown_fields=True
)
"""A space's quotas: null or a missing member means the default of all spaces; 0 means no limit."""

_quotas_body: msgspec.json.Decoder[msgspec.Struct] = msgspec.json.Decoder(QuotasBody)


@dataclass(frozen=True, slots=True)
class QuotaRoutes:
    """Routes for a space's quotas."""

    subscriptions: Subscriptions
    quotas: Quotas
    bodies: Bodies

    async def get_quotas(self, request: Request) -> Response:
        return json_response(self._document(request.path_params["space"]))

    async def put_quotas(self, request: Request) -> Response:
        """Replace all of a space's quotas; usage over a new quota stays, but cannot grow."""
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
