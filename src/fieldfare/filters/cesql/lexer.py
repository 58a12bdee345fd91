"""The lexer of CESQL.

The scanner is one regular expression whose alternatives never backtrack, so it takes linear time
on any text. It reports and skips text that is no token, so that one pass finds several problems.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fieldfare.filters.errors import Problem, problem_at
from fieldfare.filters.text import PROBLEMS_MAX

KEYWORDS = frozenset(("AND", "OR", "XOR", "NOT", "LIKE", "EXISTS", "IN", "TRUE", "FALSE"))


class CesqlToken(NamedTuple):
    """A token of the text.

    ``kind`` is ``name``, ``string``, ``number``, ``wrong``, ``end``, or the operator or keyword itself,
    in upper case. ``text`` is unchanged.
    """

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


_SCANNER = re.compile(
    r"""[ \t\r\n]*+(?:
      (?P<word>\w++(?:\.\w++)*+)
    | (?P<operator><=|>=|<>|!=|=(?![=>])|<(?!=)|>|[(),+*/%-])
    | (?P<string>'(?:[^'\\]++|\\.)*+'|"(?:[^"\\]++|\\.)*+")
    | (?P<end>\Z)
    | (?P<wrong>==|=>|&&|\|\||['"`].*+|\[[^\]]*+\]?+|.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)

_MISTAKES = {
    "==": ("'==' is not an operator", "write = to test for equality", "="),
    "=>": ("'=>' is not an operator", "write >=", ">="),
    "&&": ("'&&' is not an operator", "write AND", "AND"),
    "||": ("'||' is not an operator", "write OR", "OR"),
    "!": ("'!' is not an operator", "write NOT, or != for 'not equal'", "NOT"),
    "^": ("'^' is not an operator", "write XOR, or one of + - * / %", "XOR"),
    ";": ("unexpected ';'", "a filter is one expression, without ; at its end", "wrong"),
    "~": ("'~' is not an operator", "there are no regular expressions; write LIKE with % and _", "wrong"),
}
_DATA = "CESQL reads only an event's context attributes, not its data; the sql dialect reads both"


def tokens_of(text: str) -> tuple[list[CesqlToken], list[Problem]]:
    """Return all tokens of a text, with an ``end`` last, and the problems found."""
    tokens: list[CesqlToken] = []
    problems: list[Problem] = []
    position = 0
    match = _SCANNER.match
    while True:
        found = match(text, position)
        assert found is not None  # `wrong` takes any character, `end` the end
        kind: str = found.lastgroup  # type: ignore[assignment]
        start, position = found.span(kind)
        piece = text[start:position]
        problem = None
        if kind == "word":
            kind, problem = _word(text, piece, start)
        elif kind == "operator":
            kind = "<>" if piece == "!=" else piece
        elif kind == "string":
            if position < len(text) and text[position] == piece[0]:
                hint = f"write \\{piece[0]} for a {piece[0]} inside a string"
                message = f"a {piece[0]} inside a string needs a \\ before it"
                problem = problem_at(text, position - 1, position + 1, message, hint)
                position = _after_doubled(text, position)
        elif kind == "wrong":
            problem, kind = _mistake(text, piece, start)
        tokens.append(CesqlToken(kind, piece, start))
        if problem:
            problems.append(problem)
            if len(problems) >= PROBLEMS_MAX:
                position = len(text)
        if kind == "end":
            return tokens, problems


def unquoted(token: str) -> str:
    r"""Decode a string token; only ``\`` before its own quote is an escape (2.2)."""
    quote, inner = token[0], token[1:-1]
    if "\\" not in inner:
        return inner
    return _ESCAPED.sub(lambda found: quote if found[1] == quote else found[0], inner)


def _word(text: str, word: str, start: int) -> tuple[str, Problem | None]:
    """Return the kind of a word, and its problem if it has one."""
    end = start + len(word)
    if word.isascii() and "." not in word:
        if word.isdigit():
            return "number", None
        capitals = word.upper()
        return capitals if capitals in KEYWORDS else "name", None
    if "." in word:
        if word[0].isdigit():
            message, hint = f"{_short(word)} is not a number of CESQL", "CESQL has only whole numbers"
            return "number", problem_at(text, start, end, message, hint)
        message = f"{_short(word)} is not the name of an attribute"
        return "name", problem_at(text, start, end, message, _DATA)
    message, hint = f"{_short(word)} is not a name of CESQL", "a name has only the letters a to z and digits"
    return "name", problem_at(text, start, end, message, hint)


def _short(word: str) -> str:
    return f"'{word}'" if len(word) <= 40 else f"'{word[:37]}...'"


def _after_doubled(text: str, position: int) -> int:
    """Return the end of a string with doubled quotes, as in SQL; ``position`` is that of the second quote."""
    quote = text[position]
    while position < len(text) and text[position] == quote:
        closing = text.find(quote, position + 1)
        if closing < 0:
            return len(text)
        position = closing + 1
    return position


def _mistake(text: str, piece: str, start: int) -> tuple[Problem, str]:
    """Return the problem of a piece that is not a token, and the kind of token that was probably meant."""
    quote = piece[0]
    end = start + len(piece)
    if quote in "'\"":
        hint = f"end it with {quote} (and write \\{quote} for a {quote} inside it)"
        return problem_at(text, start, end, "this string never ends", hint), "string"
    if quote == "`":
        hint = "a name has no quotes, a string has ' or \" around it"
        return problem_at(text, start, start + 1, "'`' is not a quote here", hint), "name"
    if quote == "[":
        return problem_at(text, start, start + 1, "unexpected '['", "CESQL has no arrays; sql has"), "wrong"
    if piece.isspace():
        message = f"this white space is not allowed in CESQL (U+{ord(piece):04X})"
        return problem_at(text, start, end, message, "write a plain space"), "wrong"
    message, hint, kind = _MISTAKES.get(piece, (f"unexpected character {piece!r}", "", "wrong"))
    return problem_at(text, start, end, message, hint), kind
