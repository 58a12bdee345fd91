"""The ground of the parser: a place in the tokens, limits of depth and size, and mistakes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NoReturn

from fieldfare.filters.errors import Mistake, Problem
from fieldfare.filters.expression import MAX_DEPTH, Attribute, Element, Expression
from fieldfare.filters.functions import Type
from fieldfare.filters.sql.lexer import MAX_PROBLEMS, Token, Tokens
from fieldfare.filters.sql.mistakes import shown
from fieldfare.filters.sql.types import SHOWN

MAX_SIZE = 4_096
"""How large a filter may be: a name, an operator, a keyword, a parenthesis each count 1."""

MAX_WORK = 16_384
"""How much a filter may count if what stands inside of quantifiers counts as often as it is evaluated."""

COMPUTED_SIZE = 16
"""What an arithmetic operator or a function counts."""

QUANTIFIED_SIZE = 16
"""How many times what stands inside ANY or ALL counts.

Arrays inside the elements of another array are no longer together than the event is, so a chain of
quantifiers (``ANY a IN data.a SATISFIES (ANY b IN a.b SATISFIES (...))``) multiplies only once; each
array that is looked at again for every element of another multiplies again.
"""

NOT, IS, COMPARE, ADD, MULTIPLY, NEGATE, PRIMARY = range(3, 10)
"""How tightly operators bind."""

_FREE = ("number", "string", ",")


class TokenCursor(ABC):
    """A place in the tokens of a filter.

    Attributes
    ----------
    index, kind
        The place, and the kind of the token there.
    height, type
        Depth and static type of the expression that was read last.
    nesting, open_parentheses, open_betweens, open_cases
        What is open here.
    variables
        The names of the elements of the quantifiers around here.
    parents
        For each of them the place in ``variables`` of the element that its array is in, or -1.
    size, work
        How much the filter counts so far, and how much more because of quantifiers.
    """

    def __init__(self, text: str, tokens: Tokens, problems: list[Problem]) -> None:
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
        self.size = self.tokens_between(0, len(self.kinds)) - 1
        self.work = 0

    @abstractmethod
    def expression(self, least: int) -> Expression:
        """Everything from here on that binds at least as tightly as ``least``."""

    @abstractmethod
    def disjunction(self) -> Expression:
        """Conditions joined by OR, or anything in their place."""

    @abstractmethod
    def form(self, word: str) -> Expression | None:
        """What begins with this word and is written in a way of its own; None if nothing is."""

    def advance(self) -> None:
        self.index += 1
        self.kind = self.kinds[self.index]

    def word(self) -> str:
        """The token here in capitals."""
        return self.texts[self.index].upper()

    def tokens_between(self, start: int, end: int) -> int:
        """How many tokens count there: all but literals and commas, of which lists are made."""
        kinds = self.kinds if end - start == len(self.kinds) else self.kinds[start:end]
        return end - start - sum(map(kinds.count, _FREE))

    def count(self, more: int, index: int) -> None:
        """Add to the filter's size."""
        self.size += more
        if self.size > MAX_SIZE:
            self.refuse_size(index)

    def repeat(self, inside: int, array: Attribute | Element, index: int) -> None:
        """Count what stands inside of a quantifier as often as it is evaluated."""
        self.work += (self.factor(array) - 1) * inside
        if self.size + self.work > MAX_WORK:
            message = f"the filter is too much work: it counts more than {MAX_WORK:,}"
            hint = (
                f"all inside ANY and ALL counts {QUANTIFIED_SIZE} times as much, and again for each array "
                "that is not inside the elements of another"
            )
            raise self.mistake(index, message, hint, fatal=True)

    def refuse_size(self, index: int) -> NoReturn:
        message = f"the filter is too large: it counts more than {MAX_SIZE:,}"
        hint = (
            f"names, operators and keywords count 1, arithmetic and functions {COMPUTED_SIZE}, "
            "literals nothing: use IN for many values"
        )
        raise self.mistake(index, message, hint, fatal=True)

    def parent_of(self, array: Attribute | Element) -> int:
        """The place of the quantifier around here in whose elements an array is, or -1."""
        if isinstance(array, Attribute):
            return -1
        return max(place for place, name in enumerate(self.variables) if name == array.variable)

    def factor(self, array: Attribute | Element) -> int:
        """How many times as much counts what a quantifier over this array has inside."""
        parent = self.parent_of(array)
        return QUANTIFIED_SIZE if parent < 0 or parent in self.parents else 1

    def enter(self, index: int) -> None:
        """One level deeper into parentheses, NOTs or signs."""
        self.nesting += 1
        if self.nesting > MAX_DEPTH:
            self.refuse_depth(index)

    def grow(self, height: int, index: int) -> None:
        """The expression that was read is one level above its highest part."""
        self.height = height + 1
        if self.height > MAX_DEPTH:
            self.refuse_depth(index)

    def refuse_depth(self, index: int) -> NoReturn:
        message = f"the filter is nested too deeply, at most {MAX_DEPTH} levels are allowed"
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
        """Go on over a keyword or an operator."""
        if self.kind != kind and self.word() != kind:
            raise self.mistake(self.index, f"expected {kind}, found {shown(self.token())}", hint)
        self.advance()

    def token(self) -> Token:
        return self.tokens[self.index]

    def mistake(self, index: int, message: str, hint: str = "", *, fatal: bool = False) -> Mistake:
        """What is wrong with one token."""
        return self.mistake_over(index, index + 1, message, hint, fatal=fatal)

    def mistake_over(
        self, start: int, end: int, message: str, hint: str = "", *, fatal: bool = False
    ) -> Mistake:
        """What is wrong with the tokens from ``start`` to before ``end``."""
        last = max(start, end - 1)
        return Mistake(self.tokens.start(start), self.tokens.end(last), message, hint, fatal=fatal)

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

    def warn(self, start: int, message: str, hint: str) -> None:
        """Say of what was read from ``start`` on that it is most likely not meant."""
        if len(self.warnings) < MAX_PROBLEMS:
            self.warnings.append(self.mistake_over(start, self.index, message, hint).problem(self.text))

    def require_condition(self, start: int, end: int | None = None) -> None:
        """Refuse that what was read last is never true or false, such as the 2 in ``a = 1 OR 2``."""
        if self.type is Type.BOOLEAN or self.type is Type.ANY:
            return
        hint = "compare it with something, as in data.price > 5"
        if "||" in self.kinds[start : self.index]:
            hint = "|| joins strings; write OR to join conditions"
        message = f"this is {SHOWN[self.type]}, not a condition"
        raise self.mistake_over(start, end or self.index, message, hint)
