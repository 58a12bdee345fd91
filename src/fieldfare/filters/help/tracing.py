"""Traces of filters: the value of each part for one event, and the parts that made the filter fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fieldfare.filters.evaluator import Compiler, event_getter
from fieldfare.filters.expression import (
    And,
    AndThen,
    Attribute,
    Element,
    Expression,
    IsTruth,
    Literal,
    Not,
    Or,
    OrElse,
    Quantified,
    parts_of,
)
from fieldfare.filters.filter import Filter
from fieldfare.filters.help.statements import written
from fieldfare.filters.help.text import SHOWN_PARTS_MAX, shown, value_text
from fieldfare.filters.sql.paths import format_path
from fieldfare.filters.values import ABSENT, is_array

_SHOWN_READINGS_MAX = 6


ELEMENTS_MAX = 100
"""Maximum elements of an array that are traced one by one; of longer arrays, none is."""

STEPS_MAX = 20_000
"""Maximum steps of a trace after which no more elements of arrays are traced."""

Truth = bool | None


@dataclass(frozen=True, slots=True)
class TracedReading:
    """A value read for a part: the name of an attribute or element, and its value or ``ABSENT``."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One part of a filter, and its value for an event.

    Attributes
    ----------
    text
        The part as ``sql``.
    value
        True, False, or None for unknown.
    readings
        The attributes and elements that a part without parts reads.
    parts
        Its parts; for a quantifier, its condition for each element.
    failed
        Whether this innermost part made the filter fail.
    """

    text: str
    value: Truth
    readings: tuple[TracedReading, ...] = ()
    parts: tuple[TracedStep, ...] = ()
    failed: bool = False

    def failures(self) -> Iterator[TracedStep]:
        """Yield the innermost parts that made the filter fail, in the order of the text."""
        if self.failed:
            yield self
        for part in self.parts:
            yield from part.failures()

    def all_readings(self) -> Iterator[TracedReading]:
        """Yield the values read for the part and for its parts."""
        yield from self.readings
        for part in self.parts:
            yield from part.all_readings()


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of a filter for one event; ``str()`` returns it as text.

    Attributes
    ----------
    matches
        Whether the event matches.
    root
        The complete filter, part by part.
    errors
        The kinds of errors in the evaluation, for dialects that have errors.
    """

    matches: bool
    root: TracedStep
    errors: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[TracedStep, ...]:
        """The innermost parts that made the filter fail; none if the event matches."""
        return tuple(self.root.failures())

    def __str__(self) -> str:
        return trace_text(self)


TOO_MUCH_WORK = "too much work: the filter is not evaluated for this event"
"""The error in a trace for an event for which evaluating the filter takes too many steps."""


def trace(filter: Filter, event: Mapping[str, Any]) -> Trace:
    """Evaluate a filter part by part.

    The value of the root is that of the filter's internal expression; the filter matches if it is true. If
    that would take too many steps (`filters.work`), nothing is evaluated, and the event does not match.
    """
    if filter.work is not None and not filter.work.fits(lambda path: event_getter(path)(event)):
        return Trace(False, TracedStep(written(filter.expression), None, failed=True), (TOO_MUCH_WORK,))
    root = _blamed(_Tracer(_Scope(event, {}), _Work()).step(filter.expression), filter.expression, True)
    return Trace(root.value is True, root, filter.evaluate(event).errors)


@dataclass(frozen=True, slots=True)
class _Scope:
    """An event, and the current elements of the quantifiers around a part."""

    event: Mapping[str, Any]
    elements: Mapping[str, Any]


def _attribute_of(path: tuple[str | int, ...]) -> Callable[[_Scope], Any]:
    get = event_getter(path)
    return lambda scope: get(scope.event)


class _Work:
    """The shared state of one trace: the texts of the parts, and the number of steps."""

    def __init__(self) -> None:
        self.steps = 0
        self._texts: dict[int, str] = {}

    def text(self, e: Expression) -> str:
        found = self._texts.get(id(e))
        if found is None:
            found = self._texts[id(e)] = written(e)
        return found


class _Tracer:
    """An evaluator of the parts of an expression for one event (and element), each once."""

    def __init__(self, scope: _Scope, work: _Work) -> None:
        self.scope = scope
        self.work = work
        elements: dict[str, Callable[[_Scope], Any]] = {
            name: lambda scope, name=name: scope.elements[name]  # type: ignore[misc]
            for name in scope.elements
        }
        self.compiler = Compiler(_attribute_of, elements)

    def step(self, e: Expression) -> TracedStep:
        self.work.steps += 1
        text = self.work.text(e)
        if isinstance(e, And | Or | AndThen | OrElse):
            parts = tuple(self.step(operand) for operand in e.operands)
            return TracedStep(text, _JOINED[type(e)]([part.value for part in parts]), (), parts)
        if isinstance(e, Not):
            part = self.step(e.operand)
            return TracedStep(text, None if part.value is None else not part.value, (), (part,))
        if isinstance(e, IsTruth):
            part = self.step(e.operand)
            return TracedStep(text, part.value is e.truth, (), (part,))
        value = self.compiler.condition(e)(self.scope)
        parts = self.elements(e) if isinstance(e, Quantified) else ()
        return TracedStep(text, value, tuple(self.readings(e)), parts)

    def elements(self, e: Quantified) -> tuple[TracedStep, ...]:
        """Trace a quantifier's condition for each element; return nothing if there are too many."""
        array = self.value(e.array)
        elements = array if is_array(array) else [] if array is ABSENT else [array]
        if len(elements) > ELEMENTS_MAX or self.work.steps > STEPS_MAX:
            return ()
        parts = []
        for element in elements:
            scope = _Scope(self.scope.event, {**self.scope.elements, e.variable: element})
            parts.append(_Tracer(scope, self.work).step(e.condition))
        return tuple(parts)

    def value(self, e: Expression) -> Any:
        return self.compiler.value(e)(self.scope)

    def readings(self, e: Expression) -> Iterator[TracedReading]:
        """Yield the attributes and elements that a part reads, each once."""
        seen = set()
        waiting = [e]
        while waiting:
            part = waiting.pop()
            if isinstance(part, Attribute | Element):
                if part not in seen:
                    seen.add(part)
                    name = format_path(part.path) if isinstance(part, Attribute) else written(part)
                    yield TracedReading(name, self.value(part))
            elif isinstance(part, Quantified):
                waiting.append(part.array)
            elif not isinstance(part, Literal):
                waiting += reversed(parts_of(part))


def _and(values: list[Truth]) -> Truth:
    return False if False in values else None if None in values else True


def _or(values: list[Truth]) -> Truth:
    return True if True in values else None if None in values else False


def _and_then(values: list[Truth]) -> Truth:
    return next((value for value in values if value is not True), True)


def _or_else(values: list[Truth]) -> Truth:
    return next((value for value in values if value is not False), False)


_JOINED: dict[type, Callable[[list[Truth]], Truth]] = {
    And: _and,
    Or: _or,
    AndThen: _and_then,
    OrElse: _or_else,
}


def _blamed(step: TracedStep, e: Expression, wanted: bool) -> TracedStep:
    """Return a step in which the innermost parts that kept it from the wanted value are marked as failed."""
    if step.value is wanted:
        return step
    if isinstance(e, And | Or | AndThen | OrElse):
        blamed = [
            _blamed(part, operand, wanted) for part, operand in zip(step.parts, e.operands, strict=True)
        ]
        if isinstance(e, AndThen | OrElse):
            # Operands after the first that decides were not evaluated.
            passing = isinstance(e, AndThen)
            reached = next((i + 1 for i, part in enumerate(step.parts) if part.value is not passing), None)
            if reached is not None:
                blamed[reached:] = step.parts[reached:]
        return replace(step, parts=tuple(blamed))
    if isinstance(e, Not) and isinstance(e.operand, And | Or | AndThen | OrElse | Not | IsTruth | Quantified):
        return replace(step, parts=(_blamed(step.parts[0], e.operand, not wanted),))
    if isinstance(e, IsTruth) and wanted and e.truth is not None:
        return replace(step, parts=(_blamed(step.parts[0], e.operand, e.truth),))
    if isinstance(e, Quantified) and step.parts:
        parts = tuple(_blamed(part, e.condition, wanted) for part in step.parts)
        return replace(step, parts=parts)
    return replace(step, failed=True)


_TRUTHS = {True: "true", False: "false", None: "unknown"}


def trace_text(trace: Trace) -> str:
    """Format a trace: whether the event matches, and the parts that made it fail."""
    return "\n".join(map(shown, ["match", *error_lines(trace)] if trace.matches else failure_lines(trace)))


def failure_lines(trace: Trace) -> list[str]:
    """Return the lines of a trace without a match: each part that failed, its value, and the values read."""
    lines = ["no match"]
    failures = list(
        dict.fromkeys(f"  {step.text} is {_TRUTHS[step.value]}{_because(step)}" for step in trace.failures)
    )
    lines += failures[:SHOWN_PARTS_MAX]
    if len(failures) > SHOWN_PARTS_MAX:
        lines.append(f"  ... and {len(failures) - SHOWN_PARTS_MAX:,} more")
    return lines + error_lines(trace)


def error_lines(trace: Trace) -> list[str]:
    """Return a line for each error in the evaluation."""
    return [f"  error: {error}" for error in trace.errors]


def tree_lines(step: TracedStep, depth: int = 1) -> list[str]:
    """Return the parts of a step as an indented tree, each with its value and the values read."""
    lines = [f"{'  ' * depth}{_TRUTHS[step.value]:<8}{step.text}{_because(step) if not step.parts else ''}"]
    for part in step.parts[:SHOWN_PARTS_MAX]:
        lines += tree_lines(part, depth + 1)
    if len(step.parts) > SHOWN_PARTS_MAX:
        left = len(step.parts) - SHOWN_PARTS_MAX
        lines.append(f"{'  ' * (depth + 1)}... and {left:,} more")
    return [shown(line) for line in lines]


def _because(step: TracedStep) -> str:
    """Format the values read: ``: data.price is 20, data.symbol is missing``."""
    readings = list(dict.fromkeys(f"{each.name} is {value_text(each.value)}" for each in step.all_readings()))
    if len(readings) > _SHOWN_READINGS_MAX:
        readings[_SHOWN_READINGS_MAX:] = ["..."]
    return f": {', '.join(readings)}" if readings else ""
