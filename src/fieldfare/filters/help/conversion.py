"""Conversion of filters of other dialects to ``sql`` texts that are true for exactly the same events.

``sql`` has no AND and OR that are evaluated from left to right (``AndThen``, ``OrElse``), in which an
unknown operand decides, whatever follows. For a filter's result only two things matter about a part:
where it is true, and, below a NOT, where it is false. So each part is translated twice: into a condition
that is true where the part is true (T), and one that is true where it is false (F)::

    T(a AndThen b) = T(a) AND T(b)         F(a AndThen b) = F(a) OR (T(a) AND F(b))
    T(a OrElse b)  = T(a) OR (F(a) AND T(b))         F(a OrElse b) = F(a) AND F(b)

The guards (F(a), T(a)) exclude events for which ``a`` is unknown. A guard is omitted if the normal
forms show that there are none: in ``type = 'x' OR type = 'y'`` both are unknown for the same events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fieldfare.filters.errors import FilterError, Problem
from fieldfare.filters.expression import (
    CONDITIONS,
    And,
    AndThen,
    Comparison,
    Expression,
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
from fieldfare.filters.normal_form import NormalForm, normal_form
from fieldfare.filters.predicate_sets import INVERSE
from fieldfare.filters.sql.parser import parse_sql
from fieldfare.filters.sql.printer import format_expression
from fieldfare.filters.text import TEXT_BYTES_MAX

if TYPE_CHECKING:
    from fieldfare.filters.filter import Filter

PARTS_MAX = 20_000
"""Maximum parts of a converted filter; a larger one is rejected, as its text would be too long."""

_LINE_CHARACTERS = 100
_CHECKS_MAX = 20_000
"""Maximum pairs of conjunctions compared to find out whether guards are needed; beyond, guards are kept."""


def convert(filter: Filter, dialect: str = "sql") -> str:
    """Convert a filter's text to another dialect; the only one is ``sql``.

    The text matches exactly the same events. Where the filter is false, unknown or an error, the text may be
    false or unknown.

    Raises
    ------
    FilterError
        The text would exceed the limits of ``sql``.
    ValueError
        The dialect is not ``sql``.
    """
    if dialect != "sql":
        raise ValueError(f"filters are converted to sql only, not to {dialect}")
    if filter.dialect == "sql":
        return filter.text
    return sql_text(in_sql(filter.expression, filter.text), filter.text)


def sql_text(e: Expression, source: str) -> str:
    """Return the ``sql`` text of an expression without ordered AND and OR.

    Parameters
    ----------
    e
        The expression.
    source
        The text that it was translated from, for errors.

    Raises
    ------
    FilterError
        The text would exceed the limits of ``sql``.
    """
    text = laid_out(simplest(e))
    if len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX:
        raise _too_long(source)
    try:
        parse_sql(text)
    except FilterError as error:
        first = error.problems[0]
        message = f"this filter cannot be written in sql: {first.message}"
        raise FilterError(source, [Problem(message, 1, 1, first.hint, 0)]) from error
    return text


def in_sql(e: Expression, text: str = "") -> Expression:
    """Return an expression without ordered AND and OR that is true for exactly the same events."""
    return _Translation(text).true(e)


def _too_long(text: str) -> FilterError:
    message = "in sql this filter would exceed the maximum size of a filter"
    return FilterError(text, [Problem(message, 1, 1, "split it into several subscriptions", 0)])


def _is_ordered(e: Expression) -> bool:
    return any(isinstance(part, AndThen | OrElse) for part in walk(e))


class _Translation:
    """A translation of parts that counts the parts of its results, to stop before they grow too large."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.known: dict[tuple[int, str], Expression] = {}
        self.sizes: dict[int, int] = {}
        self.kept: list[Expression] = []
        self.checks_left = _CHECKS_MAX
        self.ordered: dict[int, bool] = {}
        self.forms: dict[tuple[int, bool | None], NormalForm] = {}
        self.interned: dict[NormalForm, NormalForm] = {}

    def true(self, e: Expression) -> Expression:
        """Return a condition that is true where ``e`` is true."""
        return self.translated(e, "true", _TRUE) if self.has_order(e) else e

    def false(self, e: Expression) -> Expression:
        """Return a condition that is true where ``e`` is false."""
        return self.translated(e, "false", _FALSE) if self.has_order(e) else negation(e)

    def exact(self, e: Expression) -> Expression:
        """Return an expression with the three truth values of ``e``: for a condition used as a value."""
        return self.translated(e, "exact", {}) if self.has_order(e) else e

    def has_order(self, e: Expression) -> bool:
        found = self.ordered.get(id(e))
        if found is None:
            found = self.ordered[id(e)] = _is_ordered(e)
            self.kept.append(e)  # keep it alive, so that its id is not reused
        return found

    def translated(
        self, e: Expression, what: str, rules: dict[type, Callable[[_Translation, Any], Expression]]
    ) -> Expression:
        key = (id(e), what)
        found = self.known.get(key)
        if found is None:
            rule = rules.get(type(e))
            if rule is not None:
                found = rule(self, e)
            else:
                found = self.as_value(e)
                if what == "false":
                    found = Not(found)
            self.known[key] = found
            self.kept += (e, found)
            if self.size(found) > PARTS_MAX:
                raise _too_long(self.text)
        return found

    def size(self, e: Expression) -> int:
        """Return the number of parts of an expression's text; shared parts count each time they occur."""
        found = self.sizes.get(id(e))
        if found is None:
            found = self.sizes[id(e)] = 1 + sum(map(self.size, parts_of(e)))
            self.kept.append(e)
        return found

    def as_value(self, e: Expression) -> Expression:
        """Return an expression with the three truth values of ``e``, with guards in place of the order."""
        if not isinstance(e, AndThen | OrElse):
            return with_parts(e, self.exact)
        *operands, result = [self.exact(operand) for operand in e.operands]
        for operand in reversed(operands):
            if isinstance(e, AndThen):
                result = And((operand, Or((Not(IsTruth(operand, True)), result))))
            else:
                result = Or((operand, And((IsTruth(operand, False), result))))
            if self.size(result) > PARTS_MAX:
                raise _too_long(self.text)
        return result

    def guarded(self, operands: tuple[Expression, ...], passed: bool) -> Expression:
        """Return a condition that is true where one operand decides and all before it have passed.

        An ``OrElse`` is true where an operand is true, and those before it are false (``passed``). The
        operands are split in halves recursively, so that guards of many operands are repeated few times.
        """
        if len(operands) == 1:
            return self.false(operands[0]) if passed else self.true(operands[0])
        half = len(operands) // 2
        first, second = operands[:half], operands[half:]
        deciding = {id(form): form for form in (self.form(each, not passed) for each in second)}
        verdicts: dict[int, bool] = {}
        guards = []
        for operand in first:
            unknown = self.form(operand, None)
            if id(unknown) not in verdicts:
                verdicts[id(unknown)] = any(self.may_overlap(unknown, form) for form in deciding.values())
            if verdicts[id(unknown)]:
                guards.append(self.true(operand) if passed else self.false(operand))
        rest = conjunction([*guards, self.guarded(second, passed)])
        return disjunction([self.guarded(first, passed), rest])

    def form(self, e: Expression, truth: bool | None) -> NormalForm:
        """Return the normal form of the events that give a truth value; equal forms are one object."""
        key = (id(e), truth)
        found = self.forms.get(key)
        if found is None:
            form = normal_form(IsTruth(e, truth))
            found = self.forms[key] = self.interned.setdefault(form, form)
            self.kept.append(e)
        return found

    def may_overlap(self, one: NormalForm, other: NormalForm) -> bool:
        """Return whether an event may fit both normal forms; True after ``_CHECKS_MAX`` comparisons."""
        self.checks_left -= len(one.conjunctions) * len(other.conjunctions)
        return self.checks_left < 0 or not disjoint(one, other)

    def all_true(self, e: And | AndThen) -> Expression:
        return conjunction([self.true(operand) for operand in e.operands])

    def any_true(self, e: Or) -> Expression:
        return disjunction([self.true(operand) for operand in e.operands])

    def all_false(self, e: Or | OrElse) -> Expression:
        return conjunction([self.false(operand) for operand in e.operands])

    def any_false(self, e: And) -> Expression:
        return disjunction([self.false(operand) for operand in e.operands])

    def is_truth(self, e: IsTruth) -> Expression:
        if e.truth is None:
            both = (self.true(e.operand), self.false(e.operand))
            return And(tuple(Not(IsTruth(one, True)) for one in both))
        return self.true(e.operand) if e.truth else self.false(e.operand)

    def is_not_truth(self, e: IsTruth) -> Expression:
        if e.truth is None:
            return disjunction([self.true(e.operand), self.false(e.operand)])
        return Not(IsTruth(self.true(e.operand) if e.truth else self.false(e.operand), True))

    def is_null(self, e: IsNull) -> Expression:
        is_condition = isinstance(e.operand, CONDITIONS)
        return self.is_truth(IsTruth(e.operand, None)) if is_condition else self.as_value(e)

    def is_not_null(self, e: IsNull) -> Expression:
        is_condition = isinstance(e.operand, CONDITIONS)
        return self.is_not_truth(IsTruth(e.operand, None)) if is_condition else Not(self.as_value(e))

    def quantified_true(self, e: Quantified) -> Expression:
        return replace(e, condition=self.true(e.condition))

    def quantified_false(self, e: Quantified) -> Expression:
        other = "ALL" if e.quantifier == "ANY" else "ANY"
        return replace(e, quantifier=other, condition=self.false(e.condition))


_TRUE: dict[type, Callable[[_Translation, Any], Expression]] = {
    And: _Translation.all_true,
    AndThen: _Translation.all_true,
    Or: _Translation.any_true,
    OrElse: lambda self, e: self.guarded(e.operands, False),
    Not: lambda self, e: self.false(e.operand),
    IsTruth: _Translation.is_truth,
    IsNull: _Translation.is_null,
    Quantified: _Translation.quantified_true,
}
_FALSE: dict[type, Callable[[_Translation, Any], Expression]] = {
    Or: _Translation.all_false,
    OrElse: _Translation.all_false,
    And: _Translation.any_false,
    AndThen: lambda self, e: self.guarded(e.operands, True),
    Not: lambda self, e: self.true(e.operand),
    IsTruth: _Translation.is_not_truth,
    IsNull: _Translation.is_not_null,
    Quantified: _Translation.quantified_false,
}


def disjoint(one: NormalForm, other: NormalForm) -> bool:
    """Return whether it is certain that no event fits both normal forms."""
    return all(
        any(path in sets and sets[path].intersection(values).is_empty for path, values in b.constraints)
        for a in one.conjunctions
        for sets in [dict(a.constraints)]
        for b in other.conjunctions
    )


def negation(e: Expression) -> Expression:
    """Return the negation of a condition in the shortest form: ``a <> 1`` for NOT a = 1."""
    if isinstance(e, Not):
        return e.operand
    if isinstance(e, Comparison):
        return replace(e, operator=INVERSE[e.operator])
    if isinstance(e, Literal) and isinstance(e.value, bool):
        return Literal(not e.value)
    return Not(e)


def conjunction(parts: list[Expression]) -> Expression:
    """Return a condition that is true where all parts are true, without repeated parts."""
    return _joined(And, parts, neutral=Literal(True), decisive=Literal(False))


def disjunction(parts: list[Expression]) -> Expression:
    """Return a condition that is true where a part is true, without repeated parts."""
    return _joined(Or, parts, neutral=Literal(False), decisive=Literal(True))


def _joined(
    kind: type[And] | type[Or], parts: list[Expression], neutral: Literal, decisive: Literal
) -> Expression:
    flat: list[Expression] = []
    for part in parts:
        flat += part.operands if isinstance(part, kind) else [part]
    if decisive in flat:
        return decisive
    kept = tuple(part for part in dict.fromkeys(flat) if part != neutral)
    if not kept:
        return neutral
    return kept[0] if len(kept) == 1 else kind(kept)


def simplest(e: Expression) -> Expression:
    """Simplify an expression: merge nested ANDs and ORs, and move NOT into comparisons."""
    if isinstance(e, And | Or):
        parts = [simplest(operand) for operand in e.operands]
        return conjunction(parts) if isinstance(e, And) else disjunction(parts)
    if isinstance(e, Not):
        operand = e.operand
        return negation(operand) if isinstance(operand, Not | Comparison) else e
    if isinstance(e, Quantified):
        return replace(e, condition=simplest(e.condition))
    return e


def laid_out(e: Expression) -> str:
    """Return the text of an expression; a long one has a line for each operand of the outermost AND or OR."""
    text = format_expression(e)
    if len(text) <= _LINE_CHARACTERS or not isinstance(e, And | Or):
        return text
    word = "AND" if isinstance(e, And) else "OR"
    operands = []
    for operand in e.operands:
        part = format_expression(operand)
        operands.append(f"({part})" if isinstance(operand, Or) and word == "AND" else part)
    return f"\n{word} ".join(operands)
