"""The part of the OpenAPI description that is about filters as such: check, explain, test, convert."""

from __future__ import annotations

from fieldfare.filters.filter import DIALECTS
from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    array,
    body,
    integer,
    problem,
    record,
    ref,
    string,
    taken,
)

FILTER: Json = {
    "description": "The filter's text; in a dialect that is JSON the JSON itself, or its text.",
    "type": ["string", "object", "array"],
}
_DIALECT = string(enum=sorted(DIALECTS), default="sql")
_TEXT = string("All of it as text for people.")
_BOOLEAN: Json = {"type": "boolean"}
_WARNING = record({"detail": string(), "hint": string()}, ["detail"])
_EXAMPLE = "data.symbol = 'YHOO' AND data.price < 18.5"

SCHEMAS: Json = {
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


def _post(
    operation: str, summary: str, members: Json, answered: Json, description: str, example: Json, **more: str
) -> Json:
    request = taken(
        {"filter": FILTER, "dialect": _DIALECT, **members},
        ["filter", "events"] if "events" in members else ["filter"],
    )
    if "sample_events" in members:
        request["required"] = ["filter"]
    return {
        "post": {
            "operationId": operation,
            "summary": summary,
            "requestBody": body(request, {"filter": _EXAMPLE, **example}),
            "responses": {
                "200": answer(description, answered),
                "400": problem(
                    "The request is wrong, or the filter was refused; the answer names the place."
                ),
                "413": problem("The body is too large, or there are too many events."),
                "415": problem("The content type is not taken."),
                **{code: problem(meaning) for code, meaning in more.items()},
            },
        }
    }


_EVENTS = array({"type": "object"}, maxItems=1000)

PATHS: Json = {
    "/v1/filters:check": _post(
        "check_filter",
        "Find all mistakes of a filter",
        {},
        ref("Check"),
        "Whether it can be used, what is wrong with it, and what is most likely not meant.",
        {},
    ),
    "/v1/filters:explain": _post(
        "explain_filter",
        "Say what a filter matches, and how selective it is",
        {
            "space": string("Hold the filter against this space's newest events."),
            "sample_events": integer("So many of them.", minimum=0, maximum=1000, default=1000),
            "events": {**_EVENTS, "description": "Hold it against these events instead."},
        },
        ref("Explanation"),
        "When an event matches, what the index uses, and what is most likely not meant.",
        {"space": "default"},
        **{"404": "Unknown space."},
    ),
    "/v1/filters:test": _post(
        "test_filter",
        "Run a filter over events",
        {"events": _EVENTS},
        record({"matched": integer("How many match."), "results": array(ref("Tested"))}),
        "What became of each event, in order, and which part of the filter the others failed. After much "
        "work only matches is told.",
        {"events": [{"type": "trade", "data": {"symbol": "YHOO", "price": 20}}]},
    ),
    "/v1/filters:convert": _post(
        "convert_filter",
        "Write a filter of another dialect in sql",
        {"to": string(enum=["sql"], default="sql")},
        record({"filter": string(), "dialect": string()}),
        "Text that matches exactly the same events.",
        {"dialect": "sql"},
    ),
}
