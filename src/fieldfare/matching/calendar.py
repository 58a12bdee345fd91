"""Kernels for the Gregorian calendar."""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.compiled import inlined

CYCLE_DAYS = 146_097
EPOCH_DAYS = 719_468
"""Days from March 1st of year 0 to 1970-01-01. A 400-year cycle that begins then ends with its leap day."""
_CENTURY_QUARTERS = np.uint64(146_097)
_YEAR_SCALE, _MONTH_SCALE = np.uint64(2_939_745), np.uint64(2_141)
_LOW_WORD, _LOW_SHORT = np.uint64(0xFFFFFFFF), np.uint64(0xFFFF)


@inlined
def civil(days: Any) -> Any:
    """Convert days since 1970-01-01 to (year, month, day), by multiplications (Neri and Schneider 2023)."""
    days += EPOCH_DAYS
    cycle = days // CYCLE_DAYS
    quarters = np.uint64(4 * (days - cycle * CYCLE_DAYS) + 3)
    century = quarters // _CENTURY_QUARTERS
    scaled = _YEAR_SCALE * ((quarters - century * _CENTURY_QUARTERS) | np.uint64(3))
    of_year = (scaled & _LOW_WORD) // _YEAR_SCALE // np.uint64(4)
    shifted = _MONTH_SCALE * of_year + np.uint64(197_913)
    month, day = np.int64(shifted >> np.uint64(16)), np.int64((shifted & _LOW_SHORT) // _MONTH_SCALE) + 1
    next_year = np.int64(of_year >= np.uint64(306))
    year = np.int64(np.uint64(100) * century + (scaled >> np.uint64(32)))
    return year + 400 * cycle + next_year, month - 12 * next_year, day
