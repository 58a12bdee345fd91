"""Sets of attribute values in words: ``a number above 5``, ``'x', 'y' or missing``."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from fieldfare.filters import values as sets
from fieldfare.filters.needles import AT_END, AT_START, FOLDED, Needle
from fieldfare.filters.sql.printer import format_literal
from fieldfare.filters.values import AFTER, BEFORE, Cut, Ranges, ValueSet, with_prefix

MAX_SHOWN_VALUES = 8
"""Of more single values than this only the first are named."""

MAX_SHOWN_CHARACTERS = 60
"""How much of a long text is shown."""

_ATOMS = (
    (sets.TRUE, "true"),
    (sets.FALSE, "false"),
    (sets.OTHER, "an array or an object"),
    (sets.NULL, "null"),
    (sets.MISSING, "missing"),
)
_PRESENT = ValueSet(sets.MISSING).complement()
_HAS_VALUE = ValueSet(sets.MISSING | sets.NULL).complement()

Interval = tuple[Cut | None, Cut | None]
"""The cuts around a connected part of a region; None where it has no bound."""


def describe_values(values: ValueSet) -> str:
    """What an attribute is whose value lies in a set: ``a number above 5 or null``."""
    if values.is_full:
        return "anything"
    if values == _PRESENT:
        return "present"
    if values == _HAS_VALUE:
        return "neither missing nor null"
    if values.atoms & sets.OTHER and not values.numbers.is_empty and not values.strings.is_empty:
        return f"anything but {one_of(_pieces(values.complement()))}"
    return one_of(_pieces(values)) or "nothing"


def describe_needle(needle: Needle) -> str:
    """What a string does that has a needle: ``contains 'storm'``."""
    places = {0: "contains", AT_START: "starts with", AT_END: "ends with", AT_START | AT_END: "is"}
    whatever = ", whatever its case" if needle.kind & FOLDED else ""
    return f"{places[needle.kind & ~FOLDED]} {show_value(needle.text)}{whatever}"


def one_of(pieces: list[str]) -> str:
    """``a``, ``a or b``, ``a, b or c``."""
    if len(pieces) < 2:
        return "".join(pieces)
    return f"{', '.join(pieces[:-1])} or {pieces[-1]}"


def shortened(text: str, most: int = MAX_SHOWN_CHARACTERS) -> str:
    """The text, or its beginning if it is long; what cannot be printed is escaped."""
    if len(text) > most:
        text = text[: most - 4] + " ..."
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def show_value(value: Any) -> str:
    """A constant as ``sql`` writes it, if it is not too long."""
    if isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    if isinstance(value, str) and len(value) > MAX_SHOWN_CHARACTERS:
        return shortened(format_literal(value)) + "'"
    return shortened(format_literal(value))


def _pieces(values: ValueSet) -> list[str]:
    numbers, number_phrases = _describe_ranges(values.numbers, "number")
    strings, string_phrases = _describe_ranges(values.strings, "string")
    atoms = [name for atom, name in _ATOMS if values.atoms & atom]
    return numbers + strings + number_phrases + string_phrases + atoms


def _describe_ranges(ranges: Ranges, kind: str) -> tuple[list[str], list[str]]:
    """A region's part of a set: its single values, and phrases for what is more than one."""
    if ranges.is_empty:
        return [], []
    if ranges.is_full:
        return [], [f"any {kind}"]
    others = _points(ranges.complement())
    if others is not None:
        if others == [""]:
            return [], ["a string that is not empty"]
        return [], [f"a {kind} other than {one_of(_shown(others))}"]
    points, phrases = [], []
    for low, high in intervals(ranges):
        if _is_point(low, high):
            assert high is not None
            points.append(high[0])
        else:
            phrases.append(_describe_interval(low, high, kind))
    if len(phrases) > MAX_SHOWN_VALUES:
        phrases = [*phrases[:MAX_SHOWN_VALUES], f"in one of {len(phrases) - MAX_SHOWN_VALUES:,} more ranges"]
    return _shown(points), phrases


def intervals(ranges: Ranges) -> list[Interval]:
    """The connected parts of a set of numbers or of strings, in order."""
    bounds: list[Cut | None] = [None, *ranges.cuts] if ranges.starts_inside else list(ranges.cuts)
    if len(bounds) % 2:
        bounds.append(None)
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def _points(ranges: Ranges) -> list[Any] | None:
    """The values of a set that has but single values."""
    parts = intervals(ranges)
    return [high[0] for low, high in parts if high] if all(_is_point(*part) for part in parts) else None


def _is_point(low: Cut | None, high: Cut | None) -> bool:
    if high == ("", AFTER):
        return True  # no string lies below the empty one
    return low is not None and high is not None and low[0] == high[0]


def _shown(values: list[Any]) -> list[str]:
    if len(values) <= MAX_SHOWN_VALUES + 1:
        return [show_value(value) for value in values]
    first = [show_value(value) for value in values[:MAX_SHOWN_VALUES]]
    return [*first, f"one of {len(values) - MAX_SHOWN_VALUES:,} more values"]


def _describe_interval(low: Cut | None, high: Cut | None, kind: str) -> str:
    if kind == "string" and low and low[1] == BEFORE and with_prefix(low[0]) == _interval(low, high):
        return f"a string that starts with {show_value(low[0])}"
    if low and high and low[1] == BEFORE and high[1] == AFTER:
        return f"a {kind} from {show_value(low[0])} to {show_value(high[0])}"
    at_least, above, below, at_most = (
        ("of at least", "above", "below", "of at most")
        if kind == "number"
        else ("from", "after", "before", "up to")
    )
    bounds = []
    if low:
        on = " on" if kind == "string" and low[1] == BEFORE else ""
        bounds.append(f"{at_least if low[1] == BEFORE else above} {show_value(low[0])}{on}")
    if high:
        bounds.append(f"{below if high[1] == BEFORE else at_most} {show_value(high[0])}")
    return f"a {kind} {' and '.join(bounds)}"


def _interval(low: Cut, high: Cut | None) -> Ranges:
    return Ranges(False, (low,) if high is None else (low, high))
