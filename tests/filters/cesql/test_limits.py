"""Hostile CESQL filters are rejected by a documented limit, or handled in linear time."""

from __future__ import annotations

import random
import time

import pytest
from tests.doses import drawn

from fieldfare.filters import (
    FilterError,
    compile_filter,
    decode_normal_form,
    encode_normal_form,
)
from fieldfare.filters.expression import DEPTH_MAX, parts_of
from fieldfare.filters.patterns import PATTERN_CHARACTERS_MAX
from fieldfare.filters.text import TEXT_BYTES_MAX

QUICKLY_S = 5.0
"""Maximum processor time in seconds. Linear algorithms take milliseconds, quadratic ones minutes."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(" * 1_000_000, "too long: 1,000,000 bytes"),
        ("'" + "é" * (TEXT_BYTES_MAX // 2) + "'", "too long: 65,538 bytes"),
        ("(" * 4_000, "nested too deeply"),
        ("NOT " * 2_000 + "a", "nested too deeply"),
        ("a = " + "- " * 2_000 + "b", "nested too deeply"),
        ("a = " + "-" * 2_000 + "5", "nested too deeply"),
        ("a > 1" + " + 1" * 2_000, "nested too deeply"),
        ("a" + " = b" * 2_000, "nested too deeply"),
        ("a" + " LIKE '1'" * 900, "nested too deeply"),
        ("a" + " IN (1)" * 900, "nested too deeply"),
        ("a" + " AND b OR c" * 900, "nested too deeply"),
        ("a IN (" * 1_000, "nested too deeply"),
        ("LENGTH(" * 2_000, "nested too deeply"),
        ("(" * 90 + "a < b" + ") < c" * 90, "with its casts more than 100 levels"),
        ("a = " + "9" * 60_000, "lies between -2147483648 and 2147483647"),
        ("a LIKE '" + "%a" * PATTERN_CHARACTERS_MAX + "'", "at most 4,096 characters"),
        (")" * 4_000, "has no matching"),
        ("," * TEXT_BYTES_MAX, "expected a value"),
        ("'" * (TEXT_BYTES_MAX - 1), "inside a string needs a \\"),
        ("'" + "\\'" * (TEXT_BYTES_MAX // 2 - 1), "never ends"),
        ("\0" * TEXT_BYTES_MAX, "unexpected character"),
        ("[" * TEXT_BYTES_MAX, "unexpected '['"),
        ("(" * TEXT_BYTES_MAX, "too large: its size exceeds 4,096"),
        (" OR ".join(["a = 1"] * 1_500), "too large: its size exceeds 4,096"),
        ("a." * 30_000, "is not the name of an attribute"),
        ("_" * TEXT_BYTES_MAX, "is not the name of an attribute"),
        ("a = '\ud800'", "half of a character"),
    ],
    ids=lambda text: text[:20],
)
def test_filters_beyond_a_limit_are_rejected_quickly(text: str, message: str) -> None:
    started = time.process_time()
    with pytest.raises(FilterError) as caught:
        compile_filter(text, "cesql")
    assert time.process_time() - started < QUICKLY_S
    assert len(str(caught.value)) < 5_000
    assert message in caught.value.problems[0].message


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        "(" * DEPTH_MAX + "a" + ")" * DEPTH_MAX,
        "NOT " * (DEPTH_MAX - 2) + "a",
        "a > 1" + " + 1" * (DEPTH_MAX - 3),
        "a" + " AND b OR c" * (DEPTH_MAX // 2 - 2),
        "a" + " OR b XOR c AND d" * (DEPTH_MAX // 3 - 2),
        "(" * 45 + "a < b" + ") < c" * 45,
        "LENGTH(" * 90 + "a" + ")" * 90 + " = 1",
        "a IN (" * 90 + "b" + ")" * 90,
        "a IN (" + ",".join(map(str, range(10_000))) + ")",
        "a NOT IN (" + ",".join(map(str, range(10_000))) + ")",
        "a IN (" + ",".join(f"'{i}'" for i in range(8_000)) + ")",
        "a IN (" + ",".join(["b"] * 4_000) + ")",
        "(a + 1) IN (" + ",".join(f"b{i}" for i in range(4_000)) + ")",
        " AND ".join(f"a <> {i}" for i in range(1_350)),
        " AND ".join(f"a{i} = '1'" for i in range(1_350)),
        " OR ".join(f"a = {i}" for i in range(1_350)),
        " OR ".join(f"a = '{i}'" for i in range(1_350)),
        " OR ".join(f"a{i} = '1'" for i in range(1_350)),
        " XOR ".join(f"a{i}" for i in range(2_000)),
        " AND ".join(f"(a{i} = 1 OR b{i} = 2)" for i in range(500)),
        " OR ".join(f"(a{i} = 1 AND b{i} = 2)" for i in range(500)),
        "NOT (" + " OR ".join(f"(a{i} LIKE '1%' AND b{i} NOT IN (2))" for i in range(300)) + ")",
        "CONCAT(" + ",".join(["a"] * 4_000) + ") = b",
        "x" * 60_000 + " = 1",
        "a = '" + "\\" * 60_000 + "'",
        'a = "' + "'" * 60_000 + '"',
    ],
    ids=lambda text: text[:20],
)
def test_filters_within_the_limits_work_quickly(text: str) -> None:
    started = time.process_time()
    compiled = compile_filter(text, "cesql")
    form = compiled.normal_form
    for event in ({"a": 1, "b": "true", "c": 3, "d": False}, {"a": "x" * 1000, "b": 10**4000}, {}):
        evaluation = compiled.evaluate(event)
        assert compiled.matches(event) is (evaluation.value is True and not evaluation.errors)
    assert decode_normal_form(encode_normal_form(form)) == form
    assert time.process_time() - started < QUICKLY_S
    level = [compiled.expression]
    for _ in range(DEPTH_MAX):
        level = [part for e in level for part in parts_of(e)]
    assert not level


@pytest.mark.parametrize(
    "pattern",
    ["%a" * 2_000 + "%b", "%" + "a_" * 2_000 + "b%", "%" * 4_000 + "b", "%_" * 2_000 + "b", "_" * 4_096],
    ids=lambda pattern: pattern[:10],
)
def test_like_takes_linear_time(pattern: str) -> None:
    compiled = compile_filter(f"a LIKE '{pattern}'", "cesql")
    started = time.process_time()
    assert not compiled.matches({"a": "a" * 100_000})
    assert compiled.evaluate({"a": "a" * 100_000}).value is False
    assert time.process_time() - started < QUICKLY_S


_PIECES = """
AND OR XOR NOT IN LIKE EXISTS TRUE FALSE AND OR XOR ( ) ( ) , = <> != < <= > >= == => + - * / % . [ ] [0] a b
a b id n m TRUE FALSE EXISTS NOT - AND OR = a = 1 data.x data NULL 'x' "x" '%a_' 1 2.5 1e3 01 -5 +5 2147483648
'' "" ' " \\' '\\'' ; ? ! && || -- ` ~ ^ adn LENGTH( LEFT(a,1) NOSUCH( CONCAT() x_y é ٣ \x00 \u2028 IS BETWEEN
"""


@pytest.mark.long
def test_no_text_raises_anything_but_a_filter_error() -> None:
    """For random sequences of tokens: a filter that parses also evaluates and has a normal form."""
    rng, pieces = random.Random(5), _PIECES.split()
    parsed, texts = 0, drawn(10_000)
    for _ in range(texts):
        text = rng.choice([" ", "", "\n"]).join(rng.choice(pieces) for _ in range(rng.randint(1, 12)))
        try:
            compiled = compile_filter(text, "cesql")
        except FilterError as error:
            assert 1 <= len(error.problems) <= 10
            str(error).encode()
            continue
        parsed += 1
        for event in {"a": 1, "b": "x"}, {"a": "TRUE", "data": {}}:
            evaluation = compiled.evaluate(event)
            assert compiled.matches(event) is (evaluation.value is True and not evaluation.errors), text
        encode_normal_form(compiled.normal_form)
    assert parsed > texts / 30
