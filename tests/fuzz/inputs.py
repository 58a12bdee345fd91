"""Seeded inputs for the parsers: random pieces, mutations of valid filters, and texts by a grammar.

Each dialect has a file of valid filters in ``corpus/``, one a line, and a grammar in ``grammars``. A
dialect whose filters are JSON is also given random documents made of the names and values in its corpus.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fieldfare.filters.filter import DIALECTS
from fieldfare.filters.functions import FUNCTIONS

from .grammars import GRAMMARS, text_of

CORPUS = Path(__file__).parent / "corpus"

ODD = [
    "\x00",
    "\ud800",
    "\U0010ffff",
    "é",
    "ß",
    "İ",
    "\u2028",
    "²",
    "٣",
    "'",
    '"',
    "`",
    "\\",
    "\n",
    "\t",
    " ",
    "\ufeff",
]
PIECES = """
AND OR NOT IS IN LIKE ILIKE BETWEEN ESCAPE EXISTS NULL TRUE FALSE UNKNOWN ANY ALL SOME SATISFIES XOR
FROM FOR ( ) ( ) , , = <> < <= > >= == != + - * / % || && . [ ] [0] { } : a b data.x data."o" "X"
each 'x' '%a_' '' 1 2.5 1e3 .5 5. 01 0x1 1e-999 1e99999 ' " ; ? ! -- ` ~ ^ TIMESTAMP INTERVAL DATE
TIME '2026-01-31T12:00:00Z' '5' MINUTE '09:30' "prefix" "suffix" "anything-but" "numeric" "wildcard"
"$or" "exact" "any" "all" "not" null true false
""".split()  # noqa: SIM905

Source = Callable[[random.Random], str]


def corpus_of(dialect: str) -> list[str]:
    """The valid filters that mutations start from."""
    file = CORPUS / f"{dialect}.txt"
    return file.read_text().splitlines() if file.exists() else ["data.a = 1", '{"a": ["b"]}']


def sources_of(dialect: str) -> list[Source]:
    """Where the inputs for a dialect come from."""
    corpus = corpus_of(dialect)
    sources: list[Source] = [
        random_pieces,
        lambda rng: mutated(rng, corpus),
        lambda rng: mutated(rng, corpus),
        random_characters,
    ]
    if dialect in GRAMMARS:
        by_grammar = partial(text_of, GRAMMARS[dialect])
        sources += [by_grammar, by_grammar, lambda rng: mutated(rng, [by_grammar(rng), by_grammar(rng)])]
    if DIALECTS[dialect].is_json:
        words = sorted({word for text in corpus for word in re.findall(r'"([^"]*)"', text)})
        sources.append(lambda rng: json.dumps(random_document(rng, words, 4)))
    return sources


def random_pieces(rng: random.Random) -> str:
    names = list(FUNCTIONS)
    separator = rng.choice([" ", "", "\n"])
    count = rng.choice([3, 8, 15, 40])
    return separator.join(
        rng.choice(names) + "(" if rng.random() < 0.1 else rng.choice(PIECES) for _ in range(count)
    )


def random_characters(rng: random.Random) -> str:
    kinds: list[Callable[[], str]] = [
        lambda: chr(rng.randrange(128)),
        lambda: rng.choice(ODD),
        lambda: chr(rng.randrange(0x110000)),
        lambda: rng.choice("ab01 ()'\"=<>.,[]{}:%"),
    ]
    kind = rng.choice(kinds)
    return "".join((rng.choice(kinds) if rng.random() < 0.2 else kind)() for _ in range(rng.randrange(30)))


def mutated(rng: random.Random, corpus: list[str]) -> str:
    """A filter with a few changes, of which some repeat a part of it very often."""
    text = rng.choice(corpus)
    for _ in range(rng.choice([1, 1, 2, 4])):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice([0, 1, 1, 3, 10, 40]))
        before, part, after = text[:start], text[start:end], text[end:]
        other = rng.choice(corpus)
        place = rng.randrange(len(other) + 1)
        changes: list[Callable[[], str]] = [
            lambda before=before, after=after: before + after,
            lambda before=before, part=part, after=after: before + part * 2 + after,
            lambda before=before, part=part, after=after: before + rng.choice(PIECES) + part + after,
            lambda before=before, after=after: before + rng.choice(ODD) + after,
            lambda before=before, part=part, after=after: before + part.swapcase() + after,
            lambda before=before, part=part, after=after: before + part[::-1] + after,
            lambda before=before, other=other, place=place: before + other[place:],
            lambda before=before, after=after: (
                before + str(rng.choice([0, -1, 2**64, 10**30, 1e300])) + after
            ),
            lambda before=before, after=after: before + f" {rng.choice(['AND', 'OR', ','])} " + after,
        ]
        text = rng.choice(changes)()
        if rng.random() < 0.01:
            text = before + part * rng.choice([20, 200, 2_000]) + after
    return text if len(text) < 100_000 else text[:100_000]


def random_document(rng: random.Random, words: list[str], depth: int) -> Any:
    """A JSON value made of the words of a dialect."""
    kind = rng.randrange(8) if depth else rng.randrange(4)
    if kind < 2:
        return rng.choice(words)
    if kind == 2:
        return rng.choice([0, 1, -5, 2.5, 1e300, 2**70])
    if kind == 3:
        return rng.choice([None, True, False, "", "a*", "10.0.0.0/8", "\ud800", "\x00"])
    count = rng.choice([0, 1, 1, 2, 3])
    if kind < 6:
        return {rng.choice(words): random_document(rng, words, depth - 1) for _ in range(count)}
    return [random_document(rng, words, depth - 1) for _ in range(count)]
