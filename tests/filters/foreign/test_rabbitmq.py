"""Bindings of headers exchanges against a naive matcher, and exported definitions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn
from tests.filters.foreign import naive_topics

from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters.foreign.items import DocumentError, Options
from fieldfare.filters.foreign.rabbitmq import convert_arguments
from fieldfare.filters.foreign.systems import SYSTEMS, Conversion, convert_documents

NAMES = ["a", "b", "format", "x-a", "x-match-not", "x-b"]
VALUES: list[Any] = ["", "a", "5", "true", 5, 5.0, 0, -1, 2.5, 0.1, True, False]
INSIDE = Options(at=("data", "headers"))
names = st.sampled_from(NAMES)
arguments = st.builds(
    lambda kind, rest: {**kind, **rest},
    st.sampled_from([{}, *({"x-match": kind} for kind in ("all", "any", "all-with-x", "any-with-x"))]),
    st.dictionaries(names, st.sampled_from([*VALUES, None]), max_size=4),
)
headers = st.dictionaries(names, st.sampled_from([*VALUES, None, [1], {"a": 1}]))


def naive(binding: dict[str, Any], found: dict[str, Any]) -> bool:
    """RabbitMQ, "Headers Exchange": x-match, arguments that begin with x-, and arguments without a value."""
    kind = binding.get("x-match", "all")
    results = []
    for name, wanted in binding.items():
        if name == "x-match" or (name.startswith("x-") and kind in ("all", "any")):
            continue
        if wanted is None:
            results.append(name in found)
        else:
            value = found.get(name)
            same_type = isinstance(value, bool) == isinstance(wanted, bool)
            results.append(name in found and same_type and value == wanted)
    return any(results) if kind.startswith("any") else all(results)


@settings(max_examples=drawn(800))
@given(arguments, st.lists(headers, min_size=1, max_size=6))
def test_headers_agree_with_a_naive_matcher(binding: dict[str, Any], some: list[dict[str, Any]]) -> None:
    filter = compile_filter(*convert_arguments(json.dumps(binding), INSIDE))
    for found in some:
        assert filter.matches({"data": {"headers": found}}) is naive(binding, found), (filter.text, found)


@pytest.mark.parametrize(
    ("binding", "found", "matches"),
    [
        # RabbitMQ's documentation of headers exchanges, and the tests of its Java client
        ({"x-match": "all", "format": "pdf", "type": "report"}, {"format": "pdf", "type": "report"}, True),
        ({"x-match": "all", "format": "pdf", "type": "report"}, {"format": "pdf"}, False),
        ({"x-match": "any", "format": "pdf", "type": "report"}, {"format": "pdf"}, True),
        ({"x-match": "any", "x-format": "pdf"}, {"x-format": "pdf"}, False),
        ({"x-match": "any-with-x", "x-format": "pdf"}, {"x-format": "pdf"}, True),
        ({"x-match": "all-with-x", "x-format": "pdf"}, {"x-format": "txt"}, False),
        ({"format": None}, {"format": 5}, True),
        ({"format": "5"}, {"format": 5}, False),
        ({}, {}, True),
        ({"x-match": "any"}, {"format": 5}, False),
    ],
)
def test_examples(binding: dict[str, Any], found: dict[str, Any], matches: bool) -> None:
    filter = compile_filter(*convert_arguments(json.dumps(binding), INSIDE))
    assert filter.matches({"data": {"headers": found}}) is matches


@pytest.mark.parametrize(
    ("binding", "message"),
    [
        ('{"x-match": "some"}', "x-match is 'some': there are all, any, all-with-x, any-with-x"),
        ('{"a": [1]}', "header a: its value is an array"),
        ('{"a": {"b": 1}}', "header a: its value is a table"),
        ('{"a": 1e999}', "header a: its value is no number"),
        ('{"reply-to": "a"}', "header reply-to: no event has a context attribute 'reply-to'"),
        ('["a"]', "the arguments of a binding are an object"),
        ("{", "this is not JSON"),
        ('{"a": 1, "a": 2}', "an object has the name 'a' twice"),
        ('{"a": NaN}', "NaN is not a number of JSON"),
        ("[" * 100_000, "this is nested too deeply"),
    ],
)
def test_what_cannot_be_said_is_refused(binding: str, message: str) -> None:
    with pytest.raises(FilterError) as error:
        convert_arguments(binding, Options())
    assert message in str(error.value)


def binding(source: str, destination: str, key: str = "", vhost: str = "/", **more: Any) -> dict[str, Any]:
    return {
        "source": source,
        "vhost": vhost,
        "destination": destination,
        "destination_type": "queue",
        "routing_key": key,
        "arguments": {},
        **more,
    }


DEFINITIONS = {
    "rabbit_version": "4.0.5",
    "queues": [{"name": "pdfs", "vhost": "/"}],
    "exchanges": [
        {"name": "files", "vhost": "/", "type": "headers"},
        {"name": "logs", "vhost": "/", "type": "topic"},
        {"name": "logs", "vhost": "test", "type": "x-random"},
    ],
    "bindings": [
        binding("files", "pdfs", arguments={"x-match": "all", "format": "pdf"}),
        binding("files", "pdfs", arguments={"x-match": "any", "format": "ps", "color": None}),
        binding("files", "tables", arguments={"x-match": "all", "a": {"b": 1}}),
        binding("logs", "errors", "*.error"),
        binding("logs", "errors", "kern.#"),
        binding("logs", "mixed", "#.a.*.b"),
        binding("logs", "mixed", "fine"),
        binding("logs", "copy", "#", destination_type="exchange"),
        binding("logs", "other", "a", vhost="test"),
        binding("", "pdfs", "pdfs"),
    ],
}


def convert(source: str | None, definitions: Any = DEFINITIONS) -> Conversion:
    documents = [(json.dumps(definitions), "definitions.json", "definitions")]
    return convert_documents(SYSTEMS["rabbitmq"], documents, Options(source=source))


def test_a_queue_s_bindings_are_one_filter() -> None:
    found = convert("files")
    assert [(each.id, each.filter) for each in found.converted] == [
        ("pdfs", "format = 'pdf' OR EXISTS(color) OR format = 'ps'")
    ]
    ((name, reason),) = [(each.name, each.reason) for each in found.refused]
    assert (name, reason) == (
        "tables",
        "bindings[2]: header a: its value is a table, which no filter compares",
    )


def test_one_refused_binding_refuses_its_queue() -> None:
    found = convert("logs")
    (errors,) = found.converted
    filter = compile_filter(errors.filter)
    for key in ("a.error", "kern", "kern.a.b", "a.b.error", "error", "error.a"):
        expected = naive_topics.amqp("*.error", key) or naive_topics.amqp("kern.#", key)
        assert filter.matches({"subject": key}) is expected
    assert [each.name for each in found.refused] == ["mixed", "copy"]
    assert "bindings[5]: a one-word wildcard" in found.refused[0].reason
    assert "bindings[7]: the destination is an exchange" in found.refused[1].reason


def test_exchanges_are_told_apart() -> None:
    with pytest.raises(DocumentError, match=r"3 sources \('files', 'logs', 'test/logs'\)"):
        convert(None)
    (refused,) = convert("test/logs").refused
    assert "exchanges of type x-random are not converted" in refused.reason


def test_direct_and_fanout_exchanges_and_those_of_every_host() -> None:
    for exchange, filter in [
        ("amq.direct", "subject = 'key'"),
        ("amq.fanout", "TRUE"),
        ("amq.topic", "subject = 'key'"),
        ("amq.match", "TRUE"),
    ]:
        (found,) = convert(None, {"bindings": [binding(exchange, "q", "key")]}).converted
        assert found.filter == filter
    (refused,) = convert(None, {"bindings": [binding("mine", "q", "key")]}).refused
    assert "has no exchange of this name" in refused.reason
    (skipped,) = convert(None, [binding("", "q", "q")]).skipped
    assert "the default exchange" in skipped.reason


@pytest.mark.parametrize("document", ["{}", "5", '{"bindings": [5]}', '{"bindings": [{"source": "a"}]}', "x"])
def test_what_is_no_export_is_refused(document: str) -> None:
    with pytest.raises(DocumentError, match=r"definitions.json: .*(bindings|JSON)"):
        convert_documents(SYSTEMS["rabbitmq"], [(document, "definitions.json", "x")], Options())
