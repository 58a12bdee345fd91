"""What to say of mistakes in the ``sql`` dialect: messages, and hints what to write instead."""

from __future__ import annotations

from collections.abc import Sequence

from fieldfare.filters.errors import Mistake, nearest
from fieldfare.filters.functions import FUNCTIONS
from fieldfare.filters.sql.lexer import KEYWORDS, Token
from fieldfare.filters.sql.paths import unquoted

_OPERATORS = ("AND", "OR", "NOT", "IS", "IN", "LIKE", "BETWEEN", "ESCAPE")
_BEFORE_LIST = ("IN", "BETWEEN", "LIKE")
_FUNCTIONS = ("EXISTS", *FUNCTIONS)

MEANT_BETWEEN = "did you mean BETWEEN?"
"""The hint after which the next AND joins two bounds and not two conditions."""

UNOPENED = "remove it, or add a ("

_SWAPPED = {"=>": ">=", "=<": "<=", "><": "<>"}
_AFTER_A_NAME = ("=", "<>", "<", "<=", ">", ">=", "IS", "IN", "LIKE", "BETWEEN", ".", "[")


def chained(token: Token) -> Mistake:
    """For ``1 < a < 3``, at its second operator."""
    message = f"{shown(token)} cannot follow another comparison"
    hint = "join two comparisons with AND, as in 1 < data.a AND data.a < 5, or put one in parentheses"
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
    elif token.kind == "path" and (guess := nearest(token.text, _OPERATORS)):
        hint = f"did you mean {guess}?"
    elif before.kind == "path" and (guess := nearest(before.text, (*KEYWORDS, "WHERE", "SELECT"))):
        token, message, hint = before, f"unexpected {before.text!r}", f"did you mean {guess}?"
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
        hint = f'to name an attribute {token.text}, write "{token.text}" in double quotes'
    elif before:
        hint = f"there is nothing between {shown(before)} and {shown(token)}"
    return Mistake(token.start, token.end, message, hint)


def unknown_function(token: Token) -> Mistake:
    """For a name with a parenthesis after it."""
    guess = nearest(token.text, (*_FUNCTIONS, *_BEFORE_LIST))
    hint = f"did you mean {guess}?" if guess else f"the functions are: {', '.join(_FUNCTIONS)}"
    return Mistake(token.start, token.end, f"there is no function {token.text}", hint)


def as_string(token: Token) -> str:
    """The string that a name in double quotes was most likely meant to be."""
    return "'" + unquoted(token.text).replace("'", "''") + "'"


def shown(token: Token) -> str:
    """A token as messages show it."""
    if token.kind == "end":
        return "the end of the filter"
    text = token.text if len(token.text) <= 40 else token.text[:37] + "..."
    return text if token.kind in ("string", "quoted") else f"'{text}'"
