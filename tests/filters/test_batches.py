"""Evaluated by columns, a filter matches exactly the events that it matches one by one."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from naive_decoder import arrow_events, decode_json_lines_naive
from tests.doses import drawn

from fieldfare.filters import compile_filter
from fieldfare.filters import expression as ast
from fieldfare.filters.filter import Filter, Parsed
from fieldfare.filters.functions import FUNCTIONS, Function, Parameter, Type
from fieldfare.matching.evaluation import compiler, conditions
from fieldfare.matching.evaluation.batches import BatchFilter
from fieldfare.matching.events.event_columns import columns_of_events
from fieldfare.matching.events.json_decoder import decode_json_lines

from . import strategies as some
from .cesql import strategies as cesql
from .eventbridge.generators import Generator

Event = dict[str, Any]

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
many = settings(max_examples=drawn(150 if COMPILED else 8))


def filter_of(expression: ast.Expression) -> Filter:
    return Filter("", "sql", Parsed(expression))


def assert_same(condition: Filter, batch: Any, events: Sequence[Event]) -> None:
    """Compare for all rows and some, in one batch and in several, with and without skipping decided rows."""
    expected = [condition.matches(event) for event in events]
    rows = np.array([place for place in range(len(events)) if place % 3 != 1], np.int64)
    prepared = BatchFilter(condition)
    for take_ns, chunk in (conditions.TAKE_NS, compiler.CHUNK_ROWS), (-1e12, 2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(conditions, "TAKE_NS", take_ns)
            patch.setattr(compiler, "CHUNK_ROWS", chunk)
            assert prepared.matches(batch).tolist() == expected
            assert prepared.matches(batch, rows).tolist() == [expected[row] for row in rows.tolist()]


def as_json(value: Any) -> Any:
    """Return a value as JSON can represent it: a Decimal as a float, no NaN."""
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return float(value) if isinstance(value, Decimal) else value


def json_line(event: Event) -> bytes:
    return json.dumps(event).replace("-Infinity", "-1e999").replace("Infinity", "1e999").encode() + b"\n"


lists_of_events = st.lists(some.events, min_size=1, max_size=8)


@many
@given(some.expressions, lists_of_events)
def test_batches_of_dicts_match_as_one_by_one(e: ast.Expression, events: list[Event]) -> None:
    assert_same(filter_of(e), events, events)


@many
@given(some.expressions, lists_of_events)
def test_batches_of_json_lines_match_as_one_by_one(e: ast.Expression, events: list[Event]) -> None:
    condition = filter_of(e)
    lines = [json_line(as_json(event)) for event in events]
    payload, read = b"".join(lines), [json.loads(line) for line in lines]
    for decode in decode_json_lines, decode_json_lines_naive:
        for paths in condition.paths, condition.column_paths:
            assert_same(condition, decode(payload, len(lines), list(paths)), read)


def column_of(kind: pa.DataType, values: st.SearchStrategy[Any]) -> st.SearchStrategy[pa.Array]:
    return st.lists(st.none() | values, min_size=5, max_size=5).map(lambda items: pa.array(items, kind))


whole = st.integers(-3, 3) | st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, -(2**63)])
floats = st.sampled_from([*some.FLOATS, *some.ODD_FLOATS])
texts = st.sampled_from(some.STRINGS)
members = pa.struct({"x": pa.int64(), "y": pa.string(), "l": pa.list_(pa.float64())})
structs = st.fixed_dictionaries(
    {"x": st.none() | whole, "y": st.none() | texts, "l": st.none() | st.lists(floats, max_size=2)}
)
arrow_columns = st.one_of(
    column_of(pa.int64(), whole),
    column_of(pa.float64(), floats),
    column_of(pa.float32(), st.floats(width=32)),
    column_of(pa.string(), texts),
    column_of(pa.bool_(), st.booleans()),
    column_of(pa.decimal128(12, 1), st.sampled_from([Decimal("0.1"), Decimal("-0.5"), Decimal(3)])),
    column_of(pa.list_(pa.int64()), st.lists(st.none() | whole, max_size=2)),
    column_of(pa.list_(members), st.lists(st.none() | structs, max_size=2)),
    column_of(members, structs),
)


@many
@given(
    some.expressions, st.dictionaries(st.sampled_from(["a", "b", "data", "not"]), arrow_columns, min_size=1)
)
def test_arrow_batches_match_as_one_by_one(e: ast.Expression, columns: dict[str, pa.Array]) -> None:
    batch = pa.RecordBatch.from_pydict(columns)
    assert_same(filter_of(e), batch, arrow_events(batch))
    assert_same(filter_of(e), batch.slice(1, 3), arrow_events(batch.slice(1, 3)))


a, b, c = (ast.Attribute((name,)) for name in "abc")
short_decimals = st.integers(-2000, 2000).map(lambda n: n / 100)
ordinary = st.one_of(
    short_decimals,
    st.integers(-(10**6), 10**6),
    st.floats(-1000, 1000),
    st.floats(allow_nan=False),
    st.sampled_from(
        [0, 0.0, -0.0, 1, 0.1, 0.2, 0.3, 1e-30, 1e30, 2.0**53, 2**62, -(2**63), 2**63 - 1, 2**64]
    ),
    st.sampled_from([None, "x", True, float("inf"), float("-inf"), Decimal("0.1"), Decimal("1e-400")]),
)
operands = st.recursive(
    st.sampled_from([a, b, c, ast.Literal(3), ast.Literal(Decimal("0.1")), ast.Literal(0)]),
    lambda inner: st.one_of(
        st.builds(ast.Arithmetic, st.sampled_from(["+", "-", "*", "/", "%"]), inner, inner),
        st.builds(ast.Negate, inner),
    ),
    max_leaves=6,
)


@many
@given(
    st.builds(ast.Comparison, some.operators, operands, operands),
    st.lists(st.fixed_dictionaries({"a": ordinary, "b": ordinary, "c": ordinary}), min_size=1, max_size=12),
)
@example(ast.Comparison("=", ast.Arithmetic("+", a, b), c), [{"a": 0.1, "b": 0.2, "c": 0.3}])
@example(
    ast.Comparison("=", ast.Arithmetic("*", a, b), c),
    [{"a": 0.1234567890123456, "b": 8.100000073710000, "c": 1.0}, {"a": 3037000500, "b": 3037000500, "c": 1}],
)
@example(ast.Comparison("<", ast.Arithmetic("/", a, b), c), [{"a": 1, "b": 3, "c": 0.3333333333333333}])
def test_arithmetic_is_exact_where_floats_are_not(e: ast.Expression, events: list[Event]) -> None:
    assert_same(filter_of(e), events, events)


def test_a_constant_without_a_kernel_is_evaluated_for_every_row() -> None:
    """A read beyond a table's end once made one filter stop an entire batch."""
    a, beyond = ast.Attribute(("a",)), ast.Arithmetic("+", ast.Literal(0), ast.Literal(10**23))
    events: list[Event] = [{}, {"a": False}, {"a": 10**23}, {"a": 0}, {"a": None}]
    for inner in (ast.In(beyond, (a, ast.Literal(0))), ast.Comparison("=", beyond, a)):
        condition = filter_of(ast.In(a, (inner, ast.Literal(0))))
        assert_same(condition, columns_of_events(events, condition.column_paths), events)


def test_a_number_that_grows_too_long_is_unknown_by_columns_too() -> None:
    """Squared repeatedly, 0.1234567890123456 exceeds the evaluator's limit of digits, though it is small."""
    product: ast.Expression = a
    for _ in range(10):
        product = ast.Arithmetic("*", product, product)
    events = [{"a": 0.1234567890123456}, {"a": 1e-200}, {"a": 1}, {"a": 0.5}]
    for operator in "<", ">=":
        assert_same(filter_of(ast.Comparison(operator, product, ast.Literal(1))), events, events)


words = st.text(alphabet="abAB é\U0001f600ßİ\ud800", max_size=12)


@many
@given(
    st.lists(st.sampled_from(["a", "B", "ab", "é", "\U0001f600", "aaaaaaaaab", "%", "_"]), max_size=5),
    st.lists(words | st.sampled_from(["aaaaaaaaaaaaab", None, 5]), min_size=1, max_size=10),
    st.sampled_from(["{}", "LOWER({})", "UPPER({})"]),
    st.integers(0, 6),
)
def test_patterns_and_functions_of_strings(
    parts: list[str], values: list[Any], function: str, length: int
) -> None:
    """Of any characters, and half of a surrogate pair, which Python's strings can hold."""
    events = [{"a": value} for value in values]
    name, pattern = function.format("a"), "".join(parts)
    for text in (
        f"{name} LIKE '{pattern}'",
        f"{name} = '{pattern}' OR NOT {name} < 'b'",
        f"LENGTH({name}) >= {length} AND {name} NOT LIKE '%{pattern}%'",
        f"CONTAINS({name}, '{pattern}') OR STARTS_WITH({name}, '{pattern}') OR LENGTH({name}) IN (1, 2)",
    ):
        assert_same(compile_filter(text), events, events)


quantified = st.lists(some.quantified_over(some.bare), min_size=1, max_size=2).map(tuple)


@many
@given(
    st.builds(ast.And, quantified.map(lambda q: (*q, *q))) | quantified.map(lambda q: q[0]), lists_of_events
)
def test_quantifiers_over_arrays_and_other_values(e: ast.Expression, events: list[Event]) -> None:
    condition = filter_of(e)
    assert_same(condition, events, events)
    lines = [json_line(as_json(event)) for event in events]
    read = [json.loads(line) for line in lines]
    for paths in condition.paths, condition.column_paths:
        assert_same(condition, decode_json_lines(b"".join(lines), len(lines), list(paths)), read)


@pytest.mark.parametrize("number", ["18446744073709551616", "-5e-324", "0.30000000000000000001", "1e400"])
def test_an_array_may_end_in_a_number_that_needs_python(number: str) -> None:
    arrays = [f"[{number}]", f"[5,{number}]", f"[{number}, 5]", f"[{number} ]", "[5]", "[]"]
    payload = "".join(f'{{"x":{array}}}\n' for array in arrays).encode()
    events = [json.loads(line) for line in payload.splitlines()]
    for text in "1 < ANY(x)", "1 < ALL(x)", "(0.3 > ANY(x)) IS NOT TRUE", "(7 <= ALL(x)) IS UNKNOWN":
        assert_same(compile_filter(text), decode_json_lines(payload, len(arrays), [("x",)]), events)


def test_absolute_numbers_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    absolute = Function(
        name="ABS",
        parameters=(Parameter("number", Type.NUMBER),),
        result=Type.NUMBER,
        summary="",
        group="",
        compute=abs,
    )
    monkeypatch.setitem(FUNCTIONS, "ABS", absolute)
    values = [
        -(2**63),
        2**63,
        -3,
        3,
        -0.1,
        -0.0,
        1e300,
        -(10**30),
        None,
        "x",
        True,
        float("-inf"),
        Decimal("-2.5"),
    ]
    events = [{"a": value, "b": other} for value in values for other in (0, 0.1, 2**63, -7)]
    for inner in a, ast.Arithmetic("-", a, b), ast.Arithmetic("/", a, ast.Literal(3)):
        call = ast.Call("ABS", (inner,))
        for other in ast.Literal(3), ast.Literal(Decimal("0.1")), ast.Literal(2**63), b:
            assert_same(filter_of(ast.Comparison(">=", call, other)), events, events)
        assert_same(filter_of(ast.IsNull(call)), events, events)
        assert_same(
            filter_of(ast.Comparison(">", ast.Arithmetic("+", call, b), ast.Literal(1))), events, events
        )


@many
@given(cesql.filters(), st.lists(cesql.events, min_size=1, max_size=6))
def test_cesql_with_its_casts(found: tuple[Any, str], events: list[Event]) -> None:
    assert_same(compile_filter(found[1], "cesql"), events, events)


casts = st.builds(
    ast.Call, st.sampled_from(["CESQL_INT", "CESQL_STRING", "CESQL_BOOL"]), st.tuples(st.sampled_from([a, b]))
)
of_casts = st.one_of(
    casts,
    st.builds(ast.Call, st.sampled_from(["LENGTH", "LOWER", "UPPER"]), st.tuples(casts)),
    st.builds(ast.Arithmetic, st.sampled_from(["+", "/"]), casts, st.sampled_from([a, ast.Literal(3)])),
)


@many
@given(
    st.one_of(
        casts,
        st.builds(ast.Comparison, some.operators, of_casts, some.literals | of_casts | st.just(b)),
        st.builds(ast.In, of_casts, st.lists(some.literals, min_size=1, max_size=3).map(tuple)),
        st.builds(ast.Like, of_casts, some.patterns),
        st.builds(ast.IsNull, of_casts),
    ),
    st.lists(cesql.events, min_size=1, max_size=6),
)
def test_casts_inside_of_other_expressions(e: ast.Expression, events: list[Event]) -> None:
    assert_same(filter_of(e), events, events)


@many
@given(st.integers(0, 2**32))
def test_eventbridge_patterns(seed: int) -> None:
    generator = Generator(random.Random(seed))
    condition = compile_filter(generator.pattern(), "eventbridge")
    events = [generator.event() for _ in range(8)]
    assert_same(condition, events, events)
    lines = [json_line(event) for event in events]
    for paths in condition.paths, condition.column_paths:
        assert_same(condition, decode_json_lines(b"".join(lines), len(lines), list(paths)), events)


def test_a_batch_may_be_columns_that_hold_more_than_the_filter_reads() -> None:
    events = [{"data": {"x": n, "y": str(n)}} for n in range(2000)]
    columns = columns_of_events(events, [("data", "x"), ("data", "y"), ("other",)])
    for text in "data.x % 7 = 3 AND data.y LIKE '%3%'", "other = 1", "other IS NULL AND data.x < 5", "TRUE":
        assert_same(compile_filter(text), columns, events)
    assert BatchFilter(compile_filter("data.x = 1")).matches([]).tolist() == []


@pytest.mark.long
@pytest.mark.skipif(not COMPILED, reason="this is the run that it starts")
def test_uncompiled_kernels_read_within_bounds() -> None:
    """Run these tests without numba's compiler: numpy checks indexes, which compiled code does not."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    files = [__file__, str(Path(__file__).with_name("test_vectors.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", *files]
    root = Path(__file__).parents[2]
    done = subprocess.run(
        command, env=environment, cwd=root, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout


def test_a_condition_of_elements_is_prepared_when_an_array_is_met(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event pattern of 21 KB took each worker 400 ms to prepare, four forms of each of its conditions."""
    made = []
    table_of = compiler.table_of
    monkeypatch.setattr(compiler, "table_of", lambda *sets: made.append(sets) or table_of(*sets))
    fields = {f"f{k}": [{"wildcard": f"*a{k}*b*"}, {"prefix": f"p{k}"}] for k in range(40)}
    pattern = compile_filter(json.dumps({"data": fields}), "eventbridge")
    batch = BatchFilter(pattern)
    of_values = len(made)
    assert of_values <= len(fields)
    data = {f"f{k}": f"p{k}x" for k in range(40)}
    events = [{"data": data}, {"data": data | {"f7": "x"}}, {"data": data | {"f7": ["x", "p7"]}}]
    assert batch.matches(events[:2]).tolist() == [True, False]
    assert len(made) == of_values
    assert batch.matches(events).tolist() == [True, False, True]
    assert len(made) > of_values
    found = len(made)
    assert batch.matches(events).tolist() == [True, False, True]
    assert len(made) == found
