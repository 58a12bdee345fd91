"""Compiled filters: a subscription's filter text, ready to be evaluated for an event and to be indexed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fieldfare.filters.cesql.evaluate import evaluate as evaluate_cesql
from fieldfare.filters.cesql.parser import parse_cesql
from fieldfare.filters.cesql.translate import translate as translate_cesql
from fieldfare.filters.costs import cost_of
from fieldfare.filters.counted import decided_by_work
from fieldfare.filters.encoding import encode_normal_form
from fieldfare.filters.errors import FilterError, Problem, nearest
from fieldfare.filters.evaluator import Compiler, Condition, event_getter, lookup_getter
from fieldfare.filters.eventbridge.dialect import parse_eventbridge
from fieldfare.filters.expression import Expression, Literal, attribute_paths, without_quantifiers
from fieldfare.filters.normal_form import NormalForm, normal_form
from fieldfare.filters.sql.parser import read_sql
from fieldfare.filters.sql.simple import SimpleFilter, read_simple
from fieldfare.filters.subscriptions_api import parse_subscriptions
from fieldfare.filters.work import Work, work_of
from fieldfare.model import Path


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of evaluating a filter for one event.

    Attributes
    ----------
    value
        True, False, or None for unknown; ``cesql`` has other values too. The event matches only if True.
    errors
        Kinds of errors that the dialect defines. ``sql`` has none: an error is unknown.
    given_up
        Whether the filter was not evaluated because it would take too many steps; the event does not match.
    """

    value: Any
    errors: tuple[str, ...] = ()
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class Parsed:
    """A filter as a dialect's parser returns it.

    Attributes
    ----------
    expression
        True for exactly the events that match.
    evaluate
        Evaluates the filter, in a dialect whose results are not those of the expression.
    warnings
        Problems with text that is allowed but probably not intended.
    """

    expression: Expression
    evaluate: Callable[[Mapping[str, Any]], Evaluation] | None = None
    warnings: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Dialect:
    """A filter language.

    Attributes
    ----------
    parse
        Parses a text; raises FilterError.
    is_json
        Whether a filter is a JSON document.
    """

    parse: Callable[[str], Parsed | SimpleFilter]
    is_json: bool = False


def _parse_sql(text: str) -> Parsed | SimpleFilter:
    simple = read_simple(text)
    if simple is not None:
        return simple
    expression, warnings = read_sql(text)
    return Parsed(expression, warnings=warnings)


_SIMPLE = Parsed(Literal(True))
"""The other attributes of a simple filter, whose expression is made later: no evaluate, no warnings."""


def _parse_cesql(text: str) -> Parsed:
    node, warnings = parse_cesql(text)
    return Parsed(
        translate_cesql(text, node), lambda event: Evaluation(*evaluate_cesql(node, event)), warnings
    )


def _two_valued(expression: Expression, warnings: tuple[Problem, ...]) -> Parsed:
    """Return a filter of a dialect without unknown: unknown is false."""
    found: list[Condition] = []

    def evaluate(event: Mapping[str, Any]) -> Evaluation:
        if not found:
            found.append(Compiler(event_getter).matcher(expression))
        return Evaluation(found[0](event) is True)

    return Parsed(expression, evaluate, warnings)


DIALECTS: dict[str, Dialect] = {
    "sql": Dialect(_parse_sql),
    "cesql": Dialect(_parse_cesql),
    "eventbridge": Dialect(lambda text: _two_valued(*parse_eventbridge(text)), is_json=True),
    "subscriptions": Dialect(lambda text: _two_valued(*parse_subscriptions(text)), is_json=True),
}
"""The filter languages, by name."""


class Filter:
    """A filter of any dialect. Immutable; made by ``compile_filter``; can be pickled.

    Properties are computed at their first use, so that a filter that is only parsed, or only evaluated,
    costs no more than that.

    Attributes
    ----------
    text, dialect
        The arguments of ``compile_filter``; parsed JSON is converted to compact text.
    warnings
        Problems with text that is allowed but probably not intended.
    """

    __slots__ = (
        "_evaluate_event",
        "_expression",
        "_match_event",
        "_match_lookup",
        "_normal_form",
        "_paths",
        "_simple",
        "_work",
        "dialect",
        "text",
        "warnings",
    )

    def __init__(self, text: str, dialect: str, parsed: Parsed | SimpleFilter) -> None:
        self.text = text
        self.dialect = dialect
        self._simple: SimpleFilter | None = None
        self._expression: Expression | None = None
        if isinstance(parsed, SimpleFilter):
            self._simple = parsed
            parsed = _SIMPLE
        else:
            self._expression = parsed.expression
        self.warnings = parsed.warnings
        self._normal_form: NormalForm | None = None
        self._paths: frozenset[Path] | None = None
        self._match_event: Condition | None = None
        self._match_lookup: Condition | None = None
        self._evaluate_event = parsed.evaluate
        self._work: bool | Work | None = None if self._simple is not None else False

    @property
    def expression(self) -> Expression:
        """The internal expression: true for exactly the events that match."""
        if self._expression is None:
            assert self._simple is not None
            self._expression = self._simple.expression()
        return self._expression

    @property
    def compiled(self) -> bytes:
        """The encoded normal form that the registry keeps; faster than ``encode_normal_form`` if possible."""
        encoded = self._simple.encoded() if self._simple is not None else None
        return encoded if encoded is not None else encode_normal_form(self.normal_form)

    @property
    def normal_form(self) -> NormalForm:
        """The filter for the index: a bounded disjunction of conjunctions of value sets."""
        if self._normal_form is None:
            self._normal_form = decided_by_work(normal_form(self.expression), self.work)
        return self._normal_form

    @property
    def work(self) -> Work | None:
        """The steps that evaluating the filter takes; None if no event can make it take many."""
        if isinstance(self._work, bool):
            self._work = work_of(self.expression)
        return self._work

    @property
    def cost(self) -> int:
        """The cost of matching the filter, in predicates: see ``filters.costs``."""
        if self._simple is not None:
            return self._simple.cost()
        return cost_of(self.expression, self.normal_form)

    @property
    def paths(self) -> frozenset[Path]:
        """The attributes that the filter reads."""
        if self._paths is None:
            self._paths = attribute_paths(self.expression)
        return self._paths

    @property
    def column_paths(self) -> frozenset[Path]:
        """The attributes that a batch should have as columns: ``paths``, and parts of quantified values."""
        return self.paths | attribute_paths(without_quantifiers(self.expression))

    def matches(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event matches: a CloudEvent as a parsed JSON object."""
        if self.work is not None and not self.work.fits(lambda path: event_getter(path)(event)):
            return False
        match = self._match_event
        if match is None:
            match = self._match_event = Compiler(event_getter).matcher(self.expression)
        return match(event) is True

    def decides(self, get: Callable[[Path], Any]) -> bool:
        """Return whether an event matches, without limiting the steps: for callers that have counted them."""
        match = self._match_lookup
        if match is None:
            match = self._match_lookup = Compiler(lookup_getter).matcher(self.expression)
        return match(get) is True

    def evaluate(self, event: Mapping[str, Any]) -> Evaluation:
        """Evaluate the filter for an event: True, False or None; in ``cesql`` other values and errors too."""
        if self.work is not None and not self.work.fits(lambda path: event_getter(path)(event)):
            return Evaluation(None, given_up=True)
        evaluate = self._evaluate_event
        if evaluate is None:
            condition = Compiler(event_getter).condition(self.expression)
            evaluate = self._evaluate_event = lambda event: Evaluation(condition(event))
        return evaluate(event)

    def __repr__(self) -> str:
        return f"compile_filter({self.text!r}, dialect={self.dialect!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Filter):
            return NotImplemented
        return (self.text, self.dialect) == (other.text, other.dialect)

    def __hash__(self) -> int:
        return hash((self.text, self.dialect))

    def __reduce__(self) -> tuple[Callable[[str, str], Filter], tuple[str, str]]:
        return compile_filter, (self.text, self.dialect)


def compile_filter(text: str | Mapping[str, Any] | Sequence[Any], dialect: str = "sql") -> Filter:
    """Compile a filter.

    Parameters
    ----------
    text
        The filter; for JSON dialects, parsed JSON is accepted too.
    dialect
        The filter language, one of ``DIALECTS``.

    Raises
    ------
    FilterError
        The filter cannot be used; ``problems`` has places and reasons.
    """
    known = DIALECTS.get(dialect)
    if known is None:
        guess = nearest(dialect, [name.upper() for name in DIALECTS]).lower()
        hint = f"did you mean {guess}?" if guess else f"the dialects are: {', '.join(DIALECTS)}"
        shown = text if isinstance(text, str) else ""
        raise FilterError(shown, [Problem(f"there is no dialect {dialect!r}", 1, 1, hint, 0)])
    if not isinstance(text, str):
        text = _json_text(text, dialect, known)
    return Filter(text, dialect, known.parse(text))


def _json_text(document: Any, name: str, dialect: Dialect) -> str:
    problem = ""
    if not dialect.is_json:
        problem = f"a filter in the dialect {name} is a text, not a {type(document).__name__}"
    else:
        try:
            return json.dumps(document, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            problem = f"this is not JSON: {error}"
    raise FilterError("", [Problem(problem, 1, 1, "", 0)])
