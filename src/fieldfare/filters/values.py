"""Sets of attribute values, closed under union, intersection and complement.

Every value that an attribute of an event can take lies in exactly one of these regions::

    missing | null | other | false | true | numbers, in exact order | strings, by code point

(`other` is an array, an object, or a NaN.) A predicate on one attribute is a set of such values, so
predicates on the same attribute combine by set algebra, and an index may map every value to a small
integer without losing anything. Numbers are compared exactly: an int is itself, a float is the
shortest decimal that reads back as it (what it prints as), a Decimal is itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

MISSING, NULL, OTHER, FALSE, TRUE = 1, 2, 4, 8, 16
ALL_ATOMS = 31

BEFORE, AFTER = 0, 1

Cut = tuple[Any, int]
"""A position between values of an ordered region: just before or just after a value."""


class Absent:
    """The value of an attribute that an event does not have; ``ABSENT`` is its only instance."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()


SINGLE = frozenset((str, int, float, bool, type(None), Decimal, Absent))
"""Types of values that contain no other values: looking one up is quicker than testing abstract classes."""


def is_array(value: Any) -> bool:
    """Return whether an event's value is an array."""
    kind = type(value)
    return kind is list or (
        kind not in SINGLE and isinstance(value, Sequence) and not isinstance(value, str | bytes)
    )


def exact_number(value: int | float | Decimal) -> Decimal:
    """Return the exact decimal of a finite number; for a float, the decimal that it prints as."""
    if isinstance(value, float):
        return Decimal(repr(value))
    return Decimal(value)


@dataclass(frozen=True, slots=True)
class Ranges:
    """A subset of an ordered region: membership starts as ``starts_inside`` and toggles at every cut."""

    starts_inside: bool = False
    cuts: tuple[Cut, ...] = ()

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, Fraction):
            toggles = bisect_left(self.cuts, (value, AFTER), key=lambda cut: (Fraction(cut[0]), cut[1]))
        else:
            toggles = bisect_left(self.cuts, (value, AFTER))
        return self.starts_inside ^ bool(toggles & 1)

    def complement(self) -> Ranges:
        return Ranges(not self.starts_inside, self.cuts)

    def union(self, other: Ranges) -> Ranges:
        for one, rest in (self, other), (other, self):
            if not one.cuts:
                return one if one.starts_inside else rest
        return _sweep(self, other, lambda a, b: a or b)

    def intersection(self, other: Ranges) -> Ranges:
        for one, rest in (self, other), (other, self):
            if not one.cuts:
                return rest if one.starts_inside else one
        return _sweep(self, other, lambda a, b: a and b)

    @property
    def is_empty(self) -> bool:
        return not self.starts_inside and not self.cuts

    @property
    def is_full(self) -> bool:
        return self.starts_inside and not self.cuts


def combined(many: Sequence[Ranges], least: int) -> Ranges:
    """Return the values that are in at least `least` of several ranges, in O(n log n) for n cuts in total."""
    inside = 0
    steps: list[tuple[Cut, int]] = []
    for ranges in many:
        step = -1 if ranges.starts_inside else 1
        inside += ranges.starts_inside
        for cut in ranges.cuts:
            steps.append((cut, step))
            step = -step
    steps.sort()
    starts_inside = current = inside >= least
    cuts: list[Cut] = []
    last = len(steps) - 1
    for place, (cut, step) in enumerate(steps):
        inside += step
        if place < last and steps[place + 1][0] == cut:
            continue
        if (inside >= least) != current:
            current = not current
            cuts.append(cut)
    return Ranges(starts_inside, tuple(cuts))


def union_of(many: Sequence[ValueSet]) -> ValueSet:
    """Return the union of several sets."""
    atoms = 0
    for found in many:
        atoms |= found.atoms
    return _all_combined(many, atoms, 1)


def intersection_of(many: Sequence[ValueSet]) -> ValueSet:
    """Return the intersection of several sets."""
    atoms = ALL_ATOMS
    for found in many:
        atoms &= found.atoms
    return _all_combined(many, atoms, len(many))


def _all_combined(many: Sequence[ValueSet], atoms: int, least: int) -> ValueSet:
    numbers = combined([found.numbers for found in many], least)
    return ValueSet(atoms, numbers, combined([found.strings for found in many], least))


def _sweep(a: Ranges, b: Ranges, inside: Callable[[bool, bool], bool]) -> Ranges:
    in_a, in_b = a.starts_inside, b.starts_inside
    current = start = inside(in_a, in_b)
    cuts: list[Cut] = []
    i = j = 0
    while i < len(a.cuts) or j < len(b.cuts):
        if j >= len(b.cuts) or (i < len(a.cuts) and a.cuts[i] <= b.cuts[j]):
            cut = a.cuts[i]
        else:
            cut = b.cuts[j]
        if i < len(a.cuts) and a.cuts[i] == cut:
            in_a, i = not in_a, i + 1
        if j < len(b.cuts) and b.cuts[j] == cut:
            in_b, j = not in_b, j + 1
        if inside(in_a, in_b) != current:
            current = not current
            cuts.append(cut)
    return Ranges(start, tuple(cuts))


NOTHING = Ranges()
EVERYTHING = Ranges(starts_inside=True)


@dataclass(frozen=True, slots=True)
class ValueSet:
    """A set of attribute values: a mask of atoms, ranges of numbers (Decimal), ranges of strings."""

    atoms: int = 0
    numbers: Ranges = NOTHING
    strings: Ranges = NOTHING

    def __contains__(self, value: Any) -> bool:
        """Return whether a JSON value (``ABSENT`` if missing) or a computed value is in the set."""
        atom = atom_of(value)
        if atom:
            return bool(self.atoms & atom)
        if isinstance(value, str):
            return value in self.strings
        if isinstance(value, float) and math.isinf(value):
            return self.numbers.starts_inside ^ (value > 0 and bool(len(self.numbers.cuts) & 1))
        return (value if isinstance(value, Fraction) else exact_number(value)) in self.numbers

    def union(self, other: ValueSet) -> ValueSet:
        return ValueSet(
            self.atoms | other.atoms, self.numbers.union(other.numbers), self.strings.union(other.strings)
        )

    def intersection(self, other: ValueSet) -> ValueSet:
        return ValueSet(
            self.atoms & other.atoms,
            self.numbers.intersection(other.numbers),
            self.strings.intersection(other.strings),
        )

    def complement(self) -> ValueSet:
        return ValueSet(self.atoms ^ ALL_ATOMS, self.numbers.complement(), self.strings.complement())

    @property
    def is_empty(self) -> bool:
        return not self.atoms and self.numbers.is_empty and self.strings.is_empty

    @property
    def is_full(self) -> bool:
        return self.atoms == ALL_ATOMS and self.numbers.is_full and self.strings.is_full


NO_VALUES = ValueSet()
ANY_VALUE = ValueSet(ALL_ATOMS, EVERYTHING, EVERYTHING)
NUMBERS = ValueSet(numbers=EVERYTHING)
STRINGS = ValueSet(strings=EVERYTHING)


def atom_of(value: Any) -> int:
    """Return the atom that a JSON value is, or 0 for a number (infinities included) or a string."""
    if value is ABSENT:
        return MISSING
    if value is None:
        return NULL
    if value is True:
        return TRUE
    if value is False:
        return FALSE
    if isinstance(value, str):
        return 0
    if isinstance(value, int | float | Decimal | Fraction):
        return OTHER if value != value else 0
    return OTHER


def points(values: Iterable[Any]) -> Ranges:
    """Return the set of exactly the given values (all Decimal or all str)."""
    cuts: list[Cut] = []
    for value in sorted(set(values)):
        cuts += [(value, BEFORE), (value, AFTER)]
    return Ranges(False, tuple(cuts))


def less_than(value: Any, *, or_equal: bool = False) -> Ranges:
    """Return all values below a value, in its region: numbers for a Decimal, strings for a str."""
    return Ranges(True, ((value, AFTER if or_equal else BEFORE),))


def greater_than(value: Any, *, or_equal: bool = False) -> Ranges:
    """Return all values above a value, in its region: numbers for a Decimal, strings for a str."""
    return Ranges(False, ((value, BEFORE if or_equal else AFTER),))


def with_prefix(prefix: str) -> Ranges:
    """Return the set of all strings that start with a prefix."""
    if not prefix:
        return EVERYTHING
    end = _after_prefix(prefix)
    cuts: tuple[Cut, ...] = ((prefix, BEFORE),)
    return Ranges(False, cuts if end is None else (*cuts, (end, BEFORE)))


def _after_prefix(prefix: str) -> str | None:
    """Return the least string above all strings that start with the prefix; None if there is none."""
    trimmed = prefix.rstrip("\U0010ffff")
    if not trimmed:
        return None
    following = ord(trimmed[-1]) + 1
    if 0xD800 <= following <= 0xDFFF:  # surrogates are not characters of a valid string
        following = 0xE000
    return trimmed[:-1] + chr(following)
