"""SNS filter policies against a naive matcher."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn
from tests.filters.foreign.naive_sns import matches_attributes, matches_body

from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters.foreign.items import DocumentError, Options
from fieldfare.filters.foreign.sns import convert_policy, read_subscriptions
from fieldfare.filters.foreign.systems import SYSTEMS, convert_documents

many = settings(max_examples=drawn(600))
CONTEXT, INSIDE = Options(), Options(at=("data", "attributes"))
BODY = Options(scope="MessageBody")
NAMES = ["a", "b", "store", "x"]
TEXTS = ["a", "ab", "AB", "abc", "5", "true", "10.0.0.7", "10.1.0.1", "é"]
NUMBERS: list[Any] = [0, 1, 5, 5.0, 5.5, -2.25, 100]
names = st.sampled_from(NAMES)
texts, numbers = st.sampled_from(TEXTS), st.sampled_from(NUMBERS)
ranges = st.sampled_from([["=", 5], ["<", 5], [">=", -2.25], [">", 0, "<=", 5.5], [">=", 0, "<", 100]])
tests = st.one_of(
    *(texts, numbers, st.booleans(), st.none()),
    st.sampled_from([{"exists": True}, {"exists": False}, {"cidr": "10.0.0.0/24"}, {"prefix": "a"}]),
    st.sampled_from([{"suffix": "b"}, {"equals-ignore-case": "ab"}, {"prefix": "10."}, {"suffix": ""}]),
    ranges.map(lambda limits: {"numeric": limits}),
)
excluding = st.one_of(
    st.lists(texts, min_size=1, max_size=3).map(lambda some: {"anything-but": some}),
    st.lists(numbers, min_size=1, max_size=3).map(lambda some: {"anything-but": some}),
    texts.map(lambda text: {"anything-but": text}),
    st.just({"anything-but": {"prefix": "a"}}),
)
lists = st.lists(tests, min_size=1, max_size=3)
any_lists = st.lists(st.one_of(tests, excluding), min_size=1, max_size=3)


def policies(some: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    flat = st.dictionaries(names, some, min_size=1, max_size=3)
    either = st.lists(flat, min_size=2, max_size=3).map(lambda items: {"$or": items})
    return st.one_of(flat, either, st.builds(lambda one, other: {**one, **other}, flat, either))


scalars = st.one_of(texts, numbers, st.booleans(), st.none(), st.just(""))
attributes = st.dictionaries(
    names,
    st.one_of(
        st.tuples(st.just("String"), texts),
        st.tuples(st.just("Number"), numbers),
        st.tuples(
            st.just("String.Array"),
            st.lists(st.one_of(texts, numbers, st.booleans(), st.none()), min_size=1, max_size=3),
        ),
    ),
)
plain_attributes = st.dictionaries(
    names,
    st.one_of(st.tuples(st.just("String"), texts), st.tuples(st.just("Number"), st.sampled_from([0, 5]))),
)
bodies = st.dictionaries(
    names,
    st.recursive(
        scalars,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
        max_leaves=6,
    ).filter(lambda value: not has_list_in_list(value)),
)
nested = st.recursive(
    st.dictionaries(names, lists, min_size=1, max_size=1),
    lambda inner: st.builds(lambda name, value: {name: value}, names, inner),
    max_leaves=3,
)
body_policies = st.builds(lambda flat, deep: {**flat, **deep}, policies(lists), nested)


plain_bodies = st.dictionaries(
    names,
    st.recursive(
        st.one_of(texts, numbers, st.booleans()),
        lambda inner: st.dictionaries(names, inner, max_size=3),
        max_leaves=8,
    ),
)
deep_policies = st.recursive(
    policies(any_lists),
    lambda inner: st.dictionaries(names, inner, min_size=1, max_size=2),
    max_leaves=4,
)


def has_list_in_list(value: Any) -> bool:
    if isinstance(value, list):
        return any(isinstance(item, list) or has_list_in_list(item) for item in value)
    return isinstance(value, dict) and any(map(has_list_in_list, value.values()))


def converted(policy: Any, options: Options) -> Any:
    return compile_filter(*convert_policy(json.dumps(policy), options))


def as_event(found: dict[str, tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, (_, value) in found.items()}


@many
@given(policies(lists), st.lists(attributes, min_size=1, max_size=6))
def test_attributes_in_the_data_agree_with_a_naive_matcher(policy: Any, some: list[Any]) -> None:
    filter = converted(policy, INSIDE)
    for found in some:
        event = {"data": {"attributes": as_event(found)}}
        assert filter.matches(event) is matches_attributes(policy, found), (policy, filter.text, found)


@many
@given(policies(any_lists), st.lists(plain_attributes, min_size=1, max_size=6))
def test_context_attributes_agree_with_a_naive_matcher(policy: Any, some: list[Any]) -> None:
    try:
        filter = converted(policy, CONTEXT)
    except FilterError as error:
        assert "not one without attributes" in str(error)
        assert matches_attributes(policy, {"other": ("String", "x")})
        return
    inside = converted(policy, Options(at=("data",), plain_values=True))
    for found in some:
        expected = matches_attributes(policy, found)
        assert filter.matches(as_event(found)) is expected, (policy, filter.text, found)
        assert inside.matches({"data": as_event(found)}) is expected


@many
@given(body_policies, st.lists(bodies, min_size=1, max_size=6))
def test_bodies_agree_with_a_naive_matcher(policy: Any, some: list[Any]) -> None:
    filter = converted(policy, BODY)
    for body in some:
        assert filter.matches({"data": body}) is matches_body(policy, body), (policy, filter.text, body)


@many
@given(deep_policies, st.lists(plain_bodies, min_size=1, max_size=6))
def test_plain_bodies_agree_with_a_naive_matcher(policy: Any, some: list[Any]) -> None:
    try:
        filter = converted(policy, Options(scope="MessageBody", plain_values=True))
    except FilterError as error:
        assert "too much work" in str(error) or "too large" in str(error)
        return
    for body in some:
        assert filter.matches({"data": body}) is matches_body(policy, body), (policy, filter.text, body)


def test_a_body_that_is_no_object_is_never_matched() -> None:
    filter = converted({"store": [{"exists": False}]}, BODY)
    for body in ([], [1], {}, "text", 5, None, [{"x": 1}]):
        assert not filter.matches({"data": body})
    assert not filter.matches({})
    assert filter.matches({"data": {"x": 1}})


@pytest.mark.parametrize(
    ("policy", "message", "matches"),
    [
        # The developer guide: string value matching, numeric value matching, key matching
        ({"customer_interests": ["rugby", "tennis"]}, {"customer_interests": "rugby"}, True),
        ({"customer_interests": ["rugby", "tennis"]}, {"customer_interests": ["tennis", "x"]}, True),
        ({"customer_interests": ["rugby", "tennis"]}, {"customer_interests": "baseball"}, False),
        ({"customer_interests": [{"prefix": "bas"}]}, {"customer_interests": "basketball"}, True),
        ({"customer_interests": [{"prefix": "bas"}]}, {"customer_interests": "rugby"}, False),
        ({"customer_interests": [{"suffix": "ball"}]}, {"customer_interests": "baseball"}, True),
        ({"customer_interests": [{"equals-ignore-case": "tennis"}]}, {"customer_interests": "TENNIS"}, True),
        ({"source_ip": [{"cidr": "10.0.0.0/24"}]}, {"source_ip": "10.0.0.255"}, True),
        ({"source_ip": [{"cidr": "10.0.0.0/24"}]}, {"source_ip": "10.1.1.0"}, False),
        ({"price_usd": [{"numeric": ["=", 301.5]}]}, {"price_usd": 301.5}, True),
        ({"price_usd": [{"numeric": [">", 0, "<=", 150]}]}, {"price_usd": 150}, True),
        ({"price_usd": [{"numeric": ["<", 0]}]}, {"price_usd": 0}, False),
        ({"store": [{"exists": True}]}, {"store": "fans", "x": 1}, True),
        ({"store": [{"exists": True}]}, {"x": 1}, False),
        ({"store": [{"exists": True}]}, {"store": ""}, False),
        ({"store": [{"exists": True}]}, {"store": None}, False),
        ({"store": [{"exists": True}]}, {"store": ["", None, 5]}, True),
        ({"store": [{"exists": True}]}, {"store": {"a": 1}}, False),
        ({"store": [{"exists": False}]}, {"x": 1}, True),
        ({"store": [{"exists": False}]}, {"store": "fans"}, False),
        ({"customer": {"address": {"city": ["Rome"]}}}, {"customer": {"address": {"city": "Rome"}}}, True),
    ],
)
def test_examples_of_the_documentation(policy: Any, message: dict[str, Any], matches: bool) -> None:
    assert converted(policy, BODY).matches({"data": message}) is matches


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        (
            '{"a": [{"anything-but": ["x"]}]}',
            BODY,
            "line 1, column 8: anything-but: SNS's documentation has had two rules",
        ),
        ('{"a": {"b": ["x"], "c": ["y"]}}', BODY, "line 1, column 7: several fields of an object"),
        ('{"a.b": ["x"]}', BODY, "'a.b' is a name with a dot"),
        ('{"a": {"b": ["x"]}}', CONTEXT, "the values of 'a' must be in a list"),
        ('{"a": [{"wildcard": "x*"}]}', BODY, "SNS has no test 'wildcard'"),
        ('{"a": [{"prefix": {"equals-ignore-case": "x"}}]}', BODY, "prefix takes a string"),
        ('{"a": [{"anything-but": {"suffix": "x"}}]}', BODY, "anything-but takes values or a prefix"),
        ('{"a": [0.000001]}', BODY, "SNS compares numbers up to"),
        ('{"a": [{"numeric": ["<", 1e10]}]}', BODY, "SNS compares numbers up to"),
        ('{"a": [{"equals-ignore-case": "é"}]}', BODY, "the case of letters beyond ASCII"),
        ('{"My_Name": ["x"]}', CONTEXT, "no event has a context attribute 'My_Name'"),
        ('{"a": [{"exists": false}]}', CONTEXT, "but not one without attributes"),
        ('{"$or": [{"a": ["x"]}]}', BODY, "at least two objects"),
        ('{"a": "x"}', BODY, "must be in a list"),
        ('["x"]', BODY, "a filter policy is an object"),
        ('{"a": []}', BODY, "a list of values cannot be empty"),
        ('{"a": ["x"], "a": ["y"]}', BODY, "stands here twice"),
        ('{"a": ["x"]}', Options(scope="Body"), "the scope of a policy is MessageAttributes or MessageBody"),
    ],
)
def test_what_cannot_be_said_is_refused(policy: str, options: Options, message: str) -> None:
    with pytest.raises(FilterError) as error:
        convert_policy(policy, options)
    assert message in str(error.value)


ORDERS = "arn:aws:sns:eu-west-1:123456789012:orders"


def subscription(number: int, topic: str = ORDERS, **attributes: str) -> dict[str, Any]:
    named = {"SubscriptionArn": f"{topic}:{number}", "TopicArn": topic, "Owner": "123456789012"}
    return {"Attributes": {**named, **attributes}}


def convert(document: Any, options: Options = CONTEXT) -> Any:
    return convert_documents(SYSTEMS["sns"], [(json.dumps(document), "subs.json", "subs")], options)


def test_subscriptions_with_each_scope_are_read() -> None:
    policy = json.dumps({"store": ["x"]})
    found = convert(
        [
            subscription(1, FilterPolicy=policy, FilterPolicyScope="MessageAttributes"),
            subscription(2, FilterPolicy=policy, FilterPolicyScope="MessageBody"),
            subscription(3, FilterPolicy=policy),
            subscription(4),
            subscription(5, FilterPolicy="{}"),
            subscription(6, FilterPolicy='{"store": "x"}'),
        ]
    )
    assert {each.id: each.filter for each in found.converted} == {
        "orders:1": "store = 'x'",
        "orders:2": "ANY store IN data.store SATISFIES (store = 'x')",
        "orders:3": "store = 'x'",
        "orders:4": "TRUE",
        "orders:5": "TRUE",
    }
    ((name, place, reason),) = [(each.name, each.place, each.reason) for each in found.refused]
    assert (name, place) == ("orders:6", "subs.json, [5]")
    assert "line 1, column 11: the values of 'store' must be in a list" in reason


def test_one_output_and_one_policy_are_read_too() -> None:
    (one,) = convert(subscription(1, FilterPolicy='{"store": ["x"]}')).converted
    assert (one.id, one.filter) == ("orders:1", "store = 'x'")
    (one,) = convert({"store": ["x"]}, Options(scope="MessageBody")).converted
    assert (one.id, one.filter) == ("subs", "ANY store IN data.store SATISFIES (store = 'x')")


def test_the_option_is_the_scope_of_subscriptions_that_have_none() -> None:
    policy = json.dumps({"store": ["x"]})
    both = [
        subscription(1, FilterPolicy=policy),
        subscription(2, FilterPolicy=policy, FilterPolicyScope="MessageAttributes"),
    ]
    found = [each.filter for each in convert(both, Options(scope="MessageBody")).converted]
    assert found == ["ANY store IN data.store SATISFIES (store = 'x')", "store = 'x'"]


def test_subscriptions_of_two_topics_need_a_choice() -> None:
    documents = [subscription(1), subscription(2, ORDERS + "2")]
    with pytest.raises(DocumentError, match="choose one with --source"):
        convert(documents)
    assert [each.id for each in convert(documents, Options(source=ORDERS)).converted] == ["orders:1"]
    with pytest.raises(DocumentError, match="there is nothing of 'x'"):
        convert(documents, Options(source="x"))


def test_a_list_of_subscriptions_without_policies_is_refused() -> None:
    listed = {"Subscriptions": [{"SubscriptionArn": f"{ORDERS}:1", "TopicArn": ORDERS, "Protocol": "sqs"}]}
    (refused,) = convert(listed).refused
    assert "use get-subscription-attributes" in refused.reason
    with pytest.raises(DocumentError, match="a subscription is an object"):
        read_subscriptions("[5]", "subs", CONTEXT)
