"""Functions over time: timestamps in the format of RFC 3339, dates, intervals, times of day, parts of a date.

A timestamp is represented as the exact number of seconds since 1970-01-01T00:00:00Z, without leap
seconds, in the proleptic Gregorian calendar; an interval as a number of seconds. There is no time zone
database: functions that depend on a zone take a fixed offset, or use UTC.
"""

from __future__ import annotations

import math
import re
from calendar import monthrange
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any

from fieldfare.filters.exact import rational
from fieldfare.filters.expression import Arithmetic, Call, Expression, Literal
from fieldfare.filters.functions.numbers import widened
from fieldfare.filters.functions.table import Function, Parameter, Requirements, Type
from fieldfare.filters.values import BEFORE, Ranges, ValueSet

FRACTION_DIGITS_MAX = 100
"""Maximum digits of a fraction of a second; a text with more is not a timestamp."""

DAY_S = 86_400

Number = int | Fraction

_MOMENT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))?)?"
)
_TIME = re.compile(r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?")
_OFFSET = re.compile(r"[Zz]|([+-])([0-9]{2}):([0-9]{2})")
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_CYCLE_DAYS = 146_097
"""Days in 400 years, after which the Gregorian calendar repeats itself."""


def timestamp(text: str) -> Number | None:
    """Parse a timestamp of RFC 3339, with or without its offset, or a date, to seconds since 1970.

    None for other texts. A timestamp without offset is in UTC, as the columns DATE and TIMESTAMP_NTZ of a
    table are; a date is its midnight.
    """
    found = _MOMENT.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = [int(part or 0) for part in found.groups()[:6]]
    fraction, sign, offset_hour, offset_minute = found.groups()[6:]
    if not (year and 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]):
        return None
    if hour > 23 or minute > 59 or second > 60 or (fraction and len(fraction) > FRACTION_DIGITS_MAX):
        return None
    days = date(year, month, day).toordinal() - _EPOCH_DAY
    seconds = days * DAY_S + hour * 3600 + minute * 60 + second
    if sign:
        if int(offset_hour) > 23 or int(offset_minute) > 59:
            return None
        offset = int(offset_hour) * 3600 + int(offset_minute) * 60
        seconds += -offset if sign == "+" else offset
    if second == 60 and not _starts_a_month(seconds):
        return None  # a leap second is the last second of a month, in UTC
    return rational(seconds + Fraction(int(fraction), 10 ** len(fraction))) if fraction else seconds


def _starts_a_month(seconds: int) -> bool:
    return seconds % DAY_S == 0 and civil(seconds // DAY_S)[2] == 1


def civil(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a day counted from 1970; also for years beyond those of ``date``."""
    ordinal = days + _EPOCH_DAY - 1
    cycles, within = divmod(ordinal, _CYCLE_DAYS)
    found = date.fromordinal(within + 1)
    return found.year + 400 * cycles, found.month, found.day


def time_of_day(text: str) -> Number | None:
    """Parse ``HH:MM``, ``HH:MM:SS`` or ``HH:MM:SS.fff`` to seconds since midnight; None for other texts."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    hour, minute, second, fraction = found.groups()
    if int(hour) > 23 or int(minute) > 59 or int(second or 0) > 59:
        return None
    if fraction and len(fraction) > FRACTION_DIGITS_MAX:
        return None
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second or 0)
    return rational(seconds + Fraction(int(fraction), 10 ** len(fraction))) if fraction else seconds


def offset_seconds(text: str) -> int | None:
    """Parse an offset such as ``+02:00`` to seconds ahead of UTC; None for other texts."""
    found = _OFFSET.fullmatch(text)
    if found is None:
        return None
    sign, hour, minute = found.groups()
    if not sign:
        return 0
    if int(hour) > 23 or int(minute) > 59:
        return None
    return (int(hour) * 3600 + int(minute) * 60) * (-1 if sign == "-" else 1)


def _by_local_clock(part: Callable[[Number], Any]) -> Callable[..., Any]:
    """Return a function that computes a part of a timestamp by a clock with an offset from UTC."""

    def compute(instant: Number, offset: str = "Z") -> Any:
        ahead = offset_seconds(offset)
        return None if ahead is None else rational(part(instant + ahead))

    return compute


def _check_timestamp(text: Any) -> str:
    if timestamp(text) is not None:
        return ""
    return "this is not a timestamp; write one as 2026-01-31T12:00:00Z or 2026-01-31T14:00:00+02:00"


def _check_time(text: Any) -> str:
    return (
        "" if time_of_day(text) is not None else "this is not a time of day; write one as 09:30 or 09:30:00"
    )


def _check_offset(text: Any) -> str:
    if offset_seconds(text) is not None:
        return ""
    return "this is not an offset from UTC; write one as +02:00 (names of time zones are not supported)"


def _implied_timestamp(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements:
    """Return the texts whose date is within a day of a wanted timestamp; an offset is less than a day."""
    cuts: list[tuple[str, int]] = []
    inside = wanted.numbers.starts_inside
    bounds = [value for value, _ in wanted.numbers.cuts]
    if inside:
        bounds.insert(0, _FIRST_S)
    if len(bounds) % 2:
        bounds.append(_LAST_S)
    for low, high in zip(bounds[::2], bounds[1::2], strict=True):
        first, last = _day(low) - 1, _day(high) + 2
        if last <= _FIRST_DAY or first > _LAST_DAY:
            continue
        start = (_date_text(max(first, _FIRST_DAY)), BEFORE)
        end = (_date_text(last) if last <= _LAST_DAY else ":", BEFORE)
        if cuts and cuts[-1] >= start:
            cuts.pop()
        else:
            cuts.append(start)
        cuts.append(end)
    return [(operands[0], ValueSet(strings=Ranges(False, tuple(cuts))))], False


def _implied_day(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements:
    """Return the timestamps near the wanted days; an offset is less than a day."""
    near = widened(wanted.numbers, Decimal(DAY_S), Decimal(2 * DAY_S))
    return [(operands[0], ValueSet(numbers=near))], False


def _expand_days(operands: tuple[Expression, ...]) -> Expression:
    """Return DATEDIFF as the difference of two dates, in days."""
    end, start = (Call("DATE", (operand,)) for operand in operands)
    return Arithmetic("/", Arithmetic("-", end, start), Literal(DAY_S))


_FIRST_DAY, _LAST_DAY = date.min.toordinal() - _EPOCH_DAY, date.max.toordinal() - _EPOCH_DAY
_FIRST_S, _LAST_S = Decimal((_FIRST_DAY - 1) * DAY_S), Decimal((_LAST_DAY + 2) * DAY_S)


def _day(seconds: Decimal) -> int:
    """Return the day of a timestamp; for one beyond all dates, a day beyond them."""
    return math.floor(min(max(seconds, _FIRST_S * 2), _LAST_S * 2)) // DAY_S


def _date_text(days: int) -> str:
    return date.fromordinal(days + _EPOCH_DAY).isoformat()


_OFFSET_PARAMETER = Parameter("offset", Type.STRING, literal=True, optional=True, check=_check_offset)


def _part(name: str, summary: str, part: Callable[[Number], Any], result: Type = Type.NUMBER) -> Function:
    return Function(
        name=name,
        parameters=(Parameter("timestamp", Type.TIMESTAMP), _OFFSET_PARAMETER),
        result=result,
        summary=summary,
        group="Time",
        compute=_by_local_clock(part),
    )


FUNCTIONS = [
    Function(
        name="TIMESTAMP",
        parameters=(Parameter("text", Type.STRING, check=_check_timestamp),),
        result=Type.TIMESTAMP,
        summary="the point in time of a text in the format of RFC 3339, or the midnight of a date; "
        "in UTC if it has no offset",
        group="Time",
        compute=timestamp,
        implied=_implied_timestamp,
    ),
    Function(
        name="INTERVAL",
        parameters=(Parameter("seconds", Type.NUMBER),),
        result=Type.INTERVAL,
        summary="a length of time in seconds",
        group="Time",
        compute=lambda seconds: seconds,
        implied=lambda operands, wanted: ([(operands[0], ValueSet(numbers=wanted.numbers))], False),
    ),
    Function(
        name="TIME",
        parameters=(Parameter("text", Type.STRING, check=_check_time),),
        result=Type.INTERVAL,
        summary="the interval since midnight of a text such as `09:30` or `09:30:00`",
        group="Time",
        compute=time_of_day,
    ),
    _part(
        "TIME_OF_DAY",
        "the interval since midnight, by a clock with the offset (UTC)",
        lambda local: local % DAY_S,
        Type.INTERVAL,
    ),
    _part(
        "WEEKDAY",
        "the day of the week: 1 is Monday, 7 is Sunday",
        lambda local: (math.floor(local) // DAY_S + 3) % 7 + 1,
    ),
    Function(
        name="DATE",
        parameters=(Parameter("timestamp", Type.TIMESTAMP), _OFFSET_PARAMETER),
        result=Type.TIMESTAMP,
        summary="the day, as its midnight in UTC",
        group="Time",
        compute=_by_local_clock(lambda local: math.floor(local) // DAY_S * DAY_S),
        implied=_implied_day,
    ),
    Function(
        name="DATEDIFF",
        parameters=(Parameter("end", Type.TIMESTAMP), Parameter("start", Type.TIMESTAMP)),
        result=Type.NUMBER,
        summary="the number of days in UTC from the day of `start` to the day of `end`",
        group="Time",
        expand=_expand_days,
    ),
    _part("YEAR", "the year", lambda local: civil(math.floor(local) // DAY_S)[0]),
    _part("MONTH", "the month: 1 to 12", lambda local: civil(math.floor(local) // DAY_S)[1]),
    _part("DAY", "the day of the month: 1 to 31", lambda local: civil(math.floor(local) // DAY_S)[2]),
    _part("HOUR", "the hour: 0 to 23", lambda local: math.floor(local) % DAY_S // 3600),
    _part("MINUTE", "the minute: 0 to 59", lambda local: math.floor(local) % 3600 // 60),
    _part("SECOND", "the second, with its fraction: 0 to below 60", lambda local: local % 60),
]
