"""A naive evaluator of JMS selectors, from section 3.8.1 of JMS 2.0, and a printer of its trees.

A tree is nested tuples: ("cmp", operator, x, y), ("between", x, low, high, negated),
("in", name, [text, ...], negated), ("like", name, pattern, escape, negated), ("null", name, negated),
("not", c), ("and", c, d), ("or", c, d), ("flag", name), ("always", truth). A value is ("name", name),
("minus", name) or ("literal", value). None is unknown, and NULL.
"""

from __future__ import annotations

from typing import Any


def evaluate(tree: Any, message: dict[str, Any]) -> bool | None:
    kind, *parts = tree
    if kind == "cmp":
        return compare(parts[0], value(parts[1], message), value(parts[2], message))
    if kind == "between":
        x, low, high = (value(part, message) for part in parts[:3])
        if parts[3]:  # "age NOT BETWEEN 15 AND 19" is equivalent to "age < 15 OR age > 19"
            return either(compare("<", x, low), compare(">", x, high))
        return both(compare(">=", x, low), compare("<=", x, high))
    if kind == "in":
        found = message.get(parts[0])
        return None if found is None else (found in parts[1]) != parts[2]
    if kind == "like":
        found = message.get(parts[0])
        if found is None:
            return None
        return (isinstance(found, str) and fits(found, signs(parts[1], parts[2]))) != parts[3]
    if kind == "null":
        return (message.get(parts[0]) is None) != parts[1]
    if kind == "not":
        found = evaluate(parts[0], message)
        return None if found is None else not found
    if kind in ("and", "or"):
        return (both if kind == "and" else either)(*(evaluate(part, message) for part in parts))
    if kind == "flag":
        found = message.get(parts[0])
        return found if isinstance(found, bool) else None
    assert kind == "always"
    return bool(parts[0])


def both(x: bool | None, y: bool | None) -> bool | None:
    return False if x is False or y is False else None if x is None or y is None else True


def either(x: bool | None, y: bool | None) -> bool | None:
    return True if x is True or y is True else None if x is None or y is None else False


def value(tree: Any, message: dict[str, Any]) -> Any:
    kind, part = tree
    if kind == "literal":
        return part
    found = message.get(part)
    if kind == "minus" and found is not None:
        return -found if kind_of(found) == "number" else object()  # no type has it
    return found


def kind_of(x: Any) -> str:
    if isinstance(x, bool):
        return "boolean"
    return "string" if isinstance(x, str) else "number" if isinstance(x, int | float) else "none"


def compare(operator: str, x: Any, y: Any) -> bool | None:
    if x is None or y is None:
        return None
    if kind_of(x) != kind_of(y) or kind_of(x) == "none":
        return False  # "the value of the operation is false"
    if operator in ("=", "<>"):
        return (x == y) == (operator == "=")
    if kind_of(x) != "number":
        return False  # "restricted to = and <>"
    return bool({"<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y}[operator])


def signs(pattern: str, escape: str | None) -> list[tuple[str, bool]]:
    """Characters of a pattern, and whether each is a wildcard."""
    found: list[tuple[str, bool]] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            found.append((next(characters), False))
        else:
            found.append((character, character in "%_"))
    return found


def fits(text: str, pattern: list[tuple[str, bool]]) -> bool:
    if not pattern:
        return not text
    (first, wild), *rest = pattern
    if wild and first == "%":
        return any(fits(text[skipped:], rest) for skipped in range(len(text) + 1))
    return bool(text) and (wild or text[0] == first) and fits(text[1:], rest)


def printed(tree: Any) -> str:
    kind, *parts = tree
    if kind == "cmp":
        return f"{printed(parts[1])} {parts[0]} {printed(parts[2])}"
    if kind == "between":
        low, high = printed(parts[1]), printed(parts[2])
        return f"{printed(parts[0])} {'not ' * parts[3]}BETWEEN {low} AND {high}"
    if kind == "in":
        items = ", ".join(quoted(text) for text in parts[1])
        return f"{parts[0]} {'NOT ' * parts[2]}In ({items})"
    if kind == "like":
        ending = f" ESCAPE {quoted(parts[2])}" if parts[2] else ""
        return f"{parts[0]} {'NOT ' * parts[3]}LIKE {quoted(parts[1])}{ending}"
    if kind == "null":
        return f"{parts[0]} IS {'NOT ' * parts[1]}NULL"
    if kind == "not":
        return f"NOT ({printed(parts[0])})"
    if kind in ("and", "or"):
        return f"({printed(parts[0])}) {kind.upper()} ({printed(parts[1])})"
    if kind == "minus":
        return f"-{parts[0]}"
    if kind in ("flag", "name"):
        return str(parts[0])
    if kind == "always":
        return "TRUE" if parts[0] else "FALSE"
    found = parts[0]
    if isinstance(found, bool):
        return str(found).lower()
    return quoted(found) if isinstance(found, str) else repr(found)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
