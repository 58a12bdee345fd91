"""A filter as what can be encrypted of it: alternatives of ranges of numbers and sets of texts."""

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
"""A filter that needs more is refused: each is searched like a filter of its own."""


@dataclass(frozen=True, slots=True)
class TextSet:
    """A text that is one of some, or, `but` set, is there and none of them."""

    name: str
    texts: tuple[str, ...]
    but: bool = False


@dataclass(frozen=True, slots=True)
class Alternative:
    """What an event must have all of: numbers in ranges of places, and texts."""

    ranges: tuple[tuple[int, int, int], ...]
    """The number's place among those declared, first and last."""
    texts: tuple[TextSet, ...]


def alternatives_of(
    text: Any, dialect: str, numbers: Sequence[NumberAttribute], texts: Sequence[str]
) -> list[Alternative]:
    """What a filter asks for; EncryptionError, with a hint, if that cannot be encrypted.

    FilterError if it is no filter.
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
                    f"{name} is no attribute that this space matches by; {declared_hint(names)}"
                )
        found += [Alternative(chosen, tuple(asked)) for chosen in product(*ranges)]
        if len(found) > ALTERNATIVES_MAX:
            raise EncryptionError(
                f"the filter has more than {ALTERNATIVES_MAX} alternatives, which is too much to encrypt;"
                " make several subscriptions of it"
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
        raise EncryptionError("what is computed of attributes cannot be encrypted; publish it by itself")
    if values.atoms & (MISSING | NULL):
        raise EncryptionError(
            f"that {format_path(path)} is missing cannot be asked for; publish a value that stands for it"
        )


def _texts(name: str, strings: Ranges) -> TextSet:
    cuts = strings.cuts
    pairs = list(zip(cuts[::2], cuts[1::2], strict=False))
    if len(cuts) % 2 or any(a[0] != b[0] or (a[1], b[1]) != (BEFORE, AFTER) for a, b in pairs):
        raise EncryptionError(
            f"{name} is declared as a text, and of these only equality can be asked for (=, <>, IN): their"
            " order and beginnings are not to be seen; declare a number, or publish the beginning by itself"
        )
    return TextSet(name, tuple(a[0] for a, _ in pairs), but=strings.starts_inside)
