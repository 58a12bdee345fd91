"""A filter, compiled: what a subscription's text means, for one event and for the index."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fieldfare.filters.errors import FilterError, Problem, nearest
from fieldfare.filters.evaluator import Compiler, Condition, event_getter, lookup_getter
from fieldfare.filters.expression import Expression, attribute_paths
from fieldfare.filters.normal_form import NormalForm, normal_form
from fieldfare.filters.sql import parse_sql
from fieldfare.model import Path

PARSERS: dict[str, Callable[[str], Expression]] = {"sql": parse_sql}
"""The filter languages: name to parser. A parser raises FilterError."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a filter says of one event.

    Attributes
    ----------
    value : True, False, or None for unknown. The event matches only if it is True.
    errors : kinds of errors that the dialect knows; ``sql`` has none, unknown stands for them.
    """

    value: Any
    errors: tuple[str, ...] = ()


class Filter:
    """A filter of any dialect. Immutable; made by ``compile_filter``; can be pickled.

    What is derived from the text is computed when it is first asked for, so that a filter which is
    only parsed, or only evaluated, costs no more than that.

    Attributes
    ----------
    text, dialect : as given.
    expression : the internal expression.
    """

    __slots__ = (
        "_evaluate_event",
        "_match_event",
        "_match_lookup",
        "_normal_form",
        "_paths",
        "dialect",
        "expression",
        "text",
    )

    def __init__(self, text: str, dialect: str, expression: Expression) -> None:
        self.text = text
        self.dialect = dialect
        self.expression = expression
        self._normal_form: NormalForm | None = None
        self._paths: frozenset[Path] | None = None
        self._match_event: Condition | None = None
        self._match_lookup: Condition | None = None
        self._evaluate_event: Condition | None = None

    @property
    def normal_form(self) -> NormalForm:
        """What the index needs to know: a bounded disjunction of conjunctions of value sets."""
        if self._normal_form is None:
            self._normal_form = normal_form(self.expression)
        return self._normal_form

    @property
    def paths(self) -> frozenset[Path]:
        """The attributes that the filter reads."""
        if self._paths is None:
            self._paths = attribute_paths(self.expression)
        return self._paths

    def matches(self, event: Mapping[str, Any]) -> bool:
        """Whether an event matches: a CloudEvent as its JSON object, already parsed."""
        match = self._match_event
        if match is None:
            match = self._match_event = Compiler(event_getter).matcher(self.expression)
        return match(event) is True

    def matches_lookup(self, get: Callable[[Path], Any]) -> bool:
        """Whether an event matches whose attributes are read by a function.

        Parameters
        ----------
        get : path to value; ``values.ABSENT`` where the event has no such attribute.
        """
        match = self._match_lookup
        if match is None:
            match = self._match_lookup = Compiler(lookup_getter).matcher(self.expression)
        return match(get) is True

    def evaluate(self, event: Mapping[str, Any]) -> Evaluation:
        """The filter's value for an event: True, False or None (unknown)."""
        evaluate = self._evaluate_event
        if evaluate is None:
            evaluate = self._evaluate_event = Compiler(event_getter).condition(self.expression)
        return Evaluation(evaluate(event))

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


def compile_filter(text: str, dialect: str = "sql") -> Filter:
    """Compile a filter.

    Parameters
    ----------
    text : the filter.
    dialect : the language it is written in: ``sql``.

    Raises
    ------
    FilterError
        The filter cannot be used; ``problems`` says where and why.
    """
    parse = PARSERS.get(dialect)
    if parse is None:
        guess = nearest(dialect, [name.upper() for name in PARSERS]).lower()
        hint = f"did you mean {guess}?" if guess else f"the dialects are: {', '.join(PARSERS)}"
        raise FilterError(text, [Problem(f"there is no dialect {dialect!r}", 1, 1, hint, 0)])
    return Filter(text, dialect, parse(text))
