"""What a filter did with one event: the value of each part, and the parts that made it fail."""

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
from fieldfare.filters.help.text import MAX_SHOWN_PARTS, shown, value_text
from fieldfare.filters.sql.paths import format_path
from fieldfare.filters.values import ABSENT, is_array

_MAX_SHOWN_READINGS = 6


MAX_ELEMENTS = 100
"""Arrays of more elements are not gone through one by one."""

MAX_STEPS = 20_000
"""After so many steps no more arrays are gone through."""

Truth = bool | None


@dataclass(frozen=True, slots=True)
class TracedReading:
    """What was read for a part: the name of an attribute or element, and its value or ``ABSENT``."""

    name: str
    value: Any


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One part of a filter, and what it was for an event.

    Attributes
    ----------
    text
        The part, as ``sql`` writes it.
    value
        True, False, or None for unknown.
    readings
        The attributes of a part that has no parts itself.
    parts
        What it is made of; for a quantifier its condition for each element.
    failed
        Whether the filter would have gone further if this innermost part had had another value.
    """

    text: str
    value: Truth
    readings: tuple[TracedReading, ...] = ()
    parts: tuple[TracedStep, ...] = ()
    failed: bool = False

    def failures(self) -> Iterator[TracedStep]:
        """The innermost parts that made the filter fail, in the order of the text."""
        if self.failed:
            yield self
        for part in self.parts:
            yield from part.failures()

    def all_readings(self) -> Iterator[TracedReading]:
        """What was read for the part and for its parts."""
        yield from self.readings
        for part in self.parts:
            yield from part.all_readings()


@dataclass(frozen=True, slots=True)
class Trace:
    """What a filter did with one event; ``str()`` gives it as text.

    Attributes
    ----------
    matches
        Whether the event matches.
    root
        The whole filter, part by part.
    errors
        The kinds of errors that the filter's dialect found, for dialects that have errors.
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


def trace(filter: Filter, event: Mapping[str, Any]) -> Trace:
    """Evaluate a filter part by part.

    The value of the root is what the filter's internal expression gives; a filter matches where it
    is true.
    """
    root = _blamed(_Tracer(_Scope(event, {}), _Work()).step(filter.expression), filter.expression, True)
    return Trace(root.value is True, root, filter.evaluate(event).errors)


@dataclass(frozen=True, slots=True)
class _Scope:
    """An event, and the elements that the quantifiers around a part are at."""

    event: Mapping[str, Any]
    elements: Mapping[str, Any]


def _attribute_of(path: tuple[str | int, ...]) -> Callable[[_Scope], Any]:
    get = event_getter(path)
    return lambda scope: get(scope.event)


class _Work:
    """What the tracers of one trace share: the texts of the parts, and how much was done."""

    def __init__(self) -> None:
        self.steps = 0
        self._texts: dict[int, str] = {}

    def text(self, e: Expression) -> str:
        found = self._texts.get(id(e))
        if found is None:
            found = self._texts[id(e)] = written(e)
        return found


class _Tracer:
    """Evaluates the parts of an expression for one event (and element), each once."""

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
        """A quantifier's condition for each element; nothing if those are too many."""
        array = self.value(e.array)
        elements = array if is_array(array) else [] if array is ABSENT else [array]
        if len(elements) > MAX_ELEMENTS or self.work.steps > MAX_STEPS:
            return ()
        parts = []
        for element in elements:
            scope = _Scope(self.scope.event, {**self.scope.elements, e.variable: element})
            parts.append(_Tracer(scope, self.work).step(e.condition))
        return tuple(parts)

    def value(self, e: Expression) -> Any:
        return self.compiler.value(e)(self.scope)

    def readings(self, e: Expression) -> Iterator[TracedReading]:
        """The attributes and elements that a part reads, each once."""
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
    """The step with the innermost parts marked that kept it from being as wanted."""
    if step.value is wanted:
        return step
    if isinstance(e, And | Or | AndThen | OrElse):
        blamed = [
            _blamed(part, operand, wanted) for part, operand in zip(step.parts, e.operands, strict=True)
        ]
        if isinstance(e, AndThen | OrElse):
            # What comes after the first part that decides was not looked at.
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
    """Whether an event matches, and what made it fail."""
    return "\n".join(map(shown, ["match", *error_lines(trace)] if trace.matches else failure_lines(trace)))


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


def tree_lines(step: TracedStep, depth: int = 1) -> list[str]:
    """Each part below the one that it belongs to, with its value and what was read."""
    lines = [f"{'  ' * depth}{_TRUTHS[step.value]:<8}{step.text}{_because(step) if not step.parts else ''}"]
    for part in step.parts[:MAX_SHOWN_PARTS]:
        lines += tree_lines(part, depth + 1)
    if len(step.parts) > MAX_SHOWN_PARTS:
        left = len(step.parts) - MAX_SHOWN_PARTS
        lines.append(f"{'  ' * (depth + 1)}... and {left:,} more")
    return [shown(line) for line in lines]


def _because(step: TracedStep) -> str:
    """What was read: ``: data.price is 20, data.symbol is missing``."""
    readings = list(dict.fromkeys(f"{each.name} is {value_text(each.value)}" for each in step.all_readings()))
    if len(readings) > _MAX_SHOWN_READINGS:
        readings[_MAX_SHOWN_READINGS:] = ["..."]
    return f": {', '.join(readings)}" if readings else ""
