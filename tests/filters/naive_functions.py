"""Naive implementations of the functions, written from the tables in docs/filter-functions.md."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from fieldfare.filters.exact import BITS_MAX, SUM_BITS
from fieldfare.filters.functions.table import CHARACTERS_MAX
from fieldfare.filters.values import ABSENT

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CYCLE_S = 146_097 * 86_400


class NoValue(Exception):
    """Raised if a function has no result."""


def call(name: str, values: list[Any]) -> Any:
    """Return a function's result, or None if it has no value for the operands."""
    if name in OF_ANY_TYPE:
        return OF_ANY_TYPE[name]([None if value is ABSENT else value for value in values])
    try:
        result = FUNCTIONS[name](*values)
    except NoValue:
        return None
    return bounded(result) if isinstance(result, Fraction) else result


class Sum(Fraction):
    """A sum or a difference, or its absolute value, which may be longer than other results."""

    def __abs__(self) -> Sum:
        return Sum(super().__abs__())


def bounded(value: Fraction) -> Fraction:
    if max(abs(value.numerator), value.denominator) >= 2 ** (
        SUM_BITS if isinstance(value, Sum) else BITS_MAX
    ):
        raise NoValue
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise NoValue
    return value


def number(value: Any) -> Fraction:
    """Return a number that is short enough for arithmetic."""
    return bounded(exactly(value))


def exactly(value: Any) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | Fraction):
        raise NoValue
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NoValue
        return Fraction(repr(value))
    return value if isinstance(value, Fraction) else Fraction(value)


def whole(value: Any) -> int:
    found = number(value)
    if found.denominator != 1:
        raise NoValue
    return int(found)


def texts(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: function(*map(text, values))


def numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: function(*map(number, values))


def not_too_long(result: str, least: int = 0) -> str:
    if len(result) > max(CHARACTERS_MAX, least):
        raise NoValue
    return result


def trim(left: bool, right: bool) -> Callable[..., str]:
    def trimmed(value: str, characters: str = " ") -> str:
        while left and value and value[0] in characters:
            value = value[1:]
        while right and value and value[-1] in characters:
            value = value[:-1]
        return value

    return texts(trimmed)


def substring(value: Any, start: Any, *count: Any) -> str:
    characters, first = text(value), whole(start)
    size = whole(count[0]) if count else None
    if size is not None and size < 0:
        raise NoValue
    places = enumerate(characters, 1)
    return "".join(c for place, c in places if place >= first and (size is None or place < first + size))


def end_of(value: Any, count: Any, right: bool) -> str:
    characters, size = text(value), whole(count)
    if size < 0:
        raise NoValue
    places = range(len(characters))
    if right:
        return "".join(characters[i] for i in places if len(characters) - i <= size)
    return "".join(characters[i] for i in places if i < size)


def replaced(value: str, old: str, new: str) -> str:
    return not_too_long(new.join(value.split(old)), len(value)) if old else value


def position(part: str, value: str) -> int:
    for start in range(len(value) + 1):
        if value[start : start + len(part)] == part:
            return start + 1
    return 0


def rounded(value: Any, *digits: Any) -> Fraction:
    places = whole(digits[0]) if digits else 0
    if not -100 <= places <= 100:
        raise NoValue
    shifted = number(value) * Fraction(10) ** places
    below = Fraction(math.floor(shifted))
    nearest = below if shifted - below < Fraction(1, 2) else below + 1
    if shifted - below == Fraction(1, 2) and shifted < 0:
        nearest = below
    return nearest / Fraction(10) ** places


def as_number(value: Any) -> Fraction:
    if isinstance(value, str):
        if (
            not re.fullmatch(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?\s*", value, re.ASCII)
            or len(value) > 1000
        ):
            raise NoValue
        return bounded(Fraction(Decimal(value)))
    return number(value)


def seconds_of(text_of_time: Any) -> Fraction:
    """Parse a timestamp with ``datetime``, which supports most of them, but no leap seconds."""
    value = text(text_of_time)
    if re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
        value += "T00:00:00"
    if re.fullmatch(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,100})?", value, re.ASCII):
        value += "Z"
    shape = r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:)(\d\d)(\.\d{1,100})?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
    found = re.fullmatch(shape, value, re.ASCII)
    if not found:
        raise NoValue
    day, clock, second, fraction, offset, _ = found.groups()
    leap = second == "60"
    try:
        local = datetime.fromisoformat(f"{day}T{clock}{'59' if leap else second}")
    except ValueError:
        raise NoValue from None
    seconds = (local - EPOCH.replace(tzinfo=None)) // timedelta(seconds=1) - ahead_of_utc(offset)
    if leap:
        seconds += 1
        if seconds % 86_400 or date_of(Fraction(seconds)).day != 1:
            raise NoValue
    return Fraction(seconds) + Fraction(f"0{fraction}" if fraction else 0)


def ahead_of_utc(offset: str) -> int:
    if not re.fullmatch(r"[Zz]|[+-]([01]\d|2[0-3]):[0-5]\d", offset, re.ASCII):
        raise NoValue
    if offset in "Zz":
        return 0
    return (int(offset[1:3]) * 60 + int(offset[4:])) * 60 * (-1 if offset[0] == "-" else 1)


def date_of(seconds: Fraction) -> date:
    return (EPOCH + timedelta(days=math.floor(seconds / 86_400))).date()


def local_clock(part: Callable[[datetime, Fraction, int], Any]) -> Callable[..., Any]:
    """Compute from a local time: a ``datetime``, its fraction of a second, omitted cycles of 400 years."""

    def compute(instant: Any, offset: Any = "Z") -> Any:
        seconds = number(instant) + ahead_of_utc(text(offset))
        cycles = math.floor((seconds + 30_000_000_000) / CYCLE_S)
        within = seconds - cycles * CYCLE_S
        return part(EPOCH + timedelta(seconds=math.floor(within)), within % 1, cycles)

    return compute


def since_midnight(value: Any) -> Fraction:
    found = re.fullmatch(r"([01]\d|2[0-3]):([0-5]\d)(:([0-5]\d(\.\d{1,100})?))?", text(value), re.ASCII)
    if not found:
        raise NoValue
    return (int(found[1]) * 60 + int(found[2])) * 60 + Fraction(found[4] or 0)


def distance(*place: Fraction) -> Fraction:
    """Compute the distance by the angle between two vectors, which is exact near poles and antipodes too."""
    latitude, longitude, latitude_2, longitude_2 = place
    if max(abs(latitude), abs(latitude_2)) > 90 or max(abs(longitude), abs(longitude_2)) > 180:
        raise NoValue
    a, b = (vector(*pair) for pair in ((latitude, longitude), (latitude_2, longitude_2)))
    cross = math.hypot(a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
    angle = math.atan2(cross, sum(x * y for x, y in zip(a, b, strict=True)))
    return Fraction(f"{6371.0088 * angle:.6f}")


def vector(latitude: Fraction, longitude: Fraction) -> tuple[float, float, float]:
    phi, theta = math.radians(latitude), math.radians(longitude)
    return math.cos(phi) * math.cos(theta), math.cos(phi) * math.sin(theta), math.sin(phi)


def within_box(*values: Any) -> bool | None:
    """Test latitude and longitude one by one with three-valued logic, as with BETWEEN."""
    south, west, north, east = map(number, values[2:])

    def tested(value: Any, test: Callable[[Any], bool]) -> bool | None:
        if isinstance(value, float) and math.isinf(value):
            return False
        try:
            return test(exactly(value))
        except NoValue:
            return None

    def fits(longitude: Fraction) -> bool:
        same = {longitude, -longitude} if abs(longitude) == 180 else {longitude}
        if west <= east:
            return any(west <= one <= east for one in same)
        return any(west <= one <= 180 or -180 <= one <= east for one in same)

    found = [tested(values[0], lambda latitude: south <= latitude <= north), tested(values[1], fits)]
    return False if False in found else None if None in found else True


def midnight(moment: datetime) -> Fraction:
    return Fraction((moment.date() - EPOCH.date()).days * 86_400)


def cut(value: Any, bound: int) -> Fraction:
    if isinstance(value, bool):
        return Fraction(value)
    if isinstance(value, str) and not re.fullmatch(r"\s*[+-]?\d+\s*", value, re.ASCII):
        raise NoValue
    whole_part = math.trunc(as_number(value))
    if not -bound <= whole_part < bound:
        raise NoValue
    return Fraction(whole_part)


def as_decimal(value: Any, *digits: Any) -> Fraction:
    precision, scale = [*map(whole, digits), *(10, 0)[len(digits) :]]
    result = rounded(Fraction(value) if isinstance(value, bool) else as_number(value), scale)
    if abs(result) * Fraction(10) ** scale >= 10**precision:
        raise NoValue
    return result


def as_string(value: Any) -> str:
    """Format a number digit by digit; an infinite fraction has no value."""
    if isinstance(value, str | bool):
        return str(value).lower() if isinstance(value, bool) else value
    exact = number(value)
    whole_part, rest = divmod(abs(exact), 1)
    digits = ""
    while rest:
        digit, rest = divmod(rest * 10, 1)
        digits += str(digit)
        if len(digits) > CHARACTERS_MAX:
            raise NoValue
    return f"{'-' * (exact < 0)}{whole_part}{'.' * bool(digits)}{digits}"


def as_truth(value: Any) -> bool:
    if isinstance(value, str):
        word = value.strip(" \t\n\v\f\r").lower()
        if word in ("true", "t", "yes", "y", "1"):
            return True
        if word in ("false", "f", "no", "n", "0"):
            return False
        raise NoValue
    return value if isinstance(value, bool) else number(value) != 0


def compound(value: Any) -> Any:
    if not isinstance(value, list | dict):
        raise NoValue
    return value


def element_at(value: Any, place: Any) -> Any:
    if isinstance(place, str):
        return value.get(place) if isinstance(value, dict) else None
    elements, index = compound(value), whole(place)
    if isinstance(elements, dict) or not 1 <= abs(index) <= len(elements):
        raise NoValue
    return elements[index - 1 if index > 0 else index]


def sort(left: Any, right: Any) -> int | None:
    """Return -1, 0, 1, or None for values that cannot be compared."""
    if isinstance(left, str) and isinstance(right, str):
        return (left > right) - (left < right)
    if isinstance(left, bool) or isinstance(right, bool):
        return left - right if isinstance(left, bool) and isinstance(right, bool) else None
    try:
        a, b = (each if each in (math.inf, -math.inf) else exactly(each) for each in (left, right))
    except (NoValue, TypeError):
        return None
    return (a > b) - (a < b)


def best_of(wanted: int) -> Callable[[list[Any]], Any]:
    def best(values: list[Any]) -> Any:
        there = [value for value in values if value is not None]
        if any(sort(one, other) is None for one in there for other in there):
            return None
        return next((one for one in there if all(sort(one, other) in (wanted, 0) for other in there)), None)

    return best


def same(values: list[Any]) -> bool:
    left, right = values
    return left is right if None in (left, right) else sort(left, right) == 0


def case_of(values: list[Any]) -> Any:
    conditions, results = values[:-1:2], [*values[1:-1:2], values[-1]]
    first_true = [place for place, condition in enumerate(conditions) if condition is True][:1]
    return results[first_true[0] if first_true else -1]


OF_ANY_TYPE: dict[str, Callable[[list[Any]], Any]] = {
    "COALESCE": lambda values: next((value for value in values if value is not None), None),
    "NULLIF": lambda values: None if sort(*values) == 0 else values[0],
    "GREATEST": best_of(1),
    "LEAST": best_of(-1),
    "EQUAL_NULL": same,
    "CASE": case_of,
}
"""The functions that accept missing values."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "LENGTH": texts(lambda value: sum(1 for _ in value)),
    "LOWER": texts(lambda value: value.lower()),
    "UPPER": texts(lambda value: "".join(c.upper() for c in value)),
    "CASEFOLD": texts(lambda value: "".join(c.casefold() for c in value)),
    "TRIM": trim(True, True),
    "LTRIM": trim(True, False),
    "RTRIM": trim(False, True),
    "SUBSTRING": substring,
    "LEFT": lambda value, count: end_of(value, count, False),
    "RIGHT": lambda value, count: end_of(value, count, True),
    "CONCAT": texts(lambda *values: not_too_long("".join(values))),
    "REPLACE": texts(replaced),
    "POSITION": texts(position),
    "STARTS_WITH": texts(lambda value, part: value[: len(part)] == part),
    "ENDS_WITH": texts(lambda value, part: part == "" or value[-len(part) :] == part),
    "CONTAINS": texts(lambda value, part: part in value),
    "ABS": numbers(lambda value: value if value >= 0 else -value),
    "ROUND": rounded,
    "FLOOR": numbers(lambda value: Fraction(value.numerator // value.denominator)),
    "CEIL": numbers(lambda value: Fraction(-(-value.numerator // value.denominator))),
    "NUMBER": as_number,
    "BIGINT": lambda value: cut(value, 2**63),
    "INT": lambda value: cut(value, 2**31),
    "DECIMAL": as_decimal,
    "STRING": as_string,
    "BOOLEAN": as_truth,
    "CARDINALITY": lambda value: len(compound(value)),
    "ELEMENT_AT": element_at,
    "DATE": local_clock(lambda t, f, cycles: midnight(t) + cycles * CYCLE_S),
    "DATEDIFF": numbers(lambda end, start: Fraction(end // 86_400 - start // 86_400)),
    "TIMESTAMP": seconds_of,
    "INTERVAL": number,
    "TIME": since_midnight,
    "TIME_OF_DAY": local_clock(lambda t, f, _: Fraction(t.hour * 3600 + t.minute * 60 + t.second) + f),
    "WEEKDAY": local_clock(lambda t, f, _: t.isoweekday()),
    "YEAR": local_clock(lambda t, f, cycles: t.year + 400 * cycles),
    "MONTH": local_clock(lambda t, f, _: t.month),
    "DAY": local_clock(lambda t, f, _: t.day),
    "HOUR": local_clock(lambda t, f, _: t.hour),
    "MINUTE": local_clock(lambda t, f, _: t.minute),
    "SECOND": local_clock(lambda t, f, _: t.second + f),
    "WITHIN_BOX": within_box,
    "DISTANCE_KM": numbers(distance),
}
