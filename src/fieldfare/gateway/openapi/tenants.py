"""The part of the OpenAPI description about spaces, their quotas and their keys."""

from __future__ import annotations

from fieldfare.gateway.openapi.from_types import described
from fieldfare.gateway.openapi.words import (
    NO_KEYS,
    Json,
    answer,
    array,
    body,
    integer,
    operation,
    or_null,
    path,
    problem,
    record,
    ref,
    string,
)
from fieldfare.gateway.routes.keys import KeyBody
from fieldfare.gateway.routes.quotas import QuotasBody
from fieldfare.gateway.routes.subscriptions import EncryptionBody, SpaceBody

_SPACE_OF_KEY = or_null(
    string("The space that the rights apply to; null: the rights apply to the whole service.")
)
_RIGHTS = array(
    string(enum=["publish", "subscribe", "manage", "watch", "admin", "broker"]),
    "What the key permits. A key of a space can have publish, subscribe and manage; a key of the service"
    " can have watch, admin and broker (another site).",
    minItems=1,
    maxItems=6,
)
_KEY: Json = {
    "id": string("Id of the key, which is also how the secret key begins."),
    "space": _SPACE_OF_KEY,
    "rights": _RIGHTS,
    "note": string("The note that was given when the key was created."),
    "created_ms": integer("Time of creation, in milliseconds since 1970."),
    "created_by": string("Id of the key that created this one."),
}

QUOTA_WORDS = {
    "events_per_s": "Maximum events published per second, on average.",
    "bytes_per_s": "Maximum bytes of events published per second, on average.",
    "matching_ms_per_s": "Maximum milliseconds of processor time per second, on average, for matching the"
    " space's events.",
    "changes_per_s": "Maximum subscriptions created, changed or deleted per second, on average.",
    "delivered_bytes_per_s": "Maximum bytes of messages sent to the space's readers per second, on average.",
    "subscriptions": "Maximum number of subscriptions.",
    "filter_cost": "Maximum total cost of the filters, in predicates as /v1/filters:explain counts them.",
    "stored_event_bytes": "Maximum bytes of events in the log.",
    "stored_match_bytes": "Maximum bytes of matches on disk.",
    "connections": "Maximum number of open streams, WebSockets and pulls.",
}
_USED_WORDS = {
    "subscriptions": "Number of subscriptions.",
    "filter_cost": "Total cost of the filters, in predicates.",
    "stored_event_bytes": "Bytes of events in the log.",
    "stored_match_bytes": "Bytes of matches on disk.",
    "connections": "Number of open streams, WebSockets and pulls.",
}
_QUOTA: Json = {"type": ["number", "null"], "minimum": 0}
_QUOTAS: Json = {name: _QUOTA | {"description": words} for name, words in QUOTA_WORDS.items()}

TENANT_SCHEMAS: Json = {
    "SetQuotas": described(
        QuotasBody, **{name: {"description": words} for name, words in QUOTA_WORDS.items()}
    )
    | {
        "description": "Quotas of a space. A member that is null or missing: the default of all spaces; 0:"
        " no limit."
    },
    "Quotas": record(
        {
            "space": string("Name of the space."),
            "limits": record(
                _QUOTAS, description="The quotas that apply, defaults included; null: no limit."
            ),
            "used": record(
                {name: integer(words) for name, words in _USED_WORDS.items()},
                description="Current usage, for the quotas that are totals.",
            ),
            "set": record(
                _QUOTAS, [], description="The quotas that were set for this space; others are the defaults."
            ),
        }
    ),
    "NewKey": described(KeyBody, space=_SPACE_OF_KEY, rights=_RIGHTS),
    "Key": record(_KEY),
    "MadeKey": record(
        {"key": string("The secret key, to be sent as `Authorization: Bearer KEY`. Not shown again."), **_KEY}
    ),
    "Space": record(
        {
            "name": string("Name of the space."),
            "encryption": record(
                described(EncryptionBody)["properties"]
                | {"protection": string("What the encryption protects from, and what it does not.")},
                description="How the space is encrypted; missing if it is not.",
            ),
        },
        ["name"],
    ),
    "NewSpace": described(SpaceBody, encryption={"oneOf": [{"type": "null"}, described(EncryptionBody)]}),
}

_SPACES = path(
    "/v1/spaces",
    get=operation(
        "list_spaces",
        "List the spaces in which the caller has rights",
        answers=answer(
            "All of these spaces.",
            record({"spaces": array(ref("Space"), "The spaces.")}),
            {"spaces": [{"name": "default"}]},
        ),
    ),
    post=operation(
        "create_space",
        "Create a space",
        takes=body(ref("NewSpace"), {"name": "market"}),
        answers={
            "201": answer("The space was created.", ref("Space"), {"name": "market"}),
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
        answers=answer("The quotas and the usage.", ref("Quotas")),
        problems="404",
    ),
    put=operation(
        "put_quotas",
        "Replace all quotas of a space",
        "What a space has beyond a new quota is not removed, but cannot grow.",
        takes=body(ref("SetQuotas"), {"events_per_s": 500, "subscriptions": 10000}),
        answers=answer("The quotas after the change.", ref("Quotas")),
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
                "200": answer(
                    "The keys, without the secret keys.", record({"keys": array(ref("Key"), "The keys.")})
                ),
                "409": problem(NO_KEYS),
            },
        ),
        post=operation(
            "create_key",
            "Create an API key",
            "The secret key is shown only in the response.",
            takes=body(ref("NewKey"), {"space": "default", "rights": ["publish"], "note": "gate 17"}),
            answers={
                "201": answer("The key was created.", ref("MadeKey")),
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
