"""A file may hold anything: the result is filters and refusals, no other error and no invalid filter."""

from __future__ import annotations

import copy
import json
import random
import time
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn
from tests.yardstick import slowness

from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters.foreign.items import DocumentError, Options
from fieldfare.filters.foreign.systems import SYSTEMS, convert_documents

DOCUMENTS: dict[str, Any] = {
    "eventbridge": {
        "Rules": [
            {
                "Name": "a",
                "State": "ENABLED",
                "EventBusName": "default",
                "EventPattern": {
                    "source": ["a", {"prefix": "b"}],
                    "detail": {"n": [{"numeric": [">", 0, "<", 5]}], "$or": [{"a": [1]}, {"b": [None]}]},
                },
            }
        ]
    },
    "sns": [
        {
            "Attributes": {
                "SubscriptionArn": "arn:x:1",
                "TopicArn": "arn:x",
                "Owner": "1",
                "FilterPolicyScope": "MessageBody",
                "FilterPolicy": '{"a": {"b": ["x", {"numeric": ["=", 5]}]}, "c": [{"exists": false}]}',
            }
        }
    ],
    "knative": {
        "apiVersion": "eventing.knative.dev/v1",
        "kind": "Trigger",
        "metadata": {"name": "a", "namespace": "b"},
        "spec": {
            "broker": "default",
            "filter": {"attributes": {"type": "a"}},
            "filters": [{"any": [{"exact": {"type": "a"}}, {"not": {"cesql": "a = 1"}}]}],
        },
    },
    "rabbitmq": {
        "exchanges": [{"name": "h", "vhost": "/", "type": "headers"}],
        "bindings": [
            {
                "source": "h",
                "vhost": "/",
                "destination": "q",
                "destination_type": "queue",
                "routing_key": "a.#",
                "arguments": {"x-match": "any", "a": 1, "b": None},
            }
        ],
    },
    "jms": {"a": "x = 5 AND NOT (y LIKE 'a%' OR z BETWEEN 1 AND 2)"},
    "mqtt": {"a": "a/+/b/#"},
    "nats": {"a": "a.*.b.>"},
    "amqp": {"a": "a.*.b.#.c"},
}
SCRAPS: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    1e308,
    "",
    "x",
    "\0",
    "é",
    "a.b",
    [],
    {},
    [[]],
    {"x": {}},
]
SYSTEM_NAMES = sorted(SYSTEMS)
PIECES = [
    *("a", "5", "'x'", "'", '"', "(", ")", "[", "]", "{", "}", ":", ",", "/", "+", "#", "*", ">", ".", "$"),
    *(" AND ", " NOT ", " OR ", " = ", " IS NULL", " BETWEEN ", " LIKE ", " IN ", "-", "\n", "\\", "\0"),
    *("\ud800", "é", "- ", "&a", "*a", "!!x", "---\n", "true", "null", "1e999", "0x1", "\u2028"),
]


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from nodes(value[key], (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = copy.deepcopy(value)
    inside = changed
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = new
    return changed


def text_of(system: str, document: Any) -> str:
    return yaml.safe_dump(document) if system == "knative" else json.dumps(document)


def survives(system: str, text: str) -> None:
    try:
        found = convert_documents(SYSTEMS[system], [(text, "file", "name")], Options())
    except DocumentError:
        return
    for each in found.converted:
        compile_filter(each.filter, each.dialect)
    for refused in found.refused:
        assert refused.reason


@pytest.mark.parametrize("system", SYSTEM_NAMES)
def test_any_value_at_any_place_of_a_document(system: str) -> None:
    document = DOCUMENTS[system]
    survives(system, text_of(system, document))
    for path in nodes(document):
        for scrap in SCRAPS:
            survives(system, text_of(system, replaced(document, path, scrap)))


@pytest.mark.parametrize("system", SYSTEM_NAMES)
def test_cut_and_mixed_documents(system: str) -> None:
    text = text_of(system, DOCUMENTS[system])
    generator = random.Random(5)
    for _ in range(drawn(300)):
        start, end = sorted(generator.choices(range(len(text) + 1), k=2))
        survives(system, text[:start] + generator.choice(PIECES) + text[end:])


@settings(max_examples=drawn(600))
@given(st.sampled_from(SYSTEM_NAMES), st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_any_text_as_one_filter(system: str, text: str) -> None:
    try:
        filter, dialect = SYSTEMS[system].convert(text, Options())
    except FilterError as error:
        assert str(error)
        return
    compile_filter(filter, dialect)
    survives(system, text)


@pytest.mark.parametrize("system", SYSTEM_NAMES)
@pytest.mark.parametrize(
    "text",
    [
        "(" * 60_000,
        "[" * 60_000,
        '{"a":' * 10_000,
        "NOT " * 15_000 + "a",
        "- " * 30_000 + "a",
        "a/+/" * 10_000 + "#",
        "*." * 2_000 + "#",
        "#.a." * 900 + "#",
        "a = 1 OR " * 7_000 + "a = 1",
        '{"a": [' + ", ".join(['"x"'] * 10_000) + "]}",
    ],
    ids=lambda text: text[:8],
)
def test_long_texts_take_little_time(system: str, text: str) -> None:
    start = time.process_time()
    try:
        SYSTEMS[system].convert(text, Options())
    except FilterError:
        pass
    survives(system, text)
    assert time.process_time() - start < 20 * slowness()
