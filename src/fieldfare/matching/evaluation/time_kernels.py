"""Kernels for times: text to seconds since 1970, and the parts of an instant.

The semantics are those of ``filters.functions.times``. An instant is an integer number of seconds, or a
fraction whose denominator is a power of ten; Python computes those that do not fit into 64 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fieldfare.matching.calendar import CYCLE_DAYS, EPOCH_DAYS, civil
from fieldfare.matching.compiled import borrowed, compiled, inlined
from fieldfare.matching.evaluation.exact_numbers import (
    WHOLE_POWERS,
    floor_of,
    fraction_of,
    has_arithmetic,
    product_of,
    second_of,
)
from fieldfare.matching.evaluation.kinds import KIND_ANY, KIND_ASK, KIND_RATIO
from fieldfare.matching.evaluation.text_kernels import fetch_ahead
from fieldfare.matching.events.columns import KIND_INT, KIND_NULL, KIND_STRING

TIME_OF_DAY, WEEKDAY, YEAR, MONTH, DAY, HOUR, MINUTE, SECOND, DATE = range(9)

_DAY_S = 86_400
_DIGITS_MAX = 9
"""Maximum digits of a fraction of a second, without trailing zeros; Python computes longer ones."""
_WRITTEN_MAX = 100
"""Must equal ``filters.functions.times.FRACTION_DIGITS_MAX``."""
_DAYS_OF_MONTHS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_BAD = -1


@inlined
def _digit(text: Any, i: Any) -> Any:
    """Return the digit at an offset; at least 10 for other characters."""
    return np.int64(text[np.uint64(i)]) ^ 0x30


@inlined
def _two_digits(text: Any, i: Any) -> Any:
    a, b = _digit(text, i), _digit(text, i + 1)
    return 10 * a + b if a < 10 and b < 10 else np.int64(_BAD)


@inlined
def _days_before(year: Any, month: Any, day: Any) -> Any:
    """Return the days from 1970-01-01 to a day of the Gregorian calendar."""
    year -= month <= 2
    cycle = year // 400
    within = year - 400 * cycle
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return cycle * CYCLE_DAYS + 365 * within + within // 4 - within // 100 + of_year - EPOCH_DAYS


@inlined
def _offset(text: Any, start: Any, length: Any) -> Any:
    """Parse an offset from UTC: return (whether it is valid, seconds ahead of UTC)."""
    if length == 1:
        return (text[np.uint64(start)] | 0x20) == 0x7A, np.int64(0)
    if length != 6 or text[np.uint64(start + 3)] != 0x3A:
        return False, np.int64(0)
    sign = text[np.uint64(start)]
    hour, minute = _two_digits(text, start + 1), _two_digits(text, start + 4)
    ahead = 3_600 * hour + 60 * minute
    known = (sign in (0x2B, 0x2D)) and 0 <= hour <= 23 and 0 <= minute <= 59
    return known, -ahead if sign == 0x2D else ahead


@inlined
def _fraction_end(text: Any, start: Any, end: Any) -> Any:
    """Return the end of the digits that begin at an offset."""
    while start < end and _digit(text, start) < 10:
        start += 1
    return start


@inlined
def _with_fraction(text: Any, start: Any, end: Any, seconds: Any) -> Any:
    """Return (kind, word, second word) of seconds and the digits of a fraction."""
    while end > start and text[np.uint64(end - 1)] == 0x30:
        end -= 1
    if end == start:
        return KIND_INT, seconds, np.int64(0)
    if end - start > _DIGITS_MAX:
        return KIND_ASK, np.int64(0), np.int64(0)
    fraction = np.int64(0)
    for i in range(start, end):
        fraction = 10 * fraction + _digit(text, i)
    unit = WHOLE_POWERS[end - start]
    word, fits = product_of(seconds, unit)
    if not fits:
        return KIND_ASK, np.int64(0), np.int64(0)
    return KIND_RATIO, word + fraction, unit


@inlined
def _clock(text: Any, i: Any) -> Any:
    """Return the seconds of ``HH:MM:SS``, including leap seconds; or _BAD."""
    if text[np.uint64(i + 2)] != 0x3A or text[np.uint64(i + 5)] != 0x3A:
        return np.int64(_BAD)
    hour, minute, second = _two_digits(text, i), _two_digits(text, i + 3), _two_digits(text, i + 6)
    if not (0 <= hour <= 23 and 0 <= minute <= 59 and 0 <= second <= 60):
        return np.int64(_BAD)
    return 3_600 * hour + 60 * minute + second


@inlined
def _day(text: Any, i: Any) -> Any:
    """Parse ``YYYY-MM-DD``: return (whether it is a valid day, days since 1970)."""
    century, years = _two_digits(text, i), _two_digits(text, i + 2)
    month, day = _two_digits(text, i + 5), _two_digits(text, i + 8)
    if text[np.uint64(i + 4)] != 0x2D or text[np.uint64(i + 7)] != 0x2D or century < 0 or years < 0:
        return False, np.int64(0)
    year = 100 * century + years
    if year == 0 or not 1 <= month <= 12:
        return False, np.int64(0)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= day <= _DAYS_OF_MONTHS[month] + (leap and month == 2):
        return False, np.int64(0)
    return True, _days_before(year, month, day)


@inlined
def _instant(text: Any, start: Any, length: Any) -> Any:
    """Parse an RFC 3339 timestamp, its offset optional, or a date: return (kind, word, second word)."""
    null = (KIND_NULL, np.int64(0), np.int64(0))
    if length != 10 and length < 19:
        return null
    known, days = _day(text, start)
    if not known:
        return null
    if length == 10:
        return KIND_INT, days * _DAY_S, np.int64(0)
    end = start + length
    between = text[np.uint64(start + 10)]
    clock = _clock(text, start + 11)
    if clock < 0 or not ((between | 0x20) == 0x74 or between == 0x20):
        return null
    begin = start + 19
    fraction_end = begin
    if begin < end and text[np.uint64(begin)] == 0x2E:
        begin += 1
        fraction_end = _fraction_end(text, begin, end)
        if fraction_end == begin or fraction_end - begin > _WRITTEN_MAX:
            return null
    ahead = np.int64(0)
    if fraction_end < end:
        known, ahead = _offset(text, fraction_end, end - fraction_end)
        if not known:
            return null
    seconds = days * _DAY_S + clock - ahead
    # A leap second ends a month in UTC.
    if _two_digits(text, start + 17) == 60 and (seconds % _DAY_S != 0 or civil(seconds // _DAY_S)[2] != 1):
        return null
    return _with_fraction(text, begin, fraction_end, seconds)


@inlined
def _since_midnight(text: Any, start: Any, length: Any) -> Any:
    """Parse ``HH:MM``, ``HH:MM:SS`` or ``HH:MM:SS.fff``: return (kind, word, second word)."""
    null = (KIND_NULL, np.int64(0), np.int64(0))
    if length < 5 or text[np.uint64(start + 2)] != 0x3A:
        return null
    hour, minute = _two_digits(text, start), _two_digits(text, start + 3)
    if not (0 <= hour <= 23 and 0 <= minute <= 59):
        return null
    seconds = 3_600 * hour + 60 * minute
    if length == 5:
        return KIND_INT, seconds, np.int64(0)
    second = _two_digits(text, start + 6) if length >= 8 else np.int64(_BAD)
    if text[np.uint64(start + 5)] != 0x3A or not 0 <= second <= 59:
        return null
    seconds += second
    if length == 8:
        return KIND_INT, seconds, np.int64(0)
    begin, end = start + 9, start + length
    if text[np.uint64(start + 8)] != 0x2E or begin == end or end - begin > _WRITTEN_MAX:
        return null
    if _fraction_end(text, begin, end) != end:
        return null
    return _with_fraction(text, begin, end, seconds)


@compiled
def read_times(given: Any, is_instant: Any, kinds: Any, words: Any, seconds: Any) -> None:
    """Write texts parsed as instants, or as intervals since midnight."""
    given_kinds, given_words, text = borrowed(given.kinds), borrowed(given.words), borrowed(given.text)
    kinds, words, seconds, step = borrowed(kinds), borrowed(words), borrowed(seconds), given.step
    for i in range(kinds.size):
        fetch_ahead(text, given_words, i, step)
        kind, word = given_kinds[i * step], given_words[i * step]
        if kind != KIND_STRING:
            kinds[i], words[i], seconds[i] = KIND_ASK if kind == KIND_ANY else KIND_NULL, 0, 0
        elif is_instant:
            kinds[i], words[i], seconds[i] = _instant(text, word >> 32, word & 0xFFFFFFFF)
        else:
            kinds[i], words[i], seconds[i] = _since_midnight(text, word >> 32, word & 0xFFFFFFFF)


@inlined
def _part(part: Any, seconds: Any) -> Any:
    """Return a part of a local time that is an integer."""
    if part == HOUR:
        return seconds % _DAY_S // 3_600
    if part == MINUTE:
        return seconds % 3_600 // 60
    days = seconds // _DAY_S
    if part == DATE:
        return days * _DAY_S
    if part == WEEKDAY:
        return (days + 3) % 7 + 1
    year, month, day = civil(days)
    return year if part == YEAR else month if part == MONTH else day


@inlined
def _rest(word: Any, denominator: Any, ahead: Any, length: Any) -> Any:
    """Return (kind, word, second word) of the seconds of a local time since the last multiple of `length`."""
    shift, fits = product_of(ahead, denominator)
    whole, also = product_of(length, denominator)
    if denominator == 0 or not fits or not also or not abs(float(word) + float(shift)) < 9.2e18:
        return KIND_ASK, np.int64(0), np.int64(0)
    rest = (word + shift) % whole
    return (KIND_INT, rest, np.int64(0)) if denominator == 1 else (KIND_RATIO, rest, denominator)


@compiled
def take_parts(part: Any, given: Any, offsets: Any, kinds: Any, words: Any, seconds: Any) -> None:
    """Write a part of each instant, in the local time of an offset."""
    given_kinds, given_words = borrowed(given.kinds), borrowed(given.words)
    given_seconds, step, offset_step = borrowed(given.seconds), given.step, offsets.step
    offset_kinds, offset_words, text = (
        borrowed(offsets.kinds),
        borrowed(offsets.words),
        borrowed(offsets.text),
    )
    kinds, words, seconds = borrowed(kinds), borrowed(words), borrowed(seconds)
    known, ahead, guess = False, np.int64(0), np.int64(2)
    for i in range(kinds.size):
        j, k = i * step, i * offset_step
        kind, word = given_kinds[j], given_words[j]
        second = second_of(kind, given_seconds, j)
        if i == 0 or offset_step:
            known, ahead = False, np.int64(0)
            if offset_kinds[k] == KIND_STRING:
                known, ahead = _offset(text, offset_words[k] >> 32, offset_words[k] & 0xFFFFFFFF)
        kinds[i], words[i], seconds[i] = KIND_NULL, 0, 0
        if not known or not has_arithmetic(kind, word):
            if offset_kinds[k] == KIND_ANY:
                kinds[i] = KIND_ASK
        elif part in (TIME_OF_DAY, SECOND):
            length = np.int64(60 if part == SECOND else _DAY_S)
            numerator, denominator, guess = fraction_of(kind, word, second, guess)
            kinds[i], words[i], seconds[i] = _rest(numerator, denominator, ahead, length)
        else:
            found, whole = floor_of(kind, word, second)
            if found and abs(whole) < 1 << 60:
                kinds[i], words[i] = KIND_INT, _part(part, whole + ahead)
            else:
                kinds[i] = KIND_ASK
