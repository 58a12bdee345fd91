"""API keys over HTTP: made, listed and revoked by who may."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.bodies import Bodies
from fieldfare.gateway.admission.callers import OF_SPACES, Caller, Right, caller_of
from fieldfare.gateway.admission.keyring import Keyring, key_document
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.requests import json_response
from fieldfare.gateway.subscriptions import Subscriptions

BODY_MAX_BYTES = 64 << 10
NOTE_MAX_CHARS = 200


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    rights: Annotated[list[Right], msgspec.Meta(min_length=1, max_length=len(Right))]
    space: str | None = None
    note: Annotated[str, msgspec.Meta(max_length=NOTE_MAX_CHARS)] = ""


_key_body = msgspec.json.Decoder(KeyBody)


@dataclass(frozen=True, slots=True)
class KeyRoutes:
    """Who may."""

    keyring: Keyring
    subscriptions: Subscriptions
    bodies: Bodies

    async def list_keys(self, request: Request) -> Response:
        """The keys that who asks looks after; nobody is shown a key itself."""
        by = self._caller(request)
        return json_response({"keys": list(map(key_document, self.keyring.listed(by)))})

    async def create_key(self, request: Request) -> Response:
        """Make a key; this answer is the only place where it is ever to be seen."""
        by = self._caller(request)
        body = await self.bodies.read_json(request, _key_body, BODY_MAX_BYTES)
        _check_rights(by, body)
        check = self.subscriptions.check_space
        key, text = await self.keyring.create(by, body.space, body.rights, body.note, check)
        headers = {"Location": f"/v1/keys/{key.id}", "Cache-Control": "no-store"}
        return json_response({"key": text, **key_document(key)}, 201, headers)

    async def revoke_key(self, request: Request) -> Response:
        """From the answer on the key lets nobody in; what is open for it has ended."""
        await self.keyring.revoke(self._caller(request), request.path_params["key"])
        return Response(status_code=204)

    def _caller(self, request: Request) -> Caller:
        if not self.keyring.required:
            detail = "This service asks for no keys, so there are none to look after."
            hint = "FIELDFARE_ADMIN_KEY_FILE names the file with the first one."
            raise HttpProblem(409, "no-keys", detail, hint=hint)
        by = caller_of(request)
        by.check_anywhere(Right.MANAGE)
        return by


def _check_rights(by: Caller, body: KeyBody) -> None:
    of_space = body.space is not None
    if any((right in OF_SPACES) is not of_space for right in body.rights):
        names = ", ".join(right for right in Right if (right in OF_SPACES) is of_space)
        detail = f"A key for {'a space' if of_space else 'the service'} has rights of these: {names}."
        raise HttpProblem(400, "bad-request", detail, pointer="/rights" if of_space else "/space")
    # Last, so that who may not give rights hears the same of every space.
    by.check(Right.MANAGE if of_space else Right.ADMIN, body.space)
