"""The ``eventbridge`` dialect: Amazon EventBridge event patterns, over CloudEvents."""

from __future__ import annotations

from fieldfare.filters.errors import FilterError, Problem
from fieldfare.filters.eventbridge.parser import parse_pattern
from fieldfare.filters.eventbridge.translate import TooComplexError, translate
from fieldfare.filters.expression import Expression


def parse_eventbridge(text: str) -> tuple[Expression, tuple[Problem, ...]]:
    """Parse an event pattern; return its expression and warnings.

    Raises
    ------
    FilterError
        The pattern is invalid; the problems are in the order of the text.
    """
    pattern, warnings = parse_pattern(text)
    try:
        return translate(pattern), warnings
    except TooComplexError as error:
        hint = "nest fewer objects in each other, especially around fields that may be absent"
        raise FilterError(text, [Problem(str(error), 1, 1, hint, 0)]) from None
