"""The attributes that an encrypted space matches by, and numbers as places on a grid."""

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
"""More steps no key's precision would bear."""
FARTHEST = 1.7e308
"""No value is farther from zero: arithmetic with one of a thousand million digits would not end."""
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
    steps
        How many steps there are; values are one more.
    """

    name: str
    low: Fraction
    high: Fraction
    step: Fraction
    path: Path = field(init=False, compare=False)
    steps: int = field(init=False, compare=False)
    _grid: tuple[int, int, int] = field(init=False, compare=False, repr=False)
    """a, b and c for which the place of n / m is (n a - m b) / (m c), all of them whole."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", path_of(self.name))
        object.__setattr__(self, "steps", int((self.high - self.low) / self.step) if self.step else 0)
        (low, low_of), (step, step_of) = self.low.as_integer_ratio(), self.step.as_integer_ratio()
        object.__setattr__(self, "_grid", (low_of * step_of, low * step_of, low_of * step))

    @classmethod
    def of(cls, name: str, low: Any, high: Any, step: Any) -> NumberAttribute:
        """From numbers of any kind, or their texts; EncryptionError if they make no grid."""
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

    def place(self, value: Any) -> int:
        """The place of an event's value on the grid; EncryptionError if it has none."""
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
        """The places that lie in a set of numbers, as runs of first and last."""
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
    except ValueError:  # Python writes no number of so many digits
        return "a number of very many digits"


def _shown(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else str(Decimal(value.numerator) / value.denominator)


def declared_hint(names: list[str]) -> str:
    """What is said of an attribute that the key does not declare."""
    return f"the key declares {', '.join(names) or 'none'}"
