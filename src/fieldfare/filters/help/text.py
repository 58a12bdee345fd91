"""Formatting of explanations as text: lines of printable characters."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from fieldfare.filters.help.value_words import shortened, show_value
from fieldfare.filters.values import ABSENT, is_array

SHOWN_PARTS_MAX = 20
"""Maximum parts of a statement, and maximum conjunctions, that are shown; the rest is counted."""

_LINE_CHARACTERS_MAX = 400


def shown(line: str) -> str:
    """Return a line, cut if it is very long."""
    return shortened(line, _LINE_CHARACTERS_MAX)


def percent(count: int, size: int) -> str:
    """Format a share as a rounded percentage: ``12%``, ``0.3%``, ``<0.1%``."""
    share = 100 * count / size
    if 0 < share < 0.1:
        return "<0.1%"
    if 99.9 < share < 100:
        return ">99.9%"
    return f"{share:.1f}%" if 0 < share < 10 or 90 < share < 100 else f"{share:.0f}%"


def value_text(value: Any) -> str:
    """Format an event's value for a sentence: as an ``sql`` literal if possible, else as JSON."""
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
