"""Random expressions and events over few attributes and few values, so that they often match."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import strategies as st

from fieldfare.filters import expression as ast

PATHS = [("a",), ("b",), ("data", "x"), ("data", "y"), ("data", "odd name"), ("data", "l", 0), ("not",)]

BIG = 2**53
NUMBERS = [
    *(0, 1, 2, -1, 3, BIG, BIG + 1, -BIG - 1, 10**23, 10**400),
    *(Decimal("0.1"), Decimal("0.3"), Decimal("-0.5"), Decimal("1e-400"), Decimal("9007199254740992.5")),
]
FLOATS = [0.1, 0.3, 0.1 + 0.2, 1.0, -0.0, 1e23, float(BIG), float(BIG + 2), 1e308, 5e-324, -0.5]
ODD_FLOATS = [float("inf"), float("-inf"), float("nan")]
STRINGS = ["", "a", "ab", "abc", "b", "%", "a_c", "aXc", "é", "a\U0010ffff", "it's", 'a"b', "\x00"]
ODD_STRINGS = [" AB ", "Abc", "Straße", "STRASSE", "ΑΣ", "İ", "ΐb", "ﬀ", "-12.50", " 1e3\t", "x" * 3_000]
TIMES = [
    *(
        "2026-01-01T00:00:00Z",
        "2025-12-31t23:59:59.25z",
        "2026-01-01 02:00:00+02:00",
        "2024-02-29T12:30:00-05:30",
    ),
    *("1969-12-31T23:59:59.999Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.5-23:59"),
    *("2026-01-01", "2025-12-31T23:59:59.25", "2026-01-01 02:00:00"),
    *("2016-12-31T23:59:60Z", "2016-12-31T15:59:60.75-08:00"),
]
NO_TIMES = [
    "2026-02-29T00:00:00Z",
    "2026-01-01T24:00:00Z",
    "2026-01-32",
    "2026-01-01T00:00",
    "2026-01-15T23:59:60Z",
    "0000-01-01T00:00:00Z",
]
DAY_TIMES = ["09:30", "00:00:00.5", "23:59:59"]
OFFSETS = ["Z", "+02:00", "-11:30"]
DEGREES = [0, 40, -74, 90, -90, 180, -180, Decimal("40.7"), Decimal("-73.99"), Decimal("179.9"), 91]

scalars = st.one_of(
    st.sampled_from(NUMBERS), st.integers(-3, 3), st.sampled_from(STRINGS), st.booleans(), st.none()
)
paths = st.sampled_from(PATHS)
attributes = st.builds(ast.Attribute, paths)
literals = st.builds(ast.Literal, scalars)
numeric_literals = st.builds(ast.Literal, st.sampled_from(NUMBERS) | st.integers(-3, 3))

numbers = st.recursive(
    attributes | numeric_literals,
    lambda inner: st.one_of(
        st.builds(ast.Negate, inner),
        st.builds(ast.Arithmetic, st.sampled_from(["+", "-", "*", "/", "%"]), inner, inner),
    ),
    max_leaves=4,
)

pattern_parts = st.lists(
    st.sampled_from(["a", "b", "c", "%", "_", "\\", ast.Wild.ONE, ast.Wild.RUN]), max_size=7
)


def _pattern(parts: list[str | ast.Wild]) -> ast.Pattern:
    joined: list[str | ast.Wild] = []
    for part in parts:
        if joined and part is ast.Wild.RUN and joined[-1] is ast.Wild.RUN:
            continue
        if joined and isinstance(part, str) and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return tuple(joined)


patterns = st.builds(_pattern, pattern_parts)
texts = st.text(alphabet="abc%_\\", max_size=12)

strings = st.builds(ast.Literal, st.sampled_from(STRINGS + ODD_STRINGS))
whole_literals = st.builds(ast.Literal, st.integers(-3, 5))


def _short_repr(strategy: st.SearchStrategy[ast.Expression]) -> st.SearchStrategy[ast.Expression]:
    """Return a strategy with a short representation, to avoid a warning of hypothesis."""

    @st.composite
    def drawn(draw: st.DrawFn) -> ast.Expression:
        return draw(strategy)

    return drawn()


def call(name: str, *operands: st.SearchStrategy[ast.Expression]) -> st.SearchStrategy[ast.Expression]:
    return st.builds(ast.Call, st.just(name), st.tuples(*operands))


def any_call(
    names: list[str], *operands: st.SearchStrategy[ast.Expression]
) -> st.SearchStrategy[ast.Expression]:
    return st.builds(ast.Call, st.sampled_from(names), st.tuples(*operands))


def _string_calls(inner: st.SearchStrategy[ast.Expression]) -> st.SearchStrategy[ast.Expression]:
    return st.one_of(
        any_call(["LOWER", "UPPER", "CASEFOLD"], inner),
        any_call(["TRIM", "LTRIM", "RTRIM"], inner),
        any_call(["TRIM", "LTRIM", "RTRIM"], inner, strings),
        any_call(["LEFT", "RIGHT", "SUBSTRING"], inner, whole_literals | attributes),
        call("SUBSTRING", inner, whole_literals, whole_literals | attributes),
        any_call(["CONCAT"], inner, inner),
        call("CONCAT", inner, strings, inner),
        call("REPLACE", inner, strings, inner),
    )


texts_computed = _short_repr(st.recursive(attributes | strings, _string_calls, max_leaves=4))
number_calls = st.one_of(
    call("LENGTH", texts_computed),
    call("POSITION", strings, texts_computed),
    any_call(["ABS", "ROUND", "FLOOR", "CEIL", "NUMBER"], numbers),
    call("ROUND", numbers, st.builds(ast.Literal, st.sampled_from([0, 1, 2, -1, 101, Decimal("0.5"), None]))),
    call("NUMBER", texts_computed),
    call(
        "DISTANCE_KM",
        *(attributes, attributes, st.builds(ast.Literal, st.sampled_from([-90, 0, Decimal("40.7"), 90]))),
        st.builds(ast.Literal, st.sampled_from(DEGREES[:-1])),
    ),
)
degree_literals = st.builds(ast.Literal, st.sampled_from([-90, -45, 0, Decimal("40.7"), 90]))
longitude_literals = st.builds(ast.Literal, st.sampled_from([-180, Decimal("-74.5"), 0, 170, 180]))
boxes = st.builds(
    lambda lat, lon, a, b, west, east: ast.Call(
        "WITHIN_BOX", (lat, lon, *([a, west, b] if a.value <= b.value else [b, west, a]), east)
    ),
    *(attributes, attributes | numeric_literals.filter(lambda e: abs(e.value) <= 180)),
    *(degree_literals, degree_literals, longitude_literals, longitude_literals),
)

time_literals = call("TIMESTAMP", st.builds(ast.Literal, st.sampled_from(TIMES)))
time_attributes = call("TIMESTAMP", attributes)
interval_literals = call(
    "INTERVAL", st.builds(ast.Literal, st.sampled_from([0, 60, -90, 86_400, Decimal("0.25"), 10**12]))
)
timestamps = _short_repr(
    st.one_of(
        time_attributes,
        time_literals,
        st.builds(ast.Arithmetic, st.sampled_from("+-"), time_attributes | time_literals, interval_literals),
    )
)
offsets = st.builds(ast.Literal, st.sampled_from(OFFSETS))
intervals = st.one_of(
    interval_literals,
    call("TIME", st.builds(ast.Literal, st.sampled_from(DAY_TIMES))),
    call("TIME", attributes),
    call("INTERVAL", attributes),
    call("TIME_OF_DAY", timestamps),
    call("TIME_OF_DAY", timestamps, offsets),
    st.builds(ast.Arithmetic, st.just("-"), timestamps, timestamps),
)
time_parts = any_call(["WEEKDAY", "YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"], timestamps) | any_call(
    ["WEEKDAY", "YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND"], timestamps, offsets
)
calls = texts_computed.filter(lambda e: isinstance(e, ast.Call)) | number_calls | time_parts
casts = st.one_of(
    any_call(["BIGINT", "INT", "DECIMAL", "BOOLEAN", "STRING"], attributes | texts_computed),
    call("DECIMAL", attributes, st.just(ast.Literal(5)), st.just(ast.Literal(1))),
)
parts = st.one_of(
    call("CARDINALITY", attributes),
    call("ELEMENT_AT", attributes, st.sampled_from([ast.Literal(-1), ast.Literal(2), ast.Literal("x")])),
    call("ELEMENT_AT", call("ELEMENT_AT", attributes, attributes), st.just(ast.Literal(1))),
)
calls = _short_repr(calls | casts | parts)
calls = _short_repr(
    st.one_of(
        *(calls, calls, call("COALESCE", attributes | calls, calls | literals)),
        any_call(["GREATEST", "LEAST"], attributes | calls, calls | literals, attributes),
        call("NULLIF", attributes | calls, literals | attributes),
        call(
            "CASE",
            st.builds(ast.Comparison, st.just("="), attributes, literals),
            calls | literals,
            attributes,
        ),
        st.builds(
            lambda pairs, otherwise: ast.Call("CASE", (*pairs[0], *pairs[1], otherwise)),
            *(st.tuples(*[st.tuples(st.builds(ast.IsNull, attributes), literals)] * 2), literals),
        ),
        call("DATEDIFF", timestamps, timestamps),
    )
)
searches = st.sampled_from(["STARTS_WITH", "ENDS_WITH", "CONTAINS"])

values = st.one_of(attributes, attributes, literals, numbers, calls)
operators = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


def conditions_over(operands: st.SearchStrategy[ast.Expression]) -> st.SearchStrategy[ast.Expression]:
    return st.one_of(
        st.builds(ast.Comparison, operators, attributes, literals),
        st.builds(ast.Comparison, operators, operands, operands),
        st.builds(ast.Between, attributes, literals, literals),
        st.builds(ast.Between, operands, operands, operands),
        st.builds(ast.In, attributes, st.lists(literals, min_size=1, max_size=4).map(tuple)),
        st.builds(ast.In, operands, st.lists(operands, min_size=1, max_size=4).map(tuple)),
        st.builds(ast.Like, attributes | texts_computed, patterns),
        st.builds(ast.Exists, attributes),
        st.builds(ast.IsNull, attributes | numbers | calls),
        st.builds(ast.Comparison, operators, calls, literals),
        st.builds(ast.In, calls, st.lists(literals, min_size=1, max_size=4).map(tuple)),
        st.builds(ast.Call, searches, st.tuples(texts_computed, strings)),
        st.builds(ast.Comparison, operators, timestamps, timestamps),
        st.builds(ast.Comparison, operators, intervals, intervals),
        st.builds(ast.Between, timestamps, time_literals, timestamps),
        st.builds(ast.In, intervals, st.lists(intervals, min_size=1, max_size=3).map(tuple)),
        boxes,
        call("EQUAL_NULL", operands, operands),
        call("EQUAL_NULL", time_attributes, call("DATE", timestamps)),
        call("EQUAL_NULL", attributes, literals),
    )


def quantified_over(elements: st.SearchStrategy[ast.Expression]) -> st.SearchStrategy[ast.Expression]:
    """Return a strategy of quantifiers, nested too; their conditions read elements and attributes."""
    inner = st.sampled_from([ast.Element("i"), ast.Element("i", ("x",)), ast.Element("i", (0,))])
    about_element = st.one_of(
        st.builds(ast.Comparison, operators, inner, literals),
        st.builds(ast.In, inner, st.lists(literals, min_size=1, max_size=3).map(tuple)),
        st.builds(ast.Exists, inner),
        st.builds(ast.IsNull, inner),
        inner,
        elements,
    )
    condition = st.one_of(
        about_element,
        st.builds(ast.And, st.tuples(about_element, about_element)),
        st.builds(ast.Not, about_element),
    )
    quantifiers = st.sampled_from(["ANY", "ALL"])
    nested = st.builds(
        ast.Quantified,
        quantifiers,
        inner,
        st.just("j"),
        st.builds(ast.Comparison, operators, st.just(ast.Element("j")), literals | inner),
    )
    return st.builds(ast.Quantified, quantifiers, attributes, st.just("i"), condition | nested)


bare = attributes | st.builds(ast.Literal, st.booleans() | st.none())


def _joined(inner: st.SearchStrategy[ast.Expression]) -> st.SearchStrategy[ast.Expression]:
    several = st.lists(inner, min_size=2, max_size=4).map(tuple)
    return st.one_of(
        st.builds(ast.And, several),
        st.builds(ast.Or, several),
        st.builds(ast.AndThen, several),
        st.builds(ast.OrElse, several),
        st.builds(ast.Not, inner),
        quantified_over(inner),
        st.builds(ast.IsTruth, inner, st.sampled_from([True, False, None])),
        conditions_over(values | inner),
    )


expressions = st.recursive(bare | conditions_over(values), _joined, max_leaves=8)

sql_expressions = expressions.filter(
    lambda e: not any(isinstance(part, ast.AndThen | ast.OrElse) for part in ast.walk(e))
)
"""Conditions that the sql dialect prints unchanged."""

plain_values = st.one_of(
    *(scalars, st.sampled_from(FLOATS + ODD_FLOATS), st.sampled_from(STRINGS), st.sampled_from(ODD_STRINGS)),
    *(st.sampled_from(TIMES + NO_TIMES), st.sampled_from(DAY_TIMES), st.sampled_from(DEGREES)),
)
event_values = plain_values | st.sampled_from(
    [
        [],
        {},
        [1],
        {"x": 1},
        [None],
        [1, "a", [2]],
        [{"x": "ab"}, {"x": 3}, 0],
        [[0, 1], []],
        {"x": [1, "abc"]},
    ]
)
events = st.fixed_dictionaries(
    {},
    optional={
        "a": event_values,
        "b": event_values,
        "not": event_values,
        "data": st.one_of(
            event_values,
            st.fixed_dictionaries(
                {},
                optional={
                    "x": event_values,
                    "y": event_values,
                    "odd name": event_values,
                    "l": st.lists(event_values, max_size=2) | event_values,
                },
            ),
        ),
    },
)
