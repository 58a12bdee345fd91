"""API keys over HTTP: create, list and revoke, for callers with the right to manage them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.gateway.admission.bodies import Bodies
from fieldfare.gateway.admission.callers import OF_SPACES, Caller, Right, caller_of
from fieldfare.gateway.admission.keyring import KeyDocument, Keyring, Rights, SpaceOfKey, key_document
from fieldfare.gateway.openapi.words import answer, json_body, operation
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.requests import json_response

BODY_MAX_BYTES = 64 << 10
NOTE_MAX_CHARS = 200


class KeyBody(msgspec.Struct, forbid_unknown_fields=True):
    """A new key."""

    rights: Rights
    space: SpaceOfKey = None
    note: Annotated[
        str, msgspec.Meta(max_length=NOTE_MAX_CHARS), "What the key is for, as a note to people."
    ] = ""


class MadeKeyDocument(KeyDocument):
    """A new API key, with the secret key."""

    key: Annotated[str, "The secret key, to be sent as `Authorization: Bearer KEY`. Not shown again."]


class KeysDocument(msgspec.Struct):
    keys: Annotated[list[KeyDocument], "The keys."]


_NO_KEYS = "The service requires no API keys, so there are none to manage."


@dataclass(frozen=True, slots=True)
class KeyRoutes:
    """Routes for API keys.

    `check_space` returns the key of a space, or raises a problem for an unknown one.
    """

    keyring: Keyring
    check_space: Callable[[str], str]
    bodies: Bodies

    @operation({"200": answer("The keys, without the secret keys.", KeysDocument), "409": _NO_KEYS})
    async def list_keys(self, request: Request) -> Response:
        """List the API keys that the caller may manage.

        An admin may manage all keys; a key with the right `manage` in a space, the keys of that space.
        """
        by = self._caller(request)
        return json_response(KeysDocument(list(map(key_document, self.keyring.listed(by)))))

    @operation(
        {
            "201": answer("The key was created.", MadeKeyDocument),
            "409": "The service requires no API keys, so there are none to manage; or it has the maximum"
            " number.",
        },
        "400 404",
        takes=json_body(KeyBody, {"space": "default", "rights": ["publish"], "note": "gate 17"}),
    )
    async def create_key(self, request: Request) -> Response:
        """Create an API key.

        The secret key is shown only in the response.
        """
        by = self._caller(request)
        body = await self.bodies.read_json(request, KeyBody, BODY_MAX_BYTES)
        rights = _known_rights(body.rights)
        _check_rights(by, body, rights)
        key, text = await self.keyring.create(by, body.space, rights, body.note, self.check_space)
        headers = {"Location": f"/v1/keys/{key.id}", "Cache-Control": "no-store"}
        document = MadeKeyDocument(text, **msgspec.structs.asdict(key_document(key)))
        return json_response(document, 201, headers)

    @operation({"204": "The key was revoked.", "409": _NO_KEYS}, "404")
    async def revoke_key(self, request: Request) -> Response:
        """Revoke an API key.

        From the response on the key is rejected, and its open streams have ended.
        """
        await self.keyring.revoke(self._caller(request), request.path_params["key"])
        return Response(status_code=204)

    def _caller(self, request: Request) -> Caller:
        if not self.keyring.required:
            detail = "This service requires no keys, so there are no keys to manage."
            hint = "To require keys, name a file with the first admin key in FIELDFARE_ADMIN_KEY_FILE."
            raise HttpProblem(409, "no-keys", detail, hint=hint)
        by = caller_of(request)
        by.check_anywhere(Right.MANAGE)
        return by


def _known_rights(names: list[str]) -> list[Right]:
    """Return the rights of these names; raise Problem 400 with all rights for an unknown name."""
    for name in names:
        if name not in [*Right]:
            in_spaces = ", ".join(right for right in Right if right in OF_SPACES)
            of_service = ", ".join(right for right in Right if right not in OF_SPACES)
            detail = (
                f"There is no right {name[:64]!r}. The rights in a space are {in_spaces}; those in the"
                f" service are {of_service}."
            )
            near = get_close_matches(name, [*Right], n=1)
            hint = f"Did you mean {near[0]}?" if near else None
            raise HttpProblem(400, "bad-request", detail, hint=hint, pointer="/rights")
    return [Right(name) for name in names]


def _check_rights(by: Caller, body: KeyBody, rights: list[Right]) -> None:
    of_space = body.space is not None
    if any((right in OF_SPACES) is not of_space for right in rights):
        names = ", ".join(right for right in Right if (right in OF_SPACES) is of_space)
        detail = f"A key for {'a space' if of_space else 'the service'} can have only these rights: {names}."
        hint = "The other rights are " + (
            "those of a key without a space." if of_space else "in a space: name it."
        )
        raise HttpProblem(400, "bad-request", detail, hint=hint, pointer="/rights" if of_space else "/space")
    # Last, so that a caller without the right to grant gets the same response for every space.
    by.check(Right.MANAGE if of_space else Right.ADMIN, body.space)
