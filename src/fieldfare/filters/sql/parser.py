"""The ``sql`` dialect: text to expression. The grammar is in docs/filters.md.

One method for each level that joins conditions (OR, AND), and precedence climbing below them. A
mistake is recorded and the parser goes on after the next AND, OR or closing parenthesis, so that a
filter with several mistakes shows them together.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

from fieldfare.filters.errors import FilterError, Mistake, Problem, nearest, problem_at
from fieldfare.filters.expression import (
    CONDITIONS,
    MAX_DEPTH,
    And,
    Arithmetic,
    Attribute,
    Between,
    Call,
    Comparison,
    Element,
    Exists,
    Expression,
    In,
    IsNull,
    IsTruth,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    Quantified,
)
from fieldfare.filters.functions import FUNCTIONS
from fieldfare.filters.patterns import MAX_PATTERN_CHARACTERS, parse_like
from fieldfare.filters.sql import mistakes
from fieldfare.filters.sql.lexer import MAX_PROBLEMS, Token, tokens_of
from fieldfare.filters.sql.literals import PLAIN_LITERALS
from fieldfare.filters.sql.literals import number as number_of
from fieldfare.filters.sql.mistakes import as_string, shown
from fieldfare.filters.sql.paths import read_path, unquoted

MAX_TEXT_BYTES = 65_536
"""How long a filter may be, in UTF-8."""

_NOT, _IS, _COMPARE, _ADD, _MULTIPLY, _NEGATE, _PRIMARY = range(3, 10)

_LEVELS = {
    **dict.fromkeys(("IS",), _IS),
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">=", "BETWEEN", "IN", "LIKE"), _COMPARE),
    **dict.fromkeys(("+", "-"), _ADD),
    **dict.fromkeys(("*", "/", "%"), _MULTIPLY),
}
_AFTER_NOT = ("BETWEEN", "IN", "LIKE")
_AFTER_IS = {"TRUE": True, "FALSE": False, "UNKNOWN": None}

_QUANTIFIERS = ("ANY", "ALL")
_QUANTIFIED = "for example: ANY item IN data.items SATISFIES (item.price > 5)"

_BROKEN = Literal(True)
"""Stands for a condition that could not be read; its problem is recorded."""


def parse_sql(text: str) -> Expression:
    """The expression that a filter in the ``sql`` dialect means.

    Raises
    ------
    FilterError
        Its problems name the places, in the order of the text.
    """
    _refuse_unreadable(text)
    tokens, problems = tokens_of(text)
    parser = _Parser(text, tokens, problems)
    expression = parser.filter()
    if parser.problems:
        raise FilterError(text, sorted(parser.problems, key=lambda p: (p.line, p.column))[:MAX_PROBLEMS])
    return expression


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
        raise FilterError(text, [Problem("the filter is empty", 1, 1, "write TRUE to match every event", 0)])


class _Parser:
    """A cursor over the tokens. ``height`` is the depth of the expression read last."""

    def __init__(self, text: str, tokens: list[Token], problems: list[Problem]) -> None:
        self.text = text
        self.tokens = tokens
        self.problems = problems
        self.index = 0
        self.kind = tokens[0].kind
        self.height = 1
        self.nesting = 0
        self.open_parentheses = 0
        self.open_betweens = 0
        self.variables: list[str] = []

    def advance(self) -> None:
        self.index += 1
        self.kind = self.tokens[self.index].kind

    def filter(self) -> Expression:
        if len(self.problems) >= MAX_PROBLEMS:
            return _BROKEN
        try:
            expression = self.disjunction()
            while self.kind == ")":  # the only thing that stops a disjunction before the end
                token = self.tokens[self.index]
                self.record(Mistake(token.start, token.end, "this ) closes nothing", mistakes.UNOPENED))
                self.advance()
                if self.kind in ("AND", "OR"):
                    self.advance()
                    self.disjunction()
            self.require_condition(expression, 0)
        except Mistake as mistake:
            if len(self.problems) < MAX_PROBLEMS:
                self.note(mistake)
            expression = _BROKEN
        return expression

    def note(self, mistake: Mistake) -> None:
        """Keep a mistake as a problem, unless one is known at the same place."""
        problem = mistake.problem(self.text)
        if all((problem.line, problem.column) != (known.line, known.column) for known in self.problems):
            self.problems.append(problem)

    def record(self, mistake: Mistake) -> None:
        """Keep a mistake and go on, unless these are enough."""
        self.note(mistake)
        if len(self.problems) >= MAX_PROBLEMS:
            raise Mistake(mistake.start, mistake.end, "too many mistakes", fatal=True)

    def disjunction(self) -> Expression:
        start = self.index
        first = self.conjunction()
        if self.kind != "OR":
            return first
        self.require_condition(first, start)
        operands, height = [first], self.height
        while self.kind == "OR":
            self.advance()
            start = self.index
            operands.append(self.conjunction())
            self.require_condition(operands[-1], start)
            height = max(height, self.height)
        self.grow(height, start)
        return Or(tuple(operands))

    def conjunction(self) -> Expression:
        operands: list[Expression] = []
        height = 0
        nesting, open_parentheses, variables = self.nesting, self.open_parentheses, len(self.variables)
        while True:
            start = self.index
            try:
                operand = self.expression(_NOT)
                if self.kind not in ("AND", "OR", ")", "end"):
                    raise mistakes.missing_operator(self.tokens, self.index)
                if operands or self.kind == "AND":
                    self.require_condition(operand, start)
            except Mistake as mistake:
                if mistake.fatal:
                    raise
                self.record(mistake)
                self.open_betweens += mistake.hint == mistakes.MEANT_BETWEEN
                self.skip(self.open_parentheses - open_parentheses)
                self.nesting, self.open_parentheses = nesting, open_parentheses
                del self.variables[variables:]
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

    def skip(self, depth: int) -> None:
        """Go on to the AND or OR, or the ) or end, that follows here once ``depth`` ) have closed."""
        self.height = 1
        while self.kind != "end":
            if self.kind == "(":
                depth += 1
            elif self.kind == ")":
                if not depth:
                    break
                depth -= 1
            elif not depth and self.kind in ("AND", "OR"):
                if not self.open_betweens:
                    break
                self.open_betweens -= 1
            self.advance()
        self.open_betweens = 0

    def expression(self, least: int) -> Expression:
        """Everything from here on that binds at least as tightly as ``least``."""
        start = self.index
        left = self.negation(start, least) if self.kind == "NOT" else self.operand()
        tightest = _NOT if isinstance(left, Not) and self.tokens[start].kind == "NOT" else _PRIMARY
        while True:
            kind = self.kind
            level = _LEVELS.get(kind, 0)
            negated = kind == "NOT" and self.tokens[self.index + 1].kind in _AFTER_NOT
            if negated:
                level = _COMPARE
            if level < least:
                return left
            if level > tightest:
                raise mistakes.chained(self.tokens[self.index])
            if negated:
                self.advance()
            if level >= _ADD:
                left = self.arithmetic(left, start, level)
                tightest = level
            elif level == _IS:
                left = self.is_test(left, start)
                tightest = level
            else:
                left = _PREDICATES.get(self.kind, _Parser.comparison)(self, left)
                tightest = level - 1
                if negated:
                    left = Not(left)
                    self.grow(self.height, start)

    def negation(self, start: int, least: int) -> Expression:
        token = self.tokens[start]
        if least > _NOT:
            raise Mistake(token.start, token.end, "NOT needs parentheses here", "write (NOT ...)")
        self.advance()
        self.enter(token)
        operand = self.expression(_NOT)
        self.nesting -= 1
        self.require_condition(operand, start + 1)
        self.grow(self.height, start)
        return Not(operand)

    def operand(self) -> Expression:
        """A literal, an attribute, EXISTS, a parenthesis, or minus one of these."""
        kind, text, start = token = self.tokens[self.index]
        self.height = 1
        if kind in ("path", "quoted"):
            following = self.tokens[self.index + 1].kind
            if following == "(" and kind == "path":
                return self.call(token)
            if following in ("path", "quoted") and text.upper() in _QUANTIFIERS:
                return self.quantified(token)
            return self.name()
        if kind == "number":
            self.advance()
            return Literal(number_of(token))
        if kind == "string":
            self.advance()
            return Literal(unquoted(text))
        if kind in ("TRUE", "FALSE", "NULL"):
            self.advance()
            return Literal({"TRUE": True, "FALSE": False, "NULL": None}[kind])
        if kind == "UNKNOWN":
            raise Mistake(start, token.end, "UNKNOWN stands only after IS", "write NULL for no value")
        if kind == "(":
            return self.parenthesis(token)
        if kind in ("-", "+"):
            return self.sign(token)
        if kind == "EXISTS":
            return self.exists()
        raise mistakes.missing_operand(self.tokens, self.index, inside=self.open_parentheses > 0)

    def parenthesis(self, opening: Token) -> Expression:
        self.open()
        self.enter(opening)
        inner = self.disjunction()
        self.nesting -= 1
        self.close(opening)
        return inner

    def sign(self, token: Token) -> Expression:
        self.advance()
        following = self.tokens[self.index]
        if self.kind == "number":
            self.advance()
            number = number_of(following)
            return Literal(-number if token.kind == "-" else number)
        self.enter(token)
        start = self.index
        operand = self.expression(_NEGATE)
        self.nesting -= 1
        self.require_number(operand, start)
        if token.kind == "+":
            hint = "a + before a name is not needed"
            raise Mistake(token.start, token.end, "unexpected '+'", hint)
        self.grow(self.height, start)
        return Negate(operand)

    def exists(self) -> Expression:
        self.advance()
        opening = self.tokens[self.index]
        if self.kind == "(":
            self.open()
        operand = self.name()
        if opening.kind == "(":
            self.close(opening)
        return Exists(operand)

    def name(self) -> Attribute | Element:
        """An attribute, or the element of a quantifier around here."""
        path, self.index = read_path(self.tokens, self.index)
        self.kind = self.tokens[self.index].kind
        if path[0] in self.variables:
            return Element(str(path[0]), path[1:])
        return Attribute(path)

    def quantified(self, token: Token) -> Expression:
        """``ANY item IN data.items SATISFIES (...)``."""
        self.advance()
        variable, start = read_path(self.tokens, self.index)[0], self.tokens[self.index]
        if len(variable) != 1:
            raise Mistake(start.start, start.end, "expected a name for the element", _QUANTIFIED)
        self.advance()
        self.expect("IN", _QUANTIFIED)
        array = self.name()
        self.expect("SATISFIES", _QUANTIFIED)
        opening = self.tokens[self.index]
        if opening.kind != "(":
            raise Mistake(opening.start, opening.end, f"expected (, found {shown(opening)}", _QUANTIFIED)
        self.variables.append(str(variable[0]))
        first = self.index + 1
        condition = self.parenthesis(opening)
        self.variables.pop()
        self.require_condition(condition, first)
        self.grow(self.height, first)
        return Quantified(token.text.upper(), array, str(variable[0]), condition)

    def expect(self, word: str, hint: str) -> None:
        token = self.tokens[self.index]
        if token.text.upper() != word:
            raise Mistake(token.start, token.end, f"expected {word}, found {shown(token)}", hint)
        self.advance()

    def call(self, token: Token) -> Expression:
        """``LOWER(type)``: operands as many and of such types as the function wants."""
        function = FUNCTIONS.get(token.text.upper())
        if function is None:
            raise mistakes.unknown_function(token)
        self.advance()
        opening = self.tokens[self.index]
        self.open()
        self.enter(opening)
        operands: list[Expression] = []
        height = 0
        while self.kind != ")":
            operands.append(self.expression(_ADD))
            height = max(height, self.height)
            if self.kind != ",":
                break
            self.advance()
        self.nesting -= 1
        self.close(opening)
        if len(operands) != len(function.parameters):
            message = f"{function.name} takes {len(function.parameters)} values, found {len(operands)}"
            raise Mistake(token.start, token.end, message, f"write {function.signature}")
        self.grow(height, self.index - 1)
        return Call(function.name, tuple(operands))

    def arithmetic(self, left: Expression, start: int, level: int) -> Expression:
        operator = self.kind
        self.require_number(left, start)
        height = self.height
        self.advance()
        right_start = self.index
        right = self.expression(level + 1)
        self.require_number(right, right_start)
        self.grow(max(height, self.height), start)
        return Arithmetic(operator, left, right)

    def comparison(self, left: Expression) -> Expression:
        operator, height = self.kind, self.height
        self.advance()
        start = self.index
        right = self.expression(_ADD)
        self.refuse_quoted_string(right, start)
        self.grow(max(height, self.height), start)
        return Comparison(operator, left, right)

    def between(self, left: Expression) -> Expression:
        height = self.height
        self.advance()
        self.open_betweens += 1
        start = self.index
        low = self.expression(_ADD)
        self.refuse_quoted_string(low, start)
        height = max(height, self.height)
        if self.kind != "AND":
            token = self.tokens[self.index]
            hint = "write BETWEEN low AND high"
            raise Mistake(token.start, token.end, f"expected AND, found {shown(token)}", hint)
        self.open_betweens -= 1
        self.advance()
        start = self.index
        high = self.expression(_ADD)
        self.refuse_quoted_string(high, start)
        self.grow(max(height, self.height), start)
        return Between(left, low, high)

    def in_list(self, left: Expression) -> Expression:
        height = self.height
        self.advance()
        opening = self.tokens[self.index]
        if self.kind != "(":
            hint = "write IN (1, 2, 3)"
            raise Mistake(opening.start, opening.end, f"expected (, found {shown(opening)}", hint)
        items: list[Expression] = []
        self.open()
        while True:
            start = self.index
            token = self.tokens[start]
            if self.kind in PLAIN_LITERALS and self.tokens[start + 1].kind in (",", ")"):
                # The short way for what long lists are made of.
                items.append(Literal(PLAIN_LITERALS[self.kind](token)))
                self.advance()
                if self.kind == ")":
                    break
                self.advance()
                continue
            if self.kind == ")":
                token = self.tokens[self.index]
                what = "a comma with nothing after it" if items else "IN needs at least one value"
                raise Mistake(token.start, token.end, what, "write IN (1, 2, 3)")
            items.append(self.expression(_ADD))
            self.refuse_quoted_string(items[-1], start)
            height = max(height, self.height)
            if self.kind != ",":
                break
            self.advance()
        if self.kind not in (")", "end"):
            token = self.tokens[self.index]
            hint = "put a comma between the values of a list"
            raise Mistake(token.start, token.end, f"expected , or ), found {shown(token)}", hint)
        self.close(opening)
        self.grow(height, start)
        return In(left, tuple(items))

    def like(self, left: Expression) -> Expression:
        height = self.height
        self.advance()
        token = self.string_after("LIKE", "data.name LIKE 'A%'")
        pattern, escape = unquoted(token.text), None
        if self.kind == "ESCAPE":
            self.advance()
            escape_token = self.string_after("ESCAPE", r"LIKE '50\%' ESCAPE '\'")
            escape = unquoted(escape_token.text)
            if len(escape) != 1:
                message = "the escape character is exactly one character"
                raise Mistake(escape_token.start, escape_token.end, message)
        if len(pattern) > MAX_PATTERN_CHARACTERS:
            message = f"a pattern has at most {MAX_PATTERN_CHARACTERS:,} characters"
            raise Mistake(token.start, token.end, message)
        try:
            parsed = parse_like(pattern, escape)
        except ValueError as error:
            raise Mistake(token.start, token.end, str(error)) from None
        self.grow(height, self.index)
        return Like(left, parsed)

    def string_after(self, keyword: str, example: str) -> Token:
        token = self.tokens[self.index]
        if token.kind == "quoted":
            hint = f"a string has single quotes: {as_string(token)}"
            raise Mistake(token.start, token.end, f"{keyword} needs a string", hint)
        if token.kind != "string":
            message = f"{keyword} needs a string, found {shown(token)}"
            raise Mistake(token.start, token.end, message, f"for example {example}")
        self.advance()
        return token

    def is_test(self, left: Expression, start: int) -> Expression:
        self.advance()
        negated = self.kind == "NOT"
        if negated:
            self.advance()
        token = self.tokens[self.index]
        test: Expression
        if self.kind == "NULL":
            test = IsTruth(left, None) if isinstance(left, CONDITIONS) else IsNull(left)
        elif self.kind in _AFTER_IS:
            self.require_condition(left, start)
            test = IsTruth(left, _AFTER_IS[self.kind])
        else:
            guess = nearest(token.text, ("NULL", "NOT", *_AFTER_IS)) if token.kind == "path" else ""
            hint = f"did you mean {guess}?" if guess else "write = to compare with a value"
            message = f"expected NULL, TRUE, FALSE or UNKNOWN after IS, found {shown(token)}"
            raise Mistake(token.start, token.end, message, hint)
        self.advance()
        self.grow(self.height, start)
        if negated:
            self.grow(self.height, start)
            return Not(test)
        return test

    def enter(self, token: Token) -> None:
        self.nesting += 1
        if self.nesting > MAX_DEPTH:
            message = f"the filter is nested too deeply, at most {MAX_DEPTH} levels are allowed"
            raise Mistake(token.start, token.end, message, fatal=True)

    def grow(self, height: int, start: int) -> None:
        self.height = height + 1
        if self.height > MAX_DEPTH:
            token = self.tokens[start]
            message = f"the filter is nested too deeply, at most {MAX_DEPTH} levels are allowed"
            raise Mistake(token.start, token.end, message, fatal=True)

    def open(self) -> None:
        self.open_parentheses += 1
        self.advance()

    def close(self, opening: Token) -> None:
        if self.kind == ")":
            self.open_parentheses -= 1
            self.advance()
            return
        message, hint = "this ( is never closed", "add a )"
        raise Mistake(opening.start, opening.end, message, hint, fatal=self.kind == "end")

    def require_condition(self, expression: Expression, start: int) -> None:
        """Refuse what is never true or false, such as ``data.a = 1 OR 2``."""
        if isinstance(expression, Literal) and not isinstance(expression.value, str | int | Decimal):
            return
        if isinstance(expression, Literal | Arithmetic | Negate):
            if isinstance(expression, Literal) and isinstance(expression.value, bool):
                return
            what = "a string" if isinstance(getattr(expression, "value", 0), str) else "a number"
            place = self.tokens[start].start, self.tokens[self.index - 1].end
            hint = "compare it with something, as in data.price > 5"
            raise Mistake(*place, f"this is {what}, not a condition", hint)

    def require_number(self, expression: Expression, start: int) -> None:
        """Refuse arithmetic on what is never a number, such as ``'a' + 1``."""
        if isinstance(expression, Literal) and isinstance(expression.value, str | bool):
            what = "a string" if isinstance(expression.value, str) else "a boolean"
        elif isinstance(expression, CONDITIONS):
            what = "a condition"
        else:
            return
        place = self.tokens[start].start, self.tokens[self.index - 1].end
        raise Mistake(*place, f"arithmetic needs numbers, this is {what}")

    def refuse_quoted_string(self, expression: Expression, start: int) -> None:
        """Refuse ``data.symbol = "YHOO"``: it would compare with an attribute named YHOO."""
        token = self.tokens[start]
        if token.kind == "quoted" and isinstance(expression, Attribute) and len(expression.path) == 1:
            message = "double quotes name an attribute; a string has single quotes"
            hint = f"write {as_string(token)} (or ({token.text}) if you mean the attribute)"
            self.record(Mistake(token.start, token.end, message, hint))


_PREDICATES: dict[str, Callable[[_Parser, Expression], Expression]] = {
    "BETWEEN": _Parser.between,
    "IN": _Parser.in_list,
    "LIKE": _Parser.like,
}
