"""The part of the OpenAPI description about help with filters."""

from __future__ import annotations

from fieldfare.filters.encrypted import ENCRYPTED
from fieldfare.filters.filter import DIALECTS
from fieldfare.filters.help.documents import CheckDocument, ExplanationDocument
from fieldfare.gateway.openapi.from_types import described
from fieldfare.gateway.openapi.words import (
    Json,
    answer,
    body,
    operation,
    path,
    string,
)
from fieldfare.gateway.routes.filters import (
    EVENTS_MAX,
    AttributesDocument,
    CheckBody,
    ConvertBody,
    ConvertedDocument,
    ExplainBody,
    TestBody,
    TestDocument,
)

FILTER: Json = {
    "description": "The filter's text. In a dialect that is JSON: the JSON value, or its text.",
    "type": ["string", "object", "array"],
}
DIALECT = string(
    "The language of the filter; `aspe` is for encrypted spaces only.",
    enum=sorted([*DIALECTS, ENCRYPTED]),
    default="sql",
)


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
                AttributesDocument,
                {"attributes": [{"name": "data.price", "type": "number", "events": 98}], "events": 100},
            ),
            problems="404",
        ),
    ),
    **_about_filters(
        "check",
        "Check a filter for errors",
        CheckBody,
        answer("All errors of the filter, and warnings. A filter with errors also gets 200.", CheckDocument),
        {},
    ),
    **_about_filters(
        "explain",
        "Explain what a filter matches and how the index searches for it",
        ExplainBody,
        answer("The explanation; with events or a space, also how many events match.", ExplanationDocument),
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
            "The result for each event. Once a request has taken much work, the results of its further events"
            " have only `matches`.",
            TestDocument,
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
            ConvertedDocument,
        ),
        {"dialect": "sql"},
        to={"enum": ["sql"]},
    ),
}
