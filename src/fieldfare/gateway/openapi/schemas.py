"""The content of requests and answers, with an example of each."""

from __future__ import annotations

from fieldfare.filters.encrypted import ENCRYPTED
from fieldfare.filters.filter import DIALECTS
from fieldfare.gateway.delivery_settings import AUTHORIZATION_MAX, PATH_MAX, SECRETS_MAX
from fieldfare.gateway.openapi.from_types import described, nullable
from fieldfare.gateway.openapi.words import Json, array, integer, number, record, ref, string
from fieldfare.gateway.publishing.events import UsualEvent
from fieldfare.gateway.push.addresses import URL_MAX_CHARS
from fieldfare.gateway.routes.keys import KeyBody
from fieldfare.gateway.routes.quotas import QuotasBody
from fieldfare.gateway.routes.subscriptions import EncryptionBody, SpaceBody
from fieldfare.gateway.subscription_store import SubscriptionBody
from fieldfare.model import DeliverySettings, PushSettings

FILTER: Json = {
    "description": "The filter's text; in a dialect that is JSON the JSON itself, or its text.",
    "type": ["string", "object", "array"],
}
DIALECT = string(enum=sorted([*DIALECTS, ENCRYPTED]), default="sql")
_TEXT = string("All of it as text for people.")
_BOOLEAN: Json = {"type": "boolean"}
_WARNING = record({"detail": string(), "hint": string()}, ["detail"])

FILTER_SCHEMAS: Json = {
    "FilterProblem": record(
        {
            "detail": string(),
            "line": integer("From 1; missing where it is about the whole filter."),
            "column": integer("From 1, in characters."),
            "hint": string(),
            "display": string("The line with a caret under the place."),
        },
        ["detail", "display"],
    ),
    "Check": record(
        {
            "valid": _BOOLEAN,
            "dialect": string(),
            "problems": array(ref("FilterProblem")),
            "warnings": array(ref("FilterProblem")),
            "text": _TEXT,
        }
    ),
    "Statement": record({"text": string(), "parts": array(ref("Statement"))}, ["text"]),
    "Explanation": record(
        {
            "dialect": string(),
            "matches": string("What is certain of it.", enum=["never", "always", "sometimes"]),
            "statement": ref("Statement"),
            "functions": array(record({"call": string(), "summary": string()})),
            "index": array(
                record(
                    {
                        "predicates": array(
                            record(
                                {"attribute": string(), "values": string(), "sample_fits": integer()},
                                ["attribute", "values"],
                            )
                        ),
                        "exact": {
                            "type": "boolean",
                            "description": "Whether an event that fits matches; else it is a candidate.",
                        },
                        "sample_fits": integer("Events of the sample that fit."),
                    },
                    ["predicates", "exact"],
                ),
                description="An event that fits none of these cannot match.",
            ),
            "cost": integer("Its cost in matching, in predicates, as quotas count it."),
            "sample": {
                "oneOf": [
                    {"type": "null"},
                    record({"events": integer(), "candidates": integer(), "matches": integer()}),
                ]
            },
            "warnings": array(_WARNING),
            "text": _TEXT,
        }
    ),
    "Tested": record(
        {
            "matches": _BOOLEAN,
            "value": {"type": ["boolean", "null"], "description": "null: unknown."},
            "errors": array(string(), description="Kinds of errors, for dialects that have them."),
            "failures": array(
                record(
                    {
                        "part": string("The part of the filter, in sql."),
                        "value": {"type": ["boolean", "null"]},
                        "read": array(record({"name": string(), "value": string("As sql writes it.")})),
                    }
                ),
                description="The innermost parts that made the filter fail.",
            ),
            "text": _TEXT,
        },
        ["matches"],
    ),
}

EVENT: Json = {
    "specversion": "1.0",
    "id": "1",
    "source": "/exchange",
    "type": "trade",
    "time": "2013-01-01T05:00:00Z",
    "data": {"symbol": "YHOO", "price": 18.25},
}
SUBSCRIPTION: Json = {
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
    "signed": integer("How many secrets there are.", minimum=0),
    "authorized": {"type": "boolean", "description": "Whether there is a header Authorization."},
}
APPENDED: Json = {"partition": 0, "offset": 5, "count": 1, "stamp": 1, "duplicate": False}


POSITION = string("Where an event stands: partition-offset-index.", pattern=r"^\d+-\d+-\d+$")
_NULLABLE_NUMBER: Json = {"type": ["number", "null"]}

_PLACE: Json = {
    "pointer": string("A JSON pointer into the request or the event."),
    "byte": integer("Byte of the request's body, from 0."),
    "line": integer("Line of the text, from 1."),
    "column": integer("Character of the line, from 1."),
    "hint": string("What may have been meant."),
    "display": string("The text with a caret under the place."),
}

SPACE_OF_KEY: Json = {
    "type": ["string", "null"],
    "description": "Where its rights hold; without one they hold for the service.",
}
RIGHTS = array(
    string(enum=["publish", "subscribe", "manage", "watch", "admin", "broker"]),
    minItems=1,
    maxItems=5,
    description="publish, subscribe and manage are rights in a space, watch and admin of the service.",
)
_KEY: Json = {
    "id": string("Names the key in lists; the key itself begins with it."),
    "space": SPACE_OF_KEY,
    "rights": RIGHTS,
    "note": string(),
    "created_ms": integer(),
    "created_by": string("The id of the key that made it."),
}

QUOTA_WORDS = {
    "events_per_s": "Events that it may publish in a second, on average.",
    "bytes_per_s": "Bytes of events that it may publish in a second, on average.",
    "matching_ms_per_s": "Milliseconds of processor time that matching its events may take in a second.",
    "changes_per_s": "Subscriptions that it may create, change or delete in a second, on average.",
    "delivered_bytes_per_s": "Bytes of messages that its readers may be sent in a second, on average.",
    "subscriptions": "Subscriptions that it may have.",
    "filter_cost": "What its filters may cost together, as /v1/filters:explain says.",
    "stored_event_bytes": "Bytes of events that it may have in the log.",
    "stored_match_bytes": "Bytes of matches that it may have on disk.",
    "connections": "Streams, WebSockets and pulls that it may have open at a time.",
}
_QUOTA: Json = {"type": ["number", "null"], "minimum": 0}
_QUOTAS: Json = {name: _QUOTA | {"description": words} for name, words in QUOTA_WORDS.items()}

_EVENT = described(UsualEvent, data={"description": "Any JSON value."})
_EVENT["description"] = "A CloudEvent; other members are extension attributes."
_EVENT["properties"]["data_base64"] = {"type": ["string", "null"]}
_EVENT["additionalProperties"] = {"type": ["string", "integer", "boolean", "null"]}

SCHEMAS: Json = {
    "SetQuotas": described(
        QuotasBody, **{name: {"description": words} for name, words in QUOTA_WORDS.items()}
    ),
    "Quotas": record(
        {
            "space": string(),
            "limits": record(_QUOTAS, description="What holds; null is no bound."),
            "used": record({name: integer() for name in QUOTA_WORDS if not name.endswith("_per_s")}),
            "set": record(_QUOTAS, [], description="What is set for this space."),
        }
    ),
    "Problem": record(
        {
            "type": string("The kind of problem, a URN."),
            "title": string(),
            "status": integer(),
            "detail": string("What is wrong, for a person."),
            **_PLACE,
            "refused": array(ref("Refused")),
        },
        ["type", "title", "status", "detail"],
    ),
    "Refused": record(
        {"index": integer("Place in the request, from 0."), "detail": string(), **_PLACE},
        ["index", "detail"],
    ),
    "NewKey": described(KeyBody, space=SPACE_OF_KEY, rights=RIGHTS),
    "Key": record(_KEY),
    "MadeKey": record({"key": string("The key itself."), **_KEY}),
    "Event": _EVENT,
    "Appended": record(
        {
            "partition": integer(),
            "offset": {
                "type": ["integer", "null"],
                "description": "Offset of the record; event i of it stands at partition-offset-i. An empty "
                "batch makes none, and is taken without a number only.",
            },
            "count": integer("Events appended."),
            "stamp": {
                "type": ["integer", "null"],
                "description": "The events are matched against the subscriptions as of this revision.",
            },
            "duplicate": {"type": "boolean", "description": "A repeat: the first one's place."},
            "follows": integer("As Fieldfare-Follows said, where it was said."),
        },
        ["partition", "offset", "count", "stamp", "duplicate"],
    ),
    "PartlyAppended": record(
        {
            "title": string(),
            "partition": integer(),
            "offset": integer(),
            "count": integer(),
            "stamp": integer(),
            "duplicate": {"type": "boolean"},
            "follows": integer(),
            "accepted": array(record({"index": integer(), "position": POSITION})),
            "refused": array(ref("Refused")),
        },
        ["title", "partition", "offset", "count", "stamp", "duplicate", "accepted", "refused"],
    ),
    "Space": record(
        {
            "name": string(),
            "encryption": record(
                {
                    "library": string(),
                    "dimensions": integer(),
                    "protection": string("From whom the space is protected, and from whom not."),
                },
                description="Only where the space is encrypted.",
            ),
        },
        ["name"],
    ),
    "NewSpace": described(SpaceBody, encryption={"oneOf": [{"type": "null"}, described(EncryptionBody)]}),
    "Filter": described(SubscriptionBody, dialect=DIALECT, delivery=ref("Delivery")),
    "DeliverySettings": record(_DELIVERY, [], description="Settings that requests and answers have."),
    "Delivery": {
        "allOf": [ref("DeliverySettings")],
        "properties": {"push": {"oneOf": [{"type": "null"}, ref("Push")]}},
        "unevaluatedProperties": False,
        "description": "A setting that is null is reset to its default.",
    },
    "Push": {
        **nullable(_PUSH),
        "description": "Where messages are sent by HTTP. Members that are not named keep their values; the"
        " first time, url is required.",
        "additionalProperties": False,
    },
    "DeliveryShown": {
        "allOf": [ref("DeliverySettings")],
        "properties": {
            "push": record({**_PUSH_SHOWN, **_PUSH_TOLD}, ["url", "mode", "requests_max", "signed"])
        },
        "description": "The settings that were set.",
    },
    **FILTER_SCHEMAS,
    "Subscription": record(
        {
            "id": string(),
            "space": string(),
            "filter": string(),
            "dialect": string(),
            "revision": integer(
                "The registry revision that wrote this version: it counts from that stamp on."
            ),
            "valid_from": string(
                "No event before this position meets this version.", pattern=POSITION["pattern"]
            ),
            "given_up_events": integer(
                "Events since the gateway's start for which the filter was too much work to evaluate; "
                "they were not matched. Only where one subscription is read, and only if there are any."
            ),
            "start": string("Where it began, if it was created with a start.", pattern=POSITION["pattern"]),
            "past": ref("Replay"),
            "delivery": ref("DeliveryShown"),
            "paused_because": string("Why the service has paused it."),
            "warnings": array(
                _WARNING,
                description="What is most likely not meant in the filter that was just stored.",
            ),
            "unused_s": number("Seconds that it has not been used, where it expires.", minimum=0),
            "push": record(
                {
                    "state": {"enum": ["working", "trying", "broken", "paused", "off"]},
                    "failures": integer("Requests in a row that were not accepted.", minimum=0),
                    "next_try_s": number("Seconds until a broken address is tried again.", minimum=0),
                    "last": string("What came of the last request."),
                    "requests": integer("Requests under way.", minimum=0),
                },
                ["state"],
                description="How it stands with what is sent. Only where one subscription is read.",
            ),
        },
        ["id", "space", "filter", "dialect", "revision", "valid_from"],
    ),
    "Replay": record(
        {
            "kept_from": string("From where on retention has left it."),
            "matched_to": string("Up to where it is matched."),
            "to": string("Where it ends: from here on the subscription was there."),
            "is_matched": {"type": "boolean", "description": "Whether all of it is matched."},
        },
        description="What lies before the creation of a subscription with a start. Only where one is read.",
    ),
    "BulkAnswer": record(
        {
            "created": integer(),
            "replaced": integer(),
            "unchanged": integer(),
            "refused": array(ref("Refused")),
            "warnings": array(
                record({"id": string(), "detail": string(), "hint": string()}, ["id", "detail"]),
                description="What is most likely not meant in the first filters of the request.",
            ),
        },
        ["created", "replaced", "unchanged", "refused"],
    ),
    "Message": record(
        {
            "position": POSITION,
            "attempt": integer("Which time this is that it is given.", minimum=1),
            "event": ref("Event"),
        }
    ),
    "DeadLetter": record(
        {
            "position": POSITION,
            "attempts": integer("How often it was given.", minimum=0),
            "reason": string("Why it was given up."),
            "dead_ms": integer("When, in milliseconds since 1970."),
            "event": {
                "oneOf": [{"type": "null"}, ref("Event")],
                "description": "null where retention has taken it.",
            },
        }
    ),
    "Stats": record(
        {
            "log_end": integer("The offset that the next record gets."),
            "matched_end": integer("The records before this offset are matched."),
            "lag_events": integer("Events appended and not matched yet."),
            "events_total": integer("Events appended since the gateway's start."),
            "matches_total": integer("Matches found since the gateway's start."),
            "delivered_total": integer("Messages given to subscribers since the gateway's start."),
            "subscriptions": integer(),
            "connected": integer("Open streams."),
            "events_per_s": number(),
            "matches_per_s": number(),
            "match_latency_ms": record({"p50": _NULLABLE_NUMBER, "p99": _NULLABLE_NUMBER}),
            "log_bytes": integer(),
            "disk_free_bytes": integer(),
            "notices": {"type": "array", "items": string()},
            "quarantined_records": integer("Records set aside because matching them failed."),
            "pid": integer(),
        }
    ),
}

SET_ASIDE = record(
    {
        "position": string("Where the record stands: that of its first event."),
        "space": string(),
        "events": integer("Number of events that were not delivered."),
        "error": string("Why it could not be matched, in short and without any event's text."),
        "set_aside_ms": integer("When, in milliseconds since 1970."),
    }
)
