"""The part of the OpenAPI description about spaces, their quotas and their keys."""

from __future__ import annotations

from fieldfare.gateway.openapi.words import Json, answer, array, body, operation, path, problem, record, ref

_SPACES = path(
    "/v1/spaces",
    get=operation(
        "list_spaces",
        "List the spaces",
        answers=answer(
            "The spaces.", record({"spaces": array(ref("Space"))}), {"spaces": [{"name": "default"}]}
        ),
    ),
    post=operation(
        "create_space",
        "Create a space",
        takes=body(ref("NewSpace"), {"name": "market"}),
        answers={
            "201": answer("The space was created.", ref("Space"), {"name": "market"}),
            "409": problem("There is such a space already."),
        },
        problems="400 429",
    ),
)

_SPACE = path(
    "/v1/spaces/{space}",
    delete=operation(
        "delete_space",
        "Delete a space",
        "Its subscriptions, with their cursors and dead letters, its keys and its quotas; what is open there"
        " ends. A space that is made of this name later has nothing of it. The space default stays.",
        answers={
            "204": answer("It is gone."),
            "409": problem("The space default is always there."),
        },
        problems="404 429",
    ),
)

_QUOTAS = path(
    "/v1/spaces/{space}/quotas",
    get=operation(
        "get_quotas",
        "What a space may have, and what it has",
        answers=answer("The quotas.", ref("Quotas")),
        problems="404",
    ),
    put=operation(
        "put_quotas",
        "Set a space's quotas",
        "A member that is null or missing takes the default of all spaces; 0 is no bound. Nothing that a"
        " space has beyond its quotas is removed.",
        takes=body(ref("SetQuotas"), {"events_per_s": 500, "subscriptions": 10000}),
        answers=answer("The quotas now.", ref("Quotas")),
        problems="400 404 429",
    ),
)

KEYS: Json = {
    **path(
        "/v1/keys",
        get=operation(
            "list_keys",
            "The API keys that the caller may manage",
            "An admin's key manages all, a key with the right to manage those of its space.",
            answers={
                "200": answer("The keys, without the keys themselves.", record({"keys": array(ref("Key"))})),
                "409": problem("The service asks for no keys."),
            },
        ),
        post=operation(
            "create_key",
            "Make an API key",
            "The answer is the only place where the key itself is ever to be seen.",
            takes=body(ref("NewKey"), {"space": "default", "rights": ["publish"], "note": "gate 17"}),
            answers={
                "201": answer("The key.", ref("MadeKey")),
                "409": problem("The service asks for no keys, or has too many."),
            },
            problems="400 404",
        ),
    ),
    **path(
        "/v1/keys/{key}",
        delete=operation(
            "revoke_key",
            "Revoke an API key",
            "After the answer it is rejected, and its open streams have ended.",
            answers={
                "204": answer("It was revoked."),
                "409": problem("The service asks for no keys."),
            },
            problems="404",
        ),
    ),
}

SPACES: Json = _SPACES | _SPACE | _QUOTAS
