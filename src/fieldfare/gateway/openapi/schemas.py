"""Schemas of the OpenAPI description that are more than one type of the code says."""

from __future__ import annotations

from fieldfare.filters.encrypted import ENCRYPTED
from fieldfare.filters.filter import DIALECTS
from fieldfare.gateway.delivery_settings import AUTHORIZATION_MAX, PATH_MAX, SECRETS_MAX
from fieldfare.gateway.labels import LABEL_KEY
from fieldfare.gateway.openapi.from_types import described, nullable
from fieldfare.gateway.openapi.words import Json, boolean, integer, or_null, record, ref, string
from fieldfare.gateway.publishing.events import UsualEvent
from fieldfare.gateway.push.addresses import URL_MAX_CHARS
from fieldfare.gateway.subscription_store import SubscriptionBody
from fieldfare.model import LABEL_VALUE_MAX, LABELS_MAX, OWNER_MAX, DeliverySettings, PushSettings

EVENT: Json = {
    "specversion": "1.0",
    "id": "1",
    "source": "/exchange",
    "type": "trade",
    "time": "2013-01-01T05:00:00Z",
    "data": {"symbol": "YHOO", "price": 18.25},
}

_EVENT = described(UsualEvent)
_EVENT["description"] = "A CloudEvent; members that are not listed are extension attributes."
_EVENT["properties"]["data_base64"] = {
    "type": ["string", "null"],
    "description": "Payload that is not JSON, as base64, in place of `data`.",
}
_EVENT["additionalProperties"] = {"type": ["string", "integer", "boolean", "null"]}

FILTER: Json = {
    "description": "The filter's text. In a dialect that is JSON: the JSON value, or its text.",
    "type": ["string", "object", "array"],
}
DIALECT = string(
    "The language of the filter; `aspe` is for encrypted spaces only.",
    enum=sorted([*DIALECTS, ENCRYPTED]),
    default="sql",
)

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

OWNER: Json = {"minLength": 1, "maxLength": OWNER_MAX}
LABELS: Json = {
    "propertyNames": {"pattern": f"^{LABEL_KEY}$"},
    "additionalProperties": or_null(string(maxLength=LABEL_VALUE_MAX)),
    "maxProperties": LABELS_MAX,
}

SCHEMAS: Json = {
    "Event": _EVENT,
    "Filter": described(
        SubscriptionBody, dialect=DIALECT, delivery=ref("Delivery"), owner=OWNER, labels=LABELS
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
