"""The ``subscriptions`` dialect: the filters of CloudEvents' Subscriptions API, version 1.

``exact prefix suffix all any not`` and ``sql`` (or ``cesql``), as JSON: one filter, or a list of
filters which must all match. They read context attributes only, and compare an attribute as its string
in the CloudEvents type system: 5 as ``5``, true as ``true``. A filter is true or false, never unknown:
a filter on an attribute that an event does not have is false.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from fieldfare.filters.cesql import syntax
from fieldfare.filters.cesql.parser import parse_cesql
from fieldfare.filters.cesql.translate import translate as translate_cesql
from fieldfare.filters.cesql.types import result_type
from fieldfare.filters.cesql.values import INFINITIES
from fieldfare.filters.cesql.values import CesqlType as CesqlType
from fieldfare.filters.errors import FilterError, Mistake, Problem, nearest, problem_at
from fieldfare.filters.expression import (
    DEPTH_MAX,
    And,
    Attribute,
    Call,
    Comparison,
    Expression,
    In,
    IsTruth,
    Like,
    Literal,
    Not,
    Or,
    Pattern,
    Wild,
    parts_of,
)
from fieldfare.filters.functions.cesql import with_text
from fieldfare.filters.json_text import Findings, JsonValue, place_in_string, read_json, shown
from fieldfare.filters.patterns import matcher_of

Parsed = tuple[Expression, tuple[Problem, ...]]
"""An expression, and warnings about text that is probably not intended."""

_EVERYTHING = Literal(True)
_INVALID = Literal(False)
"""Placeholder for a filter that could not be parsed; its problem is recorded."""


def parse_subscriptions(text: str) -> Parsed:
    """Parse a filter of the Subscriptions API; return its expression and warnings.

    Raises
    ------
    FilterError
        The filter is invalid; the problems are in the order of the text.
    """
    if not text.strip():
        return _EVERYTHING, ()
    document = read_json(text)
    parser = _SubscriptionsParser(text)
    expression = parser.document(document)
    parser.findings.refuse()
    level = [expression]
    for _ in range(DEPTH_MAX):
        level = [part for above in level for part in parts_of(above)]
    if level:
        message = f"the filter is nested too deeply, at most {DEPTH_MAX} levels are allowed"
        raise FilterError(text, [Problem(message, 1, 1, "", 0)])
    return expression, tuple(parser.warnings)


class _SubscriptionsParser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.findings = Findings(text)
        self.warnings: list[Problem] = []

    def record(self, value: JsonValue, message: str, hint: str = "") -> None:
        self.findings.add(Mistake(value.start, value.end, message, hint))

    def document(self, value: JsonValue) -> Expression:
        if value.kind == "null" or value.value in ([], ()):
            return _EVERYTHING
        if value.kind == "array":
            return _and([self.filter(item) for item in value.value])
        return self.filter(value)

    def filter(self, value: JsonValue) -> Expression:
        if value.kind != "object":
            hint = 'as in {"exact": {"type": "com.example.order"}}'
            self.record(value, f"a filter is an object, not {value.kind_text()}", hint)
            return _INVALID
        if len(value.value) != 1:
            hint = f"there are {', '.join(_DIALECTS)}"
            if value.value:
                hint = "write a list of filters, or all: [...]"
            message = f"a filter is an object with one name, this has {len(value.value)}"
            self.record(value, message, hint)
            return _INVALID
        name, inner = value.value[0]
        read = _DIALECTS.get(name.value)
        if read is None:
            guess = nearest(name.value, [known.upper() for known in _DIALECTS]).lower()
            hint = f"did you mean {guess}?" if guess else f"there are {', '.join(_DIALECTS)}"
            self.record(name, f"there is no filter dialect {shown(name.value)}", hint)
            return _INVALID
        return read(self, inner)

    def exact(self, value: JsonValue) -> Expression:
        return self.attributes(value, "exact", _equal)

    def prefix(self, value: JsonValue) -> Expression:
        return self.attributes(value, "prefix", lambda name, text: _like(name, (text, Wild.RUN)))

    def suffix(self, value: JsonValue) -> Expression:
        return self.attributes(value, "suffix", lambda name, text: _like(name, (Wild.RUN, text)))

    def attributes(
        self, value: JsonValue, dialect: str, test: Callable[[Attribute, str], Expression]
    ) -> Expression:
        """Parse an object of attributes and strings: a test of each attribute, all of which must hold."""
        if value.kind != "object" or not value.value:
            found = "an empty one" if value.kind == "object" else value.kind_text()
            hint = f'as in {{"{dialect}": {{"type": "com.example"}}}}'
            self.record(value, f"{dialect} takes an object of attributes and strings, not {found}", hint)
            return _INVALID
        parts = []
        for name, wanted in value.value:
            self.check_name(name)
            if wanted.kind != "string":
                written = self.text[wanted.start : wanted.end]
                scalar = wanted.kind in ("number", "boolean")
                hint = f'write "{written}": attributes are compared as strings' if scalar else ""
                self.record(wanted, f"{dialect} compares with a string, not {wanted.kind_text()}", hint)
            elif not wanted.value:
                hint = 'to test that an attribute is there, write {"sql": "EXISTS subject"}'
                self.record(wanted, f"{dialect} takes no empty string", hint)
            else:
                parts.append(test(Attribute((name.value,)), wanted.value))
        return _and(parts) if parts else _INVALID

    def check_name(self, name: JsonValue) -> None:
        if name.value == "data" or name.value.startswith("data."):
            hint = "the sql dialect sees the data too: data.price > 5"
            self.record(name, "these filters see context attributes, not the data", hint)
        elif not name.value:
            self.record(name, "the name of an attribute cannot be empty")
        elif not _NAME.fullmatch(name.value):
            lower = name.value.lower()
            hint = f"did you mean {lower}?" if _NAME.fullmatch(lower) else ""
            message = (
                f"{shown(name.value)} names no context attribute: these have lower-case letters and digits"
            )
            self.record(name, message, hint)

    def all(self, value: JsonValue) -> Expression:
        return _and(self.nested(value, "all"))

    def any(self, value: JsonValue) -> Expression:
        parts = self.nested(value, "any")
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def nested(self, value: JsonValue, dialect: str) -> list[Expression]:
        if value.kind != "array" or not value.value:
            found = "an empty one" if value.kind == "array" else value.kind_text()
            hint = "put the filter in brackets" if value.kind == "object" else ""
            self.record(value, f"{dialect} takes a list of filters, not {found}", hint)
            return [_INVALID]
        return [self.filter(item) for item in value.value]

    def negation(self, value: JsonValue) -> Expression:
        if value.kind == "array":
            hint = 'write {"not": {"all": [...]}} or {"not": {"any": [...]}}'
            self.record(value, "not takes one filter, not a list", hint)
            return _INVALID
        return Not(_decided(self.filter(value)))

    def cesql(self, value: JsonValue) -> Expression:
        """Parse a CESQL expression; a result of another type is cast to a boolean."""
        if value.kind != "string":
            self.record(value, f"sql takes a string, a CESQL expression, not {value.kind_text()}")
            return _INVALID
        text = value.value
        if not text.strip():
            self.record(value, "a CESQL expression cannot be empty", "write TRUE to match every event")
            return _INVALID
        try:
            node, warnings = parse_cesql(text)
            if result_type(node) is not CesqlType.BOOLEAN:
                node = syntax.CesqlCall("BOOL", (node,))
                warnings = tuple(warning for warning in warnings if warning.length)
            expression = translate_cesql(text, node)
        except FilterError as error:
            for problem in error.problems:
                start, end = _place(self.text, value, problem)
                self.findings.add(Mistake(start, end, problem.message, problem.hint))
            return _INVALID
        for warning in warnings:
            place = _place(self.text, value, warning)
            self.warnings.append(problem_at(self.text, *place, warning.message, warning.hint))
        return expression


_DIALECTS: dict[str, Callable[[_SubscriptionsParser, JsonValue], Expression]] = {
    "exact": _SubscriptionsParser.exact,
    "prefix": _SubscriptionsParser.prefix,
    "suffix": _SubscriptionsParser.suffix,
    "all": _SubscriptionsParser.all,
    "any": _SubscriptionsParser.any,
    "not": _SubscriptionsParser.negation,
    "sql": _SubscriptionsParser.cesql,
    "cesql": _SubscriptionsParser.cesql,
}

_NAME = re.compile("[a-z0-9]+")
_NUMERIC = frozenset("-.0123456789")
_WORDS = ("true", "false", *INFINITIES)


def _equal(attribute: Attribute, text: str) -> Expression:
    values = with_text(text)
    if values is None:
        return Comparison("=", Call("CESQL_STRING", (attribute,)), Literal(text))
    if len(values) == 1:
        return Comparison("=", attribute, Literal(values[0]))
    return In(attribute, tuple(map(Literal, values)))


def _like(attribute: Attribute, pattern: Pattern) -> Expression:
    """Return a test of the attribute against a pattern.

    If no number or boolean could match as a string, the test is on the attribute itself, which the index
    serves best.
    """
    texts = [part for part in pattern if isinstance(part, str)]
    if all(set(text) <= _NUMERIC for text in texts) or any(map(matcher_of(pattern), _WORDS)):
        return Like(Call("CESQL_STRING", (attribute,)), pattern)
    return Like(attribute, pattern)


def _decided(condition: Expression) -> Expression:
    """Return a condition that is false where the given one is unknown."""
    return condition if isinstance(condition, Not | Literal | IsTruth) else IsTruth(condition, True)


def _and(parts: list[Expression]) -> Expression:
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _place(text: str, string: JsonValue, problem: Problem) -> tuple[int, int]:
    """Return (start, end) in the complete text of a problem in a string's content."""
    if not problem.length:
        return string.start, string.end
    lines = string.value.split("\n")
    index = sum(len(line) + 1 for line in lines[: problem.line - 1]) + problem.column - 1
    start = place_in_string(text, string, index)
    return start, max(start + 1, place_in_string(text, string, index + problem.length))
