"""The part of the OpenAPI description about subscriptions and their delivery settings."""

from __future__ import annotations

from fieldfare.gateway.delivery_settings import AUTHORIZATION_MAX, PATH_MAX, SECRETS_MAX
from fieldfare.gateway.labels import LABEL_KEY
from fieldfare.gateway.openapi.filters import DIALECT
from fieldfare.gateway.openapi.from_types import described, nullable
from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    array,
    body,
    boolean,
    integer,
    number,
    operation,
    or_null,
    parameter,
    path,
    problem,
    record,
    ref,
    string,
    taken,
)
from fieldfare.gateway.push.addresses import URL_MAX_CHARS
from fieldfare.gateway.routes.backlogs import PAGE_MAX, PageDocument
from fieldfare.gateway.routes.criteria import SEARCH_MAX_CHARS, WANTED_MAX
from fieldfare.gateway.routes.subscriptions import SITES_WAIT_MAX_S, BulkAnswerDocument
from fieldfare.gateway.subscription_store import (
    FOUND_MAX,
    SEARCHED_MAX,
    ChangesBody,
    SubscriptionBody,
    SubscriptionDocument,
)
from fieldfare.model import LABEL_VALUE_MAX, LABELS_MAX, OWNER_MAX, DeliverySettings, PushSettings

_EXAMPLE: Json = {
    "id": "cheap-yahoo",
    "space": "default",
    "filter": "data.symbol = 'YHOO' AND data.price < 18.5",
    "dialect": "sql",
    "revision": 1,
    "valid_from": "0-0-0",
}
_DELIVERY: Json = nullable(described(DeliverySettings, order_by={"maxLength": PATH_MAX}))["properties"]
del _DELIVERY["paused_because"], _DELIVERY["push"]
_PUSH = described(
    PushSettings,
    url={"maxLength": URL_MAX_CHARS},
    secrets={"items": string(pattern="^whsec_"), "maxItems": SECRETS_MAX, "writeOnly": True},
    authorization={"maxLength": AUTHORIZATION_MAX, "writeOnly": True},
)
_SECRET = ("secrets", "authorization")
_PUSH_SHOWN: Json = {name: each for name, each in _PUSH["properties"].items() if name not in _SECRET}
_PUSH_TOLD: Json = {
    "signed": integer("Number of secrets that are set.", minimum=0),
    "authorized": boolean("Whether a value of the header Authorization is set."),
}

_OWNER: Json = {"minLength": 1, "maxLength": OWNER_MAX}
_LABELS: Json = {
    "propertyNames": {"pattern": f"^{LABEL_KEY}$"},
    "additionalProperties": or_null(string(maxLength=LABEL_VALUE_MAX)),
    "maxProperties": LABELS_MAX,
}

SUBSCRIPTION_SCHEMAS: Json = {
    "Filter": described(
        SubscriptionBody, dialect=DIALECT, delivery=ref("Delivery"), owner=_OWNER, labels=_LABELS
    ),
    "DeliverySettings": record(
        _DELIVERY, [], description="The delivery settings without `push`, as in requests and responses."
    ),
    "Delivery": {
        "allOf": [ref("DeliverySettings")],
        "properties": {"push": {"oneOf": [{"type": "null"}, ref("Push")]}},
        "unevaluatedProperties": False,
        "description": "Delivery settings to change. A member that is null is reset to its default; missing"
        " members do not change.",
    },
    "Push": {
        **nullable(_PUSH),
        "description": "The webhook that messages are sent to by HTTP, in place of readers that fetch them."
        " Missing members do not change; `url` is required the first time.",
        "additionalProperties": False,
    },
    "DeliveryShown": {
        "allOf": [ref("DeliverySettings")],
        "properties": {
            "push": record({**_PUSH_SHOWN, **_PUSH_TOLD}, ["url", "mode", "requests_max", "signed"])
        },
        "description": "The delivery settings that differ from their defaults.",
    },
}

_NO_REPLAY = problem(
    "The subscription has a `start`, and the space's stored matches have reached their quota."
)
_BULK = taken(
    {
        "subscriptions": array(
            ref("Filter"), "The subscriptions; each needs an id to be replaced later.", maxItems=10000
        ),
        "replace": boolean(
            "Whether existing subscriptions are replaced (default). Otherwise one that exists with another"
            " filter or other settings is refused."
        ),
    },
    ["subscriptions"],
)
_LIST = path(
    "/v1/spaces/{space}/subscriptions",
    get=operation(
        "list_subscriptions",
        "List subscriptions, sorted by id or by backlog",
        parameters=[
            parameter(
                "after",
                "query",
                string(),
                "Return only ids after this one, or what follows the page with this `next`; default: from the"
                " first.",
            ),
            parameter(
                "sort",
                "query",
                string(enum=["id", "backlog"], default="id"),
                "Order. By backlog the greatest comes first, each subscription has a `backlog`, and a page"
                f" has at most {PAGE_MAX:,}.",
            ),
            parameter(
                "search",
                "query",
                string(maxLength=SEARCH_MAX_CHARS),
                "Return only subscriptions with this text in their id, filter, owner, or in `key=value` of a"
                f" label, in any case of A to Z. Not with `sort=backlog`. A page has at most {FOUND_MAX}, and"
                f" looks at {SEARCHED_MAX:,} of them: it may be short, or empty, and have a `next`.",
            ),
            parameter(
                "owner",
                "query",
                string(minLength=1, maxLength=OWNER_MAX),
                f"Return only subscriptions with this owner. A page has at most {FOUND_MAX}, or, sorted by"
                f" backlog, {PAGE_MAX:,}, and may be short, or empty, and have a `next`.",
            ),
            parameter(
                "label",
                "query",
                array(string(), maxItems=WANTED_MAX),
                "Return only subscriptions with this label: `key=value`, or `key` for any value. Repeated:"
                " only those with all of these labels. Pages are as with `owner`.",
            ),
            parameter(
                "limit",
                "query",
                integer(minimum=1, maximum=10000, default=100),
                "Maximum subscriptions of the page.",
            ),
        ],
        answers=answer(
            "A page of the subscriptions. Sorted by backlog, it can be refused with 503 soon after a start.",
            PageDocument,
            {"subscriptions": [_EXAMPLE], "next": None},
        ),
        problems="400 404",
    ),
    post=operation(
        "create_subscriptions",
        "Create one subscription, or create and replace many",
        "In a request with many, each subscription is checked on its own: the valid ones are stored and"
        " replace"
        " those with the same id, the others are listed in `refused`.",
        takes=body(
            {"oneOf": [ref("Filter"), _BULK]},
            {"subscriptions": [{"id": "cheap-yahoo", "filter": _EXAMPLE["filter"]}]},
        ),
        answers={
            "200": answer(
                "For many: the number of subscriptions by result. For one: it exists with the same filter and"
                " settings.",
                {"oneOf": [BulkAnswerDocument, SubscriptionDocument]},
                {"created": 1, "replaced": 0, "unchanged": 0, "refused": []},
            ),
            "201": answer("The subscription was created.", SubscriptionDocument, _EXAMPLE),
            "409": problem(
                "A subscription with this id has another filter or other settings; or the space has reached"
                " its"
                " quota of subscriptions or filter cost."
            ),
            "507": _NO_REPLAY,
        },
        problems="400 404 429",
    ),
)

_ONE = path(
    "/v1/spaces/{space}/subscriptions/{id}",
    get=operation(
        "get_subscription",
        "Read a subscription",
        parameters=[
            parameter(
                "sites_wait_s",
                "query",
                number(exclusiveMinimum=0, maximum=SITES_WAIT_MAX_S),
                "Maximum seconds to wait until the subscription counts at all sites.",
            )
        ],
        answers=answer("The subscription.", SubscriptionDocument, _EXAMPLE),
        problems="400 404",
    ),
    put=operation(
        "put_subscription",
        "Create a subscription, or replace its filter",
        "Events that are published after the response are matched against the new filter only. The cursor"
        " stays,"
        " and so do delivery settings that the request does not name.",
        takes=body(ref("Filter"), {"filter": _EXAMPLE["filter"], "dialect": "sql"}),
        answers={
            "200": answer(
                "The filter was replaced, or was the same already.", SubscriptionDocument, _EXAMPLE
            ),
            "201": answer("The subscription was created.", SubscriptionDocument, _EXAMPLE),
            "409": problem(
                "The subscription exists, and only new ones can have a `start`; or the space has reached its"
                " quota of subscriptions or filter cost."
            ),
            "507": _NO_REPLAY,
        },
        problems="400 404 429",
    ),
    patch=operation(
        "patch_subscription",
        "Change a subscription's delivery settings, owner or labels",
        "Members that are not named do not change, nor do the filter and its revision.",
        takes=body(
            described(ChangesBody, delivery=ref("Delivery"), owner=_OWNER, labels=_LABELS),
            {"delivery": {"max_attempts": 5}, "labels": {"env": "prod"}},
        ),
        answers=answer("The subscription after the change.", SubscriptionDocument, _EXAMPLE),
        problems="400 404 429",
    ),
    delete=operation(
        "delete_subscription",
        "Delete a subscription",
        "Its open streams end with the event `deleted`.",
        answers={"204": answer("The subscription was deleted.")},
        problems="404 429",
    ),
)

SUBSCRIPTIONS: Json = _LIST | _ONE
