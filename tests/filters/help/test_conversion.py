"""A converted filter matches exactly the same events as the original, for every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters.expression import And, AndThen, Comparison, Literal, Or, OrElse, Quantified
from fieldfare.filters.expression import Attribute as A
from fieldfare.filters.filter import DIALECTS, Filter, Parsed
from fieldfare.filters.help import check, convert, explain, trace

CORPUS: dict[str, list[Any]] = {
    "sql": ["type = 'a' OR data.n > 5", "ANY i IN data.l SATISFIES (i > 1)"],
    "cesql": [
        "type = 'a'",
        "type = 'a' OR source = 'b' OR subject = 'a'",
        "type = 'a' OR type = 'b' OR type = 'ab'",
        "NOT (type = 'a' AND (source = 'b' OR subject = 'a'))",
        "NOT (type = 'a' OR (NOT (source = 'b') AND subject = 'a')) OR n > 1",
        "EXISTS subject AND subject LIKE 'a%'",
        "n > 1 OR m < 2 AND (n = m OR NOT flag)",
        "flag AND (n = 1 XOR m = 1)",
        "flag OR NOT EXISTS n",
        "INT(subject) > 1 OR STRING(n) = '1'",
        "BOOL(subject) OR n + m > 2",
        "n / m = 1 OR n % m = 0",
        "type IN ('a', 'b', n) AND LENGTH(subject) > 0",
        "UPPER(subject) = 'A' OR CONCAT(type, subject) = 'aa'",
        "SUBSTRING(type, 1) = 'a' OR LEFT(source, 5) != ''",
        "(n = 1 OR m = 1) = flag",
        "1 = 1 OR n = 1",
        "n",
        "'a'",
    ],
    "subscriptions": [
        {"exact": {"type": "a"}},
        {"prefix": {"type": "a", "subject": "b"}},
        {"suffix": {"subject": "b"}},
        {"all": [{"exact": {"type": "a"}}, {"prefix": {"source": "a"}}]},
        {"any": [{"exact": {"type": "a"}}, {"suffix": {"subject": "b"}}]},
        {"not": {"any": [{"exact": {"type": "a"}}, {"prefix": {"subject": "a"}}]}},
        {"cesql": "type = 'a' OR n > 1"},
        {"not": {"cesql": "type = 'a' OR n > 1"}},
        [{"exact": {"type": "a"}}, {"sql": "EXISTS subject"}],
        [],
    ],
    "eventbridge": [
        {"type": ["a", "b"]},
        {"type": [{"prefix": "a"}], "data": {"n": [{"numeric": [">", 0, "<=", 5]}]}},
        {"subject": [{"exists": False}]},
        {"data": {"l": [1, "a"], "o": {"x": [{"exists": True}]}}},
        {"data": {"n": [{"anything-but": [1, 2]}]}},
        {"type": [{"anything-but": {"prefix": "a"}}]},
        {"$or": [{"type": ["a"]}, {"data": {"n": [None]}}]},
        {"type": [{"suffix": "b"}, {"equals-ignore-case": "A"}, {"wildcard": "a*b"}]},
    ],
}
"""Filters of every dialect, about the attributes of the events below."""

texts = st.sampled_from(["", "a", "b", "ab", "ba", "1", "2", "true", "A", "a b"])
plain = st.one_of(texts, st.integers(-1, 3), st.booleans(), st.none(), st.sampled_from([1.5, 2147483648]))
values = plain | st.lists(plain, max_size=3) | st.dictionaries(st.sampled_from(["x", "y"]), plain, max_size=2)
events = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("type", "source", "subject", "n", "m", "flag"), texts | plain),
        "data": st.fixed_dictionaries({}, optional=dict.fromkeys(("n", "l", "o"), values)) | values,
    },
)

compiled = [
    pytest.param(
        compile_filter(filter, dialect),
        id=f"{dialect}:{filter if isinstance(filter, str) else json.dumps(filter)}",
    )
    for dialect in DIALECTS
    for filter in CORPUS.get(dialect, [])
]


@pytest.mark.parametrize("filter", compiled)
@settings(max_examples=drawn(60))
@given(sample=st.lists(events, min_size=5, max_size=20))
def test_the_text_in_sql_matches_the_same_events(filter: Filter, sample: list[dict[str, Any]]) -> None:
    converted = compile_filter(convert(filter), "sql")
    for event in sample:
        assert converted.matches(event) is filter.matches(event)
        assert trace(filter, event).matches is filter.matches(event)
    assert str(explain(filter, sample))
    assert check(filter.text, filter.dialect).is_valid


def test_every_dialect_has_filters_here() -> None:
    assert set(DIALECTS) <= set(CORPUS)


def test_only_sql_can_be_converted_to() -> None:
    with pytest.raises(ValueError, match="filters are converted to sql only, not to cesql"):
        convert(compile_filter("a = 1"), "cesql")


def made(expression: Any) -> Filter:
    return Filter("(a filter)", "made", Parsed(expression))


def is_one(name: str) -> Comparison:
    return Comparison("=", A((name,)), Literal(1))


def test_unnecessary_guards_are_omitted() -> None:
    same = OrElse((is_one("a"), Comparison("=", A(("a",)), Literal(2)), is_one("a")))
    assert convert(made(same)) == "a = 1 OR a = 2"
    other = OrElse((is_one("a"), is_one("b")))
    assert convert(made(other)) == "a = 1 OR a <> 1 AND b = 1"
    assert (
        convert(made(AndThen((is_one("a"), And((is_one("b"), is_one("c"))))))) == "a = 1 AND b = 1 AND c = 1"
    )
    within = Quantified("ANY", A(("l",)), "i", other)
    assert convert(made(within)) == "ANY i IN l SATISFIES (a = 1 OR a <> 1 AND b = 1)"


def test_many_operands_are_repeated_few_times() -> None:
    many = OrElse(tuple(is_one(f"a{i}") for i in range(256)))
    text = convert(made(many))
    assert text.count("a0 =") + text.count("a0 <>") <= 9
    assert len(text) < 40_000


@pytest.mark.long
def test_conversions_that_are_too_large_are_rejected() -> None:
    bomb: Any = is_one("x")
    for depth in range(40):
        bomb = OrElse((AndThen((bomb, is_one(f"a{depth}"))), is_one(f"b{depth}")))
    with pytest.raises(FilterError) as caught:
        convert(made(bomb))
    assert str(caught.value) == (
        "in sql this filter would exceed the maximum size of a filter\n"
        "  hint: split it into several subscriptions"
    )


def test_a_long_text_has_a_line_for_each_part() -> None:
    names = [f"a_rather_long_name_{number}" for number in range(5)]
    text = convert(made(And((Or((is_one("a"), is_one("b"))), *map(is_one, names)))))
    assert text.split("\n") == ["(a = 1 OR b = 1)", *(f"AND {name} = 1" for name in names)]
