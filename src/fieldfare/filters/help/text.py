"""Explanations as text for people: plain lines, each of printable characters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from fieldfare.filters.errors import display
from fieldfare.filters.evaluator import is_array
from fieldfare.filters.help.cautions import Caution
from fieldfare.filters.help.checking import Check
from fieldfare.filters.help.explanation import ConjunctionUse, Explanation, SampleFigures
from fieldfare.filters.help.statements import Statement
from fieldfare.filters.help.tracing import Step, Trace
from fieldfare.filters.help.value_words import shortened, show_value
from fieldfare.filters.values import ABSENT

MAX_SHOWN_PARTS = 20
"""Of more parts of one statement, and of more conjunctions, only the first are shown."""

_MAX_LINE_CHARACTERS = 400
_MAX_SHOWN_READINGS = 6


def explanation_text(explanation: Explanation) -> str:
    """The whole explanation: what matches, what the index looks for, figures, cautions."""
    sections = [
        ["An event matches if", *_statement_lines(explanation.statement, 1)],
        _function_lines(explanation.functions),
        _index_lines(explanation),
        _sample_lines(explanation.sample),
        caution_lines(explanation.cautions),
    ]
    return "\n\n".join("\n".join(map(_shown, lines)) for lines in sections if lines)


def caution_lines(cautions: Iterable[Caution]) -> list[str]:
    """Each caution, and its hint below it."""
    lines = []
    for caution in cautions:
        lines.append(f"warning: {caution.message}")
        if caution.hint:
            lines.append(f"  hint: {caution.hint}")
    return lines


def _shown(line: str) -> str:
    return shortened(line, _MAX_LINE_CHARACTERS)


def _statement_lines(statement: Statement, depth: int) -> list[str]:
    lines = ["  " * depth + statement.text]
    for part in statement.parts[:MAX_SHOWN_PARTS]:
        lines += _statement_lines(part, depth + 1)
    left = len(statement.parts) - MAX_SHOWN_PARTS
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
        return ["The index looks for events where", *_predicate_lines(use, size), _verdict(use)]
    lines = ["The index looks for events that fit one of these:"]
    for number, use in enumerate(uses[:MAX_SHOWN_PARTS], start=1):
        lines.append(
            f"  {number}. {'exact' if use.exact else 'checked again'}{_share(use.sample_fits, size)}"
        )
        lines += [f"     {line.strip()}" for line in _predicate_lines(use, size)] or ["     every event fits"]
    if len(uses) > MAX_SHOWN_PARTS:
        lines.append(f"  ... and {len(uses) - MAX_SHOWN_PARTS:,} more")
    exact = [use.exact for use in uses]
    if all(exact):
        lines.append("Every event that fits one matches: the filter is not evaluated again.")
    else:
        lines.append("Where it says `checked again` the filter is evaluated for the events that fit.")
    return lines


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


def percent(count: int, size: int) -> str:
    """A share of a whole, to be read at a glance: ``12%``, ``0.3%``, ``<0.1%``."""
    share = 100 * count / size
    if 0 < share < 0.1:
        return "<0.1%"
    if 99.9 < share < 100:
        return ">99.9%"
    return f"{share:.1f}%" if 0 < share < 10 or 90 < share < 100 else f"{share:.0f}%"


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


def check_text(found: Check) -> str:
    """Each problem and each warning with its place, or that there is none."""
    if found.problems:
        return display(found.text, found.problems)
    if not found.warnings:
        return "the filter is valid"
    blocks = [f"warning: {display(found.text, [warning])}" for warning in found.warnings]
    return "\n".join(["the filter is valid", *blocks])


_TRUTHS = {True: "true", False: "false", None: "unknown"}


def trace_text(trace: Trace) -> str:
    """Whether an event matches, and what made it fail."""
    return "\n".join(map(_shown, ["match", *error_lines(trace)] if trace.matches else failure_lines(trace)))


def failure_lines(trace: Trace) -> list[str]:
    """``no match``, and for each part that failed what it was and what was read."""
    lines = ["no match"]
    failures = list(
        dict.fromkeys(f"  {step.text} is {_TRUTHS[step.value]}{_because(step)}" for step in trace.failures)
    )
    lines += failures[:MAX_SHOWN_PARTS]
    if len(failures) > MAX_SHOWN_PARTS:
        lines.append(f"  ... and {len(failures) - MAX_SHOWN_PARTS:,} more")
    return lines + error_lines(trace)


def error_lines(trace: Trace) -> list[str]:
    """The errors that the dialect's evaluation found."""
    return [f"  error: {error}" for error in trace.errors]


def tree_lines(step: Step, depth: int = 1) -> list[str]:
    """Each part below the one that it belongs to, with its value and what was read."""
    lines = [f"{'  ' * depth}{_TRUTHS[step.value]:<8}{step.text}{_because(step) if not step.parts else ''}"]
    for part in step.parts[:MAX_SHOWN_PARTS]:
        lines += tree_lines(part, depth + 1)
    if len(step.parts) > MAX_SHOWN_PARTS:
        left = len(step.parts) - MAX_SHOWN_PARTS
        lines.append(f"{'  ' * (depth + 1)}... and {left:,} more")
    return [_shown(line) for line in lines]


def _because(step: Step) -> str:
    """What was read: ``: data.price is 20, data.symbol is missing``."""
    readings = list(dict.fromkeys(f"{each.name} is {value_text(each.value)}" for each in step.all_readings()))
    if len(readings) > _MAX_SHOWN_READINGS:
        readings[_MAX_SHOWN_READINGS:] = ["..."]
    return f": {', '.join(readings)}" if readings else ""


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
