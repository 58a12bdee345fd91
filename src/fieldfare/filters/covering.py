"""Covering and intersection: does a filter match every event that another matches; can both match one event?

Routing between brokers asks both (Carzaniga et al. 2001, SIENA): a filter is sent only to brokers with an
advertisement that intersects it, and an advertisement that covers an earlier one can be told at once.

A `FilterRegion` is a filter compiled for these questions, once; then a pair is cheap. Its outer boxes contain
all events that the filter matches, its inner boxes only such events. Filters intersect if outer boxes meet; a
filter covers another if the other's outer boxes lie in its inner ones. Where a part of a filter has no inner
boxes (``title LIKE '%a_b%'``), equal parts are recognised: a conjunction lies in another that has some of its
conditions.

Both answers are cautious. A True of `covers` is a proof, a False may be "not proved"; a False of `intersects`
is a proof, a True may be "perhaps". For filters that compare attributes with constants, in any dialect, the
answers are exact within ``boxes.STEPS_MAX`` steps, except for strings without a string between them. They are
about `Filter.matches`: events for which a filter would take too many steps are not matched by it. That all
filters of a space share the steps of an event (``work.EVENT_STEPS_MAX``) is not regarded.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from fieldfare.filters.boxes import Box, OutOfStepsError, Steps, box_of, lies_in, meet
from fieldfare.filters.evaluator import event_getter
from fieldfare.filters.expression import (
    And,
    Attribute,
    Between,
    Comparison,
    Exists,
    Expression,
    In,
    IsNull,
    IsTruth,
    Literal,
    Not,
    Or,
    walk,
)
from fieldfare.filters.filter import Filter
from fieldfare.filters.normal_form import NormalForm, normal_form

ALTERNATIVES_MAX = 16
"""Maximum operands of an OR that are compared part by part; an OR of more is one condition."""
CONDITIONS_MAX = 64
"""Maximum operands of an AND that are compared part by part; an AND of more is one condition."""

_CHEAP = (Literal, Attribute, Comparison, Between, In, Exists, IsNull, IsTruth, Not, And, Or)
"""Expression types whose evaluation takes no counted steps."""


class Condition(NamedTuple):
    """A part of a filter that must be true.

    Attributes
    ----------
    key
        A digest of the expression; equal keys: equal expressions.
    inner
        Boxes with only events for which it is true.
    is_cheap
        Whether its evaluation takes no counted steps.
    """

    key: bytes
    inner: tuple[Box, ...]
    is_cheap: bool


class Alternative(NamedTuple):
    """One operand of a filter's OR: the boxes around it, and the conditions that it requires."""

    outer: tuple[Box, ...]
    conditions: tuple[Condition, ...]
    keys: frozenset[bytes]
    excluded: frozenset[bytes]
    """The keys of conditions that must be false."""


class FilterRegion:
    """The events that a filter can match, compiled for `covers` and `intersects`. Immutable.

    Attributes
    ----------
    filter
        The filter; None for a hull.
    form
        The filter's normal form, or the hull.
    outer, inner
        Boxes with all events that match, and boxes with only such events.
    """

    __slots__ = ("_alternatives", "_key", "_tests", "filter", "form", "inner", "outer")

    def __init__(self, form: NormalForm, filter: Filter | None = None) -> None:
        self.filter = filter
        self.form = form
        self.outer, self.inner = _boxes(form)
        self._alternatives: tuple[Alternative, ...] | None = None
        self._key: bytes | None = None
        self._tests: Any = None

    @property
    def is_exact(self) -> bool:
        """Whether the boxes contain exactly the events that match."""
        return len(self.inner) == len(self.outer)

    @property
    def key(self) -> bytes:
        """A digest of the filter's expression, or of the hull; equal keys: equal filters."""
        if self._key is None:
            self._key = _digest(self.form if self.filter is None else self.filter.expression)
        return self._key

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The filter part by part, if its boxes are not exact; computed at the first use."""
        if self._alternatives is None:
            expression = None if self.filter is None or self.is_exact else self.filter.expression
            self._alternatives = () if expression is None else _alternatives(expression)
        return self._alternatives

    def matches(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event matches the filter, or is in the hull."""
        if self.filter is not None:
            return self.filter.matches(event)
        if self._tests is None:
            self._tests = [
                ([(event_getter(path), values) for path, values in each.constraints], each.needles)
                for each in self.form.conjunctions
            ]
        return any(
            all(get(event) in values for get, values in tests)
            and all(needle.is_in(event_getter(needle.path)(event)) for needle in needles)
            for tests, needles in self._tests
        )

    def covers(self, other: FilterRegion) -> bool:
        """Return whether every event that the other matches also matches this; see `covers`."""
        return covers(self, other)

    def intersects(self, other: FilterRegion) -> bool:
        """Return whether an event may match both; see `intersects`."""
        return intersects(self, other)

    def __repr__(self) -> str:
        shown = f"{len(self.form.conjunctions)} conjunctions" if self.filter is None else repr(self.filter)
        return f"<FilterRegion of {shown}>"


def region_of(filter: Filter) -> FilterRegion:
    """Compile a filter for `covers` and `intersects`."""
    return FilterRegion(filter.normal_form, filter)


def covers(a: FilterRegion, b: FilterRegion) -> bool:
    """Return whether filter ``a`` matches every event that ``b`` matches.

    True is a proof. False may mean that no proof was found: ``a`` computes values or looks into arrays, or
    the comparison would take more than ``boxes.STEPS_MAX`` steps.
    """
    if a is b or not b.outer:
        return True
    if not (a.is_exact and b.is_exact) and a.key == b.key:
        return True
    steps = Steps()
    try:
        if a.inner and all(lies_in(box, a.inner, steps) for box in b.outer):
            return True
        return not a.is_exact and bool(a.alternatives) and _covers_by_parts(a, b, steps)
    except OutOfStepsError:
        return a.key == b.key


def intersects(a: FilterRegion, b: FilterRegion) -> bool:
    """Return whether some event may match both filters.

    False is a proof. True may mean that no proof was found, as for two different patterns of one attribute.
    """
    steps = Steps()
    try:
        if not any(meet(one, other, steps) for one in a.outer for other in b.outer):
            return False
        if a.is_exact or b.is_exact:
            return True
        return any(
            one.keys.isdisjoint(other.excluded) and other.keys.isdisjoint(one.excluded)
            for one in a.alternatives
            for other in b.alternatives
            if any(meet(box, found, steps) for box in one.outer for found in other.outer)
        )
    except OutOfStepsError:
        return True


def _boxes(form: NormalForm) -> tuple[tuple[Box, ...], tuple[Box, ...]]:
    """Return the boxes of all conjunctions, and of the exact ones."""
    found = [(box, each.exact) for each in form.conjunctions if (box := box_of(each)) is not None]
    return tuple([box for box, _ in found]), tuple([box for box, is_exact in found if is_exact])


def _digest(part: object) -> bytes:
    return blake2b(repr(part).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _alternatives(expression: Expression) -> tuple[Alternative, ...]:
    operands = _operands(expression, Or, ALTERNATIVES_MAX)
    return tuple([_alternative(each, len(operands) == 1) for each in operands])


def _operands(expression: Expression, joined: type[And] | type[Or], most: int) -> list[Expression]:
    """Return the operands of nested ANDs (or ORs); the expression itself if there are more than allowed."""
    found: list[Expression] = []
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        if isinstance(part, And | Or) and isinstance(part, joined):
            waiting += reversed(part.operands)
        else:
            found.append(part)
        if len(found) + len(waiting) > most:
            return [expression]
    return found


def _alternative(expression: Expression, is_alone: bool) -> Alternative:
    conditions = []
    excluded = set()
    for part in _operands(expression, And, CONDITIONS_MAX):
        is_cheap = all(isinstance(each, _CHEAP) for each in walk(part))
        conditions.append(Condition(_digest(part), _boxes(normal_form(part))[1], is_cheap))
        if isinstance(part, Not):
            excluded.add(_digest(part.operand))
    keys = frozenset([each.key for each in conditions])
    return Alternative(_boxes(normal_form(expression))[0], tuple(conditions), keys, frozenset(excluded))


_EVERY_KEY = frozenset[bytes]()


def _covers_by_parts(a: FilterRegion, b: FilterRegion, steps: Steps) -> bool:
    """Return whether each alternative of ``b`` lies in one of ``a``, by equal conditions and by boxes."""
    others = b.alternatives or (Alternative(b.outer, (), _EVERY_KEY, _EVERY_KEY),)
    counted = a.filter is not None and a.filter.work is not None
    if counted and b.filter is not None and a.filter is not None and b.filter.work == a.filter.work:
        counted = False
    # A filter whose steps are counted gives up where they are too many. It takes no more than the other only
    # if all its parts that take steps are parts of the other.
    if counted and len(a.alternatives) > 1:
        return False
    return all(
        any(_implied(one, other, counted, steps) for one in a.alternatives)
        or (bool(a.inner) and all(lies_in(box, a.inner, steps) for box in other.outer))
        for other in others
    )


def _implied(one: Alternative, other: Alternative, counted: bool, steps: Steps) -> bool:
    """Return whether all conditions of one alternative hold wherever those of the other do."""
    steps.take(len(one.conditions) + 1)
    if counted and len(one.keys) < len(one.conditions):
        return False
    for condition in one.conditions:
        if condition.key in other.keys:
            continue
        if (counted and not condition.is_cheap) or not condition.inner:
            return False
        if not all(lies_in(box, condition.inner, steps) for box in other.outer):
            return False
    return True
