"""Reading JSON's numbers: integers exactly, floats correctly rounded."""

from __future__ import annotations

import numpy as np
from numba import njit

from fieldfare.matching.columns import KIND_FLOAT, KIND_INT

KIND_UNREAD = 102
"""A number as it stands in the payload, too long for the kernel; the decoder has Python read it."""

_MOST_DIGITS = 19
_LARGEST = np.uint64(2**63 - 1)
_EXACT_MANTISSA = np.uint64(2**53)
_POWERS = np.array([10.0**k for k in range(23)])
_ZERO, _TEN = np.uint64(0), np.uint64(10)


@njit(cache=True, nogil=True, forceinline=True)
def _is_digit(c):
    return 0x30 <= c <= 0x39


@njit(cache=True, nogil=True, forceinline=True)
def _read_digits(data, i, mantissa, digits):
    """Append the digits from i on: (position after them, mantissa, count of significant digits)."""
    while True:
        c = data[np.uint64(i)]
        if not _is_digit(c):
            return i, mantissa, digits
        if digits < _MOST_DIGITS:
            mantissa = mantissa * _TEN + np.uint64(c - 0x30)
        if mantissa != _ZERO:
            digits += 1
        i += 1


@njit(cache=True, nogil=True, forceinline=True)
def _read_exponent(data, i):
    """The exponent after an ``e``: (position after it, exponent up to 99,999)."""
    negative = data[i] == 0x2D
    if negative or data[i] == 0x2B:
        i += 1
    if not _is_digit(data[i]):
        return ~i, 0
    exponent = 0
    while _is_digit(data[i]):
        exponent = min(exponent * 10 + np.int64(data[i] - 0x30), 99_999)
        i += 1
    return i, -exponent if negative else exponent


@njit(cache=True, nogil=True, forceinline=True)
def read_number(data, start):
    """The number that starts at ``start``: (position after it or ~position, kind, word)."""
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
        if digits <= _MOST_DIGITS and mantissa <= _LARGEST + np.uint64(negative):
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
    if mantissa <= _EXACT_MANTISSA and digits <= _MOST_DIGITS and -22 <= exponent <= 22:
        # Both sides are exact doubles, so the one rounding of the operation is the right one (Clinger).
        number = np.float64(mantissa)
        number = number / _POWERS[-exponent] if exponent < 0 else number * _POWERS[exponent]
        return i, KIND_FLOAT, np.float64(-number if negative else number).view(np.int64)
    return i, KIND_UNREAD, start << 32 | (i - start)
