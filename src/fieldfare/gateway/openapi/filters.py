"""The part of the OpenAPI description about help with filters."""

from __future__ import annotations

from fieldfare.filters.encrypted import ENCRYPTED
from fieldfare.filters.filter import DIALECTS
from fieldfare.gateway.openapi.from_types import described
from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    array,
    body,
    boolean,
    integer,
    operation,
    path,
    record,
    ref,
    string,
)
from fieldfare.gateway.routes.filters import EVENTS_MAX, CheckBody, ConvertBody, ExplainBody, TestBody

FILTER: Json = {
    "description": "The filter's text. In a dialect that is JSON: the JSON value, or its text.",
    "type": ["string", "object", "array"],
}
DIALECT = string(
    "The language of the filter; `aspe` is for encrypted spaces only.",
    enum=sorted([*DIALECTS, ENCRYPTED]),
    default="sql",
)
_CHECKED_DIALECT = string("The language of the filter.")
_TEXT = string("The complete result as text for people.")
WARNING = record(
    {
        "detail": string("What is probably not intended in the filter, as a sentence."),
        "hint": string("What was probably intended; missing if nothing can be suggested."),
    },
    ["detail"],
)

FILTER_SCHEMAS: Json = {
    "FilterProblem": record(
        {
            "detail": string("What is wrong, as a sentence."),
            "line": integer("Line in the filter, from 1; missing if the problem has no single place."),
            "column": integer("Character in the line, from 1; missing if the problem has no single place."),
            "hint": string("How to correct it; missing if nothing can be suggested."),
            "display": string("The line of the filter with carets below the place, as text for people."),
        },
        ["detail", "display"],
        description="An error of a filter, or a warning about it.",
    ),
    "Check": record(
        {
            "valid": boolean("Whether the filter has no errors."),
            "dialect": _CHECKED_DIALECT,
            "problems": array(ref("FilterProblem"), "The errors, in the order of their places."),
            "warnings": array(ref("FilterProblem"), "What is probably not intended, although it is valid."),
            "text": _TEXT,
        }
    ),
    "Statement": record(
        {
            "text": string("One condition of the filter in plain words."),
            "parts": array(
                ref("Statement"), "The conditions that it combines; missing if it is a single one."
            ),
        },
        ["text"],
        description="When an event matches, in words, as a tree of conditions.",
    ),
    "Explanation": record(
        {
            "dialect": _CHECKED_DIALECT,
            "matches": string(
                "`never` or `always` if that is certain for every event, otherwise `sometimes`.",
                enum=["never", "always", "sometimes"],
            ),
            "statement": ref("Statement"),
            "functions": array(
                record(
                    {
                        "call": string("Signature of the function."),
                        "summary": string("What it returns, as a phrase."),
                    }
                ),
                "The functions that the filter calls.",
            ),
            "index": array(
                record(
                    {
                        "predicates": array(
                            record(
                                {
                                    "attribute": string("The attribute that the predicate tests."),
                                    "values": string("The values that satisfy it, as text."),
                                    "sample_fits": integer(
                                        "Number of sample events that satisfy it; missing without a sample."
                                    ),
                                },
                                ["attribute", "values"],
                            ),
                            "Predicates that must all hold.",
                        ),
                        "exact": boolean(
                            "Whether every event that satisfies the predicates matches. Otherwise such an"
                            " event"
                            " is a candidate, for which the filter itself is evaluated."
                        ),
                        "sample_fits": integer(
                            "Number of sample events that satisfy all predicates; missing without a sample."
                        ),
                    },
                    ["predicates", "exact"],
                ),
                "How the index searches: conjunctions of predicates. An event that satisfies none of them"
                " cannot match. Empty if no event can match.",
            ),
            "cost": integer(
                "Cost of matching the filter, in predicates, as the quota `filter_cost` counts it."
            ),
            "sample": {
                "oneOf": [
                    {"type": "null"},
                    record(
                        {
                            "events": integer("Number of events in the sample."),
                            "candidates": integer("How many of them the index finds as candidates."),
                            "matches": integer("How many of them match the filter."),
                        }
                    ),
                ],
                "description": "Result for the sample of events; null without a sample.",
            },
            "warnings": array(WARNING, "What is probably not intended in the filter."),
            "text": _TEXT,
        }
    ),
    "Tested": record(
        {
            "matches": boolean("Whether the event matches the filter."),
            "value": {
                "type": ["boolean", "null"],
                "description": "Value of the filter for the event; null: unknown, which does not match.",
            },
            "errors": array(
                string("Kind of an error."),
                "Errors of the evaluation, by kind, in dialects that define errors; otherwise empty.",
            ),
            "failures": array(
                record(
                    {
                        "part": string("The part of the filter, written in the dialect sql."),
                        "value": {
                            "type": ["boolean", "null"],
                            "description": "Value of the part: false, or null for unknown.",
                        },
                        "read": array(
                            record(
                                {
                                    "name": string("Name of the attribute."),
                                    "value": string(
                                        "Its value in the event, as a literal of the dialect sql."
                                    ),
                                }
                            ),
                            "The attributes that the part reads.",
                        ),
                    }
                ),
                "The innermost parts because of which the event does not match.",
            ),
            "text": _TEXT,
        },
        ["matches"],
        description="Result of a filter for one event. Once a request"
        " has taken much work, the results of its further events have only `matches`.",
    ),
}


def _about_filters(
    name: str, summary: str, kind: type, answered: Json, example: Json, problems: str = "", **members: Json
) -> Json:
    request = described(kind, filter=FILTER, dialect=DIALECT, **members)
    return path(
        f"/v1/filters:{name}",
        post=operation(
            f"{name}_filter",
            summary,
            takes=body(request, {"filter": "data.symbol = 'YHOO' AND data.price < 18.5", **example}),
            answers=answered,
            problems=f"400 {problems}",
        ),
    )


_ATTRIBUTE = record(
    {
        "name": string("Name of the attribute, as filters of the dialect `sql` write it."),
        "type": {
            "enum": ["number", "string", "boolean", "date", "timestamp", "array", "object"],
            "description": "Type of its values; missing if they have several, or are all null.",
        },
        "events": integer("Number of these events that have the attribute."),
    },
    ["name", "events"],
)

FILTERS: Json = {
    **path(
        "/v1/spaces/{space}/attributes",
        get=operation(
            "list_attributes",
            "List the attributes of a space's newest events",
            "The names that filters of the space can use, from at most 100 events, read at most every ten"
            " seconds. Attributes in arrays are not listed, nor are those of an encrypted space.",
            answers=answer(
                "The attributes, sorted by name.",
                record(
                    {
                        "attributes": array(_ATTRIBUTE, "The attributes."),
                        "events": integer("Number of events that were looked at."),
                    }
                ),
                {"attributes": [{"name": "data.price", "type": "number", "events": 98}], "events": 100},
            ),
            problems="404",
        ),
    ),
    **_about_filters(
        "check",
        "Check a filter for errors",
        CheckBody,
        answer("All errors of the filter, and warnings. A filter with errors also gets 200.", ref("Check")),
        {},
    ),
    **_about_filters(
        "explain",
        "Explain what a filter matches and how the index searches for it",
        ExplainBody,
        answer("The explanation; with events or a space, also how many events match.", ref("Explanation")),
        {"space": "default"},
        "404",
        sample_events={"minimum": 0, "maximum": EVENTS_MAX},
        events={"maxItems": EVENTS_MAX},
    ),
    **_about_filters(
        "test",
        "Test a filter against events",
        TestBody,
        answer(
            "The result for each event.",
            record(
                {
                    "matched": integer("Number of events that match."),
                    "results": array(ref("Tested"), "Result of each event, in the order of the request."),
                }
            ),
        ),
        {"events": [{"type": "trade", "data": {"symbol": "YHOO", "price": 20}}]},
        events={"maxItems": EVENTS_MAX},
    ),
    **_about_filters(
        "convert",
        "Convert a filter from another dialect to sql",
        ConvertBody,
        answer(
            "The converted filter, which matches exactly the same events.",
            record(
                {
                    "filter": string("Text of the converted filter."),
                    "dialect": string("Dialect of the converted filter: sql."),
                }
            ),
        ),
        {"dialect": "sql"},
        to={"enum": ["sql"]},
    ),
}
