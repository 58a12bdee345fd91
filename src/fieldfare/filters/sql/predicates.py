"""Parsing of predicates: comparisons, BETWEEN, IN, LIKE, IS.

Each method parses the text after an operand; its arguments are the operand, its first token, and whether a
NOT precedes the operator.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count

from fieldfare.filters.expression import (
    CONDITIONS,
    And,
    Arithmetic,
    Attribute,
    Between,
    Call,
    Comparison,
    Element,
    Expression,
    In,
    IsNull,
    IsTruth,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Pattern,
    Quantified,
    walk,
)
from fieldfare.filters.functions import Type
from fieldfare.filters.patterns import PATTERN_CHARACTERS_MAX, folded, parse_like
from fieldfare.filters.sql import mistakes
from fieldfare.filters.sql.cursor import ADD, COMPUTED_SIZE, TokenCursor
from fieldfare.filters.sql.literals import literals_of_list
from fieldfare.filters.sql.mistakes import as_string, shown
from fieldfare.filters.sql.operands import read_name, refuse_subquery
from fieldfare.filters.sql.paths import unquoted
from fieldfare.filters.sql.types import SHOWN, as_interval, as_timestamp

QUANTIFIERS = {"ANY": "ANY", "SOME": "ANY", "ALL": "ALL"}

_AFTER_IS = {"TRUE": True, "FALSE": False, "UNKNOWN": None}
_TIMES = (Type.TIMESTAMP, Type.INTERVAL)


def read_comparison(cursor: TokenCursor, left: Expression, start: int, negated: bool) -> Expression:
    operator, height, left_type = cursor.kind, cursor.height, cursor.type
    cursor.advance()
    first = cursor.index
    if cursor.kind == "path" and cursor.kinds[first + 1] == "(" and cursor.word() in QUANTIFIERS:
        return comparison_with_elements(cursor, left, operator, start)
    return compared(cursor, left, left_type, height, operator, start)


def compared(
    cursor: TokenCursor, left: Expression, left_type: Type, height: int, operator: str, start: int
) -> Expression:
    """Parse the right side of a comparison and return the comparison; the left starts at ``start``."""
    first = cursor.index
    right = cursor.grammar.expression(cursor, ADD)
    refuse_quoted_string(cursor, right, first)
    if cursor.type is not left_type:
        places = [(left, left_type, start), (right, cursor.type, first)]
        left, right = alike(cursor, places, start)
        cursor.height += 2 if left_type in _TIMES or cursor.type in _TIMES else 0
    cursor.grow(max(height, cursor.height), first)
    cursor.type = Type.BOOLEAN
    if operator == "<=>":
        cursor.count(COMPUTED_SIZE, first)
        return Call("EQUAL_NULL", (left, right))
    return Comparison(operator, left, right)


def alike(cursor: TokenCursor, operands: list[tuple[Expression, Type, int]], start: int) -> list[Expression]:
    """Return the operands of a comparison; beside a timestamp, attributes are converted to timestamps.

    Raise a mistake for a comparison of times with numbers. Warn if the types can never be compared.
    """
    types = {found for _, found, _ in operands} - {Type.ANY}
    wanted = next((time for time in _TIMES if time in types), None)
    if wanted is None:
        if len(types) > 1 and len(operands) == 2:
            kinds = " with ".join(SHOWN[found] for _, found, _ in operands)
            hint = "values of two types are never equal, less or greater; nothing is converted"
            cursor.warn(start, f"this compares {kinds}, which is always unknown", hint)
        return [operand for operand, _, _ in operands]
    result = []
    for operand, found, first in operands:
        read: Expression | None = operand
        if found is not wanted and operand != Literal(None):
            if found is Type.ANY and wanted is Type.TIMESTAMP:
                read = as_timestamp(operand)
            else:
                read = as_interval(operand) if wanted is Type.INTERVAL else None
        if read is None:
            what = "an attribute" if found is Type.ANY else SHOWN[found]
            hint = mistakes.conversion_hint(wanted, operand)
            raise cursor.mistake_over(
                first, end_of_operand(cursor, first), f"{SHOWN[wanted]} cannot be compared with {what}", hint
            )
        result.append(read)
    return result


def end_of_operand(cursor: TokenCursor, start: int) -> int:
    """Return the end of the operand at ``start``, for a message: the next operator outside of it."""
    depth, index = 0, start
    while index < cursor.index:
        kind = cursor.kinds[index]
        depth += (kind == "(") - (kind == ")")
        if depth < 0 or (not depth and index > start and kind in _ENDS):
            break
        index += 1
    return index


def comparison_with_elements(cursor: TokenCursor, left: Expression, operator: str, start: int) -> Expression:
    """Parse ``'red' = ANY(data.tags)``, a comparison with each element of an array."""
    quantifier, left_type, first, height = (
        QUANTIFIERS[cursor.word()],
        cursor.type,
        cursor.index,
        cursor.height,
    )
    cursor.advance()
    cursor.open()
    array = read_name(cursor)
    cursor.close(first + 1)
    return compared_with_elements(cursor, left, left_type, height, operator, quantifier, array, start)


def compared_with_elements(
    cursor: TokenCursor,
    left: Expression,
    left_type: Type,
    height: int,
    operator: str,
    quantifier: str,
    array: Attribute | Element,
    start: int,
) -> Expression:
    """Return a comparison of a value with the elements of an array, which are both already parsed.

    The first of both starts at ``start``.
    """
    first = cursor.index - 1
    taken = {str(part.path[0]) for part in walk(left) if isinstance(part, Attribute)}
    taken.update(part.variable for part in walk(left) if isinstance(part, Element))
    variable = next(name for name in _variables() if name not in taken and name not in cursor.variables)
    element: Expression = Element(variable)
    if left_type in _TIMES:
        places = [(left, left_type, start), (element, Type.ANY, first)]
        left, element = alike(cursor, places, start)
    computed = sum(isinstance(part, Arithmetic | Call | Negate) for part in walk(left))
    inside = cursor.tokens_between(start, cursor.index) + COMPUTED_SIZE * computed
    cursor.repeat(inside, array, start)
    cursor.grow(max(height, 2) + 1, first)
    cursor.type = Type.BOOLEAN
    condition: Expression = Comparison(operator, left, element)
    if operator == "<=>":
        condition = Call("EQUAL_NULL", (left, element))
    return Quantified(quantifier, array, variable, condition)


def read_between(cursor: TokenCursor, left: Expression, start: int, negated: bool) -> Expression:
    height, left_type = cursor.height, cursor.type
    cursor.advance()
    cursor.open_betweens += 1
    first = cursor.index
    low = cursor.grammar.expression(cursor, ADD)
    low_type = cursor.type
    refuse_quoted_string(cursor, low, first)
    height = max(height, cursor.height)
    if cursor.kind != "AND":
        hint = "write BETWEEN low AND high"
        if low == Attribute(("SYMMETRIC",)):
            hint += ", or for bounds in any order BETWEEN LEAST(low, high) AND GREATEST(low, high)"
        raise cursor.mistake(cursor.index, f"expected AND, found {shown(cursor.token())}", hint)
    cursor.open_betweens -= 1
    cursor.advance()
    second = cursor.index
    high = cursor.grammar.expression(cursor, ADD)
    refuse_quoted_string(cursor, high, second)
    height = max(height, cursor.height)
    if not (left_type is low_type is cursor.type):
        places = [(left, left_type, start), (low, low_type, first), (high, cursor.type, second)]
        left, low, high = alike(cursor, places, start)
        height += 2 if {left_type, low_type, cursor.type} & set(_TIMES) else 0
    cursor.grow(height, second)
    cursor.type = Type.BOOLEAN
    between = Between(left, low, high)
    return opposite(cursor, between, second) if negated else between


def opposite(cursor: TokenCursor, condition: Expression, index: int) -> Expression:
    """Return the negation of a condition."""
    cursor.grow(cursor.height, index)
    return Not(condition)


def read_in_list(cursor: TokenCursor, left: Expression, start: int, negated: bool) -> Expression:
    height, left_type = cursor.height, cursor.type
    cursor.advance()
    opening = cursor.index
    if cursor.kind in ("path", "quoted") and cursor.kinds[opening + 1] != "(":
        array = read_name(cursor)
        found: Expression = compared_with_elements(cursor, left, left_type, height, "=", "ANY", array, start)
        return opposite(cursor, found, opening) if negated else found
    if cursor.kind != "(":
        hint = "write IN (1, 2, 3), or IN data.tags for an attribute that is an array"
        raise cursor.mistake(opening, f"expected (, found {shown(cursor.token())}", hint)
    cursor.open()
    refuse_subquery(cursor)
    items: list[Expression] = []
    types: list[Type] = []
    starts: list[int] = []
    known: dict[str, Literal] = {}
    while not items or cursor.kind == ",":
        if items:
            cursor.advance()
        if cursor.kind == ")":
            what = "a comma with nothing after it" if items else "IN needs at least one value"
            raise cursor.mistake(cursor.index, what, "write IN (1, 2, 3)")
        first = cursor.index
        literals, their_types, end = literals_of_list(cursor.tokens, first, known)
        if literals:  # fast path: long lists consist of literals
            items += literals
            types += their_types
            starts += range(first, end, 2)
            cursor.index, cursor.kind = end, cursor.kinds[end]
            continue
        items.append(cursor.grammar.expression(cursor, ADD))
        types.append(cursor.type)
        starts.append(first)
        refuse_quoted_string(cursor, items[-1], first)
        height = max(height, cursor.height)
    if cursor.kind not in (")", "end"):
        hint = "put a comma between the values of a list"
        raise cursor.mistake(cursor.index, f"expected , or ), found {shown(cursor.token())}", hint)
    cursor.close(opening)
    if left_type in _TIMES or not set(types).isdisjoint(_TIMES):
        places = [(left, left_type, start), *zip(items, types, starts, strict=True)]
        left, *items = alike(cursor, places, start)
        height += 2
    cursor.grow(height, opening)
    cursor.type = Type.BOOLEAN
    found = In(left, tuple(items))
    return opposite(cursor, found, opening) if negated else found


def read_like(cursor: TokenCursor, left: Expression, start: int, negated: bool) -> Expression:
    height, keyword = cursor.height, cursor.kind
    before = cursor.size
    if cursor.type not in (Type.STRING, Type.ANY):
        message = f"{keyword} tests strings, this is {SHOWN[cursor.type]}"
        raise cursor.mistake_over(start, cursor.index, message)
    cursor.advance()
    token, quantifier = cursor.index, ""
    if cursor.kind == "path" and cursor.kinds[token + 1] == "(" and cursor.word() in QUANTIFIERS:
        quantifier = QUANTIFIERS[cursor.word()]
        patterns = read_patterns(cursor, keyword)
    else:
        patterns = [read_pattern(cursor, keyword)]
    if keyword == "ILIKE":
        cursor.count(COMPUTED_SIZE, token)
        left, patterns, height = Call("CASEFOLD", (left,)), list(map(folded, patterns)), height + 1
    cursor.type = Type.BOOLEAN
    cursor.grow(height + negated, token)
    tests: list[Expression] = [Like(left, pattern) for pattern in patterns]
    if negated:
        tests = list(map(Not, tests))
    if len(tests) == 1:
        return tests[0]
    # Each pattern becomes a LIKE, with the value, a keyword and an AND or OR: these count again.
    again = cursor.tokens_between(start, token) + cursor.size - before + 2
    cursor.count((len(tests) - 1) * again, token)
    cursor.grow(cursor.height, token)
    return (Or if quantifier == "ANY" else And)(tuple(tests))


def read_patterns(cursor: TokenCursor, keyword: str) -> list[Pattern]:
    """Parse ``ANY ('a%', 'b%')``."""
    cursor.advance()
    opening = cursor.index
    cursor.open()
    patterns = [read_pattern(cursor, keyword, alone=False)]
    while cursor.kind == ",":
        cursor.advance()
        patterns.append(read_pattern(cursor, keyword, alone=False))
    if cursor.kind not in (")", "end"):
        hint = f"write {keyword} ANY ('a%', 'b%')"
        raise cursor.mistake(cursor.index, f"expected , or ), found {shown(cursor.token())}", hint)
    cursor.close(opening)
    return patterns


def read_pattern(cursor: TokenCursor, keyword: str, *, alone: bool = True) -> Pattern:
    token = cursor.index
    text, escape = read_string_after(cursor, keyword, f"data.name {keyword} 'A%'"), None
    if cursor.kind == "ESCAPE" and alone:
        cursor.advance()
        escape = read_string_after(cursor, "ESCAPE", rf"{keyword} '50\%' ESCAPE '\'")
        if len(escape) != 1:
            raise cursor.mistake(cursor.index - 1, "the escape character is exactly one character")
    elif found := _ESCAPED.search(text):
        message = f"{found[0]} is a backslash and a wildcard: there is no escape character without ESCAPE"
        shortest = mistakes.shortened(cursor.texts[token])
        cursor.warn(token, message, rf"write {keyword} {shortest} ESCAPE '\' to find a {found[0][1]}")
    if len(text) > PATTERN_CHARACTERS_MAX:
        raise cursor.mistake(token, f"a pattern has at most {PATTERN_CHARACTERS_MAX:,} characters")
    try:
        return parse_like(text, escape)
    except ValueError as error:
        raise cursor.mistake(token, str(error)) from None


def read_string_after(cursor: TokenCursor, keyword: str, example: str) -> str:
    token = cursor.token()
    if token.kind == "quoted":
        raise cursor.mistake(
            cursor.index, f"{keyword} needs a string", f"a string has single quotes: {as_string(token)}"
        )
    if token.kind != "string":
        message = f"{keyword} needs a string, found {shown(token)}"
        raise cursor.mistake(cursor.index, message, f"for example {example}")
    cursor.advance()
    return unquoted(token.text)


def read_is(cursor: TokenCursor, left: Expression, start: int) -> Expression:
    cursor.advance()
    negated = cursor.kind == "NOT"
    if negated:
        cursor.advance()
    test: Expression
    if cursor.kind == "path" and cursor.word() == "DISTINCT":
        return read_distinct(cursor, left, start, negated)
    if cursor.kind == "NULL":
        test = IsTruth(left, None) if isinstance(left, CONDITIONS) else IsNull(left)
    elif cursor.kind in _AFTER_IS:
        if cursor.type not in (Type.BOOLEAN, Type.ANY):
            message = f"this is {SHOWN[cursor.type]}, not a condition"
            hint = "compare it with something, as in data.price > 5"
            raise cursor.mistake_over(start, cursor.index - 1 - negated, message, hint)
        test = IsTruth(left, _AFTER_IS[cursor.kind])
    else:
        token = cursor.token()
        words = ("NULL", "NOT", *_AFTER_IS, "DISTINCT FROM")
        hint = mistakes.after_is(token, words)
        message = f"expected NULL, TRUE, FALSE or UNKNOWN after IS, found {shown(token)}"
        raise cursor.mistake(cursor.index, message, hint)
    cursor.advance()
    cursor.type = Type.BOOLEAN
    cursor.grow(cursor.height, start)
    if negated:
        cursor.grow(cursor.height, start)
        return Not(test)
    return test


def read_distinct(cursor: TokenCursor, left: Expression, start: int, negated: bool) -> Expression:
    """Parse ``IS [NOT] DISTINCT FROM``, a comparison that is never unknown."""
    left_type, height = cursor.type, cursor.height
    cursor.advance()
    cursor.expect("FROM", "write a IS DISTINCT FROM b")
    found = compared(cursor, left, left_type, height, "<=>", start)
    return found if negated else opposite(cursor, found, start)


def refuse_quoted_string(cursor: TokenCursor, expression: Expression, start: int) -> None:
    """Record a mistake for ``data.symbol = "YHOO"``, which would compare with an attribute named YHOO."""
    if cursor.kinds[start] != "quoted" or not isinstance(expression, Attribute) or len(expression.path) > 1:
        return
    token = cursor.tokens[start]
    message = "double quotes name an attribute; a string has single quotes"
    hint = f"write {as_string(token)} (or ({mistakes.shortened(token.text)}) if you mean the attribute)"
    cursor.record(cursor.mistake(start, message, hint))


_ENDS = ("=", "<>", "<=>", "<", "<=", ">", ">=", "BETWEEN", "IN", "AND", "NOT", ",", "end")


_ESCAPED = re.compile(r"\\[%_]")


EACH = re.compile(r"each(_[0-9]+)?")
"""The names that `_variables` yields."""


def _variables() -> Iterator[str]:
    """Yield names for the element of a quantifier that has no name in the text."""
    yield "each"
    yield from (f"each_{i}" for i in count(2))


PREDICATES: dict[str, Callable[[TokenCursor, Expression, int, bool], Expression]] = {
    "BETWEEN": read_between,
    "IN": read_in_list,
    "LIKE": read_like,
    "ILIKE": read_like,
    **dict.fromkeys(("=", "<>", "<=>", "<", "<=", ">", ">="), read_comparison),
}
"""The parsers of predicates, by operator."""
