"""The state of the parser: a cursor over the tokens, limits of depth and size, and mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, NoReturn

from fieldfare.filters.errors import Mistake, Problem
from fieldfare.filters.expression import DEPTH_MAX, Attribute, Element, Expression
from fieldfare.filters.functions import Type
from fieldfare.filters.sql.lexer import Token, Tokens
from fieldfare.filters.sql.mistakes import shown
from fieldfare.filters.sql.types import SHOWN
from fieldfare.filters.text import PROBLEMS_MAX, SIZE_MAX, ProblemRecorder

WORK_MAX = 16_384
"""Maximum size of a filter with parts inside quantifiers repeated; larger ones are rejected."""

COMPUTED_SIZE = 16
"""The size of an arithmetic operator or a function call."""

QUANTIFIED_SIZE = 16
"""Factor for the size of parts inside ANY or ALL.

Arrays inside the elements of another array are together no longer than the event, so a chain of
quantifiers (``ANY a IN data.a SATISFIES (ANY b IN a.b SATISFIES (...))``) multiplies only once; an
array that is iterated again for every element of another one multiplies again.
"""

NOT, IS, COMPARE, ADD, MULTIPLY, NEGATE, PRIMARY = range(3, 10)
"""Precedence of operators; higher values bind tighter."""

_FREE = ("number", "string", ",")


class Grammar(NamedTuple):
    """The functions that read parts of a filter which contain each other.

    Attributes
    ----------
    expression
        Reads an expression of operators that bind at least as tightly as a precedence.
    disjunction
        Reads conditions joined by OR, or a single expression.
    form
        Reads a construct with special syntax that begins with a word; None if no construct does.
    """

    expression: Callable[[TokenCursor, int], Expression]
    disjunction: Callable[[TokenCursor], Expression]
    form: Callable[[TokenCursor, str], Expression | None]


class TokenCursor(ProblemRecorder):
    """A cursor over the tokens of a filter, which the functions of the parser read with.

    Attributes
    ----------
    index, kind
        The index of the current token, and its kind.
    height, type
        Depth and static type of the expression that was parsed last.
    nesting, open_parentheses, open_betweens, open_cases
        Numbers of open levels, parentheses, BETWEENs and CASEs.
    variables
        The names of the elements of the enclosing quantifiers.
    parents
        For each of them the index in ``variables`` of the element that contains its array, or -1.
    names
        Attributes read before, outside of quantifiers, by name.
    size, work
        The filter's size up to here, and the additional size because of quantifiers.
    """

    def __init__(self, text: str, tokens: Tokens, problems: list[Problem], grammar: Grammar) -> None:
        self.grammar = grammar
        self.text = text
        self.tokens = tokens
        self.kinds = tokens.kinds
        self.texts = tokens.texts
        self.problems = problems
        self.warnings: list[Problem] = []
        self.index = 0
        self.kind = self.kinds[0]
        self.height = 1
        self.type = Type.ANY
        self.nesting = 0
        self.open_parentheses = 0
        self.open_betweens = 0
        self.open_cases = 0
        self.variables: list[str] = []
        self.parents: list[int] = []
        self.names: dict[str, Attribute] = {}
        self.size = self.tokens_between(0, len(self.kinds)) - 1
        self.work = 0

    def advance(self) -> None:
        self.index += 1
        self.kind = self.kinds[self.index]

    def word(self) -> str:
        """Return the current token in upper case."""
        return self.texts[self.index].upper()

    def tokens_between(self, start: int, end: int) -> int:
        """Return the size of a range of tokens: all but literals and commas count."""
        kinds = self.kinds if end - start == len(self.kinds) else self.kinds[start:end]
        return end - start - sum(map(kinds.count, _FREE))

    def count(self, more: int, index: int) -> None:
        """Add to the filter's size; raise a mistake if it exceeds ``SIZE_MAX``."""
        self.size += more
        if self.size > SIZE_MAX:
            self.refuse_size(index)

    def repeat(self, inside: int, array: Attribute | Element, index: int) -> None:
        """Count the parts inside a quantifier once per evaluation; raise a mistake beyond ``WORK_MAX``."""
        self.work += (self.factor(array) - 1) * inside
        if self.size + self.work > WORK_MAX:
            message = f"the filter is too much work: its size with repetitions exceeds {WORK_MAX:,}"
            hint = (
                f"parts inside ANY and ALL count {QUANTIFIED_SIZE} times as much, and again for each array "
                "that is not inside the elements of another"
            )
            raise self.mistake(index, message, hint, fatal=True)

    def refuse_size(self, index: int) -> NoReturn:
        message = f"the filter is too large: its size exceeds {SIZE_MAX:,}"
        hint = (
            f"names, operators and keywords count 1, arithmetic and functions {COMPUTED_SIZE}, "
            "literals nothing: use IN for many values"
        )
        raise self.mistake(index, message, hint, fatal=True)

    def parent_of(self, array: Attribute | Element) -> int:
        """Return the index of the enclosing quantifier whose elements contain an array, or -1."""
        if isinstance(array, Attribute):
            return -1
        return max(place for place, name in enumerate(self.variables) if name == array.variable)

    def factor(self, array: Attribute | Element) -> int:
        """Return the factor for the size of parts inside a quantifier over an array."""
        parent = self.parent_of(array)
        return QUANTIFIED_SIZE if parent < 0 or parent in self.parents else 1

    def enter(self, index: int) -> None:
        """Enter a level of parentheses, NOTs or signs; raise a mistake beyond ``DEPTH_MAX``."""
        self.nesting += 1
        if self.nesting > DEPTH_MAX:
            self.refuse_depth(index)

    def grow(self, height: int, index: int) -> None:
        """Set the height to one above that of the highest part; raise a mistake beyond ``DEPTH_MAX``."""
        self.height = height + 1
        if self.height > DEPTH_MAX:
            self.refuse_depth(index)

    def refuse_depth(self, index: int) -> NoReturn:
        message = f"the filter is nested too deeply, at most {DEPTH_MAX} levels are allowed"
        raise self.mistake(index, message, fatal=True)

    def open(self) -> None:
        self.open_parentheses += 1
        self.advance()

    def close(self, opening: int) -> None:
        if self.kind == ")":
            self.open_parentheses -= 1
            self.advance()
            return
        if self.kind == "[":
            hint = "elements are counted from the end, as in data.items[-1], only where a value stands"
            raise self.mistake(self.index, "unexpected '['", hint)
        raise self.mistake(opening, "this ( is never closed", "add a )", fatal=self.kind == "end")

    def expect(self, kind: str, hint: str) -> None:
        """Advance past a keyword or an operator; raise a mistake if it is not the current token."""
        if self.kind != kind and self.word() != kind:
            raise self.mistake(self.index, f"expected {kind}, found {shown(self.token())}", hint)
        self.advance()

    def token(self) -> Token:
        return self.tokens[self.index]

    def mistake(self, index: int, message: str, hint: str = "", *, fatal: bool = False) -> Mistake:
        """Return a mistake at one token."""
        return self.mistake_over(index, index + 1, message, hint, fatal=fatal)

    def mistake_over(
        self, start: int, end: int, message: str, hint: str = "", *, fatal: bool = False
    ) -> Mistake:
        """Return a mistake at the tokens from ``start`` to before ``end``."""
        last = max(start, end - 1)
        return Mistake(self.tokens.start(start), self.tokens.end(last), message, hint, fatal=fatal)

    def warn(self, start: int, message: str, hint: str) -> None:
        """Warn that the text from ``start`` on is probably not intended."""
        if len(self.warnings) < PROBLEMS_MAX:
            self.warnings.append(self.mistake_over(start, self.index, message, hint).problem(self.text))

    def require_condition(self, start: int, end: int | None = None) -> None:
        """Raise a mistake if the last expression cannot be a condition, such as the 2 in ``a = 1 OR 2``."""
        if self.type is Type.BOOLEAN or self.type is Type.ANY:
            return
        hint = "compare it with something, as in data.price > 5"
        if "||" in self.kinds[start : self.index]:
            hint = "|| joins strings; write OR to join conditions"
        message = f"this is {SHOWN[self.type]}, not a condition"
        raise self.mistake_over(start, end or self.index, message, hint)
