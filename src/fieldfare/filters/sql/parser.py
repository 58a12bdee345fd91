"""The parser of the ``sql`` dialect. The grammar is in docs/filter-grammar.md.

A `TokenCursor` is the state of a parser; functions read with it, a module for each part of the grammar:
``operands``, ``predicates``, ``forms``, and here conditions. OR and AND have a function each; precedence
climbing parses the levels below them. After a mistake, the parser resumes at the next AND, OR or closing
parenthesis, so that several mistakes are reported together.
"""

from __future__ import annotations

from fieldfare.filters.errors import FilterError, Mistake, Problem
from fieldfare.filters.expression import And, Expression, Literal, Not, Or, Quantified
from fieldfare.filters.functions import Type
from fieldfare.filters.sql import mistakes
from fieldfare.filters.sql.cursor import ADD, COMPARE, IS, MULTIPLY, NOT, PRIMARY, Grammar, TokenCursor
from fieldfare.filters.sql.forms import is_word_of_case, opens_case, read_form
from fieldfare.filters.sql.lexer import tokens_of
from fieldfare.filters.sql.mistakes import shown
from fieldfare.filters.sql.operands import (
    CASE_WORDS,
    read_arithmetic,
    read_name,
    read_operand,
    read_parenthesis,
)
from fieldfare.filters.sql.paths import read_path
from fieldfare.filters.sql.predicates import PREDICATES, QUANTIFIERS, read_is
from fieldfare.filters.text import PROBLEMS_MAX, SIZE_MAX, refuse_unreadable

_LEVELS = {
    "IS": IS,
    **dict.fromkeys(PREDICATES, COMPARE),
    **dict.fromkeys(("+", "-", "||"), ADD),
    **dict.fromkeys(("*", "/", "%"), MULTIPLY),
}
_AFTER_NOT = ("BETWEEN", "IN", "LIKE", "ILIKE")
_ENDS = frozenset(("AND", "OR", ")", "end"))
_AFTER_A_VALUE = frozenset(("AS", "FROM", "FOR", *CASE_WORDS))
"""Words that continue a construct after an attribute."""
_QUANTIFIED = "for example: ANY item IN data.items SATISFIES (item.price > 5)"

_EMPTY = Problem("the filter is empty", 1, 1, "write TRUE to match every event", 0)
_INVALID = Literal(True)
"""Placeholder for a condition that could not be parsed; its problem is recorded."""


def parse_sql(text: str) -> Expression:
    """Parse a filter in the ``sql`` dialect.

    Raises
    ------
    FilterError
        The filter is invalid; the problems are in the order of the text.
    """
    return read_sql(text)[0]


def parse_value(text: str) -> Expression:
    """Parse an expression of any type, in the format of ``format_expression``."""
    refuse_unreadable(text)
    tokens, problems = tokens_of(text)
    parser = TokenCursor(text, tokens, problems, _GRAMMAR)
    expression = read_filter(parser, is_condition=False)
    if parser.problems:
        raise FilterError(text, parser.problems[:PROBLEMS_MAX])
    return expression


def read_sql(text: str) -> tuple[Expression, tuple[Problem, ...]]:
    """Parse a filter in the ``sql`` dialect; return its expression, and warnings about probable mistakes."""
    refuse_unreadable(text)
    tokens, problems = tokens_of(text)
    if tokens.kinds[0] == "end" and not problems:  # comments only
        raise FilterError(text, [_EMPTY])
    parser = TokenCursor(text, tokens, problems, _GRAMMAR)
    expression = read_filter(parser)
    if parser.problems:
        raise FilterError(text, sorted(parser.problems, key=lambda p: (p.line, p.column))[:PROBLEMS_MAX])
    return expression, tuple(parser.warnings)


def read_filter(cursor: TokenCursor, is_condition: bool = True) -> Expression:
    if len(cursor.problems) >= PROBLEMS_MAX:
        return _INVALID
    try:
        if cursor.size > SIZE_MAX:
            cursor.refuse_size(0)
        expression = read_disjunction(cursor)
        while cursor.kind == ")":  # the only token at which a disjunction stops before the end
            cursor.record(cursor.mistake(cursor.index, "this ) has no matching (", mistakes.UNOPENED))
            cursor.advance()
            if cursor.kind in ("AND", "OR"):
                cursor.advance()
                read_disjunction(cursor)
        if is_condition:
            cursor.require_condition(0)
    except Mistake as mistake:
        if len(cursor.problems) < PROBLEMS_MAX:
            cursor.note(mistake)
        expression = _INVALID
    return expression


def read_disjunction(cursor: TokenCursor) -> Expression:
    start = cursor.index
    first = read_conjunction(cursor)
    if cursor.kind != "OR":
        return first
    cursor.require_condition(start)
    operands, height = [first], cursor.height
    while cursor.kind == "OR":
        cursor.advance()
        start = cursor.index
        operands.append(read_conjunction(cursor))
        cursor.require_condition(start)
        height = max(height, cursor.height)
    cursor.type = Type.BOOLEAN
    cursor.grow(height, start)
    return Or(tuple(operands))


def read_conjunction(cursor: TokenCursor) -> Expression:
    operands: list[Expression] = []
    height = 0
    nesting, open_parentheses, variables = cursor.nesting, cursor.open_parentheses, len(cursor.variables)
    open_cases = cursor.open_cases
    while True:
        start = cursor.index
        try:
            operand = read_expression(cursor, NOT)
            if cursor.kind not in _ENDS and not is_word_of_case(cursor):
                inside = cursor.open_parentheses > 0
                raise mistakes.missing_operator(cursor.tokens, cursor.index, inside=inside)
            if operands or cursor.kind == "AND":
                cursor.require_condition(start)
        except Mistake as mistake:
            if mistake.fatal:
                raise
            cursor.record(mistake)
            cursor.open_betweens += mistake.hint == mistakes.MEANT_BETWEEN
            skip_condition(cursor, cursor.open_parentheses - open_parentheses, cursor.open_cases - open_cases)
            cursor.open_cases = open_cases
            cursor.nesting, cursor.open_parentheses = nesting, open_parentheses
            del cursor.variables[variables:], cursor.parents[variables:]
            operand = _INVALID
        operands.append(operand)
        height = max(height, cursor.height)
        if cursor.kind != "AND":
            break
        cursor.advance()
    if len(operands) == 1:
        return operands[0]
    cursor.grow(height, start)
    return And(tuple(operands))


def skip_condition(cursor: TokenCursor, depth: int, cases: int) -> None:
    """Advance to the next AND, OR, ) or end outside of ``depth`` open parentheses.

    Stop too at a word of an enclosing CASE, outside of the ``cases`` opened since.
    """
    cursor.height = 1
    cursor.type = Type.BOOLEAN
    while cursor.kind != "end":
        if cursor.kind == "(":
            depth += 1
        elif cursor.kind == ")":
            if not depth:
                break
            depth -= 1
        elif cursor.kind == "path":
            if opens_case(cursor):
                cases += 1
            elif cases and cursor.word() == "END":
                cases -= 1
            elif not cases and not depth and is_word_of_case(cursor):
                break
        elif not depth and not cases and cursor.kind in ("AND", "OR"):
            if not cursor.open_betweens:
                break
            cursor.open_betweens -= 1
        cursor.advance()
    cursor.open_betweens = 0


def read_expression(cursor: TokenCursor, least: int) -> Expression:
    start = cursor.index
    kind = cursor.kind
    if kind == "NOT":
        left = read_negation(cursor, least)
        tightest = NOT
    else:
        if kind == "path" and cursor.kinds[start + 1] in ("path", "quoted") and is_quantifier(cursor):
            left = read_quantified(cursor)
        else:
            left = read_operand(cursor)
        tightest = PRIMARY
    while True:
        kind = cursor.kind
        level = _LEVELS.get(kind, 0)
        negated = kind == "NOT" and cursor.kinds[cursor.index + 1] in _AFTER_NOT
        if negated:
            level = COMPARE
        if level < least:
            return left
        if level > tightest:
            raise mistakes.chained(cursor.token(), joined="||" in cursor.kinds[start : cursor.index])
        if negated:
            cursor.advance()
        if level == COMPARE:
            left = PREDICATES[cursor.kind](cursor, left, start, negated)
            tightest = level - 1
        elif level == IS:
            left = read_is(cursor, left, start)
            tightest = level
        else:
            left = read_arithmetic(cursor, left, start, level)
            tightest = level


def is_quantifier(cursor: TokenCursor) -> bool:
    """Return whether a word before another word begins a quantifier instead of naming an attribute."""
    if cursor.word() not in QUANTIFIERS:
        return False
    following = cursor.index + 1
    return cursor.kinds[following + 1] == "IN" or cursor.texts[following].upper() not in _AFTER_A_VALUE


def read_negation(cursor: TokenCursor, least: int) -> Expression:
    start = cursor.index
    if least > NOT:
        raise cursor.mistake(start, "NOT needs parentheses here", "write (NOT ...)")
    cursor.advance()
    cursor.enter(start)
    operand = read_expression(cursor, NOT)
    cursor.nesting -= 1
    cursor.require_condition(start + 1)
    cursor.type = Type.BOOLEAN
    cursor.grow(cursor.height, start)
    return Not(operand)


def read_quantified(cursor: TokenCursor) -> Expression:
    """Parse ``ANY item IN data.items SATISFIES (...)``."""
    start, before = cursor.index, cursor.size + cursor.work
    quantifier = QUANTIFIERS[cursor.word()]
    cursor.advance()
    variable, place = read_path(cursor.tokens, cursor.index)[0], cursor.index
    if len(variable) != 1:
        raise cursor.mistake(place, "expected a name for the element, without dots", _QUANTIFIED)
    cursor.advance()
    cursor.expect("IN", _QUANTIFIED)
    array = read_name(cursor)
    cursor.expect("SATISFIES", _QUANTIFIED)
    opening = cursor.index
    if cursor.kind != "(":
        raise cursor.mistake(opening, f"expected (, found {shown(cursor.token())}", _QUANTIFIED)
    cursor.parents.append(cursor.parent_of(array))
    cursor.variables.append(str(variable[0]))
    condition = read_parenthesis(cursor)
    cursor.variables.pop()
    cursor.parents.pop()
    cursor.require_condition(opening + 1, cursor.index - 1)
    inside = cursor.tokens_between(opening, cursor.index) + cursor.size + cursor.work - before
    cursor.repeat(inside, array, start)
    cursor.type = Type.BOOLEAN
    cursor.grow(cursor.height, start)
    return Quantified(quantifier, array, str(variable[0]), condition)


_GRAMMAR = Grammar(read_expression, read_disjunction, read_form)
