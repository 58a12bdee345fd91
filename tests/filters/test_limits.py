"""Hostile filters: refused by a documented limit, or handled in linear time."""

from __future__ import annotations

import random
import time

import pytest

from fieldfare.filters import (
    FilterError,
    compile_filter,
    decode_normal_form,
    encode_normal_form,
    format_expression,
)
from fieldfare.filters.expression import MAX_DEPTH
from fieldfare.filters.patterns import MAX_PATTERN_CHARACTERS
from fieldfare.filters.sql.literals import MAX_DIGITS
from fieldfare.filters.sql.parser import MAX_TEXT_BYTES

QUICKLY_S = 5.0
"""CPU time; generous: these take milliseconds; what is quadratic or worse takes minutes."""


def refusal(text: str) -> str:
    started = time.process_time()
    with pytest.raises(FilterError) as caught:
        compile_filter(text)
    assert time.process_time() - started < QUICKLY_S
    assert len(str(caught.value)) < 5_000
    return caught.value.problems[0].message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(" * 1_000_000, "too long: 1,000,000 bytes"),
        ("é" * (MAX_TEXT_BYTES // 2 + 1), "too long: 65,538 bytes"),
        ("(" * MAX_TEXT_BYTES, "nested too deeply"),
        ("NOT " * 10_000 + "a", "nested too deeply"),
        ("a = " + "- " * 10_000 + "b", "nested too deeply"),
        ("a > 1" + " + 1" * 10_000, "nested too deeply"),
        ("a" + " IS TRUE" * 5_000, "nested too deeply"),
        ("a" + ".b" * 30_000, "at most 64 steps"),
        ("a" + "[0]" * 20_000, "at most 64 steps"),
        ("a = " + "9" * (MAX_DIGITS + 1), "at most 1,000 digits"),
        ("a = 1e1001", "between 1e-1000 and 1e1000"),
        ("a = 1e" + "9" * 60_000, "between 1e-1000 and 1e1000"),
        ("a LIKE '" + "%a" * MAX_PATTERN_CHARACTERS + "'", "at most 4,096 characters"),
        (")" * MAX_TEXT_BYTES, "closes nothing"),
        ("a = " * 16_000, "cannot follow another comparison"),
        ("'" * (MAX_TEXT_BYTES - 1), "never ends"),
        ("\0" * MAX_TEXT_BYTES, "unexpected character"),
        ("a = '\ud800'", "half of a character"),
        ("a IN (" * 10_000, "expected , or )"),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_beyond_a_limit_is_refused_quickly(text: str, message: str) -> None:
    assert message in refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH,
        "NOT " * (MAX_DEPTH - 1) + "a",
        "a > 1" + " + 1" * (MAX_DEPTH - 2),
        "(" * 45 + "a AND b" + ") IS UNKNOWN AND c" * 45,
        "(" * 90 + "a = b" + ") = c" * 90,
        "a = " + "9" * MAX_DIGITS + f" AND b = 1e-1000 AND c = 1e1000 AND d = 0.{'9' * MAX_DIGITS}",
        "a = 0." + "0" * 999 + "1" + " AND b = 1" + "0" * 500 + "e-1000 AND c = 0." + "0" * 60_000,
        "a IN (" + ",".join(map(str, range(9_000))) + ")",
        "NOT a IN (" + ",".join(["1"] * 30_000) + ")",
        "a IN (" + ",".join(["b"] * 30_000) + ")",
        "a IN (" + ",".join(f"b{i}" for i in range(9_000)) + ")",
        " OR ".join(f"a = {i}" for i in range(5_000)),
        " AND ".join(f"a <> {i}" for i in range(4_000)),
        " AND ".join(f"a{i} = 1" for i in range(4_000)),
        " AND ".join(f"(a{i} = 1 OR b{i} = 2)" for i in range(2_000)),
        " OR ".join(f"(a{i} = 1 AND b{i} = 2)" for i in range(2_000)),
        " AND ".join(f"(a = {i} OR b = {i})" for i in range(2_000)),
        '"' + "x" * 60_000 + '" = 1',
        "a > 1" + " * b" * (MAX_DEPTH - 2),
    ],
    ids=lambda text: text[:20],
)
def test_what_is_within_the_limits_works_quickly(text: str) -> None:
    started = time.process_time()
    compiled = compile_filter(text)
    form = compiled.normal_form
    for event in ({"a": 1, "b": 1e308}, {"a": 10**300, "b": 10**4000}, {}):
        assert compiled.matches(event) is (compiled.evaluate(event).value is True)
    canonical = format_expression(compiled.expression)
    if len(canonical) <= MAX_TEXT_BYTES:  # it has spaces that the text need not have
        assert compile_filter(canonical).expression == compiled.expression
    assert decode_normal_form(encode_normal_form(form)) == form
    assert time.process_time() - started < QUICKLY_S


@pytest.mark.parametrize(
    "pattern",
    ["%a" * 2_000 + "%b", "%" + "a_" * 2_000 + "b%", "%" * 4_000 + "b", "%_" * 2_000 + "b", "_" * 4_096],
    ids=lambda pattern: pattern[:10],
)
def test_like_takes_linear_time(pattern: str) -> None:
    compiled = compile_filter(f"a LIKE '{pattern}'")
    started = time.process_time()
    assert not compiled.matches({"a": "a" * 100_000})
    assert time.process_time() - started < QUICKLY_S


def test_arithmetic_of_numbers_that_grow_too_long_is_unknown() -> None:
    compiled = compile_filter("a" + " * a" * 50 + " > 1")
    assert compiled.matches({"a": 10})
    assert compiled.evaluate({"a": 10**300}).value is None


_PIECES = """
AND OR NOT IS IN LIKE BETWEEN ESCAPE EXISTS NULL TRUE FALSE UNKNOWN AND OR ( ) ( ) , = <> < <= > >= == !=
+ - * / % . [ ] [0] a b a = 1 data.x data."o" "X" 'x' '%a_' 1 2.5 1e3 .5 5. 01 '' " ' ; ? ! && || -- ` ~ ^ adn
lower( 5e 5e² 5² é \x00 \u2028
"""


def test_no_text_raises_anything_but_a_filter_error() -> None:
    """Pieces of the language in random order; what parses also prints, evaluates and encodes."""
    rng, pieces = random.Random(5), _PIECES.split()
    parsed = 0
    for _ in range(10_000):
        text = rng.choice([" ", "", "\n"]).join(rng.choice(pieces) for _ in range(rng.randint(1, 12)))
        try:
            compiled = compile_filter(text)
        except FilterError as error:
            assert 1 <= len(error.problems) <= 10
            str(error).encode()
            continue
        parsed += 1
        assert compile_filter(format_expression(compiled.expression)).expression == compiled.expression
        assert decode_normal_form(encode_normal_form(compiled.normal_form)) == compiled.normal_form
        compiled.matches({"a": 1, "data": {"x": True}})
    assert parsed > 100
