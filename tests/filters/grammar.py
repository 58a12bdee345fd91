"""The grammar of docs/filter-grammar.md, parsed from the page: a generator and a recognizer of filters.

A filter is a list of tokens here. Tokens that the grammar defines by characters (numbers, strings, names)
are terminals; samples of them are in ``TERMINALS``.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fieldfare.filters.functions import FUNCTIONS
from fieldfare.filters.sql.lexer import KEYWORDS
from fieldfare.filters.sql.operands import ALIASES

PAGE = Path(__file__).parents[2] / "docs" / "filter-grammar.md"

NAMES = ("a", "b", "data", "time", "item", "any", "all", "day", "timestamp", "interval", "from", "é_1")
"""Names of attributes; some of them are words with a meaning in other places."""

_FUNCTION_NAMES = frozenset((*FUNCTIONS, *ALIASES)) - {"CASE", "EQUAL_NULL"}
"""Functions with the syntax of calls; two others have rules of their own."""


def _is_name(token: str) -> bool:
    return _is_word(token) and token.upper() not in KEYWORDS


def _is_word(token: str) -> bool:
    return re.fullmatch(r"[^\W\d]\w*", token) is not None


@dataclass(frozen=True)
class Terminal:
    """A kind of tokens that the grammar defines by their characters."""

    samples: tuple[str, ...]
    allows: Callable[[str], bool]


TERMINALS = {
    "number": Terminal(
        ("5", "0", "18.50", ".5", "1.", "1e-3", "2E+2", "1_000"),
        lambda token: token[0] in ".0123456789" and token != ".",
    ),
    "string": Terminal(
        ("'x'", "''", "'it''s'", "'5'", "'5 days'", "'12:30'", "'2026-01-31'", "'2026-01-31T12:00:00Z'"),
        lambda token: token[0] == "'",
    ),
    "quoted": Terminal(('"odd name"', '"in"', '"a""b"'), lambda token: token[0] == '"'),
    "digits": Terminal(("0", "5", "007"), lambda token: re.fullmatch(r"[0-9]+", token) is not None),
    "function": Terminal(
        (
            "LOWER",
            "length",
            "CONCAT",
            "ABS",
            "Round",
            "COALESCE",
            "HOUR",
            "IN_CIDR",
            "SUBSTRING",
            "SUBSTR",
            "GREATEST",
            "ELEMENT_AT",
            "Date",
        ),
        lambda token: token.upper() in _FUNCTION_NAMES,
    ),
    "name": Terminal(NAMES, _is_name),
    "word": Terminal((*NAMES, "in", "NULL", "Order"), _is_word),
}


@dataclass(frozen=True)
class Node:
    """A part of a rule.

    ``kind`` is ``text`` (quoted in the page), ``rule`` (its name), ``all``, ``any``, ``maybe`` or ``many``.
    """

    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()


_PATH = Node("rule", "path")

_DEEP = 30
"""Maximum depth of random choices; beyond, a generated filter takes the shortest alternatives."""

_ENDLESS = 1_000_000


@dataclass
class Grammar:
    """The rules of the page, by name."""

    rules: dict[str, Node]
    leasts: dict[str, int] = field(default_factory=dict)

    def derive(self, rng: random.Random, name: str = "filter", depth: int = 0) -> Iterator[str]:
        """Return the tokens of a random filter."""
        if name in TERMINALS:
            yield rng.choice(TERMINALS[name].samples)
        else:
            yield from self._derive(self.rules[name], rng, depth + 1)

    def _derive(self, node: Node, rng: random.Random, depth: int) -> Iterator[str]:
        if node.kind == "text":
            yield rng.choice((node.text, node.text, node.text.lower()))
        elif node.kind == "rule":
            yield from self.derive(rng, node.text, depth)
        elif node.kind == "all":
            for part in node.parts:
                yield from self._derive(part, rng, depth)
        elif node.kind == "any":
            yield from self._derive(self._choice(node.parts, rng, depth), rng, depth)
        else:
            chance = 0.3 if depth < _DEEP else 0
            while rng.random() < chance:
                yield from self._derive(node.parts[0], rng, depth)
                if node.kind == "maybe":
                    break

    def _choice(self, parts: tuple[Node, ...], rng: random.Random, depth: int) -> Node:
        """Choose an alternative: often an attribute, which may have any type, so that many filters parse."""
        if depth >= _DEEP:
            return min(parts, key=self.least)
        return _PATH if _PATH in parts and rng.random() < 0.6 else rng.choice(parts)

    def least(self, node: Node) -> int:
        """Return the minimum number of tokens."""
        if node.kind in ("text", "maybe", "many"):
            return int(node.kind == "text")
        if node.kind == "rule":
            if node.text not in self.leasts:
                self.leasts[node.text] = _ENDLESS  # where it leads back to itself
                self.leasts[node.text] = 1 if node.text in TERMINALS else self.least(self.rules[node.text])
            return self.leasts[node.text]
        sizes = [self.least(part) for part in node.parts]
        return min(sizes) if node.kind == "any" else sum(sizes)

    def allows(self, tokens: list[str]) -> bool:
        """Return whether the tokens are a filter."""
        return len(tokens) in _Recognizer(self, tokens).ends(Node("rule", "filter"), 0)


class _Recognizer:
    """A recognizer: for each part of the grammar and each first token, the possible ends."""

    def __init__(self, grammar: Grammar, tokens: list[str]) -> None:
        self.grammar = grammar
        self.tokens = tokens
        self.known: dict[tuple[str, int], frozenset[int]] = {}

    def ends(self, node: Node, start: int) -> frozenset[int]:
        if node.kind == "text":
            fits = start < len(self.tokens) and self.tokens[start].upper() == node.text
            return frozenset((start + 1,) if fits else ())
        if node.kind == "rule":
            return self.ends_of_rule(node.text, start)
        if node.kind == "any":
            return frozenset().union(*(self.ends(part, start) for part in node.parts))
        if node.kind == "all":
            found = frozenset((start,))
            for part in node.parts:
                found = frozenset().union(*(self.ends(part, place) for place in found))
            return found
        found, new = frozenset((start,)), frozenset((start,))
        while new:
            new = frozenset().union(*(self.ends(node.parts[0], place) for place in new)) - found
            found |= new
            if node.kind == "maybe":
                break
        return found

    def ends_of_rule(self, name: str, start: int) -> frozenset[int]:
        terminal = TERMINALS.get(name)
        if terminal is not None:
            fits = start < len(self.tokens) and terminal.allows(self.tokens[start])
            return frozenset((start + 1,) if fits else ())
        known = self.known.get((name, start))
        if known is None:
            known = self.known[name, start] = self.ends(self.grammar.rules[name], start)
        return known


def read_grammar(text: str) -> Grammar:
    """Parse the grammar in a page's ``ebnf`` block, up to the rules for single characters."""
    (block,) = re.findall(r"```ebnf\n(.*?)```", text, re.DOTALL)
    rules, _ = block.split("\n\n")
    return Grammar(
        {
            name: _Reader(body).alternatives()
            for name, body in re.findall(r"(\w+) +=((?:[^;\"]|\"[^\"]*\")*);", rules)
        }
    )


_BRACKETS = {"(": (")", ""), "[": ("]", "maybe"), "{": ("}", "many")}


class _Reader:
    """A parser of the right side of a rule."""

    def __init__(self, body: str) -> None:
        self.tokens = [*re.findall(r"\"[^\"]*\"|\w+|[^\s\w]", body), ""]
        self.index = 0

    def take(self) -> str:
        self.index += 1
        return self.tokens[self.index - 1]

    def alternatives(self) -> Node:
        parts = [self.sequence()]
        while self.tokens[self.index] == "|":
            self.take()
            parts.append(self.sequence())
        return parts[0] if len(parts) == 1 else Node("any", parts=tuple(parts))

    def sequence(self) -> Node:
        parts = [self.piece()]
        while self.tokens[self.index] == ",":
            self.take()
            parts.append(self.piece())
        return parts[0] if len(parts) == 1 else Node("all", parts=tuple(parts))

    def piece(self) -> Node:
        token = self.take()
        if token in _BRACKETS:
            closing, kind = _BRACKETS[token]
            inside = self.alternatives()
            assert self.take() == closing, self.tokens
            return Node(kind, parts=(inside,)) if kind else inside
        if token[0] == '"':
            return Node("text", token[1:-1])
        assert token.isidentifier(), token
        return Node("rule", token)
