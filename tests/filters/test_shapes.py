"""Filters that differ in constants only are evaluated together, with the same results as one by one."""

from __future__ import annotations

import json
from contextlib import suppress
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters import expression as ast
from fieldfare.filters.filter import Filter, Parsed
from fieldfare.matching.evaluation import elements
from fieldfare.matching.evaluation.operands import constants, filled, joined
from fieldfare.matching.evaluation.shapes import shape_of
from fieldfare.matching.events.arrow_decoder import columns_from_arrow
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.events.event_columns import columns_of_events
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.plain.search import confirm
from fieldfare.matching.plain.search.confirm import Confirmer
from fieldfare.matching.plain.search.templates import Known, cut, known_of

from . import strategies as some


def other_constants(e: ast.Expression, turn: int) -> ast.Expression:
    """Return the expression with other constants, sometimes of other types."""
    scalars = [*some.NUMBERS, *some.STRINGS, 5, Decimal("2.5")]

    def change(part: ast.Expression) -> ast.Expression:
        if isinstance(part, ast.Literal) and not isinstance(part.value, bool | None):
            place = scalars.index(part.value) if part.value in scalars else 0
            return ast.Literal(scalars[(place + turn) % len(scalars)])
        if isinstance(part, ast.Call):  # the types of its constants were checked
            return part
        if isinstance(part, ast.Like):
            texts = ["a", "b", "ab", "c" * (80 if turn == 3 else 1)]
            pattern = tuple(texts[turn % 4] if isinstance(p, str) else p for p in part.pattern)
            return ast.Like(change(part.operand), pattern)
        return ast.with_parts(part, change)

    return change(e)


def assert_same(filters: list[Filter], events: list[dict[str, Any]]) -> None:
    columns = columns_of_events(events, {path for condition in filters for path in condition.paths})
    confirmer = Confirmer(len(filters), lambda place: (str(place), ""), lambda text, _: filters[int(text)])
    pairs = [(event, place) for event in range(len(events)) for place in range(len(filters))]
    expected = [filters[place].matches(events[event]) for event, place in pairs]
    chosen, places = np.array(pairs, np.int64).T
    for start in 0, len(pairs) // 2, 0:
        found = confirmer.confirm(columns, chosen[start:].copy(), places[start:].copy())
        assert found.tolist() == expected[start:]


@settings(max_examples=drawn(250))
@given(
    st.lists(some.expressions, min_size=1, max_size=3),
    st.lists(some.events, min_size=1, max_size=5),
)
def test_pairs_are_confirmed_together_as_one_by_one(
    expressions: list[ast.Expression], events: list[dict[str, Any]]
) -> None:
    filters = [
        Filter(f"{place} {turn}", "sql", Parsed(other_constants(e, turn)))
        for place, e in enumerate(expressions)
        for turn in range(4)
    ]
    with pytest.MonkeyPatch.context() as patch:
        for pairs_min, pairs_max in (1, 1 << 20), (confirm.PAIRS_MIN, 7):
            patch.setattr(confirm, "PAIRS_MIN", pairs_min)
            patch.setattr(confirm, "PAIRS_MAX", pairs_max)
            assert_same(filters, events)


@pytest.mark.parametrize(
    ("text", "other", "same"),
    [
        ("data.a = 'x' AND data.high - data.low > 2", "data.a = '' AND data.high - data.low > -0.5", True),
        ("name LIKE '%abc%'", "name LIKE '%d%'", True),
        ("name LIKE 'abc%'", "STARTS_WITH(name, 'b')", True),
        ("name LIKE 'abc'", "name = 'b'", True),
        ("a = 5", "a = 'five'", True),
        ("a IN (1, 2)", "a IN (3, 4)", True),
        ("a IN (1, 2)", "a IN (1, 2, 3)", False),
        ("a = TRUE", "a = FALSE", False),
        ("a > 1", "b > 1", False),
        ("a > 1", "a >= 1", False),
        ("name LIKE '%abc%'", "name LIKE 'abc%'", False),
        ("name LIKE '%a_c%'", "name LIKE '%b_c%'", True),
        ("name LIKE '%a_c%'", "name LIKE '%é__d_%'", True),
        ("name LIKE '%a_c%'", "name LIKE '%abc%'", False),
        ("name LIKE '_%a'", "name LIKE '_%b'", True),
        ("name LIKE '_%a'", "name LIKE '__%a'", False),
    ],
)
def test_filters_have_one_shape_if_they_differ_in_constants_only(text: str, other: str, same: bool) -> None:
    shapes = [shape_of(compile_filter(condition).expression)[0] for condition in (text, other)]
    assert (shapes[0] == shapes[1]) is same


def test_patterns_that_differ_in_texts_only_are_searched_together() -> None:
    """A thousand such filters, each with another pattern, were once evaluated one by one in Python."""
    random = Random(7)

    def text(most: int) -> str:
        return "".join(random.choice("aabé€𝄞") for _ in range(random.randint(1, most)))

    filters = [compile_filter(f"a LIKE '%{text(2)}_{text(2)}%{text(1)}_'") for _ in range(100)]
    assert len({shape_of(each.expression)[0] for each in filters}) == 1
    events: list[dict[str, Any]] = [{"a": text(12)} for _ in range(40)] + [{"a": 5}, {}]
    assert_same(filters, events)
    matches = [each.matches(event) for each in filters for event in events]
    assert 0 < sum(matches) < len(matches)


TEMPLATES = [
    "DISTANCE_KM(lat, lon, {}, -{}) < {}", "a * {} + b > {}", "a % {} = {} AND b <> 'it''s 5'",
    "a IN ({}, {}) OR \"b 7\" - {} < c[3]", "WITHIN_BOX(lat, lon, {}, {}, {}, {}) AND a + b > {}",
    "ROUND({}) < a - b", "ROUND(a, 2) * b > {}", "COALESCE(a, {}) < b", "a2 - b > -{} AND {} < c.d9",
    "a * b BETWEEN {} AND {}", "a * b > {} -- 5", "DATE_ADD(TIMESTAMP(a), {}) < TIMESTAMP(b)",
    "a - b > INTERVAL {} MINUTE AND c > {}", "GREATEST(a, b, {}) > {}", "SUBSTRING(s, {}, {}) = 'ab1'",
    "CASE WHEN a > {} THEN b ELSE {} END < c", "a * b > {} * {}", "a - b < ABS(-{})", "a - -{} < b",
    "NULLIF(a, {}) > b + {}", "a <=> b + {}", "{} = ANY(tags) AND a - b > {}",
    "CAST(a AS DECIMAL({}, {})) > b",
    "LEFT(s, {}) LIKE '%5_' AND a * b > {}e2", "x - y > 1{}", "ARRAY_CONTAINS(tags, {}) AND b < a * {}",
]  # fmt: skip


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_filter_parsed_by_a_template_has_the_parsers_constants(template: str) -> None:
    random = Random(template)
    texts = []
    for _ in range(60):
        numbers = [
            random.choice([random.randrange(12), random.randrange(10**6) / 100, "2.50"]) for _ in range(8)
        ]
        text = template.format(*numbers)
        with suppress(FilterError):
            texts.append((text, compile_filter(text)))
    learned: dict[str, Known] = {}
    for text, condition in texts:
        found = cut(text)
        if found is None:
            continue
        known = learned.get(found[0]) or known_of(condition.expression, condition.work, found[1])
        if known is not None:
            learned[found[0]] = known
            form, constants = shape_of(condition.expression)
            assert (known.form, known.constants_with(found[1])) == (form, constants), text
            assert known.work == condition.work
    assert bool(learned) is (template not in UNKNOWN)


UNKNOWN = [
    each
    for each in TEMPLATES
    if any(odd in each for odd in ("BOX", "ROUND({})", "--", "DATE_ADD", "ABS(", "MINUTE", "e2", "<=>"))
]
"""Functions whose numbers are folded, count differently, or affect the syntax of a call."""


def test_filters_of_one_template_are_parsed_once() -> None:
    texts = [f"DISTANCE_KM(lat, lon, {n}.5, -{n + 1}.25) < {100 + n}" for n in range(50)]
    compiled = []

    def compile_one(text: str, dialect: str) -> Filter:
        compiled.append(text)
        return compile_filter(text, dialect)

    confirmer = Confirmer(len(texts), lambda place: (texts[place], "sql"), compile_one)
    events = [{"lat": n + 0.5, "lon": -n - 1} for n in range(50)]
    columns = columns_of_events(events, [("lat",), ("lon",)])
    pairs = np.arange(50 * 50)
    assert not confirmer.works(np.arange(50)).any()
    found = confirmer.confirm(columns, pairs // 50, pairs % 50)
    expected = [compile_filter(texts[n % 50]).matches(events[n // 50]) for n in pairs.tolist()]
    assert found.tolist() == expected and 0 < sum(expected) < len(expected)
    assert compiled == texts[:1]


@pytest.mark.parametrize("at_once", [1, 5, 1 << 20])
@pytest.mark.parametrize("given", ["json", "arrow"])
def test_an_array_of_many_filters_is_read_once(
    at_once: int, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small arrays take no steps, but their elements can have a megabyte."""
    read = []
    read_of = elements._read
    monkeypatch.setattr(elements, "_read", lambda *asked: read.extend(asked[2]) or read_of(*asked))
    monkeypatch.setattr(elements, "_GROUP_ELEMENTS", at_once)
    filters = [compile_filter(f"ANY i IN a SATISFIES (i = {n} OR i = b)") for n in range(60)]
    filters += [compile_filter(f"ANY i IN c SATISFIES (i.x = {n} AND i.y < {n})") for n in range(60)]
    events: list[dict[str, Any]] = [
        {"a": [n, n + 3, 70 - n], "b": n % 50, "c": [{"x": n, "y": 5}, {"x": 9, "y": n}]} for n in range(9)
    ]
    events[3]["a"], events[4]["c"] = [], None
    paths = sorted({path for condition in filters for path in condition.column_paths}, key=repr)
    if given == "json":
        columns = decode_json_lines("".join(json.dumps(each) + "\n" for each in events).encode(), 9, paths)
    else:
        columns = columns_from_arrow(pa.RecordBatch.from_pylist(events), paths)
    confirmer = Confirmer(len(filters), lambda place: (str(place), ""), lambda text, _: filters[int(text)])
    pairs = np.random.default_rng(1).permutation(len(filters) * 9)
    found = confirmer.confirm(columns, pairs % 9, pairs // 9)
    assert found.tolist() == [filters[n // 9].matches(events[n % 9]) for n in pairs.tolist()]
    assert 0 < sum(found) < len(found) and len(read) <= 18


def test_values_are_read_once_for_filters_evaluated_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = []
    other = ColumnBatch._other
    monkeypatch.setattr(ColumnBatch, "_other", lambda *asked: read.append(asked[2]) or other(*asked))
    parts = [" OR ".join(f"a[{i}] = {i}" for i in range(n)) for n in range(1, 9)]
    filters = [compile_filter(f"ANY i IN a SATISFIES (i = 7) AND ({each})") for each in parts]
    events = [{"a": [n, 7]} for n in range(4)]
    paths = {path for condition in filters for path in condition.column_paths}
    columns = decode_json_lines("".join(json.dumps(each) + "\n" for each in events).encode(), 4, list(paths))
    confirmer = Confirmer(len(filters), lambda place: (str(place), ""), lambda text, _: filters[int(text)])
    pairs = np.arange(32)
    found = confirmer.confirm(columns, pairs % 4, pairs // 4)
    assert found.tolist() == [filters[n // 4].matches(events[n % 4]) for n in range(32)]
    assert sorted(read) == [0, 1, 2, 3]


def test_arrays_have_the_types_that_kernels_are_compiled_for() -> None:
    """Text arrays of later filters were writable: kernels were compiled again, for seconds."""
    later = joined(constants(["a", 1], 1), constants(["b"], 1))
    for values in (later, filled(*np.zeros((4, 3), np.uint8))):
        arrays = values.kinds, values.words, values.seconds, values.text
        assert not any(array.flags.writeable for array in arrays)
