"""The exact evaluator: an expression compiled into Python closures.

A closure takes a *subject* (an event, or a function from path to value), from which a getter for each
path reads the attribute's value. Conditions return True, False or None (unknown); values return the
event's value, an exact number, or None. Comparisons with constants avoid Decimal: the constant's
nearest int and float bounds are computed once.
"""

from __future__ import annotations

import operator as operators
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

from fieldfare.filters import exact
from fieldfare.filters.expression import (
    CONDITIONS,
    And,
    AndThen,
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
    OrElse,
    Quantified,
    Scalar,
)
from fieldfare.filters.functions import FUNCTIONS, Function, Type
from fieldfare.filters.patterns import matcher_of
from fieldfare.filters.values import ABSENT, SINGLE, is_array
from fieldfare.model import Path

Subject = Any
Getter = Callable[[Subject], Any]
Condition = Callable[[Subject], bool | None]


def event_getter(path: Path) -> Getter:
    """Return a function that reads an attribute of an event (a mapping); ABSENT where it is missing."""
    if len(path) == 1:
        name = path[0]
        return lambda event: event.get(name, ABSENT)
    if len(path) == 2 and isinstance(path[1], str):
        first, second = str(path[0]), path[1]

        def get_second(event: Mapping[str, Any]) -> Any:
            inner = event.get(first, ABSENT)
            if type(inner) is dict:
                return inner.get(second, ABSENT)
            return _step(inner, second)

        return get_second

    def get(event: Mapping[str, Any]) -> Any:
        value: Any = event
        for step in path:
            value = _step(value, step)
            if value is ABSENT:
                return ABSENT
        return value

    return get


def _step(value: Any, step: str | int) -> Any:
    if type(value) in SINGLE:
        return ABSENT
    if isinstance(step, str):
        return value.get(step, ABSENT) if type(value) is dict or isinstance(value, Mapping) else ABSENT
    if is_array(value) and step < len(value):
        return value[step]
    return ABSENT


def _outside(get: Getter, levels: int) -> Getter:
    """Return a getter that applies ``get`` to the subject outside of `levels` nested quantifiers."""
    if levels == 0:
        return get
    if levels == 1:
        return lambda pair: get(pair[0])

    def get_outside(pair: Subject) -> Any:
        for _ in range(levels):
            pair = pair[0]
        return get(pair)

    return get_outside


_second = operators.itemgetter(1)


def lookup_getter(path: Path) -> Getter:
    """Return a function that reads an attribute from a subject that is a function from path to value."""
    return lambda get: get(path)


class Constant:
    """A getter that returns the same value for every subject: a literal, or computed from literals."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, subject: Subject) -> Any:
        return self.value


class Compiler:
    """A compiler of expressions for one kind of subject.

    Inside a quantifier, the subject is a pair: the subject outside, and the element.

    Parameters
    ----------
    getter
        Returns the function that reads an attribute from a subject.
    elements
        For each quantifier's variable in scope, the function that reads its element.
    """

    def __init__(
        self, getter: Callable[[Path], Getter], elements: Mapping[str, Getter] | None = None
    ) -> None:
        self.getter = getter
        self.elements = {name: (get, 0) for name, get in (elements or {}).items()}
        self.level = 0

    def _inside(self, variable: str) -> Compiler:
        """Return a compiler for the condition of a quantifier at this level."""
        inner = Compiler(self.getter)
        inner.level = self.level + 1
        inner.elements = {**self.elements, variable: (_second, inner.level)}
        return inner

    def matcher(self, expression: Expression) -> Condition:
        """Return a function that is truthy where the expression is true; false and unknown are both falsy."""
        if isinstance(expression, And | AndThen):
            return _all([self.matcher(operand) for operand in expression.operands])
        if isinstance(expression, Or):
            return _any([self.matcher(operand) for operand in expression.operands])
        return self.condition(expression)

    def condition(self, expression: Expression) -> Condition:
        """Return a function that returns True, False, or None for unknown."""
        return _CONDITIONS[type(expression)](self, expression)

    def value(self, expression: Expression) -> Getter:
        """Return a function that returns the value of an expression; None or ABSENT where it has none."""
        if isinstance(expression, Literal):
            return Constant(expression.value)
        if isinstance(expression, Attribute):
            return _outside(self.getter(expression.path), self.level)
        if isinstance(expression, Element):
            return self._element(expression)
        if isinstance(expression, Call):
            return self._call(expression)
        if isinstance(expression, CONDITIONS):
            return self.condition(expression)
        return self.number(expression)

    def number(self, expression: Expression) -> Callable[[Subject], exact.Rational | None]:
        """Return a function that returns an operand of arithmetic: an int, a Fraction, or None."""
        if isinstance(expression, Negate):
            negated = self.number(expression.operand)
            if isinstance(negated, Constant):
                return Constant(None if negated.value is None else -negated.value)

            def negate(subject: Subject) -> exact.Rational | None:
                operand = negated(subject)
                return None if operand is None else -operand

            return negate
        if isinstance(expression, Arithmetic):
            return self._arithmetic(expression)
        value, rational = self.value(expression), exact.rational
        if isinstance(value, Constant):
            return Constant(rational(value.value))
        return lambda subject: rational(value(subject))

    def _arithmetic(self, e: Arithmetic) -> Callable[[Subject], exact.Rational | None]:
        operator, calculate = e.operator, exact.calculate
        left, right = self.number(e.left), self.number(e.right)
        if isinstance(left, Constant) and isinstance(right, Constant):
            known = left.value is not None and right.value is not None
            return Constant(calculate(operator, left.value, right.value) if known else None)

        def arithmetic(subject: Subject) -> exact.Rational | None:
            a = left(subject)
            if a is None:
                return None
            b = right(subject)
            return None if b is None else calculate(operator, a, b)

        return arithmetic

    def _literal(self, e: Literal) -> Condition:
        truth = e.value if isinstance(e.value, bool) else None
        return lambda subject: truth

    def _element(self, e: Element) -> Getter:
        get_element, level = self.elements[e.variable]
        element, path = _outside(get_element, self.level - level), e.path
        if not path:
            return element

        def get(subject: Subject) -> Any:
            value = element(subject)
            for step in path:
                value = _step(value, step)
                if value is ABSENT:
                    break
            return value

        return get

    def _call(self, e: Call) -> Getter:
        function = FUNCTIONS[e.function]
        simpler = function.expand(e.operands) if function.expand else None
        if simpler is not None:
            return self.value(simpler)
        operands = [
            self._typed(operand, function.parameter(place).type) for place, operand in enumerate(e.operands)
        ]
        call = _calling(function, operands)
        return Constant(call(None)) if all(isinstance(get, Constant) for get in operands) else call

    def _typed(self, e: Expression, kind: Type) -> Getter:
        """Return a getter of a function's operand; None where the value is not of the type."""
        if kind.is_numeric:
            return self.number(e)
        if kind is Type.BOOLEAN:
            return self.condition(e)
        get = self.value(e)
        if isinstance(get, Constant):
            return get if kind is Type.ANY or isinstance(get.value, str) else Constant(None)
        if kind is Type.ANY:
            return lambda subject: None if (value := get(subject)) is ABSENT else value
        return lambda subject: value if isinstance(value := get(subject), str) else None

    def _bare(self, e: Attribute | Element | Call) -> Condition:
        get = self.value(e)

        def truth(subject: Subject) -> bool | None:
            value = get(subject)
            return value if value is True or value is False else None

        return truth

    def _comparison(self, e: Comparison) -> Condition:
        operator, get, get_right = e.operator, self.value(e.left), self.value(e.right)
        if isinstance(get, Constant):
            operator, get, get_right = MIRRORED[operator], get_right, get
        if isinstance(get_right, Constant):
            return _compare_with_constant(operator, get, get_right.value)
        accepted, order = _ACCEPTED[operator], exact.order

        def compare(subject: Subject) -> bool | None:
            found = order(get(subject), get_right(subject))
            return None if found is None else found in accepted

        return compare

    def _between(self, e: Between) -> Condition:
        if isinstance(e.low, Literal) and isinstance(e.high, Literal) and isinstance(e.operand, Attribute):
            return _both(
                self.condition(Comparison(">=", e.operand, e.low)),
                self.condition(Comparison("<=", e.operand, e.high)),
            )
        get, low, high, order = self.value(e.operand), self.value(e.low), self.value(e.high), exact.order

        def between(subject: Subject) -> bool | None:
            value = get(subject)
            above, below = order(value, low(subject)), order(value, high(subject))
            if (above is not None and above < 0) or (below is not None and below > 0):
                return False
            return None if above is None or below is None else True

        return between

    def _in(self, e: In) -> Condition:
        get = self.value(e.operand)
        getters = [self.value(item) for item in {id(item): item for item in e.items}.values()]
        constants = [item.value for item in getters if isinstance(item, Constant)]
        others = [item for item in getters if not isinstance(item, Constant)]
        find = _finder(constants)
        order = exact.order
        if not others:
            return lambda subject: find(get(subject))

        def is_in(subject: Subject) -> bool | None:
            value = get(subject)
            found = find(value) if constants else False
            for other in others:
                if found:
                    break
                compared = order(value, other(subject))
                if compared == 0:
                    found = True
                elif compared is None:
                    found = None
            return found

        return is_in

    def _like(self, e: Like) -> Condition:
        get, fits = self.value(e.operand), matcher_of(e.pattern)

        def like(subject: Subject) -> bool | None:
            value = get(subject)
            return fits(value) if isinstance(value, str) else None

        return like

    def _exists(self, e: Exists) -> Condition:
        get = self.value(e.operand)
        return lambda subject: get(subject) is not ABSENT

    def _is_null(self, e: IsNull) -> Condition:
        get = self.value(e.operand)

        def is_null(subject: Subject) -> bool:
            value = get(subject)
            return value is None or value is ABSENT

        return is_null

    def _is_truth(self, e: IsTruth) -> Condition:
        operand, truth = self.condition(e.operand), e.truth
        return lambda subject: operand(subject) is truth

    def _not(self, e: Not) -> Condition:
        operand = self.condition(e.operand)

        def negation(subject: Subject) -> bool | None:
            value = operand(subject)
            return None if value is None else not value

        return negation

    def _and(self, e: And) -> Condition:
        operands = [self.condition(operand) for operand in e.operands]

        def conjunction(subject: Subject) -> bool | None:
            result: bool | None = True
            for operand in operands:
                value = operand(subject)
                if value is False:
                    return False
                if value is None:
                    result = None
            return result

        return conjunction

    def _or(self, e: Or) -> Condition:
        operands = [self.condition(operand) for operand in e.operands]

        def disjunction(subject: Subject) -> bool | None:
            result: bool | None = False
            for operand in operands:
                value = operand(subject)
                if value:
                    return True
                if value is None:
                    result = None
            return result

        return disjunction

    def _and_then(self, e: AndThen) -> Condition:
        operands = [self.condition(operand) for operand in e.operands]

        def conjunction(subject: Subject) -> bool | None:
            for operand in operands:
                value = operand(subject)
                if not value:
                    return value
            return True

        return conjunction

    def _or_else(self, e: OrElse) -> Condition:
        operands = [self.condition(operand) for operand in e.operands]

        def disjunction(subject: Subject) -> bool | None:
            for operand in operands:
                value = operand(subject)
                if value is not False:
                    return value
            return False

        return disjunction

    def _quantified(self, e: Quantified) -> Condition:
        get, condition = self.value(e.array), self._inside(e.variable).condition(e.condition)
        decisive = e.quantifier == "ANY"

        def quantified(subject: Subject) -> bool | None:
            array = get(subject)
            if array is ABSENT:
                return None
            result: bool | None = not decisive
            for element in array if is_array(array) else (array,):
                value = condition((subject, element))
                if value is decisive:
                    return decisive
                if value is None:
                    result = None
            return result

        return quantified


_CONDITIONS: dict[type, Callable[[Compiler, Any], Condition]] = {
    Literal: Compiler._literal,
    Attribute: Compiler._bare,
    Element: Compiler._bare,
    Call: Compiler._bare,
    Comparison: Compiler._comparison,
    Between: Compiler._between,
    In: Compiler._in,
    Like: Compiler._like,
    Exists: Compiler._exists,
    IsNull: Compiler._is_null,
    IsTruth: Compiler._is_truth,
    Not: Compiler._not,
    And: Compiler._and,
    Or: Compiler._or,
    AndThen: Compiler._and_then,
    OrElse: Compiler._or_else,
    Quantified: Compiler._quantified,
}

MIRRORED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
OPERATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operators.eq,
    "<>": operators.ne,
    "<": operators.lt,
    "<=": operators.le,
    ">": operators.gt,
    ">=": operators.ge,
}
_WHOLE = 2.0**53
"""Maximum absolute value up to which a whole float equals the whole number that it prints as."""

_ACCEPTED = {"=": (0,), "<>": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}


def _calling(function: Function, operands: list[Getter]) -> Getter:
    """Return a getter that calls a function which is not expanded to a simpler expression."""
    compute, takes_null = function.compute, function.takes_null
    assert compute is not None, f"{function.name} cannot be computed"
    if takes_null:
        return lambda subject: compute(*[operand(subject) for operand in operands])
    if len(operands) == 1:
        only = operands[0]
        return lambda subject: None if (value := only(subject)) is None else compute(value)

    def call(subject: Subject) -> Any:
        values = [operand(subject) for operand in operands]
        return None if None in values else compute(*values)

    return call


def _all(parts: list[Condition]) -> Condition:
    if len(parts) == 2:
        a, b = parts
        return lambda subject: a(subject) and b(subject)
    if len(parts) == 3:
        a, b, c = parts
        return lambda subject: a(subject) and b(subject) and c(subject)

    def all_of(subject: Subject) -> bool:
        for part in parts:  # noqa: SIM110 - a loop is faster than a generator
            if not part(subject):
                return False
        return True

    return all_of


def _any(parts: list[Condition]) -> Condition:
    def any_of(subject: Subject) -> bool:
        for part in parts:  # noqa: SIM110
            if part(subject):
                return True
        return False

    return any_of


def _both(first: Condition, second: Condition) -> Condition:
    def both(subject: Subject) -> bool | None:
        value = first(subject)
        if value is False:
            return False
        other = second(subject)
        if other is False:
            return False
        return value and other

    return both


def _compare_with_constant(operator: str, get: Getter, constant: Scalar) -> Condition:
    if isinstance(constant, int | Decimal) and not isinstance(constant, bool):
        return _compare_with_number(operator, get, constant)
    if isinstance(constant, str):
        compare = OPERATIONS[operator]
        return lambda subject: compare(value, constant) if isinstance(value := get(subject), str) else None
    test = _any_type_test(operator, constant)
    return lambda subject: test(get(subject))


def _any_type_test(operator: str, constant: Scalar) -> Callable[[Any], bool | None]:
    """Return the comparison of a value of any type with a constant, without fast paths."""
    accepted, order = _ACCEPTED[operator], exact.order

    def test(value: Any) -> bool | None:
        found = order(value, constant)
        return None if found is None else found in accepted

    return test


def _compare_with_number(operator: str, get: Getter, constant: int | Decimal) -> Condition:
    """Return a comparison with a number: fast for ints and floats (bounds of their type), else slow."""
    compare, slow = OPERATIONS[operator], _any_type_test(operator, constant)
    whole_floor, whole_ceiling = exact.whole_bounds(constant)
    real_floor, real_ceiling = exact.float_bounds(constant)
    whole: int | None
    real: float | None
    if operator in ("<", ">="):  # `x < constant` where `x < ceiling`
        whole, real = whole_ceiling, real_ceiling
    else:  # `x <= constant` where `x <= floor`
        whole, real = whole_floor, real_floor
    if operator in ("=", "<>"):
        whole = whole if whole_floor == whole_ceiling else None
        real = real if real_floor == real_ceiling else None

    def test(subject: Subject) -> bool | None:
        value = get(subject)
        kind = type(value)
        if kind is int:
            return compare(value, whole)
        if kind is float and value == value:
            return compare(value, real)
        return slow(value)

    return test


def _finder(constants: Sequence[Scalar]) -> Callable[[Any], bool | None]:
    """Return a function that tests whether a value equals one of the constants, by one set look-up."""
    strings = frozenset(c for c in constants if isinstance(c, str))
    booleans = frozenset(c for c in constants if isinstance(c, bool))
    numbers = frozenset(
        c for c in constants if isinstance(c, int | Decimal | Fraction) and not isinstance(c, bool)
    )
    mixed = None in constants or sum(map(bool, (strings, booleans, numbers))) > 1
    absent = None if mixed else False

    def find(value: Any) -> bool | None:
        kind = type(value)
        same_type: frozenset[Any]
        if kind is str:
            found, same_type = value in strings, strings
        elif kind is bool:
            found, same_type = value in booleans, booleans
        elif isinstance(value, int | float | Decimal | Fraction):
            if value != value:
                return None
            if isinstance(value, float) and not (value.is_integer() and abs(value) <= _WHOLE):
                value = Decimal(repr(float(value)))
            found, same_type = value in numbers, numbers
        elif isinstance(value, str):
            found, same_type = str(value) in strings, strings
        else:
            return None
        return True if found else absent if same_type else None

    return find
