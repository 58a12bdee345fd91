"""The functions, by example and at random: evaluator, naive implementation and index agree."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters import expression as ast
from fieldfare.filters.evaluator import Compiler, event_getter
from fieldfare.filters.exact import order
from fieldfare.filters.functions import FUNCTIONS, Function, Type, cases
from fieldfare.filters.functions.geography import box_around, distance_km
from fieldfare.filters.functions.table import CHARACTERS_MAX
from fieldfare.filters.normal_form import normal_form

from . import naive
from . import strategies as some

few = settings(max_examples=drawn(60))

TIME_TEXTS = st.one_of(
    st.sampled_from(some.TIMES + some.NO_TIMES),
    st.builds(
        "{:04}-{:02}-{:02}{}{:02}:{:02}:{:02}{}{}".format,
        st.sampled_from([0, 1, 4, 1600, 1900, 1969, 1970, 2000, 2024, 2026, 9999]),
        *(st.integers(0, 13), st.integers(0, 32), st.sampled_from("TTTt x")),
        *(st.integers(0, 24), st.sampled_from([0, 30, 59, 60]), st.sampled_from([0, 30, 59, 60, 61])),
        st.sampled_from(["", ".5", ".000000001", "."]),
        st.sampled_from(["Z", "z", "+02:00", "-23:59", "+24:00", "+0200", ""]),
    ),
)
TEXTS = st.one_of(
    st.sampled_from(some.STRINGS + some.ODD_STRINGS),
    st.text(st.sampled_from("aAbB ßẞſsSΣσςİıiKkﬁﬀfF\u0130\u0307é"), max_size=5),
)
VALUES = {
    Type.NUMBER: st.sampled_from(some.NUMBERS + some.FLOATS + some.DEGREES) | st.integers(-5, 5),
    Type.STRING: TEXTS | TIME_TEXTS | st.sampled_from(some.DAY_TIMES + some.OFFSETS),
    Type.TIMESTAMP: st.integers(-(10**11), 10**12) | st.sampled_from([Decimal("0.25"), -1, 253402300800]),
    Type.INTERVAL: st.integers(-100, 100),
    Type.ANY: some.event_values,
}
CONSTANTS = [
    *some.TIMES[:3],
    *some.DAY_TIMES,
    "a",
    "ab",
    "ss",
    "ΑΣ",
    "ας",
    0,
    1,
    3,
    Decimal("0.5"),
    10**9,
    86_400,
]


def some_call(data: st.DataObject, function: Function) -> tuple[ast.Call, dict[str, Any]]:
    """Draw a call over attributes (literals where required), and an event for it."""
    most = max(function.operands_min, min(function.most_operands, 4))
    counts = range(function.operands_min, most + 1)
    if function.name == "CASE":  # conditions with a value each, and the last one
        counts = range(3, 6, 2)
    count = data.draw(st.sampled_from(counts), "count")
    operands: list[ast.Expression] = []
    event: dict[str, Any] = {}
    for place in range(count):
        parameter = function.parameter(place)
        value = data.draw(VALUES[parameter.type] | some.plain_values, f"operand {place}")
        fits = not parameter.literal or (
            parameter.check and _is(parameter.type, value) and not parameter.check(value)
        )
        if parameter.literal:
            fallback = "+02:00" if parameter.type is Type.STRING else place
            operands.append(ast.Literal(value if fits and value is not None else fallback))
        else:
            event["abcdef"[place]] = value
            operands.append(ast.Attribute(("abcdef"[place],)))
    return ast.Call(function.name, tuple(operands)), event


def _is(kind: Type, value: Any) -> bool:
    if kind is Type.STRING:
        return isinstance(value, str)
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@few
@given(st.data())
def test_a_function_agrees_with_its_naive_implementation_and_the_index(
    function: Function, data: st.DataObject
) -> None:
    if function.name not in {**naive.naive_functions.FUNCTIONS, **naive.naive_functions.OF_ANY_TYPE}:
        pytest.skip("not a function of sql")
    call, event = some_call(data, function)
    found, expected = Compiler(event_getter).value(call)(event), naive.evaluate(call, event)
    assert type(found) is type(expected) or order(found, expected) == 0
    is_compound = isinstance(found, list | dict) and found is expected
    assert order(found, expected) == 0 or found is expected is None or found != found or is_compound
    if function.result is Type.BOOLEAN:
        tests: list[ast.Expression] = [call, ast.Not(call)]
    else:
        constant = ast.Literal(data.draw(st.sampled_from(CONSTANTS)) if found is None else _literal(found))
        operator, other = data.draw(some.operators), ast.Literal(data.draw(st.sampled_from(CONSTANTS)))
        compared = ast.Comparison(operator, call, constant)
        tests = [
            compared,
            ast.Not(compared),
            ast.Between(call, other, constant),
            ast.In(call, (constant, other)),
        ]
        tests += [ast.IsNull(call), ast.Like(call, (str(constant.value)[:2], ast.Wild.RUN))]
    for test in tests:
        truth = naive.condition(test, event)
        assert Compiler(event_getter).condition(test)(event) is truth
        fitting = naive.candidates(normal_form(test), event)
        assert fitting or truth is not True
        assert truth is True or not any(conjunction.exact for conjunction in fitting)


def _literal(value: Any) -> Any:
    if isinstance(value, str | bool | int):
        return value
    number = Decimal(repr(value)) if isinstance(value, float) else value
    if isinstance(number, Fraction):
        number = Decimal(number.numerator) / number.denominator
    if not isinstance(number, Decimal) or not number.is_finite():
        return None
    return int(number) if number == number.to_integral_value() else number


@pytest.mark.parametrize(
    "text",
    [
        "LENGTH('Schnee ☃') = 8 AND LOWER('ÀB') = 'àb' AND UPPER('straße') = 'STRASSE'",
        "CASEFOLD('Straße') = CASEFOLD('STRASSE') AND 'Straße' ILIKE 'STRASSE' AND 'ΑΣ' ILIKE 'ας'",
        "'50%' ILIKE '50!%' ESCAPE '!' AND 'ABC' NOT ILIKE 'a_' AND NULL ILIKE 'a' IS UNKNOWN",
        "TRIM('  a ') = 'a' AND LTRIM('  a ') = 'a ' AND RTRIM('xaxx', 'x') = 'xa'"
        " AND TRIM('xyaxy', 'yx') = 'a'",
        "SUBSTRING('abcdef', 2, 3) = 'bcd' AND SUBSTRING('abcdef', 5) = 'ef'"
        " AND SUBSTRING('abc', 0, 2) = 'a'",
        "SUBSTRING('abcdef' FROM 2 FOR 3) = 'bcd' AND SUBSTR('abc', 9) = ''"
        " AND SUBSTRING('abc', 1, -1) IS NULL",
        "LEFT('abc', 2) = 'ab' AND RIGHT('abc', 2) = 'bc' AND RIGHT('abc', 9) = 'abc'"
        " AND LEFT('abc', 0) = ''",
        "CONCAT('a', 'b', 'c') = 'abc' AND 'a' || 'b' || 'c' = 'abc' AND ('a' || NULL) IS NULL",
        "REPLACE('aXbX', 'X', '--') = 'a--b--' AND REPLACE('abc', '', 'x') = 'abc'",
        "POSITION('@' IN 'me@home') = 3 AND POSITION('x', 'abc') = 0",
        "STARTS_WITH('abc', 'ab') AND ENDS_WITH('abc', 'bc') AND CONTAINS('abc', 'b')"
        " AND NOT CONTAINS('abc', 'x')",
        "ABS(-2.5) = 2.5 AND FLOOR(-2.5) = -3 AND CEIL(-2.5) = -2 AND CEILING(2.1) = 3",
        "ROUND(2.5) = 3 AND ROUND(-2.5) = -3 AND ROUND(2.345, 2) = 2.35 AND ROUND(1250, -2) = 1300",
        "NUMBER('18.50') = 18.5 AND NUMBER('x') IS NULL AND NUMBER(7) = 7 AND NUMBER('') IS NULL",
        "COALESCE(no.such, NULL, 1 / 0, 5) = 5 AND COALESCE(NULL, NULL) IS NULL",
        "TIMESTAMP '2026-01-01T00:00:00Z' = TIMESTAMP '2026-01-01 02:00:00+02:00'",
        "TIMESTAMP '2026-01-01T00:00:00.5Z' - TIMESTAMP '2025-12-31t23:59:59.25z' = INTERVAL '1.25' SECOND",
        "TIMESTAMP '2016-12-31T23:59:60Z' = TIMESTAMP '2017-01-01T00:00:00Z'",
        "DATE '2026-01-31' + INTERVAL '1' DAY = DATE '2026-02-01'"
        " AND INTERVAL '90 minutes' = INTERVAL '1.5' HOUR",
        "t > TIMESTAMP '2026-01-31T00:00:00Z' AND t BETWEEN DATE '2026-01-01' AND DATE '2026-03-01'",
        "t IN (TIMESTAMP '2026-01-31T12:30:15.5Z') AND t + INTERVAL '1' MINUTE > DATE '2026-01-31'",
        "t - u = INTERVAL '1' HOUR AND TIMESTAMP '2026-02-01T00:00:00Z' - t < INTERVAL '12' HOUR",
        "YEAR(t) = 2026 AND MONTH(t) = 1 AND DAY(t) = 31 AND HOUR(t) = 12 AND MINUTE(t) = 30"
        " AND SECOND(t) = 15.5",
        "WEEKDAY(t) = 6 AND WEEKDAY(t, '+12:00') = 7 AND HOUR(t, '-05:30') = 7",
        "TIME_OF_DAY(t) BETWEEN TIME '09:00' AND TIME '17:30' AND TIME_OF_DAY(t, '+02:00') > TIME '14:30'",
        "COALESCE(no.such, t) = t AND COALESCE(no.such, TIMESTAMP '2026-01-31T00:00:00Z') < t",
        "WITHIN_BOX(-17.8, 178, -20, 177, -12, -178) AND NOT WITHIN_BOX(-17.8, 0, -20, 177, -12, -178)",
        "WITHIN_BOX(0, -180, -5, 170, 5, 180) AND WITHIN_BOX(0, 180, -5, -180, 5, -170)",
        "DISTANCE_KM(52.52, 13.405, 48.8566, 2.3522) BETWEEN 877 AND 878",
        "DISTANCE_KM(0, 180, 0, -180) = 0 AND DISTANCE_KM(90, 0, 90, 77) = 0"
        " AND DISTANCE_KM(x91, 0, 0, 0) IS NULL",
        "ROUND(DISTANCE_KM(90, 0, -90, 0)) = 20015",
        "'red' = ANY(tags) AND NOT 'blue' = ANY(tags) AND 'a' < ALL(tags) AND 5 <> SOME(tags) IS UNKNOWN",
        "u < ANY(times) AND TIMESTAMP '2026-01-31T11:00:00Z' < ANY(times)",
        "ANY data IN things SATISFIES (data.x = 1 AND ANY y IN data.ys SATISFIES (y = data.x))",
    ],
)
def test_examples_of_functions_are_true(text: str) -> None:
    event = {
        "t": "2026-01-31T12:30:15.500Z",
        "u": "2026-01-31T12:30:15.5+01:00",
        "x91": 91,
        "tags": ["red", "green"],
        "times": ["2026-01-31T13:00:00+01:00", "later"],
        "things": [{"x": 1, "ys": [3, 1]}],
        "data": {"x": 5},
    }
    assert compile_filter(text).matches(event)


@pytest.mark.parametrize("white_space", [" ", "  ", "\t", "\n", "\r\n", "\v", "\f"])
def test_a_number_may_have_white_space_around_it(white_space: str) -> None:
    """Exported columns are padded: `'  18.50'` is 18.5 for SQL's CAST, for Spark and for DuckDB."""
    for text in (white_space + "18.50", "18.50" + white_space, white_space + "+18.50" + white_space):
        assert compile_filter("NUMBER(a) = 18.5").matches({"a": text}), repr(text)
    for text in (
        white_space,
        f"18{white_space}.5",
        f"-{white_space}5",
        "\u00a018.50",
        "\u200318.50",
        "\x1f5",
    ):
        assert compile_filter("NUMBER(a) IS NULL").matches({"a": text}), repr(text)


def test_an_infinity_has_an_order_and_nothing_else() -> None:
    """A sensor's overflow is above all numbers, but has no arithmetic, which is exact."""
    true = ["a > 1e300", "a <> 5", "NOT a < 0", "a = b"]
    true += [
        f"{call} IS NULL" for call in ("ABS(a)", "ROUND(a)", "ROUND(a, 2)", "FLOOR(a)", "CEIL(a)", "a + 1")
    ]
    for text in true:
        assert compile_filter(text).matches({"a": float("inf"), "b": float("inf")}), text


def test_places_and_counts_of_characters_are_those_of_the_standard() -> None:
    """Databases differ for positions before the first character; here SQL's standard applies."""
    true = [
        "SUBSTRING(a, 0, 2) = 'h' AND SUBSTRING(a, -1, 3) = 'h' AND SUBSTRING(a, -2) = 'hello'",
        "SUBSTRING(a, 2, -1) IS NULL AND LEFT(a, -1) IS NULL AND RIGHT(a, -1) IS NULL",
        "SUBSTRING(a, 1.5) IS NULL AND LEFT(a, 1.5) IS NULL AND SUBSTRING(a, 1, 0.5) IS NULL",
    ]
    for text in true:
        assert compile_filter(text).matches({"a": "hello", "n": -3}), text


def test_results_that_are_too_long_have_no_value() -> None:
    just = {"a": "x" * (CHARACTERS_MAX // 2)}
    assert compile_filter(f"LENGTH(a || a) = {CHARACTERS_MAX}").matches(just)
    assert compile_filter("(a || a || 'x') IS NULL AND REPLACE(a, 'x', 'xyz') IS NULL").matches(just)
    long = {"a": "x" * 100_000}
    assert compile_filter("LENGTH(REPLACE(a, 'x', 'y')) = 100000 AND LENGTH(TRIM(a)) = 100000").matches(long)


def test_no_character_beyond_the_table_of_cases_has_a_case() -> None:
    for character in map(chr, range(cases.LAST_CASED + 1, 0x110000)):
        assert character.lower() == character.upper() == character.casefold() == character
    for character in map(chr, range(cases.LAST_CASED + 1)):
        assert character.casefold().casefold() == character.casefold()


@settings(few, max_examples=drawn(300))
@given(
    *(
        st.floats(-90, 90),
        st.floats(-180, 180),
        st.sampled_from([0, 0.01, 1, 50, 2_000, 9_999, 15_000, 20_015, 21_000]),
    ),
    *(st.floats(-90, 90), st.floats(-180, 180), st.booleans()),
)
def test_the_box_around_a_place_contains_all_near_places(
    latitude: float, longitude: float, radius_km: float, latitude_2: float, longitude_2: float, near: bool
) -> None:
    if near:  # most places of the world are far away
        latitude_2 = max(-90, min(90, latitude + latitude_2 * radius_km / 20_000))
        longitude_2 = (longitude + longitude_2 * radius_km / 5_000 + 180) % 360 - 180
    distance = distance_km(
        *map(naive.naive_functions.exactly, (latitude, longitude, latitude_2, longitude_2))
    )
    latitudes, longitudes = box_around(latitude, longitude, radius_km)
    if distance is not None and distance <= radius_km:
        assert latitude_2 in latitudes
        assert longitude_2 in longitudes


@pytest.mark.parametrize(
    ("text", "exact", "inside", "outside"),
    [
        ("LOWER(a) = 'ab'", True, ["ab", "aB", "AB"], ["abc", "b", 1]),
        ("LOWER(a) <> 'ab'", True, ["abc", ""], ["AB", 1]),
        ("a ILIKE 'ab%'", True, ["ab", "ABx"], ["xab"]),
        ("a ILIKE 'international business%'", True, ["International Business"], ["IBM"]),
        ("UPPER(a) = 'a'", True, [], ["a", "A"]),
        ("LEFT(a, 3) = 'abc'", True, ["abcd"], ["abd", "ab"]),
        ("LEFT(a, 4) = 'abc'", False, ["abc"], ["abd"]),
        ("SUBSTRING(a, 1, 2) IN ('N5', 'M1')", True, ["N5", "M12"], ["N", "M", "N6"]),
        ("a + 5 > 7 AND 10 - a >= 0", True, [3, 10], [2, 11, "x"]),
        ("ROUND(a) = 3", True, [2.5, 3.4], [1.9, 4.1]),
        (
            "a > TIMESTAMP '2026-06-15T12:00:00Z'",
            True,
            ["2026-06-15", "2027-01-01"],
            ["2026-06-13T00:00:00Z", "x", 5],
        ),
        ("a > 2 * 3 + 1", True, [8], [7]),
        ("DISTANCE_KM(a, b, 40.7, -74) < 10", True, [40.65], [40.5, 41, 5]),
    ],
)
def test_functions_give_the_index_their_implications(
    text: str, exact: bool, inside: list[Any], outside: list[Any]
) -> None:
    conjunctions = compile_filter(text).normal_form.conjunctions
    assert all(conjunction.exact is exact for conjunction in conjunctions)
    sets = [dict(conjunction.constraints)[("a",)] for conjunction in conjunctions]
    assert all(any(value in found for found in sets) for value in inside)
    assert not any(value in found for found in sets for value in outside)


def test_a_comparison_of_two_types_is_allowed_with_a_warning() -> None:
    compiled = compile_filter("LENGTH(data.name) = 'x' OR data.a = 1")
    (warning,) = compiled.warnings
    assert (warning.line, warning.column, warning.length) == (1, 1, 23)
    assert warning.message == "this compares a number with a string, which is always unknown"
    assert not compile_filter("data.a IN (1, 'x') AND data.b = NULL").warnings


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "CASE"])
def test_too_few_and_too_many_operands_are_refused(name: str) -> None:
    function = FUNCTIONS[name]
    for count in (*range(function.operands_min)[-1:], function.most_operands + 1):
        with pytest.raises(FilterError, match=f"{name} takes"):
            compile_filter(f"{name}({', '.join(['NULL'] * count)}) IS NULL")
