"""The attributes that an encrypted space matches by, and numbers as places on a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from fieldfare.client.encrypting import EncryptionError
from fieldfare.filters import FilterError, parse_path
from fieldfare.filters.values import AFTER, Ranges, exact_number
from fieldfare.model import Path

STEPS_MAX = 1 << 40
"""More steps no key's precision would bear."""
MISSING = -1
"""The place of an attribute that an event does not have."""


def path_of(name: str) -> Path:
    """An attribute's path, from its name as filters write it; EncryptionError if it is none."""
    try:
        return parse_path(name)
    except FilterError as error:
        raise EncryptionError(f"{name!r} is no attribute: {error}") from None


def fraction_of(value: Any, what: str) -> Fraction:
    """A finite number, exactly; a float is the decimal that it prints as."""
    try:
        exact = Fraction(value) if isinstance(value, str) else Fraction(exact_number(value))
    except (ValueError, TypeError, ArithmeticError, OverflowError):
        raise EncryptionError(f"{what} must be a number, not {value!r}") from None
    return exact


@dataclass(frozen=True, slots=True)
class NumberAttribute:
    """A number from low to high in whole steps.

    Attributes
    ----------
    name
        As filters write it: ``data.price``.
    low, high, step
        Every value that an event has is low plus a whole number of steps, and at most high.
    """

    name: str
    low: Fraction
    high: Fraction
    step: Fraction

    @classmethod
    def of(cls, name: str, low: Any, high: Any, step: Any) -> NumberAttribute:
        """From numbers of any kind, or their texts; EncryptionError if they make no grid."""
        path_of(name)
        bounds = [fraction_of(value, f"{word} of {name}") for word, value in
                  (("low", low), ("high", high), ("step", step))]  # fmt: skip
        found = cls(name, *bounds)
        if found.step <= 0 or found.high <= found.low:
            raise EncryptionError(f"{name}: high must be above low, and step above 0")
        if (found.high - found.low) % found.step:
            raise EncryptionError(f"{name}: from low to high must be a whole number of steps")
        if found.steps > STEPS_MAX:
            raise EncryptionError(f"{name}: {found.steps:,} steps are more than can be told apart")
        return found

    @property
    def path(self) -> Path:
        return parse_path(self.name)

    @property
    def steps(self) -> int:
        """How many steps there are; values are one more."""
        return int((self.high - self.low) / self.step)

    def place(self, value: Any) -> int:
        """The place of an event's value on the grid; EncryptionError if it has none."""
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float | Decimal)
            or not math.isfinite(value)
        ):
            raise EncryptionError(f"{self.name} is declared as a number, and this is {str(value)[:40]!r}")
        places = (Fraction(exact_number(value)) - self.low) / self.step
        if places.denominator != 1 or not 0 <= places <= self.steps:
            raise EncryptionError(
                f"{self.name} is {value}, which is not from {_shown(self.low)} to {_shown(self.high)}"
                f" in steps of {_shown(self.step)}"
            )
        return int(places)

    def intervals(self, numbers: Ranges) -> list[tuple[int, int]]:
        """The places that lie in a set of numbers, as runs of first and last."""
        bounds = [] if not numbers.starts_inside else [0]
        for value, side in numbers.cuts:
            at = (Fraction(value) - self.low) / self.step
            bounds.append(math.floor(at) + 1 if side == AFTER else math.ceil(at))
        if len(bounds) % 2:
            bounds.append(self.steps + 1)
        pairs = zip(bounds[::2], bounds[1::2], strict=True)
        clipped = ((max(0, first), min(end - 1, self.steps)) for first, end in pairs)
        return [(first, last) for first, last in clipped if first <= last]


def _shown(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else str(Decimal(value.numerator) / value.denominator)


def declared_hint(names: list[str]) -> str:
    """What is said of an attribute that the key does not declare."""
    return f"the key declares {', '.join(names) or 'none'}"
