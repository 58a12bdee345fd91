"""What the text of any filter must be before a parser looks at it."""

from __future__ import annotations

from fieldfare.filters.errors import FilterError, Problem, problem_at

MAX_TEXT_BYTES = 65_536
"""How long a filter may be, in UTF-8."""


def refuse_unreadable(text: str) -> None:
    """FilterError for a text that is too long, empty, or not Unicode."""
    size = len(text)
    try:
        if size <= MAX_TEXT_BYTES and not text.isascii():
            size = len(text.encode())
    except UnicodeEncodeError as error:
        problem = problem_at(text, error.start, error.end, "this is half of a character (a lone surrogate)")
        raise FilterError(text, [problem]) from None
    if size > MAX_TEXT_BYTES:
        message = f"the filter is too long: {size:,} bytes, at most {MAX_TEXT_BYTES:,} are allowed"
        raise FilterError(text, [Problem(message, 1, 1, "", 0)])
    if not text.strip():
        raise FilterError(text, [Problem("the filter is empty", 1, 1, "write TRUE to match every event", 0)])
