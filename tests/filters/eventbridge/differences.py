"""Intended differences between this dialect and event-ruler 2.1.0; docs/filter-languages.md explains each."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

CASES: list[tuple[str, Any, Any, bool, bool]] = [
    (
        "absence in lists",
        {"a": {"b": [{"exists": False}], "c": [1]}},
        {"a": [{"b": 1}, {"c": 1}]},
        True,
        False,
    ),
    ("lists in lists", {"a": [1]}, {"a": [[1, 2]]}, False, True),
    ("lists in lists", {"a": {"b": [1]}}, {"a": [[{"b": 1}]]}, False, True),
    ("dots in names", {"a.b": [1]}, {"a": {"b": 1}}, False, True),
    ("dots in names", {"a": {"b": [1]}}, {"a.b": 1}, False, True),
    ("context attributes", {"source": ["a"]}, {"source": ["a"]}, False, True),
    ("envelope", {"detail": {"a": [1]}}, {"data": {"a": 1}}, True, False),
    ("envelope", {"detail": {"a": [1]}}, {"detail": {"a": 1}}, False, True),
    (
        "objects named twice",
        {"a": {"b": [1]}, "$or": [{"a": {"c": [1]}}, {"d": [1]}]},
        {"a": [{"b": 1}, {"c": 1}]},
        True,
        False,
    ),
    ("large numbers", {"a": [{"numeric": [">", 0]}]}, '{"a": 9007199254740993}', True, False),
    ("large numbers", {"a": [9007199254740993]}, '{"a": 9007199254740993.0}', False, False),
    ("rounded numbers", {"a": [0.1]}, '{"a": 0.1000000000000000055}', True, False),
    ("case", {"a": [{"equals-ignore-case": "\U00010400"}]}, {"a": "\U00010428"}, True, False),
    ("case", {"a": [{"equals-ignore-case": "\U00010400"}]}, {"a": "??"}, False, True),
    ("case", {"a": [{"equals-ignore-case": "ǅ"}]}, {"a": "ǅ"}, True, False),
    ("quotes", {"a": [{"prefix": 'x"'}]}, {"a": "x"}, False, True),
    ("quotes", {"a": [{"suffix": '"x'}]}, {"a": "x"}, False, True),
    ("addresses as hexadecimal digits", {"a": [{"cidr": "::/0"}]}, {"a": "10.0.0.1"}, False, True),
    ("addresses as hexadecimal digits", {"a": [{"cidr": "16.0.0.0/4"}]}, {"a": 12}, False, True),
    ("IPv4 in IPv6", {"a": [{"cidr": "10.0.0.0/8"}]}, {"a": "::ffff:a00:1"}, False, True),
    ("spellings of IPv4", {"a": [{"cidr": "10.0.0.0/8"}]}, {"a": "10.0.0.01"}, False, True),
]
"""Reason, pattern, event, whether it matches here, and whether it matches in event-ruler."""

TAKEN_THERE = [
    ("$or as a name", {"$or": {"a": [1]}}),
    ("$or as a name", {"$or": ["a", "b"]}),
    ("$or as a name", {"$or": [{"prefix": "a"}, {"prefix": "b"}]}),
    ("empty lists", {"a": ["x", {"anything-but": {"prefix": []}}]}),
    ("text after the pattern", '{"a": [1]} and more'),
]
"""Patterns that event-ruler accepts and this dialect rejects."""

TAKEN_HERE = [
    ("single addresses", {"a": [{"cidr": "10.0.0.1/32"}]}),
    ("single addresses", {"a": [{"cidr": "::1/128"}]}),
    ("large numbers", '{"a": [{"numeric": ["=", 9007199254740993]}]}'),
    ("large numbers", '{"a": [{"anything-but": 9007199254740993}]}'),
]
"""Patterns that event-ruler rejects and this dialect accepts."""


def is_known(pattern: dict[str, Any], event: dict[str, Any]) -> bool:
    """Return whether a random pattern and event are subject to one of the differences in ``CASES``."""
    return any(
        (_is_absence(test) and _is_beside_lists(event, path))
        or (_is_block(test) and _reads_as_digits(event, path, test))
        for path, test in tests_of(pattern)
    )


def tests_of(pattern: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every test of a pattern, with the path of its field."""
    for name, inner in pattern.items():
        if name == "$or":
            for alternative in inner:
                yield from tests_of(alternative, path)
        elif isinstance(inner, dict):
            yield from tests_of(inner, (*path, name))
        else:
            for test in inner:
                yield (*path, name), test


def _is_absence(test: Any) -> bool:
    return test == {"exists": False}


def _is_beside_lists(event: Any, path: tuple[str, ...]) -> bool:
    """Return whether the path of a field goes through a list of several elements."""
    if len(path) < 2 or not isinstance(event, dict):
        return False
    value = event.get(path[0])
    if isinstance(value, list):
        return len(value) > 1 or any(_is_beside_lists(element, path[1:]) for element in value)
    return _is_beside_lists(value, path[1:])


def _is_block(test: Any) -> bool:
    return isinstance(test, dict) and "cidr" in test


def _reads_as_digits(event: Any, path: tuple[str, ...], test: Any) -> bool:
    """Return whether a field has a number, or an address of another IP version than the block."""
    version = ipaddress.ip_network(test["cidr"], strict=False).version
    for value in _values(event, path):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return True
        if isinstance(value, str) and (":" in value) != (version == 6):
            return True
    return False


def _values(value: Any, path: tuple[str, ...]) -> Iterator[Any]:
    if isinstance(value, list):
        for element in value:
            yield from _values(element, path)
    elif not path:
        yield value
    elif isinstance(value, dict) and path[0] in value:
        yield from _values(value[path[0]], path[1:])
