"""A function's kernel gives the same values as the function itself, or leaves them to Python."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters import expression as ast
from fieldfare.filters.evaluator import Compiler, event_getter
from fieldfare.filters.expression import Call, Literal
from fieldfare.filters.values import ABSENT
from fieldfare.matching.evaluation.compiler import expanded, operand_of
from fieldfare.matching.evaluation.kinds import KIND_ANY, KIND_ASK, KIND_NEAR, KIND_RATIO
from fieldfare.matching.evaluation.view import Values, View
from fieldfare.matching.events.columns import KIND_EXACT, KIND_OTHER, Column, ColumnBatch
from fieldfare.matching.events.event_columns import columns_of_events
from fieldfare.matching.events.json_decoder import decode_json_lines

from . import strategies as some
from .cesql.strategies import events as cesql_events
from .test_batches import COMPILED, assert_same, filter_of
from .test_shapes import assert_same as assert_same_together
from .test_shapes import other_constants

Event = dict[str, Any]

many = settings(max_examples=drawn(60 if COMPILED else 4))
a, b = ast.Attribute(("a",)), ast.Attribute(("b",))
UNKNOWN = object()


def value_at(values: Values, row: int) -> Any:
    """Return the Python value of a row; UNKNOWN if the kernel leaves it to Python."""
    place = row * values.step
    kind, word = int(values.kinds[place]), int(values.words[place])
    if kind in (KIND_ASK, KIND_ANY, KIND_EXACT, KIND_OTHER):
        return UNKNOWN
    if kind == KIND_RATIO:
        return Fraction(word, int(values.seconds[place]))
    if kind == KIND_NEAR:
        near, away = (float(np.int64(bits).view(np.float64)) for bits in (word, values.seconds[place]))
        return (near, away)
    column = Column(np.array([kind], np.uint8), np.array([word], np.int64))
    return ColumnBatch(1, {("a",): column}, values.text).value(("a",), 0)


def is_value(found: Any, expected: Any) -> bool:
    """Return whether a kernel's value is that of the definition."""
    if isinstance(found, tuple):
        near, away = map(Fraction, found)
        return isinstance(expected, int | Fraction | Decimal) and abs(near - Fraction(expected)) <= away
    if isinstance(found, float) and math.isfinite(found):
        found = Fraction(repr(found))
    if isinstance(expected, float) and math.isfinite(expected):
        expected = Fraction(repr(expected))
    numbers = (int, float, Fraction, Decimal)
    if type(found) in numbers and type(expected) in numbers:
        return bool(found == expected)
    return type(found) is type(expected) and bool(found == expected)


def assert_values(e: ast.Expression, events: list[Event]) -> int:
    """Check that the kernels' values are those of the definition; return the number left to Python."""
    get = Compiler(event_getter).value(e)
    operand = operand_of(expanded(e))
    assert operand is not None
    columns = columns_of_events(events, ast.attribute_paths(e))
    asked = 0
    for rows in range(len(events)), range(len(events))[::-2]:
        values = operand.values(View(columns, np.array(rows)))
        for place, row in enumerate(rows):
            found, expected = value_at(values, place), get(events[row])
            if found is UNKNOWN:
                asked += len(rows) == len(events)
            else:
                expected = None if expected is ABSENT else expected
                assert is_value(found, expected), (events[row], found, expected)
    return asked


digits = st.text("0123456789", max_size=4)
instants = st.one_of(
    st.builds(
        lambda when, fraction, between, zone: when.isoformat(between)[:19] + fraction + zone,
        st.datetimes(),
        st.sampled_from(["", ".5", ".250", ".000", ".", ".123456789", ".1234567890123", "." + "0" * 101]),
        st.sampled_from("Tt _"),
        st.sampled_from(["Z", "z", "+02:00", "-11:30", "+23:59", "+24:00", "+1:00", "", "+0200", "é"]),
    ),
    st.builds(
        "{}-{}-{}T{}:{}:{}Z".format,
        st.sampled_from(["2024", "1900", "2000", "0000", "0001", "9999", "02024"]),
        st.sampled_from(["02", "12", "13", "00", "2"]),
        st.sampled_from(["28", "29", "30", "31", "32", "00"]),
        st.sampled_from(["00", "23", "24", "7"]),
        st.sampled_from(["00", "59", "60", "5x"]),
        st.sampled_from(["00", "59", "60", "61"]),
    ),
)
clocks = st.builds(
    "{}:{}{}".format,
    st.sampled_from(["00", "09", "23", "24", "9", "é9"]),
    st.sampled_from(["00", "59", "60", "5"]),
    st.sampled_from(["", ":00", ":59", ":60", ":30.5", ":30.", ":30.0", ":30." + "1" * 12, "x", ":"]),
)
times = instants | st.sampled_from(some.TIMES + some.NO_TIMES)
numbers = st.one_of(
    st.integers(-10, 10),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.floats(-100, 100),
    st.integers(-(10**6), 10**6).map(lambda n: n / 100),
    st.integers(-(10**18), 10**18).map(lambda n: n / 1000),
    st.sampled_from([2.5, -2.5, 0.5, 1e15, 2.0**53, 2.0**53 + 2, 1e23, -(2**63), 2**63 - 1, 5e-324, 1.005]),
    st.sampled_from([Decimal("2.5"), Decimal("1e30"), Fraction(1, 3), Decimal("-0.5")]),
)
numerals = st.builds(
    "{}{}{}{}{}{}".format,
    st.sampled_from(["", " ", "\t", "\u00a0", "x"]),
    st.sampled_from(["", "-", "+", "--"]),
    st.sampled_from(["", "0", "12", "007", "9" * 17, "9" * 18, "1" * 19, "1" + "0" * 30, "é"]),
    st.sampled_from(["", ".", ".5", ".25000", "." + "3" * 17, ".."]),
    st.sampled_from(["", "e3", "E-3", "e+05", "e", "e12345", "e9999", "e-18", "e18"]),
    st.sampled_from(["", " ", "\n", "\x00"]),
)
others = some.event_values | st.floats(allow_nan=True)


def calls(names: str, *operands: st.SearchStrategy[Any]) -> st.SearchStrategy[ast.Expression]:
    return st.builds(Call, st.sampled_from(names.split()), st.tuples(*operands))


def one_of(*values: Any) -> st.SearchStrategy[ast.Expression]:
    return st.sampled_from([Literal(value) for value in values])


instant = st.just(Call("TIMESTAMP", (a,)))
later = instant | st.builds(
    ast.Arithmetic,
    st.sampled_from("+-"),
    instant,
    calls("INTERVAL", one_of(90, Decimal("0.25"), 10**12) | st.just(b)),
)
parts = "TIME_OF_DAY WEEKDAY YEAR MONTH DAY HOUR MINUTE SECOND DATE"
number = st.sampled_from(
    [a, ast.Arithmetic("*", a, b), ast.Arithmetic("/", a, Literal(7)), ast.Negate(a), Call("NUMBER", (a,))]
)
words = st.text(alphabet="abAB é\U0001f600ßΣ\ud800\x00", max_size=9)
strings = words | st.sampled_from([" ab ", "ab" * 40, "x" * 4_096, "aé" * 2_050, "K", "ſ", "é" * 70])
text = st.sampled_from([a, Call("LOWER", (a,)), Call("TRIM", (a,))])
piece = st.just(b) | one_of("", "a", "ab", "é", "ab" * 40, "\U0001f600", " ", "aB")
place = st.just(b) | one_of(0, 1, 2, 3, -1, 5_000, Decimal("1.5"), None, 2**50)
degrees = st.one_of(
    st.floats(-181, 181),
    st.integers(-1900, 1900).map(lambda n: n / 10),
    st.sampled_from([0, 90, -90, 180, -180, 90.00000000000001, 1e-9, 179.9999999, Decimal("45.5")]),
)
degree = st.just(a) | st.just(b) | one_of(0, 90, -45, Decimal("52.23"))
groups = st.sampled_from(["", "", "0", "1", "db8", "2001", "FFFF", "fffff", "g", "10.0.0.1", "00ab"])
addresses = st.one_of(
    st.builds(
        "{}.{}{}{}".format,
        st.sampled_from(["10", "010", "0", "192", "256", "1", ""]),
        st.sampled_from(["0", "168", "00", "9999"]),
        st.sampled_from([".0.1", ".3.4", ".5", ".1.2.3", ".255.255", ".1.é"]),
        st.sampled_from(["", "", "", " ", "/8", "%eth0"]),
    ),
    st.builds(
        lambda parts, bits: ":".join(parts) + bits,
        st.lists(groups, max_size=9),
        st.sampled_from(["", "", "", "/0", "/32", "/64", "/65", "/128", "/129", "/", "%eth0"]),
    ),
    st.sampled_from(["::1", "::", ":::", "1::", "::ffff:10.0.0.1", "2001:db8::1", "1:2:3:4:5:6:7:8"]),
    st.sampled_from(
        ["1:2:3:4:5:6:10.0.0.1", "1:2:3:4::5:6:7:8", "2001:db8::/32", "10.0.0.0/33", "10.0.0.0/"]
    ),
)
block = st.just(b) | one_of(
    "10.0.0.0/8", "0.0.0.0/0", "10.0.0.1", "192.168.0.0/020", "x", "::/0", "10.0.0.0/32"
)
cesql_values = cesql_events.flatmap(lambda event: st.sampled_from([*event.values(), 1, "1", 2**31]))
operand = st.just(a) | st.just(b) | one_of(3, 0, "ab", " 12", True, -(2**31), 2**31 - 1)
choice = st.one_of(
    st.sampled_from(
        [a, b, Call("LOWER", (b,)), ast.Arithmetic("/", a, Literal(7)), ast.Arithmetic("*", a, b)]
    ),
    one_of(0, "ab", True, Decimal("0.1"), None, 10**30),
)
question = st.one_of(
    st.builds(ast.Comparison, some.operators, st.just(a), choice),
    st.sampled_from([a, b, ast.IsNull(b), Literal(None), Literal(True), Call("CONTAINS", (a, b))]),
    st.just(Call("COALESCE", (ast.Comparison("<", ast.Arithmetic("*", a, b), a), b))),
)
truths = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "", " ", "\n\t", "\u00a0", "\x00"]),
    st.sampled_from(
        ["true", "T", "yEs", "y", "1", "FALSE", "f", "no", "N", "0", "\x10", "t\x00", "tru", "ſ", "falsE"]
    ),
    st.sampled_from(["", "", " \r", "\x00", "x", " " * 5_000]),
)
index = one_of(1, 2, -1, 3, 0, -(2**63), Decimal("1.5"), "x", None) | st.sampled_from(
    [b, Call("FLOOR", (b,))]
)
element = st.one_of(
    st.integers(-3, 3),
    st.sampled_from(["ab", 'é"\n', "", "x" * 90, None, True, 0.5, 2**70, float("nan"), [1, 2], {"x": 1}, []]),
)
arrays = st.one_of(
    st.lists(element, max_size=4),
    st.lists(element, max_size=4).map(tuple),
    st.dictionaries(st.sampled_from(["x", "y"]), element),
    st.integers(-4, 4),
)
FAMILIES: dict[str, tuple[st.SearchStrategy[ast.Expression], st.SearchStrategy[Any]]] = {
    "times": (
        st.one_of(
            later,
            calls(parts, later),
            calls(parts, later, one_of("Z", "+02:00", "-11:30")),
            st.just(ast.Arithmetic("-", Call("TIMESTAMP", (a,)), Call("TIMESTAMP", (b,)))),
        ),
        times,
    ),
    "clocks": (calls("TIME", st.just(a)), clocks),
    "numbers": (
        st.one_of(
            calls("ABS FLOOR CEIL ROUND INTERVAL NUMBER", number),
            calls("ROUND", number, one_of(0, 1, 2, -1, 15, 16, 101, Decimal("0.5"), None) | st.just(b)),
        ),
        numbers,
    ),
    "numerals": (calls("NUMBER", st.just(a)), numerals),
    "first_values": (
        calls("COALESCE", number | st.just(a), st.just(b) | one_of(0, "x", True, Decimal("0.1")))
        | calls("COALESCE", st.just(a), calls("LOWER", st.just(b)), one_of(0, "ab")),
        numbers | st.sampled_from(some.STRINGS),
    ),
    "choices": (
        st.one_of(
            calls("CASE", question, choice, choice),
            calls("CASE", question, choice, question, choice, choice),
            calls("NULLIF EQUAL_NULL GREATEST LEAST", choice, choice),
            calls("GREATEST LEAST", choice, choice, choice, choice),
            calls("COALESCE", calls("NULLIF", choice, choice), calls("CASE", question, choice, choice)),
            calls("EQUAL_NULL", calls("GREATEST LEAST", choice, choice), choice),
        ),
        st.one_of(numbers, st.booleans(), st.sampled_from([None, "ab", "aB", "x" * 90, "é", "", 1.0, 1])),
    ),
    "arrays": (
        st.one_of(
            calls("CARDINALITY", st.just(a)),
            calls("ELEMENT_AT", st.just(a), index),
            calls("COALESCE CONCAT EQUAL_NULL", calls("ELEMENT_AT", st.just(a), index), one_of("-", 1)),
            calls("ELEMENT_AT", st.just(a), calls("CARDINALITY", st.just(a))),
        ),
        arrays,
    ),
    "casts": (
        st.one_of(
            calls("INT BIGINT BOOLEAN STRING DECIMAL", number | question),
            calls("DECIMAL", number, one_of(0, 3, 10, 19, 38), one_of(0, 2, 12, 38)),
            calls("INT BOOLEAN STRING", calls("ROUND COALESCE", number, one_of(1, 2)) | choice),
            calls("NUMBER LENGTH UPPER BOOLEAN", calls("STRING", choice)),
            calls("CONCAT", calls("STRING", choice), calls("STRING", choice | question)),
        ),
        st.one_of(
            numbers, numerals, truths, st.booleans(), st.sampled_from([2**31, -(2**31) - 1, "x" * 5_000])
        ),
    ),
    "strings": (
        st.one_of(
            calls("LENGTH LOWER UPPER CASEFOLD TRIM LTRIM RTRIM", text),
            calls("TRIM LTRIM RTRIM", text, piece),
            calls("CONCAT", text, piece),
            calls("CONCAT", text, piece, text | piece, st.just(a)),
            calls("REPLACE", text, piece, piece),
            calls("POSITION", piece, text),
        ),
        strings,
    ),
    "parts": (
        calls("LEFT RIGHT SUBSTRING", text, place) | calls("SUBSTRING", text, place, place),
        strings | st.integers(-2, 6) | st.sampled_from([2.0, 1e300, 2.0**60]),
    ),
    "searches": (
        st.one_of(
            calls("STARTS_WITH ENDS_WITH CONTAINS", text, piece),
            calls("EQUALS_IGNORE_CASE STARTS_WITH_IGNORE_CASE ENDS_WITH_IGNORE_CASE", text, piece),
        ),
        strings,
    ),
    "places": (calls("DISTANCE_KM", degree, degree, degree, degree), degrees),
    "addresses": (calls("IN_CIDR", st.just(a), block), addresses),
    "cesql": (
        st.one_of(
            calls("CESQL_ADD CESQL_SUBTRACT CESQL_MULTIPLY CESQL_DIVIDE CESQL_REMAINDER", operand, operand),
            calls("CESQL_EQUAL CESQL_CONCAT CESQL_LEFT CESQL_RIGHT", operand, operand),
            calls("CESQL_IN", operand, operand, operand),
            calls("CESQL_NOT CESQL_MINUS CESQL_ABS CESQL_LENGTH CESQL_LOWER CESQL_UPPER CESQL_TRIM", operand),
            calls("CESQL_INT CESQL_BOOL CESQL_STRING", operand),
        ),
        cesql_values,
    ),
}
"""The functions, with the values that they are intended for."""
OPEN_SHARE_MAX = {"times": 0.2, "clocks": 0.2, "numbers": 0.6, "numerals": 0.3, "first_values": 0.3} | {
    "choices": 0.3,
    "casts": 0.4,
    "arrays": 0.4,
    "strings": 0.2,
    "parts": 0.2,
    "searches": 0.3,
    "places": 0.2,
    "addresses": 0.0,
    "cesql": 0.7,
}
"""Maximum share of these values that the kernels may leave to Python: unusual ones."""


def pool_of(family: str) -> st.SearchStrategy[list[Event]]:
    meant = FAMILIES[family][1]
    values = st.one_of(meant, meant, meant, others)
    return st.lists(st.fixed_dictionaries({}, optional={"a": values, "b": values}), min_size=1, max_size=12)


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_agree_with_the_definition_of_values(family: str) -> None:
    asked, seen = 0, 0

    @many
    @given(FAMILIES[family][0], pool_of(family))
    def check(e: ast.Expression, events: list[Event]) -> None:
        nonlocal asked, seen
        asked += assert_values(e, events)
        seen += len(events)

    check()
    # A few more, for doses so small that chance decides.
    assert not COMPILED or asked <= OPEN_SHARE_MAX[family] * seen + 10


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_agree_with_the_definition_of_conditions(family: str) -> None:
    called = FAMILIES[family][0]
    constants = some.literals | one_of(12, Decimal("2.5"), "ab", 30)

    @many
    @given(
        st.one_of(
            st.builds(ast.Comparison, some.operators, called, constants | called),
            st.builds(ast.Between, called, constants, constants),
            st.builds(ast.In, called, st.lists(constants, min_size=1, max_size=3).map(tuple)),
            st.builds(ast.IsNull, called),
            st.builds(
                ast.Comparison,
                some.operators,
                st.builds(ast.Arithmetic, st.sampled_from("+-*/%"), called, called | constants),
                constants,
            ),
        ),
        pool_of(family),
    )
    def check(e: ast.Expression, events: list[Event]) -> None:
        assert_same(filter_of(e), events, events)
        assert_same_together([filter_of(replaced) for replaced in (e, other_constants(e, 1))] * 2, events)

    check()


def test_a_product_that_is_too_long_is_unknown_by_columns() -> None:
    """The product of forty numbers of 17 digits has more bits than arithmetic allows."""
    product: ast.Expression = a
    for _ in range(39):
        product = ast.Arithmetic("*", product, a)
    events = [{"a": value} for value in (0.12345678901234567, 1.5, 3, 0.1, 1.0000000000000002)]
    assert_same(filter_of(ast.Comparison(">", product, Literal(0))), events, events)


@many
@given(
    FAMILIES["arrays"][0],
    st.lists(arrays | st.lists(arrays, max_size=3), min_size=1, max_size=8),
    some.literals,
)
def test_arrays_are_read_in_json_and_within_arrays(
    called: ast.Expression, values: list[Any], constant: ast.Literal
) -> None:
    """The texts include strings with escapes, and arrays that only Python can decode."""
    lines = [json.dumps({"a": value, "b": 1}).replace("NaN", "7") for value in values]
    events = [json.loads(line) for line in lines]
    compared = ast.Comparison("=", called, constant)
    within = ast.Quantified("ANY", a, "x", ast.with_parts(compared, _of_element))
    for e in compared, ast.IsNull(called), within, ast.And((compared, within)):
        condition = filter_of(e)
        text = "".join(line + "\n" for line in lines).encode()
        columns = decode_json_lines(text, len(events), sorted(condition.column_paths, key=repr))
        assert_same(condition, columns, events)


def test_the_last_element_counts_if_only_python_can_read_it() -> None:
    """A number beyond 64 bits at the end of an array was once ignored."""
    events = [{"a": [1, 2**70]}, {"a": [2**70, 1]}, {"a": [2**70]}, {"a": [1]}]
    text = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    greater = ast.Comparison(">", ast.Element("x", ()), Literal(5))
    condition = filter_of(ast.Quantified("ANY", a, "x", greater))
    assert_same(condition, decode_json_lines(text, len(events), [("a",)]), events)


def _of_element(e: ast.Expression) -> ast.Expression:
    return ast.Element("x", ()) if e == a else ast.with_parts(e, _of_element)
