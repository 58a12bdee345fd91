"""Edge cases of CESQL's operators and functions."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from tests.filters.cesql import naive

from fieldfare.filters import compile_filter
from fieldfare.filters.cesql.builtins import RESULT_CHARACTERS_MAX
from fieldfare.filters.cesql.parser import parse_cesql

EVENT = {
    "specversion": "1.0",
    "id": "1",
    "source": "/s",
    "type": "com.example.order",
    "n": 5,
    "least": -2147483648,
    "text": "abc",
    "digits": "42",
    "yes": True,
    "word": "TRUE",
    "real": 1.5,
    "large": 2**40,
    "array": [1],
    "data": {"x": 1},
    "nothing": None,
}


def result_of(text: str, event: dict[str, Any] = EVENT) -> Any:
    """Return the value, or the kind of the error and its value."""
    evaluation = compile_filter(text, "cesql").evaluate(event)
    return (*evaluation.errors, evaluation.value) if evaluation.errors else evaluation.value


@pytest.mark.parametrize(
    "text",
    [
        *("2147483647 + 1", "-2147483648 + -1", "-2147483648 - 1", "2147483647 - -1"),
        *("65536 * 65536", "46341 * 46341", "-2147483648 * -1", "-2147483648 / -1"),
        *("-least", "- (-2147483648)", "2147483647 + '1'", "least - TRUE"),
    ],
)
def test_a_result_beyond_32_bits_is_a_math_error_and_never_wraps_around(text: str) -> None:
    assert result_of(text) == ("math", 0)
    assert not compile_filter(f"{text} <> 7", "cesql").matches(EVENT)
    assert not compile_filter(f"NOT ({text} <> 7)", "cesql").matches(EVENT)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("2147483647 + 0", 2147483647), ("-2147483648 - 0", -2147483648), ("46340 * 46340", 2147395600)),
        *(("-2147483648 / 1", -2147483648), ("-2147483648 % -1", 0), ("-2147483647 / -1", 2147483647)),
        *(
            ("65536 * -32768", -2147483648),
            ("-2147483647 - 1", -2147483648),
            ("ABS(-2147483647)", 2147483647),
        ),
        *(("INT('2147483647')", 2147483647), ("INT('-2147483648')", -2147483648)),
    ],
)
def test_a_result_at_the_edge_of_32_bits_is_exact(text: str, expected: int) -> None:
    assert result_of(text) == expected


def test_abs_of_the_least_integer_is_the_greatest_with_an_error() -> None:
    assert result_of("ABS(least)") == ("math", 2147483647)
    assert result_of("ABS(least) = 2147483647") == ("math", False)


@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "%", "<", "<=", ">", ">=", "=", "<>"])
def test_arithmetic_and_order_are_right_for_all_small_integers(operator: str) -> None:
    compiled = compile_filter(f"x {operator} y", "cesql")
    for x, y in product(range(-7, 8), repeat=2):
        expected = naive.evaluate(
            ("binary", operator, ("attribute", "x"), ("attribute", "y")), {"x": x, "y": y}
        )
        found = compiled.evaluate({"x": x, "y": y})
        assert (found.value if not found.errors else None, *found.errors) == (
            (expected[0],) if expected[1] is None else expected
        )


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("NOT a = b", "(NOT a) = b"),
        ("NOT a LIKE 'x'", "(NOT a) LIKE 'x'"),
        ("NOT a IN (b)", "(NOT a) IN (b)"),
        ("NOT EXISTS a", "NOT (EXISTS a)"),
        ("NOT a AND b", "(NOT a) AND b"),
        ("NOT NOT a", "NOT (NOT a)"),
        ("NOT - a", "NOT (- a)"),
        ("- a * b", "(- a) * b"),
        ("- a LIKE 'x'", "(- a) LIKE 'x'"),
        ("a * b LIKE 'x'", "a * (b LIKE 'x')"),
        ("a + b IN (c)", "a + (b IN (c))"),
        ("a = b IN (c)", "a = (b IN (c))"),
        ("a IN (b) LIKE 'x' NOT IN (c)", "((a IN (b)) LIKE 'x') NOT IN (c)"),
        ("a + b * c - d", "(a + (b * c)) - d"),
        ("a - b - c", "(a - b) - c"),
        ("a / b * c % d", "((a / b) * c) % d"),
        ("a < b + c", "a < (b + c)"),
        ("a < b = c", "(a < b) = c"),
        ("a <> b <> c", "(a <> b) <> c"),
        ("a = b AND c < d", "(a = b) AND (c < d)"),
        ("a OR b AND c", "(a OR b) AND c"),
        ("a AND b OR c", "(a AND b) OR c"),
        ("a XOR b AND c OR d", "((a XOR b) AND c) OR d"),
        ("a OR b OR c AND d AND e", "(a OR b OR c) AND d AND e"),
        ("4 -1", "4 - 1"),
        ("4-1", "4 - 1"),
        ("4 - -1", "4 - (-1)"),
        ("4 + +1", "4 + (+1)"),
        ("LENGTH(a) + 1", "(LENGTH(a)) + 1"),
    ],
)
def test_precedence_is_that_of_section_3_6(text: str, meaning: str) -> None:
    assert parse_cesql(text)[0] == parse_cesql(meaning)[0]


@pytest.mark.parametrize("operators", [*product(["AND", "OR", "XOR"], repeat=3)])
def test_and_or_and_xor_are_left_associative(operators: tuple[str, str, str]) -> None:
    for values in product([True, False], repeat=4):
        expected: Any = ("boolean", values[0])
        text = str(values[0])
        for operator, value in zip(operators, values[1:], strict=True):
            expected = ("binary", operator, expected, ("boolean", value))
            text += f" {operator} {value}"
        assert result_of(text) is naive.value_of(expected, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FALSE AND missing", False),
        ("missing AND FALSE", ("missingAttribute", False)),
        ("TRUE OR missing", True),
        ("missing OR TRUE", ("missingAttribute", False)),
        ("FALSE AND (1 / 0 = 1)", False),
        ("(1 / 0 = 1) AND FALSE", ("math", False)),
        ("TRUE AND TRUE AND FALSE AND missing", False),
        ("FALSE OR TRUE OR missing", True),
        ("TRUE XOR missing", ("missingAttribute", False)),
        ("missing XOR TRUE", ("missingAttribute", False)),
        ("(FALSE AND missing) OR TRUE", True),
        ("(1 / 0) + missing", ("math", 0)),
        ("missing + 1 / 0", ("missingAttribute", 0)),
        ("CONCAT(missing, 1 / 0)", ("missingAttribute", "")),
        ("NOSUCH1 = 1 OR TRUE", ("missingAttribute", False)),
    ],
)
def test_the_first_error_in_the_order_of_evaluation_counts(text: str, expected: Any) -> None:
    assert result_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 IN (1, missing)", True),
        ("1 IN (missing, 1)", ("missingAttribute", False)),
        ("1 IN (2, 'abc', 1)", ("cast", False)),
        ("1 IN (1, 'abc')", True),
        ("1 NOT IN (1, missing)", False),
        ("1 NOT IN (missing)", ("missingAttribute", False)),
        ("n IN ('abc', 5)", ("cast", False)),
        ("n IN ('5', 'abc')", True),
        ("yes IN (1, 'abc')", True),
        ("word IN (TRUE)", False),
        ("TRUE IN (word)", True),
        ("digits IN (42, 7)", True),
        ("missing IN (1)", ("missingAttribute", False)),
        ("'5' IN (n + 0)", True),
        ("(n IN (5)) IN ('true')", True),
    ],
)
def test_in_casts_its_items_and_stops_at_the_first_that_is_equal(text: str, expected: Any) -> None:
    assert result_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("digits = 42", True), ("42 = digits", True), ("n = '5'", True), ("'5' = n", True)),
        *(
            ("text = 5", ("cast", False)),
            ("5 = text", False),
            ("yes = 'true'", True),
            ("yes = 'TRUE'", False),
        ),
        *(("word = TRUE", True), ("n = TRUE", True), ("0 = FALSE", True), ("TRUE = 1", True)),
        *(("'a' < 'b'", ("cast", False)), ("'10' > '9'", True), ("TRUE > FALSE", True)),
        *(("5 AND TRUE", True), ("0 OR FALSE", False), ("'x' AND TRUE", ("cast", False))),
        *(("NOT 10", ("cast", True)), ("NOT 'x'", ("cast", True)), ("NOT BOOL(10)", False)),
        *(("NOT n", ("cast", True)), ("NOT word", False), ("-text", ("cast", 0)), ("-word", ("cast", 0))),
        *(
            ("real", "1.5"),
            ("real + 1", ("cast", 0)),
            ("large", "1099511627776"),
            ("large > 5", ("cast", False)),
        ),
        *(("array", ("generic", False)), ("nothing", ("missingAttribute", False)), ("EXISTS nothing", False)),
        *(("data", ("missingAttribute", False)), ("EXISTS data", False), ("EXISTS array", True)),
        *(("INT('+7')", 7), ("INT('007')", 7), ("INT('-0')", 0), ("INT('')", ("cast", 0))),
        *(("INT('7 ')", ("cast", 0)), ("INT('٧')", ("cast", 0)), ("INT('1e3')", ("cast", 0))),
        *(
            ("INT('2147483648')", ("cast", 0)),
            ("INT('-2147483649')", ("cast", 0)),
            ("INT('+-1')", ("cast", 0)),
        ),
        *(("BOOL('True')", True), ("BOOL(' true')", ("cast", False)), ("BOOL('')", ("cast", False))),
        *(("STRING(-0)", "0"), ("STRING(007)", "7"), ("'005' = 5", True), ("5 = '005'", False)),
    ],
)
def test_casts(text: str, expected: Any) -> None:
    assert result_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"'a%c' LIKE 'a\%c'", True),
        (r"'abc' LIKE 'a\%c'", False),
        (r"'a_c' LIKE 'a\_c'", True),
        (r"'abc' LIKE 'a\_c'", False),
        (r"'a\c' LIKE 'a\c'", True),
        (r"'a\\c' LIKE 'a\\c'", True),  # a backslash escapes only % and _, so these are two
        (r"'a\c' LIKE 'a\\c'", False),
        (r"'\%' LIKE '\\%'", True),  # the second one escapes
        (r"'\a' LIKE '\\%'", False),
        (r"'%' LIKE '\%'", True),
        (r"'\%' LIKE '\%'", False),
        (r"""'it\'s' LIKE 'it\'%'""", True),
        (r"""'say "x"' LIKE "say \"%" """, True),
        ("'a\nb' LIKE 'a_b'", True),
        ("'a\nb' LIKE '%b'", True),
        ("'ABC' LIKE 'abc'", False),
        ("'' LIKE ''", True),
        ("'' LIKE '%'", True),
        ("'' LIKE '_'", False),
        ("'a.c' LIKE 'a.c'", True),
        ("'abc' LIKE 'a.c'", False),
        ("'😀' LIKE '_'", True),
        ("-5 LIKE '-_'", True),
        ("yes LIKE 'tr__'", True),
        ("real LIKE '1._'", True),
        ("missing NOT LIKE 'a'", ("missingAttribute", False)),
    ],
)
def test_like(text: str, expected: Any) -> None:
    assert result_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((r"'a\nb'", r"a\nb"), (r"'it\'s'", "it's"), (r'"it\'s"', r"it\'s"), (r'"say \"x\""', 'say "x"')),
        *((r"'\\'", "\\\\"), (r"'\\\''", "\\\\'"), ("'a\nb'", "a\nb"), ("'é😀'", "é😀"), ("''", "")),
    ],
)
def test_only_its_own_quote_is_escaped_in_a_string(text: str, expected: str) -> None:
    assert result_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(
            ("LENGTH('😀é')", 2),
            ("LENGTH(TRUE)", 4),
            ("LENGTH(-10)", 3),
            ("LENGTH(missing)", ("missingAttribute", 0)),
        ),
        *(("CONCAT(1, TRUE, 'x')", "1truex"), ("CONCAT_WS('-', 1, 2)", "1-2"), ("CONCAT_WS(0, 1, 1)", "101")),
        *(("UPPER('straße')", "STRASSE"), ("LOWER('ÀÉ')", "àé"), ("lower(TRUE)", "true")),
        *(("TRIM('\u2003\t a \x85\u3000')", "a"), ("TRIM('\x1f a\u200b')", "\x1f a\u200b")),
        *(("LEFT('abc', '2')", "ab"), ("LEFT('abc', 'x')", ("cast", "")), ("LEFT(12345, 2)", "12")),
        *(("RIGHT('abc', 0)", ""), ("RIGHT('abc', -1)", ("functionEvaluation", "abc"))),
        *(("SUBSTRING('abc', 2, 0)", ""), ("SUBSTRING('abc', 2, -1)", ("functionEvaluation", ""))),
        *(("SUBSTRING('abc', 0, -1)", ("functionEvaluation", "")), ("SUBSTRING('', 0)", "")),
        *(("SUBSTRING('', 1)", ("functionEvaluation", "")), ("SUBSTRING('abc', 3, 2147483647)", "c")),
        *(("SUBSTRING('abc', -3, 2)", "ab"), ("SUBSTRING('abc', -4)", ("functionEvaluation", ""))),
        *(("CONCAT_WS()", ("missingFunction", False)), ("ABS()", ("missingFunction", False))),
        *(("LEFT('a', 1, missing)", ("missingFunction", False)), ("FALSE AND ABS()", False)),
    ],
)
def test_functions(text: str, expected: Any) -> None:
    assert result_of(text) == expected


def test_the_length_of_a_result_is_limited() -> None:
    event = {"a": "x" * (RESULT_CHARACTERS_MAX // 2)}
    assert result_of("LENGTH(CONCAT(a, a))", event) == RESULT_CHARACTERS_MAX
    assert result_of("CONCAT_WS('-', a, a)", event) == ("functionEvaluation", "")
    many = "CONCAT(" + ", ".join(["a"] * 4) + ") = 'x'"
    assert result_of(many, event) == ("functionEvaluation", False)
    assert compile_filter(many, "cesql").matches(event) is False


def test_required_attributes_always_exist_and_the_others_only_with_a_value() -> None:
    assert result_of("EXISTS id AND EXISTS SOURCE AND EXISTS Type AND EXISTS specversion", {}) is True
    assert result_of("EXISTS subject", {"subject": None}) is False
    assert result_of("EXISTS subject", {"subject": ""}) is True


def test_names_and_keywords_are_read_in_any_case_but_strings_are_not_changed() -> None:
    assert result_of("tYpE lIkE 'com.%' aNd nOt EXISTS Subject") is True
    assert result_of("TYPE = 'COM.EXAMPLE.ORDER'") is False
    assert result_of("Length(TYPE)") == 17


@pytest.mark.parametrize("text", ["\t n\r\n=\n5 ", "n=5", "(n)=(5)", "n\n=\t5", "( ( n ) = 5 )"])
def test_white_space_is_allowed_anywhere(text: str) -> None:
    assert result_of(text) is True


def test_an_event_passes_only_if_the_value_is_true_and_a_boolean() -> None:
    for text, expected in [
        *(("yes", True), ("word", False), ("n", False), ("'true'", False), ("1", False)),
        *(("BOOL(word)", True), ("word AND TRUE", True), ("missing", False), ("TRUE", True)),
    ]:
        assert compile_filter(text, "cesql").matches(EVENT) is expected, text
