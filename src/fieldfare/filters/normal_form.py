"""The normal form: a bounded disjunction of conjunctions of value sets, for the index.

For each part of an expression, and each set of truth values wanted of it, ``_Builder`` gives a
disjunction that holds wherever the part takes one of them. A predicate on one attribute gives its
exact set of values; AND and OR of what is wanted combine by products and unions; NOT only swaps
what is wanted. So nothing is lost by unknowns: they are truth values like the others.

What no value set can say (arithmetic, two attributes, a wildcard inside a pattern) gives a
*superset*: the values with which it could hold, marked not exact. The same happens to what would
grow beyond the bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fieldfare.filters import values as sets
from fieldfare.filters.drafts import MAX_CONJUNCTIONS, Disjunction, Draft, conjoin, product, union
from fieldfare.filters.evaluator import Compiler, lookup_getter
from fieldfare.filters.expression import (
    CONDITIONS,
    And,
    Arithmetic,
    Attribute,
    Between,
    Comparison,
    Expression,
    In,
    IsNull,
    IsTruth,
    Literal,
    Negate,
    Not,
    Or,
    attribute_paths,
)
from fieldfare.filters.predicate_sets import SETS
from fieldfare.filters.values import ValueSet
from fieldfare.model import Path


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Value sets that an event's attributes must all be in.

    Attributes
    ----------
    constraints : pairs of path and set, sorted by path, one a path; no set is empty or full.
    exact : whether an event that fits matches. If not, the filter's evaluator decides.
    """

    constraints: tuple[tuple[Path, ValueSet], ...]
    exact: bool = True


@dataclass(frozen=True, slots=True)
class NormalForm:
    """A filter for the index: it can match only events that fit one of the conjunctions."""

    conjunctions: tuple[Conjunction, ...]


def normal_form(expression: Expression) -> NormalForm:
    """The normal form of the events for which an expression is true."""
    drafts = _Builder().wanted(expression, _TRUE)
    return NormalForm(tuple(Conjunction(_sorted(draft.sets), draft.exact) for draft in drafts))


def _sorted(found: dict[Path, ValueSet]) -> tuple[tuple[Path, ValueSet], ...]:
    if len(found) == 1:
        return tuple(found.items())
    try:
        paths = sorted(found)
    except TypeError:  # an array's index and a name at the same step
        paths = sorted(found, key=path_order)
    return tuple([(path, found[path]) for path in paths])


def path_order(path: Path) -> tuple[tuple[bool, str | int], ...]:
    """A key that sorts paths: step by step, array indexes before names."""
    return tuple([(isinstance(step, str), step) for step in path])


_TRUE, _FALSE, _UNKNOWN = 1, 2, 4
_ALL = _TRUE | _FALSE | _UNKNOWN
_TRUTHS = {True: _TRUE, False: _FALSE, None: _UNKNOWN}
_COMPARABLE = ValueSet(sets.FALSE | sets.TRUE, sets.EVERYTHING, sets.EVERYTHING)
_BOOLEANS = ValueSet(sets.FALSE | sets.TRUE)
_NEVER: Disjunction = []


class _Builder:
    """Remembers what it has found, so that work is linear in the expression's size."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int], Disjunction] = {}

    def wanted(self, e: Expression, truths: int) -> Disjunction:
        """Where the expression takes one of these truth values (a mask)."""
        if truths == 0:
            return _NEVER
        if truths == _ALL:
            return [Draft({})]
        build = _COMPOUNDS.get(type(e))
        if build is None:
            return self.predicate(e, truths)
        key = (id(e), truths)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = build(self, e, truths)
        return found

    def conjunction(self, e: And, truths: int) -> Disjunction:
        return self.joined(e, truths, _TRUE)

    def disjunction(self, e: Or, truths: int) -> Disjunction:
        return self.joined(e, truths, _FALSE)

    def joined(self, e: And | Or, truths: int, shared: int) -> Disjunction:
        """AND and OR: one truth value (``shared``) that all operands must have, or one of them decides."""
        if truths == _UNKNOWN:  # not true, and not false
            return product([self.wanted(e, _FALSE | _UNKNOWN), self.wanted(e, _TRUE | _UNKNOWN)])
        if truths == _TRUE | _FALSE:
            return union([self.wanted(e, _TRUE), self.wanted(e, _FALSE)])
        parts = [self.wanted(operand, truths) for operand in e.operands]
        return product(parts) if truths & shared else union(parts)

    def negation(self, e: Not, truths: int) -> Disjunction:
        swapped = truths & _UNKNOWN | (_FALSE if truths & _TRUE else 0) | (_TRUE if truths & _FALSE else 0)
        return self.wanted(e.operand, swapped)

    def truth_test(self, e: IsTruth, truths: int) -> Disjunction:
        inner = _TRUTHS[e.truth]
        return self.wanted(
            e.operand, (inner if truths & _TRUE else 0) | (_ALL ^ inner if truths & _FALSE else 0)
        )

    def between(self, e: Between, truths: int) -> Disjunction:
        if truths == _TRUE and (found := SETS[Between](e, True)):
            path, values, _ = found
            return _NEVER if values.is_empty else [Draft({path: values})]
        both = And((Comparison(">=", e.operand, e.low), Comparison("<=", e.operand, e.high)))
        return _Builder().wanted(both, truths)

    def membership(self, e: In, truths: int) -> Disjunction:
        if isinstance(e.operand, Attribute) and all(isinstance(item, Literal) for item in e.items):
            return self.predicate(e, truths)
        items = dict.fromkeys(e.items)
        if sum(not isinstance(item, Literal) for item in items) > MAX_CONJUNCTIONS:
            return _superset(e, truths)
        equalities = tuple(Comparison("=", e.operand, item) for item in items)
        return _Builder().wanted(Or(equalities), truths)

    def null_test(self, e: IsNull, truths: int) -> Disjunction:
        if isinstance(e.operand, CONDITIONS):
            return self.truth_test(IsTruth(e.operand, None), truths)
        return self.predicate(e, truths)

    def predicate(self, e: Expression, truths: int) -> Disjunction:
        """A predicate: exact value sets if it is one on one attribute, else a superset.

        Where a predicate is decided (true or false) is always exact, also for patterns.
        """
        set_where = SETS.get(type(e))
        found = set_where(e, bool(truths & _TRUE)) if set_where else None
        if found is None:
            return _superset(e, truths)
        path, values, is_exact = found
        if truths not in (_TRUE, _FALSE):
            opposite = set_where(e, not truths & _TRUE)  # type: ignore[misc]
            decided = values.union(opposite[1])  # type: ignore[index]
            if truths == _TRUE | _FALSE:
                values, is_exact = decided, True
            elif truths == _UNKNOWN:
                values, is_exact = decided.complement(), True
            else:
                values = values.union(decided.complement())
        if values.is_empty:
            return _NEVER
        return [Draft({} if values.is_full else {path: values}, is_exact)]


_COMPOUNDS: dict[type, Callable[[_Builder, Any, int], Disjunction]] = {
    And: _Builder.conjunction,
    Or: _Builder.disjunction,
    Not: _Builder.negation,
    IsTruth: _Builder.truth_test,
    IsNull: _Builder.null_test,
    Between: _Builder.between,
    In: _Builder.membership,
}


def _superset(e: Expression, truths: int) -> Disjunction:
    """What no value set can say: the types of values with which it can be true or false."""
    if not attribute_paths(e):
        truth = Compiler(lookup_getter).condition(e)(None)
        return [Draft({})] if _TRUTHS[truth] & truths else _NEVER
    if truths & _UNKNOWN:
        return [Draft({}, False)]
    needed: list[tuple[Path, ValueSet]] = []
    if isinstance(e, Comparison):
        kinds = _kinds(e.left).intersection(_kinds(e.right))
        if kinds.is_empty:
            return _NEVER  # of unlike types, so always unknown
        needed = [*_needed(e.left, kinds), *_needed(e.right, kinds)]
    elif isinstance(e, In) or (isinstance(e, IsNull) and truths == _FALSE):
        needed = _needed(e.operand, _kinds(e.operand))
    draft = conjoin([Draft({path: kinds}) for path, kinds in needed])
    return _NEVER if draft is None else [Draft(draft.sets, False)]


def _kinds(e: Expression) -> ValueSet:
    """The kinds of values that an operand can have where it can be compared."""
    if isinstance(e, Attribute):
        return _COMPARABLE
    if isinstance(e, Arithmetic | Negate):
        return sets.NUMBERS
    if not isinstance(e, Literal) or isinstance(e.value, bool):
        return _BOOLEANS
    if e.value is None:
        return sets.NO_VALUES
    return sets.STRINGS if isinstance(e.value, str) else sets.NUMBERS


def _needed(e: Expression, kinds: ValueSet) -> list[tuple[Path, ValueSet]]:
    """What the attributes of an operand must be for it to have a value of these kinds."""
    if isinstance(e, Attribute):
        return [(e.path, kinds)]
    if isinstance(e, Negate):
        return _needed(e.operand, sets.NUMBERS)
    if isinstance(e, Arithmetic):
        return _needed(e.left, sets.NUMBERS) + _needed(e.right, sets.NUMBERS)
    return []
