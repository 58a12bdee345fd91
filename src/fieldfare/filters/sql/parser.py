"""The ``sql`` dialect: text to expression. The grammar is in docs/filters.md.

A method for each level that joins conditions (OR, AND), and precedence climbing below them;
``predicates`` and ``operands`` have what conditions are made of. A mistake is recorded and the parser
goes on after the next AND, OR or closing parenthesis, so that a filter with several mistakes shows
them together.
"""

from __future__ import annotations

from fieldfare.filters.errors import FilterError, Mistake, Problem, problem_at
from fieldfare.filters.expression import And, Expression, Literal, Not, Or, Quantified
from fieldfare.filters.functions import Type
from fieldfare.filters.sql import cursor, mistakes
from fieldfare.filters.sql.cursor import MAX_SIZE
from fieldfare.filters.sql.forms import Forms
from fieldfare.filters.sql.lexer import MAX_PROBLEMS, Tokens, tokens_of
from fieldfare.filters.sql.mistakes import shown
from fieldfare.filters.sql.operands import CASE_WORDS
from fieldfare.filters.sql.paths import read_path
from fieldfare.filters.sql.predicates import PREDICATES, QUANTIFIERS

MAX_TEXT_BYTES = 65_536
"""How long a filter may be, in UTF-8."""

_LEVELS = {
    "IS": cursor.IS,
    **dict.fromkeys(PREDICATES, cursor.COMPARE),
    **dict.fromkeys(("+", "-", "||"), cursor.ADD),
    **dict.fromkeys(("*", "/", "%"), cursor.MULTIPLY),
}
_AFTER_NOT = ("BETWEEN", "IN", "LIKE", "ILIKE")
_ENDS = frozenset(("AND", "OR", ")", "end"))
_AFTER_A_VALUE = frozenset(("AS", "FROM", "FOR", *CASE_WORDS))
"""Words that go on with what an attribute stands in."""
_QUANTIFIED = "for example: ANY item IN data.items SATISFIES (item.price > 5)"

_EMPTY = Problem("the filter is empty", 1, 1, "write TRUE to match every event", 0)
_BROKEN = Literal(True)
"""Stands for a condition that could not be read; its problem is recorded."""


def parse_sql(text: str) -> Expression:
    """The expression that a filter in the ``sql`` dialect means.

    Raises
    ------
    FilterError
        Its problems name the places, in the order of the text.
    """
    return read_sql(text)[0]


def parse_value(text: str) -> Expression:
    """The expression of any value that a text means, as ``format_expression`` writes it."""
    _refuse_unreadable(text)
    tokens, problems = tokens_of(text)
    parser = _SqlParser(text, tokens, problems)
    expression = parser.filter(is_condition=False)
    if parser.problems:
        raise FilterError(text, parser.problems[:MAX_PROBLEMS])
    return expression


def read_sql(text: str) -> tuple[Expression, tuple[Problem, ...]]:
    """The expression, and warnings of what is allowed but most likely not meant."""
    _refuse_unreadable(text)
    tokens, problems = tokens_of(text)
    if tokens.kinds[0] == "end" and not problems:  # comments only
        raise FilterError(text, [_EMPTY])
    parser = _SqlParser(text, tokens, problems)
    expression = parser.filter()
    if parser.problems:
        raise FilterError(text, sorted(parser.problems, key=lambda p: (p.line, p.column))[:MAX_PROBLEMS])
    return expression, tuple(parser.warnings)


def _refuse_unreadable(text: str) -> None:
    size = len(text)
    try:
        if size <= MAX_TEXT_BYTES and not text.isascii():
            size = len(text.encode())
    except UnicodeEncodeError as error:
        problem = problem_at(text, error.start, error.end, "this is half of a character (a lone surrogate)")
        raise FilterError(text, [problem]) from None
    if size > MAX_TEXT_BYTES:
        message = f"the filter is too long: {size:,} bytes, at most {MAX_TEXT_BYTES:,} are allowed"
        raise FilterError(text, [Problem(message, 1, 1, "", 0)])
    if not text.strip():
        raise FilterError(text, [_EMPTY])


class _SqlParser(Forms):
    """Reads conditions and what joins them."""

    def __init__(self, text: str, tokens: Tokens, problems: list[Problem]) -> None:
        super().__init__(text, tokens, problems)
        self.names = {}

    def filter(self, is_condition: bool = True) -> Expression:
        if len(self.problems) >= MAX_PROBLEMS:
            return _BROKEN
        try:
            if self.size > MAX_SIZE:
                self.refuse_size(0)
            expression = self.disjunction()
            while self.kind == ")":  # the only thing that stops a disjunction before the end
                self.record(self.mistake(self.index, "this ) closes nothing", mistakes.UNOPENED))
                self.advance()
                if self.kind in ("AND", "OR"):
                    self.advance()
                    self.disjunction()
            if is_condition:
                self.require_condition(0)
        except Mistake as mistake:
            if len(self.problems) < MAX_PROBLEMS:
                self.note(mistake)
            expression = _BROKEN
        return expression

    def disjunction(self) -> Expression:
        start = self.index
        first = self.conjunction()
        if self.kind != "OR":
            return first
        self.require_condition(start)
        operands, height = [first], self.height
        while self.kind == "OR":
            self.advance()
            start = self.index
            operands.append(self.conjunction())
            self.require_condition(start)
            height = max(height, self.height)
        self.type = Type.BOOLEAN
        self.grow(height, start)
        return Or(tuple(operands))

    def conjunction(self) -> Expression:
        operands: list[Expression] = []
        height = 0
        nesting, open_parentheses, variables = self.nesting, self.open_parentheses, len(self.variables)
        open_cases = self.open_cases
        while True:
            start = self.index
            try:
                operand = self.expression(cursor.NOT)
                if self.kind not in _ENDS and not self.is_word_of_case():
                    inside = self.open_parentheses > 0
                    raise mistakes.missing_operator(self.tokens, self.index, inside=inside)
                if operands or self.kind == "AND":
                    self.require_condition(start)
            except Mistake as mistake:
                if mistake.fatal:
                    raise
                self.record(mistake)
                self.open_betweens += mistake.hint == mistakes.MEANT_BETWEEN
                self.skip(self.open_parentheses - open_parentheses, self.open_cases - open_cases)
                self.open_cases = open_cases
                self.nesting, self.open_parentheses = nesting, open_parentheses
                del self.variables[variables:], self.parents[variables:]
                operand = _BROKEN
            operands.append(operand)
            height = max(height, self.height)
            if self.kind != "AND":
                break
            self.advance()
        if len(operands) == 1:
            return operands[0]
        self.grow(height, start)
        return And(tuple(operands))

    def skip(self, depth: int, cases: int) -> None:
        """Go on to the AND or OR, or the ) or end, that follows here once ``depth`` ) have closed.

        Or to a word of the CASE around here; ``cases`` have been opened since.
        """
        self.height = 1
        self.type = Type.BOOLEAN
        while self.kind != "end":
            if self.kind == "(":
                depth += 1
            elif self.kind == ")":
                if not depth:
                    break
                depth -= 1
            elif self.kind == "path":
                if self.opens_case():
                    cases += 1
                elif cases and self.word() == "END":
                    cases -= 1
                elif not cases and not depth and self.is_word_of_case():
                    break
            elif not depth and not cases and self.kind in ("AND", "OR"):
                if not self.open_betweens:
                    break
                self.open_betweens -= 1
            self.advance()
        self.open_betweens = 0

    def expression(self, least: int) -> Expression:
        start = self.index
        kind = self.kind
        if kind == "NOT":
            left = self.negation(least)
            tightest = cursor.NOT
        else:
            if kind == "path" and self.kinds[start + 1] in ("path", "quoted") and self.is_quantifier():
                left = self.quantified()
            else:
                left = self.operand()
            tightest = cursor.PRIMARY
        while True:
            kind = self.kind
            level = _LEVELS.get(kind, 0)
            negated = kind == "NOT" and self.kinds[self.index + 1] in _AFTER_NOT
            if negated:
                level = cursor.COMPARE
            if level < least:
                return left
            if level > tightest:
                raise mistakes.chained(self.token(), joined="||" in self.kinds[start : self.index])
            if negated:
                self.advance()
            if level == cursor.COMPARE:
                left = PREDICATES[self.kind](self, left, start, negated)
                tightest = level - 1
            elif level == cursor.IS:
                left = self.is_test(left, start)
                tightest = level
            else:
                left = self.arithmetic(left, start, level)
                tightest = level

    def is_quantifier(self) -> bool:
        """Whether a word before another begins a quantifier and is not the name of an attribute."""
        if self.word() not in QUANTIFIERS:
            return False
        following = self.index + 1
        return self.kinds[following + 1] == "IN" or self.texts[following].upper() not in _AFTER_A_VALUE

    def negation(self, least: int) -> Expression:
        start = self.index
        if least > cursor.NOT:
            raise self.mistake(start, "NOT needs parentheses here", "write (NOT ...)")
        self.advance()
        self.enter(start)
        operand = self.expression(cursor.NOT)
        self.nesting -= 1
        self.require_condition(start + 1)
        self.type = Type.BOOLEAN
        self.grow(self.height, start)
        return Not(operand)

    def quantified(self) -> Expression:
        """``ANY item IN data.items SATISFIES (...)``."""
        start, before = self.index, self.size + self.work
        quantifier = QUANTIFIERS[self.word()]
        self.advance()
        variable, place = read_path(self.tokens, self.index)[0], self.index
        if len(variable) != 1:
            raise self.mistake(place, "expected a name for the element, without dots", _QUANTIFIED)
        self.advance()
        self.expect("IN", _QUANTIFIED)
        array = self.name()
        self.expect("SATISFIES", _QUANTIFIED)
        opening = self.index
        if self.kind != "(":
            raise self.mistake(opening, f"expected (, found {shown(self.token())}", _QUANTIFIED)
        self.parents.append(self.parent_of(array))
        self.variables.append(str(variable[0]))
        condition = self.parenthesis()
        self.variables.pop()
        self.parents.pop()
        self.require_condition(opening + 1, self.index - 1)
        inside = self.tokens_between(opening, self.index) + self.size + self.work - before
        self.repeat(inside, array, start)
        self.type = Type.BOOLEAN
        self.grow(self.height, start)
        return Quantified(quantifier, array, str(variable[0]), condition)
