"""Translation of an event pattern's syntax to the internal expression.

An array in an event stands for its elements. So every step of a pattern is a quantifier that must hold
for one element: a field's tests for one value, and all fields of an object for the same object.

A field that may be absent (``{"exists": false}``) makes this harder. event-ruler's rule: choose for
each field a value that passes, all from the same elements; a field may have none if there is none
*in the chosen elements*. If nothing is chosen inside of an array, because all fields of its objects
may be absent, then there must be no value in *any* element. Such an object is called optional
below. It matches in one of two ways: in an element that passes, at least one of its fields has a value;
or none of its fields has a value in any element.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fieldfare.filters import expression as ast
from fieldfare.filters.eventbridge.syntax import (
    AnythingBut,
    Cidr,
    Equals,
    EqualsIgnoreCase,
    Fields,
    Numeric,
    PatternExists,
    PatternValues,
    Prefix,
    Suffix,
    Test,
    Wildcard,
)
from fieldfare.filters.expression import Attribute, Call, Element, Expression, Like, Literal, Pattern, Wild

CONDITIONS_MAX = 6_000
"""Maximum conditions in the translation of a pattern; larger ones are rejected.

Only optional fields in deeply nested objects make a translation much larger than its pattern."""

STRINGS_ONLY = frozenset(
    {"id", "source", "specversion", "type", "subject", "time", "datacontenttype", "dataschema"}
)
"""The context attributes that CloudEvents defines: they are strings, so they need no quantifier."""


class TooComplexError(ValueError):
    """A pattern whose translation has more than ``CONDITIONS_MAX`` conditions or is nested too deeply."""


def translate(pattern: Fields) -> Expression:
    """Translate a pattern to an expression that is true for the events that match.

    Raises
    ------
    TooComplexError
        The expression has too many conditions or is nested too deeply.
    """
    expression = _Translator().object(pattern, _Place())
    level: list[Expression] = [expression]
    for _ in range(ast.DEPTH_MAX):
        level = [part for above in level for part in ast.parts_of(above)]
    if level:
        raise TooComplexError("the pattern is nested too deeply")
    return expression


@dataclass(frozen=True, slots=True)
class _Place:
    """A position in an event: its top, or a value.

    Attributes
    ----------
    value
        The value; None at the top.
    variables
        Names of elements in use.
    """

    value: Attribute | Element | None = None
    variables: tuple[str, ...] = ()

    def field(self, name: str) -> Attribute | Element:
        if self.value is None:
            return Attribute((name,))
        if isinstance(self.value, Attribute):
            return Attribute((*self.value.path, name))
        return Element(self.value.variable, (*self.value.path, name))

    def element(self, name: str) -> _Place:
        """Return the position of a field's element, with a new variable named like the field if possible."""
        variable = name if _WORD.fullmatch(name) else "value"
        while variable in self.variables:
            variable += "_"
        return _Place(Element(variable, ()), (*self.variables, variable))


_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class _Translator:
    def __init__(self) -> None:
        self.conditions = 0
        self.optional: dict[int, bool] = {}

    def count(self) -> None:
        self.conditions += 1
        if self.conditions > CONDITIONS_MAX:
            raise TooComplexError(f"the pattern is translated to more than {CONDITIONS_MAX:,} conditions")

    def any(self, at: _Place, name: str, condition: Callable[[_Place], Expression]) -> Expression:
        """Return a test whether a condition holds for a field, or for one element if it is an array."""
        self.count()
        field = at.field(name)
        if at.value is None and name in STRINGS_ONLY:
            return condition(_Place(field))
        element = at.element(name)
        assert isinstance(element.value, Element)
        return ast.Quantified("ANY", field, element.value.variable, condition(element))

    def object(self, fields: Fields, at: _Place) -> Expression:
        """Return a test whether all fields of an object match, and one of its alternatives."""
        parts = [self.field(name, inner, at) for name, inner in fields.members]
        if fields.alternatives:
            parts.append(_or([self.object(alternative, at) for alternative in fields.alternatives]))
        return _and(parts)

    def is_optional(self, inner: Fields | PatternValues) -> bool:
        """Return whether a field, or all fields of an object, may be absent."""
        if isinstance(inner, PatternValues):
            return _ABSENT in inner.tests
        known = self.optional.get(id(inner))
        if known is None:
            known = all(self.is_optional(below) for _, below in inner.members) and (
                not inner.alternatives or any(map(self.is_optional, inner.alternatives))
            )
            self.optional[id(inner)] = known
        return known

    def field(self, name: str, inner: Fields | PatternValues, at: _Place) -> Expression:
        if isinstance(inner, PatternValues):
            return self.values(name, inner, at)
        if not self.is_optional(inner):
            return self.any(at, name, lambda place: self.object(inner, place))
        if not _can_have_a_value(inner):
            return self.object_without_values(inner, lambda condition: self.any(at, name, condition))
        some = self.any(at, name, lambda place: self.object_with_a_value(inner, place, []))
        none = self.object_without_values(inner, lambda condition: self.any(at, name, condition))
        return _or([some, none])

    def values(self, name: str, values: PatternValues, at: _Place) -> Expression:
        tests = [test for test in values.tests if test != _ABSENT]
        ways = [self.any(at, name, lambda place: _any_test(tests, place))] if tests else []
        if len(tests) < len(values.tests):
            ways.append(_not_true(self.any(at, name, _is_value)))
        return _or(ways)

    def object_with_a_value(self, fields: Fields, at: _Place, others: list[Expression]) -> Expression:
        """Return a test whether an object matches and has a value in a field, or one of ``others`` holds."""
        if not self.is_optional(fields):
            return self.object(fields, at)
        parts = [self.field(name, inner, at) for name, inner in fields.members]
        found = [*others, *(self.has(name, inner, at) for name, inner in fields.members)]
        if not fields.alternatives:
            return _and([*parts, _or(found)])
        ways = [self.object_with_a_value(inner, at, found) for inner in fields.alternatives]
        return _and([*parts, _or(ways)])

    def has(self, name: str, inner: Fields | PatternValues, at: _Place) -> Expression:
        """Return a test whether a field that matches has a value, instead of being absent."""
        if isinstance(inner, PatternValues):
            return self.any(at, name, _is_value)
        if inner.alternatives:
            return self.any(at, name, lambda place: self.object_with_a_value(inner, place, []))
        return self.any(at, name, lambda place: _or([self.has(*member, place) for member in inner.members]))

    def object_without_values(self, fields: Fields, inside: _Inside) -> Expression:
        """Return a test whether no field of an optional object has a value in any element of outer arrays."""
        parts: list[Expression] = []
        for name, inner in fields.members:
            if isinstance(inner, PatternValues):
                parts.append(_not_true(inside(self.in_field(name, _is_value))))
            else:
                parts.append(self.object_without_values(inner, self.deeper(inside, name)))
        if fields.alternatives:
            optional = [inner for inner in fields.alternatives if self.is_optional(inner)]
            parts.append(_or([self.object_without_values(inner, inside) for inner in optional]))
        return _and(parts)

    def in_field(self, name: str, condition: _Condition) -> _Condition:
        return lambda place: self.any(place, name, condition)

    def deeper(self, inside: _Inside, name: str) -> _Inside:
        return lambda condition: inside(self.in_field(name, condition))


_Condition = Callable[[_Place], Expression]
_Inside = Callable[[_Condition], Expression]
"""Wraps a condition in the quantifiers that lead to an object."""

_ABSENT = PatternExists(False)


def _can_have_a_value(inner: Fields | PatternValues) -> bool:
    """Return whether a field, or an object, can match by a value instead of an absence."""
    if isinstance(inner, PatternValues):
        return any(test != _ABSENT for test in inner.tests)
    return any(_can_have_a_value(below) for _, below in inner.members) or any(
        map(_can_have_a_value, inner.alternatives)
    )


def _is_value(at: _Place) -> Expression:
    """Return a test whether there is a scalar value, the only kind that tests apply to."""
    assert at.value is not None
    is_scalar = Call("IS_SCALAR", (at.value,))
    return ast.And((ast.Exists(at.value), is_scalar)) if isinstance(at.value, Attribute) else is_scalar


def _any_test(tests: list[Test], at: _Place) -> Expression:
    value = at.value
    assert value is not None
    equal = [test for test in tests if isinstance(test, Equals)]
    constants = [test.value for test in equal if not _is_null(test) and not test.any_spelling]
    ways: list[Expression] = []
    if len(constants) == 1:
        ways.append(ast.Comparison("=", value, Literal(constants[0])))
    elif constants:
        ways.append(ast.In(value, tuple(map(Literal, constants))))
    if any(map(_is_null, equal)):
        null = ast.IsNull(value)
        ways.append(ast.And((ast.Exists(value), null)) if isinstance(value, Attribute) else null)
    for test in tests:
        if isinstance(test, Equals):
            if test.any_spelling:
                ways.append(Call("IN_CIDR", (value, Literal(test.value))))
        elif isinstance(test, PatternExists):
            ways.append(_is_value(at))
        elif isinstance(test, AnythingBut):
            ways.append(_and([_is_value(at), _not_true(any_excluded(test, value))]))
        else:
            ways.append(simple_test(test, value))
    return _or(ways)


def simple_test(test: Test, value: Expression) -> Expression:
    """Return a test of a value by its text, its number or its address."""
    return _TESTS[type(test)](test, value)


def any_excluded(test: AnythingBut, value: Expression) -> Expression:
    """Return a test whether a value is one of those that an anything-but excludes."""
    constants = [Literal(excluded.value) for excluded in test.tests if isinstance(excluded, Equals)]
    if constants:
        return ast.In(value, tuple(constants))
    return _or([simple_test(excluded, value) for excluded in test.tests])


def _is_null(test: Equals) -> bool:
    return test.value is None


def _text_test(function: str, pattern: Callable[[str], Pattern]) -> Callable[[Any, Expression], Expression]:
    def translated(test: Prefix | Suffix, value: Expression) -> Expression:
        if test.ignore_case:
            return Call(function, (value, Literal(test.text)))
        return Like(value, pattern(test.text))

    return translated


def _numeric(test: Numeric, value: Expression) -> Expression:
    return _and([ast.Comparison(operator, value, Literal(number)) for operator, number in test.comparisons])


_TESTS: dict[type, Callable[[Any, Expression], Expression]] = {
    EqualsIgnoreCase: lambda test, value: Call("EQUALS_IGNORE_CASE", (value, Literal(test.text))),
    Prefix: _text_test("STARTS_WITH_IGNORE_CASE", lambda text: (text, Wild.RUN) if text else (Wild.RUN,)),
    Suffix: _text_test("ENDS_WITH_IGNORE_CASE", lambda text: (Wild.RUN, text) if text else (Wild.RUN,)),
    Wildcard: lambda test, value: Like(value, test.pattern),
    Numeric: _numeric,
    Cidr: lambda test, value: Call("IN_CIDR", (value, Literal(test.block))),
}


def _and(parts: list[Expression]) -> Expression:
    return parts[0] if len(parts) == 1 else ast.And(tuple(parts))


def _or(parts: list[Expression]) -> Expression:
    return parts[0] if len(parts) == 1 else ast.Or(tuple(parts))


def _not_true(condition: Expression) -> Expression:
    return ast.Not(ast.IsTruth(condition, True))
