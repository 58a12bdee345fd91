"""A naive interpreter of event patterns, from docs/filter-languages.md and EventBridge's documentation.

A pattern and an event are parsed JSON. First every ``$or`` is expanded to patterns without it; the event must
match one of these.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

Tree = list[tuple[str, Any]]
"""A pattern without ``$or``: pairs of name and Tree, or of name and list of tests."""

ENVELOPE = {"detail": "data", "detail-type": "type"}
STRINGS_ONLY = {"id", "source", "specversion", "type", "subject", "time", "datacontenttype", "dataschema"}
ABSENT = {"exists": False}


def matches(pattern: dict[str, Any], event: dict[str, Any]) -> bool:
    shown = {name: None if name in STRINGS_ONLY and isinstance(v, list) else v for name, v in event.items()}
    lists = {name for name in STRINGS_ONLY if isinstance(event.get(name), list)}
    for name in lists:
        del shown[name]
    for tree in branches(pattern):
        tree = [(ENVELOPE.get(name, name), inner) for name, inner in tree]
        if all(outcome(inner, elements(shown, name)) for name, inner in tree):
            return True
    return False


def branches(pattern: dict[str, Any]) -> Iterator[Tree]:
    """Yield the pattern without ``$or``, once for each choice of alternatives."""
    choices: list[list[Tree]] = []
    for name, inner in pattern.items():
        if name == "$or":
            choices.append([tree for alternative in inner for tree in branches(alternative)])
        elif isinstance(inner, dict):
            choices.append([[(name, tree)] for tree in branches(inner)])
        else:
            choices.append([[(name, ("tests", inner))]])
    for chosen in itertools.product(*choices):
        yield [pair for tree in chosen for pair in tree]


def elements(value: Any, name: str) -> list[Any]:
    """Return a member's values: the elements of a list, or the one value, or none."""
    if not isinstance(value, dict) or name not in value:
        return []
    found = value[name]
    return list(found) if isinstance(found, list) else [found]


def outcome(inner: Any, values: list[Any]) -> str:
    """Return how a field matches: "value" or "absence"; "" if it does not."""
    if isinstance(inner, tuple):
        tests = inner[1]
        scalars = [value for value in values if not isinstance(value, list | dict)]
        if any(holds(test, value) for test in tests for value in scalars):
            return "value"
        return "absence" if ABSENT in tests and not scalars else ""
    for value in values:
        found = [outcome(below, elements(value, name)) for name, below in inner]
        if all(found) and "value" in found:
            return "value"
    return "absence" if nothing_is_there(inner, values) else ""


def nothing_is_there(inner: Any, values: list[Any]) -> bool:
    """Return whether all fields may be absent, and are absent in every element."""
    if isinstance(inner, tuple):
        return ABSENT in inner[1] and all(isinstance(value, list | dict) for value in values)
    return all(
        nothing_is_there(below, [found for value in values for found in elements(value, name)])
        for name, below in inner
    )


def holds(test: Any, value: Any) -> bool:
    """Return whether a test holds for a string, number, boolean or null."""
    if not isinstance(test, dict):
        return equal(test, value) or same_ipv6(test, value)
    ((name, argument),) = test.items()
    if name == "exists":
        return bool(argument)
    if name == "anything-but":
        if isinstance(argument, dict):
            ((kind, texts),) = argument.items()
            texts = texts if isinstance(texts, list) else [texts]
            return not any(holds({kind: text}, value) for text in texts)
        return not any(
            equal(other, value) for other in (argument if isinstance(argument, list) else [argument])
        )
    if name == "numeric":
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            return False
        pairs = zip(argument[::2], argument[1::2], strict=True)
        return all(compared(operator, exact(value), exact(bound)) for operator, bound in pairs)
    if not isinstance(value, str):
        return False
    if name == "cidr":
        return in_block(argument, value)
    return fits(name, argument, value)


def fits(name: str, argument: Any, value: str) -> bool:
    if isinstance(argument, dict):
        pattern = ignoring_case(argument["equals-ignore-case"])
    elif name == "equals-ignore-case":
        pattern = ignoring_case(argument)
    elif name == "wildcard":
        pieces = re.findall(r"\\(.)|(\*)|(.)", argument, re.DOTALL)
        pattern = "".join(".*" if star else re.escape(escaped or plain) for escaped, star, plain in pieces)
    else:
        pattern = re.escape(argument)
    if name == "prefix":
        return re.match(pattern, value, re.DOTALL) is not None
    if name == "suffix":
        return re.search(f"(?:{pattern})\\Z", value, re.DOTALL) is not None
    return re.fullmatch(pattern, value, re.DOTALL) is not None


def ignoring_case(text: str) -> str:
    return "".join("(?:" + "|".join(map(re.escape, (c, c.lower(), c.upper()))) + ")" for c in text)


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, str) or isinstance(other, str):
        return type(one) is type(other) and one == other
    return exact(one) == exact(other)


def exact(number: Any) -> Decimal:
    return Decimal(repr(number)) if isinstance(number, float) else Decimal(number)


def compared(operator: str, value: Decimal, bound: Decimal) -> bool:
    return {
        "=": value == bound,
        "<": value < bound,
        "<=": value <= bound,
        ">": value > bound,
        ">=": value >= bound,
    }[operator]


def in_block(block: str, value: str) -> bool:
    try:
        return "%" not in value and ipaddress.ip_address(value) in ipaddress.ip_network(block, strict=False)
    except ValueError:
        return False


def same_ipv6(one: Any, other: Any) -> bool:
    """Return whether two texts are the same IPv6 address, in any spelling."""
    if not isinstance(one, str) or not isinstance(other, str) or "." in one or "%" in one + other:
        return False
    try:
        return ipaddress.IPv6Address(one) == ipaddress.IPv6Address(other)
    except ValueError:
        return False
