"""JMS selectors against a naive evaluator."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn
from tests.filters.foreign.naive_jms import evaluate, printed

from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters.foreign.items import Options
from fieldfare.filters.foreign.jms import convert_selector

AT = Options(at=("data",))
NAMES = ["a", "b", "c_1", "Order$", "JMSPriority"]
TEXTS = ["", "a", "ab", "5", "true", "it's", "a%b", "a_b", "é"]
NUMBERS: list[Any] = [0, 1, 5, 5.0, 5.5, -1, -5.5, 1e20, 0.1, 3e-7, 2**53, 100]
LITERALS: list[Any] = [number for number in NUMBERS if number != 1e20]
OPERATORS = ["=", "<>", "<", "<=", ">", ">="]
names = st.sampled_from(NAMES)
values = st.one_of(st.sampled_from(TEXTS), st.sampled_from(NUMBERS), st.booleans())
messages = st.dictionaries(names, values)
fields = st.tuples(st.sampled_from(["name", "name", "minus"]), names)
numbers = st.tuples(st.just("literal"), st.sampled_from(LITERALS))
arithmetic = st.one_of(fields, numbers)
texts = st.tuples(st.just("literal"), st.sampled_from(TEXTS))
negated = st.booleans()
patterns = st.sampled_from(
    [("a%", None), ("_", None), ("%", None), ("a!%b", "!"), ("%5", None), ("a\\_b", "\\"), ("", None)]
)
properties = st.tuples(st.just("name"), names)
tests = st.one_of(
    st.tuples(st.just("cmp"), st.sampled_from(OPERATORS), arithmetic, arithmetic),
    st.tuples(st.just("cmp"), st.sampled_from(OPERATORS[:2]), properties, texts),
    st.tuples(st.just("cmp"), st.sampled_from(OPERATORS[:2]), texts, st.one_of(texts, numbers)),
    st.tuples(
        st.just("cmp"),
        st.sampled_from(OPERATORS[:2]),
        properties,
        st.tuples(st.just("literal"), st.booleans()),
    ),
    st.tuples(st.just("between"), arithmetic, arithmetic, arithmetic, negated),
    st.tuples(st.just("in"), names, st.lists(st.sampled_from(TEXTS), min_size=1, max_size=3), negated),
    st.builds(lambda name, pattern, no: ("like", name, *pattern, no), names, patterns, negated),
    st.tuples(st.just("null"), names, negated),
    st.tuples(st.just("flag"), names),
    st.tuples(st.just("always"), st.booleans()),
)
trees = st.recursive(
    tests,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner), st.tuples(st.sampled_from(["and", "or"]), inner, inner)
    ),
    max_leaves=8,
)


@settings(max_examples=drawn(1_500))
@given(trees, st.lists(messages, min_size=1, max_size=8))
def test_selectors_agree_with_a_naive_evaluator(tree: Any, some: list[dict[str, Any]]) -> None:
    text = printed(tree)
    filter = compile_filter(*convert_selector(text, AT))
    for message in some:
        expected = evaluate(tree, message) is True
        assert filter.matches({"data": message}) is expected, (text, filter.text, message)


@pytest.mark.parametrize(
    ("selector", "message", "matches"),
    [
        # JMS 2.0, 3.8.1.1 and 3.8.1.2
        ("age BETWEEN 15 AND 19", {"age": 15}, True),
        ("age NOT BETWEEN 15 AND 19", {"age": 15}, False),
        ("age NOT BETWEEN 15 AND 19", {}, False),
        ("Country IN (' UK', 'US', 'France')", {"Country": "US"}, True),
        ("Country IN ('UK', 'US', 'France')", {"Country": "Peru"}, False),
        ("Country NOT IN ('UK', 'US', 'France')", {"Country": "Peru"}, True),
        ("Country NOT IN ('UK', 'US', 'France')", {}, False),
        ("phone LIKE '12%3'", {"phone": "12993"}, True),
        ("phone LIKE '12%3'", {"phone": "1234"}, False),
        ("word LIKE 'l_se'", {"word": "lose"}, True),
        ("word LIKE 'l_se'", {"word": "loose"}, False),
        ("underscored LIKE '\\_%' ESCAPE '\\'", {"underscored": "_foo"}, True),
        ("underscored LIKE '\\_%' ESCAPE '\\'", {"underscored": "bar"}, False),
        ("phone NOT LIKE '12%3'", {"phone": "1234"}, True),
        ("prop_name IS NULL", {}, True),
        ("prop_name IS NOT NULL", {"prop_name": 0}, True),
        ("JMSType = 'car' AND color = 'blue' AND weight > 2500", {"JMSType": "car", "color": "blue"}, False),
        ("weight > 2500", {"weight": 2500.5}, True),
        ("NumberOfOrders > 1", {"NumberOfOrders": "2"}, False),
        ("NOT NumberOfOrders > 1", {"NumberOfOrders": "2"}, True),
        ("", {}, True),
        ("  ", {}, True),
        (
            "2 * 3 + 1 = seven AND 7 / 2 = three AND 7 / 2.0 = half",
            {"seven": 7, "three": 3, "half": 3.5},
            True,
        ),
        ("a = 1 or b = 2 and c = 3", {"a": 1}, True),
        ("not a = 1 and b = 2", {"a": 2, "b": 2}, True),
    ],
)
def test_examples_of_the_specification(selector: str, message: dict[str, Any], matches: bool) -> None:
    filter = compile_filter(*convert_selector(selector, AT))
    assert filter.matches({"data": message}) is matches


@pytest.mark.parametrize(
    ("selector", "message", "column"),
    [
        ("a + 1 > 5", "+ of a property is not converted: Java rounds and overflows", 3),
        ("a > 'x'", "strings are compared with = and <> only", 5),
        ("a = 5 = 5", "comparisons cannot be chained", 7),
        ("a != 5", "unexpected '!='", 3),
        ('a = "x"', "unexpected '\"'", 5),
        ("a = 'x", "this string never ends", 5),
        ("a.b = 5", "unexpected '.'", 2),
        ("a IN (5)", "expected a string: IN takes strings only, found '5'", 7),
        ("5 IN ('a')", "IN takes the name of a property", 1),
        (
            "a = 9007199254740993",
            "a number beyond 2**53 is rounded by Java when it is compared with a double",
            5,
        ),
        ("a = 0x1F", "'0x1F' is not a number", 5),
        ("a = 017", "Java reads a number that begins with 0 as octal", 5),
        ("a = NULL", "expected a value or the name of a property, found 'NULL'", 5),
        ("JMSReplyTo = 'q'", "a selector cannot have the header field JMSReplyTo", 1),
        ("a LIKE 'x!y' ESCAPE '!'", "after the escape character ! only %, _ or ! may follow", 8),
        ("a = 5 AND", "expected a value or the name of a property, found the end of the selector", 10),
        ("'x'", "a condition is needed here, not a value", 1),
        ("(a > 5) = TRUE", "= compares values, not conditions", 9),
        ("1 / 0 = a", "this is a division by zero", 3),
        ("(" * 50 + "a" + ")" * 50, "nested deeper than 40 levels", 42),
    ],
)
def test_what_cannot_be_said_is_refused_with_its_place(selector: str, message: str, column: int) -> None:
    with pytest.raises(FilterError) as error:
        convert_selector(selector, AT)
    problem = error.value.problems[0]
    assert (problem.message, problem.column) == (message, column)


def test_a_name_that_no_context_attribute_has_needs_a_place() -> None:
    with pytest.raises(FilterError, match="no event has a context attribute 'NumberOfOrders'"):
        convert_selector("NumberOfOrders > 1", Options())
    assert convert_selector("color = 'red'", Options()) == ("color = 'red'", "sql")
    moved = Options(names={"NumberOfOrders": ("orders",)})
    assert convert_selector("NumberOfOrders > 1", moved) == ("orders > 1", "sql")
    inside = Options(at=("data", "properties"))
    assert convert_selector("NumberOfOrders > 1", inside) == ("data.properties.NumberOfOrders > 1", "sql")


def test_long_selectors_take_linear_time() -> None:
    text = " OR ".join(f"a = {number}" for number in range(1_000))
    assert compile_filter(*convert_selector(text, Options())).matches({"a": 999})
    with pytest.raises(FilterError):
        convert_selector("NOT " * 5_000 + "a = 5", Options())
    with pytest.raises(FilterError, match="too long"):
        convert_selector("a = 5 AND " * 10_000 + "a = 5", Options())
