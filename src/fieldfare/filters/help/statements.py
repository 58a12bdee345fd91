"""Expressions in words: a statement for each part, with the statements of its parts.

The statement of a part depends on the wanted truth value: below a NOT it is false, and a comparison is
not false for all values for which it is not true (values of another type make it unknown). So negations are
moved down to the predicates, where they can be put into words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fieldfare.filters.expression import (
    CONDITIONS,
    And,
    AndThen,
    Arithmetic,
    Attribute,
    Between,
    Call,
    Comparison,
    Element,
    Exists,
    Expression,
    In,
    IsNull,
    IsTruth,
    Like,
    Literal,
    Negate,
    Not,
    Or,
    OrElse,
    Pattern,
    Quantified,
    Wild,
    with_parts,
)
from fieldfare.filters.help.value_words import describe_values, shortened, show_value
from fieldfare.filters.predicate_sets import INVERSE, SETS
from fieldfare.filters.required import expanded
from fieldfare.filters.sql.printer import format_expression

_STAND_IN = Attribute(("",))
_ELLIPSIS = Attribute(("...",))
_SQL_CHARACTERS_MAX = 120
_SHOWN_OPERANDS_MAX = 8


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence about an event, and the statements that it refers to.

    Attributes
    ----------
    text
        The sentence; ends in a colon if ``parts`` follow.
    parts
        The statements that it refers to.
    """

    text: str
    parts: tuple[Statement, ...] = ()


def state(e: Expression, wanted: bool = True) -> Statement:
    """Return a statement of the conditions for which an expression is true (or false)."""
    return _STATE[type(e)](e, wanted)


def written(e: Expression) -> str:
    """Return a part of a filter as ``sql`` for a message: on one line, and shortened."""
    text = format_expression(_abridged(e)).replace('("...")', "...").replace('"..."', "...")
    return shortened(text, _SQL_CHARACTERS_MAX)


def _abridged(e: Expression) -> Expression:
    """Return an expression for display: long lists are cut, and ordered AND and OR become plain ones."""
    if isinstance(e, AndThen | OrElse):
        e = (And if isinstance(e, AndThen) else Or)(e.operands)
    if isinstance(e, In) and len(e.items) > _SHOWN_OPERANDS_MAX:
        e = replace(e, items=(*e.items[: _SHOWN_OPERANDS_MAX - 1], _ELLIPSIS))
    if isinstance(e, And | Or) and len(e.operands) > _SHOWN_OPERANDS_MAX:
        e = replace(e, operands=(*e.operands[: _SHOWN_OPERANDS_MAX - 1], _ELLIPSIS))
    return with_parts(e, _abridged)


def _literal(e: Literal, wanted: bool) -> Statement:
    return Statement("it is any event" if e.value is wanted else "this is never true")


def _all_or_any(e: And | Or, wanted: bool) -> Statement:
    everything = isinstance(e, And) is wanted
    parts = tuple(state(operand, wanted) for operand in _flat(e, wanted))
    return Statement("all of these hold:" if everything else "at least one of these holds:", parts)


def _flat(e: And | Or, wanted: bool) -> list[Expression]:
    """Return the operands of an AND or OR, with nested ones of the same type flattened."""
    operands: list[Expression] = []
    for operand in e.operands:
        operands += _flat(operand, wanted) if type(operand) is type(e) else [operand]
    return operands


def _in_order(e: AndThen | OrElse, wanted: bool) -> Statement:
    if isinstance(e, AndThen) is wanted:
        return Statement("all of these hold:", tuple(state(operand, wanted) for operand in e.operands))
    if wanted:
        header = "one of these holds, and each before it is false and not unknown:"
    else:
        header = "one of these is false, and each before it is true:"
    return Statement(header, tuple(state(operand) for operand in e.operands))


def _not(e: Not, wanted: bool) -> Statement:
    return state(e.operand, not wanted)


def _is_truth(e: IsTruth, wanted: bool) -> Statement:
    if e.truth is not None and wanted:
        return state(e.operand, e.truth)
    if e.truth is None:
        header = "it is unknown whether this holds:" if wanted else "it is known whether this holds:"
        return Statement(header, (state(e.operand),))
    return Statement("this does not hold, or is unknown:", (state(e.operand, e.truth),))


def _predicate(e: Any, wanted: bool) -> Statement:
    """Return the statement of a predicate: on one operand as a set of its values, otherwise as its text."""
    operand, found = _values(e, wanted)
    if found is None:
        return _computed(e, wanted)
    if found.is_empty:
        return Statement(f"{written(e if wanted else Not(e))}, which is never true")
    return Statement(f"{_name(operand)} is {describe_values(found)}")


def _values(e: Any, wanted: bool) -> tuple[Expression, Any]:
    """Return the operand of a predicate that is not a literal, and its values where the predicate holds.

    The values are None if the predicate is not on one operand.
    """
    side = "operand"
    if isinstance(e, Comparison):
        side = "right" if isinstance(e.left, Literal) else "left"
    operand = getattr(e, side)
    if isinstance(operand, Literal):
        return operand, None
    if isinstance(e, In) and not all(isinstance(item, Literal) for item in e.items):
        return operand, None
    found = SETS[type(e)](replace(e, **{side: _STAND_IN}), wanted)
    return operand, None if found is None else found[1]


def _computed(e: Expression, wanted: bool) -> Statement:
    if wanted:
        return Statement(written(e))
    if isinstance(e, Comparison):
        return Statement(written(replace(e, operator=INVERSE[e.operator])))
    return Statement(f"{written(e)} is false")


def _name(e: Expression) -> str:
    """Return the name of a value in a sentence."""
    return f"({written(e)})" if isinstance(e, CONDITIONS) else written(e)


def _like(e: Like, wanted: bool) -> Statement:
    return Statement(f"{_name(e.operand)} {_describe_pattern(e.pattern, wanted)}")


def _describe_pattern(pattern: Pattern, wanted: bool) -> str:
    if len(pattern) <= 1 and (not pattern or isinstance(pattern[0], str)):
        text = show_value(pattern[0] if pattern else "")
        return f"is {text}" if wanted else f"is a string other than {text}"
    does = "" if wanted else "is a string that does not "
    match pattern:
        case (Wild.RUN,):
            return "is any string" if wanted else "is never a string that does not match %"
        case (str(text), Wild.RUN):
            return does + ("starts" if wanted else "start") + f" with {show_value(text)}"
        case (Wild.RUN, str(text)):
            return does + ("ends" if wanted else "end") + f" with {show_value(text)}"
        case (Wild.RUN, str(text), Wild.RUN):
            return does + ("contains" if wanted else "contain") + f" {show_value(text)}"
        case (str(start), Wild.RUN, str(end)):
            s = "s" if wanted else ""
            return f"{does}start{s} with {show_value(start)} and end{s} with {show_value(end)}"
    shown = shortened("".join(part.value if isinstance(part, Wild) else part for part in pattern))
    note = " (_ is one character, % any number of characters)" if Wild.ONE in pattern else ""
    return f"{does}{'matches' if wanted else 'match'} the pattern {show_value(shown)}{note}"


def _exists(e: Exists, wanted: bool) -> Statement:
    name = written(e.operand)
    return Statement(f"{name} is present (it may be null)" if wanted else f"{name} is missing")


def _is_null(e: IsNull, wanted: bool) -> Statement:
    if isinstance(e.operand, CONDITIONS):
        return _is_truth(IsTruth(e.operand, None), wanted)
    name = _name(e.operand)
    if isinstance(e.operand, Attribute | Element):
        return Statement(f"{name} is missing or null" if wanted else f"{name} is neither missing nor null")
    return Statement(f"{name} has no value" if wanted else f"{name} has a value")


def _truth(e: Attribute | Element, wanted: bool) -> Statement:
    return Statement(f"{written(e)} is {'true' if wanted else 'false'}")


def _call(e: Call, wanted: bool) -> Statement:
    simpler = expanded(e)
    if simpler is not e:
        return state(simpler, wanted)
    return Statement(f"{written(e)} is {'true' if wanted else 'false'}")


def _quantified(e: Quantified, wanted: bool) -> Statement:
    array, variable = written(e.array), written(Element(e.variable))
    inner = state(e.condition, wanted)
    if (e.quantifier == "ANY") is wanted:
        return Statement(f"{array} has an element, called {variable}, for which this holds:", (inner,))
    return Statement(f"for every element of {array}, called {variable}, this holds:", (inner,))


def _number(e: Expression, wanted: bool) -> Statement:
    return Statement(f"{written(e)}, which is a number, not a condition, so this is never true")


_STATE: dict[type, Callable[[Any, bool], Statement]] = {
    Literal: _literal,
    Attribute: _truth,
    Element: _truth,
    Call: _call,
    Negate: _number,
    Arithmetic: _number,
    Comparison: _predicate,
    Between: _predicate,
    In: _predicate,
    Like: _like,
    Exists: _exists,
    IsNull: _is_null,
    IsTruth: _is_truth,
    Not: _not,
    And: _all_or_any,
    Or: _all_or_any,
    AndThen: _in_order,
    OrElse: _in_order,
    Quantified: _quantified,
}
