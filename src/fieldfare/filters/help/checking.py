"""All that is wrong with a filter's text, and all that is allowed but most likely not meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fieldfare.filters.errors import FilterError, Problem, display
from fieldfare.filters.filter import compile_filter
from fieldfare.filters.help.explanation import filter_cautions, is_said_by


@dataclass(frozen=True, slots=True)
class Check:
    """What a check found; ``str()`` shows each problem and warning with its place.

    Attributes
    ----------
    text, dialect
        The filter.
    problems
        Why it cannot be used, with line, column and hint; none if it can.
    warnings
        What is allowed but most likely not meant. One without a place has the length 0.
    """

    text: str
    dialect: str
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]

    @property
    def is_valid(self) -> bool:
        """Whether the filter can be used."""
        return not self.problems

    def __str__(self) -> str:
        """Each problem and each warning with its place, or that there is none."""
        if self.problems:
            return display(self.text, self.problems)
        if not self.warnings:
            return "the filter is valid"
        blocks = [f"warning: {display(self.text, [warning])}" for warning in self.warnings]
        return "\n".join(["the filter is valid", *blocks])


def check(text: str | Mapping[str, Any] | Sequence[Any], dialect: str = "sql") -> Check:
    """Check a filter without using it; takes what ``compile_filter`` takes, and does not raise."""
    try:
        filter = compile_filter(text, dialect)
    except FilterError as error:
        return Check(error.text, dialect, error.problems, ())
    placeless = [
        Problem(each.message, 1, 1, each.hint, 0)
        for each in filter_cautions(filter)[1]
        if not any(is_said_by(filter, problem, [each]) for problem in filter.warnings)
    ]
    return Check(filter.text, dialect, (), (*filter.warnings, *placeless))
