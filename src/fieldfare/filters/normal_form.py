"""The normal form: a bounded disjunction of conjunctions of value sets, for the index.

For each part of an expression, and each set of truth values wanted of it, ``_Builder`` returns a
disjunction that holds wherever the part takes one of them. A predicate on one attribute gives its
exact set of values; AND and OR combine by products and unions; NOT only swaps the wanted truth values.
Unknown is a truth value like the others, so nothing is lost by it.

A value computed from attributes is a *derived column* (``filters.derived``), whose value set is exact too;
the sets of attributes that follow from it are added. A predicate that no value set expresses (a wildcard
inside a pattern) gives a *superset*: the values with which it could hold, marked not exact. So does a part
that would exceed the bounds. For patterns a conjunction also has ``needles``: texts that strings contain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fieldfare.filters import values as sets
from fieldfare.filters.constants import with_constant_parts, with_constants
from fieldfare.filters.derived import on_column, path_of
from fieldfare.filters.drafts import (
    CONJUNCTIONS_MAX,
    NO_NEEDLES,
    Budget,
    Disjunction,
    Draft,
    conjoin,
    product,
    union,
)
from fieldfare.filters.evaluator import Compiler, lookup_getter
from fieldfare.filters.expression import (
    CONDITIONS,
    And,
    AndThen,
    Attribute,
    Between,
    Call,
    Comparison,
    Element,
    Expression,
    In,
    IsNull,
    IsTruth,
    Literal,
    Not,
    Or,
    OrElse,
    Quantified,
    parts_of,
    walk,
    with_parts,
)
from fieldfare.filters.functions import FUNCTIONS
from fieldfare.filters.needles import Needle, needle_of
from fieldfare.filters.predicate_sets import SETS
from fieldfare.filters.required import expanded, implied_by, moved_column
from fieldfare.filters.values import ValueSet
from fieldfare.model import Path, derived_text


@dataclass(frozen=True, slots=True)
class Conjunction:
    """Value sets that contain the values of an event's attributes.

    Attributes
    ----------
    constraints : pairs of path and set
        Sorted by path, one per path; no set is empty or full. Derived columns come first.
    exact
        Whether every event that fits the constraints and needles, derived columns included, matches. If not,
        the filter's evaluator decides; it also decides for a matcher that does not check all of them.
    needles
        Texts that attributes must contain, sorted; the attribute of a needle has a set of strings only.
    implied
        The attributes whose sets follow from the derived columns; a matcher that checks those can skip these.
    """

    constraints: tuple[tuple[Path, ValueSet], ...]
    exact: bool = True
    needles: tuple[Needle, ...] = ()
    implied: frozenset[Path] = frozenset()

    @property
    def derives(self) -> bool:
        """Whether the conjunction has a derived column."""
        return bool(self.constraints) and derived_text(self.constraints[0][0]) is not None

    def without_derived(self) -> Conjunction:
        """Return the conjunction for a matcher that computes no derived columns; it is not exact."""
        if not self.derives:
            return self
        kept = tuple(pair for pair in self.constraints if derived_text(pair[0]) is None)
        return Conjunction(kept, False, self.needles)


@dataclass(frozen=True, slots=True)
class NormalForm:
    """A filter for the index: it matches only events that fit one of the conjunctions."""

    conjunctions: tuple[Conjunction, ...]


def normal_form(expression: Expression) -> NormalForm:
    """Return the normal form of an expression: it admits all events for which the expression is true."""
    drafts = _Builder(expression).wanted(expression, _TRUE)
    return NormalForm(
        tuple(
            Conjunction(
                sorted_sets(draft.sets),
                draft.exact,
                tuple(sorted(draft.needles, key=_needle_order)),
                draft.implied,
            )
            for draft in drafts
        )
    )


def _needle_order(needle: Needle) -> tuple[Any, ...]:
    return path_order(needle.path), needle.text, needle.kind


def sorted_sets(found: dict[Path, ValueSet]) -> tuple[tuple[Path, ValueSet], ...]:
    """Return the constraints of a conjunction, sorted by path."""
    if len(found) == 1:
        return tuple(found.items())
    try:
        paths = sorted(found)
    except TypeError:  # an array's index and a name at the same step
        paths = sorted(found, key=path_order)
    return tuple([(path, found[path]) for path in paths])


def path_order(path: Path) -> tuple[tuple[bool, str | int], ...]:
    """Return a sort key for paths: step by step, array indexes before names."""
    return tuple([(isinstance(step, str), step) for step in path])


_TRUE, _FALSE, _UNKNOWN = 1, 2, 4
_ALL = _TRUE | _FALSE | _UNKNOWN
_ATTRIBUTES, _ELEMENTS = 1, 2
_TRUTHS = {True: _TRUE, False: _FALSE, None: _UNKNOWN}
_NEVER: Disjunction = []


class _Builder:
    """A builder that caches the results for each part, so that its work is linear in the expression's size.

    The caches use the identity of expressions as keys, so expressions made here are kept alive in ``kept``.
    """

    def __init__(self, whole: Expression) -> None:
        self.whole = whole
        self.in_all: int | None = None
        self.budget = Budget()
        self.known: dict[tuple[int, int], Disjunction] = {}
        self.read: dict[int, int] = {}
        self.alone: dict[int, Expression] = {}
        self.nested: set[int] = set()
        self.sizes: dict[int, int] = {}
        self.inside: dict[int, bool] = {}
        self.kept: list[Expression] = []
        self.columns: dict[int, Expression | None] = {}
        self.quantifiers = 0

    def derived(self, e: Expression, truths: int) -> Disjunction:
        """Return ``wanted`` of an expression that was made by this builder, and keep the expression alive."""
        self.kept.append(e)
        return self.wanted(e, truths)

    def wanted(self, e: Expression, truths: int) -> Disjunction:
        """Return a disjunction that holds wherever the expression takes one of the truth values (a mask)."""
        if truths == 0:
            return _NEVER
        if truths == _ALL:
            return [Draft({})]
        if not self.budget.step():
            return [Draft({}, False)]
        build = _COMPOUNDS.get(type(e))
        if build is None:
            return self.predicate(e, truths)
        key = (id(e), truths)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = build(self, e, truths)
        return found

    def product(self, parts: list[Disjunction]) -> Disjunction:
        return product(parts, self.budget)

    def union(self, parts: list[Disjunction]) -> Disjunction:
        return union(parts, self.budget)

    def conjunction(self, e: And, truths: int) -> Disjunction:
        return self.joined(e, truths, _TRUE)

    def disjunction(self, e: Or, truths: int) -> Disjunction:
        return self.joined(e, truths, _FALSE)

    def joined(self, e: And | Or, truths: int, shared: int) -> Disjunction:
        """Build AND or OR: the result is ``shared`` if all operands are, else one operand decides."""
        if truths == _UNKNOWN:  # not true, and not false
            return self.product([self.wanted(e, _FALSE | _UNKNOWN), self.wanted(e, _TRUE | _UNKNOWN)])
        if truths == _TRUE | _FALSE:
            return self.union([self.wanted(e, _TRUE), self.wanted(e, _FALSE)])
        parts = [self.wanted(operand, truths) for operand in e.operands]
        return self.product(parts) if truths & shared else self.union(parts)

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
        constant = with_constant_parts(e)
        if constant is not e and constant != e:
            return self.derived(constant, truths)
        both = And((Comparison(">=", e.operand, e.low), Comparison("<=", e.operand, e.high)))
        return self.derived(both, truths)

    def membership(self, e: In, truths: int) -> Disjunction:
        """Build IN: all literals of the list are one set; other items are compared one by one."""
        constant = with_constant_parts(e)
        if constant is not e and constant != e:
            return self.derived(constant, truths)
        items = {id(item): item for item in e.items}.values()  # long lists often repeat the same objects
        others = dict.fromkeys(item for item in items if not isinstance(item, Literal))
        if not others:
            return self.predicate(e, truths)
        if len(others) > CONJUNCTIONS_MAX:
            return self.superset(e, truths)
        literals = tuple(item for item in items if isinstance(item, Literal))
        equal = tuple(Comparison("=", e.operand, item) for item in others)
        return self.derived(Or((In(e.operand, literals), *equal) if literals else equal), truths)

    def and_then(self, e: AndThen, truths: int) -> Disjunction:
        return self.in_order(e, truths, _TRUE)

    def or_else(self, e: OrElse, truths: int) -> Disjunction:
        return self.in_order(e, truths, _FALSE)

    def in_order(self, e: AndThen | OrElse, truths: int, shared: int) -> Disjunction:
        """Build AndThen or OrElse: ``shared`` if all operands are, else the first that is not decides."""
        parts: list[Disjunction] = []
        if truths & shared:
            parts.append(self.product([self.wanted(operand, shared) for operand in e.operands]))
        others = truths & ~shared
        if others and len(e.operands) > _IN_ORDER_MAX:
            found = self.union([self.wanted(operand, others) for operand in e.operands])
            parts.append([Draft(draft.sets, False, draft.needles) for draft in found])
        elif others:
            before: list[Disjunction] = []
            for operand in e.operands:
                parts.append(self.product([*before, self.wanted(operand, others)]))
                before.append(self.wanted(operand, shared))
        return self.union(parts)

    def quantified(self, e: Quantified, truths: int) -> Disjunction:
        """Build a quantifier: its condition for values that are not arrays, and all arrays, inexactly.

        Value sets cannot express the elements of an array. A missing array makes the quantifier unknown; an
        empty one makes ANY false and ALL true.
        """
        array = e.array
        if not isinstance(array, Attribute):
            return [Draft({}, False)]
        if id(e) in self.nested and not self.budget.allows(self.size(e.condition) // _PARTS_IN_ONE):
            return [Draft({}, False)]
        path = array.path
        condition = self.alone.get(id(e))
        if condition is None:
            condition = self.alone[id(e)] = self.grounded(e.condition, {e.variable: path})
        looks_inside = self.looks_inside(e)
        if_empty = bool(truths & (_FALSE if e.quantifier == "ANY" else _TRUE))
        if_missing = bool(truths & _UNKNOWN)
        found: Disjunction = [Draft({path: _MISSING})] if if_missing else []
        self.quantifiers += 1  # no derived columns: in an array, the value would differ for each element
        for draft in self.wanted(condition, truths):
            self.budget.step(1 + len(draft.sets))
            found += _if_no_array(draft, path, if_empty, if_missing)
        self.quantifiers -= 1
        if not looks_inside:
            found.append(Draft({path: _OTHER}, False))
        else:
            found.append(Draft({(*path, 0): _PRESENT}, False))
            if if_empty and not (
                self.budget.step(2 * self.size(e.condition)) and _holds_for_empty(e, truths)
            ):
                found.append(Draft({(*path, 0): _MISSING, path: _OTHER}, False))
        return self.union([self.by_column(e, truths, found)])

    def looks_inside(self, e: Quantified) -> bool:
        """Return whether a quantifier's condition reads parts of its element."""
        found = self.inside.get(id(e))
        if found is None:
            self.budget.step(self.size(e.condition))
            found = self.inside[id(e)] = any(
                isinstance(part, Element) and part.variable == e.variable and part.path
                for part in walk(e.condition)
            )
        return found

    def by_column(self, e: Quantified, truths: int, found: Disjunction) -> Disjunction:
        """Return a quantifier's disjunction with its derived column added where the sets alone are inexact.

        A filter with more than ``_QUANTIFIED_MAX`` quantifiers gets none: the product would have one
        conjunction for each combination of columns.
        """
        if self.quantifiers or self.count() > _QUANTIFIED_MAX or all(draft.exact for draft in found):
            return found
        path = path_of(e)
        if path is None:
            return found
        (column,) = self.derived(Attribute(path), truths)

        def decided(draft: Draft) -> Draft:
            if draft.exact or draft.needles:
                return draft
            return Draft({**draft.sets, **column.sets}, True, NO_NEEDLES, frozenset(draft.sets))

        return [decided(draft) for draft in found]

    def count(self) -> int:
        """Return the number of quantifiers in the filter."""
        if self.in_all is None:
            self.in_all = sum(isinstance(part, Quantified) for part in walk(self.whole))
        return self.in_all

    def grounded(self, e: Expression, paths: dict[str, Path]) -> Expression:
        """Return an expression with attributes in place of the elements of enclosing quantifiers.

        In a quantifier inside of it, only the array is replaced. Its rewritten condition is cached in
        ``alone``, so that each part is rewritten once, at any depth of nesting.
        """
        if isinstance(e, Literal | Attribute):
            return e
        if isinstance(e, Element):
            path = paths.get(e.variable)
            return e if path is None else Attribute(path + e.path)
        if not isinstance(e, Quantified):
            return with_parts(e, lambda part: self.grounded(part, paths))
        array = self.grounded(e.array, paths)
        assert isinstance(array, Attribute | Element)
        inner = replace(e, array=array)
        self.kept.append(inner)
        self.nested.add(id(inner))
        if isinstance(array, Attribute):
            self.alone[id(inner)] = self.grounded(e.condition, {**paths, e.variable: array.path})
        return inner

    def size(self, e: Expression) -> int:
        """Return the number of parts of an expression, itself included."""
        found = self.sizes.get(id(e))
        if found is None:
            found = self.sizes[id(e)] = 1 + sum(map(self.size, parts_of(e)))
        return found

    def null_test(self, e: IsNull, truths: int) -> Disjunction:
        if isinstance(e.operand, CONDITIONS):
            return self.truth_test(IsTruth(e.operand, None), truths)
        return self.predicate(e, truths)

    def call(self, e: Call, truths: int) -> Disjunction:
        true_for = FUNCTIONS[e.function].true_for
        if true_for is not None and isinstance(e.operands[0], Attribute):
            if not truths & (_TRUE | _FALSE):
                return _NEVER  # it is never unknown
            values = true_for if truths & _TRUE else true_for.complement()
            return [Draft({} if truths & _TRUE and truths & _FALSE else {e.operands[0].path: values})]
        constant = with_constant_parts(e)
        assert isinstance(constant, Call)
        simpler = expanded(constant)
        if simpler is not constant:
            return self.derived(simpler, truths)
        self.kept.append(constant)
        return self.superset(constant, truths)

    def predicate(self, e: Expression, truths: int) -> Disjunction:
        """Build a predicate: exact value sets if it is on one attribute, else a superset.

        The set where a predicate is known (true or false) is always exact, also for patterns.
        """
        set_where = SETS.get(type(e))
        found = set_where(e, bool(truths & _TRUE)) if set_where else None
        if found is None:
            constant = with_constant_parts(e)
            if constant is not e and constant != e:
                return self.derived(constant, truths)
            return self.superset(e, truths)
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
        return [_with_needle(e, truths, Draft({} if values.is_full else {path: values}, is_exact))]

    def superset(self, e: Expression, truths: int) -> Disjunction:
        """Build a predicate that no value set expresses: sets that follow for its attributes."""
        reads = self.reads(e)
        if not reads:
            truth = Compiler(lookup_getter).condition(e)(None)
            return [Draft({})] if _TRUTHS[truth] & truths else _NEVER
        if not reads & _ATTRIBUTES:
            return [Draft({}, False)]
        draft: Draft | None = Draft({}, False)
        if not truths & _UNKNOWN:
            draft = _implied(with_constants(e), truths)
        if draft is None:
            return _NEVER
        return [draft] if draft.exact or draft.needles else self.on_column(e, truths, draft)

    def on_column(self, e: Expression, truths: int, draft: Draft) -> Disjunction:
        """Return the draft of a computed predicate, with the set of its derived column if it has one."""
        if self.quantifiers:
            return [draft]
        if id(e) not in self.columns:
            room = len(self.columns) < _COLUMNS_MAX
            self.columns[id(e)] = on_column(e) if room else None
            self.kept.append(e)
        predicate = self.columns[id(e)]
        column = [draft] if predicate is None else self.moved(e, truths) or self.derived(predicate, truths)
        if not column or not column[0].sets:
            return column
        if not column[0].exact or column[0].needles:
            return [draft]
        return [Draft({**draft.sets, **column[0].sets}, True, NO_NEEDLES, frozenset(draft.sets))]

    def moved(self, e: Expression, truths: int) -> Disjunction:
        """Build a predicate on an attribute plus a constant, as a set of the column that these share."""
        found = moved_column(e)
        if found is None:
            return _NEVER
        path, values_where = found
        true, false = values_where
        decided = {_TRUE: true, _FALSE: false, _TRUE | _FALSE: true.union(false)}
        values = decided[truths] if truths in decided else decided[_ALL ^ truths].complement()
        return _NEVER if values.is_empty else [Draft({} if values.is_full else {path: values})]

    def reads(self, e: Expression) -> int:
        """Return whether an expression reads attributes, elements, both, or nothing, as a mask."""
        if isinstance(e, Attribute):
            return _ATTRIBUTES
        if isinstance(e, Element):
            return _ELEMENTS
        found = self.read.get(id(e))
        if found is None:
            found = 0
            for part in parts_of(e):
                found |= self.reads(part)
            self.read[id(e)] = found
        return found


_COMPOUNDS: dict[type, Callable[[_Builder, Any, int], Disjunction]] = {
    And: _Builder.conjunction,
    Or: _Builder.disjunction,
    Not: _Builder.negation,
    IsTruth: _Builder.truth_test,
    IsNull: _Builder.null_test,
    Between: _Builder.between,
    In: _Builder.membership,
    AndThen: _Builder.and_then,
    OrElse: _Builder.or_else,
    Quantified: _Builder.quantified,
    Call: _Builder.call,
}

_PARTS_IN_ONE = 4
"""Parts of an inner quantifier's condition that count as one constraint of the budget."""

_QUANTIFIED_MAX = 2
"""Maximum quantifiers of a filter that get derived columns; with more, none gets one."""

_COLUMNS_MAX = 64
"""Maximum predicates of a filter on derived columns; further ones give supersets."""

_IN_ORDER_MAX = 16
"""Maximum operands of AndThen and OrElse that are built exactly; more give a superset, which is cheap."""

_MISSING = ValueSet(sets.MISSING)
_PRESENT = _MISSING.complement()
_OTHER = ValueSet(sets.OTHER)
_SCALARS = ValueSet(sets.MISSING | sets.OTHER).complement()


def _implied(e: Expression, truths: int) -> Draft | None:
    """Return a draft of the attribute sets necessary for a predicate to be as wanted; None if it never is."""
    found = implied_by(e, _TRUTH_OF.get(truths))
    if found is None:
        return Draft({}, False)
    needed, is_exact = found
    if any(values.is_empty for _, values in needed):
        return None
    draft = conjoin([Draft({path: values}) for path, values in needed if not values.is_full])
    return None if draft is None else _with_needle(e, truths, Draft(draft.sets, is_exact))


def _with_needle(e: Expression, truths: int, draft: Draft) -> Draft:
    """Return a predicate's draft, with its needle if the draft is not exact."""
    found = None if draft.exact or truths != _TRUE else needle_of(e)
    if found is None:
        return draft
    needle, is_exact = found
    values = draft.sets.get(needle.path, sets.ANY_VALUE)
    strings = ValueSet(strings=values.strings)
    return Draft({**draft.sets, needle.path: strings}, is_exact, frozenset((needle,)))


def _if_no_array(draft: Draft, path: Path, if_empty: bool, if_missing: bool) -> Disjunction:
    """Narrow a draft of a quantifier's condition to the events for which it also decides the quantifier.

    Parameters
    ----------
    draft
        A draft of the condition with the attribute in place of the element.
    path
        The attribute that the quantifier ranges over.
    if_empty, if_missing
        Whether the quantifier has a wanted truth value for an empty array, and for a missing attribute.
    """
    values = draft.sets.get(path)
    if values is not None:
        scalars = values.intersection(_SCALARS)
        alone = [Draft({**draft.sets, path: scalars}, draft.exact, draft.needles)]
        if scalars.is_empty:
            alone = []
        return [*alone, Draft({**draft.sets, path: _OTHER}, False)] if values.atoms & sets.OTHER else alone
    depth = len(path)
    for constrained, found in draft.sets.items():
        is_longer = len(constrained) > depth and not found.atoms & sets.MISSING
        if is_longer and isinstance(constrained[depth], str) and constrained[:depth] == path:
            return [draft]  # only an object has a member
    first = (*path, 0)
    at_first = draft.sets[first].intersection(_MISSING) if first in draft.sets else _MISSING
    if at_first.is_empty:
        return []
    narrowed = {**draft.sets, first: at_first}
    if not if_missing:
        narrowed[path] = _PRESENT
    return [Draft(narrowed, draft.exact and if_empty, draft.needles)]


def _holds_for_empty(e: Quantified, truths: int) -> bool:
    """Return whether the condition, evaluated for the empty array itself, is as wanted for every event."""
    parts = list(walk(e.condition))
    variables = {part.variable for part in parts if isinstance(part, Quantified)} | {e.variable}
    if any(
        isinstance(part, Attribute) or (isinstance(part, Element) and part.variable not in variables)
        for part in parts
    ):
        return False
    truth = Compiler(lookup_getter, {e.variable: lambda subject: subject}).condition(e.condition)([])
    return bool(_TRUTHS[truth] & truths)


_TRUTH_OF = {_TRUE: True, _FALSE: False}
