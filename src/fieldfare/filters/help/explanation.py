"""Explanations of filters: when an event matches, and how the index is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fieldfare.filters import values as sets
from fieldfare.filters.errors import Problem
from fieldfare.filters.expression import (
    And,
    AndThen,
    Call,
    Expression,
    Not,
    Or,
    OrElse,
    Quantified,
    walk,
)
from fieldfare.filters.filter import Filter
from fieldfare.filters.functions import FUNCTIONS
from fieldfare.filters.help.cautions import Caution, always, cautions_of
from fieldfare.filters.help.sampling import Sample, misfit_cautions, sample_cautions
from fieldfare.filters.help.statements import Statement, state, written
from fieldfare.filters.help.text import SHOWN_PARTS_MAX, percent, shown
from fieldfare.filters.help.value_words import describe_needle, describe_values
from fieldfare.filters.needles import Needle
from fieldfare.filters.normal_form import Conjunction, normal_form
from fieldfare.filters.sql.paths import format_path
from fieldfare.filters.values import ValueSet
from fieldfare.model import Path


@dataclass(frozen=True, slots=True)
class PredicateUse:
    """A predicate of the index: an attribute, and the set that must contain its value.

    Attributes
    ----------
    attribute, values
        The attribute and the set, in words.
    sample_fits
        The number of events of the sample that fit; None without a sample.
    """

    attribute: str
    values: str
    sample_fits: int | None = None


@dataclass(frozen=True, slots=True)
class ConjunctionUse:
    """A conjunction of the index: an event that fits all its predicates is a candidate.

    Attributes
    ----------
    predicates
        The predicates; empty if every event fits.
    exact
        Whether an event that fits matches; if not, the filter is evaluated for it.
    sample_fits
        The number of events of the sample that fit; None without a sample.
    computes
        Whether a predicate is on a derived column: a value computed from attributes.
    """

    predicates: tuple[PredicateUse, ...]
    exact: bool
    sample_fits: int | None = None
    computes: bool = False


@dataclass(frozen=True, slots=True)
class SampleFigures:
    """The selectivity of a filter for a sample of events.

    Attributes
    ----------
    events
        The number of events in the sample.
    candidates
        The number of events that fit the index's predicates.
    matches
        The number of events that match.
    """

    events: int
    candidates: int
    matches: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """An explanation of a filter; ``str()`` returns it as text.

    Attributes
    ----------
    text, dialect
        The filter.
    statement
        When an event matches, in words, part by part.
    functions
        The functions that the filter calls: pairs of a signature and a summary.
    conjunctions
        The index's conjunctions; an event that fits none of them cannot match. Empty if no event can match.
    matches
        "never", "always", or "sometimes" if neither is certain.
    cautions
        Warnings about text that is probably not intended.
    cost
        The cost of matching the filter, as quotas count it.
    sample
        Figures of the given sample, or None.
    """

    text: str
    dialect: str
    statement: Statement
    functions: tuple[tuple[str, str], ...]
    conjunctions: tuple[ConjunctionUse, ...]
    matches: str
    cautions: tuple[Caution, ...]
    cost: int
    sample: SampleFigures | None = None

    def __str__(self) -> str:
        return explanation_text(self)


def explain(filter: Filter, events: Sequence[Mapping[str, Any]] | None = None) -> Explanation:
    """Explain a filter.

    Parameters
    ----------
    filter
        The filter.
    events
        A sample of events; with one, the explanation has the filter's selectivity, and warnings about
        attributes and types that do not fit the events.
    """
    e = filter.expression
    conjunctions = filter.normal_form.conjunctions
    sample = Sample(events) if events is not None else None
    matches, cautions = filter_cautions(filter)
    found = [
        Caution(problem.message, problem.hint)
        for problem in filter.warnings
        if not is_reported_by(filter, problem, cautions)
    ]
    found += cautions
    figures, uses = None, tuple(_use(conjunction) for conjunction in conjunctions)
    if sample is not None:
        found += sample_cautions(e, filter.column_paths, sample)
        if filter.dialect == "sql":
            found += misfit_cautions(e, sample, found)
        figures, uses = _figures(filter, conjunctions, sample)
    called = dict.fromkeys(part.function for part in walk(e) if isinstance(part, Call))
    functions = [(FUNCTIONS[name].signature, FUNCTIONS[name].summary) for name in called]
    if any(isinstance(part, Quantified) for part in walk(e)):
        functions.append(("an element", "a value that is not an array counts as an array of one element"))
    return Explanation(
        text=filter.text,
        dialect=filter.dialect,
        statement=state(e),
        functions=tuple(functions),
        conjunctions=uses,
        matches=matches,
        cautions=tuple(dict.fromkeys(found)),
        cost=filter.cost,
        sample=figures,
    )


def filter_cautions(filter: Filter) -> tuple[str, list[Caution]]:
    """Return whether a filter matches never, always or sometimes, and the warnings that need no events."""
    e, conjunctions = filter.expression, filter.normal_form.conjunctions
    found = cautions_of(e, filter.text)
    if not conjunctions:
        return "never", [Caution("this filter can never match an event"), *found]
    if always(e):
        return "always", [Caution("this filter matches every event"), *found]
    return "sometimes", found + _index_cautions(e, conjunctions)


def is_reported_by(filter: Filter, problem: Problem, cautions: Sequence[Caution]) -> bool:
    """Return whether one of the warnings is about the part of a given parser's warning."""
    start = problem.column - 1
    part = filter.text.split("\n")[problem.line - 1][start : start + problem.length]
    return bool(part) and any(f"`{part}` is never true" in caution.message for caution in cautions)


def _use(
    conjunction: Conjunction, fits: Sequence[int | None] = (), total: int | None = None
) -> ConjunctionUse:
    fits = fits or [None] * len(conjunction.constraints)
    predicates = tuple(
        PredicateUse(format_path(path), _describe(path, values, conjunction.needles), count)
        for (path, values), count in zip(conjunction.constraints, fits, strict=True)
    )
    return ConjunctionUse(predicates, conjunction.exact, total, conjunction.derives)


def _describe(path: Path, values: ValueSet, needles: Sequence[Needle]) -> str:
    """Describe an attribute's set and its needles in words."""
    mine = [describe_needle(needle) for needle in needles if needle.path == path]
    if not mine:
        return describe_values(values)
    start = "a string" if values == sets.STRINGS else describe_values(values)
    return f"{start} that {' and '.join(mine)}"


def _figures(
    filter: Filter, conjunctions: Sequence[Conjunction], sample: Sample
) -> tuple[SampleFigures, tuple[ConjunctionUse, ...]]:
    size = len(sample.events)
    candidates = [False] * size
    uses = []
    for conjunction in conjunctions:
        columns = [
            sample.where(path, values, [needle for needle in conjunction.needles if needle.path == path])
            for path, values in conjunction.constraints
        ]
        fitting = [all(row) for row in zip(*columns, strict=True)] if columns else [True] * size
        candidates = [a or b for a, b in zip(candidates, fitting, strict=True)]
        uses.append(_use(conjunction, [sum(column) for column in columns], sum(fitting)))
    matches = sum(filter.matches(event) for event in sample.events)
    return SampleFigures(size, sum(candidates), matches), tuple(uses)


def _index_cautions(e: Expression, conjunctions: Sequence[Conjunction]) -> list[Caution]:
    """Warn of filters that the index cannot narrow, or narrows only a little."""
    open_ended = [each for each in conjunctions if not each.constraints and not each.exact]
    if open_ended:
        part = _cause(e)
        because = "" if part is e else f", because of `{written(part)}`"
        return [
            Caution(
                f"every event is a candidate: the index cannot narrow this filter{because}",
                "join it by AND with a comparison of an attribute with a value, such as type = 'order'",
            )
        ]
    for each in conjunctions:
        if not (each.exact or each.needles) and all(_is_wide(values) for _, values in each.constraints):
            path, values = each.constraints[0]
            return [
                Caution(
                    "the index narrows this filter only a little: the only condition is that "
                    f"{format_path(path)} is {describe_values(values)}",
                    "join it by AND with a comparison of an attribute with a value, such as type = 'order'",
                )
            ]
    return []


def _cause(e: Expression, wanted: bool = True) -> Expression:
    """Return the innermost part of an OR for which every event is a candidate."""
    if isinstance(e, Not) and not wanted:
        return _cause(e.operand, True)
    any_is_enough = isinstance(e, Or | OrElse) if wanted else isinstance(e, And | AndThen)
    if isinstance(e, Or | OrElse | And | AndThen) and any_is_enough:
        for operand in e.operands:
            form = normal_form(operand if wanted else Not(operand))
            if any(not each.constraints for each in form.conjunctions):
                return _cause(operand, wanted)
    return e if wanted else Not(e)


def _is_wide(values: ValueSet) -> bool:
    """Return whether a set has all numbers, all strings, or all arrays and objects: it is not selective."""
    return values.numbers.is_full or values.strings.is_full or bool(values.atoms & sets.OTHER)


def explanation_text(explanation: Explanation) -> str:
    """Format an explanation: when an event matches, the index's predicates, figures, warnings."""
    sections = [
        ["An event matches if", *_statement_lines(explanation.statement, 1)],
        _function_lines(explanation.functions),
        _index_lines(explanation),
        _sample_lines(explanation.sample),
        caution_lines(explanation.cautions),
    ]
    return "\n\n".join("\n".join(map(shown, lines)) for lines in sections if lines)


def caution_lines(cautions: Iterable[Caution]) -> list[str]:
    """Return the lines of warnings, each with its hint below it."""
    lines = []
    for caution in cautions:
        lines.append(f"warning: {caution.message}")
        if caution.hint:
            lines.append(f"  hint: {caution.hint}")
    return lines


def _statement_lines(statement: Statement, depth: int) -> list[str]:
    lines = ["  " * depth + statement.text]
    for part in statement.parts[:SHOWN_PARTS_MAX]:
        lines += _statement_lines(part, depth + 1)
    left = len(statement.parts) - SHOWN_PARTS_MAX
    if left > 0:
        lines.append("  " * (depth + 1) + f"... and {left:,} more")
    return lines


def _function_lines(functions: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{signature}: {summary}" for signature, summary in functions]


def _index_lines(explanation: Explanation) -> list[str]:
    uses = explanation.conjunctions
    size = explanation.sample.events if explanation.sample else None
    if not uses:
        return ["The index holds nothing for this filter: no event can match."]
    if len(uses) == 1:
        use = uses[0]
        if not use.predicates:
            return [
                "The index takes every event as a match."
                if use.exact
                else "The index takes every event as a candidate, and the filter is evaluated for each."
            ]
        lines = ["The index looks for events where", *_predicate_lines(use, size), _verdict(use)]
        return [*lines, _COMPUTES] if use.computes else lines
    lines = ["The index looks for events that fit one of these:"]
    for number, use in enumerate(uses[:SHOWN_PARTS_MAX], start=1):
        lines.append(
            f"  {number}. {'exact' if use.exact else 'checked again'}{_share(use.sample_fits, size)}"
        )
        lines += [f"     {line.strip()}" for line in _predicate_lines(use, size)] or ["     every event fits"]
    if len(uses) > SHOWN_PARTS_MAX:
        lines.append(f"  ... and {len(uses) - SHOWN_PARTS_MAX:,} more")
    exact = [use.exact for use in uses]
    if all(exact):
        lines.append("Every event that fits one matches: the filter is not evaluated again.")
    else:
        lines.append("For those marked `checked again`, the filter is evaluated for the events that fit.")
    return [*lines, _COMPUTES] if any(use.computes for use in uses) else lines


_COMPUTES = (
    "The index computes a computed value once for all filters that share it. If few share it, the index uses "
    "the other predicates only, and the filter is evaluated for the events that fit."
)


def _predicate_lines(use: ConjunctionUse, size: int | None) -> list[str]:
    return [
        f"  {predicate.attribute} is {predicate.values}{_share(predicate.sample_fits, size)}"
        for predicate in use.predicates
    ]


def _verdict(use: ConjunctionUse) -> str:
    if use.exact:
        return "Every event that fits matches: the filter is not evaluated again."
    return "These are candidates: the filter is evaluated for the events that fit."


def _share(count: int | None, size: int | None) -> str:
    if count is None or not size:
        return ""
    return f"  [{percent(count, size)} of the sample]"


def _sample_lines(sample: SampleFigures | None) -> list[str]:
    if sample is None:
        return []
    if not sample.events:
        return ["The sample has no events."]
    events = "1 event" if sample.events == 1 else f"{sample.events:,} events"
    lines = [f"Of {events} in the sample"]
    for count, what in (
        (sample.candidates, "candidates of the index"),
        (sample.matches, "matches"),
    ):
        lines.append(f"  {count:,} ({percent(count, sample.events)}) {what}")
    return lines
