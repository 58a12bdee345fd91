"""Rules of Amazon EventBridge, as ``aws events list-rules`` and ``describe-rule`` print them."""

from __future__ import annotations

import json
from typing import Any

from fieldfare.filters.errors import FilterError
from fieldfare.filters.eventbridge.parser import parse_pattern
from fieldfare.filters.eventbridge.syntax import Fields, PatternExists, PatternValues
from fieldfare.filters.eventbridge.translate import TooComplexError, translate
from fieldfare.filters.foreign.documents import read_document
from fieldfare.filters.foreign.items import DocumentError, Item, Options, refusal

DISABLED = "DISABLED"


def convert_pattern(text: str, options: Options) -> tuple[str, str]:
    """Convert an event pattern: it stays as it is, apart from names that are elsewhere in events.

    Raises
    ------
    FilterError
        The pattern is invalid, or is not known to match the same events.
    """
    if options.names:
        text = _renamed(text, options)
    fields, warnings = parse_pattern(text)
    if warnings:
        raise FilterError(text, warnings)
    for name, _ in _members(fields):
        if name == "resources":
            hint = "put the list into the data: --map resources=data.resources"
            raise refusal("resources is a list, and no context attribute of an event is one", hint, text)
        if name != "data":
            try:
                Options().attribute(name)
            except ValueError as error:
                raise refusal(
                    error.args[0], f"put it into the data: --map '{name}=data.{name}'", text
                ) from None
    _refuse_twice(fields, text)
    if not options.plain_values:
        _refuse_absence(fields, text)
    try:
        translate(fields)
    except TooComplexError as error:
        raise refusal(str(error), "nest fewer objects in each other", text) from None
    return text, "eventbridge"


def read_rules(text: str, name: str, options: Options) -> list[Item]:
    """Read rules: the output of list-rules or describe-rule, a list of rules, or one pattern.

    Raises
    ------
    DocumentError
        The text is not JSON, or holds no rules.
    """
    document = read_document(text)
    if isinstance(document, dict) and isinstance(document.get("Name"), str):
        return [_item(document, "rule", options)]
    if isinstance(document, dict) and isinstance(document.get("Rules"), list):
        rules = document["Rules"]
    elif isinstance(document, list):
        rules = document
    elif isinstance(document, dict):
        return [Item(name, "", lambda: convert_pattern(text, options))]
    else:
        raise DocumentError("there are no rules: give the output of `aws events list-rules`")
    for index, rule in enumerate(rules):
        if not isinstance(rule, dict) or not isinstance(rule.get("Name"), str):
            raise DocumentError(f"Rules[{index}]: a rule is an object with a Name")
    return [_item(rule, f"Rules[{index}]", options) for index, rule in enumerate(rules)]


def _item(rule: dict[str, Any], place: str, options: Options) -> Item:
    pattern = rule.get("EventPattern")

    def convert() -> tuple[str, str]:
        if pattern is None:
            raise refusal("the rule has no EventPattern: a schedule is not a filter")
        if not isinstance(pattern, str | dict):
            raise refusal("EventPattern: this is JSON text")
        return convert_pattern(pattern if isinstance(pattern, str) else _text(pattern), options)

    skipped = "the rule is disabled" if rule.get("State") == DISABLED and not options.disabled else ""
    return Item(rule["Name"], place, convert, str(rule.get("EventBusName", "")), skipped)


def _text(document: Any) -> str:
    """Return JSON of a parsed document, with the digits of its numbers."""
    if isinstance(document, dict):
        return (
            "{" + ", ".join(f"{json.dumps(name)}: {_text(value)}" for name, value in document.items()) + "}"
        )
    if isinstance(document, list):
        return "[" + ", ".join(map(_text, document)) + "]"
    if document is None or isinstance(document, str | bool):
        return json.dumps(document)
    return str(document)


def _renamed(text: str, options: Options) -> str:
    """Return a pattern with names of the envelope moved to where events have them."""
    try:
        pattern = read_document(text)
    except DocumentError as error:
        raise refusal(str(error)) from None
    if not isinstance(pattern, dict):
        return text
    for name, path in options.names.items():
        if name not in pattern:
            continue
        tests = pattern.pop(name)
        *outer, last = ("detail", *path[1:]) if path[0] == "data" else path
        inside = pattern
        for step in outer:
            inside = inside.setdefault(step, {})
            if not isinstance(inside, dict):
                raise refusal(f"{name}: the pattern tests {step} itself", "", text)
        if not isinstance(last, str) or last in inside:
            raise refusal(f"{name}: the pattern also tests what is there", "", text)
        inside[last] = tests
    return _text(pattern)


def _members(fields: Fields) -> list[tuple[str, Fields | PatternValues]]:
    """Return the fields of an object, those in alternatives included."""
    return [*fields.members, *(pair for inner in fields.alternatives for pair in _members(inner))]


def _refuse_twice(fields: Fields, text: str) -> None:
    """Reject an object that is tested beside a $or and inside of it: must it be the same element?"""
    beside = {name for name, _ in fields.members}
    inside = {name for inner in fields.alternatives for name, _ in _members(inner)}
    for name in sorted(beside & inside):
        hint = "test its fields in one place"
        message = f"{name} is tested beside a $or and inside of it; elements of an array may differ"
        raise refusal(message, hint, text)
    for _, inner in _members(fields):
        if isinstance(inner, Fields):
            _refuse_twice(inner, text)
    for alternative in fields.alternatives:
        _refuse_twice(alternative, text)


def _refuse_absence(fields: Fields, text: str, depth: int = 0) -> None:
    """Reject an absent field beside others of a nested object: in the same element of an array, or in any?"""
    members = _members(fields)
    for name, inner in members:
        if isinstance(inner, Fields):
            _refuse_absence(inner, text, depth + 1)
        elif depth and len(members) > 1 and PatternExists(False) in inner.tests:
            message = (
                f"{name} may be absent beside other fields: in which elements of an array is not documented"
            )
            hint = "if the events have no arrays of objects there, pass --plain-values"
            raise refusal(message, hint, text)
