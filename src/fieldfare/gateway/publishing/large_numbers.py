"""Find what may be a number beyond the range of a double, in JSON of which only the syntax was checked.

Such a number has an exponent of at least three digits, or at least 200 digits in a row. Text that looks like
one is found, too, and so is text with many places that are not worth a closer look: a caller decodes it.
"""

from __future__ import annotations

import re

import numpy as np

DIGITS_MIN = 200
"""With fewer digits before the point, a number with an exponent of two digits is in range."""

LOOKS_MIN, BYTES_A_LOOK = 16, 64
"""Maximum places that are looked at in Python: the first, and one more for each of the second."""

_STRIDE = DIGITS_MIN // 2
_EXPONENT = re.compile(rb"[eE]\+?[0-9]{3}")
_OF_A_NUMBER = b"0123456789.-"
_BEFORE_A_NUMBER = b":,[ \t\n\r"


def may_have_large_number(text: bytes) -> bool:
    """Return whether a number in a text may be out of range."""
    codes = np.frombuffer(text, np.uint8)
    exponents = 1 + np.flatnonzero((codes[1:-3] | 0x20) == ord("e"))
    for apart in (-1, 2, 3):  # whether the exponent has a sign or not
        exponents = exponents[codes[exponents + apart] - ord("0") < 10]
    if len(exponents) > LOOKS_MIN + len(text) // BYTES_A_LOOK:
        return True
    if any(_EXPONENT.match(text, place) and _ends_number(text, place) for place in exponents.tolist()):
        return True
    # Of `DIGITS_MIN` digits in a row, at least two are looked at, and they are neighbours.
    are_digits = codes[::_STRIDE] - ord("0") < 10
    pairs = np.flatnonzero(are_digits[:-1] & are_digits[1:]) * _STRIDE
    return any(text[first : first + _STRIDE].isdigit() for first in pairs.tolist())


def _ends_number(text: bytes, end: int) -> bool:
    """Return whether the digits before a place may be a number, and not the end of a text such as `JFK-9`."""
    before = text[max(0, end - DIGITS_MIN) : end].rstrip(_OF_A_NUMBER)
    return not before or before[-1] in _BEFORE_A_NUMBER
