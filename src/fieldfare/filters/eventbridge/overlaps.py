"""Rejection of patterns that test a field beside a ``$or`` and again inside of it.

event-ruler uses the later test or rejects the pattern, depending on its configuration. A reader would expect
that both tests must hold, so such a pattern is rejected here.
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
    """The paths of a pattern, numbered by their parent's number and their name, so that sets are cheap."""

    def __init__(self, record: Callable[[Mistake], None]) -> None:
        self.record = record
        self.numbers: dict[tuple[int, str], int] = {}
        self.names: dict[int, JsonValue] = {}

    def tested(self, fields: JsonValue, path: int) -> set[int]:
        """Return the numbers of the paths that an object tests, its alternatives included."""
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
        hint = "test it in one place, with all allowed values"
        message = f"{name.value!r} is also tested beside this $or"
        self.record(Mistake(name.start, name.end, message, hint))


def _united(one: set[int], other: set[int]) -> set[int]:
    """Return the union, made by adding the smaller set to the larger one, so that few elements are moved."""
    if len(one) < len(other):
        one, other = other, one
    one |= other
    return one
