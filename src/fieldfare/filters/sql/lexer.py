"""From a filter's text to tokens.

One regular expression, whose alternatives never backtrack, cuts the whole text at once, and a table
says what each distinct piece is: linear time on any text, and a fraction of a microsecond a token.
Comments are replaced by spaces before.
Where a token stands is computed only when somebody asks, which is when there is a mistake to show.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, overload

from fieldfare.filters.errors import Problem, problem_at

KEYWORDS = frozenset(
    "AND BETWEEN ESCAPE EXISTS FALSE ILIKE IN IS LIKE NOT NULL OR TRUE UNKNOWN".split()  # noqa: SIM905
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


class Tokens(Sequence[Token]):
    """The tokens of a text, an ``end`` last: their kinds, their texts, and on demand their places."""

    def __init__(self, text: str, kinds: list[str], texts: list[str]) -> None:
        self.text = text
        self.kinds = kinds
        self.texts = texts
        self._starts: list[int] = []
        self._reached = 0

    def __len__(self) -> int:
        return len(self.kinds)

    @overload
    def __getitem__(self, index: int) -> Token: ...
    @overload
    def __getitem__(self, index: slice) -> list[Token]: ...
    def __getitem__(self, index: int | slice) -> Token | list[Token]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self.kinds)
        return Token(self.kinds[index], self.texts[index], self.start(index))

    def start(self, index: int) -> int:
        """Where a token starts; between one token and the next there is only white space."""
        if index >= len(self.texts) - 1:
            return len(self.text)
        starts, find = self._starts, self.text.find
        for text in self.texts[len(starts) : index + 1]:
            start = find(text, self._reached)
            starts.append(start)
            self._reached = start + len(text)
        return starts[index]

    def end(self, index: int) -> int:
        """Where a token ends."""
        return self.start(index) + len(self.texts[index])


_CUT = re.compile(
    r"""\s*+(
      [^\W\d]\w*+(?:\.[^\W\d]\w*+)*+
    | (?:[0-9][0-9_]*+(?:\.[0-9_]*+)?|\.[0-9][0-9_]*+)(?:[eE][+-]?[0-9_]++)?+\w*+
    | <=>|<=|>=|<>|!=|=(?!=)|<|>|[(),+*/%.\[\]]|-(?![->])|\|\|
    | '[^']*+(?:''[^']*+)*+'
    | "[^"]*+(?:""[^"]*+)*+"
    | \Z
    | ==|&&|->>?|::|[$:@][\w:]*+|['"`].*+|.
    )""",
    re.VERBOSE | re.DOTALL,
)

_COMMENT = re.compile(
    r"""'[^']*+'?+ | "[^"]*+"?+ | `.*+ | (--[^\n]*+ | /\*[^*]*+(?:\*(?!/)[^*]*+)*(\*/)?)""",
    re.VERBOSE | re.DOTALL,
)
"""A comment (the first group; the second is its end), or what has no comment in it.

Nothing of it can fail after a repetition of a group, so none needs to be possessive: in Python 3.11.2 a group
behind one that is was lost.
"""
_INK = re.compile(r"[^\n]")

_OPERATORS = ("<=>", "<=", ">=", "<>", "=", "<", ">", "-", "||", *"(),+*/%.[]")

_INSIDE = "write data.a.b for what is inside of an object"
_MISTAKES = {
    "==": ("'==' is not an operator", "write = to test for equality", "="),
    "&&": ("'&&' is not an operator", "write AND", "AND"),
    "!": ("'!' is not an operator", "write NOT, or <> for 'not equal'", "NOT"),
    ";": ("unexpected ';'", "a filter is one condition, without ; at its end", "wrong"),
    "~": ("'~' is not an operator", "there are no regular expressions; write LIKE with % and _", "wrong"),
    "::": ("'::' is not an operator", "write CAST(data.a AS BIGINT), or DATE '2026-01-31'", "wrong"),
    "->": (
        "'->' is not an operator",
        _INSIDE + ", ANY item IN data.items SATISFIES (...) for elements",
        "wrong",
    ),
    "->>": ("'->>' is not an operator", _INSIDE, "wrong"),
    "@": ("'@' is not an operator", "write 'red' = ANY(data.tags) for what an array has", "wrong"),
    "^": ("'^' is not an operator", "there are + - * / %; write data.a * data.a for a square", "wrong"),
    "&": ("'&' is not an operator", "write AND; bits have no operators", "wrong"),
    "|": ("'|' is not an operator", "write OR, or || to join strings", "wrong"),
    "?": ("unexpected '?'", "a filter has no parameters; write the value itself", "wrong"),
}


class _Kinds(dict[str, str]):
    """What each piece of a text is; computed once for each distinct piece."""

    def __missing__(self, word: str) -> str:
        kind = self[word] = _kind(word)
        return kind


def _kind(word: str) -> str:
    first = word[0]
    if first.isalpha() or first == "_":
        if len(word) <= 7 and (capitals := word.upper()) in KEYWORDS:
            return capitals
        return "path"
    if first in "'\"":  # one that never ends has an odd number of quotes
        return "wrong" if word.count(first) % 2 else "string" if first == "'" else "quoted"
    if first in "0123456789" or (first == "." and len(word) > 1):
        return "number"
    # A letter of a kind that isalpha() does not know starts a name all the same.
    return "path" if _NAME_START.match(word) else "wrong"


_PARAMETER = "a filter has no parameters and no variables; write the value itself"

_NAME_START = re.compile(r"[^\W\d]")
_FIXED = {"": "end", "!=": "<>", **{operator: operator for operator in _OPERATORS}}


def tokens_of(text: str) -> tuple[Tokens, list[Problem]]:
    """All tokens of a text, an ``end`` last, and what could not be read."""
    problems: list[Problem] = []
    if "--" in text or "/*" in text:
        text = _without_comments(text, problems)
    texts = _CUT.findall(text)
    if len(texts) > 1 and not texts[-2]:  # white space leads to the end, which is then found once more
        texts.pop()
    kinds = list(map(_Kinds(_FIXED).__getitem__, texts))
    tokens = Tokens(text, kinds, texts)
    if "wrong" in kinds:
        _find_mistakes(tokens, problems)
    return tokens, problems


def _without_comments(text: str, problems: list[Problem]) -> str:
    """The text with spaces in the place of comments, so that all else stays where it is."""

    def blank(found: re.Match[str]) -> str:
        comment = found[1]
        if comment is None:
            return found[0]
        if comment.startswith("/*") and found[2] is None:
            start = found.start()
            problems.append(problem_at(text, start, start + 2, "this comment never ends", "end it with */"))
        return _INK.sub(" ", comment)

    return _COMMENT.sub(blank, text)


def _find_mistakes(tokens: Tokens, problems: list[Problem]) -> None:
    """The problems of pieces that are no tokens, which become the tokens they may stand for."""
    kinds = tokens.kinds
    for index, kind in enumerate(kinds):
        if kind == "wrong":
            problem, kinds[index] = _mistake(tokens.text, *tokens[index][1:])
            problems.append(problem)
            if len(problems) >= MAX_PROBLEMS:
                kinds[index + 1 :], tokens.texts[index + 1 :] = ["end"], [""]
                break


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
    if word[0] in "$:@" and word not in ("::", "@"):
        return problem_at(text, start, end, f"unexpected {word[:40]!r}", _PARAMETER), "path"
    message, hint, kind = _MISTAKES.get(word, (f"unexpected character {word!r}", "", "wrong"))
    return problem_at(text, start, end, message, hint), kind
