"""The fast path for simple filters gives the same results as the parser."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters import FilterError, compile_filter, encode_normal_form
from fieldfare.filters.expression import Literal, walk
from fieldfare.filters.normal_form import normal_form
from fieldfare.filters.sql.parser import read_sql
from fieldfare.filters.sql.simple import CHARACTERS_MAX, PREDICATES_MAX, read_simple

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus" / "sql.txt"

NAMES = ["a", "b", "data.x", "data.y.z", "_1", "é.ß", "any", "index", "android"]
ODD_NAMES = [
    "NOT",
    "and",
    "null",
    "in.x",
    "data.not",
    "ALL",
    "a.",
    "a b",
    '"a"',
    "a[0]",
    "ın",
    "a.b" + ".c" * 31,
]
NUMBERS = ["0", "5", "-5", "12.50", "0.0", "-0.0", "1.0", "-17.25", "0.0000001", "999999999999999999", "18.5"]
ODD_NUMBERS = ["05", "5.", ".5", "1e3", "9" * 19, "9" * 41, "--5", "- 5", "+5", "5x", "5.5.5", "5_0", "٣"]
STRINGS = ["'x'", "'it''s'", "'é'", "' '", "'a AND b'", "'('"]
ODD_STRINGS = ["''", "'", "'x", '"x"', "'x''", "''''", "'\ud800'"]
OPERATORS = ["=", "<>", "!=", "<", "<=", ">", ">="]
ODD_OPERATORS = ["==", "=>", "LIKE", "IS", "+", "= -", "<-", "NOT IN"]

spaces = st.sampled_from([" ", " ", " ", "", "\n", "\t  ", "\u00a0"])
numbers = st.sampled_from(NUMBERS)
literals = st.sampled_from(NUMBERS + STRINGS)


def _spaced(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    woven = [piece for part in parts for piece in (spaces, part)]
    return st.tuples(*woven, spaces).map("".join)


def _word(*written: str) -> st.SearchStrategy[str]:
    return st.sampled_from([form for word in written for form in (word, word, word.lower(), word.title())])


predicates = st.one_of(
    _spaced(st.sampled_from(NAMES), st.sampled_from(OPERATORS), literals),
    _spaced(st.sampled_from(NAMES), _word("BETWEEN"), numbers, _word("AND"), numbers),
    st.builds(
        "{} {}({})".format,
        st.sampled_from(NAMES),
        _word("IN", "IN "),
        st.lists(_spaced(literals), min_size=1, max_size=5).map(",".join),
    ),
)
filters = st.lists(predicates, min_size=1, max_size=4).flatmap(
    lambda found: st.sampled_from([" AND ", " and ", "AND", "\nAnd\n"]).map(lambda word: word.join(found))
)
pieces = st.sampled_from(
    NAMES + ODD_NAMES + NUMBERS + ODD_NUMBERS + STRINGS + ODD_STRINGS + OPERATORS + ODD_OPERATORS
    + ["AND", "and", "OR", "BETWEEN", "IN", "(", ")", ",", "/", ";", ".", "\u2028"]
)  # fmt: skip


def _assert_same(text: str) -> bool:
    """Compare the parser and the fast path for a text; return whether the fast path accepted it."""
    simple = read_simple(text)
    if simple is None:
        return False
    expression, warnings = read_sql(text)
    assert not warnings
    found = simple.expression()
    assert found == expression
    assert [type(part.value) for part in walk(found) if isinstance(part, Literal)] == [
        type(part.value) for part in walk(expression) if isinstance(part, Literal)
    ]
    encoded = simple.encoded()
    assert encoded in (None, encode_normal_form(normal_form(expression)))
    compiled = compile_filter(text)
    assert compiled.expression == expression
    assert compiled.normal_form == normal_form(expression)
    assert compiled.compiled == encode_normal_form(normal_form(expression))
    return True


@settings(max_examples=drawn(400))
@given(filters)
def test_simple_filters_agree_with_the_parser(text: str) -> None:
    _assert_same(text)


@settings(max_examples=drawn(300))
@given(filters, st.data())
def test_almost_simple_filters_agree_with_the_parser(text: str, data: st.DataObject) -> None:
    """A piece is inserted, or a character removed, at a random position."""
    place = data.draw(st.integers(0, len(text)))
    if data.draw(st.booleans()):
        text = text[:place] + data.draw(pieces) + text[place:]
    else:
        text = text[:place] + text[place + 1 :]
    _assert_same(text)


@settings(max_examples=drawn(300))
@given(st.lists(st.tuples(pieces, spaces).map("".join), max_size=8).map("".join))
def test_random_tokens_agree_with_the_parser(text: str) -> None:
    _assert_same(text)


def test_the_fuzzing_corpus_agrees_with_the_parser() -> None:
    for line in CORPUS.read_text().splitlines():
        _assert_same(line)


@pytest.mark.parametrize(
    "text",
    [
        "data.a00 BETWEEN 5 AND 17 AND data.a01 BETWEEN 0.5 AND 2",
        "data.origin = 'JFK' AND data.carrier IN ('AA', 'B6', 7) AND data.delay > 30 and x<>-0.25",
        " a!=1 ",
    ],
)
def test_common_filters_are_simple(text: str) -> None:
    assert _assert_same(text)
    assert pickle.loads(pickle.dumps(compile_filter(text))).expression == compile_filter(text).expression


@pytest.mark.parametrize(
    "text",
    ["a = 1 AND", "a = 1 OR b = 2", "a = 1; b = 2", "a = 'x", "a BETWEEN 1 AND b", "a = 5AND b = 1", ""],
)
def test_other_filters_are_left_to_the_parser(text: str) -> None:
    assert read_simple(text) is None


def test_large_filters_are_left_to_the_parser() -> None:
    many = " AND ".join(["a = 1"] * PREDICATES_MAX)
    assert _assert_same(many)
    assert read_simple(f"{many} AND a = 1") is None
    assert read_simple("a = '" + "x" * CHARACTERS_MAX + "'") is None
    with pytest.raises(FilterError, match="too large"):
        compile_filter(" AND ".join(["a = 1"] * 3000))
    longest = f"a IN ({', '.join(map(str, range(900)))})"
    assert len(longest) > CHARACTERS_MAX or _assert_same(longest)


def test_long_names_are_not_cached() -> None:
    """Clients choose the names: the cache once kept gigabytes for removed filters."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(100):
            assert read_simple(f"{'é' * 4_000}{number} = 1") is not None
        assert tracemalloc.get_traced_memory()[0] - before < 100_000
    finally:
        tracemalloc.stop()
