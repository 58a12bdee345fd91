"""Find what may be a number beyond the range of a double, in JSON of which only the syntax was checked.

Such a number has an exponent of at least three digits, or at least 200 digits in a row. Text that looks like
one is found, too, and so is text with many places that are not worth a closer look: a caller decodes it.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

DIGITS_MIN = 200
"""With fewer digits before the point, a number with an exponent of two digits is in range."""

LOOKS_MIN, BYTES_A_LOOK = 16, 64
"""Maximum places that are looked at in Python: the first, and one more for each of the second."""

_PART_BYTES = 1 << 16
"""Bytes looked at in one step: what numpy makes of them stays in the processor's cache."""

_STRIDE = DIGITS_MIN // 2
_EXPONENT = re.compile(rb"[eE]\+?[0-9]{3}")
_OF_A_NUMBER = b"0123456789.-"
_BEFORE_A_NUMBER = b":,[ \t\n\r"


def may_have_large_number(text: bytes) -> bool:
    """Return whether a number in a text may be out of range."""
    codes = np.frombuffer(text, np.uint8)
    looks = LOOKS_MIN + len(text) // BYTES_A_LOOK
    for start in range(0, len(text), _PART_BYTES):
        places = _exponents(codes[start : start + _PART_BYTES + 4]) + start
        looks -= len(places)
        if looks < 0:
            return True
        if any(_EXPONENT.match(text, place) and _ends_number(text, place) for place in places.tolist()):
            return True
    # Of `DIGITS_MIN` digits in a row, at least two are looked at, and they are neighbours.
    are_digits = codes[::_STRIDE] - ord("0") < 10
    pairs = np.flatnonzero(are_digits[:-1] & are_digits[1:]) * _STRIDE
    return any(text[first : first + _STRIDE].isdigit() for first in pairs.tolist())


def _exponents(codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return where an `e` may begin an exponent of three digits: after a digit, and before two others."""
    # The digit that is left out may be a sign. Few letters have a digit after the next place.
    places = 1 + np.flatnonzero(((codes[1:-3] | 0x20) == ord("e")) & (codes[3:-1] - ord("0") < 10))
    for apart in (-1, 3):
        places = places[codes[places + apart] - ord("0") < 10]
    return places


def _ends_number(text: bytes, end: int) -> bool:
    """Return whether the digits before a place may be a number, and not the end of a text such as `JFK-9`."""
    before = text[max(0, end - DIGITS_MIN) : end].rstrip(_OF_A_NUMBER)
    return not before or before[-1] in _BEFORE_A_NUMBER
