"""Subscriptions of Amazon SNS with their filter policies, as ``get-subscription-attributes`` prints them.

A policy resembles an event pattern, whose parser reads its tests. But each field is tested by itself,
``exists`` wants a value that is neither null nor empty, and a message without attributes matches no policy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from fieldfare.filters.eventbridge.parser import OR, RESERVED_IN_OR, PatternParser
from fieldfare.filters.eventbridge.syntax import (
    AnythingBut,
    Equals,
    PatternExists,
    Test,
)
from fieldfare.filters.eventbridge.translate import any_excluded, simple_test
from fieldfare.filters.expression import (
    Attribute,
    Call,
    Comparison,
    Element,
    Exists,
    Expression,
    IsNull,
    IsTruth,
    Literal,
    Not,
    Quantified,
)
from fieldfare.filters.foreign.documents import read_document
from fieldfare.filters.foreign.items import DocumentError, Item, Options, refusal
from fieldfare.filters.help.conversion import conjunction, disjunction, sql_text
from fieldfare.filters.json_text import JsonValue, read_json, shown

ATTRIBUTES, BODY = "MessageAttributes", "MessageBody"
NUMBER_MAX = 10**9
"""Maximum magnitude of a number in SNS."""
FRACTION_DIGITS_MAX = 5
"""Maximum digits of a number after the point that SNS compares."""
_TESTS = ("prefix", "suffix", "equals-ignore-case", "anything-but", "numeric", "cidr", "exists")


def convert_policy(text: str, options: Options) -> tuple[str, str]:
    """Convert a filter policy; its scope is that of the options.

    Raises
    ------
    FilterError
        The policy is invalid, or is not known to match the same messages.
    """
    document = read_json(text)
    if document.kind == "object" and not document.value:
        return "TRUE", "sql"
    return sql_text(_Policy(text, options).condition(document), text), "sql"


def read_subscriptions(text: str, name: str, options: Options) -> list[Item]:
    """Read one or several outputs of ``get-subscription-attributes``, or one policy.

    Raises
    ------
    DocumentError
        The text is not JSON, or holds no subscriptions.
    """
    document = read_document(text)
    if isinstance(document, dict) and isinstance(document.get("Subscriptions"), list):
        document = document["Subscriptions"]
    if isinstance(document, list):
        return [_item(found, f"[{index}]", options) for index, found in enumerate(document)]
    if isinstance(document, dict) and _is_subscription(document):
        return [_item(document, "Attributes", options)]
    if isinstance(document, dict):
        return [Item(name, "", lambda: convert_policy(text, options))]
    raise DocumentError("there are no subscriptions: give outputs of `aws sns get-subscription-attributes`")


def _is_subscription(document: dict[str, Any]) -> bool:
    attributes = document.get("Attributes", document)
    return isinstance(attributes, dict) and isinstance(attributes.get("SubscriptionArn"), str)


def _item(found: Any, place: str, options: Options) -> Item:
    if not isinstance(found, dict) or not _is_subscription(found):
        raise DocumentError(f"{place}: a subscription is an object of Attributes with a SubscriptionArn")
    attributes = found.get("Attributes", found)
    policy, arn = attributes.get("FilterPolicy"), attributes["SubscriptionArn"]
    topic = str(attributes.get("TopicArn", ""))

    def convert() -> tuple[str, str]:
        if "FilterPolicy" not in attributes and "Owner" not in attributes:
            hint = "list-subscriptions has no policies: use get-subscription-attributes"
            raise refusal("the subscription's attributes are not complete", hint)
        if policy is None:
            return "TRUE", "sql"
        if not isinstance(policy, str):
            raise refusal("FilterPolicy: this is JSON text")
        scope = attributes.get("FilterPolicyScope", options.scope)
        return convert_policy(policy, replace(options, scope=scope))

    name = arn.rpartition(":")[2]
    return Item(f"{topic.rpartition(':')[2]}:{name}" if topic else name, place, convert, topic)


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a message: the object that has it, and the names that lead to it."""

    object: Attribute | None
    names: tuple[str, ...]


class _Policy:
    def __init__(self, text: str, options: Options) -> None:
        scope = options.scope or ATTRIBUTES
        if scope not in (ATTRIBUTES, BODY):
            raise refusal(f"the scope of a policy is {ATTRIBUTES} or {BODY}, not {scope!r}", "", text)
        self.text = text
        self.options = options
        self.in_body = scope == BODY
        self.parser = PatternParser(text)
        self.record = self.parser.record
        self.body = Attribute(options.body)

    def condition(self, document: JsonValue) -> Expression:
        """Return a condition that is true for the messages that the policy matches."""
        if document.kind != "object":
            self.record(document, "a filter policy is an object")
            self.parser.findings.refuse()
        found = self.fields(document, ())
        self.parser.findings.refuse()
        if self.matches_nothing(document):
            return conjunction([found, *self.has_something()])
        return found

    def has_something(self) -> list[Expression]:
        """Return tests that a message has attributes, or that its body is an object with members."""
        place = self.body.path if self.in_body else self.options.at
        if not place or (self.options.names and not self.in_body):
            hint = "keep the attributes in an object: --at data.attributes, without --map"
            message = "the policy matches a message without the attribute, but not one without attributes"
            raise refusal(f"{message}; context attributes do not tell them apart", hint, self.text)
        count = Call("CARDINALITY", (Attribute(place),))
        return [Comparison(">", count, Literal(0)), Not(Exists(Attribute((*place, 0))))]

    def fields(self, value: JsonValue, names: tuple[str, ...], *, inside_or: bool = False) -> Expression:
        """Return a condition for the fields of an object: all of them match, and one of its alternatives."""
        if not value.value:
            self.record(value, "an object of a policy cannot be empty")
        if names and len(value.value) > 1 and not self.options.plain_values:
            hint = "if the messages have no arrays of objects there, pass --plain-values"
            message = (
                "several fields of an object: whether one element of an array has them is not documented"
            )
            self.record(value, message, hint)
        conditions = []
        for name, inner in value.value:
            if name.value == OR:
                conditions.append(self.alternatives(inner, names))
                continue
            if inside_or and name.value in RESERVED_IN_OR:
                self.record(name, f"inside $or no field can be named {name.value}")
            if "." in name.value and self.in_body:
                message = f"{shown(name.value)} is a name with a dot; SNS does not document how it is found"
                self.record(name, message)
            if inner.kind == "object":
                if not self.in_body:
                    hint = f"policies over {ATTRIBUTES} have no nested objects"
                    self.record(inner, f"the values of {shown(name.value)} must be in a list", hint)
                else:
                    conditions.append(self.fields(inner, (*names, name.value), inside_or=inside_or))
            elif inner.kind == "array":
                conditions.append(self.values(name, inner, names))
            else:
                self.record(inner, f"the values of {shown(name.value)} must be in a list")
        return conjunction(conditions)

    def alternatives(self, value: JsonValue, names: tuple[str, ...]) -> Expression:
        items = value.value if value.kind == "array" else []
        if len(items) < 2 or any(item.kind != "object" for item in items):
            self.record(value, "$or takes a list of at least two objects")
            return Literal(False)
        return disjunction([self.fields(item, names, inside_or=True) for item in items])

    def values(self, name: JsonValue, value: JsonValue, names: tuple[str, ...]) -> Expression:
        """Return a condition for one field: one of its values or tests holds for a value of a message."""
        try:
            field = self.field(name.value, names)
        except ValueError as error:
            self.record(name, *error.args)
            return Literal(False)
        self.check(value, may_be_array=field.object is not None)
        tests = self.parser.values(value).tests
        conditions = []
        some = [test for test in tests if test != PatternExists(False)]
        if some:
            conditions.append(self.any(field, some))
        if len(some) < len(tests):
            conditions.append(self.none(field))
        return disjunction(conditions)

    def field(self, name: str, names: tuple[str, ...]) -> _Field:
        if self.in_body:
            return _Field(self.body, (*names, name))
        *outer, last = self.options.attribute(name).path
        return _Field(Attribute(tuple(outer)) if outer else None, (str(last),))

    def check(self, values: JsonValue, *, may_be_array: bool) -> None:
        """Record tests that SNS does not have, or whose meaning it does not document."""
        for item in values.value:
            if item.kind == "number":
                self.check_number(item)
            if item.kind != "object" or len(item.value) != 1:
                continue
            name, inner = item.value[0]
            if name.value not in _TESTS:
                self.record(name, f"SNS has no test {shown(name.value)}", f"there are {', '.join(_TESTS)}")
            elif name.value == "numeric" and inner.kind == "array":
                for number in inner.value:
                    self.check_number(number)
            elif name.value == "equals-ignore-case" and inner.kind == "string" and not inner.value.isascii():
                self.record(inner, "SNS does not document the case of letters beyond ASCII")
            elif name.value in ("prefix", "suffix") and inner.kind == "object":
                self.record(inner, f"{name.value} takes a string")
            elif name.value == "anything-but":
                self.check_anything_but(inner)
                if may_be_array and not self.options.plain_values:
                    hint = "if the messages have no arrays and no nulls there, pass --plain-values"
                    message = (
                        "anything-but: SNS's documentation has had two rules for arrays, and none for null"
                    )
                    self.record(item, message, hint)

    def check_anything_but(self, inner: JsonValue) -> None:
        if inner.kind == "object" and [name.value for name, _ in inner.value] != ["prefix"]:
            self.record(inner, "anything-but takes values or a prefix")
        for item in inner.value if inner.kind == "array" else [inner]:
            self.check_number(item)

    def check_number(self, item: JsonValue) -> None:
        if item.kind != "number":
            return
        number = Decimal(item.value)
        if abs(number) > NUMBER_MAX or number.normalize().as_tuple().exponent < -FRACTION_DIGITS_MAX:  # type: ignore[operator]
            message = (
                f"SNS compares numbers up to 10**9, with up to {FRACTION_DIGITS_MAX} digits after the point"
            )
            self.record(item, message)

    def any(self, field: _Field, tests: list[Test]) -> Expression:
        """Return a test whether one of the tests holds for a value of a field."""
        if field.object is None:
            return disjunction([self.test(test, Attribute(field.names)) for test in tests])
        return _quantified(field, lambda value: disjunction([self.test(test, value) for test in tests]))

    def none(self, field: _Field) -> Expression:
        """Return a test whether a field has no value."""
        if field.object is None:
            return IsNull(Attribute(field.names))
        has = _quantified(field, lambda value: Call("IS_SCALAR", (value,)))
        return Not(IsTruth(has, True))

    def test(self, test: Test, value: Attribute | Element) -> Expression:
        if isinstance(test, Equals):
            if test.value is not None:
                return Comparison("=", value, Literal(test.value))
            return IsNull(value) if isinstance(value, Element) else Literal(False)
        if isinstance(test, PatternExists):
            return conjunction([*_is_value(value), Not(IsTruth(Comparison("=", value, Literal("")), True))])
        if isinstance(test, AnythingBut):
            return conjunction([*_is_value(value), Not(IsTruth(any_excluded(test, value), True))])
        return simple_test(test, value)

    def matches_nothing(self, value: JsonValue) -> bool:
        """Return whether a policy matches where all of its fields are absent."""
        return all(
            self.matches_nothing(inner)
            if inner.kind == "object"
            else any(
                self.matches_nothing(item) if name.value == OR else _is_absence(item) for item in inner.value
            )
            for name, inner in value.value
        )


def _is_absence(item: JsonValue) -> bool:
    return item.kind == "object" and any(
        name.value == "exists" and inner.value is False for name, inner in item.value
    )


def _is_value(value: Attribute | Element) -> list[Expression]:
    """Return tests whether there is a string, a number or a boolean."""
    is_there: list[Expression] = [Not(IsNull(value))]
    return [Call("IS_SCALAR", (value,)), *is_there] if isinstance(value, Element) else is_there


def _quantified(field: _Field, condition: Callable[[Element], Expression]) -> Expression:
    """Return a test whether a condition holds for a value of a field, or for an element of an array."""
    assert field.object is not None
    variables: list[str] = []
    for name in field.names:
        variable = name if name.isascii() and name.isidentifier() else "value"
        while variable in variables:
            variable += "_"
        variables.append(variable)
    found: Expression = condition(Element(variables[-1]))
    for number in range(len(variables) - 1, 0, -1):
        outer = Element(variables[number - 1], (field.names[number],))
        found = Quantified("ANY", outer, variables[number], found)
    first = Attribute((*field.object.path, field.names[0]))
    return Quantified("ANY", first, variables[0], found)
