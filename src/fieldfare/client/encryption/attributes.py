"""The attributes that filters of an encrypted space can use, and numbers as places on a grid."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

from fieldfare.client.errors import EncryptionError
from fieldfare.filters import FilterError, parse_path
from fieldfare.filters.values import AFTER, Ranges, exact_number
from fieldfare.model import Path

STEPS_MAX = 1 << 40
"""Maximum steps of a number; the precision of a key's vectors does not allow more."""
FARTHEST = 1.7e308
"""Maximum absolute value of an event's number: exact arithmetic with a billion digits would not end."""
MISSING = -1
"""The place of an attribute that an event does not have."""


def path_of(name: str) -> Path:
    """Parse an attribute's name, as filters write it, to its path; EncryptionError if it is not valid."""
    try:
        return parse_path(name)
    except FilterError as error:
        raise EncryptionError(f"{name!r} is not the name of an attribute: {error}") from None


def fraction_of(value: Any, what: str) -> Fraction:
    """Convert a finite number to an exact fraction; a float counts as the decimal that it prints as.

    ``what`` names it in the EncryptionError for any other value.
    """
    try:
        exact = Fraction(value) if isinstance(value, str) else Fraction(exact_number(value))
    except (ValueError, TypeError, ArithmeticError, OverflowError):
        raise EncryptionError(f"{what} must be a number, not {value!r}") from None
    return exact


@dataclass(frozen=True, slots=True)
class NumberAttribute:
    """A number attribute, from low to high in whole steps.

    Attributes
    ----------
    name
        The name, as filters write it: ``data.price``.
    low, high, step
        Every value in an event must be low plus a whole number of steps, and at most high.
    steps
        The number of steps; there is one more value.
    """

    name: str
    low: Fraction
    high: Fraction
    step: Fraction
    path: Path = field(init=False, compare=False)
    steps: int = field(init=False, compare=False)
    _grid: tuple[int, int, int] = field(init=False, compare=False, repr=False)
    """Integers a, b and c: the place of the value n / m is (n a - m b) / (m c)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", path_of(self.name))
        object.__setattr__(self, "steps", int((self.high - self.low) / self.step) if self.step else 0)
        (low, low_of), (step, step_of) = self.low.as_integer_ratio(), self.step.as_integer_ratio()
        object.__setattr__(self, "_grid", (low_of * step_of, low * step_of, low_of * step))

    @classmethod
    def of(cls, name: str, low: Any, high: Any, step: Any) -> NumberAttribute:
        """Create one from numbers of any type, or their texts; EncryptionError if they make no valid grid."""
        bounds = [fraction_of(value, f"{word} of {name}") for word, value in
                  (("low", low), ("high", high), ("step", step))]  # fmt: skip
        found = cls(name, *bounds)
        if found.step <= 0 or found.high <= found.low:
            raise EncryptionError(f"{name}: high must be above low, and step above 0")
        if (found.high - found.low) % found.step:
            raise EncryptionError(f"{name}: from low to high must be a whole number of steps")
        if found.steps > STEPS_MAX:
            raise EncryptionError(
                f"{name}: {found.steps:,} steps cannot be told apart; declare a larger step"
            )
        return found

    def place(self, value: Any) -> int:
        """Return the place of an event's value on the grid; EncryptionError if it is not on the grid."""
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float, Decimal))
            or not -FARTHEST <= value <= FARTHEST
        ):
            raise EncryptionError(f"{self.name} is declared as a number, and this is {_cut(value)!r}")
        exact = value if isinstance(value, int) else exact_number(value)
        value_is, value_of = exact.as_integer_ratio()
        times, less, steps_of = self._grid
        place, rest = divmod(value_is * times - value_of * less, value_of * steps_of)
        if rest or not 0 <= place <= self.steps:
            raise EncryptionError(
                f"{self.name} is {value}, which is not from {_shown(self.low)} to {_shown(self.high)}"
                f" in steps of {_shown(self.step)}"
            )
        return place

    def intervals(self, numbers: Ranges) -> list[tuple[int, int]]:
        """Return the places within a set of numbers, as ranges (first, last)."""
        bounds = [] if not numbers.starts_inside else [0]
        (low, low_of), (step, step_of) = self.low.as_integer_ratio(), self.step.as_integer_ratio()
        for value, side in numbers.cuts:
            cut, cut_of = value.as_integer_ratio()
            steps, steps_of = (cut * low_of - low * cut_of) * step_of, cut_of * low_of * step
            bounds.append(steps // steps_of + 1 if side == AFTER else -(-steps // steps_of))
        if len(bounds) % 2:
            bounds.append(self.steps + 1)
        pairs = zip(bounds[::2], bounds[1::2], strict=True)
        clipped = ((max(0, first), min(end - 1, self.steps)) for first, end in pairs)
        return [(first, last) for first, last in clipped if first <= last]


def _cut(value: Any) -> str:
    try:
        return str(value)[:40]
    except ValueError:  # Python does not convert very long integers to text.
        return "a number of very many digits"


def _shown(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else str(Decimal(value.numerator) / value.denominator)


def declared_hint(names: list[str]) -> str:
    """Return the hint for an attribute that the key does not declare."""
    return f"the key declares {', '.join(names) or 'none'}"
