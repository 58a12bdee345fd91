"""Hostile filters are rejected by a documented limit, or handled in linear time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from tests.yardstick import slowness

from fieldfare.filters import (
    Filter,
    FilterError,
    compile_filter,
    decode_normal_form,
    encode_normal_form,
    format_expression,
)
from fieldfare.filters.expression import DEPTH_MAX
from fieldfare.filters.normal_form import normal_form
from fieldfare.filters.patterns import PATTERN_CHARACTERS_MAX
from fieldfare.filters.text import DIGITS_MAX, SIZE_MAX, TEXT_BYTES_MAX

COMPILE_S = 0.05
"""Maximum seconds of processor time to compile a filter, its normal form included, on an idle machine."""

EVALUATE_S = 0.005
"""Maximum seconds to evaluate a filter for one small event."""

GENEROUSLY = 10
"""Factor for machines that are not idle; a quadratic algorithm takes hundreds of times as long."""

SMALL_EVENTS: list[dict[str, Any]] = [
    {"a": 1, "b": 1e308},
    {"a": 10**300, "b": 10**4000},
    {"a": [1, "b", {"x": 1}, [2, 3], None, 5, 6, 7], "b": 1e-300},
    {"a": "Aaaa" * 10, "b": 2.5},
    {},
]

Result = TypeVar("Result")


def quickly(action: Callable[[], Result], limit_s: float, times: float = GENEROUSLY) -> Result:
    """Run a function; fail if it is too slow three times in a row."""
    for _ in range(3):
        started = time.process_time()
        result = action()
        taken_s = time.process_time() - started
        if taken_s <= times * limit_s or taken_s <= times * limit_s * slowness():
            return result
    raise AssertionError(f"{taken_s:.3f} s of processor time, expected {limit_s} s")


def refusal(text: str) -> str:
    def refused() -> FilterError:
        with pytest.raises(FilterError) as caught:
            compile_filter(text)
        return caught.value

    error = quickly(refused, COMPILE_S)
    assert len(str(error)) < 5_000
    return error.problems[0].message


_CHAIN = "ANY i IN x SATISFIES (ANY j IN i.a SATISFIES (ANY k IN j.b SATISFIES ("


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(" * 1_000_000, "too long: 1,000,000 bytes"),
        ("é" * (TEXT_BYTES_MAX // 2 + 1), "too long: 65,538 bytes"),
        ("(" * TEXT_BYTES_MAX, "too large: its size exceeds 4,096"),
        ("(" * SIZE_MAX, "nested too deeply"),
        ("NOT " * 3_000 + "a", "nested too deeply"),
        ("a = " + "- " * 3_000 + "b", "nested too deeply"),
        ("a > 1" + " + 1" * 150, "nested too deeply"),
        ("a" + " IS TRUE" * 1_500, "nested too deeply"),
        ("LOWER(" * 500, "nested too deeply"),
        ("a" + ".b" * 30_000, "at most 64 steps"),
        ("a" + "[0]" * 1_000, "at most 64 steps"),
        ("a = " + "9" * (DIGITS_MAX + 1), "at most 1,000 digits"),
        ("a = 1e1001", "between 1e-1000 and 1e1000"),
        ("a = 1e" + "9" * 60_000, "between 1e-1000 and 1e1000"),
        ("a LIKE '" + "%a" * PATTERN_CHARACTERS_MAX + "'", "at most 4,096 characters"),
        (")" * 4_000, "has no matching"),
        ("a = " * 2_000, "cannot follow another comparison"),
        ("'" * (TEXT_BYTES_MAX - 1), "never ends"),
        ("\0" * TEXT_BYTES_MAX, "unexpected character"),
        ("a = '\ud800'", "half of a character"),
        ("a IN (" * 1_000, "expected , or )"),
        ("a IN (" + ",".join(map(str, range(100_000))) + ")", "too long"),
        ("a = " + "9" * 10_000, "at most 1,000 digits"),
        ("CONCAT(" + "a, " * 200 + "a) = 'x'", "CONCAT takes 2 to 100 values"),
        ("'a'" + " || a" * 200 + " = 'x'", "at most 100 strings"),
        (" OR ".join(["a + 1 > b"] * 250), "too large"),
        ("ANY i IN a SATISFIES (" + " OR ".join(["i = 1"] * 500) + ")", "too much work"),
        ("ANY i IN a SATISFIES (" * 4 + "i = 1" + ")" * 4, "too much work"),
        (" AND ".join(["1 = ANY(a)"] * 250), "too much work"),
        (
            _CHAIN + _CHAIN.replace("x", "y").replace("i", "h") + " OR ".join(["m = 1"] * 20) + ")" * 6,
            "too much work",
        ),
        ("CASE WHEN a THEN " * 200, "nested too deeply"),
        ("CASE " * 5 + "a" + (" WHEN 1 THEN a" * 10 + " END") * 5, "too large"),
        (
            "LOWER(" * 50 + "a" + ")" * 50 + f" LIKE ANY ({', '.join(['$'] * 100)})".replace("$", "'x%'"),
            "too large",
        ),
        ("a" + "[-1]" * 90 + " = b" + "[-1]" * 150, "too large"),
        ("CASE " * 4_000, "too large"),
        ("CASE(" * 300, "nested too deeply"),
        ("a = 1 /* " + "*" * 60_000, "this comment never ends"),
        ("a" + " * a" * 90 + " = ANY(b) AND a" + " * a" * 90 + " = ANY(b)", "too much work"),
    ],
    ids=lambda text: text[:20],
)
def test_filters_beyond_a_limit_are_rejected_quickly(text: str, message: str) -> None:
    assert message in refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "(" * DEPTH_MAX + "a" + ")" * DEPTH_MAX,
        "CASE WHEN a THEN " * (DEPTH_MAX - 2) + "1" + " END" * (DEPTH_MAX - 2) + " = 1",
        "CASE WHEN " * (DEPTH_MAX - 1) + "a" + " THEN a END" * (DEPTH_MAX - 1),
        "CASE a " + " ".join(f"WHEN {i} THEN {i}" for i in range(700)) + " END = 2",
        "a LIKE ANY (" + ", ".join(["'x%y%'"] * 900) + ")",
        " AND ".join(["a <=> b", "NOT b <=> a"] * 90),
        "a" + "[-1]" * 90 + " = 1",
        "/**/" * 15_000 + "a = 1 --",
        "NOT " * (DEPTH_MAX - 1) + "a",
        "a > 1" + " + 1" * (DEPTH_MAX - 2),
        "(" * 45 + "a AND b" + ") IS UNKNOWN AND c" * 45,
        "(" * 90 + "a = b" + ") = c" * 90,
        "a = " + "9" * DIGITS_MAX + f" AND b = 1e-1000 AND c = 1e1000 AND d = 0.{'9' * DIGITS_MAX}",
        "a = 0." + "0" * 999 + "1" + " AND b = 1" + "0" * 500 + "e-1000 AND c = 0." + "0" * 60_000,
        "a IN (" + ",".join(map(str, range(9_000))) + ")",
        "NOT a IN (" + ",".join(["1"] * 30_000) + ")",
        "a IN (" + ",".join(["b"] * 4_000) + ")",
        "a IN (" + ",".join(f"b{i}" for i in range(4_000)) + ")",
        "a IN (b, " + ",".join(map(str, range(9_000))) + ")",
        "a IN (" + ",".join(f"'{i}'" for i in range(8_000)) + ")",
        " OR ".join(f"a = {i}" for i in range(1_300)),
        " AND ".join(f"a <> {i}" for i in range(1_300)),
        " AND ".join(f"a{i} = 1" for i in range(1_300)),
        " AND ".join(f"(a{i} = 1 OR b{i} = 2)" for i in range(400)),
        " OR ".join(f"(a{i} = 1 AND b{i} = 2)" for i in range(400)),
        " AND ".join(f"(a = {i} OR b = {i})" for i in range(400)),
        " AND ".join(f"((a{i} = 1 OR b{i} < 2) IS UNKNOWN)" for i in range(300)),
        " OR ".join(
            "(" + " AND ".join(f"({c} = {i} OR {c}{c} = {i})" for c in "abcdef") + ")" for i in range(60)
        ),
        " OR ".join("(" * 45 + f"a{i} = 1" + " OR b = 2) AND (c = 3 OR d = 4)" * 45 for i in range(6)),
        " OR ".join(f"a ILIKE 'abcdefg{i}%'" for i in range(190)),
        " OR ".join(f"LOWER(a) = '{i}international'" for i in range(150)),
        " OR ".join(f"DISTANCE_KM(a, b, {i % 90}, 5) < 5" for i in range(100)),
        " OR ".join(f"a * 1e-{i + 1} / 3 > b" for i in range(100)),
        " AND ".join("a LIKE '" + "_a" * 2_000 + "%'" for _ in range(15)),
        "ANY i IN a SATISFIES (ANY j IN a SATISFIES (i = j OR i > j)) IS NOT UNKNOWN",
        _CHAIN + " OR ".join(f"LOWER(k.c) = '{i}' AND ABS(j.d) > i.e" for i in range(20)) + ")))",
        "ANY i IN a SATISFIES (" + " OR ".join(f"i = {i} OR i = a" for i in range(100)) + ")",
        " AND ".join("1 = ANY(a)" for _ in range(120)),
        "a = 1" + " AND a = '\x00\U0010ffff'",
        '"' + "x" * 60_000 + '" = 1',
        "a > 1" + " * b" * (DEPTH_MAX - 2),
    ],
    ids=lambda text: text[:20],
)
def test_filters_within_the_limits_work_quickly(text: str) -> None:
    def compiled_with_normal_form() -> Filter:
        compiled = compile_filter(text)
        assert compiled.normal_form
        return compiled

    compiled = quickly(compiled_with_normal_form, COMPILE_S)
    form = compiled.normal_form
    for event in SMALL_EVENTS:
        quickly(lambda event=event: compiled.matches(event), COMPILE_S)
        quickly(lambda event=event: compiled.evaluate(event), COMPILE_S)
        matches = quickly(lambda event=event: compiled.matches(event), EVALUATE_S)
        assert matches is (quickly(lambda event=event: compiled.evaluate(event), EVALUATE_S).value is True)
    canonical = format_expression(compiled.expression)
    if len(canonical) <= TEXT_BYTES_MAX:  # it has spaces that the text need not have
        try:
            assert compile_filter(canonical).expression == compiled.expression
        except FilterError as error:  # or parentheses
            assert "too large" in str(error)
    assert decode_normal_form(encode_normal_form(form)) == form


_ABSENT: list[Any] = [{"exists": False}]


@pytest.mark.parametrize(
    ("levels", "beside"),
    [
        (44, {"b": _ABSENT}),
        (48, {"b": _ABSENT}),
        (20, {"b": ["x", *_ABSENT]}),
        (44, {"b": [{"wildcard": "a*b*c"}]}),
        (30, {}),
    ],
    ids=str,
)
def test_patterns_of_many_levels_compile_in_bounded_time(levels: int, beside: dict[str, Any]) -> None:
    """44 levels, 1.5 KB, took half a second: 3,000 of them in a request blocked others for minutes."""
    pattern: Any = ["x", *_ABSENT] if not beside else _ABSENT
    for _ in range(levels):
        pattern = {"a_field_of_an_object": pattern, **beside}
    compiled = quickly(lambda: compile_filter(pattern, "eventbridge"), COMPILE_S)
    assert compiled.expression
    quickly(lambda: normal_form(compiled.expression), COMPILE_S, 4)


@pytest.mark.parametrize(
    "pattern",
    ["%a" * 2_000 + "%b", "%" + "a_" * 2_000 + "b%", "%" * 4_000 + "b", "%_" * 2_000 + "b", "_" * 4_096],
    ids=lambda pattern: pattern[:10],
)
def test_like_takes_linear_time(pattern: str) -> None:
    compiled = compile_filter(f"a LIKE '{pattern}'")
    assert not quickly(lambda: compiled.matches({"a": "a" * 100_000}), 1)


def test_arithmetic_of_numbers_that_grow_too_long_is_unknown() -> None:
    compiled = compile_filter("a" + " * a" * 50 + " > 1")
    assert compiled.matches({"a": 10})
    assert compiled.evaluate({"a": 10**300}).value is None


_PIECES = """
AND OR NOT IS IN LIKE BETWEEN ESCAPE EXISTS NULL TRUE FALSE UNKNOWN AND OR ( ) ( ) , = <> < <= > >= == !=
+ - * / % . [ ] [0] a b a = 1 data.x data."o" "X" 'x' '%a_' 1 2.5 1e3 .5 5. 01 '' " ' ; ? ! && || -- ` ~ ^ adn
lower( 5e 5e² 5² é \x00 \u2028
"""


@pytest.mark.long
def test_no_text_raises_anything_but_a_filter_error() -> None:
    """For random sequences of tokens: a filter that parses also prints, evaluates and encodes."""
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
