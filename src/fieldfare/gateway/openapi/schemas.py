"""What requests and answers hold, and an example of each."""

from __future__ import annotations

from fieldfare.filters.encrypted import DIMENSIONS_MAX, ENCRYPTED
from fieldfare.filters.filter import DIALECTS
from fieldfare.gateway.delivery_settings import (
    AGE_MAX_S,
    ATTEMPTS_MAX,
    AUTHORIZATION_MAX,
    DEADLINE_MAX_S,
    DELAYS_MAX,
    IN_FLIGHT_MAX,
    IN_FLIGHT_MAX_BYTES,
    PATH_MAX,
    PUSHED_MAX,
    PUSHES_MAX,
    SECRETS_MAX,
    UNUSED_MAX_S,
    UNUSED_MIN_S,
)
from fieldfare.gateway.openapi.words import Json, array, integer, number, record, ref, string, taken
from fieldfare.gateway.push.addresses import URL_MAX_CHARS

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
            "cost": integer("What it costs whoever matches with it, in predicates: what quotas count."),
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
_SECONDS_MAX = int(DEADLINE_MAX_S)
DELIVERY: Json = {
    "ack_deadline_s": {
        "type": ["number", "null"],
        "exclusiveMinimum": 0,
        "maximum": _SECONDS_MAX,
        "description": "Seconds until a message that was not acked comes again.",
    },
    "max_attempts": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": ATTEMPTS_MAX,
        "description": "How often a message is given before it is given up.",
    },
    "retry_delays_s": {
        "type": ["array", "null"],
        "items": number(minimum=0, maximum=_SECONDS_MAX),
        "maxItems": DELAYS_MAX,
        "description": "Seconds until a message that failed comes again, by attempt; the last counts on.",
    },
    "max_in_flight": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": IN_FLIGHT_MAX,
        "description": "Messages that all readers together may hold unacked.",
    },
    "max_in_flight_bytes": {
        "type": ["integer", "null"],
        "minimum": 1,
        "maximum": IN_FLIGHT_MAX_BYTES,
        "description": "Bytes of messages that all readers together may hold unacked, about.",
    },
    "dead_letter": {
        "type": ["boolean", "null"],
        "description": "Whether what is given up is kept in a list.",
    },
    "paused": {"type": ["boolean", "null"], "description": "Whether nothing is given for the time being."},
    "order_by": {
        "type": ["string", "null"],
        "maxLength": PATH_MAX,
        "description": "An attribute: of events that have the same value there one is given at a time.",
    },
    "max_age_s": {
        "type": ["number", "null"],
        "exclusiveMinimum": 0,
        "maximum": int(AGE_MAX_S),
        "description": "Seconds after which an event that was not settled is not given any more.",
    },
    "expires_unused_s": {
        "type": ["number", "null"],
        "minimum": int(UNUSED_MIN_S),
        "maximum": int(UNUSED_MAX_S),
        "description": "Seconds after which the subscription is removed if nobody has used it meanwhile.",
    },
}
_PUSH_SHOWN: Json = {
    "url": string("The address.", maxLength=URL_MAX_CHARS),
    "mode": {
        "enum": ["structured", "binary", "batch"],
        "description": "How CloudEvents' HTTP binding writes the events.",
    },
    "batch_max": integer("Events of one request, in batch mode.", minimum=1, maximum=PUSHED_MAX),
    "requests_max": integer("Requests under way at a time.", minimum=1, maximum=PUSHES_MAX),
}
_PUSH_SECRET: Json = {
    "secrets": {
        "type": ["array", "null"],
        "items": string(pattern="^whsec_"),
        "maxItems": SECRETS_MAX,
        "writeOnly": True,
        "description": "What requests are signed with, by each of them. Shown to nobody.",
    },
    "authorization": {
        "type": ["string", "null"],
        "maxLength": AUTHORIZATION_MAX,
        "writeOnly": True,
        "description": "What the header Authorization says. Shown to nobody.",
    },
}
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
    string(enum=["publish", "subscribe", "manage", "watch", "admin"]),
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

SCHEMAS: Json = {
    "SetQuotas": taken(_QUOTAS, []),
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
    "NewKey": taken(
        {"space": SPACE_OF_KEY, "rights": RIGHTS, "note": string("For people.", maxLength=200)}, ["rights"]
    ),
    "Key": record(_KEY),
    "MadeKey": record({"key": string("The key itself."), **_KEY}),
    "Event": record(
        {
            "specversion": string(enum=["1.0"]),
            "id": string(minLength=1),
            "source": string(minLength=1),
            "type": string(minLength=1),
            "subject": string(),
            "time": string(format="date-time"),
            "datacontenttype": string(),
            "dataschema": string(),
            "data": {"description": "Any JSON value."},
            "data_base64": string(),
        },
        ["specversion", "id", "source", "type"],
        additionalProperties={"type": ["string", "integer", "boolean", "null"]},
    ),
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
    "NewSpace": taken(
        {
            "name": string(),
            "encryption": taken(
                {
                    "library": string(enum=[ENCRYPTED]),
                    "dimensions": integer("How long vectors are.", minimum=1, maximum=DIMENSIONS_MAX),
                },
                description="Takes encrypted events and filters only: see docs/encrypted-spaces.md.",
            ),
        },
        ["name"],
    ),
    "Filter": taken(
        {
            "filter": FILTER,
            "dialect": DIALECT,
            "id": string(),
            "delivery": ref("Delivery"),
            "start": string(
                "Where a new one begins: earliest, latest, a position, or a time of publishing. What "
                "the log holds from there on is matched, too. Not of many in one request."
            ),
        },
        ["filter"],
    ),
    "Delivery": taken(
        {**DELIVERY, "push": {"oneOf": [{"type": "null"}, ref("Push")]}},
        [],
        description="What is null is what it is by itself.",
    ),
    "Push": taken(
        {**_PUSH_SHOWN, **_PUSH_SECRET},
        [],
        description="Where messages are sent by HTTP. What is not named stays; the first time url is needed.",
    ),
    "DeliveryShown": record(
        {
            **DELIVERY,
            "push": record({**_PUSH_SHOWN, **_PUSH_TOLD}, ["url", "mode", "requests_max", "signed"]),
        },
        [],
        description="What was set.",
    ),
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
                "For so many events, since the gateway's start, the filter was too much work to evaluate; "
                "they were not matched. Only where one subscription is read, and only if there are any."
            ),
            "start": string("Where it began, if it was created with a start.", pattern=POSITION["pattern"]),
            "past": ref("Past"),
            "delivery": ref("DeliveryShown"),
            "paused_because": string("Why the service has paused it."),
            "unused_s": number("Seconds that nobody has used it, where it expires.", minimum=0),
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
    "Past": record(
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
        }
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
        "events": integer("How many events nobody was given."),
        "error": string("Why it could not be matched, in short and without any event's text."),
        "set_aside_ms": integer("When, in milliseconds since 1970."),
    }
)
