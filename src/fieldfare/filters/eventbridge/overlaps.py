"""A field that a pattern names beside a ``$or`` and again inside of it.

event-ruler lets the later one win, or refuses it, as the machine is configured. Neither is what a
reader would expect (that both must hold), so here it is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from fieldfare.filters.errors import Mistake
from fieldfare.filters.json_text import JsonValue


def refuse_overlaps(document: JsonValue, record: Callable[[Mistake], None]) -> None:
    """Record a mistake for each field inside a ``$or`` that is also tested beside it."""
    if document.kind == "object":
        _Paths(record).tested(document, 0)


class _Paths:
    """Numbers the paths of a pattern: a path is its parent's number and a name, so sets of them are cheap."""

    def __init__(self, record: Callable[[Mistake], None]) -> None:
        self.record = record
        self.numbers: dict[tuple[int, str], int] = {}
        self.names: dict[int, JsonValue] = {}

    def tested(self, fields: JsonValue, path: int) -> set[int]:
        """The paths that an object tests, in any of its alternatives."""
        found: set[int] = set()
        either: set[int] = set()
        alternatives: list[JsonValue] = []
        for name, value in fields.value:
            if name.value == "$or":
                alternatives = value.value if value.kind == "array" else []
                continue
            number = self.numbers.setdefault((path, name.value), len(self.numbers) + 1)
            if value.kind == "object":
                found = _united(found, self.tested(value, number))
            else:
                found.add(number)
                self.names[number] = name
        for alternative in alternatives:
            if alternative.kind == "object":
                either = _united(either, self.tested(alternative, path))
        smaller, larger = (found, either) if len(found) < len(either) else (either, found)
        for number in smaller:
            if number in larger:
                self.twice(self.names[number])
        return _united(found, either)

    def twice(self, name: JsonValue) -> None:
        hint = "test it in one place, with all that it may be there"
        message = f"{name.value!r} is also tested beside this $or"
        self.record(Mistake(name.start, name.end, message, hint))


def _united(one: set[int], other: set[int]) -> set[int]:
    """Both sets in the larger one: what is small is moved, so that all moves together are few."""
    if len(one) < len(other):
        one, other = other, one
    one |= other
    return one
