"""The lexer of the ``sql`` dialect.

One regular expression, whose alternatives never backtrack, splits the text, and a table gives the kind of
each distinct piece: it takes linear time on any text, and a fraction of a microsecond per token.
Comments are replaced by spaces first. Positions of tokens are computed on demand, for mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, overload

from fieldfare.filters.errors import Problem, problem_at
from fieldfare.filters.text import PROBLEMS_MAX

KEYWORDS = frozenset(
    "AND BETWEEN ESCAPE EXISTS FALSE ILIKE IN IS LIKE NOT NULL OR TRUE UNKNOWN".split()  # noqa: SIM905
)


class Token(NamedTuple):
    """A token of the text.

    ``kind`` is ``path`` (a name, or names with dots between), ``quoted``, ``string``, ``number``,
    ``wrong``, ``end``, or the operator or keyword itself, in upper case. ``text`` is unchanged.
    """

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class Tokens(Sequence[Token]):
    """The tokens of a text, with an ``end`` last: kinds, texts, and positions computed on demand."""

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
        """Return the start of a token; between two tokens there is only white space."""
        if index >= len(self.texts) - 1:
            return len(self.text)
        starts, find = self._starts, self.text.find
        for text in self.texts[len(starts) : index + 1]:
            start = find(text, self._reached)
            starts.append(start)
            self._reached = start + len(text)
        return starts[index]

    def end(self, index: int) -> int:
        """Return the end of a token."""
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
"""A comment (the first group; the second is its end), or text that contains no comment.

Repetitions of a group need not be possessive, since nothing can fail after them; and Python 3.11.2 loses a
group after a possessive one.
"""
_INK = re.compile(r"[^\n]")

_OPERATORS = ("<=>", "<=", ">=", "<>", "=", "<", ">", "-", "||", *"(),+*/%.[]")

_INSIDE = "write data.a.b for a member of an object"
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
    "@": ("'@' is not an operator", "write 'red' = ANY(data.tags) for an element of an array", "wrong"),
    "^": ("'^' is not an operator", "there are + - * / %; write data.a * data.a for a square", "wrong"),
    "&": ("'&' is not an operator", "write AND; bits have no operators", "wrong"),
    "|": ("'|' is not an operator", "write OR, or || to join strings", "wrong"),
    "?": ("unexpected '?'", "a filter has no parameters; write the value itself", "wrong"),
}


class _Kinds(dict[str, str]):
    """The kind of each piece of a text, computed once for each distinct piece."""

    def __missing__(self, word: str) -> str:
        kind = self[word] = _kind(word)
        return kind


def _kind(word: str) -> str:
    first = word[0]
    if first.isalpha() or first == "_":
        if len(word) <= 7 and (capitals := word.upper()) in KEYWORDS:
            return capitals
        return "path"
    if first in "'\"":  # an unterminated one has an odd number of quotes
        return "wrong" if word.count(first) % 2 else "string" if first == "'" else "quoted"
    if first in "0123456789" or (first == "." and len(word) > 1):
        return "number"
    # A letter that isalpha() does not accept starts a name too.
    return "path" if _NAME_START.match(word) else "wrong"


_PARAMETER = "a filter has no parameters and no variables; write the value itself"

_NAME_START = re.compile(r"[^\W\d]")
_FIXED = {"": "end", "!=": "<>", **{operator: operator for operator in _OPERATORS}}


def tokens_of(text: str) -> tuple[Tokens, list[Problem]]:
    """Return all tokens of a text, with an ``end`` last, and the problems found."""
    problems: list[Problem] = []
    if "--" in text or "/*" in text:
        text = _without_comments(text, problems)
    texts = _CUT.findall(text)
    if len(texts) > 1 and not texts[-2]:  # after white space at the end, the end is found twice
        texts.pop()
    kinds = list(map(_Kinds(_FIXED).__getitem__, texts))
    tokens = Tokens(text, kinds, texts)
    if "wrong" in kinds:
        _find_mistakes(tokens, problems)
    return tokens, problems


def _without_comments(text: str, problems: list[Problem]) -> str:
    """Return the text with comments replaced by spaces, so that positions do not change."""

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
    """Record the problems of pieces that are not tokens, and replace these by the tokens probably meant."""
    kinds = tokens.kinds
    for index, kind in enumerate(kinds):
        if kind == "wrong":
            problem, kinds[index] = _mistake(tokens.text, *tokens[index][1:])
            problems.append(problem)
            if len(problems) >= PROBLEMS_MAX:
                kinds[index + 1 :], tokens.texts[index + 1 :] = ["end"], [""]
                break


def _mistake(text: str, word: str, start: int) -> tuple[Problem, str]:
    """Return the problem of a piece that is not a token, and the kind of token that was probably meant."""
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
