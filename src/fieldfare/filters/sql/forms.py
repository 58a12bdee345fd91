"""Values with special syntax: CASE, CAST, and some function calls.

Most are translated to other expressions: ``ARRAY_CONTAINS(a, 5)`` is ``5 = ANY(a)``.
"""

from __future__ import annotations

from collections.abc import Callable

from fieldfare.filters.expression import Arithmetic, Attribute, Call, Element, Expression, Literal
from fieldfare.filters.functions import FUNCTIONS, Type
from fieldfare.filters.sql import mistakes
from fieldfare.filters.sql.cursor import ADD, COMPUTED_SIZE, TokenCursor
from fieldfare.filters.sql.literals import INTERVAL_UNITS
from fieldfare.filters.sql.mistakes import shown
from fieldfare.filters.sql.operands import (
    AFTER_A_WORD,
    CASE_WORDS,
    check_operand,
    checked_call,
    read_call_of,
    read_name,
    read_operand,
    require_one_type,
)
from fieldfare.filters.sql.paths import INDEX_MAX, STEPS_MAX
from fieldfare.filters.sql.predicates import compared, compared_with_elements, refuse_quoted_string
from fieldfare.filters.sql.types import SHOWN

CASTS = {
    **dict.fromkeys(("BIGINT", "LONG"), "BIGINT"),
    **dict.fromkeys(("INT", "INTEGER"), "INT"),
    **dict.fromkeys(("DOUBLE", "FLOAT", "REAL"), "NUMBER"),
    **dict.fromkeys(("DECIMAL", "DEC", "NUMERIC"), "DECIMAL"),
    **dict.fromkeys(("STRING", "VARCHAR", "CHAR", "TEXT"), "STRING"),
    **dict.fromkeys(("BOOLEAN", "BOOL"), "BOOLEAN"),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"), "TIMESTAMP"),
    "DATE": "DATE",
}
"""The types of CAST, with the functions that implement the casts."""

Tested = tuple[Expression, Type, int, int, int]
"""The value that a CASE compares: expression, type, height, start and size."""

_CASE = "write CASE WHEN data.a > 5 THEN 'high' ELSE 'low' END"


def read_form(cursor: TokenCursor, word: str) -> Expression | None:
    read = _FORMS.get(word)
    return None if read is None else read(cursor)


def is_word_of_case(cursor: TokenCursor) -> bool:
    """Return whether the current token is WHEN, THEN, ELSE or END of an enclosing CASE."""
    return cursor.open_cases > 0 and cursor.kind == "path" and cursor.word() in CASE_WORDS


def opens_case(cursor: TokenCursor) -> bool:
    """Return whether the current word begins a CASE."""
    following = cursor.kinds[cursor.index + 1]
    return cursor.word() == "CASE" and (following == "(" or following in AFTER_A_WORD)


def read_case(cursor: TokenCursor) -> Expression:
    """Parse ``CASE WHEN condition THEN value ... ELSE value END``, or ``CASE value WHEN value ...``."""
    start = cursor.index
    cursor.count(COMPUTED_SIZE, start)
    cursor.enter(start)
    cursor.open_cases += 1
    cursor.advance()
    tested = None
    if not is_word_of_case(cursor):
        tested = read_tested(cursor)
    operands: list[Expression] = []
    types: list[Type] = []
    heights = [1]
    while is_word_of_case(cursor) and cursor.word() == "WHEN":
        operands.append(read_branch(cursor, tested, len(operands) > 0))
        heights.append(cursor.height)
        cursor.expect("THEN", _CASE)
        case_value(cursor, operands, types, heights)
    if not operands:
        raise cursor.mistake(cursor.index, f"expected WHEN, found {shown(cursor.token())}", _CASE)
    if is_word_of_case(cursor) and cursor.word() == "ELSE":
        cursor.advance()
        case_value(cursor, operands, types, heights)
    else:
        operands.append(Literal(None))
    if not is_word_of_case(cursor) or cursor.word() != "END":
        raise cursor.mistake(cursor.index, f"expected END, found {shown(cursor.token())}", _CASE)
    cursor.advance()
    cursor.open_cases -= 1
    cursor.nesting -= 1
    return finished_case(cursor, operands, types, start, max(heights))


def read_tested(cursor: TokenCursor) -> Tested:
    """Parse the value that a CASE compares; return it with its type, height, start and size."""
    start, before = cursor.index, cursor.size
    tested = cursor.grammar.expression(cursor, ADD)
    counts = cursor.tokens_between(start, cursor.index) + cursor.size - before
    return tested, cursor.type, cursor.height, start, counts


def read_branch(cursor: TokenCursor, tested: Tested | None, again: bool) -> Expression:
    """Parse the condition after WHEN."""
    when = cursor.index
    cursor.advance()
    if tested is None:
        condition = cursor.grammar.disjunction(cursor)
        cursor.require_condition(when + 1)
        return condition
    value, kind, height, start, counts = tested
    cursor.count(1 + counts * again, when)
    return compared(cursor, value, kind, height, "=", start)


def case_value(
    cursor: TokenCursor, operands: list[Expression], types: list[Type], heights: list[int]
) -> None:
    """Parse a value after THEN or ELSE."""
    first = cursor.index
    operands.append(cursor.grammar.disjunction(cursor))
    refuse_quoted_string(cursor, operands[-1], first)
    if operands[-1] != Literal(None):
        types.append(cursor.type)
    heights.append(cursor.height)


def finished_case(
    cursor: TokenCursor, operands: list[Expression], types: list[Type], start: int, height: int
) -> Expression:
    places = [*range(1, len(operands) - 1, 2), len(operands) - 1]
    values = [operands[place] for place in places]
    known = iter(types)
    given = [Type.ANY if value == Literal(None) else next(known) for value in values]
    values, cursor.type = require_one_type(cursor, FUNCTIONS["CASE"], values, given, start)
    if Type.ANY not in types and len(set(types)) == 1:  # a NULL among them has no type
        cursor.type = types[0]
    for place, value in zip(places, values, strict=True):
        operands[place] = value
    cursor.grow(height + (cursor.type is Type.TIMESTAMP), start)
    return Call("CASE", tuple(operands))


def read_cast(cursor: TokenCursor) -> Expression:
    """Parse ``CAST(data.a AS BIGINT)``; TRY_CAST is equivalent, because a cast never fails."""
    start, name = cursor.index, cursor.word()
    example = f"write {name}(data.a AS BIGINT)"
    cursor.count(COMPUTED_SIZE, start)
    cursor.advance()
    cursor.open()
    cursor.enter(start)
    first = cursor.index
    operand = cursor.grammar.expression(cursor, ADD)
    found, height, last = cursor.type, cursor.height, cursor.index
    cursor.nesting -= 1
    cursor.expect("AS", example)
    function = FUNCTIONS.get(CASTS.get(cursor.word(), "")) if cursor.kind == "path" else None
    if function is None:
        raise cursor.mistake(
            cursor.index, f"there is no cast to {shown(cursor.token())}", mistakes.cast_hint(cursor.token())
        )
    after, cursor.index = cursor.index + 1, last  # for the position of a mistake
    cursor.type, cursor.height = found, height
    if function.name in ("TIMESTAMP", "DATE"):
        operand = as_moment(cursor, operand, first)
    else:
        check_operand(cursor, function, function.parameter(0), operand, first)
    found, height = cursor.type, cursor.height
    cursor.index, cursor.kind = after, cursor.kinds[after]
    operands, types = [operand], [found]
    if cursor.kind == "(" and function.name == "DECIMAL":
        more = read_digits(cursor)
        operands += more
        types += [Type.NUMBER] * len(more)
    elif cursor.kind == "(":
        raise cursor.mistake(
            cursor.index, "this type has no length here", "write LEFT(..., 10) around the CAST"
        )
    cursor.close(start + 1)
    if function.name == "TIMESTAMP":
        cursor.type, cursor.height = found, height
        return operand
    cursor.height = height
    return checked_call(cursor, function, operands, types, start, height)


def read_digits(cursor: TokenCursor) -> list[Expression]:
    """Parse the ``(10, 2)`` of DECIMAL."""
    function, opening = FUNCTIONS["DECIMAL"], cursor.index
    cursor.open()
    found: list[Expression] = []
    while not found or (cursor.kind == "," and len(found) < 2):
        if found:
            cursor.advance()
        first = cursor.index
        if cursor.kind != "number":
            raise cursor.mistake(
                first, f"expected a number, found {shown(cursor.token())}", "write DECIMAL(10, 2)"
            )
        operand = read_operand(cursor)
        found.append(check_operand(cursor, function, function.parameter(1 + len(found)), operand, first))
    cursor.close(opening)
    return found


def as_moment(cursor: TokenCursor, operand: Expression, start: int) -> Expression:
    """Return a value as a timestamp; a text is converted. Raise a mistake for other types."""
    kind = cursor.type
    if kind not in (Type.TIMESTAMP, Type.STRING, Type.ANY):
        message = f"{SHOWN[kind]} is not a timestamp"
        raise cursor.mistake_over(start, cursor.index, message, mistakes.EPOCH)
    cursor.type = Type.TIMESTAMP
    if kind is Type.TIMESTAMP or operand == Literal(None):
        return operand
    cursor.grow(cursor.height, start)
    function = FUNCTIONS["TIMESTAMP"]
    if isinstance(operand, Literal):
        cursor.type = Type.STRING
        check_operand(cursor, function, function.parameters[0], operand, start)
        cursor.type = Type.TIMESTAMP
    return Call("TIMESTAMP", (operand,))


def read_date(cursor: TokenCursor) -> Expression:
    """Parse ``DATE(time)``; with a literal, ``DATE('2026-01-31')``, it is a constant date."""
    start = cursor.index
    if cursor.kinds[start + 2] == "string" and cursor.kinds[start + 3] == ")":
        cursor.advance()
        cursor.open()
        first = cursor.index
        literal = read_operand(cursor)
        moment = as_moment(cursor, literal, first)
        cursor.close(start + 1)
        cursor.count(COMPUTED_SIZE, start)
        cursor.grow(cursor.height, start)
        return Call("DATE", (moment,))
    return read_call_of(cursor, FUNCTIONS["DATE"], start)


def read_date_add(cursor: TokenCursor) -> Expression:
    """Parse ``DATE_ADD(time, 3)``: three days after the day of a timestamp."""
    start, word = cursor.index, cursor.word()
    example = f"write {word}(time, 3) for days, or time + INTERVAL '3' HOUR"
    cursor.count(2 * COMPUTED_SIZE, start)
    cursor.advance()
    cursor.open()
    cursor.enter(start)
    first = cursor.index
    moment = cursor.grammar.expression(cursor, ADD)
    if cursor.kind != ",":
        raise cursor.mistake(cursor.index, f"expected , found {shown(cursor.token())}", example)
    day = Call("DATE", (as_moment(cursor, moment, first),))
    height = cursor.height + 1
    cursor.advance()
    second = cursor.index
    days = cursor.grammar.expression(cursor, ADD)
    if cursor.type not in (Type.NUMBER, Type.ANY):
        message = f"{word} takes a number of days, this is {SHOWN[cursor.type]}"
        raise cursor.mistake_over(second, cursor.index, message, example)
    cursor.nesting -= 1
    if cursor.kind == ",":
        raise cursor.mistake(cursor.index, f"{word} takes 2 values", example)
    cursor.close(start + 1)
    if isinstance(days, Literal) and type(days.value) is int:
        length: Expression = Call("INTERVAL", (Literal(days.value * _DAY_S),))
    else:
        cursor.count(COMPUTED_SIZE, start)
        length = Call("INTERVAL", (Arithmetic("*", Call("BIGINT", (days,)), Literal(_DAY_S)),))
        cursor.height += 2
    cursor.type = Type.TIMESTAMP
    cursor.grow(max(height, cursor.height + 1), start)
    return Arithmetic("-" if word == "DATE_SUB" else "+", day, length)


def read_array_contains(cursor: TokenCursor) -> Expression:
    """Parse ``ARRAY_CONTAINS(data.tags, 'red')``."""
    start = cursor.index
    example = "write ARRAY_CONTAINS(data.tags, 'red') or 'red' = ANY(data.tags)"
    cursor.advance()
    cursor.open()
    array = read_name(cursor)
    if cursor.kind != ",":
        raise cursor.mistake(cursor.index, f"expected , found {shown(cursor.token())}", example)
    cursor.advance()
    cursor.enter(start)
    value = cursor.grammar.expression(cursor, ADD)
    kind, height = cursor.type, cursor.height
    cursor.nesting -= 1
    cursor.close(start + 1)
    return compared_with_elements(cursor, value, kind, height, "=", "ANY", array, start)


def read_equal_null(cursor: TokenCursor) -> Expression:
    """Parse ``EQUAL_NULL(a, b)``, which is ``a <=> b``."""
    start = cursor.index
    cursor.advance()
    cursor.open()
    cursor.enter(start)
    first = cursor.index
    found = cursor.grammar.expression(cursor, ADD)
    kind, height, values = cursor.type, cursor.height, 1
    if cursor.kind == ",":
        cursor.advance()
        found, values = compared(cursor, found, kind, height, "<=>", first), 2
    if values == 1 or cursor.kind == ",":
        raise cursor.mistake(start, "EQUAL_NULL takes 2 values", "write EQUAL_NULL(a, b)")
    cursor.nesting -= 1
    cursor.close(start + 1)
    return found


def read_element_at(cursor: TokenCursor) -> Expression:
    """Parse ``ELEMENT_AT(data.items, 1)``, which is ``data.items[0]``."""
    start = cursor.index
    found = read_call_of(cursor, FUNCTIONS["ELEMENT_AT"], start)
    assert isinstance(found, Call)
    named, place = found.operands
    is_bare = cursor.kinds[cursor.index - 3] == "," and isinstance(place, Literal)
    if is_bare and isinstance(named, Attribute | Element) and len(named.path) < STEPS_MAX:
        assert isinstance(place, Literal)
        step = place.value
        if isinstance(step, str):
            cursor.height = 1
            return _with_step(named, step)
        if type(step) is int and 0 < step <= INDEX_MAX + 1:
            cursor.height = 1
            return _with_step(named, step - 1)
    return found


def _with_step(named: Attribute | Element, step: str | int) -> Attribute | Element:
    if isinstance(named, Attribute):
        return Attribute((*named.path, step))
    return Element(named.variable, (*named.path, step))


_DAY_S = INTERVAL_UNITS["DAY"]

_FORMS: dict[str, Callable[[TokenCursor], Expression]] = {
    "ARRAY_CONTAINS": read_array_contains,
    "CASE": read_case,
    "CAST": read_cast,
    "DATE": read_date,
    "DATEADD": read_date_add,
    "DATE_ADD": read_date_add,
    "DATE_SUB": read_date_add,
    "TO_DATE": read_date,
    "ELEMENT_AT": read_element_at,
    "EQUAL_NULL": read_equal_null,
    "TRY_CAST": read_cast,
    "TRY_ELEMENT_AT": read_element_at,
}
