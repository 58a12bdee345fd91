"""Messages for mistakes in the ``cesql`` dialect, with hints for corrections."""

from __future__ import annotations

from collections.abc import Sequence

from fieldfare.filters.cesql.builtins import BUILTINS, CALLS
from fieldfare.filters.cesql.lexer import KEYWORDS, CesqlToken
from fieldfare.filters.errors import Mistake, Problem, nearest, problem_at

UNOPENED = "remove it, or add a ("

_SHOWN_CHARACTERS = 60
"""Maximum characters of a part of the filter that is repeated in a hint; a longer part is shown as "..."."""

_OPERATORS = ("AND", "OR", "XOR", "NOT", "LIKE", "IN")
_AFTER_A_NAME = ("=", "<>", "<", "<=", ">", ">=", "LIKE", "IN")
_OF_SQL = {
    "BETWEEN": "CESQL has no BETWEEN: write x >= 1 AND x <= 5",
    "IS": "CESQL has no NULL: write EXISTS subject, or NOT EXISTS subject",
    "ILIKE": "CESQL has no ILIKE: write LOWER(type) LIKE 'a%'",
    "ESCAPE": r"CESQL has no ESCAPE: write \% and \_ in the pattern",
    **dict.fromkeys(
        ("MATCHES", "REGEXP", "RLIKE"), "CESQL has no regular expressions: write LIKE with % and _"
    ),
}
_FEW_FUNCTIONS = "CESQL has few functions; the dialect sql has more"


def shown(token: CesqlToken) -> str:
    """Format a token for a message."""
    if token.kind == "end":
        return "the end of the filter"
    text = token.text if len(token.text) <= 40 else token.text[:37] + "..."
    return text if token.kind == "string" else f"'{text}'"


def missing_operator(tokens: Sequence[CesqlToken], index: int, *, in_list: bool = False) -> Mistake:
    """Return the mistake of a token after a complete operand that is not an operator."""
    token, before = tokens[index], tokens[index - 1]
    message = f"expected an operator, found {shown(token)}"
    hint = "join two conditions with AND or OR"
    if token.kind == "NOT":
        hint = "write != for 'not equal', NOT LIKE, NOT IN, or NOT before the whole condition"
    elif before.kind == "name" and before.text.upper() in BUILTINS:
        hint = f"write {CALLS[before.text.upper()]}"
    elif token.kind == "name" and token.text.upper() in _OF_SQL:
        hint = _OF_SQL[token.text.upper()]
    elif token.kind == "name" and (guess := nearest(token.text, _OPERATORS)):
        hint = f"did you mean {guess}?"
    elif before.kind == "name" and before.text.upper() in ("WHERE", "SELECT"):
        token, message = before, f"unexpected {before.text!r}"
        hint = "a filter is only the condition, without SELECT or WHERE"
    elif in_list and token.kind in ("string", "number", "name"):
        hint = "put a comma between the values of a list"
    elif token.kind in ("string", "number") and before.kind == "name":
        hint = "write = between an attribute and its value"
    elif token.kind == ",":
        hint = "a list of values stands in parentheses after IN"
    return Mistake(token.start, token.end, message, hint)


def missing_operand(tokens: Sequence[CesqlToken], index: int, *, inside: bool) -> Mistake:
    """Return the mistake of a token in place of a value; ``inside``: whether a parenthesis is open."""
    token = tokens[index]
    before = tokens[index - 1] if index else None
    message = f"expected a value or the name of an attribute, found {shown(token)}"
    if token.kind == ")" and not inside:
        return Mistake(token.start, token.end, "this ) has no matching (", UNOPENED)
    if token.kind == "+":
        return Mistake(
            token.start, token.end, "unexpected '+'", "a + stands between two numbers or right before one"
        )
    if before and before.text + token.text in ("=<", "><"):
        pair = before.text + token.text
        hint = f"write {'<=' if pair == '=<' else '<>'}"
        return Mistake(before.start, token.end, f"'{pair}' is not an operator", hint)
    hint = f"a value is missing before {shown(token)}"
    if token.kind in KEYWORDS and tokens[index + 1].kind in _AFTER_A_NAME:
        hint = f"{token.text.upper()} is a keyword, so CESQL cannot name an attribute like it"
    elif before:
        hint = f"a value is missing between {shown(before)} and {shown(token)}"
    return Mistake(token.start, token.end, message, hint)


def unknown_function(token: CesqlToken) -> Mistake:
    """Return the mistake of a call of a function that does not exist."""
    guess = nearest(token.text, BUILTINS)
    hint = f"did you mean {guess}?" if guess else _FEW_FUNCTIONS
    if token.text.upper() == "CAST":
        hint = "write INT(value), BOOL(value) or STRING(value)"
    return Mistake(token.start, token.end, f"there is no function {token.text.upper()}", hint)


def wrong_count(text: str, token: CesqlToken, count: int) -> Problem:
    """Warn of a function that cannot be called with `count` arguments."""
    name = token.text.upper()
    many = "1 argument" if count == 1 else f"{count} arguments"
    message = f"{name} cannot be called with {many}, so this is always an error"
    return problem_at(text, token.start, token.end, message, f"write {CALLS[name]}")


def mixed(text: str, start: int, before: CesqlToken, operator: CesqlToken, first: str) -> Problem:
    """Warn of AND, OR and XOR mixed without parentheses; ``text[start:before.end]`` is the first operand."""
    message = f"{operator.kind} after {first} without parentheses"
    left = _part(text, start, before.end)
    hint = f"CESQL reads from left to right, other engines may not: write ({left}) {operator.kind} ..."
    return problem_at(text, operator.start, operator.end, message, hint)


def tight_not(text: str, tokens: Sequence[CesqlToken], start: int, end: int, operator: CesqlToken) -> Problem:
    """Warn of ``NOT x = 1``, which means ``(NOT x) = 1``."""
    token = tokens[start]
    message = f"NOT binds tighter than {operator.text.upper()}, so it applies to the operand before that"
    meant = _part(text, tokens[start + 1].start, tokens[end].end)
    return problem_at(text, token.start, token.end, message, f"did you mean NOT ({meant})?")


def chained(text: str, operator: CesqlToken) -> Problem:
    """Warn of ``1 < a < 3``."""
    message = f"'{operator.text}' compares the result of the comparison before it"
    hint = "join two comparisons with AND, as in 1 < a AND a < 3"
    return problem_at(text, operator.start, operator.end, message, hint)


def tight_postfix(text: str, operator: CesqlToken, arithmetic: CesqlToken) -> Problem:
    """Warn of ``a + 1 IN (2, 3)``, which means ``a + (1 IN (2, 3))``."""
    name = operator.text.upper()
    message = f"{name} binds tighter than '{arithmetic.text}', so it applies to the last operand only"
    return problem_at(
        text, operator.start, operator.end, message, f"put parentheses around what {name} tests"
    )


def not_an_attribute(text: str, token: CesqlToken) -> Problem | None:
    """Warn of a name that is probably not meant as an attribute; None for other names."""
    name = token.text.lower()
    if name == "data":
        hint = "CESQL reads only context attributes; the sql dialect reads an event's data"
        return problem_at(text, token.start, token.end, "an event has no attribute 'data'", hint)
    if name in ("null", "unknown"):
        message = f"{name.upper()} is not a value of CESQL, so this is an attribute named '{name}'"
        return problem_at(
            text, token.start, token.end, message, "to ask whether there is a value, write EXISTS subject"
        )
    return None


def _part(text: str, start: int, end: int) -> str:
    part = text[start:end]
    return part if len(part) <= _SHOWN_CHARACTERS and part.isprintable() else "..."
