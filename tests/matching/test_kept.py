"""The cache of values computed from filters' texts: correct, bounded, and free of side effects."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np

from fieldfare.filters import Filter, compile_filter
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.plain.kept import CompileFilter, kept
from fieldfare.matching.plain.library import PlainLibrary
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END

DIALECTS = ("sql", "cesql")


def as_it_is(text: str, dialect: str) -> Filter:
    """Filters of two dialects in which a text has this meaning and its negation."""
    return compile_filter(text if dialect == "sql" else f"NOT ({text})")


def the_other_way_round(text: str, dialect: str) -> Filter:
    return as_it_is(text, DIALECTS[dialect == "sql"])


def inexact(limit: int) -> str:
    """A filter that the index leaves to be confirmed: a sum too long for a column."""
    return f"{' + '.join(['a', 'b'] * 13)} < {limit}"


def test_the_cache_distinguishes_dialects() -> None:
    """Within one part and across parts, the cache distinguishes dialects."""
    random, numbers = Random(5), range(60)
    events = [{"a": random.randrange(10), "b": random.randrange(10)} for _ in range(12)]
    payload = "".join(json.dumps(event) + "\n" for event in events).encode()
    for _ in range(8):
        compiler: CompileFilter = random.choice((as_it_is, the_other_way_round))
        filters = [(inexact(13 * random.randrange(4, 10)), random.choice(DIALECTS)) for _ in numbers]
        entries = [
            IndexEntry(n, n, 0, OPEN_END, compiler(*filter).compiled, *filter)
            for n, filter in enumerate(filters)
        ]
        index = Index([build_part(entries[place::2], PlainLibrary(compiler)) for place in range(2)])
        assert any(part.confirms for part in index.parts)
        columns = decode_json_lines(payload, len(events), index.paths)
        expected = [[n for n in numbers if compiler(*filters[n]).matches(event)] for event in events]
        assert index.match(columns, np.zeros(len(events), np.int64)).lists() == expected


def test_the_cache_returns_computed_values_and_is_bounded() -> None:
    """From several threads, too; a text that cannot be compiled raises each time, without affecting
    others."""
    worked = Counter[tuple[str, str, str]]()

    @kept(8, characters_max=6)
    def work(compile_filter: CompileFilter, text: str, dialect: str) -> str:
        worked[compile_filter.__name__, text, dialect] += 1
        return str(compile_filter(text, dialect))

    def one(text: str, dialect: str) -> str:
        if text.startswith("x"):
            raise ValueError(text)
        return f"one {text!r} {dialect}"

    def other(text: str, dialect: str) -> str:
        return f"other {text!r} {dialect}"

    def ask(seed: int) -> None:
        random = Random(seed)
        for _ in range(300):
            compiler, dialect = random.choice((one, other)), random.choice(DIALECTS)
            text = random.choice("abx") * random.randrange(1, 9)
            try:
                assert work(compiler, text, dialect) == compiler(text, dialect)
            except ValueError as error:
                assert compiler is one and error.args == (text,)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(ask, range(8)))
    worked.clear()
    for text in ("b" * 7, "x", "a", "b"):
        for _ in range(3):
            try:
                work(one, text, "sql")
            except ValueError:
                assert text == "x"
    assert worked["one", "b" * 7, "sql"] == worked["one", "x", "sql"] == 3, "too long, and not compiled"
    assert worked["one", "a", "sql"] <= 1 >= worked["one", "b", "sql"]
    for text in (*"cdefghij", "a"):
        work(one, text, "sql")
    assert worked["one", "a", "sql"] >= 1, "eight others pushed it out"
