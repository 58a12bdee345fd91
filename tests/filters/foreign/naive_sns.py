"""Naive filter policies of SNS, from the pages on filter policies in its developer guide.

Message attributes are a dict of name and (type, value): String, Number or String.Array, a list. A body is
parsed JSON. Where the documentation is silent, the policies of the tests do not look.
"""

from __future__ import annotations

import ipaddress
from decimal import Decimal
from typing import Any


def matches_attributes(policy: dict[str, Any], attributes: dict[str, tuple[str, Any]]) -> bool:
    """Match message attributes; without any, no policy with names matches ("Key matching")."""
    values = {
        name: value if type == "String.Array" else [value] for name, (type, value) in attributes.items()
    }
    return bool(attributes) and _matches(policy, lambda names: values.get(names[0], []), ())


def matches_body(policy: dict[str, Any], body: Any) -> bool:
    return (
        isinstance(body, dict)
        and bool(body)
        and _matches(policy, lambda names: list(leaves(body, names)), ())
    )


def leaves(value: Any, names: tuple[str, ...]) -> Any:
    """Yield the values at the end of a path; each element of an array is one."""
    if isinstance(value, list):
        for item in value:
            yield from leaves(item, names)
    elif names:
        if isinstance(value, dict) and names[0] in value:
            yield from leaves(value[names[0]], names[1:])
    elif not isinstance(value, dict):
        yield value


def _matches(policy: dict[str, Any], read: Any, names: tuple[str, ...]) -> bool:
    for name, wanted in policy.items():
        if name == "$or":
            if not any(_matches(item, read, names) for item in wanted):
                return False
        elif isinstance(wanted, dict):
            if not _matches(wanted, read, (*names, name)):
                return False
        elif not any(passes(test, read((*names, name))) for test in wanted):
            return False
    return True


def passes(test: Any, values: list[Any]) -> bool:
    if test == {"exists": False}:
        return not values
    return any(holds(test, value) for value in values)


def holds(test: Any, value: Any) -> bool:
    if not isinstance(test, dict):
        return equal(test, value)
    ((name, wanted),) = test.items()
    if name == "exists":
        return value is not None and value != ""
    if name == "anything-but":
        if isinstance(wanted, dict):
            return not holds(wanted, value)
        return not any(equal(item, value) for item in (wanted if isinstance(wanted, list) else [wanted]))
    if name == "numeric":
        return is_number(value) and all(
            ordered(operator, number(value), number(limit))
            for operator, limit in zip(wanted[::2], wanted[1::2], strict=True)
        )
    if not isinstance(value, str):
        return False
    if name == "cidr":
        try:
            return ipaddress.ip_address(value) in ipaddress.ip_network(wanted, strict=False)
        except ValueError:
            return False
    return {
        "prefix": value.startswith(wanted),
        "suffix": value.endswith(wanted),
        "equals-ignore-case": value.lower() == wanted.lower(),
    }[name]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def number(value: Any) -> Decimal:
    return Decimal(repr(value))


def equal(one: Any, other: Any) -> bool:
    if is_number(one) and is_number(other):
        return number(one) == number(other)
    return type(one) is type(other) and bool(one == other)


def ordered(operator: str, one: Decimal, other: Decimal) -> bool:
    return {
        "=": one == other,
        "<": one < other,
        "<=": one <= other,
        ">": one > other,
        ">=": one >= other,
    }[operator]
