"""Checks of a filter: all errors in its text, and warnings about text that is probably not intended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fieldfare.filters.errors import FilterError, Problem, display
from fieldfare.filters.filter import Filter, compile_filter
from fieldfare.filters.help.cautions import Caution, cautions_of
from fieldfare.filters.help.explanation import filter_cautions, is_reported_by
from fieldfare.filters.help.names import impossible_names, missing_names
from fieldfare.filters.help.sampling import Sample


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check; ``str()`` shows each problem and warning with its place.

    Attributes
    ----------
    text, dialect
        The filter.
    problems
        The errors, with line, column and hint; none if the filter can be used.
    warnings
        Problems with text that is allowed but probably not intended. One without a place has the length 0.
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
        """Return all problems, or all warnings, with their places; or that the filter is valid."""
        if self.problems:
            return display(self.text, self.problems)
        if not self.warnings:
            return "the filter is valid"
        blocks = [f"warning: {display(self.text, [warning])}" for warning in self.warnings]
        return "\n".join(["the filter is valid", *blocks])


def check(text: str | Mapping[str, Any] | Sequence[Any], dialect: str = "sql") -> Check:
    """Check a filter; the parameters are those of ``compile_filter``, but no FilterError is raised."""
    try:
        filter = compile_filter(text, dialect)
    except FilterError as error:
        return Check(error.text, dialect, error.problems, ())
    placeless = [
        Problem(each.message, 1, 1, each.hint, 0)
        for each in filter_cautions(filter)[1]
        if not any(is_reported_by(filter, problem, [each]) for problem in filter.warnings)
    ]
    return Check(filter.text, dialect, (), (*filter.warnings, *placeless))


def use_cautions(filter: Filter, sample: Sample) -> list[Caution]:
    """Return the warnings about a filter that is stored for CloudEvents, except for those about selectivity.

    A name that no event of the sample has gives a warning only if another name was probably meant.
    """
    found = [Caution(problem.message, problem.hint) for problem in filter.warnings]
    if not filter.normal_form.conjunctions:
        found.append(Caution("this filter can never match an event"))
    found += cautions_of(filter.expression, filter.text)
    known = sample.names()
    found += impossible_names(filter.paths, known)
    possible = [path for path in filter.column_paths if not impossible_names((path,))]
    found += [each for each in missing_names(sample.missing(possible), known) if each.hint]
    return list(dict.fromkeys(found))
