"""Random expressions and events over few attributes and few values, so that they often meet."""

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

strings = st.builds(ast.Literal, st.sampled_from(STRINGS))
calls = st.recursive(
    attributes | strings,
    lambda inner: st.builds(ast.Call, st.sampled_from(["LOWER", "UPPER", "LENGTH"]), st.tuples(inner)),
    max_leaves=3,
).filter(lambda e: isinstance(e, ast.Call))
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
        st.builds(ast.Like, attributes | literals, patterns),
        st.builds(ast.Exists, attributes),
        st.builds(ast.IsNull, attributes | numbers | calls),
        st.builds(ast.Comparison, operators, calls, literals),
        st.builds(ast.In, calls, st.lists(literals, min_size=1, max_size=4).map(tuple)),
        st.builds(ast.Call, searches, st.tuples(attributes | calls, strings)),
    )


def quantified_over(elements: st.SearchStrategy[ast.Expression]) -> st.SearchStrategy[ast.Expression]:
    """Quantifiers over arrays, one in another too; their conditions see the elements and the attributes."""
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
"""What the sql dialect writes as it is."""

plain_values = st.one_of(scalars, st.sampled_from(FLOATS + ODD_FLOATS), st.sampled_from(STRINGS))
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
