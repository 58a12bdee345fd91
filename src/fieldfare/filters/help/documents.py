"""Results of help as JSON: for ``--json`` and for responses of the HTTP interface."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from fieldfare.filters.errors import Problem, display
from fieldfare.filters.help.cautions import Caution
from fieldfare.filters.help.checking import Check
from fieldfare.filters.help.explanation import ConjunctionUse, Explanation
from fieldfare.filters.help.statements import Statement
from fieldfare.filters.help.text import value_text
from fieldfare.filters.help.tracing import Trace, TracedReading, TracedStep

Dialect = Annotated[str, "The language of the filter."]
Text = Annotated[str, "The complete result as text for people."]
SampleFits = Annotated[int | None, "Number of sample events that satisfy it; missing without a sample."]


class FilterProblemDocument(Struct, omit_defaults=True, kw_only=True):
    """An error of a filter, or a warning about it."""

    detail: Annotated[str, "What is wrong, as a sentence."]
    line: Annotated[int | None, "Line in the filter, from 1; missing if the problem has no single place."] = (
        None
    )
    column: Annotated[
        int | None, "Character in the line, from 1; missing if the problem has no single place."
    ] = None
    hint: Annotated[str | None, "How to correct it; missing if nothing can be suggested."] = None
    display: Annotated[str, "The line of the filter with carets below the place, as text for people."]


class CheckDocument(Struct):
    """Whether a filter is valid, and what is wrong with it."""

    valid: Annotated[bool, "Whether the filter has no errors."]
    dialect: Dialect
    problems: Annotated[list[FilterProblemDocument], "The errors, in the order of their places."]
    warnings: Annotated[list[FilterProblemDocument], "What is probably not intended, although it is valid."]
    text: Text


class WarningDocument(Struct, omit_defaults=True, kw_only=True):
    detail: Annotated[str, "What is probably not intended in the filter, as a sentence."]
    hint: Annotated[str | None, "What was probably intended; missing if nothing can be suggested."] = None


class StatementDocument(Struct, omit_defaults=True):
    """When an event matches, in words, as a tree of conditions."""

    text: Annotated[str, "One condition of the filter in plain words."]
    parts: Annotated[
        list[StatementDocument] | None,
        "The conditions that it combines; missing if it is a single one.",
    ] = None


class FunctionDocument(Struct):
    call: Annotated[str, "Signature of the function."]
    summary: Annotated[str, "What it returns, as a phrase."]


class PredicateDocument(Struct, omit_defaults=True):
    attribute: Annotated[str, "The attribute that the predicate tests."]
    values: Annotated[str, "The values that satisfy it, as text."]
    sample_fits: SampleFits = None


class ConjunctionDocument(Struct, omit_defaults=True):
    """A conjunction of predicates."""

    predicates: Annotated[list[PredicateDocument], "Predicates that must all hold."]
    exact: Annotated[
        bool,
        "Whether every event that satisfies the predicates matches. Otherwise such an event is a"
        " candidate, for which the filter itself is evaluated.",
    ]
    sample_fits: SampleFits = None


class SampleDocument(Struct):
    """The result of a filter for a sample of events."""

    events: Annotated[int, "Number of events in the sample."]
    candidates: Annotated[int, "How many of them the index finds as candidates."]
    matches: Annotated[int, "How many of them match the filter."]


class ExplanationDocument(Struct):
    """An explanation of the events that a filter matches, and of how the index searches for it."""

    dialect: Dialect
    matches: Annotated[
        str,
        Meta(extra_json_schema={"enum": ["never", "always", "sometimes"]}),
        "`never` or `always` if that is certain for every event, otherwise `sometimes`.",
    ]
    statement: Annotated[StatementDocument, "When an event matches, in words."]
    functions: Annotated[list[FunctionDocument], "The functions that the filter calls."]
    index: Annotated[
        list[ConjunctionDocument],
        "How the index searches: conjunctions of predicates. An event that satisfies none of them cannot"
        " match. Empty if no event can match.",
    ]
    cost: Annotated[int, "Cost of matching the filter, in predicates, as the quota `filter_cost` counts it."]
    sample: Annotated[SampleDocument | None, "Result for the sample of events; null without a sample."]
    warnings: Annotated[list[WarningDocument], "What is probably not intended in the filter."]
    text: Text


class ReadingDocument(Struct):
    name: Annotated[str, "Name of the attribute."]
    value: Annotated[str, "Its value in the event, as a literal of the dialect sql."]


class StepDocument(Struct, omit_defaults=True):
    """The value of a part of a filter for an event."""

    part: Annotated[str, "The part of the filter, written in the dialect sql."]
    value: Annotated[bool | None, "Value of the part: false, or null for unknown."]
    read: Annotated[list[ReadingDocument], "The attributes that the part reads."]
    parts: Annotated[list[StepDocument] | None, "Its parts; only in a tree of all parts."] = None


class TestedDocument(Struct, omit_defaults=True):
    """Result of a filter for one event."""

    matches: Annotated[bool, "Whether the event matches the filter."]
    value: Annotated[
        bool | UnsetType | None, "Value of the filter for the event; null: unknown, which does not match."
    ] = UNSET
    errors: Annotated[
        list[str] | None,
        "Errors of the evaluation, by kind, in dialects that define errors; otherwise empty.",
    ] = None
    failures: Annotated[
        list[StepDocument] | None, "The innermost parts because of which the event does not match."
    ] = None
    text: Annotated[str | None, "The complete result as text for people."] = None


def check_document(found: Check) -> CheckDocument:
    """Return a check as JSON: ``valid``, ``problems``, ``warnings``, and all of it as ``text``."""
    return CheckDocument(
        valid=found.is_valid,
        dialect=found.dialect,
        problems=[_problem(problem, found.text) for problem in found.problems],
        warnings=[_problem(problem, found.text) for problem in found.warnings],
        text=str(found),
    )


def _problem(problem: Problem, text: str) -> FilterProblemDocument:
    return FilterProblemDocument(
        detail=problem.message,
        line=problem.line if problem.length else None,
        column=problem.column if problem.length else None,
        hint=problem.hint or None,
        display=display(text, [problem]),
    )


def warning_documents(cautions: Iterable[Caution]) -> list[WarningDocument]:
    """Return the warnings about a filter as JSON."""
    return [WarningDocument(detail=each.message, hint=each.hint or None) for each in cautions]


def explanation_document(found: Explanation) -> ExplanationDocument:
    """Return an explanation as JSON, part by part, and all of it as ``text``."""
    sample = found.sample
    return ExplanationDocument(
        dialect=found.dialect,
        matches=found.matches,
        statement=_statement(found.statement),
        functions=[FunctionDocument(call, summary) for call, summary in found.functions],
        index=[_conjunction(use) for use in found.conjunctions],
        cost=found.cost,
        sample=None if sample is None else SampleDocument(sample.events, sample.candidates, sample.matches),
        warnings=warning_documents(found.cautions),
        text=str(found),
    )


def _statement(statement: Statement) -> StatementDocument:
    return StatementDocument(statement.text, [_statement(part) for part in statement.parts] or None)


def _conjunction(use: ConjunctionUse) -> ConjunctionDocument:
    predicates = [PredicateDocument(each.attribute, each.values, each.sample_fits) for each in use.predicates]
    return ConjunctionDocument(predicates, use.exact, use.sample_fits)


def trace_document(found: Trace) -> TestedDocument:
    """Return a trace as JSON: ``matches``, the filter's ``value`` (null is unknown), the failed parts."""
    return TestedDocument(
        matches=found.matches,
        value=found.root.value,
        errors=list(found.errors),
        failures=[_step(step) for step in found.failures],
        text=str(found),
    )


def step_document(step: TracedStep) -> StepDocument:
    """Return a traced part of a filter with all its parts as JSON."""
    document = _step(step)
    document.parts = [step_document(part) for part in step.parts] or None
    return document


def _step(step: TracedStep) -> StepDocument:
    read = dict.fromkeys(map(_named, step.all_readings()))
    return StepDocument(step.text, step.value, [ReadingDocument(*reading) for reading in read])


def _named(reading: TracedReading) -> tuple[str, str]:
    return reading.name, value_text(reading.value)
