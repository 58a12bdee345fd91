"""Checks of a filter's text that come before parsing, for all dialects."""

from __future__ import annotations

from fieldfare.filters.errors import FilterError, Mistake, Problem, problem_at

TEXT_BYTES_MAX = 65_536
"""Maximum UTF-8 bytes of a filter; longer ones are rejected."""

SIZE_MAX = 4_096
"""Maximum size of a filter in `sql` or `cesql`; larger ones are rejected. Names, operators, keywords and
parentheses count 1."""

DIGITS_MAX = 1_000
"""Maximum digits of a number in a filter, and of its exponent's magnitude; others are rejected."""

PROBLEMS_MAX = 10
"""Maximum problems reported for one filter; the others are left out."""


class ProblemRecorder:
    """The problems that a parser finds in a filter's text, at most one at each place."""

    text: str
    problems: list[Problem]

    def note(self, mistake: Mistake) -> None:
        """Record a mistake as a problem, unless there is one at the same place."""
        problem = mistake.problem(self.text)
        if all((problem.line, problem.column) != (known.line, known.column) for known in self.problems):
            self.problems.append(problem)

    def record(self, mistake: Mistake) -> None:
        """Record a mistake; raise a fatal one if there are ``PROBLEMS_MAX``."""
        self.note(mistake)
        if len(self.problems) >= PROBLEMS_MAX:
            raise Mistake(mistake.start, mistake.end, "too many mistakes", fatal=True)


def refuse_unreadable(text: str) -> None:
    """Raise FilterError for a text that is too long, blank, or not valid Unicode."""
    size = len(text)
    try:
        if size <= TEXT_BYTES_MAX and not text.isascii():
            size = len(text.encode())
    except UnicodeEncodeError as error:
        problem = problem_at(text, error.start, error.end, "this is half of a character (a lone surrogate)")
        raise FilterError(text, [problem]) from None
    if size > TEXT_BYTES_MAX:
        message = f"the filter is too long: {size:,} bytes, at most {TEXT_BYTES_MAX:,} are allowed"
        raise FilterError(text, [Problem(message, 1, 1, "", 0)])
    if not text.strip():
        raise FilterError(text, [Problem("the filter is empty", 1, 1, "write TRUE to match every event", 0)])
