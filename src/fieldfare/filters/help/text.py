"""Explanations as text for people: plain lines, each of printable characters."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from fieldfare.filters.help.value_words import shortened, show_value
from fieldfare.filters.values import ABSENT, is_array

MAX_SHOWN_PARTS = 20
"""Of more parts of one statement, and of more conjunctions, only the first are shown."""

_MAX_LINE_CHARACTERS = 400


def shown(line: str) -> str:
    """A line, cut short where it is very long."""
    return shortened(line, _MAX_LINE_CHARACTERS)


def percent(count: int, size: int) -> str:
    """A share of a whole, to be read at a glance: ``12%``, ``0.3%``, ``<0.1%``."""
    share = 100 * count / size
    if 0 < share < 0.1:
        return "<0.1%"
    if 99.9 < share < 100:
        return ">99.9%"
    return f"{share:.1f}%" if 0 < share < 10 or 90 < share < 100 else f"{share:.0f}%"


def value_text(value: Any) -> str:
    """An event's value in a sentence: as ``sql`` writes it where it can, else as JSON."""
    if value is ABSENT:
        return "missing"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | Decimal):
        return show_value(value)
    if isinstance(value, float):
        return repr(value)
    kind = "the array " if is_array(value) else "the object "
    return kind + shortened(_json_text(value))


def _json_text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError, RecursionError):
        return str(type(value).__name__)
