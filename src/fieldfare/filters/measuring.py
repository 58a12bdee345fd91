"""The sizes of an event's values, on which the steps of filters depend (``filters.work``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from fieldfare.filters.values import SINGLE, is_array
from fieldfare.model import Path

WORD_DIGITS = 18
"""Digits that a machine word holds. A result of n numbers may have as many digits as all of them together."""
DIGITS_MAX = 700
"""Maximum digits that are counted: a longer number has no arithmetic."""

_WORD = 10**WORD_DIGITS

Get = Callable[[Path], Any]


class MeasuredEvent:
    """An event's attributes, each read and measured only once for all filters."""

    def __init__(self, get: Get) -> None:
        self._get = get
        self._values: dict[Path, Any] = {}
        self._sizes: dict[Path, int] = {}
        self._digits: dict[Path, int] = {}
        self._exact: dict[Path, bool] = {}

    def __call__(self, path: Path) -> Any:
        if path not in self._values:
            self._values[path] = self._get(path)
        return self._values[path]

    def size(self, path: Path, most: int) -> int:
        """Return `size_of` an attribute."""
        if path in self._sizes:
            return self._sizes[path]
        size = size_of(self(path), most)
        if size <= most:
            self._sizes[path] = size
        return size

    def has_exact(self, path: Path) -> bool:
        """Return whether a number in an attribute fits neither an integer of 64 bits nor a float."""
        if path not in self._exact:
            self._exact[path] = any(map(_is_exact, numbers_in(self(path))))
        return self._exact[path]

    def digits(self, path: Path) -> int:
        """Return `most_digits` of an attribute."""
        if path not in self._digits:
            self._digits[path] = most_digits(self(path))
        return self._digits[path]


def holds_values(value: Any) -> bool:
    """Return whether a value is an array or an object."""
    return isinstance(value, Mapping) or is_array(value)


def size_of(value: Any, most: int) -> int:
    """Return the number of values in an array or an object, at any depth; counting ends beyond ``most``."""
    waiting, size = [value], 0
    while waiting and size <= most:
        inner = waiting.pop()
        members = inner.values() if isinstance(inner, Mapping) else inner if is_array(inner) else ()
        size += len(members)
        waiting += [member for member in members if type(member) not in SINGLE and holds_values(member)]
    return size


def numbers_in(value: Any) -> Iterator[float | Decimal]:
    """Yield the numbers in a value, at any depth."""
    waiting = list[Iterable[Any]]([(value,)])
    while waiting:
        for member in waiting.pop():
            kind = type(member)
            if kind is int or kind is float or kind is Decimal:
                yield member
            elif kind not in SINGLE and holds_values(member):
                waiting.append(member.values() if isinstance(member, Mapping) else member)


def most_digits(value: Any) -> int:
    """Return the digits of the longest number in a value, at any depth; DIGITS_MAX for any more."""
    return min(max(map(_digits, numbers_in(value)), default=0), DIGITS_MAX)


def _digits(number: float | Decimal) -> int:
    """Return the digits that a number is written with, without exponent.

    They are more than WORD_DIGITS if it is usually written with an exponent.
    """
    if isinstance(number, Decimal):
        number = _as_float(number)
    if -_WORD < number < _WORD and number == int(number):
        return len(str(abs(int(number))))
    if isinstance(number, int) and number.bit_length() > 4 * DIGITS_MAX:
        return DIGITS_MAX
    if isinstance(number, float) and "e" not in (written := repr(number)):
        return len(written.strip("-")) - 1
    _, digits, exponent = Decimal(written if isinstance(number, float) else number).as_tuple()
    size = len(digits) + exponent if exponent > 0 else max(len(digits), -exponent)  # type: ignore[operator]
    return max(WORD_DIGITS + 1, size)


def _is_exact(number: float | Decimal) -> bool:
    if isinstance(number, Decimal):
        number = _as_float(number)
    return isinstance(number, Decimal) or (isinstance(number, int) and not -(1 << 63) <= number < 1 << 63)


def _as_float(value: Decimal) -> float | Decimal:
    """Return the float that prints as a decimal does; the decimal itself if there is none."""
    found = float(value)
    return found if math.isfinite(found) and Decimal(repr(found)) == value else value
