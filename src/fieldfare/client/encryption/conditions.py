"""Conversion of filters to a form that can be encrypted: alternatives of number ranges and text sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fieldfare.client.encryption.attributes import NumberAttribute, declared_hint
from fieldfare.client.errors import EncryptionError
from fieldfare.filters import Conjunction, compile_filter, format_path
from fieldfare.filters.values import AFTER, BEFORE, MISSING, NULL, Ranges, ValueSet
from fieldfare.model import Path, derived_text

ALTERNATIVES_MAX = 64
"""Maximum alternatives of a filter; one with more is refused, as each is searched like a separate filter."""


@dataclass(frozen=True, slots=True)
class TextSet:
    """A condition on a text: it is one of ``texts`` or, with ``but``, it is present and none of them."""

    name: str
    texts: tuple[str, ...]
    but: bool = False


@dataclass(frozen=True, slots=True)
class Alternative:
    """Conditions that an event must all meet: numbers within ranges of places, and text sets."""

    ranges: tuple[tuple[int, int, int], ...]
    """The number's index among those declared, first place and last place."""
    texts: tuple[TextSet, ...]


def alternatives_of(
    text: Any, dialect: str, numbers: Sequence[NumberAttribute], texts: Sequence[str]
) -> list[Alternative]:
    """Return a filter's alternatives; EncryptionError, with a hint, if it cannot be encrypted.

    FilterError if the filter is not valid.
    """
    declared = {attribute.path: place for place, attribute in enumerate(numbers)}
    names = [attribute.name for attribute in numbers] + list(texts)
    found: list[Alternative] = []
    for conjunction in compile_filter(text, dialect).normal_form.conjunctions:
        _check(conjunction)
        ranges: list[list[tuple[int, int, int]]] = []
        asked: list[TextSet] = []
        for path, values in conjunction.constraints:
            _check_presence(path, values)
            name = format_path(path)
            if path in declared:
                number = declared[path]
                ranges.append([(number, *run) for run in numbers[number].intervals(values.numbers)])
            elif name in texts:
                asked.append(_texts(name, values.strings))
            else:
                raise EncryptionError(
                    f"filters of this space cannot use the attribute {name}; {declared_hint(names)}"
                )
        found += [Alternative(chosen, tuple(asked)) for chosen in product(*ranges)]
        if len(found) > ALTERNATIVES_MAX:
            raise EncryptionError(
                f"the filter has more than {ALTERNATIVES_MAX} alternatives, the maximum for encryption;"
                " split it into several subscriptions"
            )
    return found


def _check(conjunction: Conjunction) -> None:
    if not conjunction.exact or conjunction.needles or conjunction.derives:
        raise EncryptionError(
            "only comparisons of an attribute with constants can be encrypted: =, <>, <, <=, >, >=, BETWEEN"
            ", IN of numbers, and =, <>, IN of texts; patterns, functions and arithmetic read the event"
        )


def _check_presence(path: Path, values: ValueSet) -> None:
    if derived_text(path) is not None:
        raise EncryptionError(
            "expressions of attributes cannot be encrypted; publish the result as a separate attribute"
        )
    if values.atoms & (MISSING | NULL):
        raise EncryptionError(
            f"the condition on {format_path(path)} is true if the attribute is missing or null, as IS NULL"
            " is, and cannot be encrypted; publish an agreed value instead of none, and compare the attribute"
            " with that value"
        )


def _texts(name: str, strings: Ranges) -> TextSet:
    cuts = strings.cuts
    pairs = list(zip(cuts[::2], cuts[1::2], strict=False))
    if len(cuts) % 2 or any(a[0] != b[0] or (a[1], b[1]) != (BEFORE, AFTER) for a, b in pairs):
        raise EncryptionError(
            f"{name} is declared as a text, which allows only equality (=, <>, IN), as encryption hides order"
            " and prefixes; declare a number, or publish the prefix as a separate attribute"
        )
    return TextSet(name, tuple(a[0] for a, _ in pairs), but=strings.starts_inside)
