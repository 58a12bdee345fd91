"""The parser of the ``cesql`` dialect.

Precedence is that of section 3.6: function calls, then NOT and ``-``, then LIKE and IN, then
``* / %``, then ``+ -``, then comparisons, then AND, OR and XOR alike, all from left to right. (The
grammar that accompanies the specification has AND, OR and XOR from right to left; its text is
normative. Mixing them without parentheses gives a warning.) After a mistake, the parser resumes at the next
AND, OR, XOR, comma or closing parenthesis, so that several mistakes are reported together.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from fieldfare.filters.cesql import mistakes, syntax
from fieldfare.filters.cesql.builtins import BUILTINS
from fieldfare.filters.cesql.lexer import CesqlToken, tokens_of, unquoted
from fieldfare.filters.cesql.mistakes import shown
from fieldfare.filters.cesql.types import result_type
from fieldfare.filters.cesql.values import INTEGER_MAX, INTEGER_MIN, CesqlType, to_integer
from fieldfare.filters.errors import FilterError, Mistake, Problem
from fieldfare.filters.expression import DEPTH_MAX, Pattern, Wild
from fieldfare.filters.patterns import PATTERN_CHARACTERS_MAX
from fieldfare.filters.text import PROBLEMS_MAX, SIZE_MAX, ProblemRecorder, refuse_unreadable

_LOGIC = ("AND", "OR", "XOR")
_COMPARE, _ADD, _MULTIPLY, _TEST = range(1, 5)
_LEVELS = {
    **dict.fromkeys(("=", "<>", "<", "<=", ">", ">="), _COMPARE),
    **dict.fromkeys(("+", "-"), _ADD),
    **dict.fromkeys(("*", "/", "%"), _MULTIPLY),
    **dict.fromkeys(("LIKE", "IN"), _TEST),
}
_INVALID = syntax.CesqlLiteral(True)
"""Placeholder for an operand that could not be parsed; its problem is recorded."""


def parse_cesql(text: str) -> tuple[syntax.Node, tuple[Problem, ...]]:
    """Parse a CESQL expression; return its syntax tree, and warnings about probable mistakes.

    Raises
    ------
    FilterError
        The filter is invalid; the problems are in the order of the text.
    """
    refuse_unreadable(text)
    tokens, problems = tokens_of(text)
    _refuse_size(text, tokens)
    parser = _CesqlParser(text, tokens, problems)
    node = parser.filter()
    if parser.problems:
        raise FilterError(text, sorted(parser.problems, key=_place)[:PROBLEMS_MAX])
    kind = result_type(node)
    if kind not in (CesqlType.BOOLEAN, None):
        what = f"this filter is {kind.value}, never true or false, so it matches no event"
        hint = "compare it with something, as in sequence > 5"
        parser.warnings.append(Problem(what, 1, 1, hint, 0))
    return node, tuple(sorted(parser.warnings, key=_place))


def _refuse_size(text: str, tokens: list[CesqlToken]) -> None:
    size = sum(token.kind not in _FREE for token in tokens)
    if size > SIZE_MAX:
        message = f"the filter is too large: its size exceeds {SIZE_MAX:,}"
        hint = "names, operators and keywords count 1, literals nothing: use IN for many values"
        raise FilterError(text, [Problem(message, 1, 1, hint, 0)])


_FREE = frozenset(("string", "number", ",", "end"))
_place = attrgetter("line", "column")


class _CesqlParser(ProblemRecorder):
    """A cursor over the tokens. ``height`` is the depth of the tree that was parsed last."""

    def __init__(self, text: str, tokens: list[CesqlToken], problems: list[Problem]) -> None:
        self.text = text
        self.tokens = tokens
        self.problems = problems
        self.warnings: list[Problem] = []
        self.index = 0
        self.kind = tokens[0].kind
        self.height = 1
        self.open_parentheses = 0
        self.in_list = False

    @property
    def token(self) -> CesqlToken:
        return self.tokens[self.index]

    def advance(self) -> None:
        self.index += 1
        self.kind = self.tokens[self.index].kind

    def filter(self) -> syntax.Node:
        if len(self.problems) >= PROBLEMS_MAX:
            return _INVALID
        try:
            node = self.logic()
            while self.kind == ")":
                self.record(
                    Mistake(self.token.start, self.token.end, "this ) has no matching (", mistakes.UNOPENED)
                )
                self.advance()
                if self.kind in _LOGIC:
                    self.advance()
                    self.logic()
            if self.kind != "end":  # a comma, or a token after a superfluous )
                raise mistakes.missing_operator(self.tokens, self.index)
        except Mistake as mistake:
            if len(self.problems) < PROBLEMS_MAX:
                self.note(mistake)
            return _INVALID
        return node

    def warn(self, problem: Problem | None) -> None:
        if problem and len(self.warnings) < PROBLEMS_MAX:
            self.warnings.append(problem)

    def logic(self) -> syntax.Node:
        """Parse operands joined by AND, OR and XOR, from left to right."""
        start = self.index
        operands, operator = [self.condition()], ""
        height = self.height
        mixes = False
        while self.kind in _LOGIC:
            token = self.token
            if operator and token.kind != operator:
                if not mixes:
                    first, before = self.tokens[start].start, self.tokens[self.index - 1]
                    self.warn(mistakes.mixed(self.text, first, before, token, operator))
                mixes = True
                operands = [syntax.Logic(operator, tuple(operands))]
                height = self.grown(height, start)
            operator = token.kind
            self.advance()
            operands.append(self.condition())
            height = max(height, self.height)
        if not operator:
            return operands[0]
        self.height = self.grown(height, start)
        return syntax.Logic(operator, tuple(operands))

    def condition(self) -> syntax.Node:
        """Parse one operand of AND, OR or XOR; record its mistakes."""
        open_parentheses, in_list = self.open_parentheses, self.in_list
        try:
            node = self.expression(_COMPARE)
            if self.kind not in (*_LOGIC, ")", ",", "end"):
                raise mistakes.missing_operator(self.tokens, self.index, in_list=self.in_list)
        except Mistake as mistake:
            if mistake.fatal:
                raise
            self.record(mistake)
            self.skip(self.open_parentheses - open_parentheses)
            self.open_parentheses, self.in_list = open_parentheses, in_list
            self.height = 1
            return _INVALID
        return node

    def skip(self, depth: int) -> None:
        """Advance to the next operator, comma, ) or end outside of ``depth`` open parentheses."""
        while self.kind != "end":
            if self.kind == "(":
                depth += 1
            elif not depth and self.kind in (*_LOGIC, ")", ","):
                return
            elif self.kind == ")":
                depth -= 1
            self.advance()

    def expression(self, least: int) -> syntax.Node:
        """Parse an expression of operators that bind at least as tightly as ``least``."""
        start = self.index
        left = self.operand()
        first: CesqlToken | None = None
        last = 0
        while True:
            operator = self.token
            negated = self.kind == "NOT" and self.tokens[self.index + 1].kind in ("LIKE", "IN")
            if negated:
                operator = self.tokens[self.index + 1]
            level = _LEVELS.get(operator.kind, 0)
            if level < least:
                break
            if level == _TEST:
                self.index += negated
                before = self.tokens[start - 1]
                if _LEVELS.get(before.kind, 0) in (_ADD, _MULTIPLY) and last == 0 and least > _COMPARE:
                    self.warn(mistakes.tight_postfix(self.text, operator, before))
                test = self.like if operator.kind == "LIKE" else self.membership
                left = test(left, negated)
            else:
                if level == _COMPARE == last:
                    self.warn(mistakes.chained(self.text, operator))
                left = self.binary(left, start, level)
            first, last = first or operator, level
        if first and self.tokens[start].kind == "NOT":
            self.warn(mistakes.tight_not(self.text, self.tokens, start, self.index - 1, first))
        return left

    def binary(self, left: syntax.Node, start: int, level: int) -> syntax.Node:
        operator, height = self.kind, self.height
        self.advance()
        right = self.expression(level + 1)
        self.height = self.grown(max(height, self.height), start)
        return (syntax.CesqlComparison if level == _COMPARE else syntax.CesqlArithmetic)(
            operator, left, right
        )

    def operand(self) -> syntax.Node:
        """Parse an atom after any number of NOT and -."""
        start = self.index
        while self.kind == "NOT" or (self.kind == "-" and not self.at_signed_number()):
            self.advance()
        prefixes = self.tokens[start : self.index]
        node = self.atom()
        for prefix in reversed(prefixes):
            node = syntax.CesqlNot(node) if prefix.kind == "NOT" else syntax.Minus(node)
            self.height = self.grown(self.height, start)
        return node

    def at_signed_number(self) -> bool:
        following = self.tokens[self.index + 1]
        return following.kind == "number" and following.start == self.token.end

    def atom(self) -> syntax.Node:
        token = self.token
        self.height = 1
        read = _ATOMS.get(token.kind)
        if read is not None:
            return read(self)
        if token.kind in ("+", "-") and self.at_signed_number():
            return self.number()
        raise mistakes.missing_operand(self.tokens, self.index, inside=self.open_parentheses > 0)

    def name(self) -> syntax.Node:
        token = self.token
        self.advance()
        if self.kind == "(":
            return self.call(token)
        return syntax.CesqlAttribute(self.attribute_name(token))

    def attribute_name(self, token: CesqlToken) -> str:
        if "_" in token.text:
            message = f"{shown(token)} is not the name of an attribute"
            hint = "a name has only letters and digits"
            if token.text.lower() == "data_base64":
                hint = "CESQL reads only an event's context attributes, not its data"
            raise Mistake(token.start, token.end, message, hint)
        self.warn(mistakes.not_an_attribute(self.text, token))
        return token.text.lower()

    def number(self) -> syntax.Node:
        first = self.token
        if first.kind != "number":
            self.advance()
        token = self.token
        sign = first.text if first is not token else ""
        value = to_integer(sign + token.text) if token.text.isdigit() else 0
        if value is None:
            message = f"an integer of CESQL lies between {INTEGER_MIN} and {INTEGER_MAX}"
            raise Mistake(first.start, token.end, message)
        self.advance()
        return syntax.CesqlLiteral(value)

    def string(self) -> syntax.Node:
        value = unquoted(self.token.text)
        self.advance()
        return syntax.CesqlLiteral(value)

    def truth(self) -> syntax.Node:
        value = self.kind == "TRUE"
        self.advance()
        return syntax.CesqlLiteral(value)

    def exists(self) -> syntax.Node:
        self.advance()
        token = self.token
        if token.kind == "(":
            following = self.tokens[self.index + 1]
            name = following.text if following.kind == "name" else "subject"
            raise Mistake(
                token.start, token.end, "EXISTS needs a name, without parentheses", f"write EXISTS {name}"
            )
        if token.kind != "name":
            message = f"EXISTS needs the name of an attribute, found {shown(token)}"
            raise Mistake(token.start, token.end, message, "write EXISTS subject")
        self.advance()
        return syntax.CesqlExists(self.attribute_name(token))

    def parenthesis(self) -> syntax.Node:
        opening, in_list = self.token, self.in_list
        self.in_list = False
        self.open()
        node = self.logic()
        if self.kind == ",":
            hint = "a list of values stands after IN"
            raise Mistake(self.token.start, self.token.end, "expected ), found ','", hint)
        self.close(opening)
        self.in_list = in_list
        return node

    def call(self, name: CesqlToken) -> syntax.Node:
        function = name.text.upper()
        if function not in BUILTINS:
            self.record(mistakes.unknown_function(name))
        arguments = self.list(allow_empty=True)
        builtin = BUILTINS.get(function)
        if builtin and not builtin.takes(len(arguments)):
            self.warn(mistakes.wrong_count(self.text, name, len(arguments)))
        self.height = self.grown(self.height, self.index - 1)
        return syntax.CesqlCall(function, arguments)

    def like(self, left: syntax.Node, negated: bool) -> syntax.Node:
        height = self.height
        self.advance()
        token = self.token
        if token.kind != "string":
            hint = "the pattern is a string, as in type LIKE 'com.example.%'"
            raise Mistake(token.start, token.end, f"LIKE needs a string, found {shown(token)}", hint)
        pattern = unquoted(token.text)
        if len(pattern) > PATTERN_CHARACTERS_MAX:
            message = f"a pattern has at most {PATTERN_CHARACTERS_MAX:,} characters"
            raise Mistake(token.start, token.end, message)
        self.advance()
        self.height = self.grown(height, self.index - 1)
        return syntax.CesqlLike(left, parse_pattern(pattern), negated)

    def membership(self, left: syntax.Node, negated: bool) -> syntax.Node:
        height = self.height
        self.advance()
        token = self.token
        if token.kind != "(":
            raise Mistake(token.start, token.end, f"expected (, found {shown(token)}", "write IN ('a', 'b')")
        items = self.list(allow_empty=False)
        self.height = self.grown(max(height, self.height), self.index - 1)
        return syntax.CesqlIn(left, items, negated)

    def list(self, *, allow_empty: bool) -> tuple[syntax.Node, ...]:
        """Parse comma-separated expressions in parentheses; ``height`` becomes the greatest of theirs."""
        opening, in_list = self.token, self.in_list
        self.in_list = True
        self.open()
        items: list[syntax.Node] = []
        height = 1
        if self.kind == ")" and allow_empty:
            self.close(opening)
            self.in_list = in_list
            return ()
        while True:
            token = self.token
            if self.kind == "end":
                break
            if self.kind == ")":
                message = "a comma with nothing after it" if items else "IN needs at least one value"
                raise Mistake(token.start, token.end, message, "write IN ('a', 'b')" if not items else "")
            if self.kind in _PLAIN and self.tokens[self.index + 1].kind in (",", ")"):
                items.append(_ATOMS[self.kind](self))  # fast path: long lists consist of literals
            else:
                items.append(self.logic())
                height = max(height, self.height)
            if self.kind != ",":
                break
            self.advance()
        self.close(opening)
        self.in_list = in_list
        self.height = height
        return tuple(items)

    def open(self) -> None:
        self.open_parentheses += 1
        if self.open_parentheses > DEPTH_MAX:
            raise self.too_deep(self.token)
        self.advance()

    def close(self, opening: CesqlToken) -> None:
        if self.kind == ")":
            self.open_parentheses -= 1
            self.advance()
            return
        raise Mistake(
            opening.start, opening.end, "this ( is never closed", "add a )", fatal=self.kind == "end"
        )

    def grown(self, height: int, start: int) -> int:
        if height >= DEPTH_MAX:
            raise self.too_deep(self.tokens[start])
        return height + 1

    def too_deep(self, token: CesqlToken) -> Mistake:
        message = f"the filter is nested too deeply, at most {DEPTH_MAX} levels are allowed"
        return Mistake(token.start, token.end, message, fatal=True)


_ATOMS: dict[str, Callable[[_CesqlParser], syntax.Node]] = {
    "name": _CesqlParser.name,
    "number": _CesqlParser.number,
    "string": _CesqlParser.string,
    "TRUE": _CesqlParser.truth,
    "FALSE": _CesqlParser.truth,
    "EXISTS": _CesqlParser.exists,
    "(": _CesqlParser.parenthesis,
}
_PLAIN = ("number", "string")


def parse_pattern(text: str) -> Pattern:
    r"""Parse a LIKE pattern: ``%`` and ``_`` are wildcards unless a ``\`` precedes them (3.4.3)."""
    parts: list[Any] = []
    literal: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\" and text[position + 1 : position + 2] in ("%", "_"):
            position += 1
            literal.append(text[position])
        elif character in "%_":
            if literal:
                parts.append("".join(literal))
                literal = []
            if not (character == "%" and parts and parts[-1] is Wild.RUN):
                parts.append(Wild(character))
        else:
            literal.append(character)
        position += 1
    if literal:
        parts.append("".join(literal))
    return tuple(parts)
