"""The part of the OpenAPI description about spaces, their quotas and their keys."""

from __future__ import annotations

from fieldfare.gateway.openapi.words import (
    NO_KEYS,
    Json,
    answer,
    body,
    operation,
    path,
    problem,
)
from fieldfare.gateway.publishing.encrypted import SpaceDocument
from fieldfare.gateway.routes.keys import KeyBody, KeysDocument, MadeKeyDocument
from fieldfare.gateway.routes.quotas import QuotasBody, QuotasDocument
from fieldfare.gateway.routes.subscriptions import SpaceBody, SpacesDocument

_SPACES = path(
    "/v1/spaces",
    get=operation(
        "list_spaces",
        "List the spaces in which the caller has rights",
        answers=answer(
            "All of these spaces.",
            SpacesDocument,
            {"spaces": [{"name": "default"}]},
        ),
    ),
    post=operation(
        "create_space",
        "Create a space",
        takes=body(SpaceBody, {"name": "market"}),
        answers={
            "201": answer("The space was created.", SpaceDocument, {"name": "market"}),
            "409": problem("A space with this name exists."),
        },
        problems="400 429",
    ),
)

_SPACE = path(
    "/v1/spaces/{space}",
    delete=operation(
        "delete_space",
        "Delete a space",
        "Removes the space with its subscriptions, their cursors and dead letters, its keys and its quotas,"
        " and"
        " closes its streams. A space that is created with this name later starts empty. The space `default`"
        " cannot be deleted.",
        answers={
            "204": answer("The space was deleted."),
            "409": problem("The space `default` cannot be deleted."),
        },
        problems="404 429",
    ),
)

_QUOTAS_PATH = path(
    "/v1/spaces/{space}/quotas",
    get=operation(
        "get_quotas",
        "Read a space's quotas and usage",
        answers=answer("The quotas and the usage.", QuotasDocument),
        problems="404",
    ),
    put=operation(
        "put_quotas",
        "Replace all quotas of a space",
        "What a space has beyond a new quota is not removed, but cannot grow.",
        takes=body(QuotasBody, {"events_per_s": 500, "subscriptions": 10000}),
        answers=answer("The quotas after the change.", QuotasDocument),
        problems="400 404 429",
    ),
)

KEYS: Json = {
    **path(
        "/v1/keys",
        get=operation(
            "list_keys",
            "List the API keys that the caller may manage",
            "An admin may manage all keys; a key with the right `manage` in a space, the keys of that space.",
            answers={
                "200": answer("The keys, without the secret keys.", KeysDocument),
                "409": problem(NO_KEYS),
            },
        ),
        post=operation(
            "create_key",
            "Create an API key",
            "The secret key is shown only in the response.",
            takes=body(KeyBody, {"space": "default", "rights": ["publish"], "note": "gate 17"}),
            answers={
                "201": answer("The key was created.", MadeKeyDocument),
                "409": problem(
                    "The service requires no API keys, so there are none to manage; or it has the maximum"
                    " number."
                ),
            },
            problems="400 404",
        ),
    ),
    **path(
        "/v1/keys/{key}",
        delete=operation(
            "revoke_key",
            "Revoke an API key",
            "From the response on the key is rejected, and its open streams have ended.",
            answers={
                "204": answer("The key was revoked."),
                "409": problem(NO_KEYS),
            },
            problems="404",
        ),
    ),
}

SPACES: Json = _SPACES | _SPACE | _QUOTAS_PATH
