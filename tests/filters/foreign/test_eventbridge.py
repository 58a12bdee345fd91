"""Exported rules of EventBridge; patterns against the naive interpreter of its documentation."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn
from tests.filters.eventbridge import naive
from tests.filters.eventbridge.generators import Generator

from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters.foreign.eventbridge import convert_pattern
from fieldfare.filters.foreign.items import DocumentError, Options
from fieldfare.filters.foreign.systems import SYSTEMS, Conversion, convert_documents


@settings(max_examples=drawn(150))
@given(st.integers(0, 1 << 32), st.booleans())
def test_a_pattern_agrees_with_the_naive_interpreter_or_is_refused(seed: int, plain: bool) -> None:
    generator = Generator(random.Random(seed))
    pattern = generator.pattern()
    try:
        filter = compile_filter(*convert_pattern(json.dumps(pattern), Options(plain_values=plain)))
    except FilterError:
        return
    for _ in range(10):
        event = generator.event()
        assert filter.matches(event) is naive.matches(pattern, event)


@pytest.mark.parametrize(
    ("pattern", "event", "matches"),
    [
        # The user guide: event patterns, comparison operators
        ({"source": ["aws.ec2"]}, {"source": "aws.ec2"}, True),
        ({"detail-type": ["EC2 State"]}, {"type": "EC2 State"}, True),
        ({"detail": {"state": ["running"]}}, {"data": {"state": "running"}}, True),
        (
            {"detail": {"state": [{"anything-but": "initializing"}]}},
            {"data": {"state": "initializing"}},
            False,
        ),
        (
            {"detail": {"c": [{"numeric": [">", 0, "<=", 5]}], "d": [{"numeric": ["<", 10]}]}},
            {"data": {"c": 5}},
            False,
        ),
        ({"detail": {"c": [{"exists": False}]}}, {"data": {"d": 5}}, True),
        ({"detail": {"file": [{"suffix": ".png"}]}}, {"data": {"file": "a.png"}}, True),
    ],
)
def test_examples_of_the_documentation(pattern: Any, event: dict[str, Any], matches: bool) -> None:
    filter = compile_filter(*convert_pattern(json.dumps(pattern), Options()))
    assert filter.matches({"source": "x", **event}) is matches


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ('{"source": "a"}', "line 1, column 12: the values of 'source' must stand in a list"),
        ('{"detail": {"a.b": ["x"]}}', "'a.b' is one name with a dot in it"),
        ('{"resources": ["x"]}', "resources is a list"),
        ('{"$or": [{"resources": ["x"]}, {"source": ["x"]}]}', "resources is a list"),
        ('{"Source": ["x"]}', "no event has a context attribute 'Source'"),
        ('{"detail": {"o": {"a": [{"exists": false}], "b": [1]}}}', "a may be absent beside other fields"),
        (
            '{"a": {"b": [1]}, "$or": [{"a": {"c": [1]}}, {"d": [1]}]}',
            "a is tested beside a $or and inside of it",
        ),
        ('{"source": [{"regex": "x"}]}', "there is no test named 'regex'"),
        ("5", "an event pattern is an object"),
        ("", "the filter is empty"),
    ],
)
def test_what_cannot_be_said_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(FilterError) as error:
        convert_pattern(pattern, Options())
    assert message in str(error.value)


def test_names_of_the_envelope_can_be_moved() -> None:
    options = Options(names={"resources": ("data", "resources"), "account": ("awsaccount",)})
    text, dialect = convert_pattern('{"resources": [{"prefix": "arn:"}], "account": ["1"]}', options)
    filter = compile_filter(text, dialect)
    assert filter.matches({"data": {"resources": ["x", "arn:a"]}, "awsaccount": "1"})
    assert not filter.matches({"data": {"resources": ["x"]}, "awsaccount": "1"})
    with pytest.raises(FilterError, match="the pattern also tests what is there"):
        convert_pattern('{"resources": ["x"], "detail": {"resources": ["x"]}}', options)
    with pytest.raises(FilterError, match="resources is a list"):
        convert_pattern('{"$or": [{"resources": ["x"]}, {"source": ["x"]}]}', options)


def rule(name: str, pattern: Any = None, **more: str) -> dict[str, Any]:
    given = {} if pattern is None else {"EventPattern": json.dumps(pattern)}
    return {"Name": name, "State": "ENABLED", "EventBusName": "default", **given, **more}


def convert(document: Any, options: Options | None = None) -> Conversion:
    documents = [(json.dumps(document), "rules.json", "rules")]
    return convert_documents(SYSTEMS["eventbridge"], documents, options or Options())


def test_rules_are_read_and_each_refused_one_is_reported() -> None:
    rules = [
        rule("good", {"source": ["a"]}),
        rule("nightly", ScheduleExpression="rate(1 day)"),
        rule("off", {"source": ["a"]}, State="DISABLED"),
        rule("bad", {"source": "a"}),
        rule("twice", {"source": ["a"]}),
        rule("twice", {"source": ["b"]}),
    ]
    found = convert({"Rules": rules})
    assert [(each.id, each.filter, each.dialect) for each in found.converted] == [
        ("good", '{"source": ["a"]}', "eventbridge")
    ]
    assert [(each.name, each.place) for each in found.refused] == [
        ("nightly", "rules.json, Rules[1]"),
        ("bad", "rules.json, Rules[3]"),
        ("twice", "rules.json, Rules[4]"),
        ("twice", "rules.json, Rules[5]"),
    ]
    assert [(each.name, each.reason) for each in found.skipped] == [("off", "the rule is disabled")]
    assert "off" in {each.id for each in convert({"Rules": rules}, Options(disabled=True)).converted}
    assert [each.id for each in convert(rules[:1]).converted] == ["good"]
    assert [each.id for each in convert(rules[0]).converted] == ["good"]
    assert [each.id for each in convert({"source": ["a"]}).converted] == ["rules"]
    (refused,) = convert({"Rules": [{**rules[0], "EventPattern": 5}]}).refused
    assert "this is JSON text" in refused.reason
    (found_object,) = convert([{**rules[0], "EventPattern": {"detail": {"a": [0.1]}}}]).converted
    assert found_object.filter == '{"detail": {"a": [0.1]}}'


def test_rules_of_several_buses_need_a_choice() -> None:
    both = [rule("a", {"source": ["a"]}), rule("b", {"source": ["a"]}, EventBusName="mine")]
    with pytest.raises(DocumentError, match="choose one with --source"):
        convert(both)
    assert [each.id for each in convert(both, Options(source="mine")).converted] == ["b"]


@pytest.mark.parametrize("document", [5, [5], {"Rules": [{"Arn": "x"}]}, "x"])
def test_what_is_no_export_is_refused(document: Any) -> None:
    with pytest.raises(DocumentError, match="rule"):
        convert(document)
