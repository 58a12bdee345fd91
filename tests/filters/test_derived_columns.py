"""Derived columns of the index are exact, computed once, bounded, and kept only if many share them."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters import (
    Filter,
    FilterError,
    NormalForm,
    compile_filter,
    format_expression,
)
from fieldfare.filters.derived import path_of
from fieldfare.filters.functions import FUNCTIONS, Function, Type
from fieldfare.filters.normal_form import normal_form
from fieldfare.filters.sql.parser import parse_value
from fieldfare.filters.sql.printer import format_literal
from fieldfare.matching.evaluation import derived_columns, elements
from fieldfare.matching.evaluation.derived_columns import DerivedColumn
from fieldfare.matching.events.event_columns import columns_of_events
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.index import Index, LiveIndex
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.plain.building import derived
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END, Change, derived_path, derived_text
from fieldfare.partitioning import constrained_paths

from . import strategies as some
from . import test_functions

Event = dict[str, Any]

KEPT = {"all": 0, "none": 1 << 60, "as it pays": derived.ROWS_MIN}
"""ROWS_MIN."""


def _part(filters: Sequence[Filter], forms: Sequence[NormalForm | bytes] = (), kept: str = "all") -> Part:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(derived, "ROWS_MIN", KEPT[kept])
        return build_part(
            IndexEntry(n, n, 0, OPEN_END, forms[n] if forms else each.compiled, each.text, each.dialect)
            for n, each in enumerate(filters)
        )


def _found(index: Part | Index, events: list[Event]) -> list[list[int]]:
    index = Index((index,)) if isinstance(index, Part) else index
    columns = columns_of_events(events, index.paths)
    return index.match(columns, np.zeros(len(events), np.int64)).lists()


def _expected(filters: Sequence[Filter], events: list[Event]) -> list[list[int]]:
    return [[n for n, each in enumerate(filters) if each.matches(event)] for event in events]


def _columns(part: Part) -> list[str]:
    texts = map(derived_text, part.filters.indexed_paths)
    return sorted(text for text in texts if text is not None)


@settings(max_examples=drawn(100))
@given(st.lists(some.sql_expressions, min_size=1, max_size=6), st.lists(some.events, min_size=1, max_size=6))
def test_the_index_finds_the_same_matches_with_and_without_columns(
    expressions: list[Any], events: list[Event]
) -> None:
    filters = [compile_filter(format_expression(each)) for each in expressions for _ in range(2)]
    expected = _expected(filters, events)
    for kept in KEPT:
        part = _part(filters, kept=kept)
        assert all(derived_text(path) is None for path in part.paths)
        assert _found(part, events) == expected
        assert kept != "none" or not _columns(part)


def _calls(data: st.DataObject, function: Function) -> tuple[list[str], list[Event]]:
    """Draw tests of a function call over attributes (literals where required), and events for them."""
    count = data.draw(
        st.integers(function.operands_min, max(function.operands_min, min(function.most_operands, 3)))
    )
    operands, values = [], []
    for place in range(count):
        parameter = function.parameter(place)
        kind = Type.STRING if parameter.type is Type.TIMESTAMP else parameter.type
        if parameter.literal:
            fallback = "+02:00" if kind is Type.STRING else place
            value = data.draw(test_functions.VALUES[kind])
            fits = parameter.check and isinstance(value, type(fallback)) and not parameter.check(value)
            operands.append(format_literal(value if fits else fallback))
        else:
            operands.append("abcdef"[place])
            values.append(test_functions.VALUES.get(kind, st.booleans()) | some.plain_values)
    call = f"{function.name}({', '.join(operands)})"
    rows = data.draw(st.lists(st.tuples(*values), min_size=1, max_size=5))
    events = [dict(zip("abcdef", row, strict=False)) for row in rows]
    if function.result is Type.BOOLEAN:
        return [call, f"NOT {call}", f"({call}) IS UNKNOWN"], events
    constants = map(format_literal, data.draw(st.permutations(test_functions.CONSTANTS))[:3])
    tests = [f"{call} = {constant} OR {call} < {constant}" for constant in constants]
    return [*tests, f"{call} IS NULL", f"NOT {call} IN (1, 'a')"], events


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
@settings(max_examples=drawn(8))
@given(data=st.data())
def test_every_function_is_right_as_a_column(function: Function, data: st.DataObject) -> None:
    if function.compute is None and function.expand is None:
        pytest.skip("cannot be computed")
    texts, events = _calls(data, function)
    filters = [compile_filter(text) for text in texts if _is_written(text)]
    assert _found(_part(filters), events) == _expected(filters, events)


def _is_written(text: str) -> bool:
    try:
        compile_filter(text)
    except FilterError:
        return False
    return True


NUMBERS: list[Any] = [
    0,
    1,
    -1,
    3,
    7,
    10,
    2**53 + 1,
    2**62,
    -(2**63),
    10**25,
    0.1,
    0.3,
    1.5,
    -0.1,
    1e22,
    1e-30,
]
NUMBERS += [1e300, 0.1 + 0.2, 1 / 3, 5e-324, None, "x", True]
CONSTANTS = ["0", "1", "3", "-1", "0.1", "0.3", "2.5", "0.30000000000000004", "0.3333333333333333", "1e22"]
CONSTANTS += [
    "9007199254740993",
    "3333333333333333333",
    "0.33333333333333333333",
    "1e-30",
    "10000000000000000000000001",
]


@settings(max_examples=drawn(60))
@given(
    st.lists(st.sampled_from(CONSTANTS), min_size=1, max_size=12),
    st.lists(st.tuples(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS)), min_size=1, max_size=12),
)
def test_computed_numbers_are_compared_exactly(constants: list[str], pairs: list[tuple[Any, Any]]) -> None:
    """Fractions, sums of floats, and numbers of more than 64 bits, equal or very close to constants."""
    computed = ["a / 3", "a / b", "a + b", "a * b", "a - b", "a % b", "COALESCE(a, b)", "ABS(a)"]
    rng = random.Random(len(constants))
    filters = [
        compile_filter(f"{rng.choice(computed)} {operator} {constant}")
        for constant in constants
        for operator in ("=", "<", ">=")
    ]
    events: list[Event] = [{"a": a, "b": b} for a, b in pairs]
    assert _found(_part(filters), events) == _expected(filters, events)


TEXTS = [
    *("HOUR(time) BETWEEN {n} AND {m}", "time > TIMESTAMP '2026-01-0{d}T03:00:00.5Z'", "a < b AND a > {n}"),
    *("time - previous > INTERVAL '{n}' HOUR", "UPPER(s) || '-' || s = 'A-a'", "COALESCE(a, 0) < {n}"),
    *("FLOOR(a / 10) = {d} AND s = 'a'", "NOT (a + b = {n}) AND b < 3", "(a + b = {n}) IS UNKNOWN"),
    *(
        "NUMBER(s) = {n}",
        "a IN (b, {n})",
        "ANY x IN tags SATISFIES (x + 1 = {n})",
        "LENGTH(s) = 1 OR a = {n}",
    ),
    *("a >= b", "a = b OR s LIKE '%b%'", "ROUND(a / b, 1) BETWEEN 0.5 AND {n}", "a % 7 = {d}"),
]


def _text(rng: random.Random) -> str:
    n = rng.randrange(12)
    return rng.choice(TEXTS).format(n=n, m=n + 5, d=1 + rng.randrange(6))


def _event(rng: random.Random) -> Event:
    time = f"2026-01-0{1 + rng.randrange(7)}T{rng.randrange(24):02}:30:00.{rng.randrange(1000):03}Z"
    choices: dict[str, list[Any]] = {
        "a": [rng.randrange(12), rng.randrange(100) / 10, 10**20, None, "x", rng.random()],
        "b": [rng.randrange(12), rng.randrange(10), 0, True],
        "s": ["a", "b", "ç", "7", " 3.0 ", 5],
        "time": [time, time, "yesterday", 7],
        "previous": [time, "2026-01-03T00:00:00+02:00"],
        "tags": [[], [1, 5], 3, [None, "x"]],
    }
    return {name: rng.choice(values) for name, values in choices.items() if rng.random() < 0.8}


def test_a_file_has_its_columns(tmp_path: FilePath) -> None:
    rng = random.Random(1)
    filters = [compile_filter(_text(rng)) for _ in range(120)]
    events = [_event(rng) for _ in range(60)]
    part = _part(filters)
    part.save(tmp_path / "part")
    opened = Part.open(tmp_path / "part", verify=True)
    assert _columns(opened) == _columns(part) and "HOUR(TIMESTAMP(time))" in _columns(part)
    assert opened.paths == part.paths
    assert _found(opened, events) == _expected(filters, events)


def test_events_of_json_have_what_columns_read() -> None:
    rng = random.Random(2)
    filters = [compile_filter(_text(rng)) for _ in range(60)]
    events = [_event(rng) for _ in range(300)]
    index = Index((_part(filters),))
    lines = "".join(json.dumps(event) + "\n" for event in events).encode()
    columns = decode_json_lines(lines, len(events), index.paths)
    assert index.match(columns, np.zeros(len(events), np.int64)).lists() == _expected(filters, events)


def test_filters_compiled_before_columns_existed_are_evaluated() -> None:
    rng = random.Random(3)
    filters = [compile_filter(_text(rng)) for _ in range(60)]
    events = [_event(rng) for _ in range(60)]
    old = [NormalForm(tuple(c.without_derived() for c in each.normal_form.conjunctions)) for each in filters]
    mixed = [form if n % 2 else filters[n].compiled for n, form in enumerate(old)]
    for forms in old, mixed:
        assert _found(_part(filters, forms), events) == _expected(filters, events)


def test_changes_and_folding_keep_columns_correct() -> None:
    rng = random.Random(4)
    live, current, revision = LiveIndex(), dict[int, Filter](), 0
    events = [_event(rng) for _ in range(20)]
    for _ in range(25):
        changes = []
        for _ in range(rng.choice([1, 1, 3, 40])):
            revision, number = revision + 1, rng.randrange(50)
            put = compile_filter(_text(rng)) if rng.random() < 0.8 else None
            changes.append(Change(revision, "default", number, put.text if put else None, "sql"))
            current.pop(number, None)
            if put:
                current[number] = put
        live.apply(changes)
        index = live.index
        columns = columns_of_events(events, index.paths)
        found = index.match(columns, np.full(len(events), revision)).lists()
        assert found == [sorted(n for n, each in current.items() if each.matches(event)) for event in events]


def test_columns_that_few_filters_share_are_not_kept() -> None:
    """Subscribers with a different place each do not create a column each."""
    filters = [compile_filter(f"DISTANCE_KM(lat, lon, {n / 7:.3f}, 13.2) < 5") for n in range(300)]
    part = _part(filters, kept="as it pays")
    assert _columns(part) == [] and part.explain().filters.undecided_rows == 300
    assert set(part.paths) == {("lat",), ("lon",)}


@pytest.mark.parametrize(("count", "columns"), [(200, 0), (300, 1)])
def test_a_column_needs_more_filters_if_few_events_are_candidates(count: int, columns: int) -> None:
    """Hundreds of filters use the distance from one place, each in a box around it: an event is in few."""
    filters = [compile_filter(f"DISTANCE_KM(lat, lon, 52.5, 13.2) < {n + 1}") for n in range(count)]
    part = _part(filters, kept="as it pays")
    assert len(_columns(part)) == columns
    events: list[Event] = [{"lat": 52.5 + n / 10, "lon": 13.2} for n in range(10)]
    assert _found(part, events) == _expected(filters, events)


def test_the_number_of_columns_of_an_index_is_limited() -> None:
    filters = [
        compile_filter(f"a + {n} > b") for n in range(derived.COLUMNS_MAX + 20) for _ in range(1 + n % 2)
    ]
    part = _part(filters)
    assert len(_columns(part)) == derived.COLUMNS_MAX
    events: list[Event] = [{"a": n, "b": 100} for n in range(0, 120, 7)]
    assert _found(part, events) == _expected(filters, events)


def test_a_kept_column_is_sufficient() -> None:
    """The sets of attributes that follow from it are not compared, and no filter is evaluated."""
    part = _part([compile_filter(f"HOUR(time) = {n % 24}") for n in range(500)])
    explained = part.explain()
    assert part.filters.indexed_paths == ((-1, "HOUR(TIMESTAMP(time))"),)
    assert part.paths == (("time",),)
    assert not part.confirms and explained.filters.undecided_rows == 0
    (use,) = explained.filters.derived
    assert use.rows == 500 and use.cost_ns > 0
    assert "  1 derived column:\n    HOUR(TIMESTAMP(time)): 500 rows, " in str(explained)
    assert explained.document()["derived"][0]["expression"] == "HOUR(TIMESTAMP(time))"


def test_parts_share_computed_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []
    compute = DerivedColumn._compute
    monkeypatch.setattr(
        DerivedColumn, "_compute", lambda self, *asked: computed.append(self.path) or compute(self, *asked)
    )
    filters = [compile_filter(f"a + b > {n}") for n in range(10)]
    first = _part(filters)
    second = build_part(
        IndexEntry(100 + n, 100 + n, 0, OPEN_END, f.compiled, f.text, "sql") for n, f in enumerate(filters)
    )
    events: list[Event] = [{"a": n, "b": 1} for n in range(12)] + [{"a": 1}] * 40
    found = _found(Index((first, second)), events)
    assert found == [row + [100 + n for n in row] for row in _expected(filters, events)]
    assert computed == [(-1, "a + b")]


def test_filters_with_limited_steps_have_no_columns_over_arrays() -> None:
    """The set of filters that share the steps of an event must not depend on an index's columns."""
    each = compile_filter("ANY x IN tags SATISFIES (x = 3) AND a + b > 2")
    assert each.work is not None
    assert not any(
        conjunction.derives for conjunction in each.normal_form.conjunctions if not conjunction.exact
    )


ARRAY_TESTS = [
    "'x' = ANY(a)", "NOT ('x' = ANY(a))", "('x' = ANY(a)) IS UNKNOWN", "ALL t IN a SATISFIES (t > 'c')",
    "ANY t IN a SATISFIES (t.k = 1 AND t.m > 2)", "a[-1] = 'x'", "CARDINALITY(a) >= 3",
    "CARDINALITY(a) = 40 OR a[-2] = 'q'", "'x' = ANY(a) AND CARDINALITY(b) > 1",
    "ANY t IN a SATISFIES (t LIKE '%e%f%')", "ANY t IN a SATISFIES (t IS NULL)", "'x' = ANY(a) OR 1 = ANY(b)",
    "ANY t IN a SATISFIES (LENGTH(t) > 1) AND c > 1",
]  # fmt: skip
_element = st.sampled_from(["x", "q", "eef", "ff", 1, 2.5, None, [], {"k": 1, "m": 3}, {"k": 1}, 10**30])
_array = st.lists(_element, max_size=6) | st.sampled_from([["q"] * 31 + ["x"], ["x"] + ["q"] * 39, [1] * 33])
ARRAY_EVENTS = st.fixed_dictionaries(
    {}, optional={"a": _array | _element, "b": _array, "c": st.integers(0, 3)}
)


@pytest.mark.parametrize("decode", ["events", "json", "one by one"])
@settings(max_examples=60)
@given(events=st.lists(ARRAY_EVENTS, min_size=1, max_size=9))
def test_quantifiers_are_right_as_columns(decode: str, events: list[Event]) -> None:
    filters = [compile_filter(text) for text in ARRAY_TESTS]
    expected = _expected(filters, events)
    stamps = np.zeros(len(events), np.int64)
    for kept in KEPT:
        index = Index((_part(filters, kept=kept),))
        if decode == "one by one":
            assert [_found(index, [event])[0] for event in events] == expected
            continue
        lines = b"".join(json.dumps(event).encode() + b"\n" for event in events)
        columns = (
            decode_json_lines(lines, len(events), index.paths)
            if decode == "json"
            else columns_of_events(events, index.paths)
        )
        assert index.match(columns, stamps).lists() == expected
    assert len(_columns(_part(filters))) > 8


def test_no_column_reads_an_array_of_many_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred columns of one array of a million elements would take a minute for filters that read none."""
    filters = [compile_filter(text) for text in ("'x' = ANY(a)", "a[-1] = 'x'", "CARDINALITY(a) = 2")]
    part = _part(filters)
    assert len(_columns(part)) == 3
    seen: list[int] = []
    read = elements._from_text

    def reads(batch: Any, rows: Any, *others: Any) -> Any:
        found = read(batch, rows, *others)
        seen.extend(found.counts.tolist())
        return found

    monkeypatch.setattr(elements, "_from_text", reads)
    events: list[Event] = [{"a": ["x"] * count} for count in (1, 40, 2, 32, 33, 50)]
    lines = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    columns = decode_json_lines(lines, len(events), part.paths)
    part.filters.find(columns, 0, len(events), 1 << 20)
    assert seen == [1, 2, 32] * 3


def test_an_array_may_be_small_for_one_filter_only() -> None:
    """The conjunction for small arrays has a column, the one for larger arrays has only attributes."""
    small, many = compile_filter("'x' = ANY(a)").normal_form.conjunctions[1:]
    assert small.exact and small.derives and not many.exact and not many.derives
    assert ("a", 32) in dict(small.constraints) and ("a", 32) in dict(many.constraints)


MOVED = [
    "ABS(a - 30) <= 2", "ABS(a) IN (5, 2.5)", "a + 0.5 > 3", "3 - a < 1", "NOT (ABS(a + 1) > 4)",
    "ABS(a) <> 5", "a - 1e300 < 0", "(a - 3 > 1) IS UNKNOWN", "a + 2 BETWEEN 4 AND 35", "ABS(a) >= 0",
    "ABS(a) < -1",
]  # fmt: skip


@pytest.mark.parametrize(
    "number", [28, 32, 33, -5, 2.5, 10**400, -(10**616), 1e308, Decimal("1e-610"), None, "30", True]
)
def test_sums_of_an_attribute_and_constants_share_a_column(number: Any) -> None:
    filters = [compile_filter(text) for text in MOVED for _ in range(2)]
    part = _part(filters)
    assert _columns(part) == ["a + 0"]
    events: list[Event] = [{"a": number}, {"a": [number]}, {}]
    assert _found(part, events) == _expected(filters, events)
    assert _found(_part(filters, kept="none"), events) == _expected(filters, events)


def test_partitioning_sees_attributes_only() -> None:
    forms = [compile_filter(f"a + b > {n} AND c = 1").normal_form for n in range(3)]
    assert constrained_paths(forms) == {("a",): 3, ("b",): 3, ("c",): 3}


def test_fractions_are_compared_exactly_with_sets() -> None:
    (conjunction,) = normal_form(compile_filter("a > 0.3").expression).conjunctions
    values = dict(conjunction.constraints)[("a",)]
    assert Fraction(1, 3) in values and Fraction(3, 10) not in values and Fraction(3, 11) not in values


def test_a_batch_made_of_another_computes_its_own_columns() -> None:
    filters = [compile_filter(f"a + b > {n}") for n in range(5)]
    part = _part(filters)
    first, second = ([{"a": n, "b": b} for n in range(20)] for b in (0, 3))
    columns = columns_of_events(first, part.paths)
    stamps = np.zeros(20, np.int64)
    assert Index((part,)).match(columns, stamps).lists() == _expected(filters, first)
    other = replace(columns, columns=columns_of_events(second, part.paths).columns)
    assert Index((part,)).match(other, stamps).lists() == _expected(filters, second)
    taken = columns.take(np.arange(19, -1, -1))
    assert Index((part,)).match(taken, stamps).lists() == _expected(filters, first)[::-1]


@pytest.mark.parametrize("value", ["a", "a - b", "LOWER(a)"])
def test_functions_that_are_never_unknown_hold_without_an_operand(value: str) -> None:
    filters = [compile_filter(f"IS_SCALAR({value}) = {truth}") for truth in ("TRUE", "FALSE")]
    events: list[Event] = [{}, {"a": None}, {"a": 1, "b": 2}, {"a": "x"}, {"a": [1]}, {"b": 1}]
    for kept in KEPT:
        assert _found(_part(filters, kept=kept), events) == _expected(filters, events)


def test_expressions_too_long_for_a_column_are_not_cached() -> None:
    texts = [f"CONCAT(a, '{n}{'x' * 60_000}')" for n in range(40)]
    tracemalloc.start()
    try:
        assert [path_of(parse_value(text)) for text in texts] == [None] * 40
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 500_000
    assert path_of(parse_value("LOWER(a)")) == derived_path("LOWER(a)")


@pytest.mark.parametrize("call", ["CONCAT({})", "LENGTH(CONCAT({}))"])
def test_short_texts_that_become_long_ones_take_bounded_memory(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(derived_columns, "WINDOW_BYTES", 1 << 20)
    calls = [call.format(", ".join([*"a" * 30, f"'{n}'"])) for n in range(60)]
    filters = [compile_filter(f"{each} > {'x' if each[0] == 'L' else repr('y')}") for each in calls]
    events = [{"a": "xyz"[n % 3] * 100, "x": 3_000} for n in range(100)]
    part = _part(filters)
    assert len(_columns(part)) == 60
    columns, index = columns_of_events(events, part.paths), Index((part,))
    stamps = np.zeros(len(events), np.int64)
    assert index.match(columns, stamps).lists() == _expected(filters, events)
    columns = columns_of_events(events, part.paths)
    tracemalloc.start()
    try:
        index.match(columns, stamps)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 << 20
