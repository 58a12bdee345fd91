"""Results of help as JSON: for ``--json`` and for responses of the HTTP interface."""

from __future__ import annotations

from typing import Any

from fieldfare.filters.errors import Problem, display
from fieldfare.filters.help.checking import Check
from fieldfare.filters.help.explanation import ConjunctionUse, Explanation
from fieldfare.filters.help.statements import Statement
from fieldfare.filters.help.text import value_text
from fieldfare.filters.help.tracing import Trace, TracedReading, TracedStep

Json = dict[str, Any]


def check_document(found: Check) -> Json:
    """Return a check as JSON: ``valid``, ``problems``, ``warnings``, and all of it as ``text``."""
    return {
        "valid": found.is_valid,
        "dialect": found.dialect,
        "problems": [_problem(problem, found.text) for problem in found.problems],
        "warnings": [_problem(problem, found.text) for problem in found.warnings],
        "text": str(found),
    }


def _problem(problem: Problem, text: str) -> Json:
    place = {"line": problem.line, "column": problem.column} if problem.length else {}
    hint = {"hint": problem.hint} if problem.hint else {}
    return {"detail": problem.message, **place, **hint, "display": display(text, [problem])}


def explanation_document(found: Explanation) -> Json:
    """Return an explanation as JSON, part by part, and all of it as ``text``."""
    sample = None
    if found.sample is not None:
        sample = {
            "events": found.sample.events,
            "candidates": found.sample.candidates,
            "matches": found.sample.matches,
        }
    return {
        "dialect": found.dialect,
        "matches": found.matches,
        "statement": _statement(found.statement),
        "functions": [{"call": call, "summary": summary} for call, summary in found.functions],
        "index": [_conjunction(use) for use in found.conjunctions],
        "cost": found.cost,
        "sample": sample,
        "warnings": [
            {"detail": caution.message, **({"hint": caution.hint} if caution.hint else {})}
            for caution in found.cautions
        ],
        "text": str(found),
    }


def _statement(statement: Statement) -> Json:
    parts = {"parts": [_statement(part) for part in statement.parts]} if statement.parts else {}
    return {"text": statement.text, **parts}


def _conjunction(use: ConjunctionUse) -> Json:
    return {
        "predicates": [
            {"attribute": predicate.attribute, "values": predicate.values, **_fits(predicate.sample_fits)}
            for predicate in use.predicates
        ],
        "exact": use.exact,
        **_fits(use.sample_fits),
    }


def _fits(count: int | None) -> Json:
    return {} if count is None else {"sample_fits": count}


def trace_document(found: Trace) -> Json:
    """Return a trace as JSON: ``matches``, the filter's ``value`` (null is unknown), the failed parts."""
    return {
        "matches": found.matches,
        "value": found.root.value,
        "errors": list(found.errors),
        "failures": [_step(step, found_parts=False) for step in found.failures],
        "text": str(found),
    }


def step_document(step: TracedStep) -> Json:
    """Return a traced part of a filter with all its parts as JSON."""
    return _step(step, found_parts=True)


def _step(step: TracedStep, *, found_parts: bool) -> Json:
    document: Json = {
        "part": step.text,
        "value": step.value,
        "read": [_reading(reading) for reading in dict.fromkeys(map(_named, step.all_readings()))],
    }
    if found_parts and step.parts:
        document["parts"] = [_step(part, found_parts=True) for part in step.parts]
    return document


def _named(reading: TracedReading) -> tuple[str, str]:
    return reading.name, value_text(reading.value)


def _reading(reading: tuple[str, str]) -> Json:
    return {"name": reading[0], "value": reading[1]}
