"""Find what may be a number beyond the range of a double, in JSON of which only the syntax was checked.

Such a number has an exponent of at least three digits, or at least 200 digits in a row. Text that looks like
one is found, too; so a caller decodes what is found.
"""

from __future__ import annotations

import re

import numpy as np

DIGITS_MIN = 200
"""With fewer digits before the point, a number with an exponent of two digits is in range."""

_STRIDE = DIGITS_MIN // 2
_EXPONENT = re.compile(rb"[eE]\+?[0-9]{3}")
_AS_ZEROS = bytes.maketrans(b"123456789E", b"000000000e")
_LARGE = (b"0e000", b"0e+000", b"0" * DIGITS_MIN)
"""One of these is in each such number, once all its digits are zeros."""


def has_large_number(text: bytes) -> bool:
    """Return whether a text may have a number that is out of range."""
    zeros = text.translate(_AS_ZEROS)
    return any(large in zeros for large in _LARGE)


def may_have_large_number(text: bytes) -> bool:
    """Return whether `has_large_number` may be true of a part of a text; in a third of its time."""
    codes = np.frombuffer(text, np.uint8)
    exponents = np.flatnonzero((codes[:-1] | 0x20) == ord("e"))
    after = codes[exponents + 1]
    exponents = exponents[(after - ord("0") < 10) | (after == ord("+"))]
    if any(_EXPONENT.match(text, place) for place in exponents.tolist()):
        return True
    # Of `DIGITS_MIN` digits in a row, at least two are looked at, and they are neighbours.
    are_digits = codes[::_STRIDE] - ord("0") < 10
    pairs = np.flatnonzero(are_digits[:-1] & are_digits[1:]) * _STRIDE
    return any(text[first : first + _STRIDE].isdigit() for first in pairs.tolist())
