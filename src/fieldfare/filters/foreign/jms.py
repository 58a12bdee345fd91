"""JMS message selectors (Jakarta Messaging and JMS 2.0, section 3.8.1), as conditions on attributes.

A comparison of values of two types is false in a selector, where ``sql`` has unknown; so NOT of it is true.
Each part is therefore translated twice: into a condition that is true where the part is true, and one that
is true where it is false. The part is unknown for the other messages.

Arithmetic with properties is rejected: Java truncates and overflows whole numbers and rounds doubles, and an
event's number does not say which it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fieldfare.filters.errors import FilterError, Mistake
from fieldfare.filters.expression import (
    Attribute,
    Call,
    Comparison,
    Expression,
    In,
    IsNull,
    IsTruth,
    Like,
    Literal,
    Negate,
    Not,
)
from fieldfare.filters.foreign.documents import named_items
from fieldfare.filters.foreign.items import Item, Options, literal_of
from fieldfare.filters.foreign.jms_tokens import WHOLE_MAX, Token, tokens_of
from fieldfare.filters.help.conversion import conjunction, disjunction, sql_text
from fieldfare.filters.patterns import parse_like
from fieldfare.filters.text import refuse_unreadable

DEPTH_MAX = 40
"""Maximum nesting of parentheses, signs and NOT; a deeper selector is rejected."""

_HEADERS = frozenset(
    {"JMSDeliveryMode", "JMSPriority", "JMSMessageID", "JMSTimestamp", "JMSCorrelationID", "JMSType"}
)
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class _Property:
    """A property, or its negative."""

    value: Attribute
    start: int
    end: int
    is_negative: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class _Constant:
    """A constant; ints are Java's long, floats its double."""

    value: str | int | float
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Condition:
    """Two conditions: where a part is true, and where it is false."""

    true: Expression
    false: Expression
    start: int = 0
    end: int = 0

    def negated(self) -> _Condition:
        return _Condition(self.false, self.true, self.start, self.end)


_Operand = _Property | _Constant | _Condition
_ALWAYS, _NEVER = Literal(True), Literal(False)


def convert_selector(text: str, options: Options) -> tuple[str, str]:
    """Convert a selector; an empty one selects every message.

    Raises
    ------
    FilterError
        The selector is invalid, or cannot be converted exactly.
    """
    if not text.strip():
        return "TRUE", "sql"
    refuse_unreadable(text)
    try:
        condition = _Parser(text, options).selector()
    except Mistake as mistake:
        raise FilterError(text, [mistake.problem(text)]) from None
    return sql_text(condition.true, text), "sql"


def read_selectors(text: str, name: str, options: Options) -> list[Item]:
    """Read a file of names and selectors."""
    return named_items(text, lambda selector: convert_selector(selector, options))


class _Parser:
    def __init__(self, text: str, options: Options) -> None:
        self.tokens = tokens_of(text)
        self.options = options
        self.index = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.index]

    def take(self, *kinds: str) -> Token | None:
        """Return the current token and move on if it is of one of the kinds."""
        token = self.token
        if token.kind not in kinds:
            return None
        self.index += 1
        return token

    def need(self, kind: str, what: str) -> Token:
        token = self.take(kind)
        if token is None:
            raise self.unexpected(what)
        return token

    def unexpected(self, wanted: str) -> Mistake:
        token = self.token
        found = "the end of the selector" if token.kind == "end" else repr(token.text)
        return Mistake(token.start, token.end, f"expected {wanted}, found {found}")

    def nested(self, read: Callable[[], _Operand]) -> _Operand:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            token = self.token
            raise Mistake(token.start, token.end, f"nested deeper than {DEPTH_MAX} levels")
        found = read()
        self.depth -= 1
        return found

    def selector(self) -> _Condition:
        found = self.condition(self.alternatives())
        if self.token.kind != "end":
            raise self.unexpected("AND, OR or the end of the selector")
        return found

    def condition(self, operand: _Operand) -> _Condition:
        """Return an operand as a condition: a property is one where it is a boolean."""
        if isinstance(operand, _Condition):
            return operand
        if isinstance(operand, _Property) and not operand.is_negative:
            is_false = Comparison("=", operand.value, Literal(False))
            return _Condition(operand.value, is_false, operand.start, operand.end)
        raise Mistake(operand.start, operand.end, "a condition is needed here, not a value")

    def alternatives(self) -> _Operand:
        found = self.conjuncts()
        if self.token.kind != "OR":
            return found
        parts = [self.condition(found)]
        while self.take("OR"):
            parts.append(self.condition(self.conjuncts()))
        return _Condition(
            disjunction([part.true for part in parts]), conjunction([part.false for part in parts])
        )

    def conjuncts(self) -> _Operand:
        found = self.negation()
        if self.token.kind != "AND":
            return found
        parts = [self.condition(found)]
        while self.take("AND"):
            parts.append(self.condition(self.negation()))
        return _Condition(
            conjunction([part.true for part in parts]), disjunction([part.false for part in parts])
        )

    def negation(self) -> _Operand:
        if self.take("NOT"):
            return self.condition(self.nested(self.negation)).negated()
        return self.predicate()

    def predicate(self) -> _Operand:
        left = self.sum()
        if operator := self.take("=", "<>", "<", "<=", ">", ">="):
            found = self.compared(operator, left, self.sum())
            if self.token.kind in _FLIPPED:
                raise Mistake(self.token.start, self.token.end, "comparisons cannot be chained", "use AND")
            return found
        if self.take("IS"):
            negated = self.take("NOT") is not None
            self.need("NULL", "NULL")
            is_null = IsNull(self.name(left, "IS NULL").value)
            found = _Condition(is_null, Not(is_null))
            return found.negated() if negated else found
        negated = self.take("NOT") is not None
        if self.take("BETWEEN"):
            return self.between(left, negated)
        if self.take("IN"):
            found = self.one_of(self.name(left, "IN"))
            return found.negated() if negated else found
        if self.take("LIKE"):
            found = self.like(self.name(left, "LIKE"))
            return found.negated() if negated else found
        if negated:
            raise self.unexpected("BETWEEN, IN or LIKE")
        return left

    def name(self, operand: _Operand, operator: str) -> _Property:
        """Return an operand that must be the name of a property."""
        if isinstance(operand, _Property) and not operand.is_negative:
            return operand
        raise Mistake(operand.start, operand.end, f"{operator} takes the name of a property")

    def between(self, operand: _Operand, negated: bool) -> _Condition:
        low = self.sum()
        word = self.need("AND", "AND")
        high = self.sum()
        operators = ("<", ">") if negated else (">=", "<=")
        first, second = (
            self.compared(Token(operator, "BETWEEN", word.start, word.end), operand, bound)
            for operator, bound in zip(operators, (low, high), strict=True)
        )
        if negated:
            return _Condition(
                disjunction([first.true, second.true]), conjunction([first.false, second.false])
            )
        return _Condition(conjunction([first.true, second.true]), disjunction([first.false, second.false]))

    def one_of(self, operand: _Property) -> _Condition:
        self.need("(", "(")
        texts: list[Expression] = []
        while True:
            token = self.need("string", "a string: IN takes strings only")
            texts.append(Literal(_string(token)))
            if not self.take(","):
                break
        self.need(")", ", or )")
        return self.decided(In(operand.value, tuple(texts)), operand)

    def like(self, operand: _Property) -> _Condition:
        pattern = self.need("string", "a pattern: a string")
        escape = None
        if self.take("ESCAPE"):
            token = self.need("string", "a string of one character")
            escape = _string(token)
            if len(escape) != 1:
                raise Mistake(token.start, token.end, "ESCAPE takes a string of one character")
        try:
            return self.decided(Like(operand.value, parse_like(_string(pattern), escape)), operand)
        except ValueError as error:
            raise Mistake(pattern.start, pattern.end, str(error)) from None

    def decided(self, test: Expression, *operands: _Property) -> _Condition:
        """Return a test that is unknown only where an operand has no value."""
        there = [Not(IsNull(operand.value)) for operand in operands]
        return _Condition(test, conjunction([*there, Not(IsTruth(test, True))]))

    def compared(self, operator: Token, left: _Operand, right: _Operand) -> _Condition:
        sign = operator.kind
        if isinstance(left, _Constant) and isinstance(right, _Property):
            left, right, sign = right, left, _FLIPPED[sign]
        for operand in (left, right):
            if not isinstance(operand, _Condition):
                self.refuse_order(sign, operand)
            elif operand.true not in (_ALWAYS, _NEVER) or operand.start == operand.end:
                raise Mistake(
                    operator.start, operator.end, f"{operator.text} compares values, not conditions"
                )
            elif sign not in ("=", "<>"):
                raise Mistake(operand.start, operand.end, "booleans are compared with = and <> only")
        if isinstance(left, _Condition) and isinstance(right, _Property):
            left, right = right, left
        if not isinstance(left, _Property):
            return _constants_compared(sign, left, right)
        if isinstance(right, _Property):
            return self.two_properties(sign, left, right)
        if isinstance(right, _Condition):
            if left.is_negative:
                raise Mistake(left.start, left.end, "a sign needs a number")
            return self.decided(Comparison(sign, left.value, Literal(right.true == _ALWAYS)), left)
        value = right.value
        if left.is_negative:
            if isinstance(value, str):
                raise Mistake(right.start, right.end, "a number is needed here")
            sign, value = _FLIPPED[sign], -value
        return self.decided(Comparison(sign, left.value, literal_of(value)), left)

    def refuse_order(self, sign: str, operand: _Property | _Constant) -> None:
        if sign not in ("=", "<>") and isinstance(operand, _Constant) and isinstance(operand.value, str):
            hint = "selectors order numbers only"
            raise Mistake(operand.start, operand.end, "strings are compared with = and <> only", hint)

    def two_properties(self, sign: str, left: _Property, right: _Property) -> _Condition:
        sides: list[Expression] = [
            Negate(side.value) if side.is_negative else side.value for side in (left, right)
        ]
        test: Expression = Comparison(sign, *sides)
        if sign not in ("=", "<>") and not (left.is_negative or right.is_negative):
            # Strings and booleans have no order in a selector.
            test = conjunction([test, Not(IsNull(Call("ABS", (left.value,))))])
        return self.decided(test, left, right)

    def sum(self) -> _Operand:
        return self.chain(self.product, ("+", "-"))

    def product(self) -> _Operand:
        return self.chain(self.signed, ("*", "/"))

    def chain(self, read: Callable[[], _Operand], operators: tuple[str, ...]) -> _Operand:
        found = read()
        while token := self.take(*operators):
            right = read()
            for operand in (found, right):
                if not isinstance(operand, _Constant) or isinstance(operand.value, str):
                    hint = "compute the constant part by hand, or write the filter in sql"
                    message = f"{token.text} of a property is not converted: Java rounds and overflows"
                    if not isinstance(operand, _Property):
                        message, hint = f"{token.text} takes numbers", ""
                    raise Mistake(token.start, token.end, message, hint)
            assert isinstance(found, _Constant) and isinstance(right, _Constant)
            found = _computed(token, found, right)
        return found

    def signed(self) -> _Operand:
        token = self.take("+", "-")
        if token is None:
            return self.primary()
        operand = self.nested(self.signed)
        if isinstance(operand, _Property):
            negative = operand.is_negative != (token.kind == "-")
            return _Property(operand.value, token.start, operand.end, negative)
        if isinstance(operand, _Condition) or isinstance(operand.value, str):
            raise Mistake(token.start, operand.end, f"{token.text} takes a number")
        value = -operand.value if token.kind == "-" else operand.value
        return _Constant(value, token.start, operand.end)

    def primary(self) -> _Operand:
        token = self.token
        if self.take("("):
            found = self.nested(self.alternatives)
            self.need(")", ")")
            return found
        if self.take("TRUE"):
            return _Condition(_ALWAYS, _NEVER, token.start, token.end)
        if self.take("FALSE"):
            return _Condition(_NEVER, _ALWAYS, token.start, token.end)
        if self.take("string"):
            return _Constant(_string(token), token.start, token.end)
        if self.take("whole"):
            return _number(token, int(token.text.rstrip("lL")))
        if self.take("double"):
            return _number(token, float(token.text.rstrip("dD")))
        if self.take("name"):
            return self.property(token)
        hint = "NULL is tested with IS NULL" if token.kind == "NULL" else ""
        mistake = self.unexpected("a value or the name of a property")
        raise Mistake(mistake.start, mistake.end, mistake.message, hint)

    def property(self, token: Token) -> _Property:
        name = token.text
        if name.startswith("JMS") and not name.startswith(("JMSX", "JMS_")) and name not in _HEADERS:
            hint = f"there are {', '.join(sorted(_HEADERS))}"
            raise Mistake(token.start, token.end, f"a selector cannot have the header field {name}", hint)
        try:
            return _Property(self.options.attribute(name), token.start, token.end, name=name)
        except ValueError as error:
            raise Mistake(token.start, token.end, *error.args) from None


def _string(token: Token) -> str:
    return token.text[1:-1].replace("''", "'")


def _number(token: Token, value: int | float) -> _Constant:
    if abs(value) > WHOLE_MAX:
        message = "a number beyond 2**53 is rounded by Java when it is compared with a double"
        raise Mistake(token.start, token.end, message)
    return _Constant(value, token.start, token.end)


def _computed(token: Token, left: _Constant, right: _Constant) -> _Constant:
    """Return the result of arithmetic on constants, as Java computes it."""
    one, other = left.value, right.value
    assert not isinstance(one, str) and not isinstance(other, str)
    if token.kind == "/" and not other:
        raise Mistake(token.start, token.end, "this is a division by zero")
    value: int | float
    if token.kind == "+":
        value = one + other
    elif token.kind == "-":
        value = one - other
    elif token.kind == "*":
        value = one * other
    elif isinstance(one, int) and isinstance(other, int):
        value = abs(one) // abs(other) * (1 if (one < 0) == (other < 0) else -1)
    else:
        value = one / other
    return _number(Token("", "", left.start, right.end), value)


def _constants_compared(sign: str, left: _Operand, right: _Operand) -> _Condition:
    one, other = (
        operand.true == _ALWAYS if isinstance(operand, _Condition) else operand.value
        for operand in (left, right)
    )
    assert isinstance(one, str | int | float) and isinstance(other, str | int | float)
    if _type(one) is not _type(other):
        return _Condition(_NEVER, _ALWAYS)
    holds = {
        "=": one == other,
        "<>": one != other,
        "<": one < other,  # type: ignore[operator]
        "<=": one <= other,  # type: ignore[operator]
        ">": one > other,  # type: ignore[operator]
        ">=": one >= other,  # type: ignore[operator]
    }[sign]
    return _Condition(_ALWAYS, _NEVER) if holds else _Condition(_NEVER, _ALWAYS)


def _type(value: str | int | float) -> type:
    return bool if isinstance(value, bool) else str if isinstance(value, str) else float
