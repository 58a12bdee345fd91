"""Sizes and times as people write them in settings and options: a number, or a number with a unit."""

from __future__ import annotations

import math
import re
from decimal import Decimal

SIZE_UNITS = {
    unit: size
    for power, letter in enumerate("kMGT", start=1)
    for unit, size in ((f"{letter}B", 1000**power), (f"{letter.upper()}iB", 1024**power))
}
"""Bytes of each unit of size."""

TIME_UNITS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
"""Milliseconds of each unit of time."""

SIZE_RULE = f"a size is a number of bytes, or a number with a unit: {', '.join(SIZE_UNITS)}"
TIME_RULE = f"a time is a number of {{}}, or a number with a unit: {', '.join(TIME_UNITS)}"

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)
_SIZES: dict[str, int] = {unit.lower(): size for unit, size in SIZE_UNITS.items()} | {"": 1, "b": 1}


def parse_size(text: str) -> int:
    """Bytes of a size such as 10GB or 64 MiB; ValueError says what is allowed."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None or found[2].lower() not in _SIZES:
        raise ValueError(f"{text!r} is not a size; {SIZE_RULE}")
    size = Decimal(found[1]) * _SIZES[found[2].lower()]
    if 0 < size < 1:
        raise ValueError(f"{text!r} is less than a byte; {SIZE_RULE}")
    return int(size)


def parse_byte_rate(text: str) -> float:
    """Bytes a second: any number, or a size with a unit; ValueError says what is allowed."""
    try:
        return float(text)
    except ValueError:
        return parse_size(text)


def parse_time(text: str, unit: str = "s") -> float:
    """A time such as 30, 250ms, 5 min or 7d, in a unit; without one of its own it is in that unit.

    ValueError says what is allowed.
    """
    found = _AMOUNT.fullmatch(text.strip())
    if found is not None and found[2].lower() in TIME_UNITS:
        return float(Decimal(found[1]) * TIME_UNITS[found[2].lower()] / TIME_UNITS[unit])
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        rule = TIME_RULE.format("milliseconds" if unit == "ms" else "seconds")
        raise ValueError(f"{text!r} is not a time; {rule}")
    return value
