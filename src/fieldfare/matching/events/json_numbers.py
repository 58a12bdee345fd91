"""Parsing of JSON numbers: integers exactly, floats correctly rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.compiled import compiled, inlined
from fieldfare.matching.events.columns import KIND_FLOAT, KIND_INT

KIND_UNREAD = 102
"""A number in the payload that is too long for the kernel; Python parses it."""

_DIGITS_MAX = 19
_LARGEST = np.uint64(2**63 - 1)
_EXACT_MANTISSA = np.uint64(2**53)
_POWERS = np.array([10.0**k for k in range(23)])
_ZERO, _ONE, _THREE, _TEN = np.uint64(0), np.uint64(1), np.uint64(3), np.uint64(10)
_HALF, _LOWER_HALF = np.uint64(32), np.uint64(2**32 - 1)
_ROUNDING_BITS = np.uint64(2**9 - 1)
_FRACTION = np.uint64(2**52 - 1)
_SIGN = -(2**63)
_UNDECIDED = -1
"""The bits of a NaN, which no parsed number has."""

_LEAST_POWER, _POWER_MAX = -342, 308
"""A number of at most 19 digits times a power of ten outside this range is 0 or infinite."""


def _powers_of_five() -> NDArray[np.uint64]:
    """Return the first 128 bits of 5**k, truncated (rounded up for -27 <= k < 0), as two halves each."""
    rows = []
    for k in range(_LEAST_POWER, _POWER_MAX + 1):
        five = 5 ** abs(k)
        if k >= 0:
            bits = five << 128 >> five.bit_length()
        else:
            bits = (1 << five.bit_length() + 127) // five + (k >= -27)
        rows.append((bits >> 64, bits & (1 << 64) - 1))
    return np.array(rows, np.uint64)


_FIVES = _powers_of_five()


@inlined
def _is_digit(c: Any) -> Any:
    return 0x30 <= c <= 0x39


@inlined
def _read_digits(data: Any, i: Any, mantissa: Any, digits: Any) -> Any:
    """Append the digits from i on: return (position after them, mantissa, number of significant digits)."""
    while True:
        c = data[np.uint64(i)]
        if not _is_digit(c):
            return i, mantissa, digits
        if digits < _DIGITS_MAX:
            mantissa = mantissa * _TEN + np.uint64(c - 0x30)
        if mantissa != _ZERO:
            digits += 1
        i += 1


@inlined
def _read_exponent(data: Any, i: Any) -> Any:
    """Read the exponent after an ``e``: return (position after it, exponent of magnitude up to 99,999)."""
    negative = data[i] == 0x2D
    if negative or data[i] == 0x2B:
        i += 1
    if not _is_digit(data[i]):
        return ~i, 0
    exponent = 0
    while _is_digit(data[i]):
        if exponent < 10_000:
            exponent = exponent * 10 + int(data[i] - 0x30)
        i += 1
    return i, -exponent if negative else exponent


@inlined
def read_number(data: Any, start: Any) -> Any:
    """Read the number that starts at ``start``: return (position after it or ~position, kind, word)."""
    i = start
    negative = data[i] == 0x2D
    if negative:
        i += 1
    first = i
    i, mantissa, digits = _read_digits(data, i, _ZERO, 0)
    if i == first or (data[first] == 0x30 and i > first + 1):
        return ~first, 0, np.int64(0)
    c = data[i]
    if c != 0x2E and c != 0x65 and c != 0x45:
        if digits <= _DIGITS_MAX and mantissa <= _LARGEST + np.uint64(negative):
            word = np.int64(mantissa)
            return i, KIND_INT, -word if negative else word
        return i, KIND_UNREAD, start << 32 | (i - start)
    exponent = 0
    if c == 0x2E:
        point = i + 1
        i, mantissa, digits = _read_digits(data, point, mantissa, digits)
        if i == point:
            return ~i, 0, np.int64(0)
        exponent = point - i
        c = data[i]
    if c == 0x65 or c == 0x45:
        i, shift = _read_exponent(data, i + 1)
        if i < 0:
            return i, 0, np.int64(0)
        exponent += shift
    bits = _round(mantissa, exponent) if digits <= _DIGITS_MAX else np.int64(_UNDECIDED)
    if bits == _UNDECIDED:
        return i, KIND_UNREAD, start << 32 | (i - start)
    return i, KIND_FLOAT, bits | np.int64(_SIGN) if negative else bits


@inlined
def _round(mantissa: Any, exponent: Any) -> Any:
    """Return the bits of the float64 nearest to mantissa * 10**exponent, or _UNDECIDED."""
    if mantissa <= _EXACT_MANTISSA and -22 <= exponent <= 22:
        # Both operands are exact doubles, so the single rounding of the operation is correct (Clinger).
        number = np.float64(mantissa)
        number = number / _POWERS[-exponent] if exponent < 0 else number * _POWERS[exponent]
        return np.float64(number).view(np.int64)
    if mantissa == _ZERO:
        return np.int64(0)
    if not _LEAST_POWER <= exponent <= _POWER_MAX:
        return np.int64(_UNDECIDED)
    return _round_by_product(mantissa, exponent)


@compiled
def _round_by_product(mantissa: Any, exponent: Any) -> Any:
    """Round as Eisel and Lemire do (Lemire 2021, "Number parsing at a gigabyte per second", section 5).

    The normalized mantissa is multiplied by 128 bits of the power of five; the upper bits decide the
    rounding, except in rare cases, which are left undecided, like subnormal results.
    """
    zeros = np.int64(0)
    for step in (32, 16, 8, 4, 2, 1):
        if mantissa >> np.uint64(64 - step) == _ZERO:
            mantissa <<= np.uint64(step)
            zeros += step
    power = _FIVES[exponent - _LEAST_POWER]
    high, low = _multiply(mantissa, power[0])
    if high & _ROUNDING_BITS == _ROUNDING_BITS:
        more, _ = _multiply(mantissa, power[1])
        low += more
        if low < more:
            high += _ONE
        if low == ~_ZERO and not -27 <= exponent <= 55:
            return np.int64(_UNDECIDED)
    upper = high >> np.uint64(63)
    shift = upper + np.uint64(9)
    rounded = high >> shift
    binary = ((217706 * exponent) >> 16) + 63 + np.int64(upper) - zeros + 1023
    if binary <= 0:
        return np.int64(_UNDECIDED)
    if low <= _ONE and -4 <= exponent <= 23 and rounded & _THREE == _ONE and rounded << shift == high:
        rounded &= ~_ONE  # halfway between two floats: round to even
    rounded = (rounded + (rounded & _ONE)) >> _ONE
    if rounded == _EXACT_MANTISSA:
        rounded >>= _ONE
        binary += 1
    if binary >= 2047:
        return np.int64(_UNDECIDED)
    return np.int64(rounded & _FRACTION) | binary << 52


@inlined
def _multiply(a: Any, b: Any) -> Any:
    """Return the upper and the lower 64 bits of a product."""
    a_low, a_high = a & _LOWER_HALF, a >> _HALF
    b_low, b_high = b & _LOWER_HALF, b >> _HALF
    cross, other = a_low * b_high, a_high * b_low
    middle = ((a_low * b_low) >> _HALF) + (cross & _LOWER_HALF) + (other & _LOWER_HALF)
    return a_high * b_high + (cross >> _HALF) + (other >> _HALF) + (middle >> _HALF), a * b
