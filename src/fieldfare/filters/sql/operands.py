"""Parsing of operands: literals, attributes, elements, functions, arithmetic."""

from __future__ import annotations

from decimal import Decimal

from fieldfare.filters.expression import (
    Arithmetic,
    Attribute,
    Call,
    Element,
    Exists,
    Expression,
    Literal,
    Negate,
)
from fieldfare.filters.functions import FUNCTIONS, Function, Parameter, Type
from fieldfare.filters.functions.table import OPERANDS_MAX
from fieldfare.filters.sql import mistakes
from fieldfare.filters.sql.cursor import ADD, COMPUTED_SIZE, MULTIPLY, NEGATE, TokenCursor
from fieldfare.filters.sql.literals import INTERVAL_UNITS, interval, number
from fieldfare.filters.sql.mistakes import shortened, shown
from fieldfare.filters.sql.paths import read_from_end, read_path, unquoted
from fieldfare.filters.sql.types import SHOWN, arithmetic_type, as_timestamp, literal_type

ALIASES = {
    "ARRAY_SIZE": "CARDINALITY",
    "CEILING": "CEIL",
    "CHARACTER_LENGTH": "LENGTH",
    "CHAR_LENGTH": "LENGTH",
    "DATE_DIFF": "DATEDIFF",
    "DOUBLE": "NUMBER",
    "ENDSWITH": "ENDS_WITH",
    "FLOAT": "NUMBER",
    "IFNULL": "COALESCE",
    "LCASE": "LOWER",
    "LEN": "LENGTH",
    "NVL": "COALESCE",
    "SIZE": "CARDINALITY",
    "STARTSWITH": "STARTS_WITH",
    "SUBSTR": "SUBSTRING",
    "TO_DATE": "DATE",
    "TO_TIMESTAMP": "TIMESTAMP",
    "TRY_ELEMENT_AT": "ELEMENT_AT",
    "UCASE": "UPPER",
}
"""Alternative names of functions in SQL."""

_SEPARATORS = {"POSITION": ("IN",), "SUBSTRING": ("FROM", "FOR")}
"""Words allowed in place of the first comma, the second and so on."""

_AFTER_A_NAME = frozenset(
    "= <> <=> < <= > >= + - * / % || , ) IS IN LIKE ILIKE BETWEEN NOT AND OR end".split()  # noqa: SIM905
)
_AFTER_SELECT = frozenset("path quoted number string * (".split())  # noqa: SIM905
_CONSTANTS = {"TRUE": Literal(True), "FALSE": Literal(False), "NULL": Literal(None)}
_TYPED_LITERALS = ("TIMESTAMP", "DATE", "TIME", "INTERVAL")
AFTER_A_WORD = frozenset(("string", "number", "path", "quoted", "EXISTS", "TRUE", "FALSE", "NULL"))
"""Kinds of tokens that cannot follow a name; a word before one of them is a keyword."""
CASE_WORDS = frozenset(("WHEN", "THEN", "ELSE", "END"))


def read_operand(cursor: TokenCursor) -> Expression:
    """Parse a literal, an attribute, a function, a parenthesis, or one of these with a sign."""
    kind, index = cursor.kind, cursor.index
    cursor.height = 1
    if kind == "path":
        cursor.type = Type.ANY
        following = cursor.kinds[index + 1]
        if cursor.open_cases and cursor.word() in CASE_WORDS:
            raise mistakes.word_of_case(cursor.token())
        if following in _AFTER_A_NAME and not cursor.variables:
            found = cursor.names.get(cursor.texts[index])
            if found is not None:
                cursor.index = index + 1
                cursor.kind = following
                return found
        elif following == "(":
            return read_call(cursor)
        elif following in AFTER_A_WORD and (found_form := read_word_form(cursor, following)) is not None:
            return found_form
        return read_named(cursor)
    if kind == "number":
        cursor.type = Type.NUMBER
        cursor.advance()
        return Literal(number(cursor.tokens, index))
    if kind == "string":
        cursor.type = Type.STRING
        cursor.advance()
        return Literal(unquoted(cursor.texts[index]))
    if kind == "(":
        return read_parenthesis(cursor)
    if kind == "quoted":
        return read_named(cursor)
    return read_rarer_operand(cursor, kind)


def read_word_form(cursor: TokenCursor, following: str) -> Expression | None:
    """Parse a construct that begins with a word, such as ``DATE '2026-01-31'``; None for other words."""
    word = cursor.word()
    if word in _TYPED_LITERALS and (following == "string" or (following == "number" and word == "INTERVAL")):
        return read_typed_literal(cursor)
    return cursor.grammar.form(cursor, word) if word == "CASE" else None


def read_rarer_operand(cursor: TokenCursor, kind: str) -> Expression:
    if kind in _CONSTANTS:
        literal = _CONSTANTS[kind]
        cursor.type = literal_type(literal.value)
        cursor.advance()
        return literal
    if kind in ("-", "+"):
        return read_sign(cursor)
    if kind == "EXISTS":
        return read_exists(cursor)
    if kind == "UNKNOWN":
        raise cursor.mistake(cursor.index, "UNKNOWN stands only after IS", "write NULL for no value")
    raise mistakes.missing_operand(cursor.tokens, cursor.index, inside=cursor.open_parentheses > 0)


def read_parenthesis(cursor: TokenCursor) -> Expression:
    opening = cursor.index
    cursor.open()
    cursor.enter(opening)
    refuse_subquery(cursor)
    inner = cursor.grammar.disjunction(cursor)
    cursor.nesting -= 1
    cursor.close(opening)
    return inner


def refuse_subquery(cursor: TokenCursor) -> None:
    """Raise a mistake for SELECT after a parenthesis, unless an operator shows it is an attribute."""
    if (
        cursor.kind == "path"
        and cursor.word() == "SELECT"
        and cursor.kinds[cursor.index + 1] in _AFTER_SELECT
    ):
        raise cursor.mistake(cursor.index, "there are no subqueries", mistakes.NO_SUBQUERY)


def read_sign(cursor: TokenCursor) -> Expression:
    sign = cursor.index
    minus = cursor.kind == "-"
    cursor.advance()
    if cursor.kind == "number":
        value = number(cursor.tokens, cursor.index)
        cursor.advance()
        cursor.type = Type.NUMBER
        return Literal(_negative(value) if minus else value)
    cursor.enter(sign)
    start = cursor.index
    operand = cursor.grammar.expression(cursor, NEGATE)
    cursor.nesting -= 1
    if cursor.type is Type.ANY:
        cursor.type = Type.NUMBER
    elif cursor.type not in (Type.NUMBER, Type.INTERVAL):
        raise not_numbers(cursor, start)
    if not minus:
        raise cursor.mistake(sign, "unexpected '+'", "a + before a name is not needed")
    cursor.count(COMPUTED_SIZE, sign)
    cursor.grow(cursor.height, sign)
    return Negate(operand)


def read_name(cursor: TokenCursor) -> Attribute | Element:
    """Parse the name of an attribute, or of an element of an enclosing quantifier or its part."""
    first = cursor.index
    path, cursor.index = read_path(cursor.tokens, first)
    cursor.kind = cursor.kinds[cursor.index]
    cursor.type = Type.ANY
    if path[0] in cursor.variables:
        return Element(str(path[0]), path[1:])
    attribute = Attribute(path)
    if cursor.index == first + 1 and cursor.kinds[first] == "path":
        name = cursor.texts[first]
        if not cursor.variables:
            cursor.names[name] = attribute
        hint = mistakes.MISTAKEN_NAMES.get(name.lower())
        if hint is not None:
            message = f"{shortened(name)} is the name of an attribute here, not a constant"
            cursor.warn(first, message, f'{hint} (or write ("{name}") if you mean the attribute)')
    return attribute


def read_named(cursor: TokenCursor) -> Expression:
    """Parse an attribute or a part of an element, with indexes from the end such as ``[-1]``."""
    start = cursor.index
    found: Expression = read_name(cursor)
    while cursor.kind == "[":  # `name` stops only before an index from the end
        place, steps, cursor.index = read_from_end(cursor.tokens, cursor.index)
        cursor.kind = cursor.kinds[cursor.index]
        for key in (place, *(step + 1 if isinstance(step, int) else step for step in steps)):
            cursor.count(COMPUTED_SIZE + 2, start)
            cursor.grow(cursor.height, start)
            found = Call("ELEMENT_AT", (found, Literal(key)))
    return found


def read_exists(cursor: TokenCursor) -> Expression:
    cursor.advance()
    opening = cursor.index
    with_parentheses = cursor.kind == "("
    if with_parentheses:
        cursor.open()
        refuse_subquery(cursor)
    operand = read_name(cursor)
    if with_parentheses:
        if cursor.kind not in (")", "end"):
            message = f"EXISTS takes the name of an attribute, found {shown(cursor.token())} after it"
            hint = mistakes.EACH if cursor.kind == "," else "write IS NOT NULL to test a value"
            raise cursor.mistake(cursor.index, message, hint)
        cursor.close(opening)
    cursor.type = Type.BOOLEAN
    return Exists(operand)


def read_typed_literal(cursor: TokenCursor) -> Expression:
    """Parse ``TIMESTAMP '2026-01-31T12:00:00Z'``, ``INTERVAL '5' MINUTE`` and the like."""
    word, text = cursor.word(), cursor.index + 1
    value = unquoted(cursor.texts[text]) if cursor.kinds[text] == "string" else cursor.texts[text]
    cursor.advance()
    cursor.advance()
    cursor.count(COMPUTED_SIZE, text)
    if word == "INTERVAL":
        unit = cursor.word() if cursor.kind == "path" and cursor.word() in INTERVAL_UNITS else ""
        if unit:
            cursor.advance()
        cursor.type = Type.INTERVAL
        cursor.height = 2
        return Call("INTERVAL", (Literal(interval(value, unit, cursor.tokens, text, cursor.index)),))
    if word == "DATE":
        value, word = f"{value}T00:00:00Z", "TIMESTAMP"
        if FUNCTIONS[word].parameters[0].check(value):  # type: ignore[misc]
            hint = "write one as DATE '2026-01-31'; it means the midnight in UTC"
            raise cursor.mistake(text, "this is not a date", hint)
    function = FUNCTIONS[word]
    operand = Literal(value)
    cursor.type = Type.STRING
    check_operand(cursor, function, function.parameters[0], operand, text)
    cursor.type = function.result
    cursor.height = 2
    return Call(word, (operand,))


def read_call(cursor: TokenCursor) -> Expression:
    """Parse a function call such as ``LOWER(type)``, and check the number and types of its operands."""
    start = cursor.index
    name = cursor.word()
    form = cursor.grammar.form(cursor, name)
    if form is not None:
        return form
    function = FUNCTIONS.get(ALIASES.get(name, name))
    if function is None:
        raise mistakes.unknown_function(cursor.token())
    return read_call_of(cursor, function, start)


def read_call_of(cursor: TokenCursor, function: Function, start: int) -> Expression:
    cursor.count(COMPUTED_SIZE, start)
    words = _SEPARATORS.get(function.name, ())
    cursor.advance()
    cursor.open()
    cursor.enter(start)
    operands: list[Expression] = []
    types: list[Type] = []
    height = 0
    while cursor.kind != ")":
        first = cursor.index
        operand = cursor.grammar.expression(cursor, ADD)
        height = max(height, cursor.height)
        if len(operands) < function.most_operands:
            operand = check_operand(cursor, function, function.parameter(len(operands)), operand, first)
        types.append(cursor.type)
        operands.append(operand)
        if cursor.kind != "," and cursor.word() not in words[len(operands) - 1 : len(operands)]:
            break
        cursor.advance()
        if cursor.kind == ")":
            raise mistakes.missing_operand(cursor.tokens, cursor.index, inside=True)
    cursor.nesting -= 1
    if cursor.kind not in (")", "end"):
        hint = f"write {function.signature}"
        raise cursor.mistake(cursor.index, f"expected , or ), found {shown(cursor.token())}", hint)
    cursor.close(start + 1)
    return checked_call(cursor, function, operands, types, start, height)


def checked_call(
    cursor: TokenCursor,
    function: Function,
    operands: list[Expression],
    types: list[Type],
    start: int,
    height: int,
) -> Expression:
    least, most = function.operands_min, function.most_operands
    if not least <= len(operands) <= most:
        count = (
            str(most)
            if least == most
            else f"{least} or {most}"
            if most == least + 1
            else f"{least} to {most}"
        )
        message = f"{function.name} takes {count} value{'' if count == '1' else 's'}, found {len(operands)}"
        hint = mistakes.ARITIES.get(function.name, f"write {function.signature}")
        raise cursor.mistake(start, message, hint)
    problem = function.check(tuple(operands)) if function.check else ""
    if problem:
        raise cursor.mistake_over(start, cursor.index, problem, f"write {function.signature}")
    cursor.type = function.result
    if function.result is Type.ANY:
        operands, cursor.type = require_one_type(cursor, function, operands, types, start)
    cursor.grow(height + (cursor.height > height), start)
    return Call(function.name, tuple(operands))


def check_operand(
    cursor: TokenCursor, function: Function, parameter: Parameter, operand: Expression, start: int
) -> Expression:
    """Return an operand, converted if the function needs it; raise a mistake if its type never fits."""
    wanted, found = parameter.type, cursor.type
    if parameter.literal and not isinstance(operand, Literal):
        message = f"the {parameter.name} of {function.name} must be a literal"
        raise cursor.mistake_over(start, cursor.index, message)
    if wanted is Type.ANY:
        if parameter.no_time and found in (Type.TIMESTAMP, Type.INTERVAL):
            message = f"{function.name} takes no {found.value}"
            raise cursor.mistake_over(start, cursor.index, message, mistakes.NO_TIME[found])
        return operand
    if wanted is Type.TIMESTAMP and found is Type.ANY:
        cursor.height += 1
        return as_timestamp(operand)
    if found is not Type.ANY and found is not wanted:
        hint = mistakes.conversion_hint(wanted, operand)
        message = f"{function.name} needs {SHOWN[wanted]}, this is {SHOWN[found]}"
        raise cursor.mistake_over(start, cursor.index, message, hint)
    if parameter.check and isinstance(operand, Literal) and operand.value is not None:
        message, _, hint = parameter.check(operand.value).partition("; ")
        if message:
            raise cursor.mistake_over(start, cursor.index, message, hint)
    return operand


def require_one_type(
    cursor: TokenCursor, function: Function, operands: list[Expression], types: list[Type], start: int
) -> tuple[list[Expression], Type]:
    """Return the operands of a function that returns one of them, converted to one type, and the type.

    If one is a timestamp, attributes are converted to timestamps; times of different types are a mistake.
    """
    known = set(types) - {Type.ANY}
    if not known & {Type.TIMESTAMP, Type.INTERVAL}:
        return operands, known.pop() if len(known) == 1 and Type.ANY not in types else Type.ANY
    if len(known) > 1:
        kinds = " and ".join(sorted(SHOWN[kind] for kind in known))
        raise cursor.mistake_over(
            start, cursor.index, f"the values of {function.name} are of one type, not {kinds}"
        )
    (only,) = known
    if only is Type.TIMESTAMP:
        operands = [
            as_timestamp(e) if found is Type.ANY else e for e, found in zip(operands, types, strict=True)
        ]
    return operands, only


def read_arithmetic(cursor: TokenCursor, left: Expression, start: int, level: int) -> Expression:
    operator, place = cursor.kind, cursor.index
    if operator == "||":
        return read_concatenation(cursor, left, start)
    height, left_type = cursor.height, cursor.type
    if left_type in (Type.STRING, Type.BOOLEAN):
        raise not_numbers(cursor, start)
    cursor.advance()
    right_start = cursor.index
    right = cursor.grammar.expression(cursor, level + 1)
    if cursor.type in (Type.STRING, Type.BOOLEAN):
        raise not_numbers(cursor, right_start)
    found = arithmetic_type(left_type, operator, cursor.type)
    if found is None:
        message = f"there is no result of {left_type.value} {operator} {cursor.type.value}"
        raise cursor.mistake_over(start, cursor.index, message, mistakes.time_hint(left_type, cursor.type))
    if found[0] is Type.TIMESTAMP and left_type is Type.ANY:
        left = as_timestamp(left)
        height += 1
    if found[1] is Type.TIMESTAMP and cursor.type is Type.ANY:
        right = as_timestamp(right)
        cursor.height += 1
    cursor.type = found[2]
    cursor.count(COMPUTED_SIZE, place)
    cursor.grow(max(height, cursor.height), start)
    return Arithmetic(operator, left, right)


def read_concatenation(cursor: TokenCursor, left: Expression, start: int) -> Expression:
    """Parse ``a || b || c`` to one CONCAT."""
    operands, height = [left], cursor.height
    first = start
    while True:
        if cursor.type not in (Type.STRING, Type.ANY):
            message = f"|| joins strings, this is {SHOWN[cursor.type]}"
            raise cursor.mistake_over(first, cursor.index, message, "write OR to join conditions")
        if cursor.kind != "||":
            break
        cursor.advance()
        first = cursor.index
        operands.append(cursor.grammar.expression(cursor, MULTIPLY))
        height = max(height, cursor.height)
    if len(operands) > OPERANDS_MAX:
        raise cursor.mistake(start, f"at most {OPERANDS_MAX} strings can be joined")
    cursor.type = Type.STRING
    cursor.count(COMPUTED_SIZE, start)
    cursor.grow(height, start)
    return Call("CONCAT", tuple(operands))


def not_numbers(cursor: TokenCursor, start: int) -> Exception:
    hint = mistakes.joining_hint(cursor.type)
    return cursor.mistake_over(
        start, cursor.index, f"arithmetic needs numbers, this is {SHOWN[cursor.type]}", hint
    )


def _negative(value: int | Decimal) -> int | Decimal:
    return value.copy_negate() if isinstance(value, Decimal) else -value
