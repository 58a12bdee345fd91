"""From a filter's text to tokens.

The scanner is one compiled expression whose alternatives never backtrack, so it takes linear time
on any text. What it cannot read it reports and skips, so that one pass shows several problems.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fieldfare.filters.errors import Problem, problem_at

KEYWORDS = frozenset(
    "AND BETWEEN ESCAPE EXISTS FALSE IN IS LIKE NOT NULL OR TRUE UNKNOWN".split()  # noqa: SIM905
)

MAX_PROBLEMS = 10
"""After so many problems in one filter the rest of it is not looked at."""


class Token(NamedTuple):
    """A piece of the text.

    ``kind`` is ``path`` (a name, or names with dots between), ``quoted``, ``string``, ``number``,
    ``wrong``, ``end``, or the operator or keyword itself, in capitals. ``text`` is as written.
    """

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


_SCANNER = re.compile(
    r"""\s*+(?:
      (?P<word>[^\W\d]\w*+(?:\.[^\W\d]\w*+)*+)
    | (?P<number>(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+\w*+)
    | (?P<operator><=|>=|<>|!=|=(?!=)|<|>|[(),+*/%.\[\]]|-(?!-))
    | (?P<string>'[^']*+(?:''[^']*+)*+')
    | (?P<quoted>"[^"]*+(?:""[^"]*+)*+")
    | (?P<end>\Z)
    | (?P<wrong>==|&&|\|\||--|['"`].*+|.)
    )""",
    re.VERBOSE | re.DOTALL,
)

_MISTAKES = {
    "==": ("'==' is not an operator", "write = to test for equality", "="),
    "&&": ("'&&' is not an operator", "write AND", "AND"),
    "||": ("'||' is not an operator", "write OR", "OR"),
    "!": ("'!' is not an operator", "write NOT, or <> for 'not equal'", "NOT"),
    "--": (
        "'--' is not an operator",
        "a filter has no comments; write - - for minus a negative number",
        "wrong",
    ),
    ";": ("unexpected ';'", "a filter is one condition, without ; at its end", "wrong"),
    "~": ("'~' is not an operator", "there are no regular expressions; write LIKE with % and _", "wrong"),
    "^": ("'^' is not an operator", "there are + - * / %", "wrong"),
    "?": ("unexpected '?'", "a filter has no parameters; write the value itself", "wrong"),
}


def tokens_of(text: str) -> tuple[list[Token], list[Problem]]:
    """All tokens of a text, an ``end`` last, and what could not be read."""
    tokens: list[Token] = []
    problems: list[Problem] = []
    position = 0
    match, new = _SCANNER.match, tuple.__new__  # the plain constructor of a named tuple takes twice as long
    while True:
        found = match(text, position)
        assert found is not None  # `wrong` takes any character, `end` the end
        kind: str = found.lastgroup  # type: ignore[assignment]
        start, position = found.span(kind)
        word = text[start:position]
        if kind == "word":
            kind = "path"
            if len(word) <= 7 and (capitals := word.upper()) in KEYWORDS:
                kind = capitals
        elif kind == "operator":
            kind = "<>" if word == "!=" else word
        elif kind == "wrong":
            problem, kind = _mistake(text, word, start)
            problems.append(problem)
            if len(problems) >= MAX_PROBLEMS:
                position = len(text)
        tokens.append(new(Token, (kind, word, start)))
        if kind == "end":
            return tokens, problems


def _mistake(text: str, word: str, start: int) -> tuple[Problem, str]:
    """What is wrong with a piece that is no token, and the kind of token it may stand for."""
    end = start + len(word)
    if word[0] == "'":
        hint = "end it with ' (and write '' for a quote inside it)"
        return problem_at(text, start, end, "this string never ends", hint), "string"
    if word[0] == '"':
        hint = 'end it with " (a name in double quotes is an attribute; a string has single quotes)'
        return problem_at(text, start, end, "this quoted name never ends", hint), "quoted"
    if word[0] == "`":
        hint = 'put double quotes around an odd name: "odd name"'
        return problem_at(text, start, start + 1, "'`' is not a quote here", hint), "quoted"
    message, hint, kind = _MISTAKES.get(word, (f"unexpected character {word!r}", "", "wrong"))
    return problem_at(text, start, end, message, hint), kind
