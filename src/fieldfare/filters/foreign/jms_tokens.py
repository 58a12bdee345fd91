"""The tokens of JMS selectors, and their constants: Java's whole numbers and doubles."""

from __future__ import annotations

import re
from typing import NamedTuple

from fieldfare.filters.errors import Mistake

KEYWORDS = frozenset({"NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE", "NULL", "TRUE", "FALSE"})

WHOLE_MAX = 1 << 53
"""Maximum magnitude of a number; beyond it Java rounds whole numbers that it compares with doubles."""

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>'(?:[^']|'')*')
    | (?P<double>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dD]?|[0-9]+(?:[eE][+-]?[0-9]+[dD]?|[dD]))
    | (?P<whole>[0-9]+[lL]?)
    | (?P<name>[^\W\d][\w$]*|\$[\w$]*)
    | (?P<sign><>|<=|>=|[=<>+*/(),-])
    | (?P<end>\Z)
    | (?P<wrong>.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_AFTER_NUMBER = re.compile(r"[\w.$]+")


class Token(NamedTuple):
    """A token: ``text[start:end]``; keywords have themselves as their kind."""

    kind: str
    text: str
    start: int
    end: int


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a selector; the last is of kind ``end``. Raise Mistake for other characters."""
    tokens: list[Token] = []
    place = 0
    while True:
        found = _TOKEN.match(text, place)
        assert found is not None  # `wrong` takes any character, `end` the end
        kind = str(found.lastgroup)
        start, place = found.span(kind)
        word = found[kind]
        if kind == "wrong":
            raise _unexpected(text, start, tokens)
        if kind in ("whole", "double") and (more := _AFTER_NUMBER.match(text, place)):
            hint = "decimal digits, as in 5, 5L, 5.0 or 5E3" if word == "0" else ""
            raise Mistake(start, more.end(), f"{text[start : more.end()]!r} is not a number", hint)
        if kind == "whole" and len(word) > 1 and word[0] == "0" and word[1:].lower() != "l":
            raise Mistake(
                start, place, "Java reads a number that begins with 0 as octal", "write it in decimal"
            )
        upper = word.upper()
        if kind == "name" and upper in KEYWORDS:
            kind = upper
        elif kind == "sign":
            kind = word
        tokens.append(Token(kind, word, start, place))
        if kind == "end":
            return tokens


def _unexpected(text: str, start: int, tokens: list[Token]) -> Mistake:
    character = text[start]
    end = start + 1
    if character == "'":
        return Mistake(start, end, "this string never ends", "end it with '")
    hint = ""
    if character == '"':
        hint = "a string has single quotes"
    elif text.startswith("!=", start):
        end, hint = start + 2, "write <>"
    elif character == "." and tokens and tokens[-1].kind == "name":
        hint = "the name of a property has letters, digits, _ and $ only"
    return Mistake(start, end, f"unexpected {text[start:end]!r}", hint)
