"""What to say of mistakes in the ``sql`` dialect: messages, and hints what to write instead."""

from __future__ import annotations

from collections.abc import Sequence

from fieldfare.filters.errors import Mistake, nearest
from fieldfare.filters.expression import Expression, Literal
from fieldfare.filters.functions import FUNCTIONS, Type
from fieldfare.filters.functions.times import timestamp
from fieldfare.filters.sql.lexer import KEYWORDS, Token
from fieldfare.filters.sql.paths import unquoted

_OPERATORS = ("AND", "OR", "NOT", "IS", "IN", "LIKE", "ILIKE", "BETWEEN", "ESCAPE")
_BEFORE_LIST = ("IN", "BETWEEN", "LIKE")
_FUNCTIONS = ("EXISTS", *FUNCTIONS)
_LISTED = ", ".join(sorted(_FUNCTIONS))

MEANT_BETWEEN = "did you mean BETWEEN?"
"""The hint after which the next AND joins two bounds and not two conditions."""

UNOPENED = "remove it, or add a ("

_SWAPPED = {"=>": ">=", "=<": "<=", "><": "<>"}
_AFTER_A_NAME = ("=", "<>", "<", "<=", ">", ">=", "IS", "IN", "LIKE", "ILIKE", "BETWEEN", ".", "[")

_NO_CLOCK = "a filter knows no current time; compare with attributes of the event or with TIMESTAMP '...'"
_NOT_HERE = {
    "ALL": "write it on the right of a comparison, as in 5 < ALL(data.items)",
    "ANY": "write it on the right of a comparison, as in 'red' = ANY(data.tags)",
    "CAST": "write NUMBER(...) or TIMESTAMP(...); strings and numbers are not converted otherwise",
    **dict.fromkeys(("CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP"), _NO_CLOCK),
    **dict.fromkeys(("LOCALTIME", "LOCALTIMESTAMP"), _NO_CLOCK),
    "EXTRACT": "write HOUR(time), WEEKDAY(time), YEAR(time) and so on",
    "IF": "write AND and OR, or COALESCE for a value instead of a missing one",
    "NOW": _NO_CLOCK,
}
"""What to write instead of functions that SQL has and filters have not."""


_NO_INFINITY = "there is no such constant; compare with the largest number that you mean"
_NULL = "write IS NULL for what is null or missing"
MISTAKEN_NAMES = {
    **dict.fromkeys(("current_date", "current_time", "current_timestamp"), _NO_CLOCK),
    **dict.fromkeys(("localtime", "localtimestamp", "sysdate", "systimestamp"), _NO_CLOCK),
    "nan": "NaN is no number here, and cannot be compared; a filter over numbers never meets one",
    **dict.fromkeys(("inf", "infinity"), _NO_INFINITY),
    **dict.fromkeys(("nil", "none", "undefined"), _NULL),
}
"""Names without quotes that are constants elsewhere, and what to write instead."""


def chained(token: Token, *, joined: bool) -> Mistake:
    """For ``1 < a < 3``, at its second operator; ``joined`` says whether there is a || before it."""
    message = f"{shown(token)} cannot follow another comparison"
    hint = "join two comparisons with AND, as in 1 < data.a AND data.a < 5, or put one in parentheses"
    if joined:
        hint = "|| joins strings; write OR to join conditions"
    return Mistake(token.start, token.end, message, hint)


def missing_operator(tokens: Sequence[Token], index: int) -> Mistake:
    """For what stands after a complete condition and is no operator."""
    token, before = tokens[index], tokens[index - 1]
    message = f"expected an operator, found {shown(token)}"
    hint = "join two conditions with AND or OR"
    if before.kind == "string" and before.end == token.start:
        hint = "write '' for a quote inside a string"
    elif token.kind == "NOT":
        hint = "write <> for 'not equal', or NOT before the whole condition"
    elif token.kind == "path" and (guess := nearest(token.text[:40], _OPERATORS)):
        hint = f"did you mean {guess}?"
    elif before.kind == "path" and (guess := nearest(before.text[:40], (*KEYWORDS, "WHERE", "SELECT"))):
        token, message, hint = before, f"unexpected {shortened(before.text)!r}", f"did you mean {guess}?"
        if guess in ("WHERE", "SELECT"):
            hint = "a filter is only the condition, without SELECT or WHERE"
    elif token.kind in ("string", "number", "quoted") and before.kind in ("path", "quoted"):
        hint = "write = between an attribute and its value"
    elif token.kind == ",":
        hint = "a list of values stands in parentheses after IN"
    return Mistake(token.start, token.end, message, hint)


def missing_operand(tokens: Sequence[Token], index: int, *, inside: bool) -> Mistake:
    """For what stands where a value should; ``inside`` says whether a parenthesis is open."""
    token = tokens[index]
    before = tokens[index - 1] if index else None
    message = f"expected a value or the name of an attribute, found {shown(token)}"
    if before and (pair := before.text + token.text) in _SWAPPED:
        return Mistake(before.start, token.end, f"{pair!r} is not an operator", f"write {_SWAPPED[pair]}")
    if token.kind == ")" and not inside:
        return Mistake(token.start, token.end, "this ) closes nothing", UNOPENED)
    hint = f"there is nothing before {shown(token)}"
    if token.kind in KEYWORDS and tokens[index + 1].kind in _AFTER_A_NAME:
        hint = (
            f'to name an attribute {shortened(token.text)}, write "{shortened(token.text)}" in double quotes'
        )
    elif before:
        hint = f"there is nothing between {shown(before)} and {shown(token)}"
    return Mistake(token.start, token.end, message, hint)


def unknown_function(token: Token) -> Mistake:
    """For a name with a parenthesis after it."""
    name = token.text.upper()
    guess = "" if name in _NOT_HERE else nearest(name[:40], (*_FUNCTIONS, *_BEFORE_LIST))
    hint = f"did you mean {guess}?" if guess else _NOT_HERE.get(name, f"the functions are: {_LISTED}")
    return Mistake(token.start, token.end, f"there is no function {shortened(token.text)}", hint)


def conversion_hint(wanted: Type, operand: Expression) -> str:
    """What to write in the place of an operand of another type."""
    text = operand.value if isinstance(operand, Literal) else None
    if wanted in (Type.TIMESTAMP, Type.INTERVAL) and isinstance(text, str):
        if wanted is Type.INTERVAL:
            return "write TIME '09:30' for a time of day, INTERVAL '5' MINUTE for a length of time"
        return "write TIMESTAMP before it" if timestamp(text) is not None else _TIMESTAMP
    if wanted is Type.TIMESTAMP:
        return _TIMESTAMP
    if wanted is Type.INTERVAL:
        return "write INTERVAL '5' MINUTE, or INTERVAL(...) around a number of seconds"
    if wanted is Type.NUMBER and isinstance(text, str):
        return "write NUMBER(...) around a string that writes a number"
    return ""


_TIMESTAMP = "write TIMESTAMP '2026-01-31T12:00:00Z'"


def joining_hint(found: Type) -> str:
    """For arithmetic with strings."""
    return "|| joins strings" if found is Type.STRING else ""


def time_hint(left: Type, right: Type) -> str:
    """For arithmetic with timestamps and intervals that has no result."""
    if Type.TIMESTAMP in (left, right):
        return "timestamps can be subtracted, and have an INTERVAL added or subtracted"
    return "intervals can be added, subtracted, multiplied and divided"


def as_string(token: Token) -> str:
    """The string that a name in double quotes was most likely meant to be."""
    return "'" + unquoted(token.text).replace("'", "''") + "'"


def shown(token: Token) -> str:
    """A token as messages show it."""
    if token.kind == "end":
        return "the end of the filter"
    text = shortened(token.text)
    return text if token.kind in ("string", "quoted") else f"'{text}'"


def shortened(text: str) -> str:
    """The beginning of a long text."""
    return text if len(text) <= 40 else text[:37] + "..."
