"""Sets of attribute values in words: ``a number above 5``, ``'x', 'y' or missing``."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from fieldfare.filters import values as sets
from fieldfare.filters.needles import AT_END, AT_START, FOLDED, Needle
from fieldfare.filters.sql.printer import format_literal
from fieldfare.filters.values import AFTER, BEFORE, Cut, Ranges, ValueSet, with_prefix

SHOWN_VALUES_MAX = 8
"""Maximum single values of a set that are shown; the rest is counted."""

SHOWN_CHARACTERS_MAX = 60
"""Maximum characters of a text that are shown; a longer one is cut."""

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
"""The cuts around a contiguous part of a region; None for no bound."""


def describe_values(values: ValueSet) -> str:
    """Describe a set of values in words: ``a number above 5 or null``."""
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
    """Describe a needle in words: ``contains 'storm'``."""
    places = {0: "contains", AT_START: "starts with", AT_END: "ends with", AT_START | AT_END: "is"}
    whatever = ", ignoring case" if needle.kind & FOLDED else ""
    return f"{places[needle.kind & ~FOLDED]} {show_value(needle.text)}{whatever}"


def one_of(pieces: list[str]) -> str:
    """Join words: ``a``, ``a or b``, ``a, b or c``."""
    if len(pieces) < 2:
        return "".join(pieces)
    return f"{', '.join(pieces[:-1])} or {pieces[-1]}"


def shortened(text: str, most: int = SHOWN_CHARACTERS_MAX) -> str:
    """Return a text, cut if it is long; characters that cannot be printed are escaped."""
    if len(text) > most:
        text = text[: most - 4] + " ..."
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def show_value(value: Any) -> str:
    """Return a constant as an ``sql`` literal, cut if it is long."""
    if isinstance(value, Decimal) and value == value.to_integral_value():
        value = int(value)
    if isinstance(value, str) and len(value) > SHOWN_CHARACTERS_MAX:
        return shortened(format_literal(value)) + "'"
    return shortened(format_literal(value))


def _pieces(values: ValueSet) -> list[str]:
    numbers, number_phrases = _describe_ranges(values.numbers, "number")
    strings, string_phrases = _describe_ranges(values.strings, "string")
    atoms = [name for atom, name in _ATOMS if values.atoms & atom]
    return numbers + strings + number_phrases + string_phrases + atoms


def _describe_ranges(ranges: Ranges, kind: str) -> tuple[list[str], list[str]]:
    """Describe one region of a set: return its single values, and phrases for its ranges."""
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
    if len(phrases) > SHOWN_VALUES_MAX:
        phrases = [*phrases[:SHOWN_VALUES_MAX], f"in one of {len(phrases) - SHOWN_VALUES_MAX:,} more ranges"]
    return _shown(points), phrases


def intervals(ranges: Ranges) -> list[Interval]:
    """Return the contiguous parts of a set of numbers or of strings, in order."""
    bounds: list[Cut | None] = [None, *ranges.cuts] if ranges.starts_inside else list(ranges.cuts)
    if len(bounds) % 2:
        bounds.append(None)
    return list(zip(bounds[::2], bounds[1::2], strict=True))


def _points(ranges: Ranges) -> list[Any] | None:
    """Return the values of a set that consists of single values; None for other sets."""
    parts = intervals(ranges)
    return [high[0] for low, high in parts if high] if all(_is_point(*part) for part in parts) else None


def _is_point(low: Cut | None, high: Cut | None) -> bool:
    if high == ("", AFTER):
        return True  # no string lies below the empty one
    return low is not None and high is not None and low[0] == high[0]


def _shown(values: list[Any]) -> list[str]:
    if len(values) <= SHOWN_VALUES_MAX + 1:
        return [show_value(value) for value in values]
    first = [show_value(value) for value in values[:SHOWN_VALUES_MAX]]
    return [*first, f"one of {len(values) - SHOWN_VALUES_MAX:,} more values"]


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
